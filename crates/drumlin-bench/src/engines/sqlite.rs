//! SQLite, through rusqlite, with the bundled C sources.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Statement, TransactionBehavior};

use crate::engine::{
    Backups, Capabilities, Changes, Durability, Engine, Key, Order, Peer, Result, Row, Session, Settings, Source,
    Tables,
};
use crate::engine::{load_in_batches, missing_row};

pub(super) const PEER: Peer = Peer {
    name: "sqlite",
    version: "0.43.0",
    settings: "by rusqlite, bundled; WAL; the key is an INTEGER PRIMARY KEY, its fastest table; the budget is divided \
               among the connections' caches; synchronous FULL, relaxed is NORMAL; writers take turns by a lock of this \
               benchmark, since those that find the database busy sleep; bulk loads take 100,000 rows a transaction",
    capabilities: Capabilities {
        one_writer: true,
        multi_get: false,
        transactions: true,
        atomic_batches: true,
        recovers: true,
        inserts_only: false,
        two_phases: false,
        tables: true,
        range_deletes: false,
        large_transactions: true,
    },
    open: open_wal,
    restore: Some(restore),
};

pub(super) const ROLLBACK_PEER: Peer = Peer {
    name: "sqlite-rollback",
    version: "0.43.0",
    settings: "like sqlite, with a rollback journal, its default",
    capabilities: Capabilities { inserts_only: true, ..PEER.capabilities },
    open: open_rollback,
    restore: None,
};

/// The number of rows per transaction of a bulk load.
const BULK_ROWS: usize = 100_000;

struct Sqlite {
    path: PathBuf,
    synchronous: &'static str,
    journal: &'static str,
    cache_kib: u64,
    /// The connection for syncing and closing the database. Each session has its own connection.
    own: Mutex<Connection>,
    /// The connections of ended sessions. New sessions reuse them together with their caches.
    idle: Mutex<Vec<Connection>>,
    /// Held by the session that is writing.
    writer: Mutex<()>,
}

fn open_wal(folder: &Path, settings: &Settings) -> Result<Box<dyn Engine>> {
    open(folder, settings, "WAL")
}

fn open_rollback(folder: &Path, settings: &Settings) -> Result<Box<dyn Engine>> {
    open(folder, settings, "DELETE")
}

fn open(folder: &Path, settings: &Settings, journal: &'static str) -> Result<Box<dyn Engine>> {
    let synchronous = match settings.durability {
        Durability::Full => "FULL",
        Durability::Relaxed => "NORMAL",
    };
    let path = folder.join("rows.sqlite");
    let cache_kib = (settings.memory_bytes >> 10) / settings.threads.max(1) as u64;
    // The engine's own connection reads and writes no rows, so it needs almost no cache.
    let own = connect(&path, journal, synchronous, 64)?;
    own.execute_batch("CREATE TABLE IF NOT EXISTS rows (key INTEGER PRIMARY KEY, value BLOB)")?;
    let idle = Mutex::new(Vec::new());
    Ok(Box::new(Sqlite { path, synchronous, journal, cache_kib, own: Mutex::new(own), idle, writer: Mutex::new(()) }))
}

fn connect(path: &Path, journal: &str, synchronous: &str, cache_kib: u64) -> Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(Duration::from_secs(60))?;
    connection.execute_batch(&format!(
        "PRAGMA journal_mode = {journal}; PRAGMA synchronous = {synchronous}; PRAGMA cache_size = -{cache_kib};"
    ))?;
    let found: String = connection.query_row("PRAGMA journal_mode", [], |row| row.get(0))?;
    if !found.eq_ignore_ascii_case(journal) {
        return Err(format!("the journal is {found}, not {journal}").into());
    }
    Ok(connection)
}

fn restore(backups: &Path, target: &Path) -> Result<()> {
    std::fs::copy(backups.join("backup.sqlite"), target.join("rows.sqlite"))?;
    Ok(())
}

