//! Errors as shown to the user: what failed, where, and what to do; and the exit codes, which are a stable interface.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use drumlin::Error;
use serde::Serialize;

use crate::call::Call;
use crate::escape::{harmless, shell_word};
use crate::process;

/// The exit codes at the end of `drumlin --help`. `docs/cli.md` repeats them.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
    0  done
    1  another error
    2  the command line makes no sense
    3  not found: key, keyspace or database
    4  damage found; a backup or archive that is missing, damaged or incomplete
    5  in use by another process
    6  the disk is full
    7  bad input data: malformed rows, input files that can't be read
    8  not a database or a backup's folder, or a database of another format
    9  nothing can be written: the log failed, or files can only be read
  101  a bug in drumlin itself
  130  interrupted";

/// The exit codes of the process. With `--json`, their names are used as the kinds of errors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub(crate) enum Exit {
    /// The reader of our output is gone. That is not an error, so nothing is printed.
    ReaderGone = 0,
    Other = 1,
    Usage = 2,
    NotFound = 3,
    Corrupted = 4,
    InUse = 5,
    DiskFull = 6,
    BadInput = 7,
    NotOpened = 8,
    NoCommits = 9,
    Interrupted = 130,
}

/// The exit code that Rust uses for a panic.
const PANICKED: i32 = 101;

/// The reason why a command fails. In the hints, `DATABASE` stands for the path that the user typed. A hint is omitted
/// if it names an option that the command lacks.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    message: String,
    hints: Vec<String>,
}

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Failure {
        Failure { exit, message: message.into(), hints: Vec::new() }
    }

    pub(crate) fn other(message: impl Into<String>) -> Failure {
        Failure::new(Exit::Other, message)
    }

    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure::new(Exit::Usage, message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Failure {
        Failure::new(Exit::NotFound, message)
    }

    pub(crate) fn no_database(path: &Path) -> Failure {
        Failure::not_found(format!("there is no database at {}", path.display()))
            .hint("`drumlin put`, `load` and `index` create one")
    }

    pub(crate) fn bad_input(message: impl Into<String>) -> Failure {
        Failure::new(Exit::BadInput, message)
    }

    /// Creates a failure without a message, for use when the message was already printed.
    pub(crate) fn silent(exit: Exit) -> Failure {
        Failure::new(exit, "")
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.hints.push(hint.into());
        self
    }

    /// Adds the hints for a full disk.
    fn space_helps(self) -> Failure {
        self.hint("free space there, or remove rows (`drumlin rm DATABASE`); what was acknowledged is safe")
            .hint("`drumlin compact DATABASE` gives back the space of removed rows, and of a load that failed")
    }

    /// Replaces the hints for a full disk, which are those for the disk of a database, by one for another disk.
    pub(crate) fn hint_if_full(mut self, hint: impl Into<String>) -> Failure {
        if self.exit == Exit::DiskFull {
            self.hints = vec![hint.into()];
        }
        self
    }

    /// Returns the failure of a file operation by the command itself. `action` is a word such as "reading" or
    /// "creating".
    pub(crate) fn file(action: &str, path: &Path, source: &io::Error) -> Failure {
        let message = format!("{action} {}: {}", path.display(), plain(source));
        let exit = match source.kind() {
            io::ErrorKind::StorageFull => Exit::DiskFull,
            io::ErrorKind::ReadOnlyFilesystem => Exit::NoCommits,
            _ => Exit::Other,
        };
        Failure::new(exit, message)
    }

    /// Creates the failure for an input file that can't be read.
    pub(crate) fn input(path: &Path, source: &io::Error) -> Failure {
        let name = if path.as_os_str() == "-" { "stdin".to_owned() } else { path.display().to_string() };
        Failure::bad_input(format!("reading {name}: {}", plain(source)))
    }

    /// Converts the error of a write to stdout. A reader that stops early (`drumlin scan … | head`) is not an error.
    pub(crate) fn stdout(source: &io::Error) -> Failure {
        match source.kind() {
            io::ErrorKind::BrokenPipe => Failure::silent(Exit::ReaderGone),
            io::ErrorKind::StorageFull => Failure::new(Exit::DiskFull, "writing the output: the disk is full"),
            _ => Failure::other(format!("writing the output: {}", plain(source))),
        }
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn exit(&self) -> Exit {
        self.exit
    }

    /// Prints the message and its hints, and returns the exit code.
    pub(crate) fn report(&self, call: &Call) -> ExitCode {
        let code = self.exit as u8;
        if self.message.is_empty() {
            return ExitCode::from(code);
        }
        let hints = self.hints_for(call);
        if call.json() {
            let report = Report { error: &self.message, kind: self.exit, exit_code: code, hints };
            anstream::eprintln!("{}", serde_json::to_string(&report).expect("text and numbers"));
        } else {
            let error = Style::new().bold().fg_color(Some(AnsiColor::Red.into()));
            let dim = Style::new().dimmed();
            anstream::eprintln!("{error}error:{error:#} {}", harmless(&self.message));
            for hint in hints {
                anstream::eprintln!("{dim} hint:{dim:#} {}", harmless(&hint));
            }
        }
        ExitCode::from(code)
    }

    /// Returns the hints that apply to the command, with the database's path filled in.
    fn hints_for(&self, call: &Call) -> Vec<String> {
        let path = call.database().map_or_else(|| "DATABASE".to_owned(), shell_word);
        let fitting = self.hints.iter().filter(|hint| call.has_options_of(hint));
        fitting.map(|hint| hint.replace("DATABASE", &path)).collect()
    }
}

/// A failure in JSON form.
#[derive(Serialize)]
struct Report<'a> {
    error: &'a str,
    kind: Exit,
    exit_code: u8,
    hints: Vec<String>,
}

