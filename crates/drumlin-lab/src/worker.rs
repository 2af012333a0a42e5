//! Measurements run in processes of their own: each begins with nothing in memory, can be put under a memory limit, has
//! its own counters, and may die of what it shows without taking the lab along.
//!
//! The lab starts its own program again with `lab worker`, writes a `Job` to its stdin as JSON and reads [`Line`]s from
//! its stdout. A worker finds the job's [`Measurement`] by its name, in a list that it is given. Files and control
//! groups belong to the lab; a worker that is killed leaves nothing behind.

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

/// A measurement: the settings that the lab sends to a worker as JSON, and the work that the worker does by them.
pub(crate) trait Measurement: Serialize + DeserializeOwned {
    /// The name by which a worker finds it.
    const NAME: &'static str;
    type Result: Serialize + DeserializeOwned;

    /// Measures; `observe` takes samples meanwhile.
    fn perform(self, observe: impl FnMut(&Sample)) -> io::Result<Self::Result>;
}

/// A measurement's name, and its function from JSON to JSON.
pub(crate) type Registered = (&'static str, fn(Value) -> io::Result<Value>);

/// The entry of a measurement in the list that workers choose from.
pub(crate) const fn registered<M: Measurement>() -> Registered {
    (M::NAME, |settings| {
        let observe = |sample: &Sample| {
            // A lab that is gone takes the worker with it.
            let _ = say(&Line::Sample(*sample));
        };
        let measurement: M = serde_json::from_value(settings)?;
        Ok(serde_json::to_value(measurement.perform(observe)?)?)
    })
}

/// The work of one worker. Inside a worker, where the kind of measurement is not known, `M` is JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Job<M> {
    /// The control group to enter first.
    procs_file: Option<PathBuf>,
    /// The file that leads out again, once everything is measured.
    way_out: Option<PathBuf>,
    name: String,
    measurement: M,
}

/// A message of a worker, one line each.
#[derive(Debug, Serialize, Deserialize)]
enum Line {
    Sample(Sample),
    Done(Value),
    Failed { text: String, code: Option<i32> },
}

/// The end of a worker.
#[derive(Debug)]
pub(crate) enum Ending<T> {
    /// With its result.
    Done(T),
    /// With an error of the operating system, which may be an answer.
    Failed(io::Error),
    /// By a signal: its number.
    Killed(i32),
}

/// The outcome of a job.
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

/// Makes a measurement in a process of its own, inside the control group if one is given. `interrupted` is asked all
/// the time; once it says so the worker is killed and the error is `Interrupted`.
pub(crate) fn run<M: Measurement>(
    measurement: M,
    cgroup: Option<&Cgroup>,
    interrupted: &dyn Fn() -> bool,
) -> io::Result<Outcome<M::Result>> {
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

/// The body of a worker: reads a job from stdin, makes its measurement, which is one of those listed, and prints the
/// result.
pub(crate) fn serve(measurements: &[Registered]) -> io::Result<()> {
    // Whoever started this worker removes what it used, and must not find it still at work.
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
