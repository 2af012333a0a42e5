//! The files that wait in the folder `archive` of a database: finding, beginning and continuing them.

use std::io;

use crate::error::{Error, Result};
use crate::feed::records::{RECORDS_OFFSET, RecordScan, RecordWriter};
use crate::format::archive::ArchiveHeader;
use crate::format::changes::RecordKind;
use crate::format::record::{self, Operation};
use crate::format::{BLOCK_BYTES, DatabaseId, Timestamp, get_u64, put_u64};
use crate::io::{AlignedBuffer, FileRef, Folder, FolderRef, OpenOptions};

/// The name of the folder, in the folder of the database.
pub(super) const FOLDER_NAME: &str = "archive";

/// The number of bytes that a scan reads at once.
const SCAN_BYTES: usize = 256 << 10;

/// A file of an archive, in the database's folder or elsewhere.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ArchiveFile {
    pub(crate) header: ArchiveHeader,
    pub(crate) bytes: u64,
}

/// The contents of a file that has been read.
#[derive(Clone, Debug)]
pub(crate) struct ScannedFile {
    /// The last whole commit.
    pub(super) last: Timestamp,
    pub(super) commit_count: u64,
    /// The time of the last commit.
    pub(super) time_ms: u64,
    /// The time of the first commit, if there is one.
    pub(super) first_time_ms: Option<u64>,
    /// The commits of which later commits in the file clone a keyspace.
    pub(super) cloned: Vec<Timestamp>,
    /// The offset after the last whole commit.
    pub(super) end: u64,
    /// `true` if the file has an end, so that nothing is missing.
    pub(super) is_finished: bool,
}

/// Opens a file for reading.
pub(super) fn open(folder: &dyn Folder, name: &str) -> io::Result<FileRef> {
    folder.open(name, OpenOptions { direct: true, ..OpenOptions::default() })
}

/// Reads the header of a file. Returns `None` if its creation was not completed.
fn read_header(folder: &FolderRef, name: &str) -> Result<Option<ArchiveFile>> {
    let path = folder.path().join(name);
    let mut block = AlignedBuffer::zeroed(BLOCK_BYTES);
    let read = open(folder.as_ref(), name).and_then(|file| {
        file.read_up_to(&mut block, 0)?;
        file.len()
    });
    let bytes = read.map_err(|error| Error::io("reading", &path, error))?;
    match ArchiveHeader::decode(&block) {
        Ok(header) if header.name() == name => Ok(Some(ArchiveFile { header, bytes })),
        Ok(header) => Err(Error::corrupted(&path, "the header", format!("it is that of {}", header.name()))),
        Err(_) if ArchiveHeader::is_begun(&block) => Ok(None),
        Err(reason) => Err(Error::corrupted(&path, "the header", reason)),
    }
}

/// Returns the files of a folder in the order of their chains and numbers. A file whose creation was not completed is
/// left out if it is the last.
pub(super) fn list(folder: &FolderRef) -> Result<(Vec<ArchiveFile>, Option<String>)> {
    let names = folder.list().map_err(|error| Error::io("listing", folder.path(), error))?;
    let mut names: Vec<(_, String)> =
        names.into_iter().filter_map(|name| Some((ArchiveHeader::parse_name(&name)?, name))).collect();
    names.sort_unstable();
    let mut files = Vec::with_capacity(names.len());
    let mut unfinished = None;
    for (index, (_, name)) in names.iter().enumerate() {
        match read_header(folder, name)? {
            Some(file) => files.push(file),
            None if index + 1 == names.len() => unfinished = Some(name.clone()),
            None => {
                let path = folder.path().join(name);
                return Err(Error::corrupted(&path, "the header", "it does not verify"));
            }
        }
    }
    Ok((files, unfinished))
}

/// Returns the database whose archive a folder has, as its newest file says.
pub(super) fn owner(folder: &FolderRef) -> Result<Option<DatabaseId>> {
    let names = folder.list().map_err(|error| Error::io("listing", folder.path(), error))?;
    let newest = names.iter().filter(|name| ArchiveHeader::parse_name(name).is_some()).max();
    let file = newest.map(|name| read_header(folder, name)).transpose()?.flatten();
    Ok(file.map(|file| file.header.database))
}

