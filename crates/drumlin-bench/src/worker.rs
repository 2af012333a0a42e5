//! A process for each engine, workload and turn. It begins with nothing in memory, has its own counters and its own
//! memory limit, and may be killed without ending the run.
//!
//! The run starts its own program again with the hidden command `worker`, writes a `Task` to its stdin, and reads the
//! figures from a file, so that engines may print anything.

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

/// The command that makes the program a worker.
pub const COMMAND: &str = "worker";
/// No turn takes this long unless something hangs.
const LIMIT: Duration = Duration::from_secs(900);

/// The part of a turn that a process does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Stage {
    /// Creates the rows.
    Prepare,
    /// Writes, then kills itself.
    Crash,
    Measure,
    /// Makes the commits whose flushes are counted at the device.
    Audit,
}

/// The work of one process.
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
    /// The group to enter.
    pub(crate) procs_file: Option<PathBuf>,
    /// The file for the answer.
    pub(crate) answer: PathBuf,
}

/// The end of a process, with its answer.
#[derive(Debug)]
pub(crate) struct Ending {
    /// Its answer, or the reason why there is none.
    pub(crate) answer: Result<Value, String>,
    /// The signal that killed it, if any.
    pub(crate) signal: Option<i32>,
    /// The peak memory of the group.
    pub(crate) group_bytes_max: Option<u64>,
}

/// Runs a task in a process of its own. With `limit_bytes`, creates a group with that limit for it.
pub(crate) fn run(mut task: Task, limit_bytes: Option<u64>) -> std::io::Result<Ending> {
    let group = limit_bytes.map(Cgroup::create).transpose()?;
    task.procs_file = group.as_ref().map(Cgroup::procs_file);
    let _ = std::fs::remove_file(&task.answer);
    let program = std::env::current_exe()?;
    let mut child = Command::new(program)
        .arg(COMMAND)
        // Let mimalloc return memory as soon as it is freed, so that the group contains what an engine uses.
        .env("MIMALLOC_PURGE_DELAY", "0")
        // Keep mimalloc from using huge pages. The first bytes of a thread would take 2 MiB, and freed parts of a huge
        // page count until the system splits it: groups of 96 MiB were full while processes used 64.
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

/// Runs as a worker.
///
/// # Errors
/// If the task can't be read or the answer not written. Other failures are part of the answer.
pub fn serve() -> Result<()> {
    // Die with the parent process, which removes this one's files.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    // Make sleeps end in time for fixed rates; threads inherit this.
    let _ = std::fs::write("/proc/self/timerslack_ns", "1000");
    // Undo mimalloc's refusal of huge pages for the whole process: engines may ask for some of their own.
    let _ = rustix::thread::disable_transparent_huge_pages(false);
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let task: Task = serde_json::from_str(&text)?;
    let answer = perform(&task).map_err(|error| error.to_string());
    // Rename the finished file, so that the answer is there as a whole or not at all.
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
