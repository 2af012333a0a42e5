//! A collection with every kind of part, and a check that recomputes the rows of its parts.

use std::collections::BTreeMap;
use std::fmt::Debug;

use drumlin_collections::{Collection, Documents, Index, Parts, Postcard, Reading, Retention, View};
use drumlin_testing::Random;
use serde::{Deserialize, Serialize};

/// A note. `V` is the version of its index and view.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Note<const V: u32> {
    pub(crate) id: u32,
    pub(crate) author: String,
    pub(crate) words: Vec<String>,
}

impl<const V: u32> Note<V> {
    pub(crate) const BY_AUTHOR: Index<Note<V>, String> =
        Index::new("by author", |note: &Note<V>| note.author.clone()).version(V);
    pub(crate) const BY_WORD: Index<Note<V>, String> = Index::many("by word", |note: &Note<V>| note.words.clone());
    /// The first word and the author, for notes that have words. No two notes may have the same pair.
    pub(crate) const BY_TITLE: Index<Note<V>, (String, String)> = Index::optional("by title", |note: &Note<V>| {
        note.words.first().map(|word| (word.clone(), note.author.clone()))
    })
    .unique();
    pub(crate) const LENGTHS: View<Note<V>, (String, u32), u64> = View::new("lengths", |note: &Note<V>, emit| {
        for word in &note.words {
            emit((note.author.clone(), word.len() as u32), word.len() as u64 * u64::from(V));
        }
    })
    .reducing(|a, b| a + b)
    .version(V);
}

impl<const V: u32> Collection for Note<V> {
    type Key = u32;
    type Codec = Postcard;
    const NAME: &'static str = "notes";

    fn key(&self) -> u32 {
        self.id
    }

    fn parts() -> Parts<Self> {
        Parts::new()
            .index(Self::BY_AUTHOR)
            .index(Self::BY_WORD)
            .index(Self::BY_TITLE)
            .view(Self::LENGTHS)
            .history(Retention::versions(3))
    }
}

/// Generates a random note. Titles and authors often repeat.
pub(crate) fn draw<const V: u32>(random: &mut Random, ids: u64) -> Note<V> {
    let word = |random: &mut Random| ["a", "bb", "ccc", "a\0", ""][random.index(5)].to_owned();
    let author = ["ann", "bob", "", "ann\0"][random.index(4)].to_owned();
    let mut words: Vec<String> = (0..random.below(4)).map(|_| word(random)).collect();
    if let Some(first) = words.first_mut() {
        first.push_str(&random.below(ids).to_string());
    }
    Note { id: random.below(ids) as u32, author, words }
}

/// Checks that the indexes, the view and the newest versions match the documents, as they must in every snapshot.
pub(crate) fn check<const V: u32>(reading: &Reading<'_, Note<V>>) {
    check_parts(reading);
    for note in reading.iter().map(Result::unwrap) {
        let newest = reading.versions(note.id).unwrap().next_back().unwrap().unwrap();
        assert_eq!(newest.document, Some(note));
    }
}

/// Checks only the indexes and the view. Documents written before the history was kept have no versions yet.
pub(crate) fn check_parts<const V: u32>(reading: &Reading<'_, Note<V>>) {
    let notes: Vec<Note<V>> = reading.iter().map(Result::unwrap).collect();
    let keys_by = |of: &dyn Fn(&Note<V>) -> Vec<String>| {
        let mut keys: Vec<(String, u32)> =
            notes.iter().flat_map(|note| of(note).into_iter().map(|key| (key, note.id))).collect();
        keys.sort();
        keys.dedup();
        keys
    };
    let found = |index: &Index<Note<V>, String>| -> Vec<(String, u32)> {
        reading.index(index).keys(..).map(Result::unwrap).collect()
    };
    assert_eq!(found(&Note::BY_AUTHOR), keys_by(&|note| vec![note.author.clone()]));
    assert_eq!(found(&Note::BY_WORD), keys_by(&|note| note.words.clone()));
    let mut titles: Vec<((String, String), u32)> =
        (notes.iter()).filter_map(|note| Some(((note.words.first()?.clone(), note.author.clone()), note.id))).collect();
    titles.sort();
    assert!(titles.windows(2).all(|pair| pair[0].0 != pair[1].0), "a title is there twice");
    let found: Vec<_> = reading.index(&Note::BY_TITLE).keys(..).map(Result::unwrap).collect();
    assert_eq!(found, titles);

    let mut sums: BTreeMap<(String, u32), (u64, u64)> = BTreeMap::new();
    for note in &notes {
        for word in &note.words {
            let sum = sums.entry((note.author.clone(), word.len() as u32)).or_default();
            *sum = (sum.0 + word.len() as u64 * u64::from(V), sum.1 + 1);
        }
    }
    let view = reading.view(&Note::LENGTHS);
    let groups: Vec<_> = view.groups(..).map(Result::unwrap).collect();
    assert_eq!(groups, sums.iter().map(|(key, (sum, _))| (key.clone(), *sum)).collect::<Vec<_>>());
    assert_eq!(view.range(..).count() as u64, sums.values().map(|(_, rows)| rows).sum::<u64>());
    let total = sums.values().map(|(sum, _)| *sum).reduce(|a, b| a + b);
    assert_eq!(view.reduce(..).unwrap(), total);
}

/// Makes one random change. An error is allowed only if the title is taken or the document already exists; any other
/// error panics.
pub(crate) fn change<const V: u32>(notes: &Documents<Note<V>>, random: &mut Random, ids: u64) {
    let note = draw::<V>(random, ids);
    let refused = match random.below(10) {
        0..5 => notes.put(&note).err(),
        5..7 => notes.insert(&note).err(),
        7..8 => notes.update(note.id, |old| old.author.clone_from(&note.author)).err(),
        _ => notes.remove(note.id).err(),
    };
    is_expected(refused);
}

pub(crate) fn is_expected(error: Option<impl Debug + Into<drumlin_collections::Error>>) {
    use drumlin_collections::Error;
    match error.map(Into::into) {
        None | Some(Error::NotUnique { .. } | Error::Exists { .. }) => {}
        Some(error) => panic!("{error:?}"),
    }
}
