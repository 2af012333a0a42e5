//! The world of one seed: a disk, a database on it that is reopened many times, the clients, and the faults.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use drumlin::{Database, Error, Isolation, KeyspaceOptions, LockMode, TxOptions};
use drumlin_io::testing::sim::{self, Disk, FaultCounts, Faults, Loss, Medium, Random};

use crate::client::{self, Backups, Count, Counts, DURABLE, Session, recorded};
use crate::crowd;
use crate::follower::Follower;
use crate::model::{Model, Operation, Tampering};
use crate::plan::{Fault, Plan};
use crate::rewinds::Rewinds;

/// The number of events of each kind in a world.
#[derive(Clone, Debug, Default)]
pub struct RunReport {
    pub openings: u64,
    /// Openings that failed because of a disk fault.
    pub openings_refused: u64,
    pub cuts: u64,
    pub cuts_while_opening: u64,
    pub kills: u64,
    pub closes: u64,
    pub commits: u64,
    pub rows_checked: u64,
    pub damage_reported: u64,
    /// Openings of a damaged disk that recovered fewer commits than they would have had to recover on a sound disk.
    pub openings_behind: u64,
    pub counts: BTreeMap<&'static str, u64>,
    pub harm: FaultCounts,
}

/// The outcome of running a seed.
#[derive(Clone, Debug)]
pub struct Run {
    pub plan: Plan,
    pub result: Result<RunReport, String>,
    pub trace: u64,
    pub duration: Duration,
    pub points: u64,
}

/// Runs the world that a plan describes.
#[must_use]
pub fn run(plan: Plan) -> Run {
    let own = plan.clone();
    let outcome = sim::run(plan.schedule, move || World::new(own).live());
    Run { plan, result: outcome.result, trace: outcome.trace, duration: outcome.duration, points: outcome.points }
}

struct World {
    plan: Plan,
    random: Random,
    model: Model,
    follower: Arc<Mutex<Follower>>,
    counts: Counts,
    backups: Backups,
    rewinds: Rewinds,
    report: RunReport,
    /// `true` if the disk was damaged without the database's knowledge, in this or an earlier session.
    is_damaged: bool,
}

/// The ways to end a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// The power is cut while clients are running.
    Cut,
    /// The process is killed. The disk keeps all of its changes, and the uncertain ones stay uncertain.
    Kill,
    Close,
}

impl World {
    fn new(plan: Plan) -> World {
        let random = Random(plan.seed);
        let rewinds = Rewinds::new(plan.seed);
        World {
            plan,
            random,
            model: Model::default(),
            follower: Arc::default(),
            counts: Counts::default(),
            backups: Backups::default(),
            rewinds,
            report: RunReport::default(),
            is_damaged: false,
        }
    }

    fn live(mut self) -> RunReport {
        let mut medium = if self.plan.fault == Fault::CrowdedDisk { self.crowd() } else { Medium::default() };
        for session in 0..self.plan.sessions {
            let is_last = session + 1 == self.plan.sessions;
            match self.session(medium, is_last) {
                Some(next) => medium = next,
                None => {
                    medium = Medium::default();
                    break;
                }
            }
        }
        if self.plan.archives && !self.is_damaged {
            self.rewinds.verify(medium, &self.model, &self.plan);
        }
        let counts = [
            ("read", Count::Reads),
            ("scan", Count::Scans),
            ("transaction", Count::Transactions),
            ("conflict", Count::Conflicts),
            ("refusal| for lack of space", Count::Refused),
            ("removal| refused, after rows had been put", Count::RefusedRemovals),
            ("snapshot", Count::Snapshots),
            ("snapshot| too old", Count::SnapshotsTooOld),
            ("call| refused for lack of memory", Count::MemoryInUse),
            ("checkpoint| requested", Count::Checkpoints),
            ("snapshot| kept on disk", Count::Kept),
            ("backup| restored", Count::Backups),
            ("clone", Count::Clones),
            ("future| dropped", Count::Dropped),
            ("commit| dropped with a timestamp", Count::DroppedLate),
        ];
        self.report.counts = counts.into_iter().map(|(name, count)| (name, self.counts.get(count))).collect();
        let (commits, (old_values, _)) = {
            let follower = self.follower.lock().expect("no panic");
            (follower.commits(), follower.old_values())
        };
        self.report.counts.insert("commit| told by the feed", commits);
        self.report.counts.insert("old value| told by the feed", old_values);
        self.report.counts.insert("point| in time restored", self.rewinds.restored);
        self.report.commits = self.model.commits();
        self.report.rows_checked = self.model.checked();
        self.report
    }

