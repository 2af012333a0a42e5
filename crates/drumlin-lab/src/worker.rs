//! Runs each measurement in its own process. The process starts with no data in memory, can have a memory limit, and
//! has its own counters. The effect that it demonstrates may kill it without ending the lab.
//!
//! The lab starts a second process of its own program with `lab worker`, writes a `Job` to its stdin as JSON, and reads
//! [`Line`]s from its stdout. A worker finds the job's [`Measurement`] by name in a list. Files and control groups
//! belong to the lab, so a worker that is killed leaves nothing behind.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cgroup::{self, Cgroup};
use crate::measure::Sample;

/// A measurement: settings, which the lab sends to a worker as JSON, and the code that the worker runs with them.
pub(crate) trait Measurement: Serialize + DeserializeOwned {
    /// The name by which a worker finds the measurement.
    const NAME: &'static str;
    type Result: Serialize + DeserializeOwned;

    /// Runs the measurement and passes samples to `observe`.
    fn perform(self, observe: impl FnMut(&Sample)) -> io::Result<Self::Result>;
}

/// The name of a measurement, and a function that runs it with JSON as its input and output.
pub(crate) type Registered = (&'static str, fn(Value) -> io::Result<Value>);

/// Returns the entry of a measurement for the workers' list.
pub(crate) const fn registered<M: Measurement>() -> Registered {
    (M::NAME, |settings| {
        let observe = |sample: &Sample| {
            // Ignore an error: it means that the lab has ended, and then the kernel kills this worker too.
            let _ = say(&Line::Sample(*sample));
        };
        let measurement: M = serde_json::from_value(settings)?;
        Ok(serde_json::to_value(measurement.perform(observe)?)?)
    })
}

/// The job of one worker. Inside a worker, `M` is JSON, because the worker does not know the measurement's type.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Job<M> {
    /// The `cgroup.procs` file of the control group to join first.
    procs_file: Option<PathBuf>,
    /// The `cgroup.procs` file of the group to return to after the measurement.
    way_out: Option<PathBuf>,
    name: String,
    measurement: M,
}

/// A message from a worker, written on one line.
#[derive(Debug, Serialize, Deserialize)]
enum Line {
    Sample(Sample),
    Done(Value),
    Failed { text: String, code: Option<i32> },
}

/// The way in which a worker ended.
#[derive(Debug)]
pub(crate) enum Ending<T> {
    /// The worker returned its result.
    Done(T),
    /// The worker failed with an error of the operating system. For some measurements, this error is the result.
    Failed(io::Error),
    /// The worker was killed by a signal with this number.
    Killed(i32),
}

/// The outcome of a job.
#[derive(Debug)]
pub(crate) struct Outcome<T> {
    pub(crate) ending: Ending<T>,
    pub(crate) samples: Vec<Sample>,
}

impl<T> Outcome<T> {
    /// Converts the result of the outcome.
    pub(crate) fn map<U>(self, convert: impl FnOnce(T) -> U) -> Outcome<U> {
        let ending = match self.ending {
            Ending::Done(result) => Ending::Done(convert(result)),
            Ending::Failed(error) => Ending::Failed(error),
            Ending::Killed(signal) => Ending::Killed(signal),
        };
        Outcome { ending, samples: self.samples }
    }

    /// Returns the result, or an error that says how the worker ended.
    pub(crate) fn result(self) -> io::Result<T> {
        match self.ending {
            Ending::Done(result) => Ok(result),
            Ending::Failed(error) => Err(error),
            Ending::Killed(signal) => {
                let why = if signal == libc::SIGKILL { ", probably for lack of memory" } else { "" };
                Err(io::Error::other(format!("the worker was killed by signal {signal}{why}")))
            }
        }
    }
}

/// The arguments that turn this program into a worker.
const WORKER_ARGS: [&str; 2] = ["lab", "worker"];

