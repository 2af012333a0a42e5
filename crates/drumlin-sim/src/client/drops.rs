//! Drops of keyspaces that fill segments of their own, while a snapshot reads them and others take their space.

use drumlin::{Error, Keyspace};

use super::answers::Call;
use super::scans::Bounds;
use super::streams::Reader;
use super::{Api, Client, Count, DURABLE, PASSING, Stop, by_api, numbered};
use crate::model::{Content, Operation, SpaceNumber};

/// The bounds of all keys.
const ALL: Bounds = (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded);

impl Client {
    /// Puts large values into a keyspace, and drops it during a scan and while a value is read. Then others take its
    /// space, and the reads continue. Each row that they still return must be right.
    pub(super) async fn drop_while_reading(&mut self) -> Result<(), Stop> {
        let name = PASSING[self.random.below(3) as usize];
        if self.session.model.space(name).is_none() {
            self.create_named(name).await?;
        }
        let Some((keyspace, space)) = self.open(name) else { return Ok(()) };
        let mut last = None;
        for _ in 0..4 + self.random.below(3) {
            last = self.put_large(&keyspace, space).await?.or(last);
        }
        let Some(key) = last else { return Ok(()) };
        let snapshot = self.session.db.snapshot();
        let at = snapshot.timestamp().0;
        self.saw(at);
        let api = self.api;
        let opened = match api {
            Api::Blocking => snapshot.read(&keyspace, &key).map(|reader| reader.map(Reader::Blocking)),
            Api::Tasks => snapshot.read_async(&keyspace, &key).await.map(|reader| reader.map(Reader::Task)),
        };
        let mut reader = match opened {
            Ok(reader) => reader,
            Err(error) => return self.accept(&error, Call::Copy, Some(space)),
        };
        let mut range = snapshot.range(&keyspace, ALL);
        let rows = self.session.model.rows_at(space, at);
        assert!(
            reader.is_some() == rows.contains_key(&key) || self.session.model.is_dropped(space),
            "stream: row {} at {at} is there or absent, unlike in the model",
            key.escape_ascii()
        );
        let mut wanted = rows.iter();
        let count_before = self.random.below(3);
        for index in 0_u64.. {
            if index == count_before {
                self.drop_named(name).await?;
                let other = DURABLE[self.random.below(2) as usize].0;
                let Some((other, other_space)) = self.open(other) else { return Ok(()) };
                for _ in 0..2 + self.random.below(4) {
                    self.put_large(&other, other_space).await?;
                }
                if let (Some(reader), Some(content)) = (&mut reader, rows.get(&key)) {
                    self.read_parts(reader, space, &content.bytes()).await;
                }
            }
            self.session.counts.add(Count::Reads);
            match by_api!(api, range.next(), range.next_async()) {
                None => {
                    let next = wanted.next().map(|(key, _)| key.escape_ascii().to_string());
                    assert!(
                        next.is_none() || self.session.model.is_dropped(space),
                        "a scan at {at} ended before row {next:?}"
                    );
                    return Ok(());
                }
                Some(Ok((key, value))) => {
                    let is_right = wanted.next().is_some_and(|(next, content)| *next == key[..] && content.is(&value));
                    assert!(is_right, "a scan at {at} of {name:?}: row {} is wrong", key.escape_ascii());
                }
                Some(Err(error @ Error::SnapshotTooOld { .. })) => return self.accept(&error, Call::Copy, None),
                Some(Err(error)) => return self.accept(&error, Call::Copy, Some(space)),
            }
        }
        Ok(())
    }

    /// Puts a value that no page has room for. Returns its key, or `None` if the put was refused.
    async fn put_large(&mut self, keyspace: &Keyspace, space: SpaceNumber) -> Result<Option<Vec<u8>>, Stop> {
        let key = numbered(self.random.below(self.session.plan.key_count));
        let content = Content { length: 66_000 + self.random.below(40_000) as usize, seed: self.random.next() };
        let (api, value) = (self.api, content.bytes());
        let operation = Operation::Rows(vec![(space, key.clone(), Some(content))]);
        let insert = async { by_api!(api, keyspace.insert(&key, &value), keyspace.insert_async(&key, &value)) };
        let done = self.commit(operation, true, Call::Change, Some(space), insert).await?;
        Ok(done.map(|_| key))
    }
}
