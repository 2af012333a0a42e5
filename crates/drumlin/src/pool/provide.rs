//! Provides the resources that a core operation lacks, and retries the operation.

use std::sync::Arc;

use super::Pool;
use super::frames::NewFrame;
use super::needs::{Needs, Stop, Wanted};
use crate::error::Result;
use crate::format::PageId;
use crate::task::{Boxed, WaitMode, ready, turn};

/// Waits for any resource that a core operation lacks.
pub(crate) struct Provider<'p> {
    mode: WaitMode<'p>,
    pool: &'p Arc<Pool>,
    /// The page that could not be loaded in the previous attempt.
    failed: Option<PageId>,
    is_of_scan: bool,
}

impl<'p> Provider<'p> {
    pub(crate) fn new(mode: WaitMode<'p>, pool: &'p Arc<Pool>) -> Provider<'p> {
        Provider { mode, pool, failed: None, is_of_scan: false }
    }

    /// Creates a provider for a scan, which reads ahead.
    pub(crate) fn of_scan(mode: WaitMode<'p>, pool: &'p Arc<Pool>) -> Provider<'p> {
        Provider { is_of_scan: true, ..Provider::new(mode, pool) }
    }

    /// Provides the resource that an operation lacks. Returns the page that was brought in, if the operation lacked a
    /// page. An outdated node may contain a page number that has been reused for a page of a different kind and size,
    /// so failing to load a page is an error only if it happens twice in a row.
    pub(crate) fn provide<'a>(&'a mut self, needs: &'a Needs) -> Boxed<'a, Result<Option<PageId>>> {
        Box::pin(async move {
            match needs {
                Needs::Page(pages, page) | Needs::RunPage(pages, page) => {
                    let wanted = Wanted { is_of_scan: self.is_of_scan, ..Wanted::node(pages, *page) };
                    let result = match self.mode {
                        WaitMode::Blocking => self.pool.fault(pages, wanted),
                        WaitMode::Tasks(_) => self.pool.fault_as_task(pages, wanted).await,
                    };
                    match result {
                        Err(_) if self.failed != Some(*page) => self.failed = Some(*page),
                        Err(error) => return Err(error),
                        Ok(()) => return Ok(matches!(needs, Needs::Page(..)).then_some(*page)),
                    }
                }
                Needs::Frame(page_bytes) => self.frame(*page_bytes).await.map(drop)?,
                Needs::Writes => match self.mode {
                    WaitMode::Blocking => self.pool.relieve()?,
                    WaitMode::Tasks(tasks) => {
                        let pool = Arc::clone(self.pool);
                        tasks.evictors.run(move || pool.relieve()).await?;
                    }
                },
            }
            Ok(None)
        })
    }

    /// Takes a frame for a new page.
    pub(crate) async fn frame(&self, page_bytes: usize) -> Result<NewFrame<'p>> {
        loop {
            if let Some(frame) = self.pool.frames.try_take(page_bytes) {
                debug_assert!(frame.header().dirty().is_none(), "a new frame is dirty");
                return Ok(frame);
            }
            match self.mode {
                WaitMode::Blocking => return self.pool.take_frame(page_bytes),
                WaitMode::Tasks(tasks) => {
                    let pool = Arc::clone(self.pool);
                    tasks.evictors.run(move || pool.take_frame(page_bytes).map(drop)).await?;
                }
            }
        }
    }
}

impl Pool {
    /// Retries a core operation until it lacks nothing, providing the missing resource between the attempts. The
    /// operation's argument is the page at which to begin its descent: the root at first, and later the missing page
    /// once it is in memory.
    #[inline]
    pub(crate) fn waiting<T>(self: &Arc<Pool>, mut operation: impl FnMut(PageId) -> Result<T, Stop>) -> Result<T> {
        match operation(PageId::ROOT) {
            Ok(value) => Ok(value),
            Err(stop) => ready(self.going_on(Provider::new(WaitMode::Blocking, self), stop, operation)),
        }
    }

    /// Like [`waiting`](Self::waiting), for a step of a scan that reads ahead.
    pub(crate) fn waiting_in_scan<T>(
        self: &Arc<Pool>,
        mut operation: impl FnMut(PageId) -> Result<T, Stop>,
    ) -> Result<T> {
        match operation(PageId::ROOT) {
            Ok(value) => Ok(value),
            Err(stop) => ready(self.going_on(Provider::of_scan(WaitMode::Blocking, self), stop, operation)),
        }
    }

    /// Like [`waiting`](Self::waiting), but waits in the given mode.
    pub(crate) async fn awaiting<T>(
        self: &Arc<Pool>,
        mode: WaitMode<'_>,
        mut operation: impl FnMut(PageId) -> Result<T, Stop>,
    ) -> Result<T> {
        mode.work(turn::LEAF_UNITS).await;
        match operation(PageId::ROOT) {
            Ok(value) => Ok(value),
            Err(stop) => self.going_on(Provider::new(mode, self), stop, operation).await,
        }
    }

    /// Continues [`awaiting`](Self::awaiting) after the operation has stopped for the first time.
    pub(crate) async fn going_on<T>(
        self: &Arc<Pool>,
        mut provider: Provider<'_>,
        mut stop: Stop,
        mut operation: impl FnMut(PageId) -> Result<T, Stop>,
    ) -> Result<T> {
        loop {
            let provided = match stop {
                Stop::Error(error) => return Err(error),
                Stop::Needs(needs) => provider.provide(&needs).await?,
            };
            match operation(provided.unwrap_or(PageId::ROOT)) {
                Ok(value) => return Ok(value),
                Err(again) => stop = again,
            }
        }
    }
}
