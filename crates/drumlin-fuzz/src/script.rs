//! Bytes read as instructions: whatever they are, they mean something.

/// The bytes that are left. Behind them everything is zero.
#[derive(Clone, Debug)]
pub struct Script<'b>(pub &'b [u8]);

impl<'b> Script<'b> {
    /// Returns `true` if there is more.
    pub fn has_more(&self) -> bool {
        !self.0.is_empty()
    }

    /// One byte.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// Four bytes.
    pub fn number(&mut self) -> usize {
        (0..4).fold(0, |number, _| number << 8 | usize::from(self.byte()))
    }

    /// As many bytes as there are, up to `length`.
    pub fn bytes(&mut self, length: usize) -> &'b [u8] {
        let (bytes, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        bytes
    }
}
