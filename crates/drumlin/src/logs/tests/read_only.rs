//! Folders that are opened for reading only.

use super::history::make;
use super::*;

/// All files of the simulated disk with their bytes.
fn contents(disk: &Disk) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let files = disk.disk.with_medium(|medium| medium.files());
    let read = |path: std::path::PathBuf| {
        let file = disk.backend().open(&path, crate::io::OpenOptions::default()).unwrap();
        let mut bytes = vec![0; file.len().unwrap() as usize];
        file.read_at(&mut bytes, 0).unwrap();
        (path, bytes)
    };
    files.into_iter().map(read).collect()
}

/// A folder that was closed or killed reads as its next opening finds it, and no byte of it changes. Changes are
/// refused.
#[test]
fn reading_changes_nothing() {
    for seed in 0..40 {
        let mut random = Random(seed);
        let mut disk = Disk::new(false);
        let (mut model, logs) = (Model::default(), disk.open().unwrap());
        for _ in 0..200 {
            let step = model.step(&mut random);
            make(&logs, &step).unwrap().wait().unwrap();
            model.apply(&step);
        }
        if random.below(2) == 0 {
            let killed = disk.kill();
            drop(logs);
            disk = killed;
        } else {
            logs.close().unwrap();
        }
        let before = contents(&disk);
        let options = disk.options().read_only(true);
        let (logs, other) = (Logs::open(DIR, &options).unwrap(), Logs::open(DIR, &options).unwrap());
        assert_eq!(Model::read(&logs).unwrap(), model, "seed {seed}");
        assert_eq!(Model::read(&other).unwrap(), model, "seed {seed}");
        let refused = |changed: Result<Receipt>| assert!(matches!(changed, Err(Error::ReadOnly { .. })), "{changed:?}");
        refused(logs.log(99).append(1, &["refused"]));
        refused(logs.log(99).set("vote", "refused"));
        if let Some((number, _)) = model.logs.first_key_value() {
            refused(logs.remove(*number));
        }
        assert!(matches!(disk.open(), Err(Error::Locked { .. })), "it is being read");
        logs.close().unwrap();
        drop(other);
        assert!(before == contents(&disk), "seed {seed}: reading has changed a file");
        let logs = disk.open().unwrap();
        assert_eq!(Model::read(&logs).unwrap(), model, "seed {seed}");
        assert!(matches!(Logs::open(DIR, &options), Err(Error::Locked { .. })), "it may change");
    }
}

/// A folder that is missing, empty, or holds other things is not created.
#[test]
fn reading_creates_nothing() {
    let disk = Disk::new(false);
    let options = disk.options().read_only(true);
    assert!(matches!(Logs::open(DIR, &options), Err(Error::NotFound { .. })));
    disk.backend().create_dir_all(Path::new(DIR)).unwrap();
    assert!(matches!(Logs::open(DIR, &options), Err(Error::NotADatabase { .. })));
    assert_eq!(contents(&disk), []);
}
