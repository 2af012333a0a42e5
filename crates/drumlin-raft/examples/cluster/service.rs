//! The interface for clients: HTTP with JSON.
//!
//! | request | answer |
//! | --- | --- |
//! | `GET /rows/KEY`, with `?stale=true` from any node | the value or `null`; linearizable unless `stale` |
//! | `GET /rows?from=A&to=B`, with `&stale=true` from any node | the keys and values of a range, as of one moment |
//! | `PUT /rows/KEY`, `DELETE /rows/KEY` | the value before |
//! | `POST /rows/KEY/compare-and-set`, with the expected and the new value | the value before, and if it was replaced |
//! | `GET /members`, `PUT /members/N`, `DELETE /members/N` | the members; a new one becomes a voter once it has caught up |
//! | `POST /initialize`, `POST /leader/N`, `POST /snapshot` | begins a cluster; as the leader, hands over, builds a snapshot |
//! | `GET /metrics` | figures of the node |
//! | `PUT /faults/cut-from`, `PUT /faults/break-after` | makes the network fail, for the supervisor |
//!
//! A node that does not lead answers 421 (Misdirected Request), with the leader's address if it knows it: the request
//! had no effect. After 503 (Service Unavailable), a write may have taken effect.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::routing::{get, post, put};
use axum::{Json, Router};
use drumlin_raft::{Group, KeyValue, KeyValueRequest, Node};
use futures_util::StreamExt;
use openraft::async_runtime::WatchReceiver;
use openraft::errors::decompose::DecomposeResult;
use openraft::errors::{ClientWriteError, ForwardToLeader, LinearizableReadError};
use openraft::{ChangeMembers, RaftMetrics, ReadPolicy};
use openraft_0_10 as openraft;
use serde::Deserialize;

use crate::network::Wire;
use crate::types::{CompareAndSet, Member, Metrics, Raft, Refusal, TypeConfig, Written};

/// The entries by which a new member may lag when it gets its vote, and the time for catching up.
const LAG_ENTRIES_MAX: u64 = 1_000;
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(25);

/// The handles that requests need.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) node: Node,
    pub(crate) group: Group<KeyValue>,
    pub(crate) raft: Raft,
    pub(crate) wire: Arc<Wire>,
}

type Refused = (StatusCode, Json<Refusal>);
type Answer<T> = Result<Json<T>, Refused>;

#[allow(clippy::needless_pass_by_value, reason = "it is given to map_err")]
fn refuse(status: StatusCode, error: impl ToString) -> Refused {
    (status, Json(Refusal { error: error.to_string(), leader: None, url: None }))
}

/// Refuses a request that may have taken effect.
#[allow(clippy::needless_pass_by_value, reason = "it is given to map_err")]
fn unknown(error: impl ToString) -> Refused {
    refuse(StatusCode::SERVICE_UNAVAILABLE, error)
}