    /// Returns a disk with a large database, created without faults.
    fn crowd(&mut self) -> Medium {
        let disk = Disk::new(Medium::default(), self.random.next());
        let db = self.plan.config(&disk).open("/db").expect("a new database");
        self.prepare(&db, &disk).expect("new keyspaces");
        crowd::fill(&db, &self.model, &self.plan, &mut self.random).expect("a disk in order with space on it");
        db.close().expect("a disk in order");
        disk.medium()
    }

    /// Runs one session: opens the database, verifies it, lets the clients run, and ends the session. Returns the disk
    /// after the session, or `None` if the database can't be reopened.
    fn session(&mut self, medium: Medium, is_last: bool) -> Option<Medium> {
        let disk = Disk::new(medium, self.random.next());
        let end = self.draw_end(is_last);
        if end == End::Cut {
            self.plan_cut(&disk);
        }
        let lies = self.plan.fault == Fault::Lies;
        disk.set_faults(Faults { slow_one_in: self.plan.slow_one_in, lies, ..Faults::default() });
        self.is_damaged |= lies;
        let plan = self.plan.of_session(self.report.openings);
        // Faults may make every opening fail, so inject them only after the first opening has created the database.
        if self.plan.faults_at_openings && self.report.openings > 0 {
            self.begin_faults(&disk);
        }
        self.report.openings += 1;
        let opened = plan.config(&disk).open("/db");
        self.end_faults(&disk);
        self.is_damaged |= disk.fault_counts().has_damaged();
        let db = match opened {
            Ok(db) => db,
            Err(_) if disk.is_off() => {
                self.add_harm(&disk.fault_counts());
                self.report.cuts_while_opening += 1;
                return Some(self.cut(&disk));
            }
            Err(error) if disk.fault_counts().has_failed() && !self.is_damaged => {
                return Some(self.refused(&disk, &error));
            }
            Err(error) => return self.unopened(&disk, &error),
        };
        if let Err(error) = self.verify(&db, &disk) {
            let may = disk.is_off() || self.may_be_damaged(&error) || disk.fault_counts().may_fail_reads();
            assert!(may, "verifying: {error}");
            if !disk.is_off() {
                self.report.damage_reported += 1;
            }
        }
        if self.plan.archives && !disk.is_off() {
            self.rewinds.mark(&disk, &self.model);
            self.rewinds.back_up(&db, &disk, &self.plan);
        }
        if !disk.is_off() && !is_last {
            self.work(&db, &disk, end);
        }
        let after = self.end_session(db, &disk, end);
        self.add_harm(&disk.fault_counts());
        Some(after)
    }

    fn draw_end(&mut self, is_last: bool) -> End {
        let end = match self.random.below(100) {
            _ if is_last => End::Close,
            0..60 => End::Cut,
            60..75 => End::Kill,
            _ => End::Close,
        };
        if sim::is_told() {
            eprintln!("session {}, which will end by {end:?}", self.report.openings);
        }
        end
    }

    /// Schedules a power cut at some change of the disk. Early changes are drawn more often, because the few changes of
    /// an opening matter most.
    fn plan_cut(&mut self, disk: &Disk) {
        let clients = self.plan.clients + self.plan.task_threads * self.plan.tasks;
        let changes = match self.random.below(100) {
            0..25 => self.random.below(60),
            25..60 => self.random.below(400),
            _ => self.random.below(self.plan.steps * clients * 4 + 100),
        };
        disk.turn_off_at(1 + changes);
    }

