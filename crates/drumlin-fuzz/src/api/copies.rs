//! Copies in time: kept snapshots, backups that are restored, and the changes of commits.

use std::path::PathBuf;
use std::pin::pin;

use drumlin::{BackupOptions, Change, Changes, Commit, Config, Error, KeptSnapshot, OldValue};
use futures_core::Stream;

use super::answers::{checked, is_short_of_memory, must, refused};
use super::calls::call;
use super::futures::{Fate, block_on, poll_some};
use super::generator::{bounds, fate, key, value};
use super::model::{Model, Models, holds, read_by, remove_within};
use super::peer::{NAMES, Peer};
use super::places::{BUDGET_BYTES, Place};
use crate::Script;

/// The name of the kept snapshot that a sequence has at most.
const KEPT: &str = "kept";

/// Backups and opened snapshots need memory for page tables.
fn is_short(error: &Error) -> bool {
    is_short_of_memory(error) || matches!(error, Error::BudgetTooSmall { .. })
}

fn is_missing(error: &Error) -> bool {
    matches!(error, Error::NoSuchSnapshot { .. })
}

impl Peer {
    /// Keeps, reads or drops a snapshot, makes and restores a backup, or follows the changes of a few commits.
    pub(super) fn copies(&mut self, script: &mut Script<'_>) {
        match script.byte() % 4 {
            0 | 1 => {
                if self.kept.is_none() {
                    self.keep(script);
                }
                self.read_kept(script);
                if self.kept.is_some() && script.byte().is_multiple_of(2) {
                    self.drop_kept(script);
                }
            }
            2 => {
                if self.kept.is_none() && script.byte().is_multiple_of(2) {
                    self.keep(script);
                }
                self.back_up(script);
            }
            _ => self.follow(script),
        }
    }

    fn keep(&mut self, script: &mut Script<'_>) {
        self.settle();
        let db = self.db();
        let kept = match script.byte() % 2 {
            0 => call!("Database::keep_snapshot", db.keep_snapshot(KEPT)),
            _ => block_on(call!("Database::keep_snapshot_async", db.keep_snapshot_async(KEPT))),
        };
        let is_kept = call!("Database::kept_snapshots", db.kept_snapshots()).iter().any(|kept| kept.name == KEPT);
        assert_eq!(checked(kept, is_short).is_some(), is_kept);
        let exists = |error: &Error| matches!(error, Error::SnapshotExists { .. });
        assert!(!is_kept || checked(db.keep_snapshot(KEPT), exists).is_none(), "two snapshots have one name");
        refused(db.keep_snapshot(""));
        refused(db.keep_snapshot(&"n".repeat(256)));
        self.kept = is_kept.then(|| self.models.clone());
    }

    /// Drops the kept snapshot, in half of the cases while it is open.
    fn drop_kept(&mut self, script: &mut Script<'_>) {
        let db = self.db();
        let opened = script.byte().is_multiple_of(2).then(|| checked(db.open_snapshot(KEPT), is_short)).flatten();
        match script.byte() % 2 {
            0 => must(call!("Database::drop_snapshot", db.drop_snapshot(KEPT))),
            _ => must(block_on(call!("Database::drop_snapshot_async", db.drop_snapshot_async(KEPT)))),
        }
        assert!(checked(db.drop_snapshot(KEPT), is_missing).is_none(), "a snapshot was dropped twice");
        assert!(checked(db.open_snapshot(KEPT), is_missing).is_none(), "a snapshot that was dropped can be opened");
        let models = self.kept.take().expect("it was kept");
        if let Some(opened) = opened {
            assert!(is_as(&opened, &models), "a reader of a dropped snapshot misses rows");
        }
    }

    fn read_kept(&self, script: &mut Script<'_>) {
        let db = self.db();
        let opened = match script.byte() % 2 {
            0 => call!("Database::open_snapshot", db.open_snapshot(KEPT)),
            _ => block_on(call!("Database::open_snapshot_async", db.open_snapshot_async(KEPT))),
        };
        let Some(models) = &self.kept else { return assert!(checked(opened, is_missing).is_none()) };
        let Some(opened) = checked(opened, is_short) else { return };
        // If the future were leaked, the snapshot that it has opened would keep the database open.
        drop(poll_some(db.open_snapshot_async(KEPT), Fate { leaks: false, ..fate(script) }));
        assert_eq!(call!("KeptSnapshot::name", opened.name()), KEPT);
        let (at, now) = (call!("KeptSnapshot::timestamp", opened.timestamp()), db.snapshot().timestamp());
        assert!(at <= now, "{opened:?} is newer than {now}");
        assert_eq!(call!("KeptSnapshot::keyspaces", opened.keyspaces()).len(), NAMES.len());
        let which = usize::from(script.byte() % 2);
        let keyspace = must(call!("KeptSnapshot::keyspace", opened.keyspace(NAMES[which])));
        refused(keyspace.insert("k", "v"));
        refused(keyspace.remove("k").map(drop));
        read_by(&opened, &keyspace, &models[which], &key(script), |_| false, script);
        assert!(is_as(&opened.clone(), models), "a kept snapshot has other rows");
    }

