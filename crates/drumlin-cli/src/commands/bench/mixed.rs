//! `drumlin bench mixed`: of a hundred operations `--read-percent` read a row and the rest overwrite one, each in a
//! transaction of its own. Reads and commits share the device, so that no single limit applies.

use drumlin::Keyspace;

use super::data::{Random, key};
use super::get::Getter;
use super::measure::{TURNS, Turns, Worker, measure};
use super::report::{Report, Told};
use super::subject::Subject;
use crate::failure::Result;
use crate::process;

struct Mixer {
    getter: Getter,
    keyspace: Keyspace,
    durability: drumlin::Durability,
    random: Random,
    read_percent: u32,
    value: Vec<u8>,
}

impl Worker for Mixer {
    fn call(&mut self) -> drumlin::Result<u64> {
        if self.random.percent(self.read_percent) {
            return self.getter.call();
        }
        self.random.fill(&mut self.value);
        let key = key(self.random.row());
        // Two threads may want one row: the later one runs again, as any caller would.
        loop {
            match self.keyspace.insert_with(key, &self.value, self.durability) {
                Err(error) if error.is_conflict() => {}
                done => return done.map(|()| 1),
            }
        }
    }
}

pub(super) fn run(subject: &mut Subject<'_>) -> Result<Report> {
    subject.ensure_rows()?;
    let keyspace = subject.rows()?;
    let mixers = |turn: u64| {
        (0..subject.threads())
            .map(|thread| {
                let seed = turn * 4096 + thread;
                Mixer {
                    getter: Getter::new(subject, &keyspace, seed, 1),
                    keyspace: keyspace.clone(),
                    durability: subject.options.durability.into(),
                    random: Random::new(!seed, subject.about.keys, subject.options.distribution),
                    read_percent: subject.options.read_percent,
                    value: vec![0; subject.about.value_size as usize],
                }
            })
            .collect::<Vec<_>>()
    };
    let slice = subject.options.seconds / TURNS;
    measure(mixers(0), Some(slice / 2), || subject.stats())?;
    process::reset_resident_bytes_max();
    let mut turns = Turns::new();
    for turn in 1..=u64::from(TURNS) {
        turns.add(measure(mixers(turn), Some(slice), || subject.stats())?, None);
    }
    let told = Told {
        name: "mixed",
        unit: "operations",
        call: "an operation".to_owned(),
        batch: 1,
        data_bytes: subject.about.data_bytes(),
        limit: None,
    };
    Ok(Report::new(subject, &turns, told))
}
