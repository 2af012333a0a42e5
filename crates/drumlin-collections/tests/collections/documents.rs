//! Documents: single calls, transactions, futures and errors.

use std::collections::BTreeMap;

use drumlin::{Config, Database};
use drumlin_collections::{Collection, Collections, Documents, Error, Index, Parts, Postcard};
use drumlin_testing::Random;
use serde::{Deserialize, Serialize};

use crate::notes::{self, Note};

pub(crate) fn database() -> Database {
    Config::in_memory().memory(32 << 20).open("").unwrap()
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
struct User {
    name: String,
    visits: u64,
}

impl Collection for User {
    type Key = String;
    type Codec = Postcard;
    const NAME: &'static str = "users";

    fn key(&self) -> String {
        self.name.clone()
    }
}

fn user(name: &str, visits: u64) -> User {
    User { name: name.into(), visits }
}

/// Documents can be stored, found, changed and removed by single calls.
#[test]
fn documents_are_stored_and_found() {
    let users = Collections::new(&database()).open::<User>().unwrap();
    users.insert(&user("ann", 1)).unwrap();
    users.put(&user("ann", 2)).unwrap();
    users.put(&user("bob", 3)).unwrap();
    assert_eq!(users.get("ann").unwrap(), Some(user("ann", 2)));
    let error = users.insert(&user("ann", 9)).unwrap_err();
    assert!(matches!(&error, Error::Exists { collection: "users", key } if key == "\"ann\""), "{error}");
    let visits = users.update("ann", |user| {
        user.visits += 5;
        user.visits
    });
    assert_eq!(visits.unwrap(), Some(7));
    assert_eq!(users.update("eve", |_| ()).unwrap(), None);
    let error = users.update("ann", |user| user.name = "eve".into()).unwrap_err();
    assert!(matches!(&error, Error::KeyChanged { new_key, .. } if new_key == "\"eve\""), "{error}");
    let names = |rows: drumlin_collections::Rows<User>| rows.map(|user| user.unwrap().name).collect::<Vec<_>>();
    assert_eq!(names(users.range("b"..)), ["bob"]);
    assert_eq!(names(users.range(..="bob")), ["ann", "bob"]);
    assert_eq!(users.iter().next_back().unwrap().unwrap().name, "bob");
    let found = users.now().get_many(&["bob", "eve"]).unwrap();
    assert_eq!(found, [Some(user("bob", 3)), None]);
    assert_eq!(users.remove("ann").unwrap(), Some(user("ann", 7)));
    assert_eq!(users.remove("ann").unwrap(), None);
}

/// A transaction can span several collections. It can continue after one of its calls was refused.
#[test]
fn a_refused_call_leaves_its_transaction_whole() {
    let db = database();
    let collections = Collections::new(&db);
    let (users, notes) = (collections.open::<User>().unwrap(), collections.open::<Note<1>>().unwrap());
    let note = |id, word: &str| Note::<1> { id, author: "ann".into(), words: vec![word.into(), "x".into()] };
    notes.insert(&note(1, "one")).unwrap();
    collections
        .transact(|tx| {
            tx.put(&users, &user("ann", 1))?;
            tx.insert(&notes, &note(2, "two"))?;
            assert!(users.at(tx).get("ann")?.is_some() && users.get("ann")?.is_none());
            // The call inserts rows into other indexes before the unique index refuses it. Those rows must be undone.
            assert!(matches!(tx.put(&notes, &note(3, "one")), Err(Error::NotUnique { .. })));
            assert!(matches!(tx.insert(&notes, &note(2, "zwei")), Err(Error::Exists { .. })));
            notes::check(&notes.at(tx));
            let savepoint = tx.savepoint();
            tx.remove(&notes, 1)?;
            tx.put(&notes, &note(3, "one"))?;
            notes::check(&notes.at(tx));
            tx.rollback_to(savepoint)
        })
        .unwrap();
    notes::check(&notes.now());
    assert_eq!(notes.iter().count(), 2);
    let refused: Result<(), Error> = collections.transact(|tx| {
        tx.remove(&users, "ann")?;
        tx.insert(&notes, &note(2, "three"))
    });
    assert!(matches!(refused, Err(Error::Exists { .. })));
    assert!(users.get("ann").unwrap().is_some(), "nothing remains of it");
}

/// Asynchronous calls return the same results as blocking calls.
#[test]
fn futures_do_the_same() {
    let collections = Collections::new(&database());
    let opened = async { (collections.open_async::<User>().await, collections.open_async::<Note<1>>().await) };
    let (users, notes) = smol::block_on(opened);
    let (users, notes) = (users.unwrap(), notes.unwrap());
    /// Checks at compile time that a future is `Send`.
    fn sendable<F: Send + Future>(future: F) -> F {
        future
    }
    smol::block_on(async {
        sendable(users.put_async(&user("ann", 1))).await.unwrap();
        sendable(users.insert_async(&user("bob", 1))).await.unwrap();
        assert!(users.insert_async(&user("bob", 1)).await.is_err());
        let visits = sendable(users.update_async("ann", |user| {
            user.visits += 1;
            user.visits
        }));
        assert_eq!(visits.await.unwrap(), Some(2));
        assert_eq!(sendable(users.get_async("ann")).await.unwrap(), Some(user("ann", 2)));
        assert_eq!(users.remove_async("bob").await.unwrap(), Some(user("bob", 1)));
        let (both, all_notes) = (users.clone(), notes.clone());
        let written = collections.transact_async(move |mut tx| {
            let (users, notes) = (both.clone(), all_notes.clone());
            Box::pin(async move {
                for id in 0..100 {
                    let note = Note::<1> { id, author: "ann".into(), words: vec![format!("word {id}")] };
                    tx.put_async(&notes, &note).await?;
                }
                tx.update_async(&users, "ann", |user| user.visits = 100).await
            })
        });
        sendable(written).await.unwrap();
        let indexed = notes.index(&Note::BY_AUTHOR);
        let mut found = indexed.get("ann");
        let mut count = 0;
        while let Some(note) = sendable(found.next_async()).await {
            assert_eq!(note.unwrap().id, count);
            count += 1;
        }
        assert_eq!((count, indexed.count_async(..).await.unwrap()), (100, 100));
        let sum = sendable(notes.view(&Note::LENGTHS).reduce_async(..)).await.unwrap();
        assert_eq!(sum, notes.view(&Note::LENGTHS).reduce(..).unwrap());
        sendable(notes.wait_built_async()).await.unwrap();
        let now = notes.now();
        let first = sendable(now.version_async(7, 1)).await.unwrap().unwrap();
        assert_eq!(sendable(now.as_of_async(first.time, 7)).await.unwrap(), first.document);
        assert!(sendable(now.versions(7).unwrap().next_async()).await.is_some());
        let mut then = now.range_as_of(first.time, 7..).unwrap();
        assert_eq!(sendable(then.next_async()).await.unwrap().unwrap().id, 7);
        assert_eq!(sendable(notes.remove_expired_async()).await.unwrap(), 0);
    });
    notes::check(&notes.now());
}

/// An index iterator behaves like a sorted list: it returns documents in index order from both ends, for any mix of
/// forward and backward steps.
#[test]
fn found_documents_are_in_order_from_both_ends() {
    let notes = Collections::new(&database()).open::<Note<1>>().unwrap();
    let mut random = Random(3);
    let mut model: BTreeMap<(String, u32), Note<1>> = BTreeMap::new();
    for id in 0..300 {
        let note = Note { id, words: vec![format!("word {id}")], ..notes::draw::<1>(&mut random, 300) };
        notes.put(&note).unwrap();
        model.insert((note.author.clone(), id), note);
    }
    for _ in 0..50 {
        let low = ["", "ann", "ann\0", "b"][random.index(4)].to_owned();
        let mut expected: std::collections::VecDeque<_> =
            model.range((low.clone(), 0)..).map(|(_, note)| note.clone()).collect();
        let mut found = notes.index(&Note::BY_AUTHOR).range(low..);
        loop {
            let backwards = random.chance(50);
            let (next, should) =
                if backwards { (found.next_back(), expected.pop_back()) } else { (found.next(), expected.pop_front()) };
            assert_eq!(next.map(Result::unwrap), should);
            if should_end(&expected, random.one_in(200)) {
                break;
            }
        }
    }
}

fn should_end<T>(left: &std::collections::VecDeque<T>, is_enough: bool) -> bool {
    left.is_empty() || is_enough
}

#[derive(Serialize, Deserialize, Debug)]
struct Impostor {
    id: u8,
}

impl Impostor {
    const UNLISTED: Index<Impostor, u8> = Index::new("unlisted", |impostor| impostor.id);
}

impl Collection for Impostor {
    type Key = u8;
    type Codec = Postcard;
    const NAME: &'static str = "users";

    fn key(&self) -> u8 {
        self.id
    }
}

#[derive(Serialize, Deserialize, Debug)]
struct Twice;

impl Collection for Twice {
    type Key = u8;
    type Codec = Postcard;
    const NAME: &'static str = "twice";

    fn key(&self) -> u8 {
        0
    }

    fn parts() -> Parts<Twice> {
        Parts::new().index(Index::new("same", |_| 1u8)).index(Index::new("same", |_| 2u8))
    }
}

/// An invalid definition and a row of a different type cause errors that name the collection and the row.
#[test]
fn what_is_not_defined_is_refused() {
    let db = database();
    let collections = Collections::new(&db);
    let users: Documents<User> = collections.open().unwrap();
    users.put(&user("ann", 1)).unwrap();
    let error = collections.open::<Impostor>().unwrap_err();
    assert!(error.to_string().contains(r#"collection "users""#), "{error}");
    let error = collections.open::<Twice>().unwrap_err();
    assert!(error.to_string().contains(r#"index "same" is defined twice"#), "{error}");
    let error = Collections::new(&db).open::<Impostor>().unwrap_err();
    assert!(matches!(&error, Error::OtherTypes { collection: "users", .. }), "{error}");
    let other_db = database();
    let impostors = Collections::new(&other_db).open::<Impostor>().unwrap();
    other_db.keyspace("users").unwrap().insert("ann\0\0", [1]).unwrap();
    let error = impostors.iter().next().unwrap().unwrap_err();
    assert!(matches!(&error, Error::Decode { collection: "users", row, .. } if row.contains("ann")), "{error}");
    let error = impostors.index(&Impostor::UNLISTED).get(1).next().unwrap().unwrap_err();
    assert!(error.to_string().contains(r#"no index "unlisted""#), "{error}");
    db.keyspace("users").unwrap().insert("bob\0\0", [1, 0xFF]).unwrap();
    let error = users.get("bob").unwrap_err();
    assert!(matches!(&error, Error::Decode { row, .. } if row == "\"bob\""), "{error}");
}
