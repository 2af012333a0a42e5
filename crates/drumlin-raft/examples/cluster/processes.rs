//! The processes of the nodes. Each is a run of this program, has a folder of its own, and ends with this process at
//! the latest.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::oneshot;

use crate::timeline::Timeline;
use crate::types::{Event, Failure, Member, NODE, Settings};

/// The time in which a process that was killed must be gone.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// The arguments with which this program starts itself as a node. In a test, the program is the test harness, so the
/// arguments select the test that is a node.
const NODE_ARGUMENTS: &[&str] = if cfg!(test) { &["--exact", "tests::node_process", "--nocapture"] } else { &[] };

/// A node that was started at least once.
struct Process {
    settings: Settings,
    child: Option<Child>,
    /// The node ends when this is closed.
    _input: Option<ChildStdin>,
}

/// The processes of all nodes, running or not. Dropping this kills them.
pub(crate) struct Processes {
    folder: PathBuf,
    timeline: Timeline,
    nodes: BTreeMap<u64, Process>,
}

fn free_address() -> std::io::Result<String> {
    // The node binds it a moment later, and again after each kill. It tries for some seconds if a connection has it.
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}

impl Processes {
    pub(crate) fn new(folder: &Path, timeline: &Timeline) -> Processes {
        Processes { folder: folder.to_owned(), timeline: timeline.clone(), nodes: BTreeMap::new() }
    }

    /// Creates a node with a new number, and returns its addresses once it serves.
    pub(crate) async fn create(&mut self, number: u64) -> Result<Member, Failure> {
        assert!(!self.nodes.contains_key(&number), "node {number} was created before");
        let member = Member { raft: free_address()?, http: free_address()? };
        let folder = self.folder.join(format!("node{number}"));
        let settings = Settings { number, folder, create: true, member: member.clone() };
        self.nodes.insert(number, Process { settings, child: None, _input: None });
        self.start(number).await?;
        Ok(member)
    }

    /// Starts a node that does not run, and waits until it serves.
    ///
    /// # Errors
    /// If it does not start, for the reason that it tells.
    pub(crate) async fn start(&mut self, number: u64) -> Result<(), Failure> {
        let errors = File::options().append(true).create(true).open(self.folder.join(format!("node{number}.log")))?;
        let process = self.nodes.get_mut(&number).ok_or("there is no such node")?;
        let mut child = Command::new(std::env::current_exe()?)
            .args(NODE_ARGUMENTS)
            .env(NODE, serde_json::to_string(&process.settings)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            .kill_on_drop(true)
            .spawn()?;
        process.settings.create = false;
        process._input = child.stdin.take();
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        process.child = Some(child);
        let (started, starting) = oneshot::channel();
        let timeline = self.timeline.clone();
        tokio::spawn(async move {
            let mut started = Some(started);
            while let Ok(Some(line)) = lines.next_line().await {
                let Ok(event) = serde_json::from_str::<Event>(&line) else { continue };
                timeline.event(number, &event);
                if let Some(started) = started.take() {
                    // If this fails, the supervisor has given up.
                    let _ = started.send(event);
                }
            }
        });
        match starting.await {
            Ok(Event::Failed { reason }) => Err(reason.into()),
            Ok(_) => Ok(()),
            Err(_) => {
                Err(format!("node {number} ended; see {}", self.folder.join(format!("node{number}.log")).display())
                    .into())
            }
        }
    }

    fn signal(&self, number: u64, signal: Signal) -> Result<(), Failure> {
        let child = self.nodes.get(&number).and_then(|process| process.child.as_ref());
        // A child has its id until it was waited for, so the id is no other process's.
        let id = child.and_then(Child::id).ok_or("the node does not run")?;
        Ok(rustix::process::kill_process(Pid::from_raw(id as i32).ok_or("no process has the id 0")?, signal)?)
    }

    /// Kills a node with SIGKILL.
    pub(crate) async fn kill(&mut self, number: u64) -> Result<(), Failure> {
        let process = self.nodes.get_mut(&number).ok_or("there is no such node")?;
        if let Some(mut child) = process.child.take() {
            child.kill().await?;
        }
        Ok(())
    }

    /// Stops a node with SIGSTOP.
    pub(crate) fn freeze(&self, number: u64) -> Result<(), Failure> {
        self.signal(number, Signal::STOP)
    }

    /// Lets a node that was stopped continue.
    pub(crate) fn thaw(&self, number: u64) -> Result<(), Failure> {
        self.signal(number, Signal::CONT)
    }

    /// Removes the folder of a node that does not run.
    pub(crate) fn lose_folder(&self, number: u64) -> Result<(), Failure> {
        let process = self.nodes.get(&number).ok_or("there is no such node")?;
        assert!(process.child.is_none(), "node {number} runs");
        Ok(std::fs::remove_dir_all(&process.settings.folder)?)
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        // Kill all of them before waiting for any, so that they end at the same time. Ignore errors: they mean that a
        // process has already ended.
        self.nodes.values_mut().filter_map(|process| process.child.as_mut()).for_each(|child| drop(child.start_kill()));
        let begun = Instant::now();
        for child in self.nodes.values_mut().filter_map(|process| process.child.as_mut()) {
            while matches!(child.try_wait(), Ok(None)) && begun.elapsed() < KILL_TIMEOUT {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}
