//! Sequences of calls to the whole public API, as a careless user would make them. Handles of two databases are mixed
//! up and dropped in any order, futures are dropped and leaked, settings are extreme, closures and readers panic, and
//! threads contend for the same rows while the database is closed. Most databases are in memory; some are on disk.
//!
//! The answer of each call is compared with ordered maps, one for each keyspace; a transaction has its own maps until
//! it commits. If a call returns an error, it must be one that the call may return at this point, with the recourse
//! that `error.rs` documents. Only closures that are meant to panic may do so, and the database must keep working
//! afterwards.

mod answers;
mod archives;
mod calls;
mod copies;
mod futures;
mod generator;
mod maintenance;
pub mod memory;
mod model;
mod opening;
mod peer;
mod places;
mod row_changes;
mod rows;
mod sources;
mod threads;
mod transactions;
mod writes;

pub use answers::ON_PURPOSE;
pub use calls::called;
pub use generator::script;
pub use places::folder_of;

use drumlin::Error;

use crate::Script;
use answers::must;
use calls::call;
use peer::Peer;

/// Runs the sequence that the bytes encode. Returns the bytes of memory used in excess of the budgets and of the
/// sequence's own data; 0 unless [`memory::watch`] was called.
///
/// # Panics
/// If a call returns a wrong answer.
pub fn perform(bytes: &[u8]) -> u64 {
    // A scene of its own, which takes the same bytes, so that it changes no other sequence.
    if bytes.len().is_multiple_of(8) {
        archives::rewind(&mut Script(bytes));
    }
    let mut script = Script(bytes);
    let mut memory = memory::Watch::begin();
    // Real syncs are slow, so only about one sequence in eleven uses a disk.
    let is_on_disk = script.byte() < 24;
    let [mut one, mut other] = [(); 2].map(|()| Peer::new(is_on_disk, &mut script));
    while script.has_more() {
        if script.byte().is_multiple_of(4) {
            std::mem::swap(&mut one, &mut other);
        }
        let which = usize::from(script.byte() % 2);
        match script.byte() % 32 {
            0 => one.reopen(&mut script),
            1 => places::limits(is_on_disk, &mut script),
            2 => one.threads(),
            3 => one.contention(&mut script),
            4 => one.closures(&mut script),
            5 => one.shared(&mut script),
            6..8 => one.maintenance(&mut script),
            8..10 => one.copies(&mut script),
            10..12 => one.look_back(&other.keyspaces[which], &mut script),
            12..18 => one.transaction(&other, &mut script),
            18..24 => one.read(which, &mut script),
            _ => one.write(which, &mut script),
        }
        // Don't check databases in memory: they create and delete files within a call, and the allocator retains the
        // memory of deleted files.
        if is_on_disk {
            // Include the smallest budget, for a third database that is open at times.
            let budget_bytes = one.budget_bytes + other.budget_bytes + places::BUDGET_BYTES;
            memory.look(budget_bytes, || one.held_bytes() + other.held_bytes());
        }
    }
    one.check();
    other.check();
    // Leaked handles must not prevent the database from being closed.
    std::mem::forget((must(one.db().begin()), one.db().snapshot(), one.keyspaces[0].iter()));
    must(one.db().clone().close());
    let _ = call!("Error::recourse", Error::Invalid(String::new()).recourse());
    let _ = call!("Error::is_conflict", Error::Invalid(String::new()).is_conflict());
    memory.excess
}

/// Runs [`perform`] as a fuzz target.
pub fn run(bytes: &[u8]) {
    perform(bytes);
}
