//! Uses of io_uring that `drumlin_io` lacks: registered buffers and files, polled completions, linked requests.
//!
//! # Invariants
//! 1. The kernel writes to a buffer only between `push` and the reaping of its completion, and the ring owns the
//!    buffers until it is dropped. A slot is reused only after its completion has been reaped.
//! 2. Dropping a ring first reaps everything in flight. If the kernel refuses to wait, the buffers are leaked.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Instant;

use drumlin_io::AlignedBuffer;
use io_uring::{IoUring, opcode, squeue, types};
use serde::{Deserialize, Serialize};

/// The settings of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct RingOptions {
    /// Register the buffers and the file, so that the kernel pins them once instead of once per request.
    pub(crate) registered: bool,
    /// Allocate the buffers in huge pages, if the system has enough of them.
    pub(crate) huge: bool,
    /// Poll for completions instead of waiting for interrupts. The device must have queues for polling.
    pub(crate) polled: bool,
}

/// A ring for direct reads of one size, many of them in flight at a time.
pub(crate) struct ReadRing {
    ring: IoUring,
    file: File,
    options: RingOptions,
    buffers: Vec<AlignedBuffer>,
    started: Vec<Instant>,
    slots_free: Vec<u32>,
}

impl std::fmt::Debug for ReadRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReadRing({} of {} in flight)", self.in_flight(), self.buffers.len())
    }
}

impl ReadRing {
    /// Creates a ring for reads of `block_bytes` from `file`.
    pub(crate) fn new(file: &File, depth: usize, block_bytes: usize, options: RingOptions) -> io::Result<ReadRing> {
        let mut builder = IoUring::builder();
        builder.setup_single_issuer();
        if options.polled {
            builder.setup_iopoll();
        } else {
            builder.setup_coop_taskrun().setup_defer_taskrun();
        }
        let ring = match builder.build(depth as u32) {
            // Kernels before 6.1 refuse these flags.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput && !options.polled => IoUring::new(depth as u32)?,
            other => other?,
        };
        let mut buffers: Vec<AlignedBuffer> = match options.huge {
            true => AlignedBuffer::group(depth, block_bytes),
            false => (0..depth).map(|_| AlignedBuffer::zeroed(block_bytes)).collect(),
        };
        if options.registered {
            let vectors: Vec<libc::iovec> = buffers
                .iter_mut()
                .map(|buffer| libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() })
                .collect();
            // SAFETY: the buffers live as long as the ring (invariants 1 and 2), and their memory never moves.
            unsafe { ring.submitter().register_buffers(&vectors)? };
            ring.submitter().register_files(&[file.as_raw_fd()])?;
        }
        let now = Instant::now();
        Ok(ReadRing {
            ring,
            file: file.try_clone()?,
            options,
            buffers,
            started: vec![now; depth],
            slots_free: (0..depth as u32).rev().collect(),
        })
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.buffers.len() - self.slots_free.len()
    }

    pub(crate) fn has_room(&self) -> bool {
        !self.slots_free.is_empty()
    }

    /// Prepares a read at `offset`. The ring must have a free slot.
    pub(crate) fn push(&mut self, offset: u64) {
        let slot = self.slots_free.pop().expect("there is room");
        let buffer = &mut self.buffers[slot as usize];
        let (start, length) = (buffer.as_mut_ptr(), buffer.len() as u32);
        let entry: squeue::Entry = if self.options.registered {
            opcode::ReadFixed::new(types::Fixed(0), start, length, slot as u16).offset(offset).build()
        } else {
            opcode::Read::new(types::Fd(self.file.as_raw_fd()), start, length).offset(offset).build()
        };
        self.started[slot as usize] = Instant::now();
        // SAFETY: invariants 1 and 2.
        unsafe { self.ring.submission().push(&entry.user_data(u64::from(slot))) }.expect("an entry for each slot");
    }

    /// Submits the reads and waits for at least one completion. Calls `each` for every completion, with the time of its
    /// `push` and the bytes read.
    pub(crate) fn wait(&mut self, mut each: impl FnMut(Instant, &[u8])) -> io::Result<usize> {
        loop {
            match self.ring.submit_and_wait(1) {
                Ok(_) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let mut count = 0;
        let mut failure = None;
        for completion in self.ring.completion() {
            let slot = completion.user_data() as u32;
            self.slots_free.push(slot);
            count += 1;
            let buffer = &self.buffers[slot as usize];
            match completion.result() {
                result if result < 0 => failure = Some(io::Error::from_raw_os_error(-result)),
                result if result as usize != buffer.len() => failure = Some(io::ErrorKind::UnexpectedEof.into()),
                _ => each(self.started[slot as usize], buffer),
            }
        }
        failure.map_or(Ok(count), Err)
    }
}

impl Drop for ReadRing {
    fn drop(&mut self) {
        let mut attempts = 0;
        while self.in_flight() > 0 {
            attempts += usize::from(self.wait(|_, _| {}).is_err());
            if attempts > self.buffers.len() {
                std::mem::forget(std::mem::take(&mut self.buffers));
                return;
            }
        }
    }
}

/// A ring that submits a write and the subsequent sync to the kernel as one chain.
pub(crate) struct SyncRing {
    ring: IoUring,
}

impl std::fmt::Debug for SyncRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SyncRing")
    }
}

