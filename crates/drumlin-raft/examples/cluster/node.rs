//! The process of a node: its storage, its part of the Raft group, and its two servers.

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use drumlin::Config as StateConfig;
use drumlin::logs::LogsOptions;
use drumlin_raft::openraft_0_10::stores;
use drumlin_raft::{Identity, KeyValue, Node, NodeOptions};
use openraft::async_runtime::WatchReceiver;
use openraft::{Config, SnapshotPolicy};
use openraft_0_10 as openraft;
use tokio::net::TcpListener;

use crate::network::{self, Network, Wire};
use crate::service::Service;
use crate::types::{CLUSTER, Event, Failure, Raft, Settings};

/// The only group of the cluster.
const GROUP: u64 = 1;
/// The time for which a port that a killed node had may be taken.
const BIND_TIMEOUT: Duration = Duration::from_secs(10);
/// The upper limit of the election timeout.
pub(crate) const ELECTION_TIMEOUT_MAX: Duration = Duration::from_millis(1000);

fn options() -> NodeOptions {
    NodeOptions::new().logs(LogsOptions::new().memory(16 << 20)).state(StateConfig::new().memory(32 << 20))
}

fn config() -> Result<Config, Failure> {
    let config = Config {
        cluster_name: CLUSTER.to_owned(),
        heartbeat_interval: 100,
        election_timeout_min: 500,
        election_timeout_max: ELECTION_TIMEOUT_MAX.as_millis() as u64,
        // For all of it: it is the time that openraft gives to sending and installing a snapshot.
        install_snapshot_timeout: 60_000,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(20_000),
        max_in_snapshot_log_to_keep: 1_000,
        replication_lag_threshold: 40_000,
        // A node that comes back must not end the term of a leader that works.
        enable_pre_vote: Some(true),
        backoff: "50ms 100ms 200ms ..500ms".to_owned(),
        ..Config::default()
    };
    Ok(config.validate()?)
}

/// Writes a line for the supervisor. If that is gone, so is this process soon.
fn say(event: &Event) {
    let line = serde_json::to_string(event).expect("an event has a text");
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// Ends this process with the supervisor, however that ends.
fn end_with_the_supervisor() {
    // A stopped process does not see the end of its input.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
}

async fn bind(address: &str) -> Result<TcpListener, Failure> {
    let begun = Instant::now();
    loop {
        match TcpListener::bind(address).await {
            Err(_) if begun.elapsed() < BIND_TIMEOUT => tokio::time::sleep(Duration::from_millis(20)).await,
            bound => return Ok(bound.map_err(|error| format!("{address}: {error}"))?),
        }
    }
}

/// Runs a node until it is killed.
///
/// # Errors
/// If the node can't start, or its storage fails.
pub(crate) async fn run(settings: Settings) -> Result<(), Failure> {
    end_with_the_supervisor();
    let ended = serve(settings).await;
    if let Err(error) = &ended {
        say(&Event::Failed { reason: error.to_string() });
    }
    ended
}

async fn serve(settings: Settings) -> Result<(), Failure> {
    let begun = Instant::now();
    let number = settings.number;
    let identity = Identity::new(CLUSTER, number);
    let (folder, create) = (settings.folder.clone(), settings.create);
    let (node, group) = tokio::task::spawn_blocking(move || {
        let node = match create {
            true => Node::create(&folder, &identity, &options())?,
            false => Node::open(&folder, &identity, &options())?,
        };
        let group = node.group(GROUP, KeyValue)?;
        Ok::<_, drumlin_raft::Error>((node, group))
    })
    .await??;
    let wire = Wire::new(number, say);
    let (log_store, state_store) = stores(&group);
    let network = Network(Arc::clone(&wire));
    let raft: Raft = openraft::Raft::new(number, Arc::new(config()?), network, log_store, state_store).await?;
    let others = bind(&settings.member.raft).await?;
    let clients = bind(&settings.member.http).await?;
    tokio::spawn(network::serve(others, Arc::clone(&wire), raft.clone(), group.clone()));
    let applied = group.state().applied_index().unwrap_or(0);
    let service = Service { node, group, raft: raft.clone(), wire: Arc::clone(&wire) };
    tokio::spawn(async move { axum::serve(clients, service.router()).await });
    say(&Event::Ready { millis: begun.elapsed().as_millis() as u64, applied });
    watch(&raft, &wire).await
}

/// Tells the supervisor about what happens, until the node stops.
async fn watch(raft: &Raft, wire: &Wire) -> Result<(), Failure> {
    let mut metrics = raft.metrics();
    let mut led_term = 0;
    let mut snapshot =
        raft.get_snapshot().await?.and_then(|snapshot| snapshot.meta.last_log_id).map_or(0, |id| id.index);
    loop {
        let now = metrics.borrow_watched().clone();
        now.running_state?;
        // After a restart, openraft begins as what the node was before, until it hears from others.
        if now.state.is_leader() && now.last_quorum_acked.is_some() && now.current_term != led_term {
            led_term = now.current_term;
            say(&Event::Leads { term: led_term });
        }
        let index = now.snapshot.map_or(0, |id| id.index);
        if index > snapshot {
            snapshot = index;
            if index != wire.installed() {
                say(&Event::Built { index });
            }
        }
        metrics.changed().await?;
    }
}
