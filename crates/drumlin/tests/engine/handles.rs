//! A process that runs out of file handles.

use crate::support;

use drumlin::Error;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::{Folder, alone, small};

/// While no file can be opened, a commit that needs a new log segment fails with an error that says so. Once handles
/// are available, the next commit succeeds, and no row is lost.
#[test]
fn a_moment_without_handles_passes() {
    alone("handles::a_moment_without_handles_passes", &[], || {
        let folder = Folder::new();
        let db = small().checkpoint_log_bytes(64 << 20).open(folder.path()).unwrap();
        let keyspace = db.keyspace("rows").unwrap();
        let mut committed: u64 = 0;
        let mut commit = || {
            keyspace.insert(committed.to_be_bytes(), vec![committed as u8; 20_000])?;
            committed += 1;
            Ok(committed)
        };
        commit().unwrap();
        let limit = getrlimit(Resource::Nofile);
        for _ in 0..3 {
            setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limit }).unwrap();
            let mut refused = 0;
            for _ in 0..300 {
                match commit() {
                    Ok(_) => {}
                    Err(Error::Io { path, source, .. }) => {
                        assert!(
                            path.ends_with("log") && source.raw_os_error() == Some(24),
                            "{}: {source}",
                            path.display()
                        );
                        refused += 1;
                    }
                    Err(other) => panic!("{other:?}"),
                }
            }
            assert!(refused > 0);
            setrlimit(Resource::Nofile, limit).unwrap();
            for _ in 0..100 {
                commit().unwrap();
            }
        }
        let committed = commit().unwrap();
        drop((keyspace, db));
        let found = small().open(folder.path()).unwrap().existing_keyspace("rows").unwrap().count(..).unwrap();
        assert_eq!(found, committed);
    });
}
