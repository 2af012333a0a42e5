//! Idle databases, in simulated time.

use std::time::Duration;

use drumlin::{Config, Durability, TxOptions};
use drumlin_io::testing::sim::{self, Disk, Medium, Schedule};
use drumlin_testing::Random;

/// A few seconds after a load, the log deletes the segment files that it had kept ready for further load, except for
/// one spare. Afterwards, it still accepts the next load.
#[test]
fn the_log_of_an_idle_database_shrinks() {
    let schedule = Schedule { seed: 7, switch_one_in: 30, step_nanos_max: 1000, points_max: 100_000_000 };
    let outcome = sim::run(schedule, || {
        let disk = Disk::new(Medium::default(), 7);
        let log_file_count = || {
            let is_of_log = |path: &std::path::PathBuf| path.extension().is_some_and(|extension| extension == "seg");
            disk.with_medium(|medium| medium.files().iter().filter(|path| is_of_log(path)).count())
        };
        // Each segment has room for 63 records. A checkpoint is made after every four segments.
        let config = || {
            let config = Config::new().backend(disk.backend()).memory(16 << 20).segment_bytes(256 << 10);
            config.log_segment_bytes(256 << 10).checkpoint_log_bytes(1 << 20)
        };
        let db = config().open("/db").unwrap();
        let rows = db.keyspace("rows").unwrap();
        let load = |from: u32| {
            for number in from..from + 1200 {
                let mut tx =
                    db.begin_with(TxOptions { durability: Durability::Relaxed, ..Default::default() }).unwrap();
                tx.insert(&rows, number.to_be_bytes(), vec![number as u8; 4000]).unwrap();
                tx.commit().unwrap();
            }
        };
        for round in 0..2 {
            load(round * 1200);
            let busy = log_file_count();
            db.checkpoint().unwrap();
            sim::sleep(Duration::from_secs(17));
            let idle = log_file_count();
            assert!(idle <= 3 && idle < busy, "{busy} files became {idle}");
            sim::sleep(Duration::from_secs(60));
            assert_eq!(log_file_count(), idle, "an idle log changes no more");
        }
        drop(rows);
        disk.turn_off();
        drop(db);
    });
    outcome.result.unwrap();
}

/// If the user makes a checkpoint, the data file of an idle database becomes shorter after it, even if no automatic
/// checkpoint is due.
#[test]
fn the_file_of_an_idle_database_shrinks() {
    let schedule = Schedule { seed: 3, switch_one_in: 30, step_nanos_max: 1000, points_max: 100_000_000 };
    let outcome = sim::run(schedule, || {
        let disk = Disk::new(Medium::default(), 3);
        let config = Config::new().backend(disk.backend()).memory(16 << 20).segment_bytes(256 << 10);
        let db = config.checkpoint_log_bytes(64 << 20).open("/db").unwrap();
        let rows = db.keyspace("rows").unwrap();
        let mut random = Random(5);
        for number in 0..4000u32 {
            rows.insert_with(number.to_be_bytes(), random.bytes(3000), Durability::Relaxed).unwrap();
        }
        db.checkpoint().unwrap();
        // The remaining rows are at the end of the file.
        (0..3800u32).for_each(|number| rows.remove(number.to_be_bytes()).unwrap());
        db.checkpoint().unwrap();
        let used = db.stats().data_file_bytes;
        sim::sleep(Duration::from_secs(30));
        let idle = db.stats().data_file_bytes;
        assert!(idle < used / 2, "{used} bytes became {idle}");
        sim::sleep(Duration::from_secs(60));
        assert_eq!(db.stats().data_file_bytes, idle, "an idle file changes no more");
        disk.turn_off();
    });
    outcome.result.unwrap();
}
