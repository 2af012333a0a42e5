//! Implements each blocking call and its asynchronous counterpart with the same code. Operations are `async` functions
//! with a [`Mode`] argument that selects between Drumlin's blocking and asynchronous calls. In [`Mode::Blocking`], an
//! operation never returns `Pending`, so a single poll completes it.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use drumlin::{Keys, Keyspace, Range, Reader, Result, Transaction, Value};

use crate::encoding::RowBounds;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Mode {
    Blocking,
    Async,
}

/// Runs an operation in [`Mode::Blocking`] to completion and returns its result.
pub(crate) fn ready<F: Future>(operation: F) -> F::Output {
    match pin!(operation).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("a blocking call returned without its result"),
    }
}

impl Mode {
    pub(crate) async fn get(self, reader: &Reader, keyspace: &Keyspace, key: &[u8]) -> Result<Option<Value>> {
        match self {
            Mode::Blocking => reader.get(keyspace, key),
            Mode::Async => reader.get_async(keyspace, key).await,
        }
    }

    pub(crate) async fn get_many(
        self,
        reader: &Reader,
        keyspace: &Keyspace,
        keys: &[Vec<u8>],
    ) -> Result<Vec<Option<Value>>> {
        match self {
            Mode::Blocking => reader.get_many(keyspace, keys),
            Mode::Async => reader.get_many_async(keyspace, keys).await,
        }
    }

    pub(crate) async fn contains_key(self, reader: &Reader, keyspace: &Keyspace, key: &[u8]) -> Result<bool> {
        match self {
            Mode::Blocking => reader.contains_key(keyspace, key),
            Mode::Async => reader.contains_key_async(keyspace, key).await,
        }
    }

    pub(crate) async fn count(self, reader: &Reader, keyspace: &Keyspace, bounds: &RowBounds) -> Result<u64> {
        match self {
            Mode::Blocking => reader.count(keyspace, bounds),
            Mode::Async => reader.count_async(keyspace, bounds).await,
        }
    }

    pub(crate) async fn is_empty(self, reader: &Reader, keyspace: &Keyspace) -> Result<bool> {
        match self {
            Mode::Blocking => reader.is_empty(keyspace),
            Mode::Async => reader.is_empty_async(keyspace).await,
        }
    }

    pub(crate) async fn get_for_update(
        self,
        tx: &mut Transaction,
        keyspace: &Keyspace,
        key: &[u8],
    ) -> Result<Option<Value>> {
        match self {
            Mode::Blocking => tx.get_for_update(keyspace, key),
            Mode::Async => tx.get_for_update_async(keyspace, key).await,
        }
    }

    pub(crate) async fn insert(
        self,
        tx: &mut Transaction,
        keyspace: &Keyspace,
        key: &[u8],
        value: &[u8],
    ) -> Result<()> {
        match self {
            Mode::Blocking => tx.insert(keyspace, key, value),
            Mode::Async => tx.insert_async(keyspace, key, value).await,
        }
    }

    pub(crate) async fn remove(self, tx: &mut Transaction, keyspace: &Keyspace, key: &[u8]) -> Result<()> {
        match self {
            Mode::Blocking => tx.remove(keyspace, key),
            Mode::Async => tx.remove_async(keyspace, key).await,
        }
    }

    pub(crate) async fn next_key(self, keys: &mut Keys) -> Option<Result<Value>> {
        match self {
            Mode::Blocking => keys.next(),
            Mode::Async => keys.next_async().await,
        }
    }

    pub(crate) async fn next(self, range: &mut Range) -> Option<Result<(Value, Value)>> {
        match self {
            Mode::Blocking => range.next(),
            Mode::Async => range.next_async().await,
        }
    }

    pub(crate) async fn next_back(self, range: &mut Range) -> Option<Result<(Value, Value)>> {
        match self {
            Mode::Blocking => range.next_back(),
            Mode::Async => range.next_back_async().await,
        }
    }
}
