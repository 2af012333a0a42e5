//! System calls without a safe wrapper.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Writes a range of a file back and waits until the device has received it (`sync_file_range`). Neither flushes the
/// device's cache nor writes metadata.
pub(crate) fn sync_file_range(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: the call uses no memory, and the descriptor is open while `file` is borrowed.
    let result = unsafe { libc::sync_file_range(file.as_raw_fd(), offset as i64, bytes as i64, flags) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
