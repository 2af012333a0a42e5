//! Chooses the backend of a process.

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;

#[cfg(all(target_os = "linux", not(drumlin_portable)))]
use super::uring;
use super::{Backend, portable};

/// The environment variable that forces a backend: `uring` or `portable`. It overrides the program's choice, so that an
/// operator can try a different backend without a new build.
pub const BACKEND_VARIABLE: &str = "DRUMLIN_IO_BACKEND";

/// The kind of I/O backend.
///
/// ```
/// use drumlin_io::IoBackend;
///
/// let backend = drumlin_io::backend(IoBackend::Portable)?; // does not use io_uring
/// assert_eq!(backend.name(), "portable");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum IoBackend {
    /// `Uring` if the system allows it; otherwise `Portable`, with a warning in the log that gives the reason.
    #[default]
    Auto,
    /// Linux's io_uring. If it is unavailable, the error gives the reason.
    Uring,
    /// Positional reads and writes on a small pool of threads.
    Portable,
}

/// Returns the backend of the given kind for the operating system's files.
///
/// # Errors
/// `Unsupported` if [`IoBackend::Uring`] is requested but unavailable: the text names the system call, its error and a
/// remedy. `InvalidInput` if `DRUMLIN_IO_BACKEND` is set to anything but `uring` or `portable`.
///
/// # Examples
/// ```
/// use drumlin_io::{IoBackend, OpenOptions, Persist};
///
/// let backend = drumlin_io::backend(IoBackend::Portable)?;
/// let path = std::env::temp_dir().join(format!("drumlin-{:016x}", backend.random()));
/// let file = backend.open(&path, OpenOptions { write: true, create_new: true, ..Default::default() })?;
/// file.write_at(b"a longish hill", 0, Persist::Later)?;
/// assert_eq!(&file.read_buffer(10, 4)?[..], b"hill");
/// backend.remove(&path)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn backend(kind: IoBackend) -> io::Result<Arc<dyn Backend>> {
    select(forced(std::env::var_os(BACKEND_VARIABLE).as_deref(), kind)?)
}

/// Returns the requested kind, unless the environment variable's `value` overrides it.
fn forced(value: Option<&OsStr>, kind: IoBackend) -> io::Result<IoBackend> {
    let Some(value) = value else { return Ok(kind) };
    match value.to_str() {
        Some("uring") => Ok(IoBackend::Uring),
        Some("portable") => Ok(IoBackend::Portable),
        _ => {
            let text = format!("{BACKEND_VARIABLE} is {value:?}; it takes \"uring\" or \"portable\"");
            Err(io::Error::new(io::ErrorKind::InvalidInput, text))
        }
    }
}

/// Like [`backend`], but ignores the environment.
pub(crate) fn select(kind: IoBackend) -> io::Result<Arc<dyn Backend>> {
    match kind {
        IoBackend::Portable => Ok(Arc::new(portable::backend())),
        IoBackend::Uring => try_uring().map_err(|refusal| io::Error::new(io::ErrorKind::Unsupported, refusal)),
        IoBackend::Auto => Ok(try_uring().unwrap_or_else(|refusal| {
            log::warn!("using the portable I/O backend: {refusal}");
            Arc::new(portable::backend())
        })),
    }
}

#[cfg(all(target_os = "linux", not(drumlin_portable)))]
fn try_uring() -> Result<Arc<dyn Backend>, String> {
    match uring::backend() {
        Ok(backend) => Ok(Arc::new(backend)),
        Err(refusal) => {
            let advice = advice(refusal.error.raw_os_error(), &read_setting("io_uring_disabled"));
            Err(format!("io_uring is refused: {}: {}. {advice}", refusal.call, refusal.error))
        }
    }
}

#[cfg(not(all(target_os = "linux", not(drumlin_portable))))]
fn try_uring() -> Result<Arc<dyn Backend>, String> {
    Err("io_uring exists on Linux only".to_owned())
}

#[cfg(all(target_os = "linux", not(drumlin_portable)))]
fn read_setting(name: &str) -> String {
    std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).map(|text| text.trim().to_owned()).unwrap_or_default()
}

/// Returns advice on allowing io_uring, based on the error and the setting `kernel.io_uring_disabled`.
#[cfg(all(target_os = "linux", not(drumlin_portable)))]
fn advice(code: Option<i32>, disabled: &str) -> String {
    match (code, disabled) {
        (Some(libc::EPERM), "2") => {
            "The kernel forbids it to everybody: set `sysctl kernel.io_uring_disabled=0`".to_owned()
        }
        (Some(libc::EPERM), "1") => {
            let group = read_setting("io_uring_group");
            format!(
                "The kernel allows it to privileged processes and one group only (kernel.io_uring_group is {group}): \
                 join that group, or set `sysctl kernel.io_uring_disabled=0`"
            )
        }
        (Some(libc::EPERM | libc::EACCES), _) => {
            "A seccomp profile or security module forbids it, as container runtimes do by default (Docker and \
             containerd since 2023): allow io_uring_setup, io_uring_enter and io_uring_register in the profile given \
             to --security-opt seccomp=…"
                .to_owned()
        }
        (Some(libc::ENOSYS), _) => {
            "The kernel is older than 5.1, was built without it, or a sandbox hides it (gVisor, some seccomp profiles)"
                .to_owned()
        }
        (Some(libc::ENOMEM), _) => {
            "Kernels before 5.12 count rings against the limit of locked memory: raise it (`ulimit -l`, LimitMEMLOCK= \
             in a systemd unit)"
                .to_owned()
        }
        (Some(libc::EINVAL), _) => "The kernel is older than 5.6, whose rings cannot read".to_owned(),
        (Some(libc::EMFILE | libc::ENFILE), _) => "Raise the limit of open files (`ulimit -n`)".to_owned(),
        _ => "Set DRUMLIN_IO_BACKEND=portable to go without it".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_wins_and_typing_errors_are_told() {
        assert_eq!(forced(None, IoBackend::Uring).unwrap(), IoBackend::Uring);
        assert_eq!(forced(Some("portable".as_ref()), IoBackend::Uring).unwrap(), IoBackend::Portable);
        assert_eq!(forced(Some("uring".as_ref()), IoBackend::Portable).unwrap(), IoBackend::Uring);
        for wrong in ["", "Uring", "io_uring"] {
            let error = forced(Some(wrong.as_ref()), IoBackend::Auto).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert!(error.to_string().contains("DRUMLIN_IO_BACKEND"), "{error}");
        }
    }

    /// The advice for each refusal gives the remedy for its cause.
    #[cfg(all(target_os = "linux", not(drumlin_portable)))]
    #[test]
    fn the_advice_fits_the_refusal() {
        for (code, disabled, remedy) in [
            (libc::EPERM, "2", "sysctl kernel.io_uring_disabled=0"),
            (libc::EPERM, "1", "kernel.io_uring_group"),
            (libc::EPERM, "0", "seccomp"),
            (libc::EACCES, "", "security module"),
            (libc::ENOSYS, "", "5.1"),
            (libc::ENOMEM, "0", "LimitMEMLOCK"),
            (libc::EINVAL, "0", "5.6"),
            (libc::EMFILE, "0", "ulimit -n"),
            (libc::EIO, "0", "DRUMLIN_IO_BACKEND=portable"),
        ] {
            assert!(advice(Some(code), disabled).contains(remedy), "{code}: {}", advice(Some(code), disabled));
        }
    }
}
