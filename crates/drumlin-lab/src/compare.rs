//! Comparisons of cases that know how far a case differs from itself.
//!
//! # Invariants
//! 1. A figure is never a single run's: a [`Spread`] has the median of the rounds, the least and the most.
//! 2. A [`Ratio`] has an interval: from the least to the most of the rounds, and at least as wide as the difference
//!    between the same case at the beginning and at the end of each round.
//! 3. A judgement that another point of the interval would turn round is [`Holds::CannotTell`].

use crate::figures::{self, Form};
use crate::measure::median;
use crate::report::{Chapter, Holds, Judgement};

/// A figure over the rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Spread {
    /// `None` without any round.
    pub(crate) fn of(rounds: &[f64]) -> Option<Spread> {
        if rounds.is_empty() {
            return None;
        }
        let least = rounds.iter().copied().fold(f64::INFINITY, f64::min);
        let most = rounds.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Some(Spread { median: median(rounds.to_vec()), least, most })
    }

    /// `42.3 k/s (40.1 k/s to 43.0 k/s)`; `unit` follows each number.
    pub(crate) fn show(&self, form: Form, unit: &str) -> String {
        let show = |number| format!("{}{unit}", form.show(number));
        let [middle, least, most] = [self.median, self.least, self.most].map(show);
        if least == most { middle } else { format!("{middle} ({least} to {most})") }
    }
}

/// The factor, at least 1, by which a figure of the same case differs between the beginning and the end of the rounds.
pub(crate) fn noise(first: &[f64], again: &[f64]) -> f64 {
    let factor = median(again.to_vec()) / median(first.to_vec());
    if factor.is_finite() && factor > 0.0 { factor.max(1.0 / factor) } else { 1.0 }
}

/// A figure of one case divided by that of another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ratio {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
    /// See [`noise`].
    pub(crate) noise: f64,
}

impl Ratio {
    /// Divides the medians; the range is that of the rounds, in which both were measured one soon after the other.
    /// `None` if a case has no figure, or the divisor none above zero.
    pub(crate) fn of(left: &[f64], right: &[f64], noise: f64) -> Option<Ratio> {
        let ratios: Vec<f64> = left.iter().zip(right).map(|(left, right)| left / right).collect();
        let spread = Spread::of(&ratios).filter(|spread| spread.least.is_finite() && spread.most.is_finite())?;
        // Rounds that one case lacks would shift the medians.
        let rounds = ratios.len();
        let middle = median(left[..rounds].to_vec()) / median(right[..rounds].to_vec());
        Some(Ratio { median: middle, least: spread.least.min(middle), most: spread.most.max(middle), noise })
    }

    /// The interval within which the true ratio is taken to lie.
    pub(crate) fn interval(&self) -> (f64, f64) {
        (self.least.min(self.median / self.noise), self.most.max(self.median * self.noise))
    }

    /// Judges the claim that the ratio is at least `claimed`, which is above 1. In direction, not in size, is partly.
    /// No effect, or the opposite, is a no; an interval that holds both no effect and the claimed one tells nothing.
    pub(crate) fn at_least(&self, claimed: f64) -> Holds {
        assert!(claimed > 1.0, "a claim of {claimed} times claims no effect");
        let (low, high) = self.interval();
        match () {
            () if low >= claimed => Holds::Yes,
            () if low > 1.0 => Holds::Partly,
            () if high < claimed => Holds::No,
            () => Holds::CannotTell,
        }
    }

    /// Judges the claim that both are alike, up to this factor above 1. A difference that is certain, and perhaps
    /// within the factor, is partly.
    pub(crate) fn alike(&self, factor: f64) -> Holds {
        assert!(factor > 1.0, "no two measurements are equal");
        let (low, high) = self.interval();
        let inside = 1.0 / factor..=factor;
        match () {
            () if inside.contains(&low) && inside.contains(&high) => Holds::Yes,
            () if low > factor || high < 1.0 / factor => Holds::No,
            () if low > 1.0 || high < 1.0 => Holds::Partly,
            () => Holds::CannotTell,
        }
    }

    /// `1.82 times (1.70 to 1.95)`
    pub(crate) fn show(&self) -> String {
        let [middle, least, most] = [self.median, self.least, self.most].map(figures::digits);
        if least == most { format!("{middle} times") } else { format!("{middle} times ({least} to {most})") }
    }

    /// The condition that is missing where this ratio tells nothing.
    pub(crate) fn doubt(&self) -> String {
        format!(
            "a quieter machine (the rounds gave {} to {} times, and the same case run again differs by {} times)",
            figures::digits(self.least),
            figures::digits(self.most),
            figures::digits(self.noise)
        )
    }

    /// A judgement with these figures; names the missing condition if it is none.
    pub(crate) fn judge(&self, holds: Holds, figures: impl Into<String>) -> Judgement {
        match holds {
            Holds::CannotTell => Judgement::cannot_tell(self.doubt(), figures),
            holds => Judgement::new(holds, figures),
        }
    }
}

/// Judges the claim that a ratio is at least `claimed`, by figures that `told` puts into words. A ratio that could not
/// be measured, for want of the condition `missing`, tells nothing.
pub(crate) fn at_least(
    ratio: Option<Ratio>,
    claimed: f64,
    missing: Option<&str>,
    told: impl FnOnce(Ratio) -> String,
) -> Judgement {
    measured(ratio, missing, |ratio| ratio.judge(ratio.at_least(claimed), told(ratio)))
}

