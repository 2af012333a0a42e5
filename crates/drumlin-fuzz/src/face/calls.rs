//! The public functions that were called.

use std::collections::BTreeSet;
use std::sync::Mutex;

static CALLED: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());

/// The public functions that were called so far in this process, as `Type::function`.
pub fn called() -> BTreeSet<&'static str> {
    CALLED.lock().expect("nothing panics with it").clone()
}

pub(super) fn note(name: &'static str) {
    CALLED.lock().expect("nothing panics with it").insert(name);
}

/// Notes a call by its name and makes it.
macro_rules! call {
    ($name:literal, $call:expr) => {{
        $crate::face::calls::note($name);
        $call
    }};
}

pub(super) use call;
