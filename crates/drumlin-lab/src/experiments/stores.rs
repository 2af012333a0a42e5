//! Commits of 1 KiB by store (S2's first table): Drumlin, and others if they are built in.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use drumlin::{Config, Database, Keyspace};

use crate::figures::Form;
use crate::measure::{Latencies, median};
use crate::report::{Chapter, Table};
use crate::session::Session;

const VALUE: [u8; 1024] = [0xA5; 1024];

/// A store under measurement. Each commit writes one new row and is durable when it returns.
trait Store {
    fn commit(&mut self, key: [u8; 8], value: &[u8]) -> Result<(), String>;
}

type Opened = Result<Box<dyn Store>, String>;
type Open = fn(&Path) -> Opened;

struct Drumlin {
    rows: Keyspace,
    _database: Database,
}

impl Drumlin {
    fn open(folder: &Path) -> Opened {
        let database = Config::new().memory(64 << 20).open(folder).map_err(|error| error.to_string())?;
        let rows = database.keyspace("rows").map_err(|error| error.to_string())?;
        Ok(Box::new(Drumlin { rows, _database: database }))
    }
}

impl Store for Drumlin {
    fn commit(&mut self, key: [u8; 8], value: &[u8]) -> Result<(), String> {
        self.rows.insert(key, value).map_err(|error| error.to_string())
    }
}

#[cfg(not(feature = "peers"))]
const STORES: [(&str, Open, Option<&str>); 1] = [("Drumlin", Drumlin::open, None)];

#[cfg(feature = "peers")]
const STORES: [(&str, Open, Option<&str>); 4] = [
    ("Drumlin", Drumlin::open, None),
    ("redb", peers::Redb::open, None),
    ("SQLite (WAL, synchronous=FULL)", peers::Sqlite::open, Some("S2: 4.12 ms (its defaults)")),
    ("LMDB (heed)", peers::Lmdb::open, None),
];

/// Turns of each store.
const ROUNDS: usize = 3;

fn turn_seconds(session: &Session<'_>) -> f64 {
    session.pacing.slice.seconds * 2.0
}

pub(super) fn seconds(session: &Session<'_>) -> f64 {
    (STORES.len() * ROUNDS) as f64 * turn_seconds(session)
}

/// A store with its results.
struct Candidate {
    name: &'static str,
    source: Option<&'static str>,
    /// The open store, or the reason why it cannot be measured.
    store: Opened,
    latencies: Latencies,
    /// Commits per second, by turn.
    rates: Vec<f64>,
}

impl Candidate {
    fn open(folder: &Path, &(name, open, source): &(&'static str, Open, Option<&'static str>)) -> Candidate {
        let store = std::fs::create_dir(folder).map_err(|error| error.to_string()).and_then(|()| open(folder));
        Candidate { name, source, store, latencies: Latencies::new(), rates: Vec::new() }
    }

    /// Commits one row after another, with keys above `key`, until the turn is over.
    fn take_turn(&mut self, session: &Session<'_>, key: &mut u64) {
        let start = Instant::now();
        let mut commits = 0u64;
        while start.elapsed() < Duration::from_secs_f64(turn_seconds(session)) && !session.interrupted() {
            let Ok(store) = &mut self.store else { break };
            *key += 1;
            let begun = Instant::now();
            if let Err(error) = store.commit(key.to_be_bytes(), &VALUE) {
                self.store = Err(error);
                break;
            }
            self.latencies.record(begun.elapsed());
            commits += 1;
        }
        if commits > 0 {
            self.rates.push(commits as f64 / start.elapsed().as_secs_f64());
        }
    }
}

pub(super) fn run(session: &Session<'_>, chapter: &mut Chapter) -> io::Result<()> {
    let folder = session.room.path().join("stores");
    std::fs::create_dir(&folder)?;
    let open = |(index, store): (usize, _)| Candidate::open(&folder.join(index.to_string()), store);
    let mut candidates: Vec<Candidate> = STORES.iter().enumerate().map(open).collect();
    let mut key = 0u64;
    for _ in 0..ROUNDS {
        for candidate in &mut candidates {
            session.step(&format!("sync: commits by {}", candidate.name), turn_seconds(session));
            candidate.take_turn(session, &mut key);
        }
    }
    show(chapter, candidates);
    std::fs::remove_dir_all(&folder)
}

