//! A buffer that all peers accept. The peers' own buffers are not aligned for direct I/O.
#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut};

use drumlin_io::AlignedBuffer;

/// An aligned buffer whose length is fixed.
pub(crate) struct Buffer(pub(crate) AlignedBuffer);

impl Buffer {
    /// Returns buffers of `bytes` each. Large buffers share huge pages, as the buffers of drumlin-io's streams do.
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

    // SAFETY: same as for [`monoio::buf::IoBuf`].
    unsafe impl monoio::buf::IoBufMut for Buffer {
        fn write_ptr(&mut self) -> *mut u8 {
            self.0.as_mut_ptr()
        }

        fn bytes_total(&mut self) -> usize {
            self.0.len()
        }

        // SAFETY: safe for any count, because all bytes are initialised.
        unsafe fn set_init(&mut self, _: usize) {}
    }

    // SAFETY: same as for [`monoio::buf::IoBuf`].
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

    // SAFETY: same as for [`monoio::buf::IoBuf`].
    unsafe impl tokio_uring::buf::IoBufMut for Buffer {
        fn stable_mut_ptr(&mut self) -> *mut u8 {
            self.0.as_mut_ptr()
        }

        // SAFETY: safe for any count, because all bytes are initialised.
        unsafe fn set_init(&mut self, _: usize) {}
    }

    impl compio::buf::IoBuf for Buffer {
        fn as_init(&self) -> &[u8] {
            &self.0
        }
    }

    impl compio::buf::SetLen for Buffer {
        // SAFETY: safe for any count, because all bytes are initialised.
        unsafe fn set_len(&mut self, _: usize) {}
    }

    impl compio::buf::IoBufMut for Buffer {
        fn as_uninit(&mut self) -> &mut [MaybeUninit<u8>] {
            // SAFETY: initialised bytes are also valid as possibly uninitialised ones. compio writes only initialised
            // bytes to them. Test: every block that a peer reads is checked.
            unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), self.0.len()) }
        }
    }
}
