//! Runs the same sequence of operations on a database and on an ordered map, and compares their answers.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use drumlin::{Config, Database, Durability, Keyspace, Snapshot, TxOptions};
use drumlin_io::Backend;

use crate::Script;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

const NAMES: [&str; 2] = ["first", "second"];

fn open(backend: &Arc<dyn Backend>) -> Database {
    let config = Config::new().memory(8 << 20).page_bytes(512).segment_bytes(256 << 10).log_segment_bytes(1 << 20);
    config.backend(Arc::clone(backend)).open("/db").expect("memory takes everything")
}

struct World {
    backend: Arc<dyn Backend>,
    db: Option<Database>,
    keyspaces: Vec<Keyspace>,
    models: [Model; 2],
    /// A snapshot, and the rows that it must see.
    kept: Option<(Snapshot, [Model; 2])>,
}

fn key(script: &mut Script<'_>) -> Vec<u8> {
    match script.byte() {
        // Draw a few colliding keys, some sequential keys, and some with a long common prefix.
        kind @ 0..64 => vec![b'k', kind % 16],
        kind @ 64..160 => vec![b'n', kind, script.byte()],
        kind @ 160..220 => [&[b'p'; 60][..], &[kind, script.byte()]].concat(),
        220..=254 => script.bytes(12).to_vec(),
        255 => vec![b'l'; 128],
    }
}

fn value(script: &mut Script<'_>) -> Vec<u8> {
    let (kind, fill) = (script.byte(), script.byte());
    let length = match kind {
        0..200 => usize::from(kind) / 2,
        200..250 => usize::from(kind - 200) * 40,
        _ => usize::from(kind - 249) * 20_000,
    };
    (0..length).map(|at| fill.wrapping_add((at / 3) as u8)).collect()
}

impl World {
    fn new() -> World {
        let backend = drumlin_io::in_memory();
        let db = open(&backend);
        let keyspaces = NAMES.map(|name| db.keyspace(name).expect("memory takes everything")).into();
        World { backend, db: Some(db), keyspaces, models: [Model::new(), Model::new()], kept: None }
    }

    fn db(&self) -> &Database {
        self.db.as_ref().expect("it is open")
    }

    fn reopen(&mut self, closes: bool) {
        self.check_snapshot();
        self.keyspaces.clear();
        let db = self.db.take().expect("it is open");
        if closes {
            db.close().expect("memory takes everything");
        } else {
            drop(db);
        }
        let db = open(&self.backend);
        self.keyspaces = NAMES.map(|name| db.existing_keyspace(name).expect("it was made")).into();
        self.db = Some(db);
        self.check();
    }

    fn check(&self) {
        for (keyspace, model) in self.keyspaces.iter().zip(&self.models) {
            let rows: Vec<_> = keyspace.iter().map(|row| row.expect("memory is readable")).collect();
            assert!(
                rows.iter().map(|(key, value)| (&key[..], &value[..])).eq(model.iter().map(|(k, v)| (&k[..], &v[..])))
            );
        }
    }

    fn check_snapshot(&mut self) {
        let Some((snapshot, models)) = self.kept.take() else { return };
        for (keyspace, model) in self.keyspaces.iter().zip(&models) {
            let mut rows = Vec::new();
            for row in snapshot.range(keyspace, ..) {
                match row {
                    Ok((key, value)) => rows.push((key.to_vec(), value.to_vec())),
                    Err(drumlin::Error::SnapshotTooOld { .. }) => return,
                    Err(error) => panic!("{error:?}"),
                }
            }
            assert!(rows.iter().map(|(key, value)| (key, value)).eq(model), "a snapshot changed");
        }
    }

    fn transaction(&mut self, script: &mut Script<'_>) {
        let durability = if script.byte().is_multiple_of(2) { Durability::Full } else { Durability::Relaxed };
        let options = TxOptions { durability, ..TxOptions::default() };
        let mut tx = self.db().begin_with(options).expect("there is room for one");
        let mut models = self.models.clone();
        let mut marks = Vec::new();
        for _ in 0..script.byte() % 24 {
            let which = usize::from(script.byte() % 2);
            let keyspace = &self.keyspaces[which];
            match script.byte() % 8 {
                0 => marks.push((tx.savepoint(), models.clone())),
                1 => {
                    if let Some((mark, kept)) = marks.pop() {
                        tx.rollback_to(mark).expect("the mark is of this transaction");
                        models = kept;
                    }
                }
                2 => {
                    let key = key(script);
                    tx.remove(keyspace, &key).expect("nobody else writes");
                    models[which].remove(&key);
                }
                3 => {
                    let key = key(script);
                    let found = tx.get(keyspace, &key).expect("memory is readable");
                    assert_eq!(found.as_deref(), models[which].get(&key).map(Vec::as_slice));
                }
                _ => {
                    let (key, value) = (key(script), value(script));
                    match tx.insert(keyspace, &key, &value) {
                        Ok(()) => drop(models[which].insert(key, value)),
                        Err(drumlin::Error::TransactionTooLarge { .. } | drumlin::Error::MemoryInUse { .. }) => break,
                        Err(error) => panic!("{error:?}"),
                    }
                }
            }
        }
        if !script.byte().is_multiple_of(4) {
            tx.commit().expect("nobody else writes");
            self.models = models;
        }
    }

