//! Snapshots: kept in the state's database, sent as a stream, and restored into a new folder next to the old state.

use std::fmt;
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use async_channel::{Receiver, Sender};
use drumlin::{BackupOptions, Database};
use drumlin_io::sync::Mutex;

use crate::error::{Error, Result};
use crate::site::{AppliedState, Site, read_applied_of};
use crate::threads;

/// The beginning of the names of this crate's kept snapshots. A number follows.
const NAME_PREFIX: &str = "raft-";
/// The length of the pieces of a stream, except for the last.
const PIECE_BYTES: usize = 256 << 10;
/// The pieces that wait between a thread and a task.
const PIECES_MAX: usize = 4;

fn name_of(number: u64) -> String {
    format!("{NAME_PREFIX}{number}")
}

fn number_of(name: &str) -> Option<u64> {
    name.strip_prefix(NAME_PREFIX)?.parse().ok()
}

/// A snapshot that the state's database keeps. It is dropped when a newer one has replaced it and it is not being sent.
pub(crate) struct Kept {
    pub(crate) database: Database,
    name: String,
    pub(crate) state: AppliedState,
    is_replaced: AtomicBool,
    /// The streams that are being read.
    reader_count: AtomicUsize,
}

impl Kept {
    /// Describes a snapshot that the database keeps.
    fn open(database: &Database, name: String) -> Result<Kept> {
        let state = read_applied_of(&database.open_snapshot(&name)?)?;
        let (is_replaced, reader_count) = (AtomicBool::new(false), AtomicUsize::new(0));
        Ok(Kept { database: database.clone(), name, state, is_replaced, reader_count })
    }

    /// Keeps a snapshot of a database. It is durable when this returns, and only then has it a description.
    pub(crate) fn keep(database: &Database) -> Result<Kept> {
        let numbers = database.kept_snapshots().into_iter().filter_map(|kept| number_of(&kept.name));
        let name = name_of(numbers.max().unwrap_or(0) + 1);
        database.keep_snapshot(&name)?;
        Kept::open(database, name)
    }

    pub(crate) fn index(&self) -> Option<u64> {
        self.state.applied.as_ref().map(|id| id.index)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if *self.is_replaced.get_mut() {
            let (database, name) = (self.database.clone(), std::mem::take(&mut self.name));
            // It makes a checkpoint, for which a task must not wait.
            let dropping = threads::unblock(move || {
                if let Err(error) = database.drop_snapshot(&name) {
                    log::debug!("the snapshot {name} is still kept: {error}");
                }
            });
            dropping.detach();
        }
    }
}

/// The snapshots of a state: the newest, and those that travel.
pub(crate) struct Snapshots {
    site: Arc<Site>,
    pub(crate) newest: Mutex<Option<Arc<Kept>>>,
    /// Snapshots that were handed out, for [`is_travelling`](Snapshots::is_travelling).
    handed_out: Mutex<Vec<Weak<Kept>>>,
    /// Held while one is built.
    pub(crate) building: Mutex<()>,
}

impl Snapshots {
    /// Finds the newest snapshot that a database keeps, and drops the others.
    pub(crate) fn open(site: &Arc<Site>, database: &Database) -> Result<Snapshots> {
        let mut numbers: Vec<u64> =
            database.kept_snapshots().into_iter().filter_map(|kept| number_of(&kept.name)).collect();
        numbers.sort_unstable();
        let newest = numbers.pop().map(|number| Kept::open(database, name_of(number))).transpose()?;
        for number in numbers {
            database.drop_snapshot(&name_of(number))?;
        }
        let newest = Mutex::new(newest.map(Arc::new));
        Ok(Snapshots { site: Arc::clone(site), newest, handed_out: Mutex::default(), building: Mutex::default() })
    }

    pub(crate) fn hand_out(&self, kept: &Arc<Kept>) -> Snapshot {
        let mut handed_out = self.handed_out.lock();
        handed_out.retain(|kept| kept.strong_count() > 0);
        if !handed_out.iter().any(|other| std::ptr::eq(other.as_ptr(), Arc::as_ptr(kept))) {
            handed_out.push(Arc::downgrade(kept));
        }
        Snapshot { content: Inner::Kept(Arc::clone(kept)) }
    }

    pub(crate) fn replace(&self, newest: &mut Option<Arc<Kept>>, kept: &Arc<Kept>) {
        if let Some(old) = newest.replace(Arc::clone(kept)) {
            old.is_replaced.store(true, Ordering::SeqCst);
        }
    }

