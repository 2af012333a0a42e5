//! The binary form, for any bytes of any size. Damage is detected before a damaged row is stored.
//!
//! ```text
//! file      magic "drumrows", version u32 = 1, zero u32, rows…, end
//!           magic "drumrows", version u32 = 2, zero u32, keyspaces…, end
//! keyspace  0xFFFF_FFFE u32, page_bytes u32, name_bytes u32, name, checksum u64, rows…
//! row       key_bytes u32, value_bytes u64, key, value, checksum u64
//! end       0xFFFF_FFFF u32, rows_count u64, checksum u64
//! ```
//! Version 1 has rows of one keyspace, version 2 has keyspaces with their names and page sizes.
//! Integers are little-endian. A row's checksum is the XXH3-64 of the row's preceding bytes. The end's checksum is the
//! XXH3-64 of all rows' checksums, in order, and the number of rows. So a reader detects a truncated file, a changed
//! byte, and a lost, repeated or moved row, without holding the rows in memory.

use std::io::{self, BufRead, ErrorKind, Read, Write};

use xxhash_rust::xxh3::Xxh3Default;

use super::{Next, Place, Row, Sink, Source, SourceError};
use crate::streamed::{self, Stream};

const MAGIC: &[u8; 8] = b"drumrows";
const VERSION: u32 = 1;
/// The version of files with keyspaces.
const VERSION_OF_KEYSPACES: u32 = 2;
const END: u32 = u32::MAX;
const KEYSPACE: u32 = u32::MAX - 1;

/// The maximum length of a keyspace's name. No database accepts longer ones.
const NAME_BYTES_LIMIT: u32 = 255;

/// The maximum size of values that are returned with their key. Larger values are streamed.
pub(crate) const VALUE_BYTES_STREAMED: u64 = streamed::VALUE_BYTES_WHOLE_MAX;

/// The maximum length of a key. No database accepts keys this long, so a greater length is certainly damage. The reader
/// rejects it before it allocates memory.
const KEY_BYTES_LIMIT: u32 = 1 << 20;

/// Reads rows in the binary form.
pub(super) struct BinarySource<R> {
    input: R,
    offset: u64,
    started: bool,
    /// The checksum of the row being read.
    checksum: Xxh3Default,
    /// The checksum over the checksums of all rows so far.
    checksums: Xxh3Default,
    rows_count: u64,
    value_bytes_left: u64,
    row_offset: u64,
    has_keyspaces: bool,
    /// The name and the page size of the keyspace whose rows are being read.
    keyspace: Option<(String, usize)>,
}

fn new_hasher() -> Xxh3Default {
    Xxh3Default::new()
}

impl<R: BufRead> BinarySource<R> {
    pub(super) fn new(input: R) -> BinarySource<R> {
        BinarySource {
            input,
            offset: 0,
            started: false,
            checksum: new_hasher(),
            checksums: new_hasher(),
            rows_count: 0,
            value_bytes_left: 0,
            row_offset: 0,
            has_keyspaces: false,
            keyspace: None,
        }
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result<(), SourceError> {
        let place = Place::Byte(self.offset);
        self.input.read_exact(buffer).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => SourceError::Rest { place, what: "the file is cut off here".to_owned() },
            _ => SourceError::Io(error),
        })?;
        self.offset += buffer.len() as u64;
        Ok(())
    }

    fn u32(&mut self) -> Result<u32, SourceError> {
        let mut bytes = [0; 4];
        self.fill(&mut bytes)?;
        self.checksum.update(&bytes);
        Ok(u32::from_le_bytes(bytes))
    }

    fn u64(&mut self) -> Result<u64, SourceError> {
        let mut bytes = [0; 8];
        self.fill(&mut bytes)?;
        self.checksum.update(&bytes);
        Ok(u64::from_le_bytes(bytes))
    }

    fn reason(offset: u64, what: &str) -> SourceError {
        SourceError::Rest { place: Place::Byte(offset), what: what.to_owned() }
    }

    fn read_header(&mut self) -> Result<(), SourceError> {
        let mut magic = [0; 8];
        self.fill(&mut magic)?;
        if &magic != MAGIC {
            return Err(Self::reason(0, "not Drumlin's binary form (give --format for another)"));
        }
        let version = self.u32()?;
        if version > VERSION_OF_KEYSPACES {
            let what = format!("binary form {version}; this drumlin reads up to {VERSION_OF_KEYSPACES}");
            return Err(Self::reason(8, &what));
        }
        self.has_keyspaces = version == VERSION_OF_KEYSPACES;
        self.u32()?;
        self.started = true;
        Ok(())
    }

    fn read_end(&mut self) -> Result<(), SourceError> {
        let place = self.row_offset;
        if self.u64()? != self.rows_count {
            return Err(Self::reason(place, "rows are missing or repeated: the count at the end differs"));
        }
        self.checksums.update(&self.rows_count.to_le_bytes());
        let expected = self.checksums.digest();
        if self.u64()? != expected {
            return Err(Self::reason(place, "rows are missing, repeated or moved: the checksum at the end differs"));
        }
        if !self.input.fill_buf()?.is_empty() {
            return Err(Self::reason(self.offset, "bytes follow the end"));
        }
        Ok(())
    }

    /// Reads the checksum that follows the row just read, and verifies it.
    fn verify_row(&mut self) -> Result<(), SourceError> {
        self.verify_checksum("the row that begins here is damaged: its checksum is wrong")?;
        self.rows_count += 1;
        Ok(())
    }

    fn verify_checksum(&mut self, what: &str) -> Result<(), SourceError> {
        let expected = self.checksum.digest();
        if self.u64()? != expected {
            return Err(Self::reason(self.row_offset, what));
        }
        self.checksums.update(&expected.to_le_bytes());
        Ok(())
    }

    /// Reads the name and the page size of a keyspace.
    fn read_keyspace(&mut self) -> Result<(), SourceError> {
        let (page_bytes, name_bytes) = (self.u32()?, self.u32()?);
        if name_bytes > NAME_BYTES_LIMIT {
            return Err(Self::reason(self.row_offset, &format!("a name of {name_bytes} bytes: the file is damaged")));
        }
        let mut name = vec![0; name_bytes as usize];
        self.fill(&mut name)?;
        self.checksum.update(&name);
        self.verify_checksum("the keyspace that begins here is damaged: its checksum is wrong")?;
        let name = String::from_utf8(name).map_err(|_| Self::reason(self.row_offset, "a name that is not UTF-8"))?;
        self.keyspace = Some((name, page_bytes as usize));
        Ok(())
    }
}

