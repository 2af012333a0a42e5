//! The `drumlin` command. Its code is in this crate's library, where the fuzzer can reach it.

use std::sync::atomic::{AtomicBool, Ordering};

/// `true` if stdout was open when the process started. If it is closed, Rust's start-up code opens /dev/null in its
/// place before `main` runs, so the output of a command would be lost silently.
static STDOUT_IS_OPEN: AtomicBool = AtomicBool::new(true);

extern "C" fn look_at_stdout() {
    let is_open = rustix::io::fcntl_getfd(rustix::stdio::stdout()).is_ok();
    STDOUT_IS_OPEN.store(is_open, Ordering::Relaxed);
}

/// The dynamic loader calls the functions in this section before `main`.
// SAFETY: the section contains pointers to functions that take the C arguments of `main` and return nothing. This
// function ignores the arguments. It makes one system call and stores one atomic, neither of which depends on Rust's
// start-up code.
#[expect(unsafe_code, reason = "no safe code runs before Rust's start-up code")]
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = look_at_stdout;

fn main() -> std::process::ExitCode {
    drumlin_cli::main(STDOUT_IS_OPEN.load(Ordering::Relaxed))
}
