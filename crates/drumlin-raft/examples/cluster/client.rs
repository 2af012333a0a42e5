//! A client of the cluster: it finds the leader, and knows whether a request may have taken effect.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;

use crate::types::{Failure, Refusal};

/// The addresses of the nodes that clients ask.
pub(crate) type Directory = Arc<Mutex<BTreeMap<u64, String>>>;

/// The pause after a node did not lead and did not know who does, or was not there.
const PAUSE: Duration = Duration::from_millis(10);

/// A request that any node may get, and only the leader fulfils.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) body: Bytes,
    is_json: bool,
    /// `true` if it does no harm when it takes effect twice.
    may_repeat: bool,
    /// The time for one answer.
    answer_timeout: Duration,
    /// The time after which it is given up.
    timeout: Duration,
}

impl Call {
    pub(crate) fn new(method: Method, path: impl Into<String>) -> Call {
        let may_repeat = method == Method::GET;
        let (answer_timeout, timeout) = (Duration::from_secs(1), Duration::from_secs(4));
        Call { method, path: path.into(), body: Bytes::new(), is_json: false, may_repeat, answer_timeout, timeout }
    }

    pub(crate) fn text(self, text: String) -> Call {
        Call { body: text.into(), ..self }
    }

    pub(crate) fn json<T: Serialize>(self, value: &T) -> Call {
        let body = serde_json::to_vec(value).expect("a request has a text").into();
        Call { body, is_json: true, ..self }
    }

    /// Makes it a look at a node, which may be frozen.
    pub(crate) fn at_once(self) -> Call {
        Call { answer_timeout: Duration::from_millis(250), ..self }
    }

    /// Makes it a request of the supervisor: it is repeated until it succeeds, for a minute.
    pub(crate) fn until_done(self) -> Call {
        Call { may_repeat: true, answer_timeout: Duration::from_secs(30), timeout: Duration::from_secs(60), ..self }
    }
}

/// The end of a call.
#[derive(Debug)]
pub(crate) enum Reply {
    Done(Bytes),
    /// It had no effect.
    Refused(String),
    /// It may have taken effect, or may still do so.
    Unknown(String),
}

impl Reply {
    /// Decodes the answer.
    pub(crate) fn decode<T: DeserializeOwned>(self) -> Result<T, Failure> {
        match self {
            Reply::Done(bytes) => Ok(serde_json::from_slice(&bytes)?),
            Reply::Refused(reason) | Reply::Unknown(reason) => Err(reason.into()),
        }
    }
}

/// The reason for which a node gave no answer.
#[derive(Debug)]
enum Silence {
    /// The request was not sent.
    NotSent(String),
    Unanswered(String),
}

/// A client, with a connection to each node that it has asked.
pub(crate) struct Client {
    directory: Directory,
    leader: Option<u64>,
    turn: usize,
    connections: BTreeMap<u64, SendRequest<Full<Bytes>>>,
}

impl Client {
    pub(crate) fn new(directory: &Directory) -> Client {
        Client { directory: Arc::clone(directory), leader: None, turn: 0, connections: BTreeMap::new() }
    }

    /// Returns the leader if the directory has it, or one node after another.
    fn next(&mut self) -> Option<u64> {
        let directory = self.directory.lock().unwrap();
        if let Some(leader) = self.leader.filter(|leader| directory.contains_key(leader)) {
            return Some(leader);
        }
        self.turn += 1;
        directory.keys().nth(self.turn % directory.len().max(1)).copied()
    }

    async fn connect(&self, node: u64) -> Result<SendRequest<Full<Bytes>>, Failure> {
        let address = self.directory.lock().unwrap().get(&node).cloned().ok_or("there is no such node")?;
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // It ends with the sender, or with the node.
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }

    async fn exchange(&mut self, node: u64, call: &Call) -> Result<(StatusCode, Bytes), Silence> {
        let not_sent = |error: Failure| Silence::NotSent(error.to_string());
        let mut sender = match self.connections.remove(&node).filter(|sender| !sender.is_closed()) {
            Some(sender) => sender,
            None => self.connect(node).await.map_err(not_sent)?,
        };
        sender.ready().await.map_err(|error| not_sent(error.into()))?;
        let content_type = if call.is_json { "application/json" } else { "text/plain" };
        let request = Request::builder()
            .method(call.method.clone())
            .uri(&call.path)
            .header("host", "cluster")
            .header("content-type", content_type)
            .body(Full::new(call.body.clone()))
            .map_err(|error| not_sent(error.into()))?;
        let response = sender.send_request(request).await.map_err(|error| match error.is_canceled() {
            true => Silence::NotSent(error.to_string()),
            false => Silence::Unanswered(error.to_string()),
        })?;
        let status = response.status();
        let body = response.into_body().collect().await.map_err(|error| Silence::Unanswered(error.to_string()))?;
        self.connections.insert(node, sender);
        Ok((status, body.to_bytes()))
    }

    /// Asks one node.
    async fn ask(&mut self, node: u64, call: &Call) -> Result<(StatusCode, Bytes), Silence> {
        // If the time is up, the connection is dropped: it is not in the map while it is used.
        let exchanged = tokio::time::timeout(call.answer_timeout, self.exchange(node, call)).await;
        exchanged.unwrap_or_else(|_| Err(Silence::Unanswered("there was no answer in time".to_owned())))
    }

    /// Asks one node, which need not be the leader.
    pub(crate) async fn ask_node<T: DeserializeOwned>(&mut self, node: u64, call: &Call) -> Result<T, Failure> {
        match self.ask(node, call).await {
            Ok((StatusCode::OK, body)) => Ok(serde_json::from_slice(&body)?),
            Ok((status, body)) => Err(format!("{status}: {}", String::from_utf8_lossy(&body)).into()),
            Err(Silence::NotSent(reason) | Silence::Unanswered(reason)) => Err(reason.into()),
        }
    }

    /// Asks nodes until one, as the leader, fulfils the request.
    pub(crate) async fn call(&mut self, call: &Call) -> Reply {
        let begun = Instant::now();
        let mut reason = "there is no node".to_owned();
        while begun.elapsed() < call.timeout {
            let Some(node) = self.next() else { return Reply::Refused(reason) };
            let asked = self.leader.take();
            match self.ask(node, call).await {
                Ok((StatusCode::OK, body)) => {
                    self.leader = Some(node);
                    return Reply::Done(body);
                }
                Ok((StatusCode::MISDIRECTED_REQUEST, body)) => {
                    let refusal: Option<Refusal> = serde_json::from_slice(&body).ok();
                    let leader = refusal.and_then(|refusal| refusal.leader);
                    // A node that names the one that was just asked has not yet heard of its end.
                    self.leader = leader.filter(|leader| *leader != node && Some(*leader) != asked);
                    reason = "there is no leader".to_owned();
                }
                Ok((StatusCode::SERVICE_UNAVAILABLE, body)) if call.may_repeat => {
                    reason = String::from_utf8_lossy(&body).into_owned();
                }
                Ok((StatusCode::SERVICE_UNAVAILABLE, body)) => {
                    return Reply::Unknown(String::from_utf8_lossy(&body).into_owned());
                }
                Ok((status, body)) => {
                    return Reply::Refused(format!("{status}: {}", String::from_utf8_lossy(&body)));
                }
                Err(Silence::Unanswered(reason)) if !call.may_repeat => return Reply::Unknown(reason),
                Err(Silence::NotSent(why) | Silence::Unanswered(why)) => reason = why,
            }
            if self.leader.is_none() {
                tokio::time::sleep(PAUSE).await;
            }
        }
        Reply::Refused(reason)
    }
}
