//! Measurements run in processes of their own: each begins with nothing in memory, can be put under a memory limit, has
//! its own counters, and may die of what it shows without taking the lab along.
//!
//! The lab starts its own program again with `lab worker`, writes a [`Job`] to its stdin as JSON and reads [`Line`]s from
//! its stdout. Files and control groups belong to the lab; a worker that is killed leaves nothing behind.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::experiments::{calls, hazards, persist, prefault, random, scan, stall, sync};
use crate::measure::Sample;

/// What a worker is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    /// The control group to enter first.
    pub(crate) door: Option<PathBuf>,
    /// What leads out again, once everything is measured.
    pub(crate) way_out: Option<PathBuf>,
    pub(crate) task: Task,
}

/// The experiments' own descriptions of their work.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Task {
    Random(random::Task),
    Scan(scan::Task),
    Sync(sync::Task),
    Calls(calls::Task),
    Stall(stall::Task),
    Hazard(hazards::Task),
    Prefault(prefault::Task),
    Persist(persist::Task),
}

/// What a worker says, one line each.
#[derive(Debug, Serialize, Deserialize)]
enum Line {
    Sample(Sample),
    Done(Value),
    Failed { text: String, code: Option<i32> },
}

/// How a worker ended.
#[derive(Debug)]
pub(crate) enum Ending<T> {
    /// With its result.
    Done(T),
    /// With an error of the operating system, which may be an answer.
    Failed(io::Error),
    /// By a signal: its number.
    Killed(i32),
}

/// What became of a job.
#[derive(Debug)]
pub(crate) struct Outcome<T> {
    pub(crate) ending: Ending<T>,
    pub(crate) samples: Vec<Sample>,
}

impl<T> Outcome<T> {
    /// The result, or an error that says how it ended otherwise.
    pub(crate) fn result(self) -> io::Result<T> {
        match self.ending {
            Ending::Done(result) => Ok(result),
            Ending::Failed(error) => Err(error),
            Ending::Killed(signal) => {
                let why = if signal == libc::SIGKILL { ", probably for want of memory" } else { "" };
                Err(io::Error::other(format!("the worker was killed by signal {signal}{why}")))
            }
        }
    }
}

/// The words that make this program a worker.
const WORKER_ARGS: [&str; 2] = ["lab", "worker"];

/// A worker that runs; killed when dropped.
#[derive(Debug)]
struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        // Fails where it has ended already, which is what is wanted.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a job in a process of its own. `interrupted` is asked all the time; once it says so the worker is killed and
/// the error is `Interrupted`.
pub(crate) fn run<T: DeserializeOwned>(job: &Job, interrupted: &dyn Fn() -> bool) -> io::Result<Outcome<T>> {
    let mut worker = Worker(
        Command::new(std::env::current_exe()?)
            .args(WORKER_ARGS)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()?,
    );
    let mut stdin = worker.0.stdin.take().expect("piped");
    let text = serde_json::to_vec(job)?;
    // A worker that ended before it read its job shows in how it ended.
    let _ = stdin.write_all(&text);
    drop(stdin);
    let stdout = BufReader::new(worker.0.stdout.take().expect("piped"));
    let (sender, lines) = channel();
    let reader = std::thread::spawn(move || {
        for line in stdout.lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    let mut samples = Vec::new();
    let mut last = None;
    loop {
        if interrupted() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        match lines.recv_timeout(Duration::from_millis(20)) {
            Ok(line) => match serde_json::from_str(&line)? {
                Line::Sample(sample) => samples.push(sample),
                line => last = Some(line),
            },
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let status = worker.0.wait()?;
    reader.join().expect("the reader does not panic");
    // Ctrl-C in a terminal reaches the worker first.
    if status.signal() == Some(libc::SIGINT) {
        return Err(io::ErrorKind::Interrupted.into());
    }
    let ending = match last {
        Some(Line::Done(value)) => Ending::Done(serde_json::from_value(value)?),
        Some(Line::Failed { text, code }) => Ending::Failed(match code {
            Some(code) => io::Error::from_raw_os_error(code),
            None => io::Error::other(text),
        }),
        _ => match status.signal() {
            Some(signal) => Ending::Killed(signal),
            None => Ending::Failed(ended_without_result(status)),
        },
    };
    Ok(Outcome { ending, samples })
}

fn ended_without_result(status: ExitStatus) -> io::Error {
    io::Error::other(format!("the worker ended without a result ({status})"))
}

/// Where a worker goes when it has measured.
static WAY_OUT: OnceLock<PathBuf> = OnceLock::new();

/// Leaves the control group: threads that wait for memory, which under a tight limit can take a minute, come to an end.
pub(crate) fn leave_cage() {
    if let Some(way_out) = WAY_OUT.get() {
        // Staying inside only takes longer.
        let _ = std::fs::write(way_out, std::process::id().to_string());
    }
}

/// The body of a worker: reads a job from stdin, does it, prints the result. For the program's hidden command.
///
/// # Errors
/// Only where stdin or stdout fail; what the job itself meets goes to whoever started the worker.
pub fn worker_main() -> io::Result<()> {
    // Whoever started this worker removes what it used, and must not find it still at work.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    let job: Job = serde_json::from_str(&text)?;
    if let Some(way_out) = job.way_out {
        WAY_OUT.get_or_init(|| way_out);
    }
    let entered = match &job.door {
        Some(door) => std::fs::write(door, std::process::id().to_string()),
        None => Ok(()),
    };
    let result = entered.and_then(|()| perform(job.task));
    say(&match result {
        Ok(value) => Line::Done(value),
        Err(error) => Line::Failed { text: error.to_string(), code: error.raw_os_error() },
    })
}

fn perform(task: Task) -> io::Result<Value> {
    let observe = |sample: &Sample| {
        // A lab that is gone takes the worker with it.
        let _ = say(&Line::Sample(*sample));
    };
    fn value<T: Serialize>(result: T) -> io::Result<Value> {
        Ok(serde_json::to_value(result)?)
    }
    match task {
        Task::Random(task) => value(task.perform(observe)?),
        Task::Scan(task) => value(task.perform(observe)?),
        Task::Sync(task) => value(task.perform()?),
        Task::Calls(task) => value(task.perform()?),
        Task::Stall(task) => value(task.perform()?),
        Task::Hazard(task) => value(task.perform()?),
        Task::Prefault(task) => value(task.perform()?),
        Task::Persist(task) => value(task.perform()?),
    }
}

fn say(line: &Line) -> io::Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    let mut stdout = io::stdout().lock();
    stdout.write_all(&text)?;
    stdout.flush()
}

/// Waits until `is_done`, for at most `limit`; whether it came.
pub(crate) fn wait_until(limit: Duration, mut is_done: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    while !is_done() {
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}
