//! Adapts the reduce function of a view to the engine's [`Reducer`], which lets the engine keep reduced states for
//! parts of the view.

use std::borrow::Cow;
use std::time::SystemTime;

use drumlin::{ReduceError, Reducer};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::collection::Collection;
use crate::parts::{View, view_value};

/// Reduces the rows of a view: see the module documentation.
pub(crate) struct ViewReducer<C, K, V> {
    pub(crate) view: View<C, K, V>,
    pub(crate) reduce: fn(V, V) -> V,
}

/// The result of reducing a range of a view's rows.
pub(crate) enum Reduced<V> {
    /// The range has no rows.
    Nothing,
    Value(V),
    /// At least one row belongs to a document with an expiry time. A stored state can't tell whether that time has
    /// passed.
    Expires,
}

const NOTHING: u8 = 0;
const VALUE: u8 = 1;
const EXPIRES: u8 = 2;

impl<C: Collection, K: 'static, V: Serialize + DeserializeOwned + Send + 'static> Reducer for ViewReducer<C, K, V> {
    type State = Reduced<V>;
    type Output = Reduced<V>;

    fn name(&self) -> Cow<'_, str> {
        // Include the function's address, because a program may define two views with the same name but different
        // reduce functions.
        format!("{}, version {}, by {:p}", self.view.part_name(), self.view.version_number(), self.reduce).into()
    }

    fn identity(&self) -> Reduced<V> {
        Reduced::Nothing
    }

    fn row(&self, _key: &[u8], value: &[u8]) -> Result<Reduced<V>, ReduceError> {
        let (expires, value): (Option<SystemTime>, V) = view_value(value)?;
        Ok(if expires.is_some() { Reduced::Expires } else { Reduced::Value(value) })
    }

    fn combine(&self, left: Reduced<V>, right: Reduced<V>) -> Result<Reduced<V>, ReduceError> {
        Ok(match (left, right) {
            (Reduced::Expires, _) | (_, Reduced::Expires) => Reduced::Expires,
            (Reduced::Nothing, other) | (other, Reduced::Nothing) => other,
            (Reduced::Value(left), Reduced::Value(right)) => Reduced::Value((self.reduce)(left, right)),
        })
    }

    fn encode(&self, state: &Reduced<V>, bytes: &mut Vec<u8>) {
        match state {
            Reduced::Nothing => bytes.push(NOTHING),
            Reduced::Expires => bytes.push(EXPIRES),
            Reduced::Value(value) => {
                bytes.push(VALUE);
                // If a value can't be encoded, its state can't be decoded either. The call then fails, and the rows are
                // reduced one by one.
                if let Ok(encoded) = postcard::to_stdvec(value) {
                    bytes.extend_from_slice(&encoded);
                }
            }
        }
    }

    fn decode(&self, bytes: &[u8]) -> Result<Reduced<V>, ReduceError> {
        match bytes {
            [NOTHING] => Ok(Reduced::Nothing),
            [EXPIRES] => Ok(Reduced::Expires),
            [VALUE, value @ ..] => Ok(Reduced::Value(postcard::from_bytes(value)?)),
            _ => Err("these bytes are not a reduced state of a view".into()),
        }
    }

    fn output(&self, state: Reduced<V>) -> Reduced<V> {
        state
    }
}
