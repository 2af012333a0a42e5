//! One seed's world: a disk, a database on it that is opened again and again, its clients, and what goes wrong.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use drumlin::io::sim::{self, Disk, Faults, Harm, Loss, Medium, Random, Schedule};
use drumlin::{Config, Database, Error, KeyspaceOptions};

use crate::client::{self, Count, Counts, LASTING, Life, entered};
use crate::crowd;
use crate::model::{Deed, Model, Tampering};

/// What goes wrong in a world besides power cuts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord, clap::ValueEnum)]
pub enum Trouble {
    None,
    /// Reads fail, once or for ever.
    FailingReads,
    FailingWrites,
    FailingSyncs,
    FullDisk,
    /// A full disk, with very many pages and keyspaces on it. No seed has it of itself.
    CrowdedDisk,
    /// Writes that were reported and did not happen, or happened elsewhere.
    LostWrites,
    /// Bits that flip at rest.
    Rot,
    /// What is reported as durable is not.
    Lies,
}

impl Trouble {
    /// What the command line calls it.
    #[must_use]
    pub fn name(self) -> String {
        use clap::ValueEnum as _;
        self.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned())
    }

    /// The one of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Trouble> {
        <Trouble as clap::ValueEnum>::from_str(name, false).ok()
    }
}

/// What follows from a seed before anything happens.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    /// A trouble that is not the seed's own.
    pub imposed: Option<Trouble>,
    pub schedule: Schedule,
    /// Some transactions are serializable.
    pub serializable: bool,
    /// Threads that run clients as tasks, and how many each.
    pub task_threads: u64,
    pub tasks: u64,
    /// Runs of neighbouring rows are put and removed.
    pub runs: bool,
    /// A client keeps its snapshot until it is too old.
    pub keeps_snapshots: bool,
    /// No checkpoint is made for the length of the log.
    pub log_grows: bool,
    pub log_segment_bytes: u64,
    /// Each life has another number of streams, and log segments of another length.
    pub log_varies: bool,
    /// What goes wrong does so while the database is opened and closed too.
    pub troubles_openings: bool,
    pub trouble: Trouble,
    pub lives: u64,
    pub clients: u64,
    pub steps: u64,
    pub think_nanos: u64,
    pub key_count: u64,
    pub value_bytes: u64,
    pub large_values: bool,
    pub relaxed_percent: u64,
    pub upkeep_weight: u64,
    pub slow_one_in: u64,
    pub memory_bytes: u64,
    pub page_bytes: usize,
    pub streams: u16,
    pub checkpoint_log_bytes: u64,
    /// Clients read in every way there is, and let closures be made again.
    pub reads_all: bool,
}

