//! Running a command of the operating system.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A command that was started. Dropping it ends the command.
#[derive(Debug)]
pub struct RunningCommand(Child);

impl RunningCommand {
    /// Starts a command without input. Its output is discarded; its errors appear where those of this process do.
    ///
    /// # Errors
    /// Those of the operating system, for example if there is no such program.
    pub fn start(program: &Path, arguments: &[OsString]) -> io::Result<RunningCommand> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
        command.spawn().map(RunningCommand)
    }

    /// Returns `None` while the command runs, and then the reason why it failed, if it did.
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn poll(&mut self) -> io::Result<Option<Result<(), String>>> {
        let Some(status) = self.0.try_wait()? else { return Ok(None) };
        Ok(Some(if status.success() { Ok(()) } else { Err(status.to_string()) }))
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        // Fails if the command has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(program: &str, arguments: &[&str]) -> Result<(), String> {
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        let mut command = RunningCommand::start(Path::new(program), &arguments).unwrap();
        loop {
            if let Some(ended) = command.poll().unwrap() {
                return ended;
            }
            std::thread::yield_now();
        }
    }

    /// A command reports how it ended, and one that runs for long is ended with its handle.
    #[test]
    fn commands_end() {
        assert_eq!(ended("/bin/sh", &["-c", "exit 0"]), Ok(()));
        assert!(ended("/bin/sh", &["-c", "exit 3"]).unwrap_err().contains('3'));
        assert!(RunningCommand::start(Path::new("/no/such/program"), &[]).is_err());
        let mut long = RunningCommand::start(Path::new("/bin/sh"), &["-c".into(), "sleep 1000".into()]).unwrap();
        assert!(long.poll().unwrap().is_none());
    }
}
