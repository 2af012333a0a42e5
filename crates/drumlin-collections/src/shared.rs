//! The database, clock and hub that all collections of a database share, and the functions that run transactions.

use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use drumlin::{Attempt, Database, TxOptions};

use crate::error::Error;
use crate::hub::{Committing, Hub, PendingChange, lock};
use crate::transaction::Transaction;

pub(crate) type Clock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

pub(crate) struct Shared {
    pub(crate) db: Database,
    pub(crate) hub: Arc<Hub>,
    pub(crate) clock: Clock,
}

/// The error that ended a transaction: an error of Drumlin, or of the transaction's body.
enum Ended<E> {
    Store(drumlin::Error),
    Body(E),
}

impl<E> From<drumlin::Error> for Ended<E> {
    fn from(error: drumlin::Error) -> Ended<E> {
        Ended::Store(error)
    }
}

/// Publishes the changes if the transaction succeeded, or cancels them if it failed.
fn end<T, E>(committing: &mut Committing, returned: &Result<T, Ended<E>>) {
    match returned {
        Ok(_) => committing.publish(),
        // Dropping `committing` ends its ticket with an unknown outcome.
        Err(Ended::Store(drumlin::Error::OutcomeUnknown { .. })) => {}
        Err(_) => committing.cancel(),
    }
}

impl<E: From<Error>> Ended<E> {
    fn into_error(self) -> E {
        match self {
            Ended::Store(error) => Error::Store(error).into(),
            Ended::Body(error) => error,
        }
    }
}

fn taken(pending: &Mutex<Vec<PendingChange>>) -> Vec<PendingChange> {
    std::mem::take(&mut *lock(pending))
}

impl Shared {
    pub(crate) fn now(&self) -> SystemTime {
        (self.clock)()
    }

    pub(crate) fn transact<T, E: From<Error> + 'static>(
        &self,
        options: TxOptions,
        mut body: impl FnMut(&mut Transaction<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut committing = self.hub.commit();
        let value = self.db.transact_with(options, |raw| -> Result<T, Ended<E>> {
            committing.cancel();
            let mut tx = Transaction::new(raw);
            let value = body(&mut tx).map_err(Ended::Body)?;
            committing.begin(taken(&tx.pending));
            Ok(value)
        });
        end(&mut committing, &value);
        value.map_err(Ended::into_error)
    }

    pub(crate) async fn transact_async<T: Send + 'static, E: From<Error> + Send + 'static>(
        &self,
        options: TxOptions,
        mut body: impl for<'t> FnMut(Transaction<'t>) -> Attempt<'t, T, E>,
    ) -> Result<T, E> {
        // The future of the body owns everything it uses, so share the commit's ticket with it.
        let committing = Arc::new(Mutex::new(self.hub.commit()));
        let value = self.db.transact_with_async(options, |raw| -> Attempt<'_, T, Ended<E>> {
            lock(&committing).cancel();
            let committing = Arc::clone(&committing);
            let tx = Transaction::new(raw);
            let pending = Arc::clone(&tx.pending);
            let future = body(tx);
            Box::pin(async move {
                let value = future.await.map_err(Ended::Body)?;
                lock(&committing).begin(taken(&pending));
                Ok(value)
            })
        });
        let value = value.await;
        end(&mut lock(&committing), &value);
        value.map_err(Ended::into_error)
    }
}