    /// Returns `true` if a snapshot is being sent that lags by no more entries than the user allows.
    pub(crate) fn is_travelling(&self, applied: Option<u64>) -> bool {
        let lag_max = self.site.snapshot_lag_max();
        let counts = |kept: &Kept| {
            let lag = applied.map_or(0, |applied| applied.saturating_sub(kept.index().unwrap_or(0)));
            kept.reader_count.load(Ordering::SeqCst) > 0 && lag <= lag_max
        };
        self.handed_out.lock().iter().filter_map(Weak::upgrade).any(|kept| counts(&kept))
    }
}

/// A snapshot of a state: kept by this node, or received from another one.
///
/// To send one, read its [`reader`](Snapshot::reader), and write what arrives to a snapshot from
/// [`State::receive_snapshot`](crate::State::receive_snapshot). If the connection breaks, go on from
/// [`received_bytes`](Snapshot::received_bytes), as long as the sender still has the snapshot.
///
/// ```
/// # use drumlin_raft::{Content, EntryId, Identity, KeyValue, KeyValueRequest, Node, NodeOptions, Step};
/// # smol::block_on(async {
/// # let folder = std::env::temp_dir().join(format!("drumlin-doc-raft-snapshot-{}", std::process::id()));
/// # let one = Node::create(folder.join("1"), &Identity::new("shop", 1), &NodeOptions::new())?.group(1, KeyValue)?;
/// # let two = Node::create(folder.join("2"), &Identity::new("shop", 2), &NodeOptions::new())?.group(1, KeyValue)?;
/// # let (id, content) = (EntryId { index: 7, bytes: vec![] }, Content::Request(KeyValueRequest::put("apples", "3")));
/// # one.state().apply(&[Step { id: id.clone(), content }])?;
/// let sent = one.state().build_snapshot()?;
/// let mut received = two.state().receive_snapshot();
/// let mut reader = sent.reader(received.received_bytes())?;
/// while let Some(piece) = reader.next().await? {
///     received.write(piece).await?; // on the other node
/// }
/// received.finish().await?; // verifies it
/// two.state().install_snapshot(received, Some(&id)).await?;
/// assert_eq!(two.state().read(|_, rows| rows.get("apples"))?.unwrap(), "3");
/// # drop((one, two, sent, reader));
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), drumlin_raft::Error>(())
/// # })?;
/// # Ok::<(), drumlin_raft::Error>(())
/// ```
pub struct Snapshot {
    content: Inner,
}

enum Inner {
    Kept(Arc<Kept>),
    Receiving(Box<Receiving>),
    Loaded(Box<Loaded>),
    /// It could not be used.
    Discarded,
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.content {
            Inner::Kept(kept) => write!(f, "Snapshot({} to {:?})", kept.name, kept.index()),
            Inner::Receiving(receiving) => write!(f, "Snapshot({} bytes received)", receiving.received_bytes),
            Inner::Loaded(loaded) => write!(f, "Snapshot(received, to {:?})", loaded.kept.index()),
            Inner::Discarded => write!(f, "Snapshot(discarded)"),
        }
    }
}

impl Snapshot {
    /// Begins to receive a snapshot.
    pub(crate) fn receive(site: &Arc<Site>) -> Snapshot {
        let (sender, receiver) = async_channel::bounded(PIECES_MAX);
        let site = Arc::clone(site);
        let loading = threads::unblock(move || Loaded::load(&site, PieceReader::new(receiver)));
        Snapshot { content: Inner::Receiving(Box::new(Receiving { sender, loading, received_bytes: 0 })) }
    }

    /// Returns a snapshot that was received as what can be installed. One that another node in this process keeps is
    /// received first.
    pub(crate) async fn load(mut self, site: &Arc<Site>) -> Result<Box<Loaded>> {
        if let Inner::Kept(_) = self.content {
            let mut received = Snapshot::receive(site);
            let mut reader = self.reader(0)?;
            while let Some(piece) = reader.next().await? {
                received.write(piece).await?;
            }
            self = received;
        }
        self.finish().await?;
        match self.content {
            Inner::Loaded(loaded) => Ok(loaded),
            _ => unreachable!("it is finished"),
        }
    }

    /// Returns what was applied to the state, or `None` if the snapshot is not [finished](Snapshot::finish).
    #[must_use]
    pub fn applied(&self) -> Option<&AppliedState> {
        match &self.content {
            Inner::Kept(kept) => Some(&kept.state),
            Inner::Loaded(loaded) => Some(&loaded.kept.state),
            Inner::Receiving(_) | Inner::Discarded => None,
        }
    }

