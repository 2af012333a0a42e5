//! The storage of databases, and their settings, up to and beyond the limits.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use drumlin::{Config, Database, Durability, Error, IoBackend, Retention, VersionOverflow};
use drumlin_io::Backend;

use super::answers::{checked, must};
use super::calls::call;
use super::futures::block_on;
use crate::Script;

/// The smallest budget that a database works with.
pub(super) const BUDGET_BYTES: u64 = 8 << 20;

/// A folder inside the system's temporary folder, removed on drop.
pub(super) struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        Folder(folder_of(std::process::id()).join(number.to_string()))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
        let _ = self.0.parent().map(std::fs::remove_dir);
    }
}

/// Returns the folder for a process's databases. If the parent process kills the process, it also removes the folder.
pub fn folder_of(process: u32) -> PathBuf {
    std::env::temp_dir().join(format!("drumlin-api-{process}"))
}

/// The place where a database stores its files.
pub(super) enum Place {
    Memory(Arc<dyn Backend>),
    Disk(Folder),
}

impl Place {
    pub(super) fn new(is_on_disk: bool) -> Place {
        if is_on_disk { Place::Disk(Folder::new()) } else { Place::Memory(drumlin_io::in_memory()) }
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            Place::Memory(_) => Path::new("/db"),
            Place::Disk(folder) => &folder.0,
        }
    }
}

/// The settings of a database.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) memory_bytes: u64,
    pub(super) page_bytes: usize,
    segment_bytes: u64,
    log_segment_bytes: u64,
    log_streams: u16,
    checkpoint_log_bytes: u64,
    io_backend: IoBackend,
    durability: Durability,
    warm_start: bool,
    version_disk_bytes: u64,
    pub(super) keeps_changes: bool,
    pub(super) keeps_old_values: bool,
}

impl Settings {
    /// Draws either small settings only, or each setting from its minimum to more than is useful.
    pub(super) fn draw(script: &mut Script<'_>) -> Settings {
        let is_small = script.byte() < 160;
        let mut one = |choices: &[u64]| match is_small {
            true => choices[0],
            false => choices[usize::from(script.byte()) % choices.len()],
        };
        let log_streams = one(&[1, 1, 1, 2, 64]) as u16;
        // New segments are filled with zeros, so many large segments take gigabytes. `limits` tries the largest size.
        let segments: &[u64] =
            if log_streams > 2 { &[1 << 20, (1 << 20) + 4096] } else { &[1 << 20, 2 << 20, 64 << 20] };
        Settings {
            log_streams,
            log_segment_bytes: one(segments),
            memory_bytes: one(&[BUDGET_BYTES, BUDGET_BYTES + 1, 12 << 20, 40 << 20]),
            page_bytes: one(&[512, 512, 1024, 4096, 16_384, 65_536]) as usize,
            segment_bytes: one(&[256 << 10, 256 << 10, 1 << 20, 64 << 20]),
            checkpoint_log_bytes: one(&[256 << 20, 0, 1, 64 << 10, u64::MAX]),
            io_backend: [IoBackend::Auto, IoBackend::Portable][one(&[0, 1]) as usize],
            durability: [Durability::Full, Durability::Relaxed][one(&[0, 1]) as usize],
            warm_start: one(&[1, 0]) == 1,
            version_disk_bytes: one(&[u64::MAX, 0, 1, 256 << 10]),
            keeps_changes: script.byte() < 80,
            keeps_old_values: script.byte() < 128,
        }
    }

    /// Draws new settings for the next opening of the same database.
    pub(super) fn redraw(&mut self, script: &mut Script<'_>) {
        let (segment_bytes, page_bytes, memory_bytes) = (self.segment_bytes, self.page_bytes, self.memory_bytes);
        *self = Settings { segment_bytes, page_bytes, ..Settings::draw(script) };
        // The database might fail to open with less memory.
        self.memory_bytes = self.memory_bytes.max(memory_bytes);
    }