impl Plan {
    #[must_use]
    pub fn of(seed: u64) -> Plan {
        let mut random = Random(seed ^ 0x5EED_0F1A_11A5_0E55);
        let mut one_of = |values: &[u64]| values[random.below(values.len() as u64) as usize];
        let schedule = Schedule {
            seed,
            switch_one_in: one_of(&[1, 2, 3, 5, 10, 30, 100]),
            step_nanos_max: one_of(&[50, 200, 1000, 5000]),
            points_max: 100_000_000,
        };
        let trouble = match one_of(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19]) {
            0..12 => Trouble::None,
            12 => Trouble::FailingReads,
            13 => Trouble::FailingWrites,
            14 => Trouble::FailingSyncs,
            15 | 16 => Trouble::FullDisk,
            17 => Trouble::LostWrites,
            18 => Trouble::Rot,
            _ => Trouble::Lies,
        };
        let large_values = one_of(&[0, 0, 1]) == 1;
        let streams = one_of(&[1, 1, 2, 3]);
        Plan {
            seed,
            imposed: None,
            schedule,
            trouble,
            lives: one_of(&[2, 3, 4, 6]),
            clients: one_of(&[1, 2, 3, 5, 8]),
            steps: one_of(&[20, 60, 150, 300]),
            think_nanos: one_of(&[0, 0, 0, 100_000, 10_000_000, 5_000_000_000]),
            key_count: one_of(&[30, 300, 3000]),
            value_bytes: one_of(&[20, 120, 400]),
            large_values,
            relaxed_percent: one_of(&[0, 0, 20, 60]),
            upkeep_weight: one_of(&[1, 10, 40]),
            slow_one_in: one_of(&[0, 0, 50, 1000]),
            // Each log more takes its buffer.
            memory_bytes: one_of(&[4 << 20, 5 << 20, 8 << 20]) + ((streams - 1) << 19),
            page_bytes: one_of(&[512, 1024, 4096]) as usize,
            streams: streams as u16,
            checkpoint_log_bytes: one_of(&[32 << 10, 128 << 10, 1 << 20]),
            // What is drawn from here on came later: without it, in a plain world, older seeds mean what they meant.
            serializable: one_of(&[0, 1, 1, 1]) == 1,
            task_threads: one_of(&[0, 0, 1, 1, 2]),
            tasks: one_of(&[1, 2, 4]),
            runs: one_of(&[0, 0, 1]) == 1,
            keeps_snapshots: one_of(&[0, 0, 0, 1]) == 1,
            log_grows: one_of(&[0, 0, 0, 1]) == 1,
            log_segment_bytes: one_of(&[1 << 20, 256 << 10]),
            log_varies: one_of(&[0, 1]) == 1,
            troubles_openings: one_of(&[0, 1]) == 1,
            reads_all: one_of(&[1, 0, 0]) == 1,
        }
    }

    /// The same world as it was before this was drawn: blocking clients alone, no serializable transactions.
    #[must_use]
    pub fn plain(self) -> Plan {
        Plan {
            serializable: false,
            task_threads: 0,
            runs: false,
            keeps_snapshots: false,
            log_grows: false,
            log_segment_bytes: 1 << 20,
            log_varies: false,
            troubles_openings: false,
            reads_all: false,
            ..self
        }
    }

    /// The same world with another trouble.
    #[must_use]
    pub fn with(self, imposed: Option<Trouble>) -> Plan {
        let plan = Plan { imposed, trouble: imposed.unwrap_or(self.trouble), ..self };
        match plan.trouble {
            Trouble::CrowdedDisk => plan.crowded(),
            _ => plan,
        }
    }

    /// The same world with many rows, and memory for their pages to be dirty in.
    fn crowded(self) -> Plan {
        let (key_count, more_bytes) = [(2000, 0), (6000, 8 << 20), (15_000, 32 << 20)][(self.seed % 3) as usize];
        // Each scan is a long one.
        let (lives, steps) = (self.lives.max(3), self.steps.min(60));
        Plan { key_count, memory_bytes: self.memory_bytes + more_bytes, lives, steps, ..self }
    }

    /// The plan of one life.
    #[must_use]
    pub fn of_life(&self, life: u64) -> Plan {
        let mut plan = self.clone();
        if self.log_varies {
            let mut random = Random(self.seed ^ (life + 1) << 32);
            plan.streams = 1 + random.below(3) as u16;
            plan.memory_bytes = self.memory_bytes + (u64::from(plan.streams) << 19) - (u64::from(self.streams) << 19);
            plan.log_segment_bytes = [256 << 10, 512 << 10, 1 << 20][random.below(3) as usize];
        }
        plan
    }

    #[must_use]
    pub fn config(&self, disk: &Disk) -> Config {
        Config::new()
            .memory(self.memory_bytes)
            .page_bytes(self.page_bytes)
            .segment_bytes(256 << 10)
            .log_segment_bytes(self.log_segment_bytes)
            .log_streams(self.streams)
            .checkpoint_log_bytes(if self.log_grows { 64 << 20 } else { self.checkpoint_log_bytes })
            .backend(disk.backend())
    }
}

/// What a world went through.
#[derive(Clone, Debug, Default)]
pub struct Story {
    pub openings: u64,
    /// Openings that failed for what went wrong with the disk.
    pub openings_refused: u64,
    pub cuts: u64,
    pub cuts_while_opening: u64,
    pub kills: u64,
    pub closes: u64,
    pub commits: u64,
    pub rows_checked: u64,
    pub damage_reported: u64,
    /// Openings that stood before the last commit that was to last, after the disk had been harmed.
    pub openings_behind: u64,
    pub counts: BTreeMap<&'static str, u64>,
    pub harm: Harm,
}

/// How a seed went.
#[derive(Clone, Debug)]
pub struct Run {
    pub plan: Plan,
    pub result: Result<Story, String>,
    pub trace: u64,
    pub duration: Duration,
    pub points: u64,
}

/// Runs a world.
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
    counts: Counts,
    story: Story,
    /// Something was changed behind the database's back, at some time.
    is_damaged: bool,
}

/// How a life ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// The power goes amid it.
    Cut,
    /// The process is killed: nothing is lost, nothing is certain.
    Kill,
    Close,
}

impl World {
    fn new(plan: Plan) -> World {
        let random = Random(plan.seed);
        World {
            plan,
            random,
            model: Model::default(),
            counts: Counts::default(),
            story: Story::default(),
            is_damaged: false,
        }
    }

