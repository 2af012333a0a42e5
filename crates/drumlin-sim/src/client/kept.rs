//! Kept snapshots and backups: they are taken, read and dropped while other clients work.
//!
//! The model keeps all versions of rows, so it knows the state at the timestamp of every kept snapshot.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use drumlin::{BackupOptions, Config, Database, Error, KeptSnapshot, Keyspace, KeyspaceInfo, Range};
use drumlin_io::testing::sim::{Disk, Medium};

use super::answers::Call;
use super::scans::VisibleStates;
use super::{Client, Count, Stop, by_api};
use crate::model::{Content, Kept, KeptClaim, Model, SpaceNumber, describe};
use crate::plan::Plan;

/// The names of kept snapshots.
const KEPT: [&str; 3] = ["kept a", "kept b", "kept c"];

/// The backups that were made, over all sessions. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Backups(Arc<Mutex<BTreeMap<&'static str, Chain>>>);

/// A full backup and the incremental ones after it. The last one is of a kept snapshot.
#[derive(Clone, Debug)]
struct Chain {
    /// The number of changes that the model had recorded of the snapshot's name, when the snapshot was taken.
    changes: u64,
    backups: Vec<Arc<Vec<u8>>>,
}

/// The maximum number of increments in a chain.
const INCREMENTS_MAX: usize = 4;

impl Client {
    pub(super) async fn kept_snapshots(&mut self) -> Result<(), Stop> {
        let name = KEPT[self.random.below(3) as usize];
        match self.random.below(100) {
            0..25 => self.keep(name).await,
            25..40 => self.drop_kept(name).await,
            40..52 => self.back_up(name).await,
            _ => self.read_kept(name).await,
        }
    }

    async fn keep(&mut self, name: &'static str) -> Result<(), Stop> {
        let Some(claim) = self.session.model.claim_kept(name) else { return Ok(()) };
        let (api, db) = (self.api, self.session.db.clone());
        let keep = async { by_api!(api, db.keep_snapshot(name), db.keep_snapshot_async(name)) };
        // If the future is dropped, only the next opening tells whether the snapshot is kept.
        let Some(kept) = self.or_drop(keep).await else { return Ok(()) };
        let model = &self.session.model;
        match kept {
            Ok(at) => {
                let last = model.last();
                assert_eq!(claim.before, Kept::No, "a second snapshot was kept as {name:?}");
                assert!(
                    claim.from <= at.0 && at.0 <= last,
                    "a snapshot was kept at {at}; {} was answered, {last} the last",
                    claim.from
                );
                self.session.counts.add(Count::Kept);
                model.settle_kept(name, Kept::At(at.0));
                Ok(())
            }
            Err(Error::SnapshotExists { .. }) => {
                assert!(matches!(claim.before, Kept::At(_)), "{name:?} is said to be kept, and it is not");
                model.settle_kept(name, claim.before);
                Ok(())
            }
            Err(error) => self.accept_unchanged(name, &claim, &error),
        }
    }

    async fn drop_kept(&mut self, name: &'static str) -> Result<(), Stop> {
        let Some(claim) = self.session.model.claim_kept(name) else { return Ok(()) };
        let (api, db) = (self.api, self.session.db.clone());
        let dropping = async { by_api!(api, db.drop_snapshot(name), db.drop_snapshot_async(name)) };
        let Some(dropped) = self.or_drop(dropping).await else { return Ok(()) };
        let model = &self.session.model;
        match dropped {
            Ok(()) => {
                assert!(matches!(claim.before, Kept::At(_)), "{name:?} was dropped, and it was not kept");
                model.settle_kept(name, Kept::No);
                Ok(())
            }
            Err(Error::NoSuchSnapshot { .. }) => {
                assert_eq!(claim.before, Kept::No, "{name:?} is said not to be kept, and it is");
                model.settle_kept(name, Kept::No);
                Ok(())
            }
            Err(error) => self.accept_unchanged(name, &claim, &error),
        }
    }

    /// Accepts an error of keeping or dropping a snapshot. If the database can still be used, nothing has changed.
    fn accept_unchanged(&self, name: &str, claim: &KeptClaim, error: &Error) -> Result<(), Stop> {
        if matches!(error, Error::DiskFull { .. }) {
            self.session.model.settle_kept(name, claim.before);
        }
        self.accept(error, Call::Plain, None)
    }

