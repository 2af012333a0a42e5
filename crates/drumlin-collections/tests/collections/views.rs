//! Views stay up to date, match a recomputation, and survive functions that panic.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use drumlin_collections::encoding::prefix;
use drumlin_collections::{Collection, Collections, Error, Parts, Postcard, View};
use drumlin_testing::Random;
use serde::{Deserialize, Serialize};

use crate::documents::database;
use crate::notes::{self, Note};

/// After random changes, the views match a recomputation.
#[test]
fn views_equal_their_recomputation() {
    for seed in 0..4 {
        let notes = Collections::new(&database()).open::<Note<1>>().unwrap();
        let mut random = Random(seed);
        for step in 0..400 {
            notes::change(&notes, &mut random, 12);
            if step % 10 == 0 {
                notes::check(&notes.now());
            }
        }
        notes::check(&notes.now());
    }
}

/// While other threads write, a snapshot sees documents and views as of the same commit.
#[test]
fn snapshots_see_documents_and_views_of_one_moment() {
    let db = database();
    let collections = Collections::new(&db);
    let notes = collections.open::<Note<1>>().unwrap();
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let writers: Vec<_> = (0..2)
            .map(|seed| {
                let (collections, notes) = (&collections, &notes);
                scope.spawn(move || {
                    let mut random = Random(seed);
                    for _ in 0..150 {
                        let drawn: Vec<Note<1>> = (0..3).map(|_| notes::draw(&mut random, 20)).collect();
                        let written = collections.transact(|tx| drawn.iter().try_for_each(|note| tx.put(notes, note)));
                        notes::is_expected(written.err());
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                notes::check(&notes.at(&db.snapshot()));
            }
        });
        for writer in writers {
            writer.join().unwrap();
        }
        is_done.store(true, Ordering::Relaxed);
    });
    notes::check(&notes.now());
}

/// A view can be reduced over ranges, and in groups by a part of the key.
#[test]
fn a_view_is_reduced_by_range_and_by_group() {
    let notes = Collections::new(&database()).open::<Note<1>>().unwrap();
    for (id, author, words) in [(1, "ann", ["a", "bb"]), (2, "bob", ["c", "ccc"]), (3, "ann", ["d", "ee"])] {
        notes.put(&Note { id, author: author.into(), words: words.map(str::to_owned).into() }).unwrap();
    }
    let view = notes.view(&Note::LENGTHS);
    assert_eq!(view.reduce(prefix(("ann",))).unwrap(), Some(6));
    assert_eq!(view.reduce(prefix(("eve",))).unwrap(), None);
    assert_eq!(view.reduce(("ann", 2)..("bob", 3)).unwrap(), Some(5));
    assert_eq!(view.reduce(("ann", 2)..=("bob", 3)).unwrap(), Some(8));
    let groups: Vec<(String, u64)> = view.groups_by(.., |(author, _)| author.clone()).map(Result::unwrap).collect();
    assert_eq!(groups, [("ann".into(), 6), ("bob".into(), 4)]);
    let rows: Vec<_> = view.range(("ann", 2)..("ann", 3)).map(|row| row.unwrap().document).collect();
    assert_eq!(rows, [1, 3]);
}

/// A payment. Its view has enough rows for the engine to keep reduced states for parts of the view.
#[derive(Serialize, Deserialize, Debug, PartialEq)]
struct Payment {
    id: u64,
    day: u32,
    cents: i64,
    note: String,
}

impl Payment {
    const BY_DAY: View<Payment, u32, i64> =
        View::new("by day", |payment: &Payment, emit| emit(payment.day, payment.cents)).reducing(|a, b| a + b);
    /// Has the same name and rows as `BY_DAY`, but a different reduce function.
    const LARGEST: View<Payment, u32, i64> =
        View::new("by day", |payment: &Payment, emit| emit(payment.day, payment.cents)).reducing(i64::max);
}

impl Collection for Payment {
    type Key = u64;
    type Codec = Postcard;
    const NAME: &'static str = "payments";

    fn key(&self) -> u64 {
        self.id
    }

    fn parts() -> Parts<Payment> {
        Parts::new().view(Payment::BY_DAY)
    }
}