    fn live(mut self) -> Story {
        let mut medium = if self.plan.trouble == Trouble::CrowdedDisk { self.crowd() } else { Medium::default() };
        for life in 0..self.plan.lives {
            let is_last = life + 1 == self.plan.lives;
            match self.life(medium, is_last) {
                Some(next) => medium = next,
                None => break,
            }
        }
        let counts = [
            ("read", Count::Reads),
            ("scan", Count::Scans),
            ("transaction", Count::Transactions),
            ("conflict", Count::Conflicts),
            ("refusal| for want of space", Count::Refused),
            ("removal| refused, after rows had been put", Count::RefusedRemovals),
            ("snapshot", Count::Snapshots),
            ("snapshot| too old", Count::SnapshotsTooOld),
            ("checkpoint| asked for", Count::Checkpoints),
            ("future| dropped", Count::Dropped),
            ("commit| dropped with a timestamp", Count::DroppedLate),
        ];
        self.story.counts = counts.into_iter().map(|(name, count)| (name, self.counts.get(count))).collect();
        self.story.commits = self.model.commits();
        self.story.rows_checked = self.model.checked();
        self.story
    }

    /// A disk with a large database, made in peace.
    fn crowd(&mut self) -> Medium {
        let disk = Disk::new(Medium::default(), self.random.next());
        let db = self.plan.config(&disk).open("/db").expect("a new database");
        self.prepare(&db, &disk).expect("new keyspaces");
        crowd::fill(&db, &self.model, self.plan.key_count, self.plan.value_bytes, &mut self.random)
            .expect("a disk in order with space on it");
        db.close().expect("a disk in order");
        disk.medium()
    }

    /// Opens, verifies, works, ends. What the disk holds afterwards; `None` if nothing can be done with it any more.
    fn life(&mut self, medium: Medium, is_last: bool) -> Option<Medium> {
        let disk = Disk::new(medium, self.random.next());
        let end = match self.random.below(100) {
            _ if is_last => End::Close,
            0..60 => End::Cut,
            60..75 => End::Kill,
            _ => End::Close,
        };
        if sim::is_told() {
            eprintln!("life {}, to end by {end:?}", self.story.openings);
        }
        let slow_one_in = self.plan.slow_one_in;
        // The first changes, those of opening, are few and matter.
        if end == End::Cut {
            let changes = match self.random.below(100) {
                0..25 => self.random.below(60),
                25..60 => self.random.below(400),
                _ => self
                    .random
                    .below(self.plan.steps * (self.plan.clients + self.plan.task_threads * self.plan.tasks) * 4 + 100),
            };
            disk.turn_off_at(1 + changes);
        }
        disk.set_faults(Faults { slow_one_in, ..Faults::default() });
        if self.plan.trouble == Trouble::Lies {
            disk.set_faults(Faults { slow_one_in, lies: true, ..Faults::default() });
            self.is_damaged = true;
        }
        let plan = self.plan.of_life(self.story.openings);
        // There has to be a database before its opening can fail for ever.
        if self.plan.troubles_openings && self.story.openings > 0 {
            self.begin_trouble(&disk);
        }
        self.story.openings += 1;
        let opened = plan.config(&disk).open("/db");
        self.end_trouble(&disk);
        self.is_damaged |= disk.harm().has_damaged();
        let db = match opened {
            Ok(db) => db,
            Err(_) if disk.is_off() => {
                self.add_harm(&disk.harm());
                self.story.cuts_while_opening += 1;
                return Some(self.cut(&disk));
            }
            Err(error) if disk.harm().has_failed() && !self.is_damaged => return Some(self.refused(&disk, &error)),
            Err(error) => return self.unopened(&disk, &error),
        };
        if let Err(error) = self.verify(&db, &disk) {
            let may = disk.is_off() || self.may_be_damaged(&error) || disk.harm().may_fail_reads();
            assert!(may, "verifying: {error}");
            if !disk.is_off() {
                self.story.damage_reported += 1;
            }
        }
        if !disk.is_off() && !is_last {
            self.work(&db, &disk, end);
        }
        let after = match end {
            End::Cut => {
                drop(db);
                self.story.cuts += 1;
                self.cut(&disk)
            }
            End::Kill => {
                disk.turn_off();
                drop(db);
                self.story.kills += 1;
                disk.medium()
            }
            End::Close => {
                if let Err(error) = db.close() {
                    let may = self.plan.trouble != Trouble::None;
                    assert!(may, "closing: {error}");
                }
                self.story.closes += 1;
                let mut medium = disk.medium();
                if self.plan.trouble == Trouble::Rot && self.random.chance(50) {
                    self.rot(&mut medium);
                }
                medium
            }
        };
        self.add_harm(&disk.harm());
        Some(after)
    }