    /// Ends the session in the given way. Returns the disk afterwards.
    fn end_session(&mut self, db: Database, disk: &Disk, end: End) -> Medium {
        match end {
            End::Cut => {
                drop(db);
                self.report.cuts += 1;
                self.cut(disk)
            }
            End::Kill => {
                disk.turn_off();
                drop(db);
                self.report.kills += 1;
                disk.medium()
            }
            End::Close => {
                if let Err(error) = db.close() {
                    let may = self.plan.fault != Fault::None;
                    assert!(may, "closing: {error}");
                }
                self.report.closes += 1;
                let mut medium = disk.medium();
                if self.plan.fault == Fault::Rot && self.random.chance(50) {
                    self.rot(&mut medium);
                }
                medium
            }
        }
    }

    fn cut(&mut self, disk: &Disk) -> Medium {
        let loss = Loss::ALL[self.random.below(4) as usize];
        if sim::is_told() {
            eprintln!("the power is cut; uncertain writes lost: {loss:?}");
        }
        let mut medium = disk.medium().cut(loss, &mut self.random);
        if self.plan.fault == Fault::Rot && self.random.chance(40) {
            self.rot(&mut medium);
        }
        medium
    }

    fn tampering(&self, disk: &Disk) -> Tampering {
        let mut harm = self.report.harm;
        harm.add(&disk.fault_counts());
        match self.plan.fault {
            _ if !self.is_damaged => Tampering::None,
            Fault::Rot => Tampering::Once,
            Fault::LostWrites if harm.writes_lost == 1 && harm.writes_misdirected == 0 => Tampering::Once,
            _ => Tampering::Much,
        }
    }

    /// Flips a bit. Does this at most once in each world, because the model knows how much damage a single flip can do,
    /// but not how much several flips can do.
    fn rot(&mut self, medium: &mut Medium) {
        if self.is_damaged {
            return;
        }
        let name = ["/db/data", "/db/log", "/db"][self.random.below(3) as usize];
        if medium.rot(name, &mut self.random) {
            self.report.harm.bits_flipped += 1;
            self.is_damaged = true;
        }
    }

    fn add_harm(&mut self, harm: &FaultCounts) {
        self.report.harm.add(harm);
        self.is_damaged |= harm.has_damaged();
    }

    fn may_be_damaged(&self, error: &str) -> bool {
        self.is_damaged && (error.contains("corrupted: ") || error.contains("not a Drumlin database"))
    }

    /// Handles an opening that failed although the power was on. Only damage to the disk can explain that.
    fn unopened(&mut self, disk: &Disk, error: &Error) -> Option<Medium> {
        let text = error.to_string();
        assert!(self.may_be_damaged(&text), "opening: {text}");
        self.report.damage_reported += 1;
        self.add_harm(&disk.fault_counts());
        None
    }

    /// Handles an opening that failed because of a fault. Ends the process, possibly with a power cut, so that the next
    /// session retries the opening.
    fn refused(&mut self, disk: &Disk, error: &Error) -> Medium {
        // An unreadable superblock counts as corrupted. The older superblock that is left may be too old for the log.
        let is_unread = disk.fault_counts().reads_failed > 0 && matches!(error, Error::Corrupted { .. });
        let is_damaged = matches!(error, Error::Corrupted { .. } | Error::NotADatabase { .. });
        assert!(!is_damaged || is_unread, "opening with faults: {error}");
        self.report.openings_refused += 1;
        self.add_harm(&disk.fault_counts());
        disk.turn_off();
        let mut medium = if self.random.chance(50) { self.cut(disk) } else { disk.medium() };
        // Make all blocks readable, because the next session may need the blocks that could not be read.
        medium.renew();
        medium
    }

