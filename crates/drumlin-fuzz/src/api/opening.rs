//! Closing and opening: handles are dropped in any order, possibly while other threads use them.

use std::time::{Duration, Instant};

use drumlin::{Config, Error, Result};

use super::answers::{checked, must};
use super::calls::call;
use super::futures::block_on;
use super::peer::{NAMES, Peer};
use crate::Script;

fn is_locked(error: &Error) -> bool {
    matches!(error, Error::Locked { .. })
}

impl Peer {
    /// Closes the database, or drops its handles in any order. The folder stays locked as long as a handle is left. If
    /// the database was closed, its remaining handles report that.
    pub(super) fn reopen(&mut self, script: &mut Script<'_>) {
        self.settle();
        let (db, keyspaces) = (self.db.take().expect("open"), std::mem::take(&mut self.keyspaces));
        let snapshots = std::mem::take(&mut self.snapshots);
        let other = db.clone();
        let end = script.byte() % 4;
        let closed: Result<()> = match end {
            0 => call!("Database::close", other.close()),
            1 => block_on(call!("Database::close_async", other.close_async())),
            2 => {
                let first = db.clone();
                std::thread::scope(|scope| {
                    let first = scope.spawn(|| first.close());
                    must(other.close());
                    first.join().expect("closing does not panic")
                })
            }
            _ => {
                drop(other);
                Ok(())
            }
        };
        must(closed);
        if end < 3 {
            let is_closed = |error: &Error| matches!(error, Error::Closed);
            let refused =
                (checked(keyspaces[0].get("k"), is_closed), checked(keyspaces[1].insert("k", "v"), is_closed));
            assert!(refused.0.is_none() && refused.1.is_none(), "a closed database answers");
            // The folder is unlocked although some handles remain.
            must(self.config().read_only(true).open(self.place.path()));
        }
        let mut held: Vec<Box<dyn Send>> = vec![Box::new((db, snapshots)), Box::new(keyspaces)];
        held.rotate_left(usize::from(script.byte() % 2));
        let last = held.pop();
        drop(held);
        if end == 3 {
            assert!(checked(self.config().open(self.place.path()), is_locked).is_none(), "it was opened twice");
        }
        drop(last);
        self.open(script);
        self.check();
    }

    /// Opens the database read-only, several times concurrently, and checks that writes are refused.
    fn read_only(&self, config: &Config) {
        let config = call!("Config::read_only", config.clone().read_only(true));
        let Some(db) = checked(config.open(self.place.path()), is_locked) else { return };
        let other = must(config.open(self.place.path()));
        assert!(
            checked(self.config().open(self.place.path()), is_locked).is_none(),
            "it was opened for writing while readers have it open"
        );
        let is_read_only = |error: &Error| matches!(error, Error::ReadOnly { .. });
        for name in NAMES {
            let (keyspace, same) = (must(db.existing_keyspace(name)), must(other.existing_keyspace(name)));
            assert!(must(keyspace.count(..)) == must(same.count(..)), "two readers of one database differ");
            assert!(checked(keyspace.insert("k", "v"), is_read_only).is_none(), "a row was put");
        }
        must(db.close());
        let salvaged = must(call!("Config::salvage", config.clone().salvage(true)).open(self.place.path()));
        let skipped = &salvaged.opening().skipped;
        assert!(skipped.is_empty(), "a sound database was salvaged: {skipped:?}");
        must(salvaged.close());
    }

    /// Reopens the database once its handles are gone.
    pub(super) fn open(&mut self, script: &mut Script<'_>) {
        self.settings.redraw(script);
        self.budget_bytes = self.budget_bytes.max(self.settings.memory_bytes);
        let config = self.config();
        let is_task = script.byte().is_multiple_of(2);
        let open = || match is_task {
            false => config.open(self.place.path()),
            true => block_on(call!("Config::open_async", config.open_async(self.place.path()))),
        };
        let examined = match is_task {
            false => call!("Config::examine", config.examine(self.place.path())),
            true => call!("Config::examine_with", config.examine_with(self.place.path(), |_| ())),
        };
        match examined {
            Ok(report) => assert!(report.corruption.is_empty(), "a sound database was examined: {report:?}"),
            // A checkpoint whose future was dropped still keeps the database open.
            Err(error) => assert!(is_locked(&error), "{error}"),
        }
        self.read_only(&config);
        // A checkpoint whose future was dropped keeps a handle until it ends, so retry for a while.
        let begun = Instant::now();
        let mut opened = open();
        while opened.as_ref().is_err_and(is_locked) && begun.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(1));
            opened = open();
        }
        let db = must(opened);
        self.keyspaces =
            NAMES.map(|name| must(call!("Database::existing_keyspace", db.existing_keyspace(name)))).into();
        self.db = Some(db);
    }
}
