//! Maintenance calls, and calls that drop and create keyspaces. Some of these calls must be refused.

use drumlin::{Durability, Error, KeyspaceOptions};

use super::answers::{checked, must};
use super::calls::call;
use super::futures::{block_on, poll_some};
use super::generator::fate;
use super::peer::{NAMES, Peer};
use crate::Script;

impl Peer {
    pub(super) fn maintenance(&mut self, script: &mut Script<'_>) {
        let db = self.db();
        let undamaged = |report: drumlin::CheckReport| assert!(report.corruption.is_empty(), "{:?}", report.corruption);
        match script.byte() % 13 {
            0 => drop(must(call!("Database::checkpoint", db.checkpoint()))),
            1 => drop(must(block_on(call!("Database::checkpoint_async", db.checkpoint_async())))),
            2 => drop(must(call!("Database::compact", db.compact()))),
            3 => drop(must(block_on(call!("Database::compact_async", db.compact_async())))),
            4 => undamaged(must(call!("Database::check", db.check()))),
            5 => undamaged(must(block_on(call!("Database::check_async", db.check_async())))),
            6 => drop(poll_some(db.checkpoint_async(), fate(script))),
            7 => {
                let stats = call!("Database::stats", db.stats());
                assert!(stats.memory_used_bytes <= stats.memory_budget_bytes, "{stats:?}");
                assert!(stats.failed.is_none(), "{stats:?}");
                let limits = call!("Database::limits", db.limits());
                assert_eq!(limits.memory_bytes, stats.memory_budget_bytes);
                let _ = format!("{:?} {db:?}", call!("Database::opening", db.opening()));
                assert!(call!("Database::path", db.path()).is_absolute());
                let _ = call!("Database::tx_options", db.tx_options());
                let relaxed =
                    call!("Keyspace::with_durability", self.keyspaces[0].with_durability(Durability::Relaxed));
                must(relaxed.remove("settled"));
                must(call!("Database::sync", db.sync()));
                let durable = must(call!("Database::durable", db.durable()));
                assert!(durable <= db.stats().durable, "{durable}");
                must(relaxed.remove("settled"));
                must(block_on(call!("Database::sync_async", db.sync_async())));
                assert_eq!(call!("Database::keyspaces", db.keyspaces()).len(), 2);
                assert_eq!(call!("Keyspace::name", self.keyspaces[0].name()), NAMES[0]);
                let key_bytes_max = call!("Keyspace::key_bytes_max", self.keyspaces[0].key_bytes_max());
                assert!(key_bytes_max >= 128 && key_bytes_max.is_power_of_two());
            }
            8 => {
                let which = usize::from(script.byte() % 2);
                if script.byte().is_multiple_of(2) {
                    must(call!("Database::drop_keyspace", db.drop_keyspace(NAMES[which])));
                } else {
                    must(block_on(call!("Database::drop_keyspace_async", db.drop_keyspace_async(NAMES[which]))));
                }
                let old = &self.keyspaces[which];
                let is_dropped = |error: &Error| matches!(error, Error::KeyspaceDropped { .. });
                assert!(
                    checked(old.get("k"), is_dropped).is_none() && checked(old.insert("k", "v"), is_dropped).is_none()
                );
                let is_missing = |error: &Error| matches!(error, Error::NoSuchKeyspace { .. });
                let missing = call!("Database::existing_keyspace", db.existing_keyspace(NAMES[which]));
                assert!(checked(missing, is_missing).is_none());
                let missing =
                    block_on(call!("Database::existing_keyspace_async", db.existing_keyspace_async(NAMES[which])));
                assert!(checked(missing, is_missing).is_none());
                self.keyspaces[which] =
                    must(block_on(call!("Database::keyspace_async", db.keyspace_async(NAMES[which]))));
                self.models[which].clear();
            }
            9 => {
                let page_bytes = [0, 1, 511, 513, 1 << 17, usize::MAX][usize::from(script.byte()) % 6];
                let options = call!("KeyspaceOptions::new", KeyspaceOptions::new());
                let options = call!("KeyspaceOptions::page_bytes", options.page_bytes(page_bytes));
                let is_invalid = |error: &Error| matches!(error, Error::Invalid(_));
                assert!(
                    checked(call!("Database::keyspace_with", db.keyspace_with("odd", options)), is_invalid).is_none()
                );
                let odd = call!("Database::keyspace_with_async", db.keyspace_with_async("odd", options));
                assert!(checked(block_on(odd), is_invalid).is_none());
                for name in ["", &"n".repeat(256), &"n".repeat(100_000)] {
                    assert!(checked(db.keyspace(name), is_invalid).is_none());
                }
            }
            10 => self.alter(script),
            11 => self.clone_keyspace(script),
            _ => self.check(),
        }
    }