/// Reducing many rows, which uses stored reduced states, returns the same result as folding the rows one by one. This
/// holds in snapshots, after changes to values and keys, in a transaction with changes of its own, and for two
/// different reduce functions of the same view.
#[test]
fn a_reduce_of_many_rows_is_their_fold() {
    let db = database();
    let collections = Collections::new(&db);
    let payments = collections.open::<Payment>().unwrap();
    let mut random = Random(6);
    let payment = |id: u64, random: &mut Random| {
        let (day, cents) = (random.below(365) as u32, random.below(100_000) as i64 - 50_000);
        Payment { id, day, cents, note: "x".repeat(random.below(50) as usize) }
    };
    for first in (0..4_000).step_by(500) {
        let drawn: Vec<Payment> = (first..first + 500).map(|id| payment(id, &mut random)).collect();
        collections.transact(|tx| drawn.iter().try_for_each(|payment| tx.put(&payments, payment))).unwrap();
    }
    let mut snapshots = Vec::new();
    for round in 0..20 {
        for _ in 0..random.below(60) {
            let id = random.below(5_000);
            if random.below(4) == 0 {
                payments.remove(id).unwrap();
            } else {
                payments.put(&payment(id, &mut random)).unwrap();
            }
        }
        snapshots.push(db.snapshot());
        let snapshot = &snapshots[random.below(snapshots.len() as u64) as usize];
        let (one, other) = (random.below(365) as u32, random.below(365) as u32);
        let days = one.min(other)..=one.max(other);
        let values: Vec<i64> =
            payments.at(snapshot).view(&Payment::BY_DAY).range(days.clone()).map(|row| row.unwrap().value).collect();
        let sum = payments.at(snapshot).view(&Payment::BY_DAY).reduce(days.clone()).unwrap();
        assert_eq!(sum, values.iter().copied().reduce(|a, b| a + b), "round {round}");
        let largest = payments.at(snapshot).view(&Payment::LARGEST).reduce(days.clone()).unwrap();
        assert_eq!(largest, values.iter().copied().max());
        collections
            .transact(|tx| {
                tx.put(&payments, &Payment { id: 9_999, day: one, cents: 1_000_000, note: String::new() })?;
                let sum = payments.at(&*tx).view(&Payment::LARGEST).reduce(days.clone())?;
                assert_eq!(sum, Some(1_000_000));
                tx.remove(&payments, 9_999u64)
            })
            .unwrap();
    }
}

#[derive(Serialize, Deserialize, Debug, PartialEq)]
struct Fraction {
    id: u64,
    above: i64,
    below: i64,
}

impl Fraction {
    const QUOTIENTS: View<Fraction, u8, i64> = View::new("quotients", |fraction: &Fraction, emit| {
        emit(1, 1);
        emit(0, fraction.above / fraction.below);
    })
    .reducing(|a, b| a.checked_add(b).expect("the sum is too large"));
    const UNREDUCED: View<Fraction, u8, i64> = View::new("unreduced", |_, emit| emit(0, 0));
}

impl Collection for Fraction {
    type Key = u64;
    type Codec = Postcard;
    const NAME: &'static str = "fractions";

    fn key(&self) -> u64 {
        self.id
    }

    fn parts() -> Parts<Fraction> {
        Parts::new().view(Fraction::QUOTIENTS).view(Fraction::UNREDUCED)
    }
}

/// If a map or reduce panics, the call fails with an error that names the view and the document, and changes nothing.
#[test]
fn functions_that_panic_harm_nothing() {
    let collections = Collections::new(&database());
    let fractions = collections.open::<Fraction>().unwrap();
    let fraction = |id, above, below| Fraction { id, above, below };
    fractions.put(&fraction(1, 6, 3)).unwrap();
    let error = fractions.put(&fraction(1, 6, 0)).unwrap_err();
    let text = error.to_string();
    assert!(text.contains(r#"view "quotients", document 1"#) && text.contains("divide by zero"), "{text}");
    assert_eq!(fractions.get(1).unwrap(), Some(fraction(1, 6, 3)));
    collections
        .transact(|tx| {
            assert!(matches!(tx.update(&fractions, 1, |one| one.below = 0), Err(Error::Panicked { .. })));
            tx.put(&fractions, &fraction(2, i64::MAX, 1))
        })
        .unwrap();
    let view = fractions.view(&Fraction::QUOTIENTS);
    let error = view.reduce(..=0).unwrap_err();
    assert!(error.to_string().contains("the sum is too large"), "{error}");
    assert!(matches!(view.groups(..).next(), Some(Err(Error::Panicked { .. }))));
    assert_eq!(view.reduce(1..).unwrap(), Some(2), "other ranges are as before");
    let error = fractions.view(&Fraction::UNREDUCED).reduce(..).unwrap_err();
    assert!(error.to_string().contains(r#"view "unreduced" has no reduce"#), "{error}");
    assert_eq!(fractions.view(&Fraction::UNREDUCED).groups(..).count(), 1, "the error, and the end");
}