    /// Makes a full backup, of the present or of the kept snapshot with the changes since, verifies it, and restores a
    /// database that must have the same rows. A damaged backup is refused.
    fn back_up(&self, script: &mut Script<'_>) {
        self.settle();
        let db = self.db();
        let full = call!("BackupOptions::new", BackupOptions::new());
        let mut all = vec![full.clone()];
        if self.kept.is_some() {
            let base = call!("BackupOptions::keep", full.clone().keep(KEPT));
            let changes = call!("BackupOptions::since", full.clone().since(KEPT));
            all = vec![base, call!("BackupOptions::urgent", changes.urgent())];
        }
        let unknown = full.since("unknown");
        assert!(checked(db.backup_into(std::io::sink(), &unknown), is_missing).is_none(), "the base is missing");
        let target = Place::new(matches!(self.place, Place::Disk(_)));
        let config = match &target {
            Place::Memory(backend) => Config::new().backend(backend.clone()),
            Place::Disk(_) => Config::new(),
        }
        .memory(BUDGET_BYTES);
        let restored = match &target {
            Place::Memory(_) => {
                let mut backups = Vec::new();
                for options in all {
                    let mut backup = Vec::new();
                    let made = call!("Database::backup_into", db.backup_into(&mut backup, &options));
                    let Some(report) = checked(made, is_short) else { return };
                    assert_eq!(report.bytes, backup.len() as u64);
                    let info = must(call!("Config::verify_backup_from", config.verify_backup_from(&backup[..])));
                    assert_eq!((info.bytes, info.timestamp), (report.bytes, report.timestamp));
                    let at = usize::from(script.byte()) * (backup.len() - 1) / 255;
                    backup[at] ^= 1;
                    let is_unusable = |error: &Error| matches!(error, Error::UnusableBackup { .. });
                    assert!(checked(config.verify_backup_from(&backup[..]), is_unusable).is_none(), "byte {at}");
                    assert!(checked(config.verify_backup_from(&backup[..at]), is_unusable).is_none(), "{at} bytes");
                    backup[at] ^= 1;
                    backups.push(backup);
                }
                call!("Config::restore_from", config.restore_from(backups.iter().map(|b| &b[..]), target.path()))
            }
            Place::Disk(_) => {
                let mut folders = Vec::<PathBuf>::new();
                for options in all {
                    let folder = target.path().with_extension(format!("backup-{}", folders.len()));
                    let made = match script.byte() % 2 {
                        0 => call!("Database::backup_to", db.backup_to(&folder, &options)),
                        _ => block_on(call!("Database::backup_to_async", db.backup_to_async(&folder, &options))),
                    };
                    let is_made = checked(made, is_short).is_some();
                    if is_made {
                        must(call!("Config::verify_backup", config.verify_backup(&folder)));
                        refused(db.backup_to(self.place.path(), &options));
                    }
                    folders.push(folder);
                    if !is_made {
                        return remove(&folders);
                    }
                }
                let restored = call!("Config::restore", config.restore(&folders, target.path()));
                remove(&folders);
                restored
            }
        };
        if checked(restored, is_short).is_none() {
            return;
        }
        let Some(copy) = checked(config.open(target.path()), is_short) else { return };
        let keyspaces = NAMES.map(|name| must(copy.existing_keyspace(name)));
        assert!(keyspaces.iter().zip(&self.models).all(|(copy, model)| holds(copy, model)), "other rows were restored");
        drop(keyspaces);
        must(copy.close());
    }

