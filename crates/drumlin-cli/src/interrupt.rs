//! Ctrl-C: long commands finish the transaction they are in and close the database; a second Ctrl-C ends at once.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::{Exit, Failure, Result};

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// From here on Ctrl-C and SIGTERM are noted instead of ending the process. Commands that don't call this end at once,
/// which the engine survives like any kill.
pub(crate) fn watch() {
    watch_with(|| {});
}

/// The same, with something to be done before the second Ctrl-C ends the process.
pub(crate) fn watch_with(clean_up: fn()) {
    // Only a second handler could fail here, and there is none: then the default (end at once) stays.
    let _ = ctrlc::set_handler(move || {
        if REQUESTED.swap(true, Ordering::Relaxed) {
            clean_up();
            std::process::exit(Exit::Interrupted as i32);
        }
    });
}

/// Returns `true` if the user wants the command to end.
pub(crate) fn requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}

/// Ends the command if the user wants it to.
pub(crate) fn check() -> Result<()> {
    if requested() { Err(Failure::new(Exit::Interrupted, "interrupted")) } else { Ok(()) }
}
