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
    length: usize,
    capacity: usize,
}

// SAFETY: the buffer owns its bytes alone, as a `Box<[u8]>` does.
unsafe impl Send for AlignedBuffer {}
// SAFETY: shared access only reads.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// Address and capacity are multiples of this many bytes.
    pub const ALIGNMENT: usize = BLOCK_BYTES;

    /// A buffer of `length` zeros; its capacity is the next multiple of [`ALIGNMENT`](Self::ALIGNMENT).
    #[must_use]
    pub fn zeroed(length: usize) -> AlignedBuffer {
        let capacity = length.next_multiple_of(Self::ALIGNMENT).max(Self::ALIGNMENT);
        let layout = Self::layout(capacity);
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
        AlignedBuffer { start, length, capacity }
    }

    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, Self::ALIGNMENT).expect("buffer size overflows")
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
        // SAFETY: allocated in `zeroed` with this very layout.
        unsafe { dealloc(self.start.as_ptr(), Self::layout(self.capacity)) }
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `length` is at most `capacity`, and all of the capacity was initialised when it was allocated.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl DerefMut for AlignedBuffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuffer({} of {} bytes)", self.length, self.capacity)
    }
}