fn show(chapter: &mut Chapter, candidates: Vec<Candidate>) {
    let mut table = Table::new(
        "A commit of one row of 1 KiB, by store, one writer",
        &[
            ("", Form::Text),
            ("commits/s", Form::Rate),
            ("mean", Form::Micros),
            ("p50", Form::Micros),
            ("p99", Form::Micros),
            ("max", Form::Micros),
        ],
    );
    for Candidate { name, source, store, latencies, rates } in candidates {
        match store {
            Ok(_) if !rates.is_empty() => {
                let latency = latencies.summary();
                let row = table.row(vec![
                    name.into(),
                    median(rates).into(),
                    latency.mean_us.into(),
                    latency.p50_us.into(),
                    latency.p99_us.into(),
                    latency.max_us.into(),
                ]);
                row.source = source.map(str::to_owned);
            }
            Ok(_) => {}
            Err(error) => chapter.note(format!("{name} could not be measured: {error}")),
        }
    }
    chapter.note("S2: Nebari 2.67 ms, SQLite 4.12 ms, Sled 38.9 us by sync_file_range, which makes no commit durable.");
    if cfg!(not(feature = "peers")) {
        chapter.note("If built with `--features peers`, the lab also measures commits of redb, SQLite and LMDB.");
    }
    chapter.tables.push(table);
}

#[cfg(feature = "peers")]
mod peers {
    //! Stores beside Drumlin, set so that a commit that returned is durable.
    #![allow(unsafe_code)]

    use std::path::Path;

    use super::{Opened, Store};

    const ROWS: redb::TableDefinition<'_, &[u8], &[u8]> = redb::TableDefinition::new("rows");

    pub(super) struct Redb(redb::Database);

    impl Redb {
        pub(super) fn open(folder: &Path) -> Opened {
            let database = redb::Database::create(folder.join("redb")).map_err(|error| error.to_string())?;
            Ok(Box::new(Redb(database)))
        }

        fn insert(&self, key: [u8; 8], value: &[u8]) -> Result<(), redb::Error> {
            let transaction = self.0.begin_write()?;
            transaction.open_table(ROWS)?.insert(&key[..], value)?;
            Ok(transaction.commit()?)
        }
    }

    impl Store for Redb {
        fn commit(&mut self, key: [u8; 8], value: &[u8]) -> Result<(), String> {
            self.insert(key, value).map_err(|error| error.to_string())
        }
    }

    pub(super) struct Sqlite(rusqlite::Connection);

    impl Sqlite {
        pub(super) fn open(folder: &Path) -> Opened {
            let open = || {
                let connection = rusqlite::Connection::open(folder.join("sqlite"))?;
                connection.execute_batch(
                    "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; CREATE TABLE rows (key BLOB PRIMARY KEY, \
                     value BLOB) WITHOUT ROWID;",
                )?;
                Ok::<_, rusqlite::Error>(connection)
            };
            Ok(Box::new(Sqlite(open().map_err(|error| error.to_string())?)))
        }
    }

    impl Store for Sqlite {
        fn commit(&mut self, key: [u8; 8], value: &[u8]) -> Result<(), String> {
            let insert = |connection: &rusqlite::Connection| {
                connection.prepare_cached("INSERT INTO rows VALUES (?1, ?2)")?.execute((&key[..], value))
            };
            insert(&self.0).map(|_| ()).map_err(|error| error.to_string())
        }
    }

    pub(super) struct Lmdb {
        environment: heed::Env,
        rows: heed::Database<heed::types::Bytes, heed::types::Bytes>,
    }

    impl Lmdb {
        pub(super) fn open(folder: &Path) -> Opened {
            let open = || {
                // SAFETY: the folder was made for this measurement; no other program opens or changes its files.
                let environment = unsafe { heed::EnvOpenOptions::new().map_size(4 << 30).open(folder)? };
                let mut transaction = environment.write_txn()?;
                let rows = environment.create_database(&mut transaction, None)?;
                transaction.commit()?;
                Ok::<_, heed::Error>(Lmdb { environment, rows })
            };
            Ok(Box::new(open().map_err(|error| error.to_string())?))
        }
    }

    impl Store for Lmdb {
        fn commit(&mut self, key: [u8; 8], value: &[u8]) -> Result<(), String> {
            let put = || {
                let mut transaction = self.environment.write_txn()?;
                self.rows.put(&mut transaction, &key, value)?;
                transaction.commit()
            };
            put().map_err(|error: heed::Error| error.to_string())
        }
    }
}