impl Backups for Sqlite {
    fn back_up(&self, folder: &Path) -> Result<()> {
        let mut target = Connection::open(folder.join("backup.sqlite"))?;
        self.with_connection(|connection| {
            let backup = rusqlite::backup::Backup::new(connection, &mut target)?;
            // In one step, because a commit between two steps begins the backup again.
            backup.step(-1)?;
            Ok(())
        })?;
        target.close().map_err(|(_, error)| error)?;
        Ok(())
    }
}

impl Engine for Sqlite {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        let idle = self.idle.lock().expect("no call panics").pop();
        let connection = match idle {
            Some(connection) => connection,
            None => connect(&self.path, self.journal, self.synchronous, self.cache_kib)?,
        };
        Ok(Box::new(Access { connection: Some(connection), idle: &self.idle, writer: &self.writer }))
    }

    fn sync(&self) -> Result<()> {
        // A checkpoint syncs the log before copying it into the database, and syncs the database afterwards.
        let own = self.own.lock().expect("no call panics");
        own.query_row("PRAGMA wal_checkpoint(FULL)", [], |_| Ok(()))?;
        Ok(())
    }

    fn bulk_load(&self, rows: &mut dyn Source, _: Order) -> Result<()> {
        load_in_batches(&mut *self.session()?, rows, BULK_ROWS)
    }

    fn tables(&self) -> Option<&dyn Tables> {
        Some(self)
    }

    fn backups(&self) -> Option<&dyn Backups> {
        Some(self)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.sync()?;
        self.idle.lock().expect("no call panics").clear();
        self.own.into_inner().expect("no call panics").close().map_err(|(_, error)| error)?;
        Ok(())
    }
}

impl Sqlite {
    /// Calls `body` with the connection of an ended session, or with a new one.
    fn with_connection<T>(&self, body: impl FnOnce(&mut Connection) -> Result<T>) -> Result<T> {
        let idle = self.idle.lock().expect("no call panics").pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => connect(&self.path, self.journal, self.synchronous, self.cache_kib)?,
        };
        let result = body(&mut connection);
        self.idle.lock().expect("no call panics").push(connection);
        result
    }
}

impl Tables for Sqlite {
    fn create(&self, names: &[String], rows: &[Row]) -> Result<()> {
        let _turn = self.writer.lock().expect("no call panics");
        self.with_connection(|connection| {
            let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            for name in names {
                tx.execute_batch(&format!("CREATE TABLE \"{name}\" (key INTEGER PRIMARY KEY, value BLOB)"))?;
                let mut statement = tx.prepare(&format!("INSERT INTO \"{name}\" VALUES (?1, ?2)"))?;
                for (key, value) in rows {
                    statement.execute((integer(*key), &value[..]))?;
                }
            }
            Ok(tx.commit()?)
        })
    }

    fn get(&self, name: &str, key: Key, see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.with_connection(|connection| {
            let mut statement = connection.prepare(&format!("SELECT value FROM \"{name}\" WHERE key = ?1"))?;
            see_value(&mut statement, key, see)
        })
    }

    fn write(&self, name: &str, rows: &[Row]) -> Result<()> {
        let _turn = self.writer.lock().expect("no call panics");
        self.with_connection(|connection| {
            let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let mut statement = tx.prepare_cached(&format!("INSERT OR REPLACE INTO \"{name}\" VALUES (?1, ?2)"))?;
            for (key, value) in rows {
                statement.execute((integer(*key), &value[..]))?;
            }
            drop(statement);
            Ok(tx.commit()?)
        })
    }

    fn drop_rows(&self) -> Result<()> {
        let _turn = self.writer.lock().expect("no call panics");
        self.with_connection(|connection| Ok(connection.execute_batch("DROP TABLE rows")?))
    }
}

/// Converts a key to an SQLite integer. All keys are below 2^63, so the integers sort like the keys.
fn integer(key: Key) -> i64 {
    i64::from_be_bytes(key)
}

