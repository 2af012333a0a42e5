//! Exact sums of floats.

/// The number of bits in a digit.
const DIGIT_BITS: i32 = 32;

/// The exact sum of any number of floats. It is a number in two's complement, whose digits can range from the least
/// significant bit of any float to beyond the most significant one. So the sum does not depend on the order of the
/// floats, or on how they are divided into partial sums. After Kulisch ("Computer Arithmetic and Validity", 2008), but
/// with only the digits that are needed: most sums have three or four.
///
/// The number is Σ `digits[i]` · 2^(32 · (`lowest` + i)). The last digit determines the sign.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExactSum {
    lowest: i32,
    digits: Vec<u32>,
    /// The sum of all NaNs and infinities, if there were any.
    special: Option<f64>,
}

/// Returns the digit (all zeros or all ones) by which a number with these digits is sign-extended.
fn sign_digit(digits: &[u32]) -> u32 {
    match digits.last() {
        Some(last) if last >> 31 == 1 => u32::MAX,
        _ => 0,
    }
}

impl ExactSum {
    /// Returns a sum that consists of a single float.
    pub(super) fn of(number: f64) -> ExactSum {
        if !number.is_finite() {
            return ExactSum { special: Some(number), ..ExactSum::default() };
        }
        let bits = number.to_bits();
        let (biased, fraction) = ((bits >> 52 & 0x7FF) as i32, bits & ((1 << 52) - 1));
        // Subnormal floats have the same exponent as the smallest normal ones.
        let (mantissa, exponent) = if biased == 0 { (fraction, -1074) } else { (fraction | 1 << 52, biased - 1075) };
        let lowest = exponent.div_euclid(DIGIT_BITS);
        let shifted = i128::from(mantissa) << exponent.rem_euclid(DIGIT_BITS);
        let signed = if number.is_sign_negative() { -shifted } else { shifted };
        let digits = (0..4).map(|digit| (signed >> (32 * digit)) as u32).collect();
        ExactSum { lowest, digits, special: None }.trimmed()
    }

    /// Drops digits that do not affect the number: zeros at the low end, and copies of the sign at the high end.
    fn trimmed(mut self) -> ExactSum {
        while let [.., before, last] = self.digits[..] {
            let says_nothing = last == 0 && before >> 31 == 0 || last == u32::MAX && before >> 31 == 1;
            if !says_nothing {
                break;
            }
            self.digits.pop();
        }
        if self.digits == [0] {
            self.digits.clear();
        }
        let zeros = self.digits.iter().take_while(|digit| **digit == 0).count();
        self.digits.drain(..zeros);
        self.lowest = if self.digits.is_empty() { 0 } else { self.lowest + zeros as i32 };
        self
    }

    /// Returns the digit of weight 2^(32 · `position`).
    fn digit(&self, position: i32) -> u32 {
        match usize::try_from(position - self.lowest) {
            Err(_) => 0,
            Ok(at) => self.digits.get(at).copied().unwrap_or_else(|| sign_digit(&self.digits)),
        }
    }

    /// Returns the sum of `self` and `other`.
    pub(super) fn plus(self, other: ExactSum) -> ExactSum {
        let special = match (self.special, other.special) {
            (Some(left), Some(right)) => Some(left + right),
            (left, right) => left.or(right),
        };
        if self.digits.is_empty() {
            return ExactSum { special, ..other };
        }
        if other.digits.is_empty() {
            return ExactSum { special, ..self };
        }
        let lowest = self.lowest.min(other.lowest);
        let end = |sum: &ExactSum| sum.lowest + sum.digits.len() as i32;
        // Add one digit for the carry.
        let digits_end = end(&self).max(end(&other)) + 1;
        let mut carry = 0;
        let digits = (lowest..digits_end).map(|position| {
            let sum = u64::from(self.digit(position)) + u64::from(other.digit(position)) + carry;
            carry = sum >> DIGIT_BITS;
            sum as u32
        });
        ExactSum { lowest, digits: digits.collect(), special }.trimmed()
    }

    /// Returns the nearest float. Ties round to even.
    pub(super) fn rounded(&self) -> f64 {
        if let Some(special) = self.special {
            return special;
        }
        let is_negative = sign_digit(&self.digits) != 0;
        let mut magnitude = self.digits.clone();
        if is_negative {
            let mut carry = true;
            for digit in &mut magnitude {
                (*digit, carry) = (!*digit).overflowing_add(u32::from(carry));
            }
        }
        let Some(top) = magnitude.iter().rposition(|digit| *digit != 0) else { return 0.0 };
        let digit = |at: usize| u64::from(magnitude[at]);
        let highest_bit = 32 * top as i32 + 31 - magnitude[top].leading_zeros() as i32;
        // The exponent of the result's last bit. The result has 53 bits, or fewer at the smallest exponent.
        let exponent = (highest_bit - 52).max(-1074 - DIGIT_BITS * self.lowest);
        let bit = |at: i32| at >= 0 && digit(at as usize / 32) >> (at % 32) & 1 == 1;
        let mut mantissa =
            (exponent.max(0)..=highest_bit).fold(0, |bits, at| bits | u64::from(bit(at)) << (at - exponent));
        let is_half = bit(exponent - 1);
        let is_more = (0..exponent - 1).any(bit);
        mantissa += u64::from(is_half && (is_more || mantissa & 1 == 1));
        let exponent = exponent + DIGIT_BITS * self.lowest;
        let rounded = scaled(mantissa, exponent);
        if is_negative { -rounded } else { rounded }
    }

