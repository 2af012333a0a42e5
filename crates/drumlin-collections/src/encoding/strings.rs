//! Encodings of text and byte strings. They are escaped and terminated, so a string sorts before all longer strings
//! that start with it.
//!
//! A zero byte is written as `00 FF`, and the terminator as `00 00`. Where one string ends and a longer string
//! continues, `00 00` is compared with a nonzero byte or with `00 FF`, and is less than either.

use super::{DecodeError, EncodeAs, Key};

const END: u8 = 0;
const ESCAPED_ZERO: u8 = 0xFF;

fn encode(string: &[u8], bytes: &mut Vec<u8>) {
    bytes.reserve(string.len() + 2);
    let mut parts = string.split(|byte| *byte == 0);
    bytes.extend_from_slice(parts.next().expect("even an empty string has one part"));
    for part in parts {
        bytes.extend_from_slice(&[0, ESCAPED_ZERO]);
        bytes.extend_from_slice(part);
    }
    bytes.extend_from_slice(&[0, END]);
}

fn decode(bytes: &mut &[u8]) -> Result<Vec<u8>, DecodeError> {
    let mut string = Vec::new();
    loop {
        let missing = DecodeError { expected: "the end of a string", found: "none" };
        let length = bytes.iter().position(|byte| *byte == 0).ok_or(missing)?;
        string.extend_from_slice(&bytes[..length]);
        let mark = *bytes.get(length + 1).ok_or(missing)?;
        *bytes = &bytes[length + 2..];
        match mark {
            END => return Ok(string),
            ESCAPED_ZERO => string.push(0),
            _ => return Err(DecodeError { expected: "00 or FF after a zero byte", found: "another byte" }),
        }
    }
}

macro_rules! strings {
    ($($from:ty as $key:ty;)*) => {$(
        impl EncodeAs<$key> for $from {
            fn encode_into(&self, bytes: &mut Vec<u8>) {
                encode(self.as_ref(), bytes);
            }
        }
    )*};
}

strings! { String as String; str as String; Vec<u8> as Vec<u8>; [u8] as Vec<u8>; }

impl<const N: usize> EncodeAs<Vec<u8>> for [u8; N] {
    fn encode_into(&self, bytes: &mut Vec<u8>) {
        encode(self, bytes);
    }
}

impl Key for String {
    fn decode_from(bytes: &mut &[u8]) -> Result<String, DecodeError> {
        String::from_utf8(decode(bytes)?)
            .map_err(|_| DecodeError { expected: "text", found: "bytes that are not UTF-8" })
    }
}

impl Key for Vec<u8> {
    fn decode_from(bytes: &mut &[u8]) -> Result<Vec<u8>, DecodeError> {
        decode(bytes)
    }
}