    fn cut(&mut self, disk: &Disk) -> Medium {
        let loss = Loss::ALL[self.random.below(4) as usize];
        if sim::is_told() {
            eprintln!("the power is cut, of what was not certain is lost: {loss:?}");
        }
        let mut medium = disk.medium().cut(loss, &mut self.random);
        if self.plan.trouble == Trouble::Rot && self.random.chance(40) {
            self.rot(&mut medium);
        }
        medium
    }

    fn tampering(&self, disk: &Disk) -> Tampering {
        let mut harm = self.story.harm;
        harm.add(&disk.harm());
        match self.plan.trouble {
            _ if !self.is_damaged => Tampering::None,
            Trouble::Rot => Tampering::Once,
            Trouble::LostWrites if harm.writes_lost == 1 && harm.writes_misdirected == 0 => Tampering::Once,
            _ => Tampering::Much,
        }
    }

    /// Flips a bit, once in a world: how far one flip may reach is known.
    fn rot(&mut self, medium: &mut Medium) {
        if self.is_damaged {
            return;
        }
        let name = ["/db/data", "/db/log", "/db"][self.random.below(3) as usize];
        if medium.rot(name, &mut self.random) {
            self.story.harm.bits_flipped += 1;
            self.is_damaged = true;
        }
    }

    fn add_harm(&mut self, harm: &Harm) {
        self.story.harm.add(harm);
        self.is_damaged |= harm.has_damaged();
    }

    fn may_be_damaged(&self, error: &str) -> bool {
        self.is_damaged && (error.contains("damaged") || error.contains("not a Drumlin database"))
    }

    /// Opening failed with the power on.
    fn unopened(&mut self, disk: &Disk, error: &Error) -> Option<Medium> {
        let text = error.to_string();
        assert!(self.may_be_damaged(&text), "opening: {text}");
        self.story.damage_reported += 1;
        self.add_harm(&disk.harm());
        None
    }

    /// Opening failed for what went wrong: the process ends, and the power may go. The next life tries again.
    fn refused(&mut self, disk: &Disk, error: &Error) -> Medium {
        // A superblock that can't be read counts as damaged, and the older one may not know what the log does.
        let is_unread = disk.harm().reads_failed > 0 && matches!(error, Error::Damaged { .. });
        let is_damaged = matches!(error, Error::Damaged { .. } | Error::NotADatabase { .. });
        assert!(!is_damaged || is_unread, "opening amid trouble: {error}");
        self.story.openings_refused += 1;
        self.add_harm(&disk.harm());
        disk.turn_off();
        let mut medium = if self.random.chance(50) { self.cut(disk) } else { disk.medium() };
        // What it can't read it may need, for ever.
        medium.renew();
        medium
    }

