//! A record of the public functions that were called.

use std::collections::BTreeSet;
use std::sync::Mutex;

static CALLED: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());

/// Returns the public functions that this process has called so far, as `Type::function`.
pub fn called() -> BTreeSet<&'static str> {
    CALLED.lock().expect("nothing panics with it").clone()
}

pub(super) fn note(name: &'static str) {
    CALLED.lock().expect("nothing panics with it").insert(name);
}

/// Makes a call and records its name.
macro_rules! call {
    ($name:literal, $call:expr) => {{
        $crate::api::calls::note($name);
        $call
    }};
}

pub(super) use call;
