//! The `drumlin` command. What it does is in the library beside it, so that fuzzing can reach it.

use std::sync::atomic::{AtomicBool, Ordering};

/// Stdout was open when the process began. Where it is closed, Rust's start-up code opens /dev/null in its place before
/// `main` runs, and the answer of a command would be lost in silence.
static STDOUT_IS_OPEN: AtomicBool = AtomicBool::new(true);

extern "C" fn look_at_stdout() {
    let is_open = rustix::io::fcntl_getfd(rustix::stdio::stdout()).is_ok();
    STDOUT_IS_OPEN.store(is_open, Ordering::Relaxed);
}

/// The loader calls the functions of this section before `main`.
// SAFETY: the section holds pointers to functions that take C's arguments of `main` and return nothing, as this one
// does, which looks at none of them. It makes one system call and stores one atomic: nothing that needs what Rust's
// start-up code prepares.
#[expect(unsafe_code, reason = "no safe code runs before Rust's start-up code")]
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = look_at_stdout;

fn main() -> std::process::ExitCode {
    drumlin_cli::main(STDOUT_IS_OPEN.load(Ordering::Relaxed))
}
