//! The only process of the virtual machine: loads modules, waits for an order, mounts, and writes.
//!
//! The rig saves the machine's state while it waits, and every cycle resumes from that state, so the kernel has never
//! seen the drive.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use drumlin_io::AlignedBuffer;
use rustix::fs::OFlags;
use rustix::mount::{MountFlags, mount};

use crate::bench::About;
use crate::drive::BLOCK;
use crate::writers::{AckReporter, WAITING};

const DISK: &str = "/dev/vda";
const ACK_DEVICE: &str = "/dev/vdb";
/// The file that lists the modules in loading order, one per line.
pub const MODULES: &str = "modules";

/// Encodes an order for the guest, as its length and JSON.
pub fn encode(about: &About) -> Result<Vec<u8>> {
    let text = serde_json::to_vec(about)?;
    let mut order = (text.len() as u32).to_le_bytes().to_vec();
    order.extend(text);
    Ok(order)
}

/// Runs as the guest's first process. Returns only on failure, which shuts the machine down.
pub fn run() -> Result<()> {
    for (kind, folder) in [("devtmpfs", "/dev"), ("proc", "/proc"), ("sysfs", "/sys")] {
        fs::create_dir_all(folder)?;
        // Ignore errors, because the kernel may have mounted /dev already.
        let _ = mount(kind, folder, kind, MountFlags::empty(), None::<&std::ffi::CStr>);
    }
    for module in fs::read_to_string(Path::new("/").join(MODULES))?.lines() {
        let file = File::open(Path::new("/").join(module)).with_context(|| module.to_owned())?;
        rustix::system::finit_module(&file, c"", 0).with_context(|| format!("loading {module}"))?;
    }
    while !Path::new(ACK_DEVICE).exists() {
        std::thread::sleep(Duration::from_millis(10));
    }
    AckReporter::open(Path::new(ACK_DEVICE))?.report(WAITING)?;
    let about = wait_for_order()?;
    fs::create_dir_all("/mounted")?;
    mount(DISK, "/mounted", about.system.name(), MountFlags::empty(), None::<&std::ffi::CStr>)
        .with_context(|| format!("mounting {}", about.system))?;
    about.writer()?.write(Path::new("/mounted"), Path::new(ACK_DEVICE), about.seed, &about.from)
}

fn wait_for_order() -> Result<About> {
    let direct = OFlags::DIRECT.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(direct).open(ACK_DEVICE)?;
    let mut block = AlignedBuffer::zeroed(BLOCK);
    loop {
        file.read_exact_at(&mut block, 0)?;
        let length = u32::from_le_bytes(*block.first_chunk().expect("a block is longer")) as usize;
        if length > 0 {
            return Ok(serde_json::from_slice(block.get(4..4 + length).context("an order that is too long")?)?);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