    /// Appends the position of the lowest digit, the digits, and the special sum, if any.
    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        // This fits, because digits have positions from -34 to 33.
        bytes.push(self.lowest as i8 as u8);
        bytes.push(self.digits.len() as u8);
        self.digits.iter().for_each(|digit| bytes.extend(digit.to_be_bytes()));
        self.special.iter().for_each(|special| bytes.extend(special.to_be_bytes()));
    }

    /// Decodes a sum. Returns `None` if the bytes do not encode a sum.
    pub(super) fn decode(bytes: &[u8]) -> Option<ExactSum> {
        let [lowest, count, rest @ ..] = bytes else { return None };
        let (digits, special) = rest.split_at_checked(usize::from(*count) * 4)?;
        let special = match special.len() {
            0 => None,
            _ => Some(f64::from_be_bytes(special.try_into().ok()?)),
        };
        let digits = digits.chunks_exact(4).map(|digit| u32::from_be_bytes(digit.try_into().expect("four bytes")));
        Some(ExactSum { lowest: i32::from(*lowest as i8), digits: digits.collect(), special })
    }
}

/// Returns `mantissa` · 2^`exponent`. A float can represent this number unless it is too large.
fn scaled(mantissa: u64, exponent: i32) -> f64 {
    debug_assert!(mantissa <= 1 << 53 && exponent >= -1074);
    // Scale in two steps, because 2^exponent alone may be too small or too large for a float.
    let half = exponent / 2;
    mantissa as f64 * 2f64.powi(half) * 2f64.powi(exponent - half)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::Random;

    fn sum(numbers: &[f64]) -> ExactSum {
        numbers.iter().fold(ExactSum::default(), |sum, number| sum.plus(ExactSum::of(*number)))
    }

    /// The sum of a single float rounds to the same float, bit for bit, down to the smallest subnormal.
    #[test]
    fn floats_come_back() {
        let mut random = Random(1);
        let known = [0.0, 1.0, -1.0, f64::MIN_POSITIVE, 5e-324, -5e-324, f64::MAX, f64::MIN, 0.1, 1e-310];
        let drawn = (0..20_000).map(|_| f64::from_bits(random.below(u64::MAX))).filter(|number| number.is_finite());
        for number in known.into_iter().chain(drawn) {
            let sum = ExactSum::of(number);
            assert_eq!(sum.rounded(), number, "{number:e}: {sum:?}");
            let mut bytes = Vec::new();
            sum.encode(&mut bytes);
            assert_eq!(ExactSum::decode(&bytes), Some(sum));
        }
    }

    /// Sums are exact and rounded only once. Ties round to even.
    #[test]
    fn sums_are_exact() {
        assert_eq!(sum(&[1e100, 1.0, -1e100]).rounded(), 1.0);
        assert_eq!(sum(&[0.1; 10]).rounded(), 1.0);
        let half = 2f64.powi(-53);
        assert_eq!(sum(&[1.0, half]).rounded(), 1.0);
        assert_eq!(sum(&[1.0, half, 5e-324]).rounded(), 1.0 + 2.0 * half);
        assert_eq!(sum(&[1.0 + 2.0 * half, half]).rounded(), 1.0 + 4.0 * half);
        assert_eq!(sum(&[f64::MAX, f64::MAX]).rounded(), f64::INFINITY);
        assert_eq!(sum(&[f64::MAX, f64::MAX, -f64::MAX]).rounded(), f64::MAX);
        assert!(sum(&[f64::INFINITY, f64::NEG_INFINITY]).rounded().is_nan());
        assert_eq!(sum(&[f64::INFINITY, -1.0]).rounded(), f64::INFINITY);
        let integers: Vec<f64> = (0..1000).map(|number| f64::from(number * 7919 % 1000 - 500) * 1e15).collect();
        let expected: i128 = integers.iter().map(|number| *number as i128).sum();
        assert_eq!(sum(&integers).rounded(), expected as f64);
    }

    /// The result does not depend on the order of the numbers or on how they are divided into partial sums.
    #[test]
    fn parts_do_not_matter() {
        let mut random = Random(2);
        for _ in 0..200 {
            let mut draw = || (random.below(2_000_001) as f64 - 1e6) * 10f64.powi(random.below(600) as i32 - 300);
            let numbers: Vec<f64> = (0..40).map(|_| draw()).collect();
            let whole = sum(&numbers);
            let mut reversed = numbers.clone();
            reversed.reverse();
            assert_eq!(sum(&reversed), whole);
            let at = random.below(40) as usize;
            assert_eq!(sum(&numbers[..at]).plus(sum(&numbers[at..])), whole);
            let negated: Vec<f64> = numbers.iter().map(|number| -number).collect();
            assert_eq!(whole.plus(sum(&negated)), ExactSum::default());
        }
    }
}
