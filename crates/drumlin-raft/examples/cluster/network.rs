//! The network between nodes: openraft's messages as frames over TCP. A snapshot is a stream on its own connection, and
//! is resumed from where the connection broke.
//!
//! ```text
//! connection  a hello, then requests, each of which is answered before the next
//! frame       length (4, little-endian)  postcard
//! snapshot    a request; the offset from which to send; frames of bytes; an empty frame; the answer
//! ```

use std::collections::BTreeSet;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use drumlin_raft::{Group, KeyValue, Snapshot};
use openraft::alias::{SnapshotMetaOf, SnapshotOf, VoteOf};
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest, TransferLeaderResponse,
    VoteRequest, VoteResponse,
};
use openraft::{RaftNetworkFactory, RaftNetworkV2};
use openraft_0_10 as openraft;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::types::{CLUSTER, Event, Failure, Member, Raft, TypeConfig};

/// The longest frame: a message has at most as many entries as openraft's `max_payload_entries`.
const FRAME_BYTES_MAX: usize = 64 << 20;
/// The time for each frame of a snapshot, and for installing it.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(30);
/// The number of times that a snapshot is resumed before openraft hears of it, and the pause in between.
const RESUMES_MAX: u32 = 10;
const RESUME_PAUSE: Duration = Duration::from_millis(100);

/// The first frame of a connection.
#[derive(Serialize, Deserialize)]
struct Hello {
    cluster: String,
    from: u64,
    to: u64,
}

#[derive(Serialize, Deserialize)]
enum Request {
    Append(AppendEntriesRequest<TypeConfig>),
    Vote(VoteRequest<TypeConfig>),
    PreVote(VoteRequest<TypeConfig>),
    TransferLeader(TransferLeaderRequest<TypeConfig>),
    Snapshot(SnapshotHead),
}

#[derive(Serialize, Deserialize)]
enum Response {
    Append(AppendEntriesResponse<TypeConfig>),
    Vote(VoteResponse<TypeConfig>),
    TransferLeader(TransferLeaderResponse<TypeConfig>),
    /// The receiver has this many bytes of the snapshot.
    Continue(u64),
    Installed(SnapshotResponse<TypeConfig>),
    Failed(String),
}

#[derive(Serialize, Deserialize)]
struct SnapshotHead {
    vote: VoteOf<TypeConfig>,
    meta: SnapshotMetaOf<TypeConfig>,
    /// The process that sends it. Only the same process sends the same bytes for the same last entry.
    process: u64,
}

/// A snapshot of which a part has arrived.
struct Partial {
    process: u64,
    meta: SnapshotMetaOf<TypeConfig>,
    snapshot: Snapshot,
    begun: Instant,
}

/// The state of a node's network, for both directions.
pub(crate) struct Wire {
    number: u64,
    process: u64,
    /// The nodes with which this node exchanges no messages, because the supervisor has partitioned the network.
    cut_from: Mutex<BTreeSet<u64>>,
    /// The bytes after which the next snapshot's connection breaks, or 0.
    break_after: AtomicU64,
    partial: Mutex<Option<Partial>>,
    /// The last entry of the last snapshot that was installed.
    installed: AtomicU64,
    say: Box<dyn Fn(&Event) + Send + Sync>,
}

impl Wire {
    pub(crate) fn new(number: u64, say: impl Fn(&Event) + Send + Sync + 'static) -> Arc<Wire> {
        let process = RandomState::new().build_hasher().finish();
        let (cut_from, break_after, partial) = (Mutex::default(), AtomicU64::new(0), Mutex::new(None));
        let (installed, say) = (AtomicU64::new(0), Box::new(say));
        Arc::new(Wire { number, process, cut_from, break_after, partial, installed, say })
    }

    /// Cuts the node off from others, or connects it again with all that are not named.
    pub(crate) fn cut_from(&self, nodes: BTreeSet<u64>) {
        *self.cut_from.lock().unwrap() = nodes;
    }

    /// Breaks the connection of the next snapshot that is sent, after this many bytes.
    pub(crate) fn break_after(&self, bytes: u64) {
        self.break_after.store(bytes, Ordering::SeqCst);
    }

    /// Returns the last entry of the last snapshot that was installed.
    pub(crate) fn installed(&self) -> u64 {
        self.installed.load(Ordering::SeqCst)
    }

    fn check(&self, other: u64) -> io::Result<()> {
        match self.cut_from.lock().unwrap().contains(&other) {
            true => Err(io::Error::other(format!("node {} is cut off from node {other}", self.number))),
            false => Ok(()),
        }
    }
}

async fn write_bytes(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    // One write, so that a small message is one packet.
    let mut frame = Vec::with_capacity(4 + bytes.len());
    frame.extend(u32::try_from(bytes.len()).map_err(io::Error::other)?.to_le_bytes());
    frame.extend(bytes);
    stream.write_all(&frame).await
}

