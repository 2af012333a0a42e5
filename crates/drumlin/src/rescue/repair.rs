//! Saving what is left of a damaged database in a new one.

use std::path::Path;

use super::open::Rescue;
use super::report::{RepairReport, RepairedKeyspace};
use super::rows::{FoundRow, Rows};
use super::values::{ChunkReader, FoundValue};
use crate::db::{BulkLoad, Database, Keyspace, KeyspaceOptions, LockMode};
use crate::error::{Error, Result};
use crate::format::KeyspaceId;
use crate::format::prepared::{self, Head};
use crate::format::record::Operation;
use crate::txn::commit::Durability;

impl Rescue {
    /// Saves everything that can be read in a new database at `saved`, a folder that is empty or does not exist: each
    /// keyspace with its name, its page size and its rows, and the prepared transactions. Keyspaces are written by bulk
    /// loads, one after the other, so that each of them is complete or has no rows. The saved database is closed at the
    /// end. O(data).
    ///
    /// # Errors
    /// [`Invalid`](Error::Invalid) if `saved` holds a database; the errors of a
    /// [bulk load](crate::BulkLoad), such as [`DiskFull`](Error::DiskFull). The saved database then lacks keyspaces:
    /// remove it.
    pub fn repair(&self, saved: impl AsRef<Path>) -> Result<RepairReport> {
        let config = self.config.of_new(self.config.settings.page_bytes, Durability::Full);
        let db = config.open(saved)?;
        if !db.opening().created {
            let shown = db.path().display();
            return Err(Error::Invalid(format!("{shown} holds a database: save to an empty folder")));
        }
        let mut report = RepairReport { log_records: self.log_records, ..RepairReport::default() };
        for (name, id) in self.by_name() {
            let page_bytes = self.sources.keyspaces[&id].page_bytes;
            db.keyspace_with(&name, KeyspaceOptions::new().page_bytes(page_bytes))?;
            let mut load = db.bulk_load(&name)?;
            let saved = self.save_rows(name, self.rows_of(id)?, Some(&mut load))?;
            load.finish()?;
            report.add(saved);
        }
        self.save_prepared(&mut report, |id, changes, values| self.prepare(&db, id, changes, values))?;
        db.close()?;
        Ok(report)
    }

    /// Reads everything like [`repair`](Self::repair), and counts the rows that it would save. Writes nothing. O(data).
    ///
    /// # Errors
    /// The errors of the scratch database.
    pub fn count(&self) -> Result<RepairReport> {
        let mut report = RepairReport { log_records: self.log_records, ..RepairReport::default() };
        for (name, id) in self.by_name() {
            report.add(self.save_rows(name, self.rows_of(id)?, None)?);
        }
        self.save_prepared(&mut report, |_, _, _| Ok(()))?;
        Ok(report)
    }

    fn save_rows(&self, name: String, mut rows: Rows<'_>, mut load: Option<&mut BulkLoad>) -> Result<RepairedKeyspace> {
        let mut saved = RepairedKeyspace { name, ..RepairedKeyspace::default() };
        while let Some(found) = rows.next_row()? {
            match found {
                FoundRow::Gap(gap) => saved.add_lost(gap.lower, gap.upper),
                FoundRow::Row(key, value) => {
                    saved.rows += 1;
                    let Some(load) = &mut load else { continue };
                    match value {
                        FoundValue::Whole(value) => load.insert(key, value)?,
                        FoundValue::Chunked(value) => {
                            load.insert_from(key, ChunkReader::new(&self.sources.extents, &value)).map(drop)?;
                        }
                    }
                }
            }
        }
        Ok(saved)
    }

    /// Passes each prepared transaction to `save`: its id, its changes, and its large values.
    fn save_prepared(
        &self,
        report: &mut RepairReport,
        save: impl Fn(&[u8], &[u8], &[FoundValue]) -> Result<()>,
    ) -> Result<()> {
        let rows = &self.sources.prepared;
        for (key, changes) in rows.iter().filter(|(key, _)| !prepared::is_value_key(key)) {
            let id = prepared::id_of(key).filter(|id| !id.is_empty() && id.len() <= prepared::ID_BYTES_MAX);
            let changes = changes.clone().into_bytes(&self.sources).ok();
            let head = changes.as_deref().and_then(Head::decode);
            let (Some(id), Some(changes), Some(head)) = (id, changes, head) else {
                report.lost_prepared += 1;
                continue;
            };
            // A value that the log names has not been verified yet.
            let value = |number| match rows.get(&prepared::value_key(id, number))? {
                FoundValue::Chunked(value) => value.clone().verify(&self.sources.extents).ok(),
                FoundValue::Whole(value) => Some(FoundValue::Whole(value.clone())),
            };
            let are_known =
                prepared::operations(&changes).all(|(keyspace, _)| self.sources.keyspaces.contains_key(&keyspace));
            match (0..head.value_count).map(value).collect::<Option<Vec<_>>>() {
                Some(values) if are_known => {
                    save(id, &changes, &values)?;
                    report.prepared += 1;
                }
                _ => report.lost_prepared += 1,
            }
        }
        Ok(())
    }

    /// Prepares a transaction in the saved database.
    fn prepare(&self, db: &Database, id: &[u8], changes: &[u8], values: &[FoundValue]) -> Result<()> {
        let by_name = self.by_name();
        let keyspace = |id: KeyspaceId| -> Result<Keyspace> {
            let (name, _) = by_name.iter().find(|(_, other)| **other == id).expect("looked for before");
            db.existing_keyspace(name)
        };
        let mut tx = db.begin()?;
        for (id, operation) in prepared::operations(changes) {
            let keyspace = keyspace(id)?;
            match operation {
                Operation::Put { key, value } => tx.insert(&keyspace, key, value)?,
                Operation::PutStored { key, number } => match &values[number as usize] {
                    FoundValue::Whole(value) => tx.insert(&keyspace, key, value)?,
                    FoundValue::Chunked(value) => {
                        tx.insert_from(&keyspace, key, ChunkReader::new(&self.sources.extents, value)).map(drop)?;
                    }
                },
                Operation::Remove { key } => tx.remove(&keyspace, key)?,
                Operation::Lock { key, is_shared } => {
                    let mode = if is_shared { LockMode::Shared } else { LockMode::Exclusive };
                    tx.lock_row(&keyspace, key, mode)?;
                }
                _ => {}
            }
        }
        tx.prepare(id)
    }
}

impl RepairReport {
    fn add(&mut self, keyspace: RepairedKeyspace) {
        self.rows += keyspace.rows;
        self.keyspaces.push(keyspace);
    }
}
