//! Ranges as streams: [`futures_core::Stream`].

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;
use futures_core::stream::FusedStream;

use super::Value;
use super::range::{Keys, Range, Steps, Values};
use crate::error::Result;
use crate::sync::Exclusive;
use crate::tree::Direction;

/// A range, or its keys or values, as a [`Stream`] for any executor. Created by [`Range::into_stream`].
///
/// A row that has already been copied costs no more than with the iterator, but each leaf costs an allocation. The
/// stream ends after its first error. Dropping the stream ends the scan, even if the scan is waiting.
///
/// ```
/// use futures_util::TryStreamExt;
///
/// # smol::block_on(async {
/// # let db = drumlin::Config::in_memory().open("")?;
/// # let k = db.keyspace("k")?;
/// k.insert_async("a", "1").await?;
/// let rows: Vec<_> = k.iter().into_stream().try_collect().await?;
/// assert_eq!(rows.len(), 1);
/// # Ok::<(), drumlin::Error>(())
/// # })?;
/// # Ok::<(), drumlin::Error>(())
/// ```
pub struct RowStream<T = (Value, Value)> {
    state: StreamState<T>,
    /// Returns the part of a row that the stream yields.
    part: fn((Value, Value)) -> T,
    /// Starts a step that may wait.
    begin: fn(Range) -> Step<T>,
}

type Step<T> = Pin<Box<dyn Future<Output = (Range, Option<Result<T>>)> + Send>>;

enum StreamState<T> {
    Idle(Range),
    /// A step is reading the next leaf or large value.
    Waiting(Exclusive<Step<T>>),
    Ended,
}

impl<T> Stream for RowStream<T> {
    type Item = Result<T>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<T>>> {
        let this = self.get_mut();
        loop {
            match std::mem::replace(&mut this.state, StreamState::Ended) {
                StreamState::Idle(mut range) => match range.next_copied(Direction::Forward) {
                    Some(row) => {
                        this.state = StreamState::Idle(range);
                        return Poll::Ready(Some(Ok((this.part)(row))));
                    }
                    None => this.state = StreamState::Waiting(Exclusive::new((this.begin)(range))),
                },
                StreamState::Waiting(mut step) => {
                    let Poll::Ready((range, row)) = step.get_mut().as_mut().poll(context) else {
                        this.state = StreamState::Waiting(step);
                        return Poll::Pending;
                    };
                    if row.is_some() {
                        this.state = StreamState::Idle(range);
                    }
                    return Poll::Ready(row);
                }
                StreamState::Ended => return Poll::Ready(None),
            }
        }
    }
}

impl<T> FusedStream for RowStream<T> {
    fn is_terminated(&self) -> bool {
        matches!(self.state, StreamState::Ended)
    }
}

impl<T> std::fmt::Debug for RowStream<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.state {
            StreamState::Idle(range) => write!(f, "RowStream({range:?})"),
            StreamState::Waiting(_) => write!(f, "RowStream(waiting)"),
            StreamState::Ended => write!(f, "RowStream(ended)"),
        }
    }
}

impl Range {
    /// Returns the remaining rows of the range as a [`Stream`], from front to back. [`next_async`](Range::next_async)
    /// works without a stream; together with [`next_back_async`](Range::next_back_async) it reads from both ends.
    ///
    /// ```
    /// use futures_util::TryStreamExt;
    ///
    /// # smol::block_on(async {
    /// # let db = drumlin::Config::in_memory().open_async("").await?;
    /// let k = db.keyspace_async("k").await?;
    /// k.insert_async("a", "1").await?;
    /// k.insert_async("b", "2").await?;
    /// let mut rows = k.range("a"..).into_stream();
    /// while let Some((key, value)) = rows.try_next().await? {
    ///     println!("{key:?}: {value:?}");
    /// }
    /// let keys: Vec<_> = k.keys().into_stream().try_collect().await?;
    /// assert_eq!(keys, ["a", "b"]);
    /// # Ok::<(), drumlin::Error>(())
    /// # })?;
    /// # Ok::<(), drumlin::Error>(())
    /// ```
    pub fn into_stream(self) -> RowStream {
        let begin = |mut range: Range| -> Step<_> {
            Box::pin(async move {
                let row = range.next_async().await;
                (range, row)
            })
        };
        RowStream { state: StreamState::Idle(self), part: |row| row, begin }
    }
}

impl Keys {
    /// Like [`Range::into_stream`].
    pub fn into_stream(self) -> RowStream<Value> {
        let begin = |range| -> Step<_> {
            Box::pin(async move {
                let mut keys = Keys(range);
                let key = keys.next_async().await;
                (keys.0, key)
            })
        };
        RowStream { state: StreamState::Idle(self.0), part: |(key, _)| key, begin }
    }
}

impl Values {
    /// Like [`Range::into_stream`].
    pub fn into_stream(self) -> RowStream<Value> {
        let begin = |range| -> Step<_> {
            Box::pin(async move {
                let mut values = Values(range);
                let value = values.next_async().await;
                (values.0, value)
            })
        };
        RowStream { state: StreamState::Idle(self.0), part: |(_, value)| value, begin }
    }
}