/// A running worker. Dropping it kills the process.
#[derive(Debug)]
struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        // This fails if the process has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a worker and sends it its job.
fn start<M: Measurement>(measurement: M, cgroup: Option<&Cgroup>) -> io::Result<Worker> {
    let (procs_file, way_out) = (cgroup.map(Cgroup::procs_file), cgroup.map(Cgroup::outside));
    let job = Job { procs_file, way_out, name: M::NAME.to_owned(), measurement };
    let mut worker = Worker(
        Command::new(std::env::current_exe()?)
            .args(WORKER_ARGS)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()?,
    );
    let mut stdin = worker.0.stdin.take().expect("piped");
    let text = serde_json::to_vec(&job)?;
    // This fails if the worker ended before reading its job. Its exit status then says why.
    let _ = stdin.write_all(&text);
    Ok(worker)
}

/// Runs a measurement in its own process, inside the control group if one is given. Polls `interrupted`: once it
/// returns `true`, kills the worker and fails with `Interrupted`.
pub(crate) fn run<M: Measurement>(
    measurement: M,
    cgroup: Option<&Cgroup>,
    interrupted: &dyn Fn() -> bool,
) -> io::Result<Outcome<M::Result>> {
    let mut worker = start(measurement, cgroup)?;
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
    // In a terminal, Ctrl-C reaches the worker before the lab.
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

/// A worker that runs until this value is dropped.
#[derive(Debug)]
pub(crate) struct BackgroundWorker(Worker);

impl BackgroundWorker {
    /// Returns `true` while the worker is running.
    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.0.0.try_wait(), Ok(None))
    }
}

/// Starts a measurement that runs until it is killed, and waits for its first sample.
pub(crate) fn start_background<M: Measurement>(
    measurement: M,
    interrupted: &dyn Fn() -> bool,
) -> io::Result<BackgroundWorker> {
    let mut worker = start(measurement, None)?;
    let stdout = BufReader::new(worker.0.stdout.take().expect("piped"));
    let (sender, line) = channel();
    // This thread ends after the first line, or when the worker ends, which the code below kills.
    std::thread::spawn(move || stdout.lines().next().map(|line| sender.send(line)));
    loop {
        if interrupted() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        match line.recv_timeout(Duration::from_millis(20)) {
            Ok(line) => match serde_json::from_str(&line?)? {
                Line::Sample(_) => return Ok(BackgroundWorker(worker)),
                Line::Failed { text, .. } => return Err(io::Error::other(text)),
                Line::Done(_) => return Err(io::Error::other("the worker ended on its own")),
            },
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(ended_without_result(worker.0.wait()?)),
        }
    }
}

fn ended_without_result(status: ExitStatus) -> io::Error {
    io::Error::other(format!("the worker ended without a result ({status})"))
}

/// Runs this process as a worker: reads a job from stdin, runs its measurement from the list, and prints the result.
pub(crate) fn serve(measurements: &[Registered]) -> io::Result<()> {
    // If the process that started this worker dies, let the kernel kill the worker, because its files are then removed.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    let job: Job<Value> = serde_json::from_str(&text)?;
    if let Some(way_out) = job.way_out {
        cgroup::set_way_out(way_out);
    }
    let entered = match &job.procs_file {
        Some(procs_file) => std::fs::write(procs_file, std::process::id().to_string()),
        None => Ok(()),
    };
    let result = entered.and_then(|()| {
        let known = measurements.iter().find(|(name, _)| *name == job.name);
        let (_, perform) = known.ok_or_else(|| io::Error::other(format!("there is no measurement {}", job.name)))?;
        perform(job.measurement)
    });
    say(&match result {
        Ok(value) => Line::Done(value),
        Err(error) => Line::Failed { text: error.to_string(), code: error.raw_os_error() },
    })
}

fn say(line: &Line) -> io::Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    let mut stdout = io::stdout().lock();
    stdout.write_all(&text)?;
    stdout.flush()
}

/// Waits until `is_done` returns `true`, for at most `limit`. Returns `false` if `limit` has passed.
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