    /// Opens a kept snapshot, or takes the one that an earlier step left open, and reads from it.
    async fn read_kept(&mut self, name: &'static str) -> Result<(), Stop> {
        let kept = match self.kept.take() {
            Some(kept) => kept,
            None => match self.open_kept(name).await? {
                Some(kept) => kept,
                None => return Ok(()),
            },
        };
        let spaces = self.session.model.spaces_at(kept.timestamp().0);
        let names: Vec<&String> = spaces.iter().map(|(name, _)| name).collect();
        let found = names_of(kept.keyspaces());
        assert_eq!(found.iter().collect::<Vec<_>>(), names, "the keyspaces of {kept:?}");
        for _ in 0..1 + self.random.below(3) {
            let Some((name, space)) = spaces.get(self.random.below(spaces.len().max(1) as u64) as usize) else { break };
            let keyspace = kept.keyspace(name).expect("the snapshot lists it");
            match self.random.below(8) {
                0..3 => self.kept_get(&kept, &keyspace, *space).await?,
                3 => self.kept_count(&kept, &keyspace, *space).await?,
                4 => {
                    let bounds = self.bounds(*space);
                    let at = kept.timestamp().0;
                    let seen = VisibleStates { from: at, to: at, own: None, how: "kept snapshot", renews: false };
                    let range = kept.range(&keyspace, bounds.clone());
                    // The model says of dropped keyspaces that their rows may be absent. Here they may not.
                    self.scan(range, *space, &bounds, &seen).await;
                }
                5 => {
                    let refused = keyspace.insert("key", "value");
                    assert!(matches!(refused, Err(Error::Invalid(_))), "{kept:?} was written to: {refused:?}");
                }
                _ => self.scan_in_pieces(&kept, keyspace.iter(), *space).await?,
            }
        }
        if self.random.chance(60) {
            self.kept = Some(kept);
        }
        Ok(())
    }

    async fn open_kept(&mut self, name: &'static str) -> Result<Option<KeptSnapshot>, Stop> {
        let (api, db) = (self.api, self.session.db.clone());
        let before = self.session.model.kept(name);
        let open = async { by_api!(api, db.open_snapshot(name), db.open_snapshot_async(name)) };
        let Some(opened) = self.or_drop(open).await else { return Ok(None) };
        let (known, changes) = self.session.model.kept(name);
        let is_certain = before == (known, changes);
        match opened {
            Ok(kept) => {
                let at = kept.timestamp().0;
                assert!(!is_certain || known == Kept::Perhaps || known == Kept::At(at), "{kept:?} should be {known:?}");
                Ok(Some(kept))
            }
            Err(Error::NoSuchSnapshot { .. }) => {
                let may = !is_certain || !matches!(known, Kept::At(_));
                assert!(may, "{name:?} can't be opened; it should be {known:?}");
                Ok(None)
            }
            // Page tables of snapshots have no room in memory of their own.
            Err(Error::BudgetTooSmall { .. }) => Ok(None),
            Err(error) => self.accept(&error, Call::Plain, None).map(|()| None),
        }
    }

    async fn kept_get(&mut self, kept: &KeptSnapshot, keyspace: &Keyspace, space: SpaceNumber) -> Result<(), Stop> {
        let (at, key, api) = (kept.timestamp().0, self.key(space), self.api);
        // The keyspace of the database, if it has one of this name, stands for the snapshot's form of it.
        let current = self.session.model.name(space);
        let own = self.random.chance(50).then(|| self.open(&current)).flatten().filter(|(_, own)| *own == space);
        let keyspace = own.as_ref().map_or(keyspace, |(own, _)| own);
        let get = async { by_api!(api, kept.get(keyspace, &key), kept.get_async(keyspace, &key)) };
        match self.or_drop(get).await {
            None => Ok(()),
            Some(Ok(found)) => {
                self.session.counts.add(Count::Reads);
                let wanted = self.session.model.at(space, &key, at);
                self.check_value(space, &key, at, wanted, found.as_deref(), "kept snapshot");
                Ok(())
            }
            Some(Err(error)) => self.accept(&error, Call::Snapshot, own.map(|_| space)),
        }
    }