    /// Compares the whole database with the model.
    fn verify(&mut self, db: &Database, disk: &Disk) -> Result<(), String> {
        let text = |error: Error| error.to_string();
        let last = db.opening().last.0;
        self.report.openings_behind += u64::from(last < self.model.acknowledged());
        let lost = self.model.reopen(last, self.tampering(disk));
        if let Err(reason) = lost {
            assert!(disk.is_off(), "after opening: {reason}");
            return Err(reason);
        }
        let snapshot = db.snapshot();
        assert_eq!(snapshot.timestamp().0, last, "the first snapshot is of the last commit");
        let names: Vec<String> = db.keyspaces().into_iter().map(|info| info.name).collect();
        let mut wanted: Vec<String> = self.model.spaces().into_iter().map(|(name, _)| name).collect();
        wanted.sort();
        assert_eq!(names, wanted, "the keyspaces at commit {last}");
        for (name, space) in self.model.spaces() {
            let keyspace = db.existing_keyspace(&name).map_err(text)?;
            let rows = self.model.rows_at(space, last);
            let mut wanted = rows.iter();
            let backwards = self.random.chance(30);
            let mut range = snapshot.iter(&keyspace);
            let mut next = || if backwards { range.next_back() } else { range.next() };
            while let Some(row) = next() {
                let (key, value) = row.map_err(text)?;
                let expected = if backwards { wanted.next_back() } else { wanted.next() };
                let is_it = expected.is_some_and(|(other, content)| other[..] == key[..] && content.is(&value));
                assert!(
                    is_it,
                    "after opening at commit {last}, row {} of {name:?} is {}; expected was {:?}",
                    key.escape_ascii(),
                    crate::model::describe(&value),
                    expected.map(|(key, content)| (key.escape_ascii().to_string(), content))
                );
            }
            let missing = wanted.next();
            assert!(missing.is_none(), "after opening at commit {last}, {name:?} lacks {missing:?}");
        }
        self.verify_prepared(db).map_err(text)?;
        self.verify_feed(db, disk, last)?;
        self.verify_kept(db, disk)?;
        if self.random.chance(50) {
            let report = db.check().map_err(text)?;
            let harmless = self.is_damaged || disk.is_off() || disk.fault_counts().may_fail_reads();
            assert!(report.corruption.is_empty() || harmless, "damage after opening: {:?}", report.corruption);
            self.report.damage_reported += u64::from(!report.corruption.is_empty() && !disk.is_off());
        }
        Ok(())
    }

    /// Lets the follower apply the commits up to `last`, and compares its rows with the model.
    fn verify_feed(&mut self, db: &Database, disk: &Disk, last: u64) -> Result<(), String> {
        if self.plan.changes_bytes == 0 {
            return Ok(());
        }
        let mut follower = self.follower.lock().expect("no follower has panicked");
        if self.tampering(disk) != Tampering::None {
            follower.lose_after(&self.model, last);
        }
        loop {
            let Err(error) = follower.catch_up(db, &self.model, last) else { return Ok(()) };
            let stats = db.stats();
            let may_be_gone = self.plan.fault != Fault::None || stats.changes_bytes >= self.plan.changes_bytes;
            match error {
                Error::ChangesGone { from, .. } if may_be_gone && stats.changes_failure.is_none() => {
                    follower.skip_to(&self.model, from.0);
                }
                // The files could not be written.
                Error::ChangesGone { .. } if may_be_gone => {
                    follower.skip_to(&self.model, last);
                    return Ok(());
                }
                Error::ChangesGone { .. } => {
                    assert!(disk.is_off(), "following the feed: {error}");
                    return Err(error.to_string());
                }
                error => return Err(format!("following the feed: {error}")),
            }
        }
    }

    /// Checks that the snapshots are kept that the model has, and some of their rows.
    fn verify_kept(&mut self, db: &Database, disk: &Disk) -> Result<(), String> {
        let text = |error: Error| error.to_string();
        // No snapshot of a backup that did not end is left.
        let found: Vec<_> = db.kept_snapshots().into_iter().map(|info| (info.name, info.timestamp.0)).collect();
        if let Err(reason) = self.model.reopen_kept(&found) {
            assert!(self.tampering(disk) != Tampering::None, "after opening: {reason}");
        }
        client::kept::compare_kept(db, &self.model).map_err(text)
    }