    /// Returns the bytes of the snapshot from an offset on: a [backup](Database::backup_into) of the state with its
    /// checksums. The bytes of a snapshot are the same each time. To begin at an offset, the bytes before it are made
    /// and not sent.
    ///
    /// While there is a reader, the snapshot is kept, and
    /// [`State::may_build_snapshot`](crate::State::may_build_snapshot) is false.
    ///
    /// # Errors
    /// [`Error::NoSuchSnapshot`] if the snapshot is one that was received.
    pub fn reader(&self, offset: u64) -> Result<SnapshotReader> {
        let Inner::Kept(kept) = &self.content else { return Err(Error::NoSuchSnapshot) };
        let (sender, receiver) = async_channel::bounded(PIECES_MAX);
        let backed_up = Travelling::new(kept);
        let backing_up = threads::unblock(move || {
            let mut writer = PieceWriter { sender, piece: Vec::new(), skip_bytes: offset };
            // Until the other node has it, the cluster has one node less to lose.
            let options = BackupOptions::new().keep(&backed_up.0.name).urgent();
            let done = backed_up.0.database.backup_into(&mut writer, &options);
            let end = match done.map_err(Error::from).and_then(|_| writer.send().map_err(Error::snapshot)) {
                Ok(()) => Piece::End,
                Err(error) => Piece::Failed(error),
            };
            // The reader may be gone.
            let _ = threads::wait(writer.sender.send(end));
        });
        backing_up.detach();
        Ok(SnapshotReader {
            receiver,
            _travelling: Travelling::new(kept),
            read: io::Cursor::default(),
            is_at_end: false,
        })
    }

    /// Writes the next bytes of a snapshot that another node sends. Waits while the disk is slower than the sender.
    ///
    /// # Errors
    /// [`Error::UnusableSnapshot`] if the bytes are damaged: the snapshot is discarded. [`drumlin::Error::DiskFull`].
    ///
    /// # Panics
    /// If the snapshot is not one that is being received.
    pub async fn write(&mut self, bytes: impl Into<Vec<u8>>) -> Result<()> {
        let bytes = bytes.into();
        let length = bytes.len() as u64;
        match &mut self.content {
            Inner::Receiving(receiving) => {
                if receiving.sender.send(bytes).await.is_ok() {
                    receiving.received_bytes += length;
                    return Ok(());
                }
            }
            Inner::Discarded => return Err(Error::snapshot("it was discarded")),
            Inner::Kept(_) | Inner::Loaded(_) => panic!("the snapshot is not being received"),
        }
        // Loading has ended early.
        self.finish().await?;
        self.content = Inner::Discarded;
        Err(Error::snapshot("there are bytes after its end"))
    }

    /// Returns how many bytes were received.
    #[must_use]
    pub fn received_bytes(&self) -> u64 {
        match &self.content {
            Inner::Receiving(receiving) => receiving.received_bytes,
            _ => 0,
        }
    }

    /// Verifies a received snapshot: it must be complete, and come from this cluster and group. Does nothing for a
    /// snapshot that this node has built.
    ///
    /// # Errors
    /// [`Error::UnusableSnapshot`]; the snapshot is then discarded. [`drumlin::Error::DiskFull`].
    pub async fn finish(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.content, Inner::Discarded) {
            Inner::Receiving(receiving) => {
                let Receiving { sender, loading, .. } = *receiving;
                drop(sender);
                self.content = Inner::Loaded(Box::new(loading.await?));
                Ok(())
            }
            Inner::Discarded => Err(Error::snapshot("it was discarded")),
            content => {
                self.content = content;
                Ok(())
            }
        }
    }
}

/// Counts as a reader of a snapshot while it exists.
struct Travelling(Arc<Kept>);

impl Travelling {
    fn new(kept: &Arc<Kept>) -> Travelling {
        kept.reader_count.fetch_add(1, Ordering::SeqCst);
        Travelling(Arc::clone(kept))
    }
}

impl Drop for Travelling {
    fn drop(&mut self) {
        self.0.reader_count.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The bytes of a snapshot, for a task by [`next`](SnapshotReader::next), for a thread by [`Read`]. A thread makes
/// them, a few pieces ahead. See [`Snapshot`] for an example.
pub struct SnapshotReader {
    receiver: Receiver<Piece>,
    _travelling: Travelling,
    /// For [`Read`].
    read: io::Cursor<Vec<u8>>,
    is_at_end: bool,
}

impl fmt::Debug for SnapshotReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SnapshotReader")
    }
}

