//! Converts iterators to streams ([`futures_core::Stream`]).

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};

use futures_core::Stream;
use futures_core::stream::FusedStream;
use serde::de::DeserializeOwned;

use crate::collection::Collection;
use crate::encoding::Key;
use crate::error::Result;
use crate::indexed::{Found, IndexKeys};
use crate::reading::Rows;
use crate::versions::{AsOf, Version, Versions};
use crate::viewed::{Groups, ViewRow, ViewRows};

/// A [`Stream`] of documents, keys, view rows or versions, for any executor. Created by the `into_stream` method of an
/// iterator that owns everything it reads from. The stream may outlive the function that created it, for example as the
/// body of an HTTP response.
///
/// Yields the items of the iterator from front to back. Each item costs one allocation. Dropping the stream ends the
/// scan, even while the scan is waiting.
///
/// ```
/// use drumlin_collections::{Collection, Collections, Documents, Index, ItemStream, Parts, Postcard};
/// use futures_util::TryStreamExt;
/// # use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Order {
///     id: u64,
///     customer: u64,
/// }
///
/// impl Order {
///     const BY_CUSTOMER: Index<Order, u64> = Index::new("by customer", |order| order.customer);
/// }
/// # impl Collection for Order {
/// #     type Key = u64;
/// #     type Codec = Postcard;
/// #     const NAME: &'static str = "orders";
/// #     fn key(&self) -> u64 { self.id }
/// #     fn parts() -> Parts<Order> { Parts::new().index(Order::BY_CUSTOMER) }
/// # }
///
/// fn orders_of(orders: &Documents<Order>, customer: u64) -> ItemStream<Order> {
///     orders.index(&Order::BY_CUSTOMER).get(customer).into_stream()
/// }
///
/// # smol::block_on(async {
/// # let orders = Collections::new(&drumlin::Config::in_memory().open("")?).open::<Order>()?;
/// orders.put_async(&Order { id: 1, customer: 7 }).await?;
/// let mut found = orders_of(&orders, 7);
/// while let Some(order) = found.try_next().await? {
///     println!("{}", order.id);
/// }
/// # Ok::<(), drumlin_collections::Error>(())
/// # })?;
/// # Ok::<(), drumlin_collections::Error>(())
/// ```
pub struct ItemStream<T> {
    /// `None` once the iterator is exhausted. The mutex is needed only to make the stream `Sync`; no thread ever waits
    /// for it.
    step: Option<Mutex<Step<T>>>,
}

/// A future that returns the next item and the step after it. It owns the iterator.
struct Step<T>(Pin<Box<Stepping<T>>>);

type Stepping<T> = dyn Future<Output = Option<(Result<T>, Step<T>)>> + Send;

/// An iterator that can be advanced asynchronously.
pub(crate) trait Steps: Send + 'static {
    type Item;

    fn step(&mut self) -> impl Future<Output = Option<Result<Self::Item>>> + Send;
}

fn step_of<S: Steps>(mut steps: S) -> Step<S::Item> {
    Step(Box::pin(async move {
        let item = steps.step().await?;
        Some((item, step_of(steps)))
    }))
}

impl<T> ItemStream<T> {
    fn of<S: Steps<Item = T>>(steps: S) -> ItemStream<T> {
        ItemStream { step: Some(Mutex::new(step_of(steps))) }
    }
}

impl<T> Debug for ItemStream<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ItemStream({})", if self.step.is_some() { "open" } else { "ended" })
    }
}

impl<T> Stream for ItemStream<T> {
    type Item = Result<T>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<T>>> {
        let this = self.get_mut();
        let Some(step) = &mut this.step else { return Poll::Ready(None) };
        let step = step.get_mut().unwrap_or_else(PoisonError::into_inner);
        let Poll::Ready(item) = step.0.as_mut().poll(context) else { return Poll::Pending };
        let (item, next) = item.unzip();
        this.step = next.map(Mutex::new);
        Poll::Ready(item)
    }
}

impl<T> FusedStream for ItemStream<T> {
    fn is_terminated(&self) -> bool {
        self.step.is_none()
    }
}

macro_rules! streams {
    ($([$($generics:tt)*] $iterator:ty, $item:ty;)*) => {$(
        impl<$($generics)*> Steps for $iterator {
            type Item = $item;

            fn step(&mut self) -> impl Future<Output = Option<Result<$item>>> + Send {
                self.next_async()
            }
        }

        impl<$($generics)*> $iterator {
            /// Converts the iterator to a [`Stream`] of its remaining items, from front to back: see [`ItemStream`].
            #[must_use]
            pub fn into_stream(self) -> ItemStream<$item> {
                ItemStream::of(self)
            }
        }
    )*};
}

streams! {
    [C: Collection] Rows<C>, C;
    [C: Collection, K: Key + 'static] Found<'static, C, K>, C;
    [C: Collection, K: Key + 'static] IndexKeys<'static, C, K>, (K, C::Key);
    [C: Collection, K: Key + 'static, V: DeserializeOwned + 'static]
    ViewRows<'static, C, K, V>, ViewRow<K, C::Key, V>;
    [
        C: Collection,
        K: Key + Debug + Send + 'static,
        V: DeserializeOwned + Send + 'static,
        G: PartialEq + Send + 'static,
        F: FnMut(&K) -> G + Send + 'static
    ]
    Groups<'static, C, K, V, G, F>, (G, V);
    [C: Collection] Versions<C>, Version<C>;
    [C: Collection] AsOf<C>, C;
}
