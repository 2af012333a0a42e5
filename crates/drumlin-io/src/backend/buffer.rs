//! Buffers that are aligned for direct I/O.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

/// The unit of direct I/O, in bytes: a multiple of the alignment that any device requires.
pub const BLOCK_BYTES: usize = 4096;

/// An owned, zero-initialised buffer whose address is a multiple of 4,096.
pub struct AlignedBuffer {
    start: NonNull<u8>,
    /// The distance in bytes from the start of the allocation to the start of the buffer.
    lead: usize,
    length: usize,
    capacity: usize,
    /// The memory of the buffer's group, or `None` if the buffer has its own allocation.
    area: Option<Arc<Area>>,
}

/// The memory of a group of buffers, in huge pages if the system provides them.
struct Area {
    mapped: NonNull<u8>,
    mapped_bytes: usize,
    /// The id of the queue with which the memory is registered.
    queue_id: OnceLock<u64>,
}

/// The address and size of a group's memory, for registering it.
#[cfg(all(target_os = "linux", not(drumlin_portable)))]
pub(super) struct GroupMemory {
    pub(super) start: NonNull<u8>,
    pub(super) bytes: usize,
}

/// The size of a huge page on every processor with pages of 4 KiB.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// The minimum size of a group. A smaller group would leave most of a huge page unused.
const GROUP_BYTES_MIN: usize = HUGE_PAGE_BYTES / 2;

/// From this capacity on, a buffer is allocated one block larger and with less alignment than it needs. An allocator
/// gets zeroed memory of this size from the system without touching it, but writes the zeros itself if it has to align
/// the memory. Without this, the two 8 MiB buffers of a log took 4 ms of every opening.
/// Measured: the figure above. The threshold, between 4 KiB and 8 MiB, was not measured.
const UNTOUCHED_BYTES_MIN: usize = 256 << 10;

/// The alignment that allocators provide by default.
const ALLOCATION_ALIGNMENT: usize = 16;

// SAFETY: the buffer alone owns its bytes, as a `Box<[u8]>` does. Test: `many_threads` of `crate::tests`.
unsafe impl Send for AlignedBuffer {}
// SAFETY: shared access only reads. Test: `streamed_buffers_are_stable` of `crate::tests`.
unsafe impl Sync for AlignedBuffer {}

// SAFETY: an area only owns its memory. Each byte is accessed only through the buffer to which it belongs. Test:
// `grouped_buffers_are_each_their_own`.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

impl AlignedBuffer {
    /// A buffer's address and capacity are multiples of this number of bytes.
    pub const ALIGNMENT: usize = BLOCK_BYTES;

    /// Returns a buffer of `length` zeros. Its capacity is the next multiple of [`ALIGNMENT`](Self::ALIGNMENT).
    #[must_use]
    pub fn zeroed(length: usize) -> AlignedBuffer {
        let capacity = length.next_multiple_of(Self::ALIGNMENT).max(Self::ALIGNMENT);
        let layout = Self::layout(capacity);
        // SAFETY: the layout's size is not zero. Test: `a_buffer_is_aligned_zeroed_and_its_own`.
        let allocated = unsafe { alloc_zeroed(layout) };
        let allocated = NonNull::new(allocated).unwrap_or_else(|| handle_alloc_error(layout));
        let lead = allocated.addr().get().next_multiple_of(Self::ALIGNMENT) - allocated.addr().get();
        assert!(lead + capacity <= layout.size(), "a buffer of {capacity} bytes does not fit behind {lead}");
        // SAFETY: `lead` is within the allocation, as was just asserted. Test: as above.
        let start = unsafe { allocated.add(lead) };
        AlignedBuffer { start, lead, length, capacity, area: None }
    }

