//! `transact`: bodies with application errors, the errors that lead to a retry, and calls that would wait for their own
//! body.

use crate::support;

use std::time::{Duration, Instant};

use drumlin::{Config, Database, Error, Isolation, Keyspace, LockHolder, Recourse, Transaction, TxOptions};
use smol::block_on;

/// An application's error type, which Drumlin does not know.
#[derive(Debug)]
enum AppError {
    NoMoney,
    Store { cause: Error },
}

impl From<Error> for AppError {
    fn from(cause: Error) -> AppError {
        AppError::Store { cause }
    }
}

fn opened() -> (Database, Keyspace) {
    let db = Config::in_memory().memory(8 << 20).open("").unwrap();
    let k = db.keyspace("k").unwrap();
    (db, k)
}

/// Runs a body through each form of `transact`, passing it the number of its run. Returns the number of runs and the
/// result for each form.
fn runs_of<E: From<Error> + Send + std::fmt::Debug + 'static>(
    db: &Database,
    mut body: impl FnMut(&mut Transaction, u32) -> Result<(), E>,
) -> [(u32, Result<(), E>); 3] {
    let mut runs = [0; 3];
    let options = TxOptions { isolation: Isolation::Serializable, ..db.tx_options() };
    let blocking = db.transact_with(options, |tx| {
        runs[0] += 1;
        body(tx, runs[0])
    });
    let local = block_on(db.try_transact_local(async |tx| {
        runs[1] += 1;
        body(tx, runs[1])
    }));
    let boxed = block_on(db.try_transact_async(|tx| {
        runs[2] += 1;
        let result = body(tx, runs[2]);
        Box::pin(async move { result })
    }));
    let mut answers = [blocking, local, boxed].into_iter();
    runs.map(|runs| (runs, answers.next().unwrap()))
}

/// An application error ends the transaction immediately, without any effect.
#[test]
fn an_error_of_ones_own_ends_the_transaction() {
    let (db, k) = opened();
    let answers = runs_of(&db, |tx, _| {
        tx.insert(&k, "a", "1")?;
        Err(AppError::NoMoney)
    });
    for (runs, answer) in answers {
        assert!(runs == 1 && matches!(answer, Err(AppError::NoMoney)), "{runs} runs: {answer:?}");
    }
    assert!(k.is_empty().unwrap());
    // The error can be any type that the library's error converts into.
    let boxed: Result<(), Box<dyn std::error::Error + Send + Sync>> = db.try_transact(|tx| {
        tx.insert(&k, "a", "1")?;
        "seven".parse::<u32>()?;
        Ok(())
    });
    assert!(boxed.unwrap_err().to_string().contains("digit"));
    assert!(k.is_empty().unwrap());
}

/// A conflict is retried even if the body wraps it, in an application type or as text.
#[test]
fn a_wrapped_conflict_is_run_again() {
    let (db, k) = opened();
    let answers = runs_of(&db, |tx, run| {
        if run < 4 {
            k.insert("a", [run as u8])?;
        }
        tx.insert(&k, "a", "mine").map_err(|cause| AppError::Store { cause })
    });
    for (runs, answer) in answers {
        assert!(runs == 4 && answer.is_ok(), "{runs} runs: {answer:?}");
    }
    let answers = runs_of(&db, |tx, run| {
        if run < 3 {
            k.insert("a", [run as u8])?;
        }
        tx.insert(&k, "a", "mine").map_err(|error| Box::<dyn std::error::Error + Send + Sync>::from(error.to_string()))
    });
    for (runs, answer) in answers {
        assert!(runs == 3 && answer.is_ok(), "{runs} runs: {answer:?}");
    }
}

/// An error of the commit is converted to the application's type. A conflict of the commit, which the body never sees,
/// is retried first.
#[test]
fn the_error_of_a_commit_is_converted() {
    let (db, k) = opened();
    let answers = runs_of(&db, |tx, run| {
        tx.get(&k, "read")?;
        tx.insert(&k, "written", "")?;
        if run < 3 {
            k.insert("read", [run as u8])?;
        }
        Ok::<_, AppError>(())
    });
    // The other two forms are not serializable.
    let runs = answers.map(|(runs, answer)| (runs, answer.unwrap()).0);
    assert_eq!(runs, [3, 1, 1]);
    let answer: Result<(), AppError> = db.try_transact(|tx| {
        tx.insert(&k, "written", "")?;
        db.drop_keyspace("k")?;
        Ok(())
    });
    assert!(matches!(answer, Err(AppError::Store { cause: Error::KeyspaceDropped { .. } })), "{answer:?}");
}

