//! Bytes that are read as instructions. Any bytes form a valid script.

/// The remaining bytes. After its end, a script reads as zeros.
#[derive(Clone, Debug)]
pub struct Script<'b>(pub &'b [u8]);

impl<'b> Script<'b> {
    /// Returns `true` if bytes are left.
    pub fn has_more(&self) -> bool {
        !self.0.is_empty()
    }

    /// Takes one byte.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// Takes four bytes as a number.
    pub fn number(&mut self) -> usize {
        (0..4).fold(0, |number, _| number << 8 | usize::from(self.byte()))
    }

    /// Takes `length` bytes, or fewer at the end.
    pub fn bytes(&mut self, length: usize) -> &'b [u8] {
        let (bytes, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        bytes
    }
}
