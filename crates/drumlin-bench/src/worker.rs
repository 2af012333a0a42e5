//! A separate process for each turn of an engine with a workload. It starts with no data in memory, has its own
//! counters and its own memory limit, and can be killed without ending the run.
//!
//! The run starts its own executable with the hidden command `worker`, writes a `Task` to the worker's stdin, and reads
//! the figures from a file, so that engines are free to print to stdout.

use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use drumlin_lab::Cgroup;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::engine::Result;
use crate::workloads::{self, Turn};
use crate::{audit, engines, plan};

/// The command that makes the executable run as a worker.
pub const COMMAND: &str = "worker";
/// A worker that takes longer than this is considered hung and is killed.
const LIMIT: Duration = Duration::from_secs(900);

/// The stage of a turn that a process performs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Stage {
    /// Creates the rows.
    Prepare,
    /// Updates rows, then kills its own process.
    Crash,
    Measure,
    /// Makes the commits whose flushes are counted on the device.
    Audit,
}

/// The task of one worker process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) stage: Stage,
    pub(crate) engine: String,
    pub(crate) workload: String,
    pub(crate) scale: f64,
    pub(crate) folder: PathBuf,
    pub(crate) turn: u64,
    pub(crate) seconds: f64,
    pub(crate) quick: bool,
    /// The file to which the process writes its id to enter its memory group.
    pub(crate) procs_file: Option<PathBuf>,
    /// The file to which the process writes its answer.
    pub(crate) answer: PathBuf,
}

/// The outcome of a worker process.
#[derive(Debug)]
pub(crate) struct Ending {
    /// The answer of the process, or the reason why there is no answer.
    pub(crate) answer: Result<Value, String>,
    /// The signal that killed the process, if a signal did.
    pub(crate) signal: Option<i32>,
    /// The peak memory of the group.
    pub(crate) group_bytes_max: Option<u64>,
}

/// Runs a task in its own process. If `limit_bytes` is given, creates a memory group with that limit for the process.
pub(crate) fn run(mut task: Task, limit_bytes: Option<u64>) -> std::io::Result<Ending> {
    let group = limit_bytes.map(Cgroup::create).transpose()?;
    task.procs_file = group.as_ref().map(Cgroup::procs_file);
    let _ = std::fs::remove_file(&task.answer);
    let program = std::env::current_exe()?;
    let mut child = Command::new(program)
        .arg(COMMAND)
        // Make mimalloc return memory as soon as it is freed, so that the group is charged only for memory in use.
        .env("MIMALLOC_PURGE_DELAY", "0")
        // Keep mimalloc from using huge pages. With them, the first allocation of a thread would occupy 2 MiB, and
        // freed parts of a huge page would count until the kernel splits it: groups of 96 MiB were full while their
        // processes used 64 MiB.
        .env("MIMALLOC_ALLOW_THP", "0")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .spawn()?;
    child.stdin.take().expect("piped").write_all(&serde_json::to_vec(&task)?)?;
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if begun.elapsed() > LIMIT {
            child.kill()?;
            child.wait()?;
            break None;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let group_bytes_max = group.as_ref().and_then(Cgroup::used_bytes_max);
    let Some(status) = status else {
        let answer = Err(format!("had not ended after {} s", LIMIT.as_secs()));
        return Ok(Ending { answer, signal: None, group_bytes_max });
    };
    let answer = match std::fs::read(&task.answer) {
        Ok(text) => serde_json::from_slice(&text)?,
        Err(_) => Err(match status.signal() {
            Some(9) => "killed, for lack of memory".to_owned(),
            Some(signal) => format!("ended by signal {signal}"),
            None => format!("ended without an answer ({status})"),
        }),
    };
    Ok(Ending { answer, signal: status.signal(), group_bytes_max })
}

/// Runs this process as a worker.
///
/// # Errors
/// If the task can't be read or the answer can't be written. All other failures become part of the answer.
pub fn serve() -> Result<()> {
    // Make the kernel kill this process if its parent dies, because the parent removes this process's files.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    // Make sleeps end on time, for the fixed rates. Threads inherit this setting.
    let _ = std::fs::write("/proc/self/timerslack_ns", "1000");
    // mimalloc has disabled huge pages for the whole process. Re-enable them, because engines may request huge pages
    // themselves.
    let _ = rustix::thread::disable_transparent_huge_pages(false);
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let task: Task = serde_json::from_str(&text)?;
    let answer = perform(&task).map_err(|error| error.to_string());
    // Write to a temporary name and rename the finished file, so that the answer is either complete or absent.
    let unfinished = task.answer.with_extension("part");
    std::fs::write(&unfinished, serde_json::to_vec(&answer)?)?;
    Ok(std::fs::rename(unfinished, &task.answer)?)
}

fn perform(task: &Task) -> Result<Value> {
    let peer = engines::named(&task.engine).ok_or("no such engine")?;
    let workload = plan::WORKLOADS.iter().find(|workload| workload.name == task.workload).ok_or("no such workload")?;
    let workload = workload.scaled(task.scale);
    let folder: &Path = &task.folder;
    if task.stage == Stage::Measure {
        crate::measure::drop_caches(folder)?;
    }
    if let Some(procs_file) = &task.procs_file {
        std::fs::write(procs_file, std::process::id().to_string())?;
    }
    let turn =
        Turn { peer: &peer, workload: &workload, folder, turn: task.turn, seconds: task.seconds, quick: task.quick };
    match task.stage {
        Stage::Prepare => Ok(serde_json::to_value(workloads::prepare(&peer, folder, &workload.data)?)?),
        Stage::Crash => Ok(serde_json::to_value(workloads::crash(&turn)?)?),
        Stage::Measure => Ok(serde_json::to_value(workloads::perform(&turn)?)?),
        Stage::Audit => Ok(serde_json::to_value(audit::perform(&peer, folder)?)?),
    }
}
