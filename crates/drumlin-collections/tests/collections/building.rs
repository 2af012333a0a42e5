//! Indexes and views that are added to existing documents, changed, or removed.

use std::thread;

use drumlin_collections::{Collection, Collections, Error, Index, Parts, Postcard, View};
use drumlin_testing::Random;
use serde::{Deserialize, Serialize};

use crate::documents::database;
use crate::notes::{self, Note};

/// A note before any index or view was defined.
#[derive(Serialize, Deserialize, Debug)]
struct Plain {
    id: u32,
    author: String,
    words: Vec<String>,
}

impl Collection for Plain {
    type Key = u32;
    type Codec = Postcard;
    const NAME: &'static str = "notes";

    fn key(&self) -> u32 {
        self.id
    }
}

/// Parts are built while threads write. Reading a part fails until it is built; after that, it matches the documents.
#[test]
fn parts_are_built_while_writers_go_on() {
    let db = database();
    let plain = Collections::new(&db).open::<Plain>().unwrap();
    Collections::new(&db)
        .transact(|tx| {
            (0..2000).try_for_each(|id| {
                tx.put(&plain, &Plain { id, author: "ann".into(), words: vec![format!("word {id}")] })
            })
        })
        .unwrap();
    let collections = Collections::new(&db);
    let notes = collections.open::<Note<1>>().unwrap();
    let before = db.snapshot();
    thread::scope(|scope| {
        for seed in 0..2 {
            let notes = &notes;
            scope.spawn(move || {
                let mut random = Random(seed);
                (0..200).for_each(|_| notes::change(notes, &mut random, 2000));
            });
        }
        notes.wait_built().unwrap();
    });
    notes::check_parts(&notes.now());
    // A snapshot taken before the build does not see all rows of the view. Reading the view at this snapshot must fail
    // or return a sum.
    let old = notes.at(&before).view(&Note::LENGTHS).reduce(..);
    assert!(matches!(old, Err(Error::NotReady { .. })) || old.is_ok_and(|sum| sum.is_some()));
    assert_eq!(db.keyspaces().len(), 7, "documents, meta, history, four parts");
}

/// A part with a new version is rebuilt, and the rows of the old version are removed.
#[test]
fn a_changed_view_is_built_again() {
    let db = database();
    let mut random = Random(5);
    let first = Collections::new(&db).open::<Note<1>>().unwrap();
    (0..300).for_each(|_| notes::change(&first, &mut random, 100));
    notes::check(&first.now());
    drop(first);
    let second = Collections::new(&db).open::<Note<2>>().unwrap();
    second.wait_built().unwrap();
    notes::check(&second.now());
    (0..100).for_each(|_| notes::change(&second, &mut random, 100));
    notes::check(&second.now());
    drop(second);
    assert!(db.keyspaces().iter().all(|info| !info.name.ends_with("lengths 1.1")), "{:?}", db.keyspaces());
    // Writes do not update an index or view that the definition leaves out. So it is dropped, and rebuilt once the
    // definition includes it again.
    let plain = Collections::new(&db).open::<Plain>().unwrap();
    assert_eq!(db.keyspaces().len(), 3, "documents, meta, history: {:?}", db.keyspaces());
    plain.remove(plain.iter().next().unwrap().unwrap().id).unwrap();
    drop(plain);
    let again = Collections::new(&db).open::<Note<2>>().unwrap();
    again.wait_built().unwrap();
    notes::check(&again.now());
}

#[derive(Serialize, Deserialize, Debug)]
struct Strict {
    id: u32,
    author: String,
    words: Vec<String>,
}

impl Strict {
    const BY_AUTHOR: Index<Strict, String> = Index::new("by author", |note: &Strict| note.author.clone()).unique();
    const FIRST: View<Strict, String, u32> =
        View::new("first", |note: &Strict, emit| emit(note.words[0].clone(), note.id));
    const IDS: Index<Strict, u32> = Index::new("ids", |note| note.id);
}

impl Collection for Strict {
    type Key = u32;
    type Codec = Postcard;
    const NAME: &'static str = "notes";

    fn key(&self) -> u32 {
        self.id
    }

    fn parts() -> Parts<Strict> {
        Parts::new().index(Strict::BY_AUTHOR).view(Strict::FIRST).index(Strict::IDS)
    }
}

/// If a part can't be built from the existing documents, the error names the document that prevents it. The other parts
/// and the documents remain usable.
#[test]
fn a_part_that_can_not_be_built_says_why() {
    let db = database();
    let plain = Collections::new(&db).open::<Plain>().unwrap();
    for (id, author) in [(1, "ann"), (2, "bob"), (3, "ann")] {
        plain.put(&Plain { id, author: author.into(), words: Vec::new() }).unwrap();
    }
    let strict = Collections::new(&db).open::<Strict>().unwrap();
    let error = strict.wait_built().unwrap_err();
    assert!(error.to_string().contains(r#"index "by author" could not be built"#), "{error}");
    assert!(error.to_string().contains(r#"document 3: "ann""#), "{error}");
    let error = strict.view(&Strict::FIRST).range(..).next().unwrap().unwrap_err();
    assert!(error.to_string().contains(r#"view "first", document 1: its function panicked"#), "{error}");
    assert_eq!(strict.index(&Strict::IDS).count(..).unwrap(), 3);
    assert_eq!(strict.get(2).unwrap().unwrap().author, "bob");
    // Once the unsuitable documents have been removed or fixed, the next opening builds the parts.
    drop(strict);
    plain.remove(3).unwrap();
    for id in [1, 2] {
        plain.update(id, |note| note.words.push("word".into())).unwrap();
    }
    let strict = Collections::new(&db).open::<Strict>().unwrap();
    strict.wait_built().unwrap();
    assert_eq!(strict.index(&Strict::BY_AUTHOR).first("ann").unwrap().unwrap().id, 1);
    assert_eq!(strict.view(&Strict::FIRST).range(..).count(), 2);
}
