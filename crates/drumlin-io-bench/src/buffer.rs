//! A buffer that all peers accept. Their own buffers are not aligned for direct I/O.
#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut};

use drumlin_io::AlignedBuffer;

/// An aligned buffer of fixed length.
pub(crate) struct Buffer(pub(crate) AlignedBuffer);

impl Buffer {
    /// Returns buffers of `bytes` each. Large buffers form a group in huge pages, like those of drumlin-io's streams.
    pub(crate) fn group(count: usize, bytes: usize) -> Vec<Buffer> {
        AlignedBuffer::group(count, bytes).into_iter().map(Buffer).collect()
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

#[cfg(feature = "peers")]
mod peers {
    use std::mem::MaybeUninit;

    use super::Buffer;

    // SAFETY: the bytes of an aligned buffer stay in place when the buffer moves, and all of them are initialised.
    // Test: every block that a peer reads is checked.
    unsafe impl monoio::buf::IoBuf for Buffer {
        fn read_ptr(&self) -> *const u8 {
            self.0.as_ptr()
        }

        fn bytes_init(&self) -> usize {
            self.0.len()
        }
    }

    // SAFETY: as above.
    unsafe impl monoio::buf::IoBufMut for Buffer {
        fn write_ptr(&mut self) -> *mut u8 {
            self.0.as_mut_ptr()
        }

        fn bytes_total(&mut self) -> usize {
            self.0.len()
        }

        // SAFETY: has no requirements of its caller, because all bytes are initialised, regardless of the count.
        unsafe fn set_init(&mut self, _: usize) {}
    }

    // SAFETY: as above.
    unsafe impl tokio_uring::buf::IoBuf for Buffer {
        fn stable_ptr(&self) -> *const u8 {
            self.0.as_ptr()
        }

        fn bytes_init(&self) -> usize {
            self.0.len()
        }

        fn bytes_total(&self) -> usize {
            self.0.len()
        }
    }

    // SAFETY: as above.
    unsafe impl tokio_uring::buf::IoBufMut for Buffer {
        fn stable_mut_ptr(&mut self) -> *mut u8 {
            self.0.as_mut_ptr()
        }

        // SAFETY: has no requirements of its caller, because all bytes are initialised, regardless of the count.
        unsafe fn set_init(&mut self, _: usize) {}
    }

    impl compio::buf::IoBuf for Buffer {
        fn as_init(&self) -> &[u8] {
            &self.0
        }
    }

    impl compio::buf::SetLen for Buffer {
        // SAFETY: has no requirements of its caller, because all bytes are initialised, regardless of the count.
        unsafe fn set_len(&mut self, _: usize) {}
    }

    impl compio::buf::IoBufMut for Buffer {
        fn as_uninit(&mut self) -> &mut [MaybeUninit<u8>] {
            // SAFETY: initialised bytes are also valid as possibly uninitialised ones. compio writes only initialised
            // bytes to them. Test: as above.
            unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), self.0.len()) }
        }
    }
}