impl<R: BufRead> Source for BinarySource<R> {
    fn next(&mut self, row: &mut Row) -> Result<Next, SourceError> {
        assert_eq!(self.value_bytes_left, 0, "a streamed value is read to its end before the next row");
        if !self.started {
            self.read_header()?;
        }
        self.row_offset = self.offset;
        self.checksum = new_hasher();
        row.place = Place::Byte(self.offset);
        let key_bytes = self.u32()?;
        if key_bytes == END {
            self.read_end()?;
            return Ok(Next::End);
        }
        if key_bytes == KEYSPACE && self.has_keyspaces {
            self.read_keyspace()?;
            return Ok(Next::Keyspace);
        }
        if self.has_keyspaces && self.keyspace.is_none() {
            return Err(Self::reason(self.row_offset, "a row before the first keyspace: the file is damaged"));
        }
        let value_bytes = self.u64()?;
        if key_bytes > KEY_BYTES_LIMIT {
            return Err(Self::reason(self.row_offset, &format!("a key of {key_bytes} bytes: the file is damaged")));
        }
        row.key.resize(key_bytes as usize, 0);
        self.fill(&mut row.key)?;
        self.checksum.update(&row.key);
        row.value.clear();
        if value_bytes > VALUE_BYTES_STREAMED {
            self.value_bytes_left = value_bytes;
            return Ok(Next::Streamed);
        }
        row.value.resize(value_bytes as usize, 0);
        self.fill(&mut row.value)?;
        self.checksum.update(&row.value);
        self.verify_row()?;
        Ok(Next::Row)
    }

    fn value(&mut self) -> &mut dyn Read {
        self
    }

    fn keyspace(&self) -> (&str, usize) {
        let (name, page_bytes) = self.keyspace.as_ref().expect("`Keyspace` was just returned");
        (name, *page_bytes)
    }
}

/// Reads the streamed value. Verifies the checksum after the value before it reports the end.
impl<R: BufRead> Read for BinarySource<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.value_bytes_left == 0 || buffer.is_empty() {
            return Ok(0);
        }
        let limit = usize::try_from(self.value_bytes_left).map_or(buffer.len(), |left| left.min(buffer.len()));
        let bytes = self.input.read(&mut buffer[..limit])?;
        if bytes == 0 {
            return Err(into_io(Self::reason(self.offset, "the file is cut off here")));
        }
        self.checksum.update(&buffer[..bytes]);
        self.offset += bytes as u64;
        self.value_bytes_left -= bytes as u64;
        if self.value_bytes_left == 0 {
            self.verify_row().map_err(into_io)?;
        }
        Ok(bytes)
    }
}

fn into_io(reason: SourceError) -> io::Error {
    match reason {
        SourceError::Io(error) => error,
        SourceError::Row { place, what }
        | SourceError::Rest { place, what }
        | SourceError::Header { place, what, .. } => {
            io::Error::new(ErrorKind::InvalidData, format!("{what} ({})", place.to_string().trim_start_matches(": ")))
        }
    }
}

/// Writes the binary form.
pub(super) struct BinarySink<W> {
    output: W,
    checksums: Xxh3Default,
    rows_count: u64,
}

