//! Operations: futures on which a thread can also block.

use std::fmt;
use std::future::Future;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use super::Driver;
use super::reactor::{Answer, Direction, Key, Request};
use crate::backend::disk::end_of_file;
use crate::backend::{AlignedBuffer, FileRef, Persist};
use crate::read::{BufferHome, ReadBuffer};

/// A pending call on a file or folder. It begins when a task first polls it or a thread waits for it.
///
/// An operation is a future, for tasks of any executor. [`wait`](Self::wait) blocks the calling thread instead. Polling
/// never blocks: transfers go through the driver's queue, and calls that can only block (opening, syncing) run on a
/// worker thread.
///
/// Dropping an operation that has begun does not cancel it: its write may still happen, or may have happened already.
/// Its buffer is kept until the transfer has finished.
#[must_use = "an operation does nothing until it is awaited, waited for or begun"]
pub struct Operation<T> {
    driver: Driver,
    step: Step<T>,
}

type Call<T> = Box<dyn FnOnce() -> io::Result<T> + Send>;

enum Step<T> {
    /// A transfer that has not begun.
    Transfer(Transfer<T>),
    InFlight(Key, Outcome<T>),
    /// A call that has not begun.
    Call(Call<T>),
    /// A call that runs on a worker thread.
    Calling(Pin<Box<dyn Future<Output = io::Result<T>> + Send>>),
    /// The result is known.
    Ready(io::Result<T>),
    /// The result has been returned.
    Over,
}

/// A read or write of an aligned range.
pub(crate) struct Transfer<T> {
    pub(crate) direction: Direction,
    pub(crate) file: FileRef,
    pub(crate) offset: u64,
    pub(crate) buffer: AlignedBuffer,
    pub(crate) outcome: Outcome<T>,
}

/// Turns the result of a transfer into the result of its operation.
pub(crate) struct Outcome<T> {
    /// The range of the buffer that the caller requested. The rest of the buffer's blocks may lie beyond the end of the
    /// file.
    pub(crate) visible: Range<usize>,
    /// Set if the end of the file may cut the visible bytes short. Otherwise that is an error.
    pub(crate) is_up_to: bool,
    pub(crate) home: Option<Arc<BufferHome>>,
    pub(crate) finish: fn(AlignedBuffer, Range<usize>, Option<Arc<BufferHome>>) -> T,
}

impl<T> Outcome<T> {
    fn of(self, answer: Answer) -> io::Result<T> {
        let Answer { mut buffer, transferred, result } = answer;
        match result {
            Ok(()) => {}
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(error),
            Err(_) if transferred >= self.visible.end || self.is_up_to => {}
            Err(error) => return Err(error),
        }
        let end = self.visible.end.min(transferred);
        let visible = self.visible.start.min(end)..end;
        buffer.set_len(buffer.len().min(transferred.max(end)));
        Ok((self.finish)(buffer, visible, self.home))
    }
}

/// Returns the visible bytes as the result of a read.
pub(crate) fn into_read(buffer: AlignedBuffer, visible: Range<usize>, home: Option<Arc<BufferHome>>) -> ReadBuffer {
    match home {
        Some(home) => ReadBuffer::of_home(buffer, visible, &home),
        None => ReadBuffer::from(buffer).slice(visible),
    }
}

/// Returns the caller's own buffer.
pub(crate) fn into_buffer(buffer: AlignedBuffer, _: Range<usize>, _: Option<Arc<BufferHome>>) -> AlignedBuffer {
    buffer
}