/// Passes the value that a statement selects by its key to `see`. Returns `false` if there is none.
fn see_value(statement: &mut Statement<'_>, key: Key, see: &mut dyn FnMut(&[u8])) -> Result<bool> {
    let mut rows = statement.query([integer(key)])?;
    match rows.next()? {
        Some(row) => {
            see(row.get_ref(0)?.as_blob()?);
            Ok(true)
        }
        None => Ok(false),
    }
}

struct Access<'e> {
    /// `Some` until the session ends.
    connection: Option<Connection>,
    idle: &'e Mutex<Vec<Connection>>,
    writer: &'e Mutex<()>,
}

impl Access<'_> {
    fn connection(&mut self) -> &mut Connection {
        self.connection.as_mut().expect("the session has not ended")
    }
}

impl Drop for Access<'_> {
    fn drop(&mut self) {
        self.idle.lock().expect("no call panics").extend(self.connection.take());
    }
}

impl Session for Access<'_> {
    fn get(&mut self, key: Key, see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let mut statement = self.connection().prepare_cached("SELECT value FROM rows WHERE key = ?1")?;
        see_value(&mut statement, key, see)
    }

    fn scan(&mut self, first: Key, limit: u64, see: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64> {
        let mut statement =
            self.connection().prepare_cached("SELECT key, value FROM rows WHERE key >= ?1 ORDER BY key LIMIT ?2")?;
        let limit = i64::try_from(limit).unwrap_or(-1);
        let mut rows = statement.query((integer(first), limit))?;
        let mut count = 0;
        while let Some(row) = rows.next()? {
            let key: i64 = row.get(0)?;
            see(&key.to_be_bytes(), row.get_ref(1)?.as_blob()?);
            count += 1;
        }
        Ok(count)
    }

    fn count(&mut self, first: Key, end: Key) -> Result<u64> {
        let mut statement =
            self.connection().prepare_cached("SELECT count(*) FROM rows WHERE key >= ?1 AND key < ?2")?;
        let count: i64 = statement.query_row((integer(first), integer(end)), |row| row.get(0))?;
        Ok(u64::try_from(count)?)
    }

    fn write(&mut self, rows: &[Row]) -> Result<()> {
        let _turn = self.writer.lock().expect("no call panics");
        let tx = self.connection().transaction_with_behavior(TransactionBehavior::Immediate)?;
        {
            let mut statement = tx.prepare_cached("INSERT OR REPLACE INTO rows VALUES (?1, ?2)")?;
            for (key, value) in rows {
                statement.execute((integer(*key), &value[..]))?;
            }
        }
        Ok(tx.commit()?)
    }

    fn change_at_once(&mut self, changes: &mut dyn Changes) -> Result<()> {
        let _turn = self.writer.lock().expect("no call panics");
        let tx = self.connection().transaction_with_behavior(TransactionBehavior::Immediate)?;
        {
            let mut put = tx.prepare_cached("INSERT OR REPLACE INTO rows VALUES (?1, ?2)")?;
            let mut remove = tx.prepare_cached("DELETE FROM rows WHERE key = ?1")?;
            while let Some((key, value)) = changes.next() {
                match value {
                    Some(value) => put.execute((integer(key), value))?,
                    None => remove.execute([integer(key)])?,
                };
            }
        }
        Ok(tx.commit()?)
    }

    fn update(&mut self, key: Key, change: &mut dyn FnMut(&[u8]) -> Vec<u8>) -> Result<()> {
        let _turn = self.writer.lock().expect("no call panics");
        let tx = self.connection().transaction_with_behavior(TransactionBehavior::Immediate)?;
        let value = tx
            .prepare_cached("SELECT value FROM rows WHERE key = ?1")?
            .query_row([integer(key)], |row| Ok(change(row.get_ref(0)?.as_blob()?)))
            .optional()?
            .ok_or_else(|| missing_row(key))?;
        tx.prepare_cached("UPDATE rows SET value = ?2 WHERE key = ?1")?.execute((integer(key), &value[..]))?;
        Ok(tx.commit()?)
    }
}
