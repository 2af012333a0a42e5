//! Loads the tree in a child process: runs `drumlin index` and reads its acknowledgements from a pipe.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

use super::report::{Finish, Killed};
use super::survey::Survey;
use crate::commands::index::Summary;
use crate::failure::{Exit, Failure, Result};
use crate::terminal::{Output, Progress};
use crate::text::unescape;
use crate::{interrupt, process};

/// The paths whose commits the child acknowledged, with the sizes of the files in bytes.
pub(super) type Acknowledged = HashMap<Vec<u8>, u64>;

/// A running child.
pub(super) struct Loading {
    child: Child,
    lines: BufReader<ChildStdout>,
    start: Instant,
}

/// A message from a child.
enum Line {
    Acknowledged { path: Vec<u8>, bytes: u64 },
    Summary(Summary),
}

impl Loading {
    pub(super) fn start(root: &Path, database: &Path, budget_bytes: u64) -> Result<Loading> {
        let failed = |error: std::io::Error| Failure::other(format!("starting the loading process: {error}"));
        let program = std::env::current_exe().map_err(failed)?;
        let mut child = Command::new(program)
            .args(["--json", "--quiet", "index", "--acknowledge", "-", "--memory", &budget_bytes.to_string()])
            .args([database, root])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            // Ctrl-C goes only to this process, which then ends the child.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let stdout = child.stdout.take().expect("stdout is piped");
        Ok(Loading { child, lines: BufReader::new(stdout), start: Instant::now() })
    }

    /// Kills the child once half of the tree is acknowledged. Acknowledgements that are in the pipe by then count too.
    pub(super) fn kill_midway(mut self, survey: &Survey, output: Output) -> Result<(Killed, Acknowledged)> {
        let progress = Progress::bytes(output, "loading", survey.bytes);
        let mut acknowledged = Acknowledged::new();
        let mut acknowledged_bytes = 0;
        let mut killed = None;
        while let Some(line) = self.next_line()? {
            let Line::Acknowledged { path, bytes } = line else { break };
            acknowledged.insert(path, bytes);
            acknowledged_bytes += bytes;
            progress.add(bytes);
            interrupt::check()?;
            if killed.is_none() && is_midway(survey, acknowledged.len() as u64, acknowledged_bytes) {
                let resident_bytes_max = process::resident_bytes_max_of(&self.child.id().to_string());
                self.child.kill().map_err(|error| Failure::other(format!("killing the loading process: {error}")))?;
                killed = Some((self.start.elapsed(), resident_bytes_max));
            }
        }
        progress.finish();
        let status = self.wait()?;
        interrupt::check()?;
        let Some((elapsed, resident_bytes_max)) = killed else {
            return Err(stopped(status));
        };
        let killed = Killed {
            acknowledged_files: acknowledged.len() as u64,
            acknowledged_bytes,
            seconds: elapsed.as_secs_f64(),
            was_killed: status.code().is_none(),
            was_midway: status.code().is_none() && (acknowledged.len() as u64) < survey.files,
            resident_bytes_max,
        };
        Ok((killed, acknowledged))
    }

    /// Lets the child run to completion.
    pub(super) fn finish(mut self, survey: &Survey, files_before: u64, output: Output) -> Result<Finish> {
        let progress = Progress::items(output, "finishing", survey.files);
        progress.add(files_before);
        let mut summary = None;
        while let Some(line) = self.next_line()? {
            match line {
                Line::Acknowledged { .. } => {
                    progress.add(1);
                    interrupt::check()?;
                }
                Line::Summary(found) => summary = Some(found),
            }
        }
        progress.finish();
        let status = self.wait()?;
        interrupt::check()?;
        let summary = summary.ok_or_else(|| stopped(status))?;
        Ok(Finish {
            files_stored: summary.files_stored,
            files_unchanged: summary.files_unchanged,
            files_unreadable: summary.files_unreadable,
            paths_too_long: summary.paths_too_long,
            left_out: summary.left_out,
            bytes_stored: summary.bytes_stored,
            seconds: self.start.elapsed().as_secs_f64(),
            resident_bytes_max: summary.resident_bytes_max,
        })
    }

    /// Returns the next whole line, or `None` at the end of the pipe.
    fn next_line(&mut self) -> Result<Option<Line>> {
        let mut line = Vec::new();
        self.lines
            .read_until(b'\n', &mut line)
            .map_err(|error| Failure::other(format!("reading from the loading process: {error}")))?;
        let Some(line) = line.strip_suffix(b"\n") else { return Ok(None) };
        // Neither an escaped path nor JSON contains a tab.
        let parsed = match memchr::memrchr(b'\t', line) {
            Some(tab) => unescape(&line[..tab]).ok().and_then(|path| {
                let bytes = std::str::from_utf8(&line[tab + 1..]).ok()?.parse().ok()?;
                Some(Line::Acknowledged { path, bytes })
            }),
            None => serde_json::from_slice(line).ok().map(Line::Summary),
        };
        let line = String::from_utf8_lossy(line);
        parsed.map(Some).ok_or_else(|| Failure::other(format!("the loading process wrote {line:?}")))
    }

    fn wait(&mut self) -> Result<std::process::ExitStatus> {
        self.child.wait().map_err(|error| Failure::other(format!("waiting for the loading process: {error}")))
    }
}

/// Returns `true` once the child has stored half of the tree: the average of its share of the files and its share of
/// the bytes. Many small files thus count as much as a few large ones.
fn is_midway(survey: &Survey, files: u64, bytes: u64) -> bool {
    let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
    share(files, survey.files) + share(bytes, survey.bytes) >= 1.0
}

/// Kills the child, so that a failed tour leaves no process behind.
impl Drop for Loading {
    fn drop(&mut self) {
        // Both fail only if the child has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the failure of a child that ended early. The child has already printed a message to stderr.
fn stopped(status: std::process::ExitStatus) -> Failure {
    let exit = [Exit::Corrupted, Exit::InUse, Exit::DiskFull, Exit::BadInput, Exit::NotOpened, Exit::NoCommits]
        .into_iter()
        .find(|&exit| status.code() == Some(exit as i32));
    Failure::new(exit.unwrap_or(Exit::Other), format!("the loading process ended early ({status})"))
}
