//! Reads damaged databases for the commands: `repair`, `dump --skip-damage` and `check` find the same rows.

use std::fs;
use std::path::{Path, PathBuf};

use drumlin::Rescue;

use crate::database::{DatabaseArgs, reason_of};
use crate::failure::Result;
use crate::interrupt;
use crate::terminal::Output;
use crate::text::{harmless, shell_word};

/// The number of damaged places that a remark names.
const NAMED_MAX: usize = 10;

/// The least memory that reading a damaged database needs, in bytes.
const MEMORY_BYTES_MIN: u64 = 32 << 20;

/// The number of times that the folder of an interrupted command is removed if it is not empty after that.
const REMOVALS_MAX: u32 = 100;

/// The folder of a database that is needed only while a damaged one is read. Dropping it removes the folder.
pub(crate) struct ScratchFolder(PathBuf);

impl ScratchFolder {
    /// Returns a folder in the system's temporary directory.
    pub(crate) fn temporary() -> ScratchFolder {
        let name = |number: u32| format!("drumlin-scratch-{}-{number}", std::process::id());
        let paths = (0..).map(|number| std::env::temp_dir().join(name(number)));
        ScratchFolder(paths.into_iter().find(|path| !path.exists()).expect("numbers without end"))
    }

    /// Returns a folder next to another one, on the same device.
    pub(crate) fn beside(path: &Path) -> ScratchFolder {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".scratch-{}", std::process::id()));
        ScratchFolder(path.with_file_name(name))
    }

    /// Removes the folder if the user interrupts the command, and then gives a hint.
    pub(crate) fn remove_on_interrupt(&self, json: bool, hint: impl Fn() -> String + Send + 'static) {
        let path = self.0.clone();
        interrupt::end_after(json, move || {
            // The command still runs, and may create a file in the meantime.
            for _ in 0..REMOVALS_MAX {
                let _ = fs::remove_dir_all(&path);
                if !path.exists() {
                    break;
                }
            }
            hint()
        });
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        // The system removes what is left in its temporary directory.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A damaged database, and the scratch folder that reading it needs.
pub(crate) struct Rescued {
    pub(crate) rescue: Rescue,
    _scratch: ScratchFolder,
}

impl Rescued {
    /// Reads what is left of the structures of a database.
    pub(crate) fn open(database: &DatabaseArgs, scratch: ScratchFolder) -> Result<Rescued> {
        database.check_there()?;
        let config = database.config().memory(database.memory.max(MEMORY_BYTES_MIN));
        let rescue = Rescue::open(&config, &database.path, &scratch.0)?;
        Ok(Rescued { rescue, _scratch: scratch })
    }

    /// Prints a remark for each structure that is damaged.
    pub(crate) fn remark(&self, database: &DatabaseArgs, output: Output) {
        let damage = self.rescue.damage();
        for error in damage.iter().take(NAMED_MAX) {
            output.remark(&harmless(&reason_of(error)));
        }
        if let Some(others) = damage.len().checked_sub(NAMED_MAX).filter(|count| *count > 0) {
            let check = shell_word(&database.path);
            output.remark(&format!("… and {others} more; `drumlin check {check}` lists them"));
        }
    }
}
