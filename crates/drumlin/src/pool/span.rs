//! The part of the file that a single request reads.

/// Maximum gap between extents that one request reads. An additional request costs as much as reading 16 KiB more.
const GROUP_GAP_BYTES: u64 = 16 << 10;

/// The part of the file that a single request reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) start: u64,
    pub(super) end: u64,
}

impl Span {
    pub(super) fn length(self) -> usize {
        debug_assert!(self.start < self.end, "nothing is read from {} to {}", self.start, self.end);
        (self.end - self.start) as usize
    }

    /// Extends the span to include an extent, given by the range that it [covers](crate::space::Space::cover), or
    /// starts a span with it. Returns `false` if separate requests are better, or if the span would exceed `bytes_max`.
    pub(super) fn join(span: &mut Option<Span>, (start, length, _): (u64, usize, usize), bytes_max: usize) -> bool {
        debug_assert!(length > 0, "an extent of no bytes at {start}");
        let end = start + length as u64;
        match span {
            None => *span = Some(Span { start, end }),
            Some(span) => {
                let is_near = start >= span.start && start <= span.end + GROUP_GAP_BYTES;
                if !is_near || end > span.start + bytes_max as u64 {
                    return false;
                }
                span.end = span.end.max(end);
            }
        }
        true
    }
}
