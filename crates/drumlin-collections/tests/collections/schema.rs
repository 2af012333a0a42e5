//! Schema changes and migrations.

use drumlin_collections::{BoxError, Codec, Collection, Collections, Error, Index, Parts, Postcard};
use serde::{Deserialize, Serialize};

use crate::documents::database;

#[derive(Serialize, Deserialize, Debug)]
struct One {
    name: String,
}

#[derive(Serialize, Deserialize, Debug, PartialEq)]
struct Two {
    first: String,
    last: String,
}

impl Two {
    const BY_LAST: Index<Two, String> = Index::new("by last", |person| person.last.clone());
}

impl Collection for One {
    type Key = String;
    type Codec = Postcard;
    const NAME: &'static str = "people";

    fn key(&self) -> String {
        self.name.clone()
    }
}

impl Collection for Two {
    type Key = String;
    type Codec = Postcard;
    const NAME: &'static str = "people";
    const VERSION: u32 = 300;

    fn key(&self) -> String {
        format!("{} {}", self.first, self.last)
    }

    fn parts() -> Parts<Two> {
        Parts::new().index(Two::BY_LAST)
    }

    fn migrate(version: u32, bytes: &[u8]) -> Result<Two, BoxError> {
        assert_eq!(version, 1);
        let One { name } = Postcard::decode(bytes)?;
        let (first, last) = name.split_once(' ').ok_or("a name of one word")?;
        Ok(Two { first: first.into(), last: last.into() })
    }
}

/// Documents of an older schema are migrated when they are read, can be found through indexes, and are stored in the
/// new format when they are written. A document that can't be migrated or is newer than the program causes an error
/// that states the reason.
#[test]
fn old_documents_are_migrated_when_they_are_read() {
    let db = database();
    let old = Collections::new(&db).open::<One>().unwrap();
    for name in ["Ann Lee", "Bob Ray"] {
        old.put(&One { name: name.into() }).unwrap();
    }
    drop(old);
    let people = Collections::new(&db).open::<Two>().unwrap();
    people.wait_built().unwrap();
    let ann = people.get("Ann Lee").unwrap().unwrap();
    assert_eq!(ann, Two { first: "Ann".into(), last: "Lee".into() });
    assert_eq!(people.index(&Two::BY_LAST).first("Ray").unwrap().unwrap().first, "Bob");
    people.put(&ann).unwrap();
    people.remove("Bob Ray").unwrap();
    assert_eq!(people.index(&Two::BY_LAST).count(..).unwrap(), 1);
    drop(people);

    let old = Collections::new(&db).open::<One>().unwrap();
    let error = old.get("Ann Lee").unwrap_err();
    assert!(matches!(&error, Error::Migration { version: 300, current: 1, .. }), "{error}");
    old.put(&One { name: "Eve".into() }).unwrap();
    drop(old);
    let people = Collections::new(&db).open::<Two>().unwrap();
    let error = people.get("Eve").unwrap_err();
    assert!(error.to_string().contains("a name of one word"), "{error}");
    assert!(matches!(people.wait_built(), Err(Error::NotBuilt { .. })));
}
