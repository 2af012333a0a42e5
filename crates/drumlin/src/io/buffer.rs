//! Buffers whose address suits direct I/O.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::format::BLOCK_BYTES;

/// An owned, zero-initialised buffer that starts on a multiple of 4,096 bytes.
pub struct AlignedBuffer {
    start: NonNull<u8>,
    /// Bytes of the allocation before the start.
    lead: usize,
    length: usize,
    capacity: usize,
}

/// The least capacity of a buffer that is allocated with less alignment than it has, and a block more: an allocator
/// gives zeros of that size without touching them, but writes them where it has to align. The two buffers of a log, of
/// 8 MiB each, took 4 ms of every opening.
const UNTOUCHED_BYTES_MIN: usize = 256 << 10;

/// The alignment that allocators have without being asked.
const ALLOCATION_ALIGNMENT: usize = 16;

// SAFETY: the buffer owns its bytes alone, as a `Box<[u8]>` does. Test: `many_threads` of `io::tests`.
unsafe impl Send for AlignedBuffer {}
// SAFETY: shared access only reads. Test: `streamed_buffers_are_stable` of `io::tests`.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// Address and capacity are multiples of this many bytes.
    pub const ALIGNMENT: usize = BLOCK_BYTES;

    /// A buffer of `length` zeros; its capacity is the next multiple of [`ALIGNMENT`](Self::ALIGNMENT).
    #[must_use]
    pub fn zeroed(length: usize) -> AlignedBuffer {
        let capacity = length.next_multiple_of(Self::ALIGNMENT).max(Self::ALIGNMENT);
        let layout = Self::layout(capacity);
        // SAFETY: the layout's size is not zero. Test: `a_buffer_is_aligned_zeroed_and_its_own`.
        let allocated = unsafe { alloc_zeroed(layout) };
        let allocated = NonNull::new(allocated).unwrap_or_else(|| handle_alloc_error(layout));
        let lead = allocated.addr().get().next_multiple_of(Self::ALIGNMENT) - allocated.addr().get();
        assert!(lead + capacity <= layout.size(), "a buffer of {capacity} bytes does not fit behind {lead}");
        // SAFETY: `lead` is within the allocation, as was just asserted. Test: as before.
        let start = unsafe { allocated.add(lead) };
        AlignedBuffer { start, lead, length, capacity }
    }

    fn layout(capacity: usize) -> Layout {
        let layout = match capacity < UNTOUCHED_BYTES_MIN {
            true => Layout::from_size_align(capacity, Self::ALIGNMENT),
            false => Layout::from_size_align(capacity.saturating_add(Self::ALIGNMENT), ALLOCATION_ALIGNMENT),
        };
        layout.expect("buffer size overflows")
    }

    /// Bytes it can hold without another allocation.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Shows more or less of the capacity. Bytes that come into view keep what they last held.
    ///
    /// # Panics
    /// If `length` exceeds the capacity.
    pub fn set_len(&mut self, length: usize) {
        assert!(length <= self.capacity, "{length} bytes in a buffer of {}", self.capacity);
        self.length = length;
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this very layout, `lead` bytes before the start. Test: as there, under a
        // checking allocator.
        unsafe { dealloc(self.start.as_ptr().sub(self.lead), Self::layout(self.capacity)) }
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `length` is at most `capacity`, and all of the capacity was initialised when it was allocated. Test:
        // `a_buffer_is_aligned_zeroed_and_its_own`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl DerefMut for AlignedBuffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and `&mut self` makes the access exclusive. Test: as there.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuffer({} of {} bytes)", self.length, self.capacity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A buffer begins at a multiple of its alignment, with zeros; its bytes are in no other, and a changed length
    /// keeps them.
    #[test]
    fn a_buffer_is_aligned_zeroed_and_its_own() {
        let sizes = (1..20).chain([63, 64, 65, 2048]);
        let mut buffers: Vec<AlignedBuffer> = sizes.map(|blocks| AlignedBuffer::zeroed(blocks * 4096)).collect();
        for (number, buffer) in buffers.iter_mut().enumerate() {
            assert!(buffer.as_ptr().addr().is_multiple_of(AlignedBuffer::ALIGNMENT));
            assert!(buffer.iter().all(|&byte| byte == 0));
            buffer.fill(number as u8 + 1);
        }
        for (number, buffer) in buffers.iter_mut().enumerate() {
            let capacity = buffer.capacity();
            buffer.set_len(1);
            buffer.set_len(capacity);
            assert!(buffer.iter().all(|&byte| byte == number as u8 + 1), "buffer {number}");
        }
    }
}