    fn range(&self, which: usize, script: &mut Script<'_>) {
        let (a, b) = (key(script), key(script));
        let (lower, upper) = if a <= b { (a, b) } else { (b, a) };
        let bounds = match script.byte() % 4 {
            0 => (Bound::Included(lower), Bound::Included(upper)),
            1 => (Bound::Included(lower), Bound::Excluded(upper)),
            2 if lower < upper => (Bound::Excluded(lower), Bound::Excluded(upper)),
            _ => (Bound::Excluded(lower), Bound::Unbounded),
        };
        let expected: Vec<_> = self.models[which].range(bounds.clone()).collect();
        assert_eq!(self.keyspaces[which].count(bounds.clone()).expect("memory is readable"), expected.len() as u64);
        let mut scan = self.keyspaces[which].range(bounds);
        let (mut front, mut back) = (0, expected.len());
        while front < back {
            let forward = script.byte().is_multiple_of(2);
            let row = if forward { scan.next() } else { scan.next_back() };
            let (key, value) = row.expect("as many rows as the model has").expect("memory is readable");
            let at = if forward { front } else { back - 1 };
            assert!(key == *expected[at].0 && value == *expected[at].1);
            if forward { front += 1 } else { back -= 1 }
        }
        assert!(scan.next().is_none() && scan.next_back().is_none());
    }

    fn step(&mut self, script: &mut Script<'_>) {
        let which = usize::from(script.byte() % 2);
        match script.byte() % 32 {
            0 => self.reopen(true),
            1 => self.reopen(false),
            2 => drop(self.db().checkpoint().expect("memory takes everything")),
            3 => drop(self.db().compact().expect("memory takes everything")),
            4 => self.check_snapshot(),
            5 => self.kept = Some((self.db().snapshot(), self.models.clone())),
            6 => {
                self.check_snapshot();
                self.keyspaces.remove(which);
                self.db().drop_keyspace(NAMES[which]).expect("it was made");
                let made = self.db().keyspace(NAMES[which]).expect("memory takes everything");
                self.keyspaces.insert(which, made);
                self.models[which].clear();
            }
            7 => {
                let keys: Vec<Vec<u8>> = (0..script.byte() % 16).map(|_| key(script)).collect();
                let found = self.keyspaces[which].get_many(&keys).expect("memory is readable");
                for (key, found) in keys.iter().zip(found) {
                    assert_eq!(found.as_deref(), self.models[which].get(key).map(Vec::as_slice));
                }
            }
            8..11 => self.range(which, script),
            11..16 => self.transaction(script),
            16..20 => {
                let key = key(script);
                self.keyspaces[which].remove(&key).expect("nobody else writes");
                self.models[which].remove(&key);
            }
            20 => {
                // Remove many adjacent rows, so that leaves merge.
                let from = key(script);
                let doomed: Vec<_> = self.models[which].range(from..).take(50).map(|(key, _)| key.clone()).collect();
                for key in doomed {
                    self.keyspaces[which].remove(&key).expect("nobody else writes");
                    self.models[which].remove(&key);
                }
            }
            _ => {
                let (key, value) = (key(script), value(script));
                self.keyspaces[which].insert_with(&key, &value, Durability::Relaxed).expect("nobody else writes");
                self.models[which].insert(key, value);
            }
        }
    }
}

/// Performs the operations that the bytes encode on a database and on its model, and compares them.
pub fn run(bytes: &[u8]) {
    let mut script = Script(bytes);
    let mut world = World::new();
    while script.has_more() {
        world.step(&mut script);
    }
    world.check();
    world.reopen(false);
    let report = world.db().check().expect("memory is readable");
    assert!(report.corruption.is_empty(), "{:?}", report.corruption);
}