    async fn kept_count(&mut self, kept: &KeptSnapshot, keyspace: &Keyspace, space: SpaceNumber) -> Result<(), Stop> {
        let (at, bounds, api) = (kept.timestamp().0, self.bounds(space), self.api);
        let within = bounds.clone();
        let count = async { by_api!(api, kept.count(keyspace, within), kept.count_async(keyspace, within)) };
        match self.or_drop(count).await {
            None => Ok(()),
            Some(Ok(count)) => {
                let wanted = self.session.model.rows_at(space, at).range(bounds).count() as u64;
                assert_eq!(count, wanted, "the number of rows in {kept:?}");
                Ok(())
            }
            Some(Err(error)) => self.accept(&error, Call::Copy, None),
        }
    }

    /// Reads all rows of a keyspace. In between, others work, the client has the space of old pages used again, and it
    /// drops the snapshot.
    async fn scan_in_pieces(&mut self, kept: &KeptSnapshot, mut range: Range, space: SpaceNumber) -> Result<(), Stop> {
        self.session.counts.add(Count::Scans);
        let (at, api) = (kept.timestamp().0, self.api);
        let rows = self.session.model.rows_at(space, at);
        let mut wanted = rows.iter();
        let pause_one_in = 1 + rows.len() as u64 / 4;
        loop {
            if self.random.below(pause_one_in) == 0 {
                match self.random.below(12) {
                    0 => {
                        let name = KEPT[self.random.below(3) as usize];
                        self.drop_kept(name).await?;
                    }
                    1..3 => self.maintenance().await?,
                    3..6 => self.autocommit().await?,
                    _ => {
                        let micros = self.random.below(3000);
                        self.sleep(std::time::Duration::from_micros(micros)).await;
                    }
                }
            }
            match by_api!(api, range.next(), range.next_async()) {
                Some(Ok((key, value))) => compare_row(wanted.next(), &key, &value, &format!("{kept:?}")),
                Some(Err(error)) => return self.accept(&error, Call::Copy, None),
                None => {
                    let missing = wanted.next().map(|(key, _)| key.escape_ascii().to_string());
                    assert!(missing.is_none(), "{kept:?} lacks row {missing:?}");
                    return Ok(());
                }
            }
        }
    }

    /// Makes a full backup, or one of the changes since a kept snapshot that was backed up. Restores it on a disk of
    /// its own, and compares the restored database with the model.
    async fn back_up(&mut self, name: &'static str) -> Result<(), Stop> {
        let model = self.session.model.clone();
        let (base, other) = (name, KEPT[self.random.below(3) as usize]);
        let chain = self.session.backups.chain(base).filter(|chain| {
            let is_kept = matches!(model.kept(base), (Kept::At(_), changes) if changes == chain.changes);
            is_kept && chain.backups.len() <= INCREMENTS_MAX
        });
        let claim = if other != base && self.random.chance(60) { model.claim_kept(other) } else { None };
        let mut options = BackupOptions::new();
        if claim.is_some() {
            options = options.keep(other);
        }
        if chain.is_some() {
            options = options.since(base);
        }
        let db = self.session.db.clone();
        let made = self.elsewhere(move || {
            let mut backup = Vec::new();
            db.backup_into(&mut backup, &options).map(|report| (report.timestamp.0, backup))
        });
        let made = made.await;
        let is_certain = matches!(
            made,
            Ok(_)
                | Err(Error::NoSuchSnapshot { .. }
                    | Error::Invalid(_)
                    | Error::DiskFull { .. }
                    | Error::MemoryInUse { .. })
        );
        if claim.is_some() && is_certain {
            let kept = self.session.db.kept_snapshots().into_iter().find(|info| info.name == other);
            model.settle_kept(other, kept.map_or(Kept::No, |info| Kept::At(info.timestamp.0)));
        }
        let has_base = chain.as_ref().is_none_or(|chain| model.kept(base).1 == chain.changes);
        let (at, backup) = match made {
            Ok(made) => made,
            // Another client has dropped the base.
            Err(Error::NoSuchSnapshot { .. }) if !has_base => return Ok(()),
            // The snapshot may have been kept before the base.
            Err(Error::Invalid(_)) if !has_base || claim.is_some_and(|claim| claim.before != Kept::No) => return Ok(()),
            Err(error) => return self.accept(&error, Call::Backup, None),
        };
        let (known, changes) = model.kept(other);
        if !has_base {
            return Ok(());
        }
        self.session.counts.add(Count::Backups);
        let mut backups = chain.map_or(Vec::new(), |chain| chain.backups);
        backups.push(Arc::new(backup));
        if claim.is_some() && known == Kept::At(at) {
            self.session.backups.add(other, Chain { changes, backups: backups.clone() });
        }
        let (plan, seed) = (self.session.plan.clone(), self.random.next());
        self.elsewhere(move || restore(&backups, at, &model, &plan, seed)).await;
        Ok(())
    }
}

