//! Describes the machine on which the figures were measured.

use std::io;
use std::path::Path;
use std::process::Command;

use drumlin_lab::Machine;

/// Returns facts about the machine and about the file system of a folder, by name.
///
/// # Errors
/// If the folder can't be examined or is in memory.
pub fn describe(folder: &Path) -> io::Result<Vec<(String, String)>> {
    let machine = Machine::of(folder)?;
    if machine.in_memory {
        return Err(io::Error::other("the folder is in memory: nothing there is ever durable; choose one by --folder"));
    }
    let drive = &machine.drive;
    let cache = drive.cache_believed.as_deref().unwrap_or("unknown");
    let facts = [
        (
            "machine",
            format!(
                "{} x {}, {} MiB of memory{}",
                machine.processors,
                machine.processor,
                machine.memory_bytes >> 20,
                machine.virtualised.map_or(String::new(), |name| format!(", virtual ({name})"))
            ),
        ),
        ("kernel", machine.kernel),
        ("files", format!("{} ({})", machine.file_system, machine.mount_options)),
        ("drive", format!("{}, cache {cache}", drive.name.as_deref().unwrap_or("unknown"))),
        ("allocator", allocator().to_owned()),
    ];
    Ok(facts.map(|(name, text)| (name.to_owned(), text)).into())
}

/// Returns the allocator that all engines of this build use.
#[must_use]
pub fn allocator() -> &'static str {
    if cfg!(feature = "mimalloc") { "mimalloc, for all engines" } else { "the system's, for all engines" }
}

/// Returns today's date, in UTC.
#[must_use]
pub fn date() -> String {
    let output = Command::new("date").args(["-u", "+%Y-%m-%d"]).output();
    output.map_or_else(|_| "unknown".to_owned(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
