//! Shows arbitrary bytes as text that is harmless to a terminal.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

/// Bytes to be displayed in escaped form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Escaped<'a> {
    bytes: &'a [u8],
    keep_lines: bool,
}

impl<'a> Escaped<'a> {
    /// Escapes the bytes so that they fit on one line.
    pub(crate) fn new(bytes: &'a [u8]) -> Escaped<'a> {
        Escaped { bytes, keep_lines: false }
    }

    /// Keeps newlines and tabs, so that text remains readable. This form is not reversible.
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

/// Escapes control characters in external text, such as a file name or a field, before it is shown on a terminal.
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

/// Quotes a path so that a shell treats it as one word.
pub(crate) fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+,:@%=".contains(&byte);
    match !text.is_empty() && text.bytes().all(is_plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}
