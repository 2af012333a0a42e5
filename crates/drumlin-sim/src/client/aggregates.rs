//! Aggregates over ranges. The reducer computes a fingerprint, which reveals any missing, extra or wrong row of a
//! range.

use std::borrow::Cow;

use drumlin::{ReduceError, Reducer};

use super::answers::Call;
use super::scans::{Bounds, VisibleStates};
use super::{Client, Stop, by_api};
use crate::model::{Content, SpaceNumber};

/// A linear function modulo 2⁶⁴, as its factor and term.
pub(crate) type Linear = (u64, u64);

/// Maps each row to a linear function, and composes these functions in key order. Composition is associative but not
/// commutative, so the result depends on the order of the rows.
pub(crate) struct Fingerprint;

/// The number of leading bytes of a value that go into its row's linear function.
const HEAD_BYTES: usize = 16;

fn function_of(key: &[u8], length: usize, head: &[u8]) -> Linear {
    let hash = |bytes: &[u8]| {
        bytes.iter().fold(length as u64, |hash, &byte| hash.rotate_left(9).wrapping_mul(31) ^ u64::from(byte))
    };
    (hash(key) | 1, hash(head))
}

fn composed(left: Linear, right: Linear) -> Linear {
    (left.0.wrapping_mul(right.0), left.1.wrapping_mul(right.0).wrapping_add(right.1))
}

/// Returns the fingerprint of these rows.
pub(crate) fn fingerprint_of<'r>(rows: impl Iterator<Item = (&'r Vec<u8>, &'r Content)>) -> Linear {
    rows.map(|(key, content)| function_of(key, content.length, &content.head(HEAD_BYTES))).fold((1, 0), composed)
}

impl Reducer for Fingerprint {
    type State = Linear;
    type Output = Linear;

    fn name(&self) -> Cow<'_, str> {
        "fingerprint".into()
    }
    fn identity(&self) -> Linear {
        (1, 0)
    }
    fn row(&self, key: &[u8], value: &[u8]) -> Result<Linear, ReduceError> {
        Ok(function_of(key, value.len(), &value[..value.len().min(HEAD_BYTES)]))
    }
    fn combine(&self, left: Linear, right: Linear) -> Result<Linear, ReduceError> {
        Ok(composed(left, right))
    }
    fn encode(&self, state: &Linear, bytes: &mut Vec<u8>) {
        bytes.extend(state.0.to_be_bytes());
        bytes.extend(state.1.to_be_bytes());
    }
    fn decode(&self, bytes: &[u8]) -> Result<Linear, ReduceError> {
        let (factor, term) = bytes.split_at(8);
        Ok((u64::from_be_bytes(factor.try_into()?), u64::from_be_bytes(term.try_into()?)))
    }
    fn output(&self, state: Linear) -> Linear {
        state
    }
}

impl Client {
    pub(super) async fn plain_aggregate(&mut self) -> Result<(), Stop> {
        let Some((keyspace, space)) = self.any_keyspace() else { return Ok(()) };
        let bounds = self.bounds(space);
        let (from, within) = (self.session.model.answered(), bounds.clone());
        let api = self.api;
        let reduce = async {
            by_api!(api, keyspace.aggregate(&Fingerprint, within), keyspace.aggregate_async(&Fingerprint, within))
        };
        match self.or_drop(reduce).await {
            None => Ok(()),
            Some(Ok(found)) => {
                let visible =
                    VisibleStates { from, to: self.session.model.last(), own: None, how: "plain", renews: false };
                self.check_aggregate(found, space, &bounds, &visible);
                Ok(())
            }
            Some(Err(error)) => self.accept(&error, Call::Copy, Some(space)),
        }
    }

    pub(super) async fn snapshot_aggregate(
        &mut self,
        snapshot: &drumlin::Snapshot,
        keyspace: &drumlin::Keyspace,
        space: SpaceNumber,
    ) -> Result<(), Stop> {
        let at = snapshot.timestamp().0;
        let (bounds, api) = (self.bounds(space), self.api);
        let within = bounds.clone();
        let reduce = async {
            by_api!(
                api,
                snapshot.aggregate(keyspace, &Fingerprint, within),
                snapshot.aggregate_async(keyspace, &Fingerprint, within)
            )
        };
        match self.or_drop(reduce).await {
            None => Ok(()),
            Some(Ok(found)) => {
                let visible = VisibleStates { from: at, to: at, own: None, how: "snapshot", renews: false };
                self.check_aggregate(found, space, &bounds, &visible);
                Ok(())
            }
            Some(Err(error)) => self.accept(&error, Call::Copy, Some(space)),
        }
    }

    /// Checks that a fingerprint matches one of the database states that the call may have seen.
    pub(super) fn check_aggregate(
        &self,
        found: Linear,
        space: SpaceNumber,
        bounds: &Bounds,
        visible: &VisibleStates<'_>,
    ) {
        let model = &self.session.model;
        let is_right = visible.moments(model, space).into_iter().any(|moment| {
            let rows = visible.rows(model, space, moment);
            fingerprint_of(rows.range(bounds.clone())) == found
        });
        assert!(
            is_right || model.is_dropped(space),
            "{}: the fingerprint of {bounds:?} matches no state between commits {} and {}",
            visible.how,
            visible.from,
            visible.to
        );
    }
}