/// Makes a panic abort the whole process: a panic is a bug, and other threads might wait forever for the panicking
/// thread. A database survives the end of its process at any time.
pub(crate) fn end_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        anstream::eprintln!(
            "this is a bug in drumlin; what was acknowledged is safe. Please report it with the lines above"
        );
        std::process::exit(PANICKED);
    }));
}

/// Returns the operating system's message without the suffix "(os error 2)" that Rust adds.
pub(crate) fn plain(source: &io::Error) -> String {
    let text = source.to_string();
    match text.find(" (os error") {
        Some(at) => text[..at].to_owned(),
        None => text,
    }
}

/// Returns the library's message without its last sentence, which is advice for programmers.
fn without_remedy(error: &Error) -> String {
    let text = error.to_string();
    text.rsplit_once(". ").map_or(&*text, |(failure, _)| failure).to_owned()
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match &error {
            Error::Io { action, path, source } => {
                let failure = Failure::file(action, path, source);
                if failure.exit == Exit::DiskFull { failure.space_helps() } else { failure }
            }
            Error::NotFound { path } => Failure::no_database(path),
            Error::NotADatabase { path, why } => {
                Failure::new(Exit::NotOpened, format!("{} is not a Drumlin database: {why}", path.display()))
                    .hint("give the folder that `drumlin load`, `put` or `index` created")
            }
            Error::NewerFormat { path, found, supported } => Failure::new(
                Exit::NotOpened,
                format!("{} has format {found}; this version reads formats up to {supported}", path.display()),
            )
            .hint("open it with a newer drumlin"),
            Error::OlderFormat { path, found, supported } => Failure::new(
                Exit::NotOpened,
                format!("{} has format {found}; this version reads format {supported}", path.display()),
            )
            .hint("dump it with the drumlin that wrote it, and load the dump with this one"),
            Error::Locked { path, pid, .. } => {
                let pid = if *pid == 0 { process::user_of(&path.join("data")) } else { Some(*pid) };
                let (user, end) = match pid {
                    Some(pid) => (process::described(pid), format!("it: kill {pid}")),
                    None => ("another process".to_owned(), "that process".to_owned()),
                };
                Failure::new(Exit::InUse, format!("{} is in use by {user}", path.display()))
                    .hint(format!("close it there, or end {end}"))
            }
            Error::Corrupted { path, what, reason } => {
                Failure::new(Exit::Corrupted, format!("damaged: {what} in {}: {reason}", path.display()))
                    .hint("`drumlin check DATABASE` lists all damage and what is lost")
            }
            Error::DiskFull { path, needed_bytes, kept_snapshots, clones, archive_bytes } => {
                let failure = Failure::new(
                    Exit::DiskFull,
                    format!("the disk is full: {needed_bytes} more bytes are needed in {}", path.display()),
                )
                .space_helps();
                let failure = match kept_snapshots.is_empty() {
                    true => failure,
                    false => {
                        failure.hint("drop a kept snapshot: `drumlin snapshots DATABASE` says what each one holds")
                    }
                };
                let failure = match archive_bytes {
                    0 => failure,
                    bytes => failure.hint(format!("repair the archive's destination: {bytes} bytes wait for it")),
                };
                match clones.is_empty() {
                    true => failure,
                    false => failure
                        .hint("drop a clone: `drumlin keyspaces DATABASE --exclusive` says what each keyspace holds"),
                }
            }
            Error::TransactionTooLarge { what, row_count, bytes, limit_bytes, .. } => Failure::other(format!(
                "transaction too large: {what} take {bytes} bytes for {row_count} rows, and may take {limit_bytes}"
            ))
            .hint("use a smaller --batch")
            .hint("use a larger --memory"),
            Error::MemoryInUse { what, limit_bytes } => {
                Failure::other(format!("{what} take all {limit_bytes} bytes of their share of the memory"))
                    .hint("run the command again")
                    .hint("use a larger --memory")
            }
            Error::OutcomeUnknown { reason } => Failure::new(
                Exit::NoCommits,
                format!(
                    "the log failed while a commit was being written ({reason}); whether it was committed is unknown"
                ),
            )
            .hint("fix the cause, then read the rows again to see whether it was"),
            Error::Failed { reason } => {
                Failure::new(Exit::NoCommits, format!("the database accepts no commits: {reason}"))
                    .hint("fix the cause and run the command again; nothing acknowledged is lost")
            }
            Error::NotClosed { path, commits } => Failure::new(
                Exit::NoCommits,
                format!("{} was not closed: {commits} commits in its log have to be recovered", path.display()),
            )
            .hint("run any command that may write to it: opening it recovers it"),
            Error::ReadOnly { path } => Failure::new(Exit::NoCommits, format!("{} can only be read", path.display())),
            Error::BudgetTooSmall { given_bytes, minimum_bytes } => Failure::usage(format!(
                "--memory {given_bytes} is too small: at least {minimum_bytes} bytes are needed"
            ))
            .hint(format!("--memory {}MiB", minimum_bytes.div_ceil(1 << 20))),
            Error::NoSuchKeyspace { .. } => {
                Failure::not_found(without_remedy(&error)).hint("`drumlin keyspaces DATABASE` lists them")
            }
            Error::NoSuchSnapshot { .. } => {
                Failure::not_found(without_remedy(&error)).hint("`drumlin snapshots DATABASE` lists them")
            }
            Error::SnapshotExists { .. } => Failure::other(without_remedy(&error))
                .hint("choose another name, or drop that one: drumlin snapshots DATABASE --drop NAME"),
            Error::UnusableBackup { .. } | Error::UnusableArchive { .. } => {
                Failure::new(Exit::Corrupted, error.to_string())
            }
            Error::NotPrepared { .. } => Failure::not_found(without_remedy(&error))
                .hint("`drumlin prepared DATABASE` lists prepared transactions"),
            Error::PreparedRows { .. } => Failure::other(without_remedy(&error))
                .hint("`drumlin prepared DATABASE` lists prepared transactions, and commits or aborts them"),
            Error::KeyspaceExists { name } => Failure::other(format!("there is a keyspace {name:?} already"))
                .hint("choose another name, or `drumlin rename --swap` to exchange the names of both"),
            Error::KeyTooLong { .. } => Failure::bad_input(without_remedy(&error)),
            Error::Conflict { reason } => Failure::other(format!("conflict: {reason}")).hint("run the command again"),
            Error::LockTimeout { .. } => Failure::other(without_remedy(&error)).hint("run the command again"),
            _ => Failure::other(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    /// A hint never names an option that the command lacks.
    #[test]
    fn hints_fit_the_command() {
        let program = Cli::command();
        let hints = |line: &[&str]| {
            let (what, remedy) = ("its writes", "");
            let error = Error::TransactionTooLarge { what, row_count: 2, bytes: 20, limit_bytes: 10, remedy };
            let call = Call::of(&program, &program.clone().try_get_matches_from(line).unwrap());
            Failure::from(error).hints_for(&call).join("; ")
        };
        let (of_rm, of_load) = (hints(&["drumlin", "rm", "db", "key"]), hints(&["drumlin", "load", "db", "-"]));
        assert!(of_rm.contains("--memory") && !of_rm.contains("--batch"), "{of_rm}");
        assert!(of_load.contains("--memory") && of_load.contains("--batch"), "{of_load}");
    }
}
