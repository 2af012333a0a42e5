//! The files of a feed: their names, and writing one.

use std::io;
use std::ops::{Deref, DerefMut};

use super::names::Names;
use super::records::{MakeSpace, RecordWriter, with_space};
use crate::format::BLOCK_BYTES;
use crate::format::changes::{FileHeader, RECORD_HEADER_BYTES, RecordKind};
use crate::io::{AlignedBuffer, FileRef, Folder, OpenOptions};

/// The name of the folder of change files, in the folder of the database.
pub(crate) const FOLDER_NAME: &str = "changes";

pub(super) fn name(number: u64) -> String {
    format!("{number}.changes")
}

/// Returns the number that a change file's name contains.
pub(super) fn parse_name(found: &str) -> Option<u64> {
    let number = found.strip_suffix(".changes")?.parse().ok()?;
    (name(number) == found).then_some(number)
}

/// Opens a change file for reading.
pub(super) fn open(folder: &dyn Folder, number: u64) -> io::Result<FileRef> {
    folder.open(&name(number), OpenOptions { direct: true, ..OpenOptions::default() })
}

/// The first block of a change file.
#[derive(Debug)]
pub(super) enum FoundHeader {
    Header(FileHeader),
    /// The creation of the file was not completed.
    Unfinished,
    /// The reason why it is no header.
    Foreign(String),
}

/// Reads the header of a change file.
pub(super) fn read_header(file: &FileRef) -> io::Result<FoundHeader> {
    let mut block = AlignedBuffer::zeroed(BLOCK_BYTES);
    file.read_up_to(&mut block, 0)?;
    Ok(match FileHeader::decode(&block) {
        Ok(header) => FoundHeader::Header(header),
        Err(_) if FileHeader::is_begun(&block) => FoundHeader::Unfinished,
        Err(reason) => FoundHeader::Foreign(reason),
    })
}

/// A change file that is being written.
#[derive(Debug)]
pub(super) struct FileWriter {
    header: FileHeader,
    records: RecordWriter,
}

impl Deref for FileWriter {
    type Target = RecordWriter;

    fn deref(&self) -> &RecordWriter {
        &self.records
    }
}

impl DerefMut for FileWriter {
    fn deref_mut(&mut self) -> &mut RecordWriter {
        &mut self.records
    }
}

impl FileWriter {
    /// Creates a file with the names of keyspaces, durably.
    pub(super) fn create(
        folder: &dyn Folder,
        header: FileHeader,
        names: &Names,
        buffer_bytes: usize,
        make_space: MakeSpace<'_>,
    ) -> io::Result<FileWriter> {
        let options = OpenOptions { write: true, create_new: true, direct: true, ..OpenOptions::default() };
        let file = with_space(make_space, || folder.open(&name(header.number), options))?;
        let records = RecordWriter::new(file, header.seed(), buffer_bytes, |block| header.encode(block));
        let mut writer = FileWriter { header, records };
        let mut record = vec![0; RECORD_HEADER_BYTES];
        names.encode(&mut record);
        let begun = (writer.append(RecordKind::Names, header.after, header.time_ms, &mut record, make_space))
            .and_then(|()| writer.flush(make_space))
            .and_then(|()| writer.sync())
            .and_then(|()| folder.sync());
        if begun.is_err()
            && let Err(error) = folder.remove(&name(header.number))
        {
            log::debug!("{}: removing a change file that was not begun: {error}", folder.path().display());
        }
        begun.map(|()| writer)
    }

    pub(super) fn header(&self) -> &FileHeader {
        &self.header
    }
}