/// Refuses a request that had no effect, and names the leader.
#[allow(clippy::needless_pass_by_value, reason = "it is given to map_err")]
fn misdirected(forward: ForwardToLeader<TypeConfig>) -> Refused {
    let url = forward.leader_node.as_ref().map(|member| format!("http://{}", member.http));
    let refusal = Refusal { error: "this node does not lead".to_owned(), leader: forward.leader_id, url };
    (StatusCode::MISDIRECTED_REQUEST, Json(refusal))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl Service {
    pub(crate) fn router(self) -> Router {
        Router::new()
            .route("/rows", get(range))
            .route("/rows/{key}", get(read).put(write).delete(remove))
            .route("/rows/{key}/compare-and-set", post(compare_and_set))
            .route("/members", get(members))
            .route("/members/{node}", put(add_member).delete(remove_member))
            .route("/initialize", post(initialize))
            .route("/leader/{node}", post(hand_over))
            .route("/snapshot", post(build_snapshot))
            .route("/metrics", get(metrics))
            .route("/faults/cut-from", put(cut_from))
            .route("/faults/break-after", put(break_after))
            .with_state(self)
    }

    /// Waits until this node may answer a linearizable read: it still leads, and has applied what was committed.
    async fn ensure_linearizable(&self) -> Result<(), Refused> {
        match self.raft.ensure_linearizable(ReadPolicy::ReadIndex).await.decompose() {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(LinearizableReadError::ForwardToLeader(forward))) => Err(misdirected(forward)),
            Ok(Err(error)) => Err(unknown(error)),
            Err(error) => Err(unknown(error)),
        }
    }

    async fn propose(&self, request: KeyValueRequest) -> Answer<Written> {
        self.group.check(&request).map_err(|error| refuse(StatusCode::PAYLOAD_TOO_LARGE, error))?;
        let written = match self.raft.client_write(request).await.decompose() {
            Ok(Ok(written)) => written,
            // It was not proposed. After any other error it may be committed, now or later.
            Ok(Err(ClientWriteError::ForwardToLeader(forward))) => return Err(misdirected(forward)),
            Ok(Err(error)) => return Err(unknown(error)),
            Err(error) => return Err(unknown(error)),
        };
        let answer = written.data.ok_or_else(|| unknown("the entry had no answer"))?;
        Ok(Json(Written { done: answer.done, before: answer.before.as_deref().map(text) }))
    }
}

#[derive(Deserialize)]
struct ReadOptions {
    #[serde(default)]
    stale: bool,
}

async fn read(
    State(service): State<Service>,
    Path(key): Path<String>,
    Query(options): Query<ReadOptions>,
) -> Answer<Option<String>> {
    if !options.stale {
        service.ensure_linearizable().await?;
    }
    // If a snapshot takes the place of the state now, this fails.
    let rows = service.group.state().read(|_, rows| rows.clone());
    let value = rows.get_async(key).await.map_err(unknown)?;
    Ok(Json(value.map(|value| text(&value))))
}

#[derive(Deserialize)]
struct RangeOptions {
    #[serde(default)]
    from: String,
    to: Option<String>,
    #[serde(default)]
    stale: bool,
}

async fn range(
    State(service): State<Service>,
    Query(options): Query<RangeOptions>,
) -> Answer<BTreeMap<String, String>> {
    if !options.stale {
        service.ensure_linearizable().await?;
    }
    let rows = service.group.state().read(|_, rows| rows.clone());
    let range = match options.to {
        Some(to) => rows.range(options.from..to),
        None => rows.range(options.from..),
    };
    let mut rows = range.into_stream();
    let mut found = BTreeMap::new();
    while let Some(row) = rows.next().await {
        let (key, value) = row.map_err(unknown)?;
        found.insert(text(&key), text(&value));
    }
    Ok(Json(found))
}

async fn write(State(service): State<Service>, Path(key): Path<String>, value: String) -> Answer<Written> {
    service.propose(KeyValueRequest::put(key, value)).await
}

async fn remove(State(service): State<Service>, Path(key): Path<String>) -> Answer<Written> {
    service.propose(KeyValueRequest::remove(key)).await
}

async fn compare_and_set(
    State(service): State<Service>,
    Path(key): Path<String>,
    Json(values): Json<CompareAndSet>,
) -> Answer<Written> {
    service.propose(KeyValueRequest::compare_and_set(key, values.expected, values.value)).await
}

async fn members(State(service): State<Service>) -> Json<BTreeMap<u64, Member>> {
    let metrics = service.raft.server_metrics().borrow_watched().clone();
    Json(metrics.membership_config.membership().nodes().map(|(node, member)| (*node, member.clone())).collect())
}

