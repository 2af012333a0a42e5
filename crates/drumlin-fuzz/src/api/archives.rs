//! An archive: a database of its own is restored to one of its commits.

use std::collections::BTreeMap;

use drumlin::{Archive, BackupOptions, Config, Error, RestorePoint};

use super::answers::{checked, must};
use super::calls::call;
use super::places::BUDGET_BYTES;
use crate::Script;

/// Makes commits of a database with an archive, a backup among them, and restores one of the commits after it. A
/// damaged archive, and points that it does not have, are refused.
pub(super) fn rewind(script: &mut Script<'_>) {
    let backend = drumlin_io::in_memory();
    let plain = Config::new().backend(backend.clone()).memory(BUDGET_BYTES);
    let db = must(call!("Config::archive", plain.clone().archive(Archive::to_folder("/archive"))).open("/db"));
    let keyspace = must(db.keyspace("k"));
    let mut rows = BTreeMap::new();
    let mut states = Vec::new();
    let mut stream = Vec::new();
    let (before, after) = (script.byte() % 4, 1 + script.byte() % 6);
    for step in 0..before + after {
        if step == before {
            must(db.backup_to("/backup", &BackupOptions::new()));
            must(db.backup_into(&mut stream, &BackupOptions::new()));
        }
        let (key, value) = (vec![script.byte() % 8], vec![step; usize::from(script.byte()) * 600]);
        must(keyspace.insert(&key, &value));
        rows.insert(key, value);
        if step >= before {
            states.push((db.stats().durable, rows.clone()));
        }
        if script.byte().is_multiple_of(8) {
            must(db.checkpoint());
        }
    }
    drop(keyspace);
    must(db.close());
    let chains = must(call!("Config::verify_archive", plain.verify_archive("/archive")));
    let last = states.last().expect("there are commits").0;
    assert!(chains.len() == 1 && chains[0].to == last, "{chains:?}");
    let (at, expected) = &states[usize::from(script.byte()) % states.len()];
    let point = RestorePoint::Commit(*at);
    let is_unusable = |error: &Error| matches!(error, Error::UnusableArchive { .. });
    let newer = RestorePoint::Commit(drumlin::Timestamp(last.0 + 1));
    let refused = plain.restore_to(["/backup"], "/archive", newer, "/refused");
    assert!(checked(refused, is_unusable).is_none(), "a commit that is not there was restored");
    if script.byte().is_multiple_of(2) {
        must(call!("Config::restore_to", plain.restore_to(["/backup"], "/archive", point, "/restored")));
    } else {
        let backups = [&stream[..]];
        must(call!("Config::restore_from_to", plain.restore_from_to(backups, "/archive", point, "/restored")));
    }
    let restored = must(plain.open("/restored"));
    let found = must(restored.keyspace("k")).iter().map(|row| {
        let (key, value) = must(row);
        (key.into_vec(), value.into_vec())
    });
    assert!(found.collect::<BTreeMap<_, _>>() == *expected, "another state was restored");
    must(restored.close());
    let name = must(backend.list("/archive".as_ref()).map_err(|error| Error::Invalid(error.to_string()))).remove(0);
    let file = backend.open(&name, drumlin_io::OpenOptions { write: true, ..Default::default() }).expect("it is there");
    file.set_len(u64::from(script.byte()) * 16).expect("it can be cut");
    assert!(checked(plain.verify_archive("/archive"), is_unusable).is_none(), "a file that is cut short is sound");
}
