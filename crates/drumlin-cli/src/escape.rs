//! Bytes of any kind as text that is harmless to a terminal.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

/// Bytes in the escaped form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Escaped<'a> {
    bytes: &'a [u8],
    keep_lines: bool,
}

impl<'a> Escaped<'a> {
    /// On one line.
    pub(crate) fn new(bytes: &'a [u8]) -> Escaped<'a> {
        Escaped { bytes, keep_lines: false }
    }

    /// Newlines and tabs stand as they are, so that text reads as text; not reversible.
    pub(crate) fn readable(bytes: &'a [u8]) -> Escaped<'a> {
        Escaped { bytes, keep_lines: true }
    }
}

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.bytes.utf8_chunks() {
            for char in chunk.valid().chars() {
                match char {
                    '\n' | '\t' if self.keep_lines => fmt::Write::write_char(f, char)?,
                    '\\' if !self.keep_lines => f.write_str("\\\\")?,
                    '\n' => f.write_str("\\n")?,
                    '\r' => f.write_str("\\r")?,
                    '\t' => f.write_str("\\t")?,
                    char if char.is_control() => {
                        for byte in char.encode_utf8(&mut [0; 4]).bytes() {
                            write!(f, "\\x{byte:02x}")?;
                        }
                    }
                    char => fmt::Write::write_char(f, char)?,
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

/// Text for a terminal that came from elsewhere, a file's name or a field: control characters are escaped.
pub(crate) fn harmless(text: &str) -> Cow<'_, str> {
    if !text.chars().any(char::is_control) {
        return Cow::Borrowed(text);
    }
    let escaped = |char: char| match char.is_control() {
        true => Escaped::new(char.encode_utf8(&mut [0; 4]).as_bytes()).to_string(),
        false => char.to_string(),
    };
    Cow::Owned(text.chars().map(escaped).collect())
}

/// A path as a shell takes it for one word.
pub(crate) fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+,:@%=".contains(&byte);
    match !text.is_empty() && text.bytes().all(is_plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}
