//! The pool's background threads. One writes pages back and keeps frames free, and two read ahead.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use super::frame_header::INNER_CHANCES;
use super::needs::Wanted;
use super::{Ahead, DeferredTask, Pool};
use crate::space::PageSpace;

/// The maximum number of requests queued for the threads that read ahead.
const AHEAD_REQUESTS_MAX: usize = 16;

impl Pool {
    pub(super) fn wake_background(&self) {
        let mut wanted = self.background.wanted.lock();
        if !*wanted {
            *wanted = true;
            self.background.wake.notify_one();
        }
    }

    /// The body of the background writer: refills elevators, and frees frames before they are needed.
    pub(crate) fn run_background(&self) {
        loop {
            {
                let mut wanted = self.background.wanted.lock();
                while !*wanted && !self.background.stop.load(Ordering::Acquire) {
                    self.background.wake.wait(&mut wanted);
                }
                *wanted = false;
            }
            if self.background.stop.load(Ordering::Acquire) {
                return;
            }
            self.extend_elevators();
            for (page_bytes, _) in self.frames.sizes() {
                self.keep_free(page_bytes);
            }
        }
    }

    /// Evicts pages until there are spare frames of this size. Gives up after `INNER_CHANCES + 1` consecutive turns of
    /// the clock without an eviction: the remaining pages are in use, or there are too few to keep any frame free.
    /// Returns the number of turns.
    pub(crate) fn keep_free(&self, page_bytes: usize) -> u32 {
        let mut turns = 0;
        let mut turns_in_vain = 0;
        while self.frames.available(page_bytes) < self.low_water(page_bytes) * 2 && turns_in_vain <= INNER_CHANCES {
            turns += 1;
            match self.evict_for(page_bytes) {
                _ if self.background.stop.load(Ordering::Acquire) => break,
                Ok(0) => turns_in_vain += 1,
                Ok(_) => turns_in_vain = 0,
                Err(_) => break,
            }
        }
        turns
    }

    /// Starts the background threads, unless they are running or have been stopped.
    pub(crate) fn start_background(self: &Arc<Self>) -> std::io::Result<()> {
        let mut threads = self.background.threads.lock();
        if self.background.stop.load(Ordering::Acquire) || self.background.has_threads.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        assert!(threads.is_empty(), "background threads are started twice");
        // Two threads read ahead, so that one can wait for the device while the other decompresses pages.
        type Body = fn(&Pool);
        let bodies: [(&str, Body); 3] = [
            ("drumlin-ahead", Pool::run_read_ahead),
            ("drumlin-ahead", Pool::run_read_ahead),
            ("drumlin-evict", Pool::run_background),
        ];
        for (name, body) in bodies {
            let pool = Arc::clone(self);
            threads.push(self.backend.spawn(name, Box::new(move || body(&pool)))?);
        }
        Ok(())
    }

    /// Returns the background threads for the caller to join. They must have been [stopped](Self::stop_background)
    /// first.
    pub(crate) fn take_threads(&self) -> Vec<JoinHandle<()>> {
        assert!(self.background.stop.load(Ordering::Acquire), "threads are waited for that go on");
        std::mem::take(&mut *self.background.threads.lock())
    }

    /// Queues pages for the threads that read ahead. If they have not begun to read a page by the time the scan needs
    /// it, the scan reads it itself.
    pub(crate) fn read_ahead(self: &Arc<Self>, pages: &Arc<PageSpace>, wanted: Vec<Wanted>) {
        self.enqueue_ahead(Ahead::Read(Arc::clone(pages), wanted));
    }

    /// Queues a deferred task for the threads that read ahead. If they are busy, the task may never run.
    pub(crate) fn send_deferred_task(self: &Arc<Self>, task: Arc<dyn DeferredTask>) {
        self.enqueue_ahead(Ahead::DeferredTask(task));
    }

    /// Queues a request for the threads that read ahead. Drops it if the queue is full or no thread can be started.
    pub(super) fn enqueue_ahead(self: &Arc<Self>, work: Ahead) {
        let reads_nothing = matches!(&work, Ahead::Read(_, wanted) if wanted.is_empty());
        debug_assert!(!reads_nothing, "no page is read ahead");
        if !self.background.has_threads.load(Ordering::Acquire)
            && let Err(error) = self.start_background()
        {
            log::debug!("starting a thread that reads {} ahead: {error}", self.space.path().display());
        }
        let mut requests = self.background.ahead.lock();
        if requests.len() < AHEAD_REQUESTS_MAX {
            requests.push_back(work);
            debug_assert!(requests.len() <= AHEAD_REQUESTS_MAX, "{} requests wait", requests.len());
            self.background.wake_ahead.notify_one();
        }
    }

    /// The body of a thread that reads ahead.
    pub(crate) fn run_read_ahead(&self) {
        loop {
            let work = {
                let mut requests = self.background.ahead.lock();
                loop {
                    if self.background.stop.load(Ordering::Acquire) {
                        return;
                    }
                    match requests.pop_front() {
                        Some(work) => break work,
                        None => self.background.wake_ahead.wait(&mut requests),
                    }
                }
            };
            match work {
                // If a page can't be read, its next reader gets the error.
                Ahead::Read(pages, wanted) => drop(self.fault_ahead(&pages, &wanted)),
                Ahead::DeferredTask(task) => task.run(self),
            }
        }
    }

    pub(crate) fn stop_background(&self) {
        self.stop_fetching();
        self.background.stop.store(true, Ordering::Release);
        {
            let _requests = self.background.ahead.lock();
            self.background.wake_ahead.notify_all();
        }
        let _wanted = self.background.wanted.lock();
        self.background.wake.notify_all();
    }
}