    pub(super) fn config(&self, place: &Place) -> Config {
        let config = call!("Config::new", Config::new());
        let config = call!("Config::on_lock_wait", config.on_lock_wait(|wait| assert!(!wait.holders.is_empty())));
        let config = call!("Config::memory", config.memory(self.memory_bytes));
        let config = call!("Config::page_bytes", config.page_bytes(self.page_bytes));
        let config = call!("Config::segment_bytes", config.segment_bytes(self.segment_bytes));
        let config = call!("Config::log_segment_bytes", config.log_segment_bytes(self.log_segment_bytes));
        let config = call!("Config::log_streams", config.log_streams(self.log_streams));
        let config = call!("Config::checkpoint_log_bytes", config.checkpoint_log_bytes(self.checkpoint_log_bytes));
        let config = call!("Config::durability", config.durability(self.durability));
        let delay = Duration::from_micros(self.page_bytes as u64 / 8);
        let config = call!("Config::relaxed_delay", config.relaxed_delay(delay));
        let config = call!("Config::warm_start", config.warm_start(self.warm_start));
        let config = call!("Config::version_disk_bytes", config.version_disk_bytes(self.version_disk_bytes));
        // At a limit, delayed commits may fail after ten seconds, so delay commits only if there is no limit.
        let is_unlimited = self.version_disk_bytes == u64::MAX;
        let choice = if is_unlimited { VersionOverflow::DelayCommits } else { VersionOverflow::EndSnapshots };
        let config = call!("Config::version_overflow", config.version_overflow(choice));
        let kept = Retention::bytes(1 << 20);
        let retention = match (self.keeps_changes, self.keeps_old_values) {
            (true, true) => kept.with_old_values(),
            (true, false) => kept,
            (false, _) => Retention::none(),
        };
        let config = call!("Config::keep_changes", config.keep_changes(retention));
        match place {
            Place::Memory(backend) => config.backend(Arc::clone(backend)),
            Place::Disk(_) => call!("Config::io_backend", config.io_backend(self.io_backend)),
        }
    }
}

/// Tries one setting at or beyond its limits: either opening fails with the right error, or the database works.
pub(super) fn limits(is_on_disk: bool, script: &mut Script<'_>) {
    let place = Place::new(is_on_disk);
    let mut one = |choices: &[u64]| choices[usize::from(script.byte()) % choices.len()];
    let page_bytes = one(&[0, 1, 511, 512, 4096, 65_536, 131_072, u64::MAX]) as usize;
    let streams = one(&[0, 1, 2, 64, 65, 65_535]) as u16;
    let mut config = call!("Config::in_memory", Config::in_memory());
    if let Place::Disk(_) = place {
        config = Config::new();
    }
    config = config.memory(BUDGET_BYTES).segment_bytes(256 << 10).log_segment_bytes(1 << 20);
    match one(&[0, 1, 2, 3, 4, 5, 6]) {
        0 => config = config.memory(one(&[0, 1, (8 << 20) - 1, 8 << 20, (1 << 40) + 1, u64::MAX])),
        1 => config = config.page_bytes(page_bytes),
        2 => config = config.segment_bytes(one(&[0, 1, 4096, 256 << 10, 1 << 20, 1 << 63, u64::MAX])),
        3 => {
            let most = u64::MAX - 4095;
            let choices = [0, 1, 4096, 1 << 20, (1 << 20) + 1, 1 << 30, 1 << 40, 1 << 62, 1 << 63, most, u64::MAX];
            config = config.log_segment_bytes(one(&choices));
        }
        4 => config = config.log_streams(streams),
        5 => config = config.checkpoint_log_bytes(one(&[0, 1, u64::MAX])),
        _ => {
            let config = Config::new().io_backend(IoBackend::Portable);
            let config = call!("Config::create", config.create(false));
            let missing = |error: &Error| matches!(error, Error::NotFound { .. } | Error::Invalid(_));
            assert!(checked(config.open("/nowhere/at/all"), missing).is_none());
            assert!(checked(call!("Database::open", Database::open("")), missing).is_none());
            assert!(checked(block_on(call!("Database::open_async", Database::open_async(""))), missing).is_none());
            return;
        }
    }
    let may =
        |error: &Error| matches!(error, Error::Invalid(_) | Error::BudgetTooSmall { .. } | Error::DiskFull { .. });
    if let Some(db) = checked(config.open(place.path()), may) {
        let k = must(db.keyspace("k"));
        must(k.insert("a", "b"));
        must(db.close());
    }
}