/// A message of the thread that makes a stream.
enum Piece {
    Bytes(Vec<u8>),
    End,
    Failed(Error),
}

impl SnapshotReader {
    /// Returns the next piece of the snapshot, of 256 KiB except for the last, or `None` at the end.
    ///
    /// # Errors
    /// Those of [`Database::backup_into`]; [`drumlin::Error::Closed`] if a snapshot was installed since.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>> {
        if self.is_at_end {
            return Ok(None);
        }
        let piece = self.receiver.recv().await;
        self.take(piece.ok())
    }

    fn take(&mut self, piece: Option<Piece>) -> Result<Option<Vec<u8>>> {
        match piece {
            Some(Piece::Bytes(bytes)) => Ok(Some(bytes)),
            Some(Piece::End) => {
                self.is_at_end = true;
                Ok(None)
            }
            Some(Piece::Failed(error)) => Err(error),
            None => Err(Error::snapshot("the thread that reads it has ended")),
        }
    }
}

impl Read for SnapshotReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while !self.is_at_end && self.read.position() == self.read.get_ref().len() as u64 {
            let piece = threads::wait(self.receiver.recv());
            self.read = io::Cursor::new(self.take(piece.ok())?.unwrap_or_default());
        }
        self.read.read(buffer)
    }
}

/// Divides what is written into pieces, without the first bytes.
struct PieceWriter {
    sender: Sender<Piece>,
    piece: Vec<u8>,
    skip_bytes: u64,
}

impl PieceWriter {
    fn send(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = Piece::Bytes(std::mem::take(&mut self.piece));
        threads::wait(self.sender.send(piece)).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))
    }
}

impl Write for PieceWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let skipped = bytes.len().min(self.skip_bytes.try_into().unwrap_or(usize::MAX));
        self.skip_bytes -= skipped as u64;
        let taken = (bytes.len() - skipped).min(PIECE_BYTES - self.piece.len());
        self.piece.extend_from_slice(&bytes[skipped..skipped + taken]);
        if self.piece.len() == PIECE_BYTES {
            self.send()?;
        }
        Ok(skipped + taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A snapshot that arrives.
struct Receiving {
    sender: Sender<Vec<u8>>,
    loading: threads::Job<Result<Loaded>>,
    received_bytes: u64,
}

/// Reads the pieces that arrive.
struct PieceReader {
    receiver: Receiver<Vec<u8>>,
    piece: io::Cursor<Vec<u8>>,
}

impl PieceReader {
    fn new(receiver: Receiver<Vec<u8>>) -> PieceReader {
        PieceReader { receiver, piece: io::Cursor::default() }
    }
}

impl Read for PieceReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.position() == self.piece.get_ref().len() as u64 {
            let Ok(piece) = threads::wait(self.receiver.recv()) else { return Ok(0) };
            self.piece = io::Cursor::new(piece);
        }
        self.piece.read(buffer)
    }
}

/// A snapshot that was restored and verified, in a folder that is removed if it is not installed.
pub(crate) struct Loaded {
    pub(crate) number: u64,
    pub(crate) kept: Arc<Kept>,
    folder: NewFolder,
    pub(crate) is_installed: bool,
}

/// A folder of a new generation, which is removed with everything in it.
struct NewFolder {
    site: Arc<Site>,
    number: u64,
    is_used: bool,
}

impl Drop for NewFolder {
    fn drop(&mut self) {
        if !self.is_used {
            self.site.remove_generation(self.number);
        }
    }
}

impl Loaded {
    fn load(site: &Arc<Site>, mut reader: PieceReader) -> Result<Loaded> {
        let number = site.begin_generation()?;
        let folder = NewFolder { site: Arc::clone(site), number, is_used: false };
        let path = site.generation_folder(number);
        site.config().restore_from([&mut reader], &path).map_err(|error| match error {
            drumlin::Error::UnusableBackup { .. } => Error::snapshot(error),
            error => error.into(),
        })?;
        let database = site.config().create(false).open(&path)?;
        site.verify_owner(&database).map_err(Error::snapshot)?;
        let kept = Arc::new(Kept::keep(&database)?);
        Ok(Loaded { number, kept, folder, is_installed: false })
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        self.folder.is_used = self.is_installed;
        if !self.is_installed
            && let Err(error) = self.kept.database.clone().close()
        {
            log::warn!("a snapshot that is not installed is not closed: {error}");
        }
    }
}
