//! Runs the command in a temporary folder.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A temporary folder in which to run the command. The database is `db`.
pub(crate) struct Bench {
    folder: tempfile::TempDir,
}

/// The output and exit code of a process.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Bench {
    pub(crate) fn new() -> Bench {
        Bench { folder: tempfile::tempdir().expect("a temporary folder") }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("created");
        fs::write(&path, content).expect("written");
        path
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_drumlin"));
        command.current_dir(self.path()).args(args).stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Answer {
        self.run_with(args, b"")
    }

    pub(crate) fn run_with(&self, args: &[&str], stdin: &[u8]) -> Answer {
        let mut child = self
            .command(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command starts");
        let mut pipe = child.stdin.take().expect("piped");
        let input = stdin.to_vec();
        // A command that doesn't read its stdin may close it, so ignore the error.
        let writer = std::thread::spawn(move || drop(pipe.write_all(&input)));
        let output = child.wait_with_output().expect("the command ends");
        writer.join().expect("the writer ends");
        let stderr = String::from_utf8(output.stderr).expect("messages are text");
        Answer { code: output.status.code(), stdout: output.stdout, stderr }
    }

    /// Runs a command that must succeed, and returns its stdout.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        self.ok_with(args, b"")
    }

    pub(crate) fn ok_with(&self, args: &[&str], stdin: &[u8]) -> String {
        let answer = self.run_with(args, stdin);
        assert_eq!(answer.code, Some(0), "{args:?}: {}", answer.stderr);
        String::from_utf8(answer.stdout).expect("text")
    }

    /// Runs a command that must fail with this code, and returns its stderr.
    pub(crate) fn fails(&self, code: i32, args: &[&str]) -> String {
        let answer = self.run(args);
        assert_eq!(answer.code, Some(code), "{args:?}: {}", answer.stderr);
        assert!(!answer.stderr.contains("panicked"), "{}", answer.stderr);
        answer.stderr
    }
}