    /// Clones a keyspace, compares the clone with the model, changes it and drops it.
    fn clone_keyspace(&mut self, script: &mut Script<'_>) {
        let db = self.db();
        let which = usize::from(script.byte() % 2);
        let is_small = |error: &Error| matches!(error, Error::BudgetTooSmall { .. });
        let cloned = if script.byte().is_multiple_of(2) {
            call!("Database::clone_keyspace", db.clone_keyspace(NAMES[which], "clone"))
        } else {
            block_on(call!("Database::clone_keyspace_async", db.clone_keyspace_async(NAMES[which], "clone")))
        };
        if checked(cloned, is_small).is_none() {
            return;
        }
        let is_refused = |error: &Error| matches!(error, Error::NoSuchKeyspace { .. } | Error::KeyspaceExists { .. });
        assert!(checked(db.clone_keyspace(NAMES[which], "clone"), is_refused).is_none());
        assert!(checked(db.clone_keyspace("missing", "other"), is_refused).is_none());
        let clone = must(db.existing_keyspace("clone"));
        assert_eq!(must(clone.len()), must(self.keyspaces[which].len()));
        let exclusive = must(call!("Keyspace::exclusive_bytes", clone.exclusive_bytes()));
        assert!(exclusive <= must(clone.disk_bytes()));
        let clones = call!("Database::clones", db.clones());
        assert!(matches!(&clones[..], [info] if info.name == "clone" && info.disk_bytes >= info.exclusive_bytes));
        must(clone.clear());
        must(clone.insert("of the clone", "v"));
        assert_eq!(must(clone.len()), 1);
        must(db.drop_keyspace("clone"));
    }

    /// Renames keyspaces, creates and drops others in the same step, and puts the names back in a second step.
    fn alter(&mut self, script: &mut Script<'_>) {
        let db = self.db();
        let options = KeyspaceOptions::new().page_bytes(512 << (script.byte() % 4));
        let [one, other] = NAMES;
        let there = call!("Alteration::rename", call!("Database::alter", db.alter()).rename(one, "passing"));
        let there = call!("Alteration::swap", there.swap("passing", other));
        let there = call!("Alteration::create", there.create("made", options));
        if script.byte().is_multiple_of(2) {
            must(call!("Alteration::commit", there.clone().commit()));
        } else {
            must(block_on(call!("Alteration::commit_async", there.clone().commit_async())));
        }
        // The handles belong to the same keyspaces as before.
        let names = || self.keyspaces.iter().map(drumlin::Keyspace::name).collect::<Vec<_>>();
        assert_eq!(names(), [other, "passing"]);
        let is_refused = |error: &Error| matches!(error, Error::NoSuchKeyspace { .. } | Error::KeyspaceExists { .. });
        assert!(checked(there.commit(), is_refused).is_none());
        let twice = db.alter().create("new", options).create(other, options);
        assert!(checked(twice.commit(), is_refused).is_none());
        must(db.keyspace("made").and_then(|made| made.insert("k", "v")));
        let back = call!("Alteration::drop", db.alter().drop("made").swap("passing", other).rename("passing", one));
        must(back.commit());
        assert_eq!(names(), [one, other]);
        assert_eq!(db.keyspaces().len(), 2);
    }
}
