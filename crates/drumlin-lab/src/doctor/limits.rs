//! Checks how close a database is to its own limits and to the system's limits on its files.

use drumlin::{KeyspaceInfo, Stats};

use super::{Diagnosis, Severity, show_bytes};
use crate::figures::Form;

/// The largest data file whose bytes an extent address can refer to (docs/format.md).
const DATA_FILE_BYTES_MAX: u64 = 64 << 40;

/// The maximum number of pages in a keyspace, and of keyspaces in a database: both have 32-bit ids.
const NUMBERS: u64 = 1 << 32;

/// The doctor reports a limit once this share of it is used.
const SHARE_NEAR: f64 = 0.8;

/// The share of the memory budget that page tables may occupy before too little is left for frames.
const TABLE_SHARE_MAX: f64 = 0.4;

/// The figures that are compared with limits.
#[derive(Clone, Debug, Default)]
struct Use {
    data_file_bytes: u64,
    /// The page count of the largest keyspace.
    pages: u64,
    largest: String,
    keyspace_number: u64,
    table_bytes: u64,
    memory_bytes: u64,
    /// The length limit for files that this user writes, or `None` if there is none.
    file_bytes_max: Option<u64>,
}

/// Reports each limit that the database is close to. If there is none, reports that it is far from all limits.
pub(super) fn check(diagnosis: &mut Diagnosis, stats: &Stats, keyspaces: &[KeyspaceInfo]) {
    let largest = keyspaces.iter().max_by_key(|keyspace| keyspace.page_count);
    let near = near(&Use {
        data_file_bytes: stats.data_file_bytes,
        pages: largest.map_or(0, |keyspace| keyspace.page_count),
        largest: largest.map_or_else(String::new, |keyspace| keyspace.name.clone()),
        keyspace_number: keyspaces.iter().map(|keyspace| u64::from(keyspace.id.0)).max().unwrap_or(0),
        table_bytes: stats.table_bytes,
        memory_bytes: stats.memory_budget_bytes,
        file_bytes_max: rustix::process::getrlimit(rustix::process::Resource::Fsize).current,
    });
    if near.is_empty() {
        let share = stats.data_file_bytes as f64 / DATA_FILE_BYTES_MAX as f64;
        let found = format!(
            "far: the data file is at {} of 64 TiB, page tables take {}",
            Form::Share.show(share),
            show_bytes(stats.table_bytes)
        );
        diagnosis.add(Severity::Fine, "limits", found);
    }
    for (severity, found, mend) in near {
        diagnosis.mend(severity, "limits", found, mend);
    }
}

/// Returns the limits that the database is close to, each with a remedy.
fn near(taken: &Use) -> Vec<(Severity, String, String)> {
    let mut near = Vec::new();
    let mut check = |used: u64, limit: u64, what: String, mend: &str| {
        let share = used as f64 / limit.max(1) as f64;
        if share >= SHARE_NEAR {
            let severity = if share >= 0.99 { Severity::Wrong } else { Severity::Advice };
            near.push((severity, format!("{what} at {}", Form::Share.show(share)), mend.to_owned()));
        }
    };
    check(
        taken.data_file_bytes,
        DATA_FILE_BYTES_MAX,
        "the data file (at most 64 TiB) is".to_owned(),
        "`drumlin compact`, or divide the rows between databases",
    );
    let pages = format!("page numbers of keyspace {:?} are", taken.largest);
    check(taken.pages, NUMBERS, pages, "load its rows into a new keyspace with larger pages");
    check(
        taken.keyspace_number,
        NUMBERS,
        "numbers of keyspaces, which are never reused, are".to_owned(),
        "`drumlin dump` and `drumlin load` into a new database",
    );
    if let Some(limit) = taken.file_bytes_max {
        let what = format!("the longest file that this user may write ({}) is", show_bytes(limit));
        check(taken.data_file_bytes, limit, what, "ulimit -f unlimited, or LimitFSIZE=infinity in the systemd unit");
    }
    if taken.table_bytes as f64 > TABLE_SHARE_MAX * taken.memory_bytes as f64 {
        near.push((
            Severity::Advice,
            format!(
                "page tables take {} of a memory budget of {}, and leave few frames",
                show_bytes(taken.table_bytes),
                show_bytes(taken.memory_bytes)
            ),
            format!("Config::new().memory({} << 20), or larger pages", (taken.table_bytes * 5) >> 20),
        ));
    }
    near
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small database is far from every limit. A limit is reported when the database is close to it.
    #[test]
    fn near_limits_are_named() {
        let small = Use { data_file_bytes: 64 << 20, memory_bytes: 256 << 20, ..Use::default() };
        assert!(near(&small).is_empty());
        assert!(near(&Use { file_bytes_max: Some(1 << 40), ..small.clone() }).is_empty());
        let named = |taken: Use| {
            let near = near(&taken);
            assert_eq!(near.len(), 1, "{near:?}");
            (near[0].0, near[0].1.clone())
        };
        let (severity, found) = named(Use { data_file_bytes: 60 << 40, ..small.clone() });
        assert!(severity == Severity::Advice && found.contains("64 TiB"), "{found}");
        let (severity, found) = named(Use { pages: NUMBERS - 1, largest: "rows".to_owned(), ..small.clone() });
        assert!(severity == Severity::Wrong && found.contains("\"rows\""), "{found}");
        assert!(named(Use { keyspace_number: NUMBERS / 10 * 9, ..small.clone() }).1.contains("keyspaces"));
        assert!(named(Use { file_bytes_max: Some(65 << 20), ..small.clone() }).1.contains("may write"));
        assert!(named(Use { table_bytes: 200 << 20, ..small }).1.contains("few frames"));
    }
}
