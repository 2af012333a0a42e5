//! Determines which ratings are right while other agents write reviews.
//!
//! A rating is a sum of changes. A read must include every change that ended before the read began, and no change that
//! began after the read ended. It may include any other change. So each product has one sum of the changes that have
//! begun and one sum of the changes that have ended, each split into increases and decreases. Their values before and
//! after a read bound the rating that the read may return. With a single agent, the sums of begun and ended changes are
//! equal, and exactly one rating is right.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Rating;

/// A sum that only grows. Each addition begins and ends at different times.
#[derive(Debug, Default)]
struct Sum {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// The change that a review makes to a product's rating.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Delta {
    count: u64,
    increase: u64,
    decrease: u64,
}

impl Delta {
    /// Returns the change from the customer's earlier rating of the product, if there was one, to the new rating.
    pub(crate) fn new(before: Option<u8>, after: u8) -> Delta {
        let (old, new) = (u64::from(before.unwrap_or(0)), u64::from(after));
        Delta {
            count: u64::from(before.is_none()),
            increase: new.saturating_sub(old),
            decrease: old.saturating_sub(new),
        }
    }
}

/// The changes made to a product's rating.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    count: Sum,
    increase: Sum,
    decrease: Sum,
}

/// The sums of ended changes before a read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Before {
    count: u64,
    increase: u64,
    decrease: u64,
}

impl Tally {
    fn sums(&self, delta: Delta) -> [(&Sum, u64); 3] {
        [(&self.count, delta.count), (&self.increase, delta.increase), (&self.decrease, delta.decrease)]
    }

    /// Records that a review is about to be written.
    pub(crate) fn begin(&self, delta: Delta) {
        for (sum, amount) in self.sums(delta) {
            sum.begun.fetch_add(amount, Ordering::SeqCst);
        }
    }

    /// Records that a review was written.
    pub(crate) fn end(&self, delta: Delta) {
        for (sum, amount) in self.sums(delta) {
            sum.ended.fetch_add(amount, Ordering::SeqCst);
        }
    }

    /// Returns the current sums of ended changes. Called just before a read, so that its result can be compared with
    /// them.
    pub(crate) fn before(&self) -> Before {
        let ended = |sum: &Sum| sum.ended.load(Ordering::SeqCst);
        Before { count: ended(&self.count), increase: ended(&self.increase), decrease: ended(&self.decrease) }
    }

    /// Returns `true` if a read that has just ended may return this rating.
    pub(crate) fn allows(&self, before: Before, rating: Rating) -> bool {
        let begun = |sum: &Sum| sum.begun.load(Ordering::SeqCst);
        let least = before.increase.saturating_sub(begun(&self.decrease));
        let most = begun(&self.increase) - before.decrease;
        (before.count..=begun(&self.count)).contains(&rating.count) && (least..=most).contains(&rating.total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: Delta = Delta { count: 1, increase: 4, decrease: 0 };

    /// While no review is in flight, exactly one rating is right.
    #[test]
    fn one_rating_is_right_when_nothing_is_in_flight() {
        let tally = Tally::default();
        for delta in [Delta::new(None, 5), Delta::new(None, 2), Delta::new(Some(5), 1), Delta::new(Some(1), 3)] {
            tally.begin(delta);
            tally.end(delta);
        }
        let before = tally.before();
        for (count, total) in (0..4).flat_map(|count| (0..10).map(move |total| (count, total))) {
            assert_eq!(tally.allows(before, Rating { count, total }), (count, total) == (2, 5), "{count} {total}");
        }
    }

    /// A read may or may not include a review in flight, but it must include a review that was written before the read
    /// began.
    #[test]
    fn a_review_in_flight_may_be_seen() {
        let tally = Tally::default();
        let rating = |count, total| Rating { count, total };
        tally.begin(NEW);
        let before = tally.before();
        assert!(tally.allows(before, rating(0, 0)) && tally.allows(before, rating(1, 4)));
        tally.end(NEW);
        assert!(tally.allows(before, rating(0, 0)) && !tally.allows(before, rating(1, 5)));
        assert!(!tally.allows(tally.before(), rating(0, 0)));
        // The next review begins while the read is running.
        let before = tally.before();
        tally.begin(Delta::new(Some(4), 1));
        assert!(tally.allows(before, rating(1, 1)) && tally.allows(before, rating(1, 4)));
    }
}