/// If an application error wraps the error about a snapshot that is too old, or about memory in use, the body is also
/// retried.
#[test]
fn what_passes_is_run_again() {
    let (_, config) = support::faulty();
    let db = config.version_disk_bytes(0).open("/db").unwrap();
    let k = db.keyspace("k").unwrap();
    let mut runs = 0;
    let answer: Result<(), AppError> = db.try_transact(|tx| {
        runs += 1;
        if runs == 1 {
            for _ in 0..20_000u32 {
                k.insert_with("a", [0; 400], drumlin::Durability::Relaxed)?;
            }
        }
        tx.get(&k, "a").map_err(|_| AppError::NoMoney)?;
        Ok(())
    });
    assert!(runs == 2 && answer.is_ok(), "{runs} runs: {answer:?}");

    // Before the third run, other transactions hold all the shared memory.
    let mut others = Vec::new();
    let mut number = 0u64;
    'full: loop {
        let mut other = db.begin().unwrap();
        for _ in 0..1000 {
            number += 1;
            if other.insert(&k, number.to_be_bytes(), [7; 100]).is_err() {
                others.push(other);
                break 'full;
            }
        }
        others.push(other);
    }
    let mut runs = 0;
    let answer = db.try_transact(|tx| {
        runs += 1;
        if runs == 3 {
            others.clear();
        }
        (0..500u64).try_for_each(|row| tx.insert(&k, format!("row {row}"), [7; 50])).map_err(|_| AppError::NoMoney)
    });
    assert!(runs == 3 && answer.is_ok(), "{runs} runs: {answer:?}");
}

/// A body can request a retry, even with an application error type.
#[test]
fn a_body_asks_for_another_run() {
    let (db, k) = opened();
    let answers = runs_of(&db, |tx, run| {
        tx.insert(&k, "a", [run as u8])?;
        if run < 3 {
            let conflict = tx.conflict("not yet");
            assert!(tx.insert(&k, "b", "").is_err_and(|error| error.is_conflict()), "it has ended");
            return Err(AppError::from(conflict));
        }
        Ok(())
    });
    for (runs, answer) in answers {
        assert!(runs == 3 && answer.is_ok(), "{runs} runs: {answer:?}");
    }
    assert_eq!(k.get("a").unwrap().unwrap(), [3]);
    assert!(k.get("b").unwrap().is_none());
}