async fn add_member(State(service): State<Service>, Path(node): Path<u64>, Json(member): Json<Member>) -> Answer<()> {
    service.raft.as_leader().map_err(misdirected)?;
    service.raft.add_learner(node, member, false).await.map_err(unknown)?;
    // It first catches up without a vote, so that no majority waits for it.
    let is_near = |metrics: &RaftMetrics<TypeConfig>| {
        let matched = metrics.replication.as_ref().and_then(|nodes| nodes.get(&node)?.as_ref().map(|id| id.index));
        matched.is_some_and(|matched| matched + LAG_ENTRIES_MAX >= metrics.last_log_index.unwrap_or(0))
    };
    let wait = service.raft.wait(Some(CATCH_UP_TIMEOUT));
    wait.metrics(is_near, "the new member has almost all entries").await.map_err(unknown)?;
    let change = ChangeMembers::AddVoterIds(BTreeSet::from([node]));
    service.raft.change_membership(change, false).await.map_err(unknown)?;
    Ok(Json(()))
}

async fn remove_member(State(service): State<Service>, Path(node): Path<u64>) -> Answer<()> {
    service.raft.as_leader().map_err(misdirected)?;
    let change = ChangeMembers::RemoveVoters(BTreeSet::from([node]));
    service.raft.change_membership(change, false).await.map_err(unknown)?;
    Ok(Json(()))
}

async fn initialize(State(service): State<Service>, Json(members): Json<BTreeMap<u64, Member>>) -> Answer<()> {
    service.raft.initialize(members).await.map_err(unknown).map(Json)
}

async fn hand_over(State(service): State<Service>, Path(node): Path<u64>) -> Answer<()> {
    service.raft.as_leader().map_err(misdirected)?;
    service.raft.trigger().transfer_leader(node).await.map_err(unknown).map(Json)
}

async fn build_snapshot(State(service): State<Service>) -> Answer<()> {
    service.raft.as_leader().map_err(misdirected)?;
    service.raft.trigger().snapshot().await.map_err(unknown).map(Json)
}

async fn cut_from(State(service): State<Service>, Json(nodes): Json<BTreeSet<u64>>) -> Json<()> {
    service.wire.cut_from(nodes);
    Json(())
}

async fn break_after(State(service): State<Service>, Json(bytes): Json<u64>) -> Json<()> {
    service.wire.break_after(bytes);
    Json(())
}

async fn metrics(State(service): State<Service>) -> Answer<Metrics> {
    let raft = service.raft.metrics().borrow_watched().clone();
    let index = |id: &Option<openraft::alias::LogIdOf<TypeConfig>>| id.as_ref().map_or(0, |id| id.index);
    let logs = service.node.logs().stats();
    let state = service.group.state();
    let state_bytes = folder_bytes(&state.read(|db, _| db.path().to_owned()));
    Ok(Json(Metrics {
        node: raft.id,
        state: format!("{:?}", raft.state),
        term: raft.current_term,
        leader: raft.current_leader,
        last_log: raft.last_log_index.unwrap_or(0),
        applied: state.applied_index().unwrap_or(0),
        durably_applied: state.durably_applied_index().map_err(unknown)?.unwrap_or(0),
        snapshot: index(&raft.snapshot),
        purged: index(&raft.purged),
        log_syncs: logs.sync_count,
        log_bytes: logs.file_bytes,
        state_bytes,
    }))
}

/// Returns the length of the files of a folder.
fn folder_bytes(folder: &FilePath) -> u64 {
    let Ok(files) = std::fs::read_dir(folder) else { return 0 };
    let bytes =
        |path: &FilePath| if path.is_dir() { folder_bytes(path) } else { path.metadata().map_or(0, |it| it.len()) };
    files.flatten().map(|file| bytes(&file.path())).sum()
}

#[cfg(test)]
mod tests {
    /// The table at the top of this file has a row for each route.
    #[test]
    fn routes_are_documented() {
        let text = include_str!("service.rs");
        let table: String = text.lines().filter(|line| line.starts_with("//! |")).collect();
        let routes = text.split(".route(\"").skip(1).filter_map(|rest| rest.split('"').next());
        for route in routes.filter(|route| route.starts_with('/')) {
            let route = route.replace("{key}", "KEY").replace("{node}", "N");
            assert!(table.contains(&format!("{route}`")) || table.contains(&format!("{route}?")), "{route}");
        }
    }
}
