//! Ctrl-C: a long command finishes its current transaction and closes the database; a second Ctrl-C ends it
//! immediately.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::call::Call;
use crate::failure::{Exit, Failure, Result};

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// Makes Ctrl-C and SIGTERM set a flag instead of ending the process. Without this call, a signal ends the command
/// immediately, which the engine survives like any kill.
pub(crate) fn watch() {
    watch_with(|| {});
}

/// Sets the flag like [`watch`], and calls `clean_up` before a second Ctrl-C ends the process.
pub(crate) fn watch_with(clean_up: fn()) {
    // This fails only if a handler is already set, which never happens; Ctrl-C would then still end the process
    // immediately.
    let _ = ctrlc::set_handler(move || {
        if REQUESTED.swap(true, Ordering::Relaxed) {
            clean_up();
            std::process::exit(Exit::Interrupted as i32);
        }
    });
}

/// Makes Ctrl-C and SIGTERM end the process at once, for commands without transactions: the engine survives it like any
/// kill. `clean_up` is called before, and returns what the user can do next.
pub(crate) fn end_after(json: bool, clean_up: impl Fn() -> String + Send + 'static) {
    let _ = ctrlc::set_handler(move || {
        let failure = Failure::new(Exit::Interrupted, "interrupted").hint(clean_up());
        failure.report(&Call::running(json));
        std::process::exit(Exit::Interrupted as i32);
    });
}

/// Returns `true` if the user has asked to interrupt the command.
pub(crate) fn requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}

/// Fails if the user has asked to interrupt the command.
pub(crate) fn check() -> Result<()> {
    if requested() { Err(Failure::new(Exit::Interrupted, "interrupted")) } else { Ok(()) }
}