impl SyncRing {
    pub(crate) fn new() -> io::Result<SyncRing> {
        Ok(SyncRing { ring: IoUring::new(4)? })
    }

    /// Writes `buffer` at `offset` and waits until the kernel has made it durable (`fdatasync`).
    pub(crate) fn write(&mut self, file: &File, buffer: &AlignedBuffer, offset: u64) -> io::Result<()> {
        let descriptor = types::Fd(file.as_raw_fd());
        let write = opcode::Write::new(descriptor, buffer.as_ptr(), buffer.len() as u32)
            .offset(offset)
            .build()
            .flags(squeue::Flags::IO_LINK)
            .user_data(0);
        let sync = opcode::Fsync::new(descriptor).flags(types::FsyncFlags::DATASYNC).build().user_data(1);
        // SAFETY: buffer and file are borrowed until both completions have been reaped below. If waiting for them fails
        // permanently, the process ends instead of returning the buffer.
        unsafe { self.ring.submission().push_multiple(&[write, sync]) }.expect("the ring has four entries");
        let mut reaped = 0;
        let mut failure = None;
        while reaped < 2 {
            match self.ring.submit_and_wait(2 - reaped) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    eprintln!("waiting for io_uring failed: {error}");
                    std::process::abort();
                }
            }
            for completion in self.ring.completion() {
                reaped += 1;
                let expected = if completion.user_data() == 0 { buffer.len() as i32 } else { 0 };
                match completion.result() {
                    result if result == expected => {}
                    // If the write fails, the kernel cancels the sync. Report the write's error, which says more.
                    result if result < 0 => {
                        failure.get_or_insert(io::Error::from_raw_os_error(-result));
                    }
                    _ => failure = Some(io::ErrorKind::WriteZero.into()),
                }
            }
        }
        failure.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    /// Every requested block is read correctly, with and without registered buffers.
    #[test]
    fn reads_bring_what_is_there() {
        let file = tempfile::tempfile().unwrap();
        for block in 0..16u8 {
            file.write_all_at(&[block; 4096], u64::from(block) * 4096).unwrap();
        }
        for registered in [false, true] {
            let Ok(mut ring) = ReadRing::new(&file, 4, 4096, RingOptions { registered, ..RingOptions::default() })
            else {
                return; // This system forbids io_uring.
            };
            let mut sum = 0;
            let mut next = 0;
            while next < 16 || ring.in_flight() > 0 {
                while next < 16 && ring.has_room() {
                    ring.push(next * 4096);
                    next += 1;
                }
                ring.wait(|_, bytes| {
                    assert!(bytes.iter().all(|byte| *byte == bytes[0]));
                    sum += u32::from(bytes[0]);
                })
                .unwrap();
            }
            assert_eq!(sum, (0..16).sum::<u32>());
        }
    }

    /// A read beyond the end is an error. The ring can be dropped with requests in flight.
    #[test]
    fn a_short_read_is_an_error() {
        let file = tempfile::tempfile().unwrap();
        let Ok(mut ring) = ReadRing::new(&file, 2, 4096, RingOptions::default()) else { return };
        ring.push(0);
        assert_eq!(ring.wait(|_, _| {}).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        ring.push(0);
    }

    /// The linked write reaches the file.
    #[test]
    fn a_linked_write_is_there() {
        let file = tempfile::tempfile().unwrap();
        let Ok(mut ring) = SyncRing::new() else { return };
        let mut buffer = AlignedBuffer::zeroed(4096);
        buffer.fill(9);
        ring.write(&file, &buffer, 4096).unwrap();
        let mut found = [0; 4096];
        file.read_exact_at(&mut found, 4096).unwrap();
        assert!(found.iter().all(|byte| *byte == 9));
    }
}
