//! Fixed-length, big-endian encodings of numbers, characters and booleans.

use super::{DecodeError, EncodeAs, Key, take};

macro_rules! unsigned {
    ($($number:ident)*) => {$(
        impl EncodeAs<$number> for $number {
            fn encode_into(&self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_be_bytes());
            }
        }

        impl Key for $number {
            fn decode_from(bytes: &mut &[u8]) -> Result<$number, DecodeError> {
                take(bytes, stringify!($number)).map($number::from_be_bytes)
            }
        }
    )*};
}

unsigned!(u8 u16 u32 u64 u128);

macro_rules! signed {
    ($($number:ident)*) => {$(
        // Inverting the sign bit maps the smallest number to 0, and −1 to the largest unsigned number with a clear top
        // bit.
        impl EncodeAs<$number> for $number {
            fn encode_into(&self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&(self ^ $number::MIN).to_be_bytes());
            }
        }

        impl Key for $number {
            fn decode_from(bytes: &mut &[u8]) -> Result<$number, DecodeError> {
                take(bytes, stringify!($number)).map(|bytes| $number::from_be_bytes(bytes) ^ $number::MIN)
            }
        }
    )*};
}

signed!(i8 i16 i32 i64 i128);

macro_rules! float {
    ($($number:ident as $bits:ident)*) => {$(
        // The bits of a number, read as an integer, grow with its magnitude. Inverting all bits of a negative number
        // reverses the order of negative numbers, and clears the sign bit, so they sort before positive numbers.
        impl EncodeAs<$number> for $number {
            fn encode_into(&self, bytes: &mut Vec<u8>) {
                const SIGN: $bits = 1 << ($bits::BITS - 1);
                let bits = self.to_bits();
                let ordered = if bits & SIGN == 0 { bits | SIGN } else { !bits };
                bytes.extend_from_slice(&ordered.to_be_bytes());
            }
        }

        impl Key for $number {
            fn decode_from(bytes: &mut &[u8]) -> Result<$number, DecodeError> {
                const SIGN: $bits = 1 << ($bits::BITS - 1);
                let ordered = $bits::from_be_bytes(take(bytes, stringify!($number))?);
                Ok($number::from_bits(if ordered & SIGN == 0 { !ordered } else { ordered & !SIGN }))
            }
        }
    )*};
}

float!(f32 as u32 f64 as u64);

impl EncodeAs<bool> for bool {
    fn encode_into(&self, bytes: &mut Vec<u8>) {
        bytes.push(u8::from(*self));
    }
}

impl Key for bool {
    fn decode_from(bytes: &mut &[u8]) -> Result<bool, DecodeError> {
        match take(bytes, "a bool")? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(DecodeError { expected: "0 or 1 of a bool", found: "another byte" }),
        }
    }
}

impl EncodeAs<char> for char {
    fn encode_into(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&u32::from(*self).to_be_bytes());
    }
}

impl Key for char {
    fn decode_from(bytes: &mut &[u8]) -> Result<char, DecodeError> {
        let scalar = u32::from_be_bytes(take(bytes, "a char")?);
        char::from_u32(scalar)
            .ok_or(DecodeError { expected: "a char", found: "a number that is not a Unicode scalar value" })
    }
}

#[cfg(feature = "uuid")]
impl EncodeAs<uuid::Uuid> for uuid::Uuid {
    fn encode_into(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self.as_bytes());
    }
}

#[cfg(feature = "uuid")]
impl Key for uuid::Uuid {
    fn decode_from(bytes: &mut &[u8]) -> Result<uuid::Uuid, DecodeError> {
        take(bytes, "a UUID").map(uuid::Uuid::from_bytes)
    }
}