/// A body that calls `k.insert` instead of `tx.insert` would wait for itself. The call fails immediately with an error
/// that says so, and the body is not retried.
#[test]
fn a_body_that_waits_for_itself_fails_at_once() {
    let (db, k) = opened();
    type Slip = fn(&Database, &Keyspace) -> Result<(), Error>;
    let slips: [Slip; 6] = [
        |_, k| k.insert("a", "2"),
        |_, k| k.remove("a"),
        |_, k| k.update("a", |_| Some("2")).map(drop),
        |_, k| block_on(k.insert_async("a", "2")),
        |db, k| {
            let mut batch = db.batch()?;
            batch.insert(k, "a", "2")?;
            batch.commit().map(drop)
        },
        |db, k| db.transact(|inner| inner.insert(k, "a", "2")),
    ];
    let began = Instant::now();
    for slip in slips {
        let answers = runs_of(&db, |tx, _| {
            tx.insert(&k, "a", "1")?;
            slip(&db, &k)
        });
        for (runs, answer) in answers {
            let error = answer.unwrap_err();
            let Error::LockTimeout { keyspace, key, waited, holder: LockHolder::OwnBody } = &error else {
                panic!("{error:?}")
            };
            assert_eq!((&keyspace[..], &key[..], *waited, runs), ("k", &b"a"[..], Duration::ZERO, 1));
            assert_eq!(error.recourse(), Recourse::Change);
            let text = error.to_string();
            assert!(text.contains(r#"b"a" of keyspace "k""#) && text.contains("tx.insert"), "{text}");
        }
    }
    let inner = k.update("a", |_| {
        assert!(matches!(k.insert("a", "2"), Err(Error::LockTimeout { holder: LockHolder::OwnBody, .. })));
        Some("1")
    });
    assert!(inner.unwrap().is_some());
    assert!(began.elapsed() < Duration::from_secs(5), "it waited");
    // Other rows, rows of a different database with the same transaction numbers, and calls after the body are not
    // affected.
    let (_other_db, other) = opened();
    db.transact(|tx| {
        tx.insert(&k, "a", "1")?;
        k.insert("b", "2")?;
        other.insert("a", "2")
    })
    .unwrap();
    k.insert("a", "3").unwrap();
}

/// A call by a different task on the same thread does not belong to the body. It waits for the row and gets it.
#[test]
fn a_neighbour_of_the_thread_waits() {
    let (db, k) = opened();
    block_on(async {
        let body = db.transact_local(async |tx| {
            tx.insert_async(&k, "a", "1").await?;
            smol::future::yield_now().await;
            tx.insert_async(&k, "b", "1").await
        });
        let (body, neighbour) = futures_util::future::join(body, async {
            smol::future::yield_now().await;
            k.insert_async("a", "2").await
        })
        .await;
        body.unwrap();
        neighbour.unwrap();
    });
    assert_eq!(k.get("a").unwrap().unwrap(), "2");
}

/// If a transaction of the same thread has locked a row, a call waits for the row until the timeout. The error says
/// whether the holder belongs to this thread. The transaction can continue afterwards.
#[test]
fn a_lock_that_is_not_given_back_is_named() {
    let (db, k) = opened();
    let long_key = [7; 300];
    let mut first = db.begin().unwrap();
    first.insert(&k, long_key, "1").unwrap();
    let options = TxOptions { lock_timeout: Duration::from_millis(20), ..db.tx_options() };
    let mut second = db.begin_with(options).unwrap();
    let own = second.insert(&k, long_key, "2").unwrap_err();
    assert!(
        matches!(&own, Error::LockTimeout { holder: LockHolder::SameThread, waited, .. } if *waited == options.lock_timeout),
        "{own:?}"
    );
    assert_eq!(own.recourse(), Recourse::Change);
    let text = own.to_string();
    assert!(text.contains("this very thread") && text.contains("300 bytes") && text.len() < 600, "{text}");
    let other = std::thread::scope(|scope| scope.spawn(|| second.remove(&k, long_key)).join().unwrap().unwrap_err());
    assert!(matches!(other, Error::LockTimeout { holder: LockHolder::Other, .. }), "{other:?}");
    assert_eq!(other.recourse(), Recourse::Retry);
    // Once a row has been handed over, it belongs to its new holder.
    let options = TxOptions { isolation: Isolation::ReadCommitted, ..db.tx_options() };
    let mut third = db.begin_with(options).unwrap();
    let mut waiting = Box::pin(third.insert_async(&k, long_key, "3"));
    assert!(block_on(futures_util::future::poll_immediate(&mut waiting)).is_none(), "the row is locked");
    drop(first);
    for is_noticed in [false, true] {
        if is_noticed {
            std::thread::scope(|scope| scope.spawn(|| block_on(&mut waiting)).join().unwrap().unwrap());
        }
        let other = second.insert(&k, long_key, "2").unwrap_err();
        assert!(matches!(other, Error::LockTimeout { holder: LockHolder::Other, .. }), "{is_noticed}: {other:?}");
    }
    drop(waiting);
    drop(third);
    second.insert(&k, long_key, "2").unwrap();
    second.commit().unwrap();
    assert_eq!(k.get(long_key).unwrap().unwrap(), "2");
}

/// If a call does not wait for a locked row, its error names the holder. The error says "own body" only if the call was
/// made from the holder's body.
#[test]
fn a_lock_that_is_not_waited_for_is_named() {
    let (db, k) = opened();
    let options = TxOptions { lock_timeout: Duration::ZERO, ..db.tx_options() };
    let mut first = db.begin_with(options).unwrap();
    first.insert(&k, "a", "1").unwrap();
    let mut second = db.begin_with(options).unwrap();
    let same_thread = second.insert(&k, "a", "2").unwrap_err();
    let other = std::thread::scope(|scope| scope.spawn(|| second.insert(&k, "a", "2")).join().unwrap().unwrap_err());
    // Insert the same row from within the body of a different transaction.
    let beside = db.transact_with(options, |tx| tx.insert(&k, "a", "2")).unwrap_err();
    let own_body = db.transact_with(options, |tx| {
        tx.insert(&k, "b", "1")?;
        k.insert("b", "2")
    });
    let expected = [
        (same_thread, LockHolder::SameThread, "this very thread locked it, in another transaction"),
        (beside, LockHolder::SameThread, "this very thread locked it, in another transaction"),
        (other, LockHolder::Other, "another transaction has it locked"),
        (own_body.unwrap_err(), LockHolder::OwnBody, "the transaction from whose body this call comes"),
    ];
    for (error, expected, text) in expected {
        assert!(
            matches!(error, Error::LockTimeout { holder, waited: Duration::ZERO, .. } if holder == expected),
            "{error:?}"
        );
        assert!(error.to_string().contains(text), "{error}");
        let recourse = if expected == LockHolder::Other { Recourse::Retry } else { Recourse::Change };
        assert_eq!(error.recourse(), recourse);
    }
}

/// A transaction waits only once for a row that a different thread has locked, and its body is not retried.
#[test]
fn a_row_is_waited_for_once() {
    let (db, k) = opened();
    let mut holder = db.begin().unwrap();
    holder.insert(&k, "a", "1").unwrap();
    let options = TxOptions { lock_timeout: Duration::from_millis(1), ..db.tx_options() };
    let mut runs = 0;
    let answer = std::thread::scope(|scope| {
        let run = || {
            db.transact_with(options, |tx| {
                runs += 1;
                tx.insert(&k, "a", "2")
            })
        };
        scope.spawn(run).join().unwrap()
    });
    assert_eq!((answer.unwrap_err().recourse(), runs), (Recourse::Retry, 1));
}

/// Increments the row that the bodies below use as a counter.
fn counted_up(tx: &mut Transaction, k: &Keyspace) -> drumlin::Result<u8> {
    let count = tx.get_for_update(k, "count")?.map_or(0, |bytes| bytes[0]) + 1;
    tx.insert(k, "count", [count])?;
    Ok(count)
}

/// A body that ends with `Ok` needs no type annotation for its error. The caller may use `?` to convert to the
/// library's error, the application's, `anyhow`'s, or a boxed one.
#[test]
fn a_plain_body_names_no_error() {
    fn plain(db: &Database, k: &Keyspace) -> drumlin::Result<u8> {
        let count = db.transact(|tx| {
            counted_up(tx, k)?;
            Ok(1)
        })?;
        Ok(count)
    }
    fn own(db: &Database, k: &Keyspace) -> Result<u8, AppError> {
        let count = db.transact(|tx| {
            counted_up(tx, k)?;
            Ok(2)
        })?;
        Ok(count)
    }
    fn any(db: &Database, k: &Keyspace) -> anyhow::Result<u8> {
        let count = db.transact(|tx| {
            counted_up(tx, k)?;
            Ok(3)
        })?;
        Ok(count)
    }
    fn boxed(db: &Database, k: &Keyspace) -> Result<u8, Box<dyn std::error::Error>> {
        let count = db.transact(|tx| {
            counted_up(tx, k)?;
            Ok(4)
        })?;
        Ok(count)
    }
    async fn local(db: &Database, k: &Keyspace) -> anyhow::Result<u8> {
        let count = db
            .transact_local(async |tx| {
                counted_up(tx, k)?;
                Ok(5)
            })
            .await?;
        Ok(count)
    }
    async fn spawned(db: &Database, k: &Keyspace) -> anyhow::Result<u8> {
        let count = db
            .transact_async(|tx| {
                let k = k.clone();
                Box::pin(async move {
                    counted_up(tx, &k)?;
                    Ok(6)
                })
            })
            .await?;
        Ok(count)
    }
    let (db, k) = opened();
    let of_threads = [plain(&db, &k).unwrap(), own(&db, &k).unwrap(), any(&db, &k).unwrap(), boxed(&db, &k).unwrap()];
    assert_eq!(of_threads, [1, 2, 3, 4]);
    assert_eq!(block_on(async { [local(&db, &k).await.unwrap(), spawned(&db, &k).await.unwrap()] }), [5, 6]);
    assert_eq!(k.get("count").unwrap().unwrap(), [6]);
}

/// A body can return `anyhow`'s error, and the caller gets it with its cause. If the cause is a conflict, the body is
/// retried.
#[test]
fn a_body_of_any_error() {
    let (db, k) = opened();
    k.insert("count", "seven").unwrap();
    fn parsed(tx: &mut Transaction, k: &Keyspace) -> anyhow::Result<u32> {
        let text = tx.get_for_update(k, "count")?.expect("there is a row");
        Ok(std::str::from_utf8(&text)?.parse::<u32>()?)
    }
    let failed = db.try_transact(|tx| -> anyhow::Result<_> {
        std::fs::metadata("/")?;
        parsed(tx, &k)
    });
    assert!(failed.unwrap_err().is::<std::num::ParseIntError>());
    let failed = block_on(db.try_transact_local(async |tx| parsed(tx, &k)));
    assert!(failed.unwrap_err().is::<std::num::ParseIntError>());
    let mut runs = 0;
    let ran = block_on(db.try_transact_async(|tx| {
        runs += 1;
        let conflict = (runs < 3).then(|| tx.conflict("not yet"));
        Box::pin(async move {
            if let Some(conflict) = conflict {
                return Err(anyhow::Error::from(conflict).context("a test"));
            }
            Ok(runs)
        })
    }));
    assert_eq!(ran.unwrap(), 3);
}