impl Backups {
    fn chain(&self, name: &str) -> Option<Chain> {
        self.0.lock().expect("nobody panics with it").get(name).cloned()
    }

    fn add(&self, name: &'static str, chain: Chain) {
        self.0.lock().expect("nobody panics with it").insert(name, chain);
    }
}

/// Restores a database on an empty disk, and compares it with the model at this commit.
fn restore(backups: &[Arc<Vec<u8>>], at: u64, model: &Model, plan: &Plan, seed: u64) {
    let disk = Disk::new(Medium::default(), seed);
    let config = plan.config(&disk);
    let readers = backups.iter().map(|backup| &backup[..]);
    let restored = config.restore_from(readers, "/restored").unwrap_or_else(|error| panic!("restoring: {error}"));
    assert_eq!(restored.timestamp.0, at, "the restored state");
    compare_restored(&config, "/restored", at, model);
}

/// Compares a restored database with the model at a commit.
pub(crate) fn compare_restored(config: &Config, path: &str, at: u64, model: &Model) {
    let db = config.open(path).unwrap_or_else(|error| panic!("opening what was restored: {error}"));
    let names = names_of(db.keyspaces());
    let compared = compare(&names, |name| db.existing_keyspace(name), model, at, "the restored database");
    compared.unwrap_or_else(|error| panic!("reading what was restored: {error}"));
    let report = db.check().unwrap_or_else(|error| panic!("checking what was restored: {error}"));
    assert!(report.corruption.is_empty(), "the restored database is damaged: {:?}", report.corruption);
    let mut found: Vec<_> = db.prepared().expect("no faults").into_iter().map(|found| found.id).collect();
    found.retain(|id| id != b"first");
    assert_eq!(found, model.prepared_at(at), "the prepared transactions of the restored database");
    db.close().unwrap_or_else(|error| panic!("closing what was restored: {error}"));
}

/// Compares the kept snapshots of a database that has just been opened with the model.
///
/// # Errors
/// An error of the database.
pub(crate) fn compare_kept(db: &Database, model: &Model) -> Result<(), Error> {
    for info in db.kept_snapshots() {
        let kept = match db.open_snapshot(&info.name) {
            Err(Error::BudgetTooSmall { .. }) => continue,
            opened => opened?,
        };
        let (at, what) = (kept.timestamp().0, format!("after opening, {kept:?}"));
        compare(&names_of(kept.keyspaces()), |name| kept.keyspace(name), model, at, &what)?;
    }
    Ok(())
}

fn names_of(keyspaces: Vec<KeyspaceInfo>) -> Vec<String> {
    keyspaces.into_iter().map(|info| info.name).collect()
}

/// Compares keyspaces with those of the model at a commit.
fn compare(
    names: &[String],
    open: impl Fn(&str) -> Result<Keyspace, Error>,
    model: &Model,
    at: u64,
    what: &str,
) -> Result<(), Error> {
    let spaces = model.spaces_at(at);
    assert_eq!(names, spaces.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>(), "{what}: keyspaces at {at}");
    for (name, space) in spaces {
        let keyspace = open(&name)?;
        let rows = model.rows_at(space, at);
        let mut wanted = rows.iter();
        for row in &keyspace {
            let (key, value) = row?;
            compare_row(wanted.next(), &key, &value, &format!("{what}, keyspace {name:?}"));
        }
        let missing = wanted.next().map(|(key, _)| key.escape_ascii().to_string());
        assert!(missing.is_none(), "{what}: {name:?} lacks row {missing:?}");
        assert_eq!(keyspace.len()?, rows.len() as u64, "{what}: the number of rows in {name:?}");
    }
    Ok(())
}

fn compare_row(wanted: Option<(&Vec<u8>, &Content)>, key: &[u8], value: &[u8], what: &str) {
    let is_it = wanted.is_some_and(|(other, content)| other[..] == *key && content.is(value));
    assert!(
        is_it,
        "{what}: row {} is {}; expected was {:?}",
        key.escape_ascii(),
        describe(value),
        wanted.map(|(key, content)| (key.escape_ascii().to_string(), content))
    );
}