async fn read_bytes(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let length = stream.read_u32_le().await? as usize;
    if length > FRAME_BYTES_MAX {
        return Err(io::Error::other(format!("a frame of {length} bytes")));
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

async fn write<T: Serialize>(stream: &mut TcpStream, message: &T) -> io::Result<()> {
    write_bytes(stream, &postcard::to_stdvec(message).map_err(io::Error::other)?).await
}

async fn read<T: DeserializeOwned>(stream: &mut TcpStream) -> io::Result<T> {
    postcard::from_bytes(&read_bytes(stream).await?).map_err(io::Error::other)
}

async fn within<T>(time: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(time, work).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

/// Connections to one other node.
pub(crate) struct Connection {
    wire: Arc<Wire>,
    target: u64,
    address: String,
    /// The connection for small messages, while none is in flight.
    stream: Option<TcpStream>,
}

/// Makes connections.
pub(crate) struct Network(pub(crate) Arc<Wire>);

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = Connection;

    async fn new_client(&mut self, target: u64, member: &Member) -> Connection {
        Connection { wire: Arc::clone(&self.0), target, address: member.raft.clone(), stream: None }
    }
}

fn unreachable(error: &io::Error) -> Unreachable<TypeConfig> {
    Unreachable::new(error)
}

impl Connection {
    async fn connect(&self) -> io::Result<TcpStream> {
        self.wire.check(self.target)?;
        let mut stream = TcpStream::connect(&self.address).await?;
        stream.set_nodelay(true)?;
        write(&mut stream, &Hello { cluster: CLUSTER.to_owned(), from: self.wire.number, to: self.target }).await?;
        Ok(stream)
    }

    async fn call(&mut self, request: Request, time: Duration) -> Result<Response, Unreachable<TypeConfig>> {
        // If this is dropped or fails half-way, the connection is gone: its next bytes would belong to this request.
        let stream = self.stream.take();
        let answered = within(time, async {
            let mut stream = match stream {
                Some(stream) => stream,
                None => self.connect().await?,
            };
            self.wire.check(self.target)?;
            write(&mut stream, &request).await?;
            let response = read(&mut stream).await?;
            self.wire.check(self.target)?;
            Ok((stream, response))
        });
        let (stream, response) = answered.await.map_err(|error| unreachable(&error))?;
        self.stream = Some(stream);
        match response {
            Response::Failed(reason) => Err(unreachable(&io::Error::other(reason))),
            response => Ok(response),
        }
    }

    /// Sends what the target lacks of a snapshot. Returns its answer, the first offset sent, and the bytes sent.
    async fn send(
        &self,
        vote: &VoteOf<TypeConfig>,
        snapshot: &SnapshotOf<TypeConfig, Snapshot>,
        sent_bytes: &mut u64,
    ) -> Result<(SnapshotResponse<TypeConfig>, u64), Failure> {
        let mut stream = self.connect().await?;
        let (vote, meta) = (*vote, snapshot.meta.clone());
        write(&mut stream, &Request::Snapshot(SnapshotHead { vote, meta, process: self.wire.process })).await?;
        let offset = match within(SNAPSHOT_TIMEOUT, read(&mut stream)).await? {
            Response::Continue(offset) => offset,
            Response::Failed(reason) => return Err(reason.into()),
            _ => return Err("an answer to something else".into()),
        };
        let break_at = match self.wire.break_after.swap(0, Ordering::SeqCst) {
            0 => u64::MAX,
            bytes => offset + bytes,
        };
        *sent_bytes = offset;
        let mut reader = snapshot.snapshot.reader(offset)?;
        while let Some(piece) = reader.next().await? {
            self.wire.check(self.target)?;
            within(SNAPSHOT_TIMEOUT, write_bytes(&mut stream, &piece)).await?;
            *sent_bytes += piece.len() as u64;
            if *sent_bytes >= break_at {
                return Err("the supervisor broke the connection".into());
            }
        }
        write_bytes(&mut stream, &[]).await?;
        match within(SNAPSHOT_TIMEOUT, read(&mut stream)).await? {
            Response::Installed(response) => Ok((response, offset)),
            Response::Failed(reason) => Err(reason.into()),
            _ => Err("an answer to something else".into()),
        }
    }
}

/// Extracts the expected answer from a response. Any other response is an error.
macro_rules! answer {
    ($response:expr, $kind:ident) => {
        match $response {
            Response::$kind(answer) => Ok(answer),
            _ => Err(unreachable(&io::Error::other("an answer to something else")).into()),
        }
    };
}

impl RaftNetworkV2<TypeConfig> for Connection {
    type SnapshotData = Snapshot;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        answer!(self.call(Request::Append(request), option.soft_ttl()).await?, Append)
    }

    async fn vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        answer!(self.call(Request::Vote(request), option.soft_ttl()).await?, Vote)
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        answer!(self.call(Request::PreVote(request), option.soft_ttl()).await?, Vote)
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>, RPCError<TypeConfig>> {
        answer!(self.call(Request::TransferLeader(request), option.soft_ttl()).await?, TransferLeader)
    }

    async fn full_snapshot(
        &mut self,
        vote: VoteOf<TypeConfig>,
        snapshot: SnapshotOf<TypeConfig, Snapshot>,
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let begun = Instant::now();
        let sending = async {
            let mut resumes = 0;
            loop {
                let mut bytes = 0;
                let error = match self.send(&vote, &snapshot, &mut bytes).await {
                    Ok((response, from_offset)) => {
                        let millis = begun.elapsed().as_millis() as u64;
                        (self.wire.say)(&Event::Sent { to: self.target, from_offset, bytes, millis });
                        return Ok(response);
                    }
                    Err(error) => io::Error::other(error.to_string()),
                };
                if bytes > 0 {
                    (self.wire.say)(&Event::Broken { to: self.target, bytes });
                }
                resumes += 1;
                if resumes > RESUMES_MAX {
                    return Err(unreachable(&error).into());
                }
                tokio::time::sleep(RESUME_PAUSE).await;
            }
        };
        tokio::select! {
            closed = cancel => Err(closed.into()),
            sent = sending => sent,
        }
    }
}

/// Answers other nodes until the process ends.
pub(crate) async fn serve(listener: TcpListener, wire: Arc<Wire>, raft: Raft, group: Group<KeyValue>) {
    loop {
        // Errors are those of a connection that is gone already.
        let Ok((stream, _)) = listener.accept().await else { continue };
        let (wire, raft, group) = (Arc::clone(&wire), raft.clone(), group.clone());
        // Its end is noticed by the other node, which connects again.
        tokio::spawn(async move { drop(answer(stream, &wire, &raft, &group).await) });
    }
}

async fn answer(mut stream: TcpStream, wire: &Wire, raft: &Raft, group: &Group<KeyValue>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let hello: Hello = read(&mut stream).await?;
    if hello.cluster != CLUSTER || hello.to != wire.number {
        return Err(io::Error::other("the connection is for another node"));
    }
    loop {
        let request: Request = read(&mut stream).await?;
        wire.check(hello.from)?;
        let failed = |error: &dyn std::error::Error| Response::Failed(error.to_string());
        let response = match request {
            Request::Append(request) => {
                raft.append_entries(request).await.map_or_else(|error| failed(&error), Response::Append)
            }
            Request::Vote(request) => raft.vote(request).await.map_or_else(|error| failed(&error), Response::Vote),
            Request::PreVote(request) => {
                raft.pre_vote(request).await.map_or_else(|error| failed(&error), Response::Vote)
            }
            Request::TransferLeader(request) => {
                raft.handle_transfer_leader(request).await.map_or_else(|error| failed(&error), Response::TransferLeader)
            }
            Request::Snapshot(head) => match receive(&mut stream, wire, raft, group, hello.from, head).await {
                Ok(response) => Response::Installed(response),
                Err(error) => Response::Failed(error.to_string()),
            },
        };
        wire.check(hello.from)?;
        write(&mut stream, &response).await?;
    }
}

/// Receives a snapshot and installs it. If the connection breaks, keeps what has arrived.
async fn receive(
    stream: &mut TcpStream,
    wire: &Wire,
    raft: &Raft,
    group: &Group<KeyValue>,
    from: u64,
    head: SnapshotHead,
) -> Result<SnapshotResponse<TypeConfig>, Failure> {
    let partial = wire.partial.lock().unwrap().take();
    let fits = |partial: &Partial| partial.process == head.process && partial.meta == head.meta;
    let mut partial = partial.filter(fits).unwrap_or_else(|| Partial {
        process: head.process,
        meta: head.meta.clone(),
        snapshot: group.state().receive_snapshot(),
        begun: Instant::now(),
    });
    if let Err(broken) = receive_pieces(stream, wire, from, &mut partial.snapshot).await? {
        *wire.partial.lock().unwrap() = Some(partial);
        return Err(broken.into());
    }
    let bytes = partial.snapshot.received_bytes();
    partial.snapshot.finish().await?;
    let index = head.meta.last_log_id.as_ref().map_or(0, |id| id.index);
    let snapshot = SnapshotOf::<TypeConfig, Snapshot> { meta: head.meta, snapshot: partial.snapshot };
    wire.installed.store(index, Ordering::SeqCst);
    let response = raft.install_full_snapshot(head.vote, snapshot).await?;
    (wire.say)(&Event::Installed { from, index, bytes, millis: partial.begun.elapsed().as_millis() as u64 });
    Ok(response)
}

/// Receives the rest of a snapshot. The inner error is that of the connection; after the outer one, the snapshot is
/// unusable.
async fn receive_pieces(
    stream: &mut TcpStream,
    wire: &Wire,
    from: u64,
    snapshot: &mut Snapshot,
) -> drumlin_raft::Result<io::Result<()>> {
    if let Err(broken) = write(stream, &Response::Continue(snapshot.received_bytes())).await {
        return Ok(Err(broken));
    }
    loop {
        let piece = match within(SNAPSHOT_TIMEOUT, read_bytes(stream)).await.and_then(|piece| {
            wire.check(from)?;
            Ok(piece)
        }) {
            Ok(piece) => piece,
            Err(broken) => return Ok(Err(broken)),
        };
        if piece.is_empty() {
            return Ok(Ok(()));
        }
        snapshot.write(piece).await?;
    }
}