impl<W: Write> BinarySink<W> {
    pub(super) fn new(output: W) -> io::Result<BinarySink<W>> {
        BinarySink::of_version(output, VERSION)
    }

    /// Creates a writer of a file with keyspaces.
    pub(super) fn of_keyspaces(output: W) -> io::Result<BinarySink<W>> {
        BinarySink::of_version(output, VERSION_OF_KEYSPACES)
    }

    fn of_version(mut output: W, version: u32) -> io::Result<BinarySink<W>> {
        output.write_all(MAGIC)?;
        output.write_all(&version.to_le_bytes())?;
        output.write_all(&0u32.to_le_bytes())?;
        Ok(BinarySink { output, checksums: new_hasher(), rows_count: 0 })
    }

    fn begin_row(&mut self, checksum: &mut Xxh3Default, key: &[u8], value_bytes: u64) -> io::Result<()> {
        let key_bytes = u32::try_from(key.len()).expect("keys are shorter than a page");
        assert!(key_bytes <= KEY_BYTES_LIMIT, "keys are shorter than a page");
        for part in [&key_bytes.to_le_bytes()[..], &value_bytes.to_le_bytes(), key] {
            checksum.update(part);
            self.output.write_all(part)?;
        }
        Ok(())
    }

    fn end_row(&mut self, checksum: &Xxh3Default) -> io::Result<()> {
        let checksum = checksum.digest().to_le_bytes();
        self.checksums.update(&checksum);
        self.rows_count += 1;
        self.output.write_all(&checksum)
    }
}

impl<W: Write> Sink for BinarySink<W> {
    fn write(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let mut checksum = new_hasher();
        self.begin_row(&mut checksum, key, value.len() as u64)?;
        checksum.update(value);
        self.output.write_all(value)?;
        self.end_row(&checksum)
    }

    fn write_streamed(&mut self, key: &[u8], length: u64, value: &mut dyn Stream) -> io::Result<()> {
        let mut checksum = new_hasher();
        self.begin_row(&mut checksum, key, length)?;
        let mut written = 0;
        streamed::copy(value, |piece| {
            written += piece.len() as u64;
            checksum.update(piece);
            self.output.write_all(piece)
        })?;
        assert_eq!(written, length, "a value has another length than it told");
        self.end_row(&checksum)
    }

    fn begin_keyspace(&mut self, name: &str, page_bytes: usize) -> io::Result<()> {
        let mut checksum = new_hasher();
        let numbers = [KEYSPACE, page_bytes as u32, name.len() as u32].map(u32::to_le_bytes);
        for part in numbers.iter().map(|number| &number[..]).chain([name.as_bytes()]) {
            checksum.update(part);
            self.output.write_all(part)?;
        }
        let checksum = checksum.digest().to_le_bytes();
        self.checksums.update(&checksum);
        self.output.write_all(&checksum)
    }

    fn finish(&mut self) -> io::Result<()> {
        let rows_count = self.rows_count.to_le_bytes();
        self.checksums.update(&rows_count);
        self.output.write_all(&END.to_le_bytes())?;
        self.output.write_all(&rows_count)?;
        self.output.write_all(&self.checksums.digest().to_le_bytes())?;
        self.output.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> Vec<u8> {
        let mut file = Vec::new();
        let mut sink = BinarySink::new(&mut file).unwrap();
        sink.write(b"a", b"1").unwrap();
        sink.write(b"", &vec![7; VALUE_BYTES_STREAMED as usize + 1]).unwrap();
        sink.write(b"b", b"").unwrap();
        sink.finish().unwrap();
        file
    }

    fn rows_count(file: &[u8]) -> Result<u64, String> {
        let mut source = BinarySource::new(file);
        let mut row = Row::default();
        loop {
            match source.next(&mut row).map_err(|reason| into_io(reason).to_string())? {
                Next::End => return Ok(source.rows_count),
                Next::Row | Next::Keyspace => {}
                Next::Streamed => {
                    io::copy(source.value(), &mut io::sink()).map_err(|error| error.to_string())?;
                }
            }
        }
    }

    /// A file that is truncated at any length, has any byte changed, or has bytes after its end is rejected.
    #[test]
    fn damage_is_noticed() {
        let file = file();
        assert_eq!(rows_count(&file), Ok(3));
        let interesting = (0..60).chain(file.len() - 60..file.len()).chain([file.len() / 2]);
        for at in interesting {
            assert!(rows_count(&file[..at]).is_err(), "cut at {at}");
            let mut changed = file.clone();
            changed[at] ^= 4;
            // The four bytes after the version are reserved for later versions and ignored.
            assert_eq!(rows_count(&changed).is_err(), !(12..16).contains(&at), "byte {at} changed");
        }
        assert!(rows_count(&[&file[..], b"x"].concat()).is_err());
    }
}
