//! Files that are written once, then only read.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_io::AsyncWrite;

use crate::backend::OpenOptions;
use crate::driver::{Driver, Operation};
use crate::file::{File, ReadMany, ReadManyOptions};
use crate::read::ReadBuffer;
use crate::stream::{ReadStream, StreamOptions, WriteStream};

/// A file that never changes: it is written once, then shared by any number of readers. Its length is known without a
/// system call.
///
/// # Examples
/// ```
/// use drumlin_io::{Driver, ImmutableFile, StreamOptions};
/// use futures_util::AsyncWriteExt;
///
/// let driver = Driver::new()?;
/// let path = std::env::temp_dir().join(format!("drumlin-{:016x}", driver.backend().random()));
/// driver.block_on(async {
///     let mut writer = ImmutableFile::create(&driver, &path, StreamOptions::default()).await?;
///     writer.write_all(b"striations").await?;
///     assert!(!path.exists(), "the file has its name when it is complete");
///     let file = writer.finish().await?;
///     assert_eq!(file.len(), 10);
///     assert_eq!(&file.read_at(0, 4).await?[..], b"stri");
///     driver.remove(&path).await
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct ImmutableFile {
    file: File,
    bytes: u64,
}

impl ImmutableFile {
    /// Begins to write a file. Until it is [finished](ImmutableFileWriter::finish), its name is `<path>.partial`.
    /// Replaces a partial file that an interrupted program has left behind.
    ///
    /// # Errors
    /// `AlreadyExists` if a file exists at `path`, and any error that the system reports.
    pub fn create(driver: &Driver, path: impl AsRef<Path>, options: StreamOptions) -> Operation<ImmutableFileWriter> {
        let (driver, path) = (driver.clone(), path.as_ref().to_owned());
        driver.clone().run(move || {
            let backend = driver.backend();
            if backend.exists(&path)? {
                let text = format!("{} exists already", path.display());
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
            }
            let mut partial = path.clone().into_os_string();
            partial.push(".partial");
            let partial = PathBuf::from(partial);
            if backend.exists(&partial)? {
                backend.remove(&partial)?;
            }
            let open = OpenOptions { write: true, create_new: true, direct: true, ..OpenOptions::default() };
            let file = File::new(backend.open(&partial, open)?, driver.clone());
            let stream = WriteStream::new(&file, 0, options);
            Ok(ImmutableFileWriter { stream, partial: Some(partial), path, driver })
        })
    }

    /// Opens a complete file, for direct I/O if the file system allows it.
    ///
    /// # Errors
    /// Any error that the system reports.
    pub fn open(driver: &Driver, path: impl AsRef<Path>) -> Operation<ImmutableFile> {
        let (driver, path) = (driver.clone(), path.as_ref().to_owned());
        driver.clone().run(move || ImmutableFile::reopen(&driver, &path))
    }

    fn reopen(driver: &Driver, path: &Path) -> io::Result<ImmutableFile> {
        let file = driver.backend().open(path, OpenOptions { direct: true, ..OpenOptions::default() })?;
        let bytes = file.len()?;
        Ok(ImmutableFile { file: File::new(file, driver.clone()), bytes })
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Returns the length in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "no caller needs to know whether a file is empty")]
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Reads `bytes` bytes from `offset`, like [`File::read_at`].
    ///
    /// # Errors
    /// The errors of [`File::read_at`].
    pub fn read_at(&self, offset: u64, bytes: usize) -> Operation<ReadBuffer> {
        self.file.read_at(offset, bytes)
    }

    /// Reads many ranges concurrently, like [`File::read_many`].
    pub fn read_many(&self, ranges: impl IntoIterator<Item = Range<u64>>, options: ReadManyOptions) -> ReadMany {
        self.file.read_many(ranges, options)
    }

    /// Reads a range from its start to its end.
    ///
    /// # Errors
    /// The errors of [`ReadStream::open`].
    pub fn stream(&self, range: Range<u64>, options: StreamOptions) -> io::Result<ReadStream> {
        ReadStream::open(&self.file, range, options)
    }

    /// Returns the same file for use with the given handle of its driver, for instance [`Driver::background`].
    #[must_use]
    pub fn with_driver(&self, driver: &Driver) -> ImmutableFile {
        ImmutableFile { file: self.file.with_driver(driver), bytes: self.bytes }
    }
}

impl fmt::Debug for ImmutableFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ImmutableFile({}, {} bytes)", self.path().display(), self.bytes)
    }
}

/// Writes an [`ImmutableFile`] from its start to its end. Dropping the writer before it has finished removes the
/// partial file.
pub struct ImmutableFileWriter {
    stream: WriteStream,
    /// The path of the partial file, or `None` once the file is complete.
    partial: Option<PathBuf>,
    path: PathBuf,
    driver: Driver,
}

impl ImmutableFileWriter {
    /// Completes the file: makes its bytes durable, renames it from its partial name, and makes the new name durable.
    /// So a file with the final name is always complete, even after a power cut.
    ///
    /// # Errors
    /// The errors of [`WriteStream::finish`] and [`Driver::rename`].
    pub async fn finish(mut self) -> io::Result<ImmutableFile> {
        self.stream.flush().await?;
        self.stream.sync_data().await?;
        let partial = self.partial.clone().expect("it is finished once");
        self.driver.rename(&partial, &self.path).await?;
        self.partial = None;
        let (driver, path) = (self.driver.clone(), self.path.clone());
        self.driver.run(move || ImmutableFile::reopen(&driver, &path)).await
    }
}

impl AsyncWrite for ImmutableFileWriter {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    /// Flushes the stream. The file is complete only after [`finish`](ImmutableFileWriter::finish).
    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_close(context)
    }
}

impl io::Write for ImmutableFileWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        io::Write::write(&mut self.stream, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::Write::flush(&mut self.stream)
    }
}

impl Drop for ImmutableFileWriter {
    fn drop(&mut self) {
        if let Some(partial) = self.partial.take()
            && let Err(error) = self.driver.backend().remove(&partial)
        {
            log::warn!("{} was not completed, and can't be removed: {error}", partial.display());
        }
    }
}

impl fmt::Debug for ImmutableFileWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ImmutableFileWriter({}, {:?})", self.path.display(), self.stream)
    }
}