    /// The whole database against the model.
    fn verify(&mut self, db: &Database, disk: &Disk) -> Result<(), String> {
        let text = |error: Error| error.to_string();
        let last = db.opening().last.0;
        self.story.openings_behind += u64::from(last < self.model.lasting());
        let lost = self.model.reopen(last, self.tampering(disk));
        if let Err(flaw) = lost {
            assert!(disk.is_off(), "after opening: {flaw}");
            return Err(flaw);
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
                    crate::model::tell(&value),
                    expected.map(|(key, content)| (key.escape_ascii().to_string(), content))
                );
            }
            let missing = wanted.next();
            assert!(missing.is_none(), "after opening at commit {last}, {name:?} lacks {missing:?}");
        }
        if self.random.chance(50) {
            let report = db.check().map_err(text)?;
            let harmless = self.is_damaged || disk.is_off() || disk.harm().may_fail_reads();
            assert!(report.damage.is_empty() || harmless, "damage after opening: {:?}", report.damage);
            self.story.damage_reported += u64::from(!report.damage.is_empty() && !disk.is_off());
        }
        Ok(())
    }

    fn work(&mut self, db: &Database, disk: &Disk, end: End) {
        if self.prepare(db, disk).is_none() {
            return;
        }
        self.begin_trouble(disk);
        let life = Arc::new(Life {
            db: db.clone(),
            disk: disk.clone(),
            model: self.model.clone(),
            plan: self.plan.clone(),
            counts: self.counts.clone(),
            was_damaged: self.is_damaged,
            has_put: AtomicBool::default(),
        });
        let mut threads: Vec<_> = (0..self.plan.clients)
            .map(|number| {
                let (life, seed, steps) = (Arc::clone(&life), self.random.next(), self.plan.steps);
                let body = move || client::run(life, seed, steps);
                sim::spawn(&format!("client {number}"), Box::new(body)).expect("a thread")
            })
            .collect();
        threads.extend((0..self.plan.task_threads).map(|number| {
            let (life, random, plan) = (Arc::clone(&life), Random(self.random.next()), &self.plan);
            let (count, steps) = (plan.tasks, plan.steps);
            let body = move || client::run_tasks(&life, random, count, steps);
            sim::spawn(&format!("tasks {number}"), Box::new(body)).expect("a thread")
        }));
        if end == End::Kill {
            // At some moment, not at the end of everything.
            let order = 18 + self.random.below(12);
            let nanos = self.random.below(1 << order);
            sim::sleep(Duration::from_nanos(nanos));
            disk.turn_off();
        }
        for thread in threads {
            let _ = sim::join(thread);
        }
        if let Err(error) = client::lock_hot_rows(db) {
            let may = disk.is_off() || self.is_damaged || disk.harm().has_damaged() || disk.harm().may_fail_reads();
            assert!(may && !error.is_conflict(), "locking rows after all clients have ended: {error}");
        }
        if self.plan.trouble == Trouble::CrowdedDisk
            && let Err(error) = self.fill_and_thin_out(db, life.has_put.load(Ordering::Relaxed))
        {
            assert!(disk.is_off(), "on a crowded disk: {error}");
        }
        if !self.plan.troubles_openings {
            self.end_trouble(disk);
        }
    }

    /// With nobody beside: no space is left, then there is some again.
    fn fill_and_thin_out(&mut self, db: &Database, has_put: bool) -> Result<(), Error> {
        let has_filled = crowd::fill_up(db, &self.model, &mut self.random)?;
        // Before a row is put in it, a life may find too little space for what should be set aside.
        if has_put || has_filled {
            crowd::thin_out(db, &self.model, &mut self.random)?;
        }
        Ok(())
    }

    /// Makes the keyspaces that are always there.
    fn prepare(&mut self, db: &Database, disk: &Disk) -> Option<()> {
        for (name, page_bytes) in LASTING {
            if self.model.space(name).is_some() {
                continue;
            }
            let options = KeyspaceOptions::new().page_bytes(page_bytes);
            let (taken, made) =
                entered(&self.model, |_| Deed::Create(name.to_owned()), || db.keyspace_with(name, options));
            match made {
                Ok(_) => self.model.answer(taken, true),
                Err(error) => {
                    let may = disk.is_off() || self.may_be_damaged(&error.to_string()) || disk.harm().has_failed();
                    assert!(may, "creating keyspace {name:?}: {error}");
                    return None;
                }
            }
        }
        Some(())
    }

    fn begin_trouble(&mut self, disk: &Disk) {
        let slow_one_in = self.plan.slow_one_in;
        let calm = Faults { slow_one_in, ..Faults::default() };
        let often = 20 << self.random.below(7);
        let faults = match self.plan.trouble {
            Trouble::None | Trouble::Rot => calm,
            Trouble::FailingReads if self.random.chance(50) => Faults { read_fails_one_in: often, ..calm },
            Trouble::FailingReads => Faults { read_fails_for_ever_one_in: often, ..calm },
            Trouble::FailingWrites => Faults { write_fails_one_in: often, name_fails_one_in: often, ..calm },
            Trouble::FailingSyncs => Faults { sync_fails_one_in: often, ..calm },
            Trouble::FullDisk | Trouble::CrowdedDisk => {
                let more = self.random.below(12) * (256 << 10);
                Faults { capacity_bytes: Some(disk.medium().bytes() + more), ..calm }
            }
            Trouble::LostWrites if self.random.chance(50) => Faults { write_lost_one_in: often, ..calm },
            Trouble::LostWrites => Faults { write_misdirected_one_in: often, ..calm },
            Trouble::Lies => Faults { lies: true, ..calm },
        };
        disk.set_faults(faults);
    }

    /// What goes wrong from here on has to be borne: checking takes all that is there.
    fn end_trouble(&mut self, disk: &Disk) {
        if !matches!(self.plan.trouble, Trouble::Lies | Trouble::FullDisk | Trouble::CrowdedDisk) {
            disk.set_faults(Faults { slow_one_in: self.plan.slow_one_in, ..Faults::default() });
        }
    }
}