    /// Checks that the transactions are prepared that the model has, and that their rows are locked.
    fn verify_prepared(&self, db: &Database) -> Result<(), Error> {
        let mut wanted: Vec<(Vec<u8>, u64)> =
            self.model.prepared().into_iter().map(|prepared| (prepared.id, prepared.rows.len() as u64)).collect();
        wanted.sort();
        let mut found: Vec<_> = db.prepared()?.into_iter().map(|found| (found.id, found.row_count)).collect();
        // The power was cut in `prepare_once`.
        found.retain(|(id, _)| id != b"first");
        assert_eq!(found, wanted, "the prepared transactions after opening");
        let options = TxOptions { isolation: Isolation::ReadCommitted, ..TxOptions::default() };
        let mut tx = db.begin_with(options)?;
        for prepared in self.model.prepared() {
            for (space, key, _) in prepared.rows {
                let keyspace = db.existing_keyspace(&self.model.name(space))?;
                let is_free = tx.try_lock_row(&keyspace, &key, LockMode::Exclusive)?;
                assert!(!is_free, "after opening, row {} of a prepared transaction is not locked", key.escape_ascii());
            }
        }
        Ok(())
    }

    /// Prepares a transaction and aborts it, so that the keyspace of prepared transactions exists: the model does not
    /// know its creation.
    fn prepare_once(&mut self, db: &Database) -> Result<(), Error> {
        let before = self.model.last();
        let prepared = match db.prepared().is_ok_and(|all| all.iter().any(|found| found.id == b"first")) {
            true => Ok(()),
            false => db.begin().and_then(|tx| tx.prepare("first")),
        };
        let done = prepared.and_then(|()| db.abort_prepared("first"));
        let last = if done.is_ok() { db.stats().durable.0 } else { before + 3 };
        for timestamp in before + 1..=last {
            self.model.enter(timestamp, Operation::Rows(Vec::new()));
        }
        done
    }

    fn work(&mut self, db: &Database, disk: &Disk, end: End) {
        if self.prepare(db, disk).is_none() {
            return;
        }
        self.begin_faults(disk);
        let session = Arc::new(Session {
            db: db.clone(),
            disk: disk.clone(),
            model: self.model.clone(),
            plan: self.plan.clone(),
            counts: self.counts.clone(),
            backups: self.backups.clone(),
            was_damaged: self.is_damaged,
            has_put: AtomicBool::default(),
            queue_is_busy: AtomicBool::default(),
        });
        let mut threads: Vec<_> = (0..self.plan.clients)
            .map(|number| {
                let (session, seed, steps) = (Arc::clone(&session), self.random.next(), self.plan.steps);
                let body = move || client::run(session, seed, steps);
                sim::spawn(&format!("client {number}"), Box::new(body)).expect("a thread")
            })
            .collect();
        threads.extend((0..self.plan.task_threads).map(|number| {
            let (session, random, plan) = (Arc::clone(&session), Random(self.random.next()), &self.plan);
            let (count, steps) = (plan.tasks, plan.steps);
            let body = move || client::run_tasks(&session, random, count, steps);
            sim::spawn(&format!("tasks {number}"), Box::new(body)).expect("a thread")
        }));
        let is_over = Arc::new(AtomicBool::default());
        let follower = (self.plan.changes_bytes > 0).then(|| {
            let (follower, is_over, session) = (Arc::clone(&self.follower), Arc::clone(&is_over), Arc::clone(&session));
            let body = move || {
                let is_over = || is_over.load(Ordering::Relaxed) || session.disk.is_off();
                let mut follower = follower.lock().expect("no follower has panicked");
                // The next opening says if an error is allowed.
                let _ = follower.follow(&session.db, &session.model, &is_over);
            };
            sim::spawn("follower", Box::new(body)).expect("a thread")
        });
        if end == End::Kill {
            // Stop the clients at a random time instead of waiting until all of them have finished.
            let order = 18 + self.random.below(12);
            let nanos = self.random.below(1 << order);
            sim::sleep(Duration::from_nanos(nanos));
            disk.turn_off();
        }
        for thread in threads {
            let _ = sim::join(thread);
        }
        is_over.store(true, Ordering::Relaxed);
        if self.plan.archives {
            self.rewinds.mark(disk, &self.model);
        }
        if let Some(follower) = follower {
            let _ = sim::join(follower);
        }
        if let Err(error) = client::lock_hot_rows(db, &self.model) {
            let may = disk.is_off()
                || self.is_damaged
                || disk.fault_counts().has_damaged()
                || disk.fault_counts().may_fail_reads();
            assert!(
                may && !matches!(error, Error::LockTimeout { .. }),
                "locking rows after all clients have ended: {error}"
            );
        }
        if self.plan.fault == Fault::CrowdedDisk
            && let Err(error) = self.fill_and_thin_out(db, session.has_put.load(Ordering::Relaxed))
        {
            assert!(disk.is_off(), "on a crowded disk: {error}");
        }
        if !self.plan.faults_at_openings {
            self.end_faults(disk);
        }
    }