/// Returns the files that wait in the folder of a database, in order, and its folder. Removes a file whose creation was
/// not completed.
pub(super) fn find(parent: &FolderRef, database: DatabaseId) -> Result<Option<(FolderRef, Vec<ArchiveFile>)>> {
    let io = |action, error| Error::io(action, &parent.path().join(FOLDER_NAME), error);
    if !parent.exists(FOLDER_NAME).map_err(|error| io("looking for", error))? {
        return Ok(None);
    }
    let folder = parent.folder(FOLDER_NAME).map_err(|error| io("opening", error))?;
    let (files, unfinished) = list(&folder)?;
    if let Some(other) = files.iter().find(|file| file.header.database != database) {
        let path = folder.path().join(other.header.name());
        return Err(Error::corrupted(&path, "the header", "it belongs to another database"));
    }
    if let Some(name) = unfinished {
        folder.remove(&name).map_err(|error| io("removing a file of", error))?;
    }
    Ok(Some((folder, files)))
}

/// Opens a scan of a file's records.
pub(super) fn scan(folder: &FolderRef, header: &ArchiveHeader) -> Result<RecordScan> {
    let path = folder.path().join(header.name());
    let file = open(folder.as_ref(), &header.name()).map_err(|error| Error::io("opening", &path, error))?;
    Ok(RecordScan::new(file, header.seed(), SCAN_BYTES, None))
}

/// Reads the sound commits of a file.
pub(super) fn read(folder: &FolderRef, file: &ArchiveFile) -> Result<ScannedFile> {
    let header = &file.header;
    let mut scan = scan(folder, header)?;
    let mut found = ScannedFile {
        last: header.after,
        commit_count: 0,
        time_ms: 0,
        first_time_ms: None,
        cloned: Vec::new(),
        end: RECORDS_OFFSET,
        is_finished: false,
    };
    while let Some(record) = scan.next(file.bytes)? {
        let is_next = record.timestamp == found.last.next();
        match record.kind {
            RecordKind::Part if is_next => {}
            RecordKind::Commit if is_next => {
                found.last = record.timestamp;
                found.commit_count += 1;
                found.time_ms = record.time_ms;
                found.first_time_ms.get_or_insert(record.time_ms);
                found.end = scan.offset();
                // A clone is the only operation of its record.
                if let Some((_, Operation::Clone { as_of, .. })) = record::take_operation(&mut scan.body()) {
                    found.cloned.push(as_of);
                }
            }
            RecordKind::End if record.timestamp == found.last && is_count(scan.body(), found.commit_count) => {
                return Ok(ScannedFile { is_finished: true, ..found });
            }
            _ => {
                let what = format!("record of timestamp {}", record.timestamp);
                return Err(Error::corrupted(scan.path(), what, "it verifies but does not belong there"));
            }
        }
    }
    Ok(found)
}

fn is_count(body: &[u8], commit_count: u64) -> bool {
    body.len() == size_of::<u64>() && get_u64(body, 0) == commit_count
}

/// Appends the body of a file's end to a record.
pub(super) fn encode_end(commit_count: u64, record: &mut Vec<u8>) {
    let at = record.len();
    record.resize(at + size_of::<u64>(), 0);
    put_u64(record, at, commit_count);
}

/// Creates a file, durably.
pub(super) fn create(folder: &FolderRef, header: &ArchiveHeader, buffer_bytes: usize) -> io::Result<RecordWriter> {
    let options = OpenOptions { write: true, create_new: true, direct: true, ..OpenOptions::default() };
    let file = folder.open(&header.name(), options)?;
    let mut writer = RecordWriter::new(file, header.seed(), buffer_bytes, |block| header.encode(block));
    let begun = writer.flush(&mut || false).and_then(|()| writer.sync()).and_then(|()| folder.sync());
    if begun.is_err()
        && let Err(error) = folder.remove(&header.name())
    {
        log::debug!("{}: removing an archive file that was not begun: {error}", folder.path().display());
    }
    begun.map(|()| writer)
}

/// Continues a file after its last whole commit, which ends at `end`.
pub(super) fn resume(
    folder: &FolderRef,
    header: &ArchiveHeader,
    buffer_bytes: usize,
    end: u64,
) -> io::Result<RecordWriter> {
    let options = OpenOptions { write: true, direct: true, ..OpenOptions::default() };
    RecordWriter::resume(folder.open(&header.name(), options)?, header.seed(), buffer_bytes, end)
}
