//! Subscriptions to the changes of a collection.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::collection::Collection;
use crate::encoding::Key;
use crate::error::{Error, Result};
use crate::hub::{Queue, Taken};
use crate::open::OpenCollection;

/// A committed change of a document: see [`Documents::subscribe`](crate::Documents::subscribe).
///
/// ```
/// # use drumlin_collections::{Change, Collection};
/// fn log<C: Collection>(change: &Change<C>) {
///     match &change.document {
///         Some(_) => println!("{:?} was written", change.key),
///         None => println!("{:?} was removed", change.key),
///     }
/// }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Change<C: Collection> {
    /// The document's key.
    pub key: C::Key,
    /// The document as written; `None` if it was removed.
    pub document: Option<C>,
}

/// An event that [`Changes`] delivers.
///
/// ```
/// # use drumlin_collections::{Collection, Event};
/// fn is_complete<C: Collection>(event: &Event<C>) -> bool {
///     !matches!(event, Event::Lost(_))
/// }
/// ```
#[derive(Debug)]
pub enum Event<C: Collection> {
    /// A committed change.
    Change(Change<C>),
    /// The subscriber lost this many changes at this point, because the queue was full or the outcome of a commit is
    /// unknown. Reread the documents that matter to you.
    Lost(u64),
}

/// A subscription to the changes of a collection: see [`Documents::subscribe`](crate::Documents::subscribe).
///
/// ```
/// # use drumlin_collections::{Collection, Collections, Event, Postcard};
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct User { name: String }
/// # impl Collection for User {
/// #     type Key = String;
/// #     type Codec = Postcard;
/// #     const NAME: &'static str = "users";
/// #     fn key(&self) -> String { self.name.clone() }
/// # }
/// # let users = Collections::new(&drumlin::Config::in_memory().open("")?).open::<User>()?;
/// let changes = users.subscribe(100);
/// users.put(&User { name: "ann".into() })?;
/// let Some(Event::Change(change)) = changes.try_next()? else { panic!("there is one") };
/// assert_eq!(change.key, "ann");
/// # Ok::<(), drumlin_collections::Error>(())
/// ```
pub struct Changes<C: Collection> {
    queue: Arc<Queue>,
    open: Arc<OpenCollection<C>>,
}

impl<C: Collection> std::fmt::Debug for Changes<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Changes({:?})", C::NAME)
    }
}

impl<C: Collection> Changes<C> {
    pub(crate) fn subscribe(open: &Arc<OpenCollection<C>>, capacity: usize) -> Changes<C> {
        Changes { queue: open.channel.subscribe(capacity), open: Arc::clone(open) }
    }

    /// Returns the next change if one is waiting.
    ///
    /// # Errors
    /// [`Error::Decode`] if the document or its key can't be decoded.
    pub fn try_next(&self) -> Result<Option<Event<C>>> {
        self.queue.try_take().map(|taken| self.event(taken)).transpose()
    }

    /// Waits for the next change.
    ///
    /// # Errors
    /// See [`try_next`](Changes::try_next).
    pub fn wait_next(&self) -> Result<Event<C>> {
        self.event(self.queue.take(None).expect("without a deadline there is one"))
    }

    /// Waits up to `time` for the next change. Returns `None` if no change arrived in that time.
    ///
    /// # Errors
    /// See [`try_next`](Changes::try_next).
    pub fn next_within(&self, time: Duration) -> Result<Option<Event<C>>> {
        let taken = self.queue.take(Instant::now().checked_add(time));
        taken.map(|taken| self.event(taken)).transpose()
    }

    /// Waits for the next change asynchronously. Only one task at a time can wait on a subscription.
    ///
    /// # Errors
    /// See [`try_next`](Changes::try_next).
    pub async fn next_async(&self) -> Result<Event<C>> {
        let taken = poll_fn(|context| self.queue.poll_take(context.waker()).map_or(Poll::Pending, Poll::Ready)).await;
        self.event(taken)
    }

    fn event(&self, taken: Taken) -> Result<Event<C>> {
        let change = match taken {
            Taken::Lost(count) => return Ok(Event::Lost(count)),
            Taken::Change(change) => change,
        };
        let key = C::Key::decode(&change.key).map_err(|error| Error::Decode {
            collection: C::NAME,
            of: None,
            row: change.key.escape_ascii().to_string(),
            reason: error.to_string(),
        })?;
        let document = change.document.map(|row| self.open.decode(&change.key, &row)).transpose()?;
        Ok(Event::Change(Change { key, document }))
    }
}

impl<C: Collection> Drop for Changes<C> {
    fn drop(&mut self) {
        self.open.channel.unsubscribe(&self.queue);
    }
}
