//! The change files of a folder, for a reader that does not open the database.

use super::file::{self, FoundHeader};
use super::shared::Target;
use crate::error::{Error, Result};
use crate::format::Timestamp;
use crate::io::FolderRef;

/// The change files that a reader of a folder knows: number, and timestamp after which the commits begin.
#[derive(Debug, Default)]
pub(super) struct FileList {
    files: Vec<(u64, Timestamp)>,
}

impl FileList {
    /// Returns the part of the files with the commits after `position`, if there may be any. Fails if the first files
    /// that contained them were removed.
    pub(super) fn target(&mut self, parent: &FolderRef, position: Timestamp) -> Result<Option<Target>> {
        let path = parent.path().join(file::FOLDER_NAME);
        let io = |action, error| Error::io(action, &path, error);
        if !parent.exists(file::FOLDER_NAME).map_err(|error| io("looking for", error))? {
            return Err(Error::Invalid(format!(
                "{}: the database keeps no changes (see Config::keep_changes), or nothing has been committed since it \
                 began to",
                parent.path().display()
            )));
        }
        let folder = parent.folder(file::FOLDER_NAME).map_err(|error| io("opening", error))?;
        let names = folder.list().map_err(|error| io("listing", error))?;
        let mut numbers: Vec<u64> = names.iter().filter_map(|name| file::parse_name(name)).collect();
        numbers.sort_unstable();
        self.files.retain(|(number, _)| numbers.binary_search(number).is_ok());
        for number in numbers {
            if self.files.last().is_some_and(|&(last, _)| number <= last) {
                continue;
            }
            // A file that has just been removed, or is being created, is left out.
            let Ok(opened) = file::open(folder.as_ref(), number) else { continue };
            let Ok(FoundHeader::Header(header)) = file::read_header(&opened) else { continue };
            if header.number == number {
                self.files.push((number, header.after));
            }
        }
        // Only files without a gap before the newest one continue each other.
        let gap = self.files.windows(2).rposition(|pair| pair[0].0 + 1 != pair[1].0);
        if let Some(gap) = gap {
            self.files.drain(..=gap);
        }
        let Some(&(_, from)) = self.files.first() else { return Ok(None) };
        if position < from {
            let reason = "the retention has removed them".into();
            return Err(Error::ChangesGone { since: position, from, reason });
        }
        let next = self.files.partition_point(|&(_, after)| after <= position);
        let (number, _) = self.files[next - 1];
        let opened = file::open(folder.as_ref(), number).map_err(|error| io("opening a file of", error))?;
        let end = opened.len().map_err(|error| io("measuring a file of", error))?;
        let following = self.files.get(next).map(|&(_, after)| after);
        let upto = following.unwrap_or(Timestamp(u64::MAX));
        Ok(Some(Target { number, end, upto, is_complete: following.is_some() }))
    }
}
