//! Converts keys and values to text and back. The conversion is reversible, and the text is harmless to a terminal.
//!
//! UTF-8 is kept unchanged. A backslash becomes `\\`; newline, carriage return and tab become `\n`, `\r`, `\t`; every
//! other control character and every byte that is not UTF-8 becomes `\xNN`. With `--hex`, keys are in hexadecimal
//! instead.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::ser::{Serialize, SerializeMap, Serializer};

pub(crate) use crate::escape::{Escaped, harmless, shell_word};
use crate::failure::{Failure, Result};

/// Bytes that are displayed as hexadecimal digits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hex<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Parses a key as the user typed it.
pub(crate) fn parse_key(text: &OsStr, hex: bool) -> Result<Vec<u8>> {
    let parsed = if hex { parse_hex(text.as_bytes()) } else { unescape(text.as_bytes()) };
    parsed.map_err(|reason| {
        let shown = Escaped::new(text.as_bytes());
        Failure::usage(format!("key '{shown}': {reason}")).hint(if hex {
            "with --hex, keys are pairs of hexadecimal digits: 0a1b2c"
        } else {
            "bytes are written \\xNN, a backslash \\\\; or use --hex"
        })
    })
}

/// Reverses the one-line form of [`Escaped`]: returns the original bytes.
pub(crate) fn unescape(text: &[u8]) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        bytes.extend_from_slice(&rest[..at]);
        let escape = &rest[at + 1..];
        let (byte, length) = match escape.first() {
            Some(b'\\') => (b'\\', 1),
            Some(b'n') => (b'\n', 1),
            Some(b'r') => (b'\r', 1),
            Some(b't') => (b'\t', 1),
            Some(b'0') => (0, 1),
            Some(b'x') => (escape.get(1..3).and_then(hex_byte).ok_or("\\x needs two hexadecimal digits")?, 3),
            _ => return Err("a backslash begins an escape: \\\\ \\n \\r \\t \\0 \\xNN".to_owned()),
        };
        bytes.push(byte);
        rest = &escape[length..];
    }
    bytes.extend_from_slice(rest);
    Ok(bytes)
}

fn parse_hex(text: &[u8]) -> Result<Vec<u8>, String> {
    if !text.len().is_multiple_of(2) {
        return Err("an odd number of hexadecimal digits".to_owned());
    }
    text.chunks_exact(2).map(|pair| hex_byte(pair).ok_or_else(|| "not hexadecimal digits".to_owned())).collect()
}

fn hex_byte(pair: &[u8]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let byte = digit(pair[0])? * 16 + digit(pair[1])?;
    u8::try_from(byte).ok()
}

/// Bytes that are serialized as a JSON string if they are UTF-8, otherwise as `{"base64": "…"}`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JsonBytes<'a>(pub(crate) &'a [u8]);

impl Serialize for JsonBytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match std::str::from_utf8(self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry("base64", &STANDARD.encode(self.0))?;
                map.end()
            }
        }
    }
}

/// A row as printed by `dump` and `scan --json`.
#[derive(Debug, serde::Serialize)]
pub(crate) struct JsonRow<'a> {
    pub(crate) key: JsonBytes<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) value: Option<JsonBytes<'a>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Unescaping escaped bytes returns the original bytes.
    #[test]
    fn escapes_are_reversible() {
        let all: Vec<u8> = (0..=255).chain(*b"\xc3\xa9 caf\xc3\xa9 \\x41 \xff\xfe").collect();
        let text = Escaped::new(&all).to_string();
        assert!(text.chars().all(|char| !char.is_control()));
        assert_eq!(unescape(text.as_bytes()).unwrap(), all);
        assert_eq!(parse_hex(Hex(&all).to_string().as_bytes()).unwrap(), all);
    }

    /// Invalid escapes are rejected.
    #[test]
    fn nonsense_is_refused() {
        for text in ["\\", "\\q", "\\x4", "\\xzz"] {
            assert!(unescape(text.as_bytes()).is_err(), "{text}");
        }
        assert!(parse_hex(b"abc").is_err());
        assert!(parse_hex(b"+1").is_err());
    }
}
