//! The result of a repair.

use crate::store::LostKeys;

/// The result of [`Rescue::repair`](crate::Rescue::repair) or [`Rescue::count`](crate::Rescue::count).
///
/// ```
/// # let folder = std::env::temp_dir().join(format!("drumlin-doc-repair-report-{}", std::process::id()));
/// # let (path, scratch) = (folder.join("shop.drumlin"), folder.join("scratch"));
/// # let db = drumlin::Database::open(&path)?;
/// # db.keyspace("orders")?.insert("k", "v")?;
/// # db.close()?;
/// let report = drumlin::Rescue::open(&drumlin::Config::new(), &path, &scratch)?.count()?;
/// for keyspace in &report.keyspaces {
///     println!("{}: {} rows", keyspace.name, keyspace.rows);
///     keyspace.lost.iter().for_each(|keys| println!("lost: {keys}"));
/// }
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct RepairReport {
    /// The keyspaces in the order of their names.
    pub keyspaces: Vec<RepairedKeyspace>,
    /// The number of rows in all keyspaces.
    pub rows: u64,
    /// The number of the log's commits that were applied to the rows of the newest checkpoint.
    pub log_records: u64,
    /// The number of prepared transactions. They are prepared in the saved database too.
    pub prepared: u64,
    /// The number of prepared transactions that could not be saved, because a part of their changes is lost.
    pub lost_prepared: u64,
}

/// A keyspace of a repaired database.
///
/// ```
/// # let folder = std::env::temp_dir().join(format!("drumlin-doc-repaired-{}", std::process::id()));
/// # let (path, scratch) = (folder.join("shop.drumlin"), folder.join("scratch"));
/// # let db = drumlin::Database::open(&path)?;
/// # db.keyspace("orders")?.insert("k", "v")?;
/// # db.close()?;
/// let rescue = drumlin::Rescue::open(&drumlin::Config::new(), &path, &scratch)?;
/// let report = rescue.repair(folder.join("saved.drumlin"))?;
/// assert_eq!(report.keyspaces[0].rows, 1);
/// assert!(report.keyspaces[0].lost.is_empty());
/// # drop(rescue);
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct RepairedKeyspace {
    /// The name of the keyspace in the saved database.
    pub name: String,
    /// The number of its rows.
    pub rows: u64,
    /// The ranges of keys whose rows are lost, up to [`LOST_COUNT_MAX`](RepairedKeyspace::LOST_COUNT_MAX).
    pub lost: Vec<LostKeys>,
    /// The number of such ranges that are not listed.
    pub unlisted: u64,
}

impl RepairedKeyspace {
    /// The maximum number of lost ranges that a report lists for a keyspace.
    pub const LOST_COUNT_MAX: usize = 1000;

    pub(super) fn add_lost(&mut self, lower: Vec<u8>, upper: Option<Vec<u8>>) {
        if self.lost.len() == RepairedKeyspace::LOST_COUNT_MAX {
            self.unlisted += 1;
            return;
        }
        let keyspace = self.name.clone();
        self.lost.push(LostKeys { keyspace, lower: (!lower.is_empty()).then_some(lower), upper });
    }
}

impl RepairReport {
    /// Returns `true` if nothing was found to be lost.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.lost_prepared == 0 && self.keyspaces.iter().all(|keyspace| keyspace.lost.is_empty())
    }
}