/// Judges by a figure that may be missing, with the condition for want of which it is.
pub(crate) fn measured<T>(figure: Option<T>, missing: Option<&str>, judge: impl FnOnce(T) -> Judgement) -> Judgement {
    match figure {
        Some(figure) => judge(figure),
        None => Judgement::cannot_tell(missing.unwrap_or("a case that failed or was not run"), ""),
    }
}

/// A source's claim, and the way in which it is judged by an experiment's figures. `judge` is a pure function, so that
/// a test shows each verdict that it can come to.
#[derive(Debug)]
pub(crate) struct Claim<F: ?Sized> {
    pub(crate) source: &'static str,
    pub(crate) text: &'static str,
    pub(crate) judge: fn(&F) -> Judgement,
}

impl<F: ?Sized> Claim<F> {
    pub(crate) fn put(&self, chapter: &mut Chapter, figures: &F) {
        chapter.judged(self.source, self.text, (self.judge)(figures));
    }
}

/// Combines the parts of a claim: it holds if all parts do, does not if none does, and cannot be told if one cannot.
pub(crate) fn all(parts: impl IntoIterator<Item = Holds>) -> Holds {
    let parts: Vec<Holds> = parts.into_iter().collect();
    let every = |holds| parts.iter().all(|part| *part == holds);
    match () {
        () if parts.is_empty() || parts.contains(&Holds::CannotTell) => Holds::CannotTell,
        () if every(Holds::Yes) => Holds::Yes,
        () if every(Holds::No) => Holds::No,
        () => Holds::Partly,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(rounds: [f64; 3], noise: f64) -> Ratio {
        Ratio::of(&rounds, &[1.0; 3], noise).unwrap()
    }

    /// A claim of twice as much comes out each way, and not at all once the same case differs from itself by as much.
    #[test]
    fn a_claim_of_more_comes_out_each_way() {
        assert_eq!(ratio([2.1, 2.5, 2.2], 1.02).at_least(2.0), Holds::Yes);
        assert_eq!(ratio([1.4, 1.5, 1.6], 1.1).at_least(2.0), Holds::Partly);
        assert_eq!(ratio([1.9, 2.2, 2.4], 1.1).at_least(2.0), Holds::Partly);
        assert_eq!(ratio([0.9, 1.1, 1.0], 1.1).at_least(2.0), Holds::No);
        assert_eq!(ratio([0.4, 0.5, 0.5], 1.1).at_least(2.0), Holds::No);
        assert_eq!(ratio([2.1, 2.5, 2.2], 2.3).at_least(2.0), Holds::CannotTell);
        assert_eq!(ratio([0.8, 2.5, 1.5], 1.0).at_least(2.0), Holds::CannotTell);
    }

    /// A claim of "the same" comes out each way.
    #[test]
    fn a_claim_of_likeness_comes_out_each_way() {
        assert_eq!(ratio([0.95, 1.1, 1.0], 1.05).alike(1.25), Holds::Yes);
        assert_eq!(ratio([1.2, 1.3, 1.1], 1.05).alike(1.25), Holds::Partly);
        assert_eq!(ratio([2.0, 2.2, 1.9], 1.05).alike(1.25), Holds::No);
        assert_eq!(ratio([0.4, 0.5, 0.45], 1.05).alike(1.25), Holds::No);
        assert_eq!(ratio([0.95, 1.1, 1.0], 1.5).alike(1.25), Holds::CannotTell);
        assert_eq!(ratio([0.9, 1.5, 1.3], 1.0).alike(1.25), Holds::CannotTell);
    }

    /// Ratios are those of the same rounds; a case without figures has none.
    #[test]
    fn ratios_are_taken_within_rounds() {
        // The drive halved its rate in the third round, for both.
        let found = Ratio::of(&[200.0, 210.0, 100.0], &[100.0, 105.0, 50.0], 1.0).unwrap();
        assert_eq!((found.median, found.least, found.most), (2.0, 2.0, 2.0));
        assert_eq!(Ratio::of(&[], &[1.0], 1.0), None);
        assert_eq!(Ratio::of(&[1.0], &[0.0], 1.0), None);
        assert_eq!(noise(&[10.0, 10.0, 10.0], &[8.0, 8.0, 9.0]), 1.25);
        assert_eq!(noise(&[], &[]), 1.0);
        assert_eq!(Spread::of(&[]), None);
        let spread = Spread::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!(spread.show(Form::Rate, "/s"), "2.00/s (1.00/s to 3.00/s)");
    }

    /// Claims of several parts.
    #[test]
    fn parts_are_combined() {
        use Holds::{CannotTell, No, Partly, Yes};
        assert_eq!(all([Yes, Yes]), Yes);
        assert_eq!(all([No, No]), No);
        assert_eq!(all([Yes, No]), Partly);
        assert_eq!(all([Yes, CannotTell]), CannotTell);
    }

    /// A verdict that cannot be told always names what is missing.
    #[test]
    #[should_panic(expected = "names the missing condition")]
    fn a_doubt_without_a_reason_is_refused() {
        let _ = Judgement::new(Holds::CannotTell, "");
    }
}