    /// Fills the disk and then removes rows, while no client is running.
    fn fill_and_thin_out(&mut self, db: &Database, has_put: bool) -> Result<(), Error> {
        let has_filled = crowd::fill_up(db, &self.model, &mut self.random)?;
        // Until a row is put in this session, there may be too little space to reserve for removals.
        if has_put || has_filled {
            crowd::thin_out(db, &self.model, &mut self.random)?;
        }
        Ok(())
    }

    /// Creates the keyspaces that always exist.
    fn prepare(&mut self, db: &Database, disk: &Disk) -> Option<()> {
        for (name, page_bytes) in DURABLE {
            if self.model.space(name).is_some() {
                continue;
            }
            let options = KeyspaceOptions::new().page_bytes(page_bytes);
            let (taken, made) =
                recorded(&self.model, |_| Operation::Create(name.to_owned()), || db.keyspace_with(name, options));
            match made {
                Ok(_) => self.model.answer(taken, true),
                Err(error) => {
                    let may =
                        disk.is_off() || self.may_be_damaged(&error.to_string()) || disk.fault_counts().has_failed();
                    assert!(may, "creating keyspace {name:?}: {error}");
                    return None;
                }
            }
        }
        if self.plan.prepares
            && let Err(error) = self.prepare_once(db)
        {
            let may = disk.is_off() || self.may_be_damaged(&error.to_string()) || disk.fault_counts().has_failed();
            assert!(may, "preparing a transaction: {error}");
            return None;
        }
        Some(())
    }

    fn begin_faults(&mut self, disk: &Disk) {
        let slow_one_in = self.plan.slow_one_in;
        let calm = Faults { slow_one_in, ..Faults::default() };
        let often = 20 << self.random.below(7);
        let faults = match self.plan.fault {
            Fault::None | Fault::Rot => calm,
            Fault::FailingReads if self.random.chance(50) => Faults { read_fails_one_in: often, ..calm },
            Fault::FailingReads => Faults { read_fails_for_ever_one_in: often, ..calm },
            Fault::FailingWrites => Faults { write_fails_one_in: often, name_fails_one_in: often, ..calm },
            Fault::FailingSyncs => Faults { sync_fails_one_in: often, ..calm },
            Fault::FullDisk | Fault::CrowdedDisk => {
                let more = self.random.below(12) * (256 << 10);
                Faults { capacity_bytes: Some(disk.medium().bytes() + more), ..calm }
            }
            Fault::LostWrites if self.random.chance(50) => Faults { write_lost_one_in: often, ..calm },
            Fault::LostWrites => Faults { write_misdirected_one_in: often, ..calm },
            Fault::Lies => Faults { lies: true, ..calm },
        };
        disk.set_faults(faults);
    }

    /// Ends the faults before a check that has to read the whole database. A lying or full disk stays as it is.
    fn end_faults(&mut self, disk: &Disk) {
        if !matches!(self.plan.fault, Fault::Lies | Fault::FullDisk | Fault::CrowdedDisk) {
            disk.set_faults(Faults { slow_one_in: self.plan.slow_one_in, ..Faults::default() });
        }
    }
}