    /// Makes a few commits and reads them as changes, by one of the ways.
    fn follow(&mut self, script: &mut Script<'_>) {
        self.settle();
        let since = self.db().snapshot().timestamp();
        if !self.settings.keeps_changes {
            refused(self.db().changes(since).map(drop));
            return;
        }
        let mut copy = self.models.clone();
        let which = usize::from(script.byte() % 2);
        for _ in 0..script.byte() % 6 {
            let (k, model) = (&self.keyspaces[which], &mut self.models[which]);
            let key = key(script);
            match script.byte() % 4 {
                0 => {
                    must(k.remove(&key));
                    model.remove(&key);
                }
                1 => {
                    let range = bounds(script);
                    must(k.remove_range(&range));
                    remove_within(model, &range);
                }
                _ => {
                    let value = if script.byte() < 16 { vec![key.len() as u8; 70_000] } else { value(script) };
                    must(k.insert(&key, &value));
                    model.insert(key, value);
                }
            }
        }
        let db = self.db();
        must(db.sync());
        let now = db.snapshot().timestamp();
        let feed = match script.byte() % 2 {
            0 => call!("Database::changes", db.changes(since)),
            _ => block_on(call!("Database::changes_async", db.changes_async(since))),
        };
        let feed = call!("Changes::keyspaces", must(feed).keyspaces([NAMES[which]]));
        let mut feed = call!("Changes::until", feed.until(now));
        let way = script.byte() % 4;
        let mut commits = Vec::new();
        match way {
            0 => commits.extend(feed.by_ref().map(must)),
            1 => {
                while let Some(commit) = block_on(call!("Changes::next_async", feed.next_async())) {
                    commits.push(must(commit));
                }
            }
            2 => {
                while feed.position() < now {
                    commits.extend(call!("Changes::ready", feed.ready()).map(must));
                    std::thread::yield_now();
                }
            }
            _ => {
                let mut stream = pin!(call!("Changes::into_stream", feed.into_stream()));
                while let Some(commit) = block_on(std::future::poll_fn(|context| stream.as_mut().poll_next(context))) {
                    commits.push(must(commit));
                }
                feed = must(db.changes(now));
            }
        }
        assert!(call!("Changes::position", feed.position()) >= now && format!("{feed:?}").contains("after"));
        self.follow_in_files(since, which, &commits);
        let id = db.keyspaces().iter().find(|info| info.name == NAMES[which]).expect("it is there").id;
        let same = must(call!("Changes::keyspace_of", feed.keyspace_of(id)));
        assert!(same.is_some_and(|same| same.name() == NAMES[which]));
        let mut last = since;
        for commit in &commits {
            let _ = call!("Commit::time", commit.time());
            assert!(call!("Commit::timestamp", commit.timestamp()) > std::mem::replace(&mut last, commit.timestamp()));
            assert_eq!(call!("Commit::changes", commit.changes()).count(), commit.changes_with_old_values().count());
            for (change, old) in call!("Commit::changes_with_old_values", commit.changes_with_old_values()) {
                assert!(old.is_none() || self.settings.keeps_old_values, "an old value was kept");
                check_old(&copy[which], &change, old);
                apply(&mut copy[which], &feed, &change);
            }
        }
        assert!(copy == self.models, "the changes lead to other rows");
    }

    /// Reads the change files without the database: they have the first of these commits, perhaps not yet all of them.
    fn follow_in_files(&self, since: drumlin::Timestamp, which: usize, commits: &[Commit]) {
        let opened = call!("Config::changes", self.config().changes(self.place.path(), since));
        // The files are created at the first commit.
        let Some(files) = checked(opened, |error| matches!(error, Error::Invalid(_)) && commits.is_empty()) else {
            return;
        };
        let mut files = call!("FolderChanges::keyspaces", files.keyspaces([NAMES[which]]));
        for commit in commits {
            let Some(found) = call!("FolderChanges::ready", files.ready()) else { return };
            let found = must(found);
            assert_eq!(found.timestamp(), commit.timestamp());
            assert!(found.changes().eq(commit.changes()), "the file has other changes");
        }
    }
}

fn is_as(opened: &KeptSnapshot, models: &Models) -> bool {
    NAMES.iter().zip(models).all(|(name, model)| holds(&must(opened.keyspace(name)), model))
}

fn remove(folders: &[PathBuf]) {
    folders.iter().for_each(|folder| drop(std::fs::remove_dir_all(folder)));
}

/// Compares the value that a row had before a change, if it is known, with the copy of a keyspace.
fn check_old(copy: &Model, change: &Change<'_>, old: Option<OldValue<'_>>) {
    let (Some(old), Change::Put { key, .. } | Change::PutLarge { key, .. } | Change::Remove { key, .. }) =
        (old, change)
    else {
        return assert!(old.is_none(), "{change:?} has an old value");
    };
    match (old, copy.get(*key)) {
        (OldValue::Absent, None) => {}
        (OldValue::Value(old), Some(value)) => assert!(old == value, "another old value"),
        (OldValue::Large { length }, Some(value)) => assert_eq!(length, value.len() as u64),
        (old, value) => panic!("{old:?} was {value:?}"),
    }
}

/// Applies a change to the copy of a keyspace. A large value that a later commit has replaced is replaced by zeros.
fn apply(copy: &mut Model, feed: &Changes, change: &Change<'_>) {
    match *change {
        Change::Put { key, value, .. } => drop(copy.insert(key.to_vec(), value.to_vec())),
        Change::PutLarge { key, length, value, .. } => {
            let mut bytes = vec![0; length as usize];
            if let Some(mut reader) = must(call!("Changes::read_large", feed.read_large(key, value))) {
                bytes.clear();
                std::io::Read::read_to_end(&mut reader, &mut bytes).expect("the value is sound");
                assert_eq!(bytes.len() as u64, length);
            }
            copy.insert(key.to_vec(), bytes);
        }
        Change::Remove { key, .. } => drop(copy.remove(key)),
        Change::RemoveRange { lower, upper, .. } => {
            copy.retain(|key, _| key[..] < *lower || upper.is_some_and(|upper| key[..] >= *upper));
        }
        ref other => panic!("{other:?} was not made"),
    }
}