impl<T: Send + 'static> Operation<T> {
    pub(crate) fn transfer(driver: Driver, transfer: Transfer<T>) -> Operation<T> {
        Operation { driver, step: Step::Transfer(transfer) }
    }

    pub(super) fn call(driver: Driver, call: Call<T>) -> Operation<T> {
        Operation { driver, step: Step::Call(call) }
    }

    pub(crate) fn ready(driver: Driver, result: io::Result<T>) -> Operation<T> {
        Operation { driver, step: Step::Ready(result) }
    }

    /// Begins a read or write now instead of at its first poll. Has no effect on other kinds of operations.
    pub fn begin(mut self) -> Operation<T> {
        self.step = match std::mem::replace(&mut self.step, Step::Over) {
            Step::Transfer(transfer) => begin(&self.driver, transfer, None).0,
            step => step,
        };
        self
    }

    /// Blocks the calling thread until the operation is done. If the operation has not begun, it runs entirely on the
    /// calling thread, so that a read is a single system call.
    ///
    /// # Errors
    /// The errors of the operation.
    pub fn wait(mut self) -> io::Result<T> {
        match std::mem::replace(&mut self.step, Step::Over) {
            Step::Transfer(transfer) => transfer.run(),
            Step::Call(call) => call(),
            step => {
                self.step = step;
                self.driver.clone().block_on(self)
            }
        }
    }
}

/// Begins a transfer. Returns its step, and `true` if the waker was stored.
fn begin<T>(driver: &Driver, transfer: Transfer<T>, waker: Option<&Waker>) -> (Step<T>, bool) {
    let Transfer { direction, file, offset, buffer, outcome } = transfer;
    match driver.reactor().begin(Request { direction, file, offset, buffer }, driver.class(), waker) {
        Ok((key, is_awaited)) => (Step::InFlight(key, outcome), is_awaited),
        Err(error) => (Step::Ready(Err(error)), false),
    }
}

impl<T> Transfer<T> {
    /// Performs the transfer on the calling thread.
    fn run(self) -> io::Result<T> {
        let Transfer { direction, file, offset, mut buffer, outcome } = self;
        let transferred = match direction {
            Direction::Read => file.read_up_to(&mut buffer, offset)?,
            Direction::Write => {
                file.write_at(&buffer, offset, Persist::Later)?;
                buffer.len()
            }
        };
        let result = if transferred < buffer.len() { Err(end_of_file()) } else { Ok(()) };
        outcome.of(Answer { buffer, transferred, result })
    }
}

impl<T: Send + 'static> Future for Operation<T> {
    type Output = io::Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        let this = &mut *self;
        loop {
            // Steps that can be pending are polled in place.
            match &mut this.step {
                Step::InFlight(key, _) => {
                    let answer = ready!(this.driver.reactor().poll(*key, context.waker()));
                    let Step::InFlight(_, outcome) = std::mem::replace(&mut this.step, Step::Over) else {
                        unreachable!("matched above")
                    };
                    return Poll::Ready(answer.and_then(|answer| outcome.of(answer)));
                }
                Step::Calling(calling) => {
                    let result = ready!(calling.as_mut().poll(context));
                    this.step = Step::Over;
                    return Poll::Ready(result);
                }
                Step::Transfer(_) | Step::Call(_) | Step::Ready(_) | Step::Over => {}
            }
            match std::mem::replace(&mut this.step, Step::Over) {
                Step::Transfer(transfer) => {
                    let (step, is_awaited) = begin(&this.driver, transfer, Some(context.waker()));
                    this.step = step;
                    if is_awaited {
                        return Poll::Pending;
                    }
                }
                Step::Call(call) => {
                    let driver = this.driver.clone();
                    this.step = Step::Calling(Box::pin(async move { driver.workers().run(call).await }));
                }
                Step::Ready(result) => return Poll::Ready(result),
                Step::InFlight(..) | Step::Calling(_) => unreachable!("polled above"),
                Step::Over => panic!("an operation was polled after it had finished"),
            }
        }
    }
}

// An operation has no references into itself, so it may be moved.
impl<T> Unpin for Operation<T> {}

impl<T> Drop for Operation<T> {
    fn drop(&mut self) {
        if let Step::InFlight(key, _) = self.step {
            self.driver.reactor().release(key);
        }
    }
}

impl<T> fmt::Debug for Operation<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let step = match &self.step {
            Step::Transfer(_) | Step::Call(_) => "not begun",
            Step::InFlight(..) | Step::Calling(_) => "in flight",
            Step::Ready(_) | Step::Over => "finished",
        };
        write!(f, "Operation({step})")
    }
}
