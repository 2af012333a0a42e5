//! The abilities of the file system and the device under a folder.

use std::fmt;
use std::io;
use std::path::Path;

use crate::BLOCK_BYTES;
use crate::backend::{AlignedBuffer, Backend, Persist, SyncMethod};
use crate::medium::{BlockDevice, Medium};
use crate::probe::Scratch;

/// The abilities of the file system and the device under a folder. For the speed of their durable writes, see
/// [`Probe`](crate::Probe).
///
/// # Examples
/// ```
/// use drumlin_io::{Capabilities, Driver};
///
/// let driver = Driver::new()?;
/// let found = Capabilities::find(driver.backend().as_ref(), &std::env::temp_dir())?;
/// assert!(found.alignment <= 4096);
/// println!("{found}");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is an answer of its own")]
pub struct Capabilities {
    /// The kind of the file system: `ext4`, `xfs`.
    pub file_system: String,
    /// The mount options.
    pub mount_options: String,
    /// The mounted device, its number, and whether it has a volatile write cache.
    pub device: String,
    /// Set if files are in memory or syncs are skipped, so that no file survives a power cut, even after a sync.
    pub is_volatile: bool,
    /// Set if files can bypass the page cache.
    pub is_direct: bool,
    /// The alignment of direct transfers, in bytes: 1 if files are not direct.
    pub alignment: usize,
    /// Set if a write can be durable on its own ([`SyncMethod::DurableWrite`]), without a sync.
    pub has_durable_writes: bool,
    /// Set if parts of a file can be freed ([`File::punch`](crate::File::punch)).
    pub has_punch: bool,
    /// The block device, if the file system is on a block device and the system describes it.
    pub block_device: Option<BlockDevice>,
}

impl Capabilities {
    /// Queries the system, and tries some calls on a temporary file in the folder.
    ///
    /// # Errors
    /// Any error that the system reports: the folder is missing, full, or not writable.
    pub fn find(backend: &dyn Backend, folder: &Path) -> io::Result<Capabilities> {
        let Medium { file_system, device, mount_options, volatile } = Medium::of(backend, folder)?;
        let scratch = Scratch::create(backend, folder)?;
        let file = scratch.file();
        let block = AlignedBuffer::zeroed(BLOCK_BYTES);
        file.write_at(&block, 0, Persist::Now(SyncMethod::DurableWrite))?;
        Ok(Capabilities {
            file_system,
            mount_options,
            device,
            is_volatile: volatile,
            is_direct: file.is_direct(),
            alignment: file.alignment(),
            has_durable_writes: file.supports(SyncMethod::DurableWrite),
            has_punch: file.punch(0, BLOCK_BYTES as u64).is_ok(),
            block_device: BlockDevice::of(backend, folder)?,
        })
    }
}

impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let yes = |is_so: bool| if is_so { "yes" } else { "no" };
        writeln!(f, "file system    {} ({})", self.file_system, self.mount_options)?;
        writeln!(f, "device         {}", self.device)?;
        if self.is_volatile {
            writeln!(f, "durable        never: files are in memory, or syncs are skipped")?;
        }
        match self.is_direct {
            true => writeln!(f, "direct I/O     yes, in multiples of {} bytes", self.alignment)?,
            false => writeln!(f, "direct I/O     no: all transfers go through the page cache")?,
        }
        writeln!(f, "durable write  {}", yes(self.has_durable_writes))?;
        write!(f, "punch          {}", yes(self.has_punch))?;
        let Some(device) = &self.block_device else { return Ok(()) };
        writeln!(f)?;
        writeln!(f, "blocks         {} bytes, physically {}", device.logical_block_bytes, device.physical_block_bytes)?;
        writeln!(
            f,
            "requests       up to {} KiB in {} pieces, {} at once",
            device.request_bytes_max >> 10,
            device.request_segments_max,
            device.requests_max
        )?;
        let cache = match (device.has_volatile_cache, device.has_forced_unit_access) {
            (false, _) => "none that a power cut empties",
            (true, true) => "volatile, single writes can bypass it",
            (true, false) => "volatile, emptied by a flush",
        };
        writeln!(f, "write cache    {cache}")?;
        match device.atomic_write_bytes_max {
            0 => writeln!(f, "atomic writes  none promised")?,
            bytes => writeln!(f, "atomic writes  up to {bytes} bytes")?,
        }
        write!(f, "discard        {}; polling: {}", yes(device.has_discard), yes(device.can_be_polled))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::select::select;
    use crate::tests::TestFolder;
    use crate::{IoBackend, in_memory};

    /// The capabilities match the behaviour of a file, and no file is left in the folder.
    #[test]
    fn a_folder_is_examined() {
        for backend in [select(IoBackend::Auto).unwrap(), select(IoBackend::Portable).unwrap(), in_memory()] {
            let place = TestFolder::new(backend);
            let found = Capabilities::find(place.backend.as_ref(), place.folder()).unwrap();
            let file = place.patterned("file", 10_000, true);
            assert_eq!((found.is_direct, found.alignment), (file.is_direct(), file.alignment()));
            assert_eq!(place.backend.list(place.folder()).unwrap().len(), 1, "the scratch file is gone");
            assert!(found.to_string().starts_with("file system    "));
            if let Some(device) = &found.block_device {
                assert!(device.logical_block_bytes >= 512 && device.request_bytes_max >= 4096, "{device:?}");
                assert!(found.alignment == 1 || found.alignment as u64 >= device.logical_block_bytes);
            }
            let missing = Capabilities::find(place.backend.as_ref(), &place.path("missing"));
            assert_eq!(missing.unwrap_err().kind(), io::ErrorKind::NotFound);
        }
    }
}