    /// Returns `count` buffers of `length` zeros each, for requests that are in flight together. Buffers of at least 1
    /// MiB in total are adjacent, in whole huge pages (2 MiB) if the system provides them. Their memory is freed when
    /// the last buffer is dropped.
    ///
    /// A drive receives a request as a list of contiguous pieces of memory. With pages of 4 KiB, the list has one piece
    /// per page, and is full at about 1 MiB. With huge pages, a request is a single piece. On a virtual drive, huge
    /// pages doubled the rate of streams of 512 KiB requests, at a fifth of the processor time (docs/lab).
    #[must_use]
    pub fn group(count: usize, length: usize) -> Vec<AlignedBuffer> {
        let capacity = length.next_multiple_of(Self::ALIGNMENT).max(Self::ALIGNMENT);
        let bytes = capacity.checked_mul(count).expect("buffer size overflows");
        let area = if bytes < GROUP_BYTES_MIN { None } else { Area::new(bytes) };
        let Some((area, first)) = area else { return (0..count).map(|_| AlignedBuffer::zeroed(length)).collect() };
        let area = Arc::new(area);
        let buffer = |index: usize| {
            // SAFETY: the area has `bytes` bytes starting at `first`, which suffices for `capacity` bytes per index.
            // Test: `grouped_buffers_are_each_their_own`.
            let start = unsafe { first.add(index * capacity) };
            AlignedBuffer { start, lead: 0, length, capacity, area: Some(Arc::clone(&area)) }
        };
        (0..count).map(buffer).collect()
    }

    fn layout(capacity: usize) -> Layout {
        let layout = match capacity < UNTOUCHED_BYTES_MIN {
            true => Layout::from_size_align(capacity, Self::ALIGNMENT),
            false => Layout::from_size_align(capacity.saturating_add(Self::ALIGNMENT), ALLOCATION_ALIGNMENT),
        };
        layout.expect("buffer size overflows")
    }

    /// Returns the maximum number of bytes that the buffer can hold.
    #[must_use]
    #[inline]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Changes the visible length. Bytes that become visible still have their last contents.
    ///
    /// # Panics
    /// If `length` exceeds the capacity.
    #[inline]
    pub fn set_len(&mut self, length: usize) {
        assert!(length <= self.capacity, "{length} bytes in a buffer of {}", self.capacity);
        self.length = length;
    }
}

impl From<&[u8]> for AlignedBuffer {
    /// Copies the bytes.
    fn from(bytes: &[u8]) -> AlignedBuffer {
        let mut buffer = AlignedBuffer::zeroed(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    }
}

impl<const N: usize> From<&[u8; N]> for AlignedBuffer {
    /// Copies the bytes.
    fn from(bytes: &[u8; N]) -> AlignedBuffer {
        AlignedBuffer::from(&bytes[..])
    }
}

impl From<Vec<u8>> for AlignedBuffer {
    /// Copies the bytes, since a vector's memory may be unaligned.
    fn from(bytes: Vec<u8>) -> AlignedBuffer {
        AlignedBuffer::from(&bytes[..])
    }
}

/// The registration of memory with the queue of a device.
#[cfg(all(target_os = "linux", not(drumlin_portable)))]
impl AlignedBuffer {
    /// Returns the memory of `buffers` if all of them belong to one group.
    pub(super) fn group_memory(buffers: &[AlignedBuffer]) -> Option<GroupMemory> {
        let area = buffers.first()?.area.as_ref()?;
        let is_member = |buffer: &AlignedBuffer| buffer.area.as_ref().is_some_and(|other| Arc::ptr_eq(area, other));
        if !buffers.iter().all(is_member) {
            return None;
        }
        let start = buffers.iter().map(|buffer| buffer.start).min()?;
        let end = buffers.iter().map(|buffer| buffer.start.addr().get() + buffer.capacity).max()?;
        Some(GroupMemory { start, bytes: end - start.addr().get() })
    }

    /// Records that the memory of `buffers` is registered with the queue `queue_id`, which has no other registered
    /// memory.
    pub(super) fn set_registration(buffers: &[AlignedBuffer], queue_id: u64) {
        if let Some(area) = buffers.first().and_then(|buffer| buffer.area.as_ref()) {
            let _ = area.queue_id.set(queue_id);
        }
    }

