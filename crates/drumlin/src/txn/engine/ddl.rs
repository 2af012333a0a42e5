//! Commits that change no rows: they create or drop a keyspace, or attach a bulk load.

use std::sync::atomic::Ordering;

use super::Engine;
use crate::error::Result;
use crate::format::Timestamp;
use crate::seglog::Body;
use crate::task::{WaitMode, ready};

impl Engine {
    /// Commits a record that changes no rows. If `apply` does not take a timestamp, nothing is logged or committed.
    pub(crate) fn log_ddl<T>(
        &self,
        body: &Body,
        apply: impl FnOnce(&mut dyn FnMut() -> Result<Timestamp>) -> Result<T>,
    ) -> Result<(T, Option<Timestamp>)> {
        assert!(!body.bytes().is_empty(), "a record of nothing is committed");
        self.check_failure()?;
        let log = self.log();
        let mut reservation = Some(ready(self.reserve_log(WaitMode::Blocking, 0, body.bytes().len()))?);
        let mut appended = None;
        let value = apply(&mut || {
            let reservation = reservation.take().expect("a commit takes its timestamp once");
            let logged = reservation.append(body)?;
            self.other_records.fetch_add(1, Ordering::Relaxed);
            appended = Some(logged);
            crate::coverage::timestamp_taken(logged.timestamp);
            Ok(logged.timestamp)
        })?;
        let Some(appended) = appended else { return Ok((value, None)) };
        log.wait_durable(&appended)?;
        self.clock.wait_published(appended.timestamp);
        let timestamp = appended.timestamp;
        assert!(timestamp <= self.clock.published(), "commit {timestamp} returns before it is published");
        self.clock.show_durable(log.durable());
        assert!(timestamp <= self.clock.visible(), "commit {timestamp} returns before readers see it");
        Ok((value, Some(timestamp)))
    }
}