    /// Returns the index of the buffer's memory among the memory areas registered with a queue.
    #[inline]
    pub(super) fn registration(&self, queue_id: u64) -> Option<u16> {
        let area = self.area.as_ref()?;
        (area.queue_id.get() == Some(&queue_id)).then_some(0)
    }
}

impl Area {
    /// Maps `bytes` bytes of memory, and returns it with the address of its first byte. Returns `None` if the system
    /// has too little memory.
    fn new(bytes: usize) -> Option<(Area, NonNull<u8>)> {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        // Map whole huge pages: a partial huge page at the end of a mapping would consist of small pages.
        let bytes = bytes.checked_next_multiple_of(HUGE_PAGE_BYTES)?;
        // The part before the first huge page is never touched, so it uses no memory.
        let mapped_bytes = bytes.checked_add(HUGE_PAGE_BYTES)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh anonymous mapping aliases nothing. Test: `grouped_buffers_are_each_their_own`.
        let mapped = unsafe { mmap_anonymous(std::ptr::null_mut(), mapped_bytes, protection, MapFlags::PRIVATE) };
        let mapped = NonNull::new(mapped.ok()?.cast::<u8>())?;
        let area = Area { mapped, mapped_bytes, queue_id: OnceLock::new() };
        let lead = mapped.addr().get().next_multiple_of(HUGE_PAGE_BYTES) - mapped.addr().get();
        assert!(lead + bytes <= mapped_bytes, "{bytes} bytes do not fit behind {lead}");
        // SAFETY: `lead` is within the mapping, as was just asserted. Test: as above.
        let first = unsafe { mapped.add(lead) };
        // SAFETY: the range is within the new mapping. No test fails without the call: the system may ignore the
        // advice.
        #[cfg(all(target_os = "linux", not(drumlin_portable)))]
        let _ = unsafe { rustix::mm::madvise(first.as_ptr().cast(), bytes, rustix::mm::Advice::LinuxHugepage) };
        Some((area, first))
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`. Every buffer in this area holds a reference to it, so no buffer is left. Test:
        // `grouped_buffers_are_each_their_own`, which writes to a buffer after its neighbours were dropped.
        let _ = unsafe { rustix::mm::munmap(self.mapped.as_ptr().cast(), self.mapped_bytes) };
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        if self.area.is_some() {
            return;
        }
        // SAFETY: allocated in `zeroed` with the same layout, `lead` bytes before the start. Test: as in `zeroed`,
        // under a checking allocator.
        unsafe { dealloc(self.start.as_ptr().sub(self.lead), Self::layout(self.capacity)) }
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `length` is at most `capacity`, and the whole capacity was initialised when it was allocated. Test:
        // `a_buffer_is_aligned_zeroed_and_its_own`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl DerefMut for AlignedBuffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes the access exclusive. Test: as in `deref`.
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

    /// A buffer is aligned and zeroed, shares no bytes with other buffers, and retains its bytes when its length
    /// changes.
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

    /// Grouped buffers are aligned, zeroed and disjoint, and outlive their neighbours. They are adjacent if they have
    /// at least 1 MiB in total.
    #[test]
    fn grouped_buffers_are_each_their_own() {
        for (count, length) in [(3, 4096), (2, 512 << 10), (6, 512 << 10), (4, (512 << 10) + 1)] {
            let mut buffers = AlignedBuffer::group(count, length);
            assert_eq!(buffers.len(), count);
            for (number, buffer) in buffers.iter_mut().enumerate() {
                assert!(buffer.as_ptr().addr().is_multiple_of(AlignedBuffer::ALIGNMENT));
                assert!(buffer.len() == length && buffer.iter().all(|&byte| byte == 0));
                buffer.set_len(buffer.capacity());
                buffer.fill(number as u8 + 1);
            }
            let is_grouped = count * length >= GROUP_BYTES_MIN;
            assert!(buffers.iter().all(|buffer| buffer.area.is_some() == is_grouped));
            let [first, second] = [0, 1].map(|index: usize| buffers[index].as_ptr().addr());
            assert!(!is_grouped || (first.is_multiple_of(HUGE_PAGE_BYTES) && second == first + buffers[0].capacity()));
            while let Some(mut last) = buffers.pop() {
                assert!(last.iter().all(|&byte| byte == buffers.len() as u8 + 1));
                last.fill(0);
            }
        }
        assert!(AlignedBuffer::group(0, 4096).is_empty());
    }
}
