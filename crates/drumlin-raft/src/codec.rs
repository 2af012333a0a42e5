//! The encoding of what is stored: the bytes of values, and of an entry of the log.
//!
//! ```text
//! entry    kind (1)  length of the id (2)  id  payload
//! id       index (8)  the rest of the id, as the Raft library has it
//! ```
//! Numbers are little-endian. Everything else is postcard.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};

/// The place of an entry in the log: its index, and the whole id as the Raft library encodes it. The core compares
/// nothing but the index.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EntryId {
    /// The index of the entry.
    pub index: u64,
    /// The whole id, with the term, in the encoding of the adapter.
    pub bytes: Vec<u8>,
}

const INDEX_BYTES: usize = 8;

impl EntryId {
    pub(crate) fn encode(&self) -> Vec<u8> {
        [&self.index.to_le_bytes()[..], &self.bytes].concat()
    }

    pub(crate) fn decode(what: &str, bytes: &[u8]) -> Result<EntryId> {
        let (index, bytes) =
            bytes.split_first_chunk::<INDEX_BYTES>().ok_or_else(|| Error::undecodable(what, "it is too short"))?;
        Ok(EntryId { index: u64::from_le_bytes(*index), bytes: bytes.to_vec() })
    }
}

/// The content of an entry: nothing, a request for the state machine, or members of the cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Content<R> {
    /// Nothing: a leader writes such an entry when its term begins.
    Blank,
    /// A request for the state machine.
    Request(R),
    /// The members of the cluster, in the encoding of the adapter.
    Membership(Vec<u8>),
}

const KIND_BLANK: u8 = 0;
const KIND_REQUEST: u8 = 1;
const KIND_MEMBERSHIP: u8 = 2;
const LENGTH_BYTES: usize = 2;
/// The capacity with which the bytes of an entry begin. Most entries fit, and need no second allocation.
const GUESSED_ENTRY_BYTES: usize = 512;

/// Encodes an entry of the log.
pub(crate) fn encode_entry<R: Serialize>(id: &EntryId, content: &Content<R>) -> Result<Vec<u8>> {
    let kind = match content {
        Content::Blank => KIND_BLANK,
        Content::Request(_) => KIND_REQUEST,
        Content::Membership(_) => KIND_MEMBERSHIP,
    };
    let id_bytes = u16::try_from(INDEX_BYTES + id.bytes.len())
        .map_err(|_| Error::undecodable("the id of an entry", "it has more than 64 KiB"))?;
    let mut entry = Vec::with_capacity(GUESSED_ENTRY_BYTES);
    entry.push(kind);
    entry.extend(id_bytes.to_le_bytes());
    entry.extend(id.index.to_le_bytes());
    entry.extend(&id.bytes);
    match content {
        Content::Blank => {}
        Content::Request(request) => entry = encode_after(entry, request)?,
        Content::Membership(bytes) => entry.extend(bytes),
    }
    Ok(entry)
}

/// Returns the id of an encoded entry, and its kind and payload.
fn divide(index: u64, entry: &[u8]) -> Result<(EntryId, u8, &[u8])> {
    let what = || format!("entry {index}");
    let too_short = || Error::undecodable(what(), "it is too short");
    let (kind, rest) = entry.split_first().ok_or_else(too_short)?;
    let (length, rest) = rest.split_first_chunk::<LENGTH_BYTES>().ok_or_else(too_short)?;
    let (id, payload) = rest.split_at_checked(u16::from_le_bytes(*length).into()).ok_or_else(too_short)?;
    let id = EntryId::decode(&what(), id)?;
    if id.index != index {
        return Err(Error::undecodable(what(), format!("it has the index {}", id.index)));
    }
    Ok((id, *kind, payload))
}

/// Decodes the id of the entry at an index of the log.
pub(crate) fn decode_entry_id(index: u64, entry: &[u8]) -> Result<EntryId> {
    divide(index, entry).map(|(id, ..)| id)
}

/// Decodes the entry at an index of the log.
pub(crate) fn decode_entry<R: DeserializeOwned>(index: u64, entry: &[u8]) -> Result<(EntryId, Content<R>)> {
    let (id, kind, payload) = divide(index, entry)?;
    let content = match kind {
        KIND_BLANK => Content::Blank,
        KIND_REQUEST => Content::Request(decode(&format!("the request of entry {index}"), payload)?),
        KIND_MEMBERSHIP => Content::Membership(payload.to_vec()),
        _ => return Err(Error::undecodable(format!("entry {index}"), format!("its kind {kind} is unknown"))),
    };
    Ok((id, content))
}

/// Encodes a value.
pub(crate) fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    encode_after(Vec::new(), value)
}

/// Appends an encoded value to bytes.
fn encode_after<T: Serialize>(bytes: Vec<u8>, value: &T) -> Result<Vec<u8>> {
    postcard::to_extend(value, bytes).map_err(|error| Error::undecodable(std::any::type_name::<T>(), error))
}

/// Decodes a value, all bytes of which must be used.
pub(crate) fn decode<T: DeserializeOwned>(what: &str, bytes: &[u8]) -> Result<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(Error::undecodable(what, format!("{} bytes are left", rest.len()))),
        Err(error) => Err(Error::undecodable(what, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each kind of entry is decoded as it was, and nothing that is cut short or longer is.
    #[test]
    fn entries_are_decoded_as_they_were() {
        let id = EntryId { index: 7, bytes: vec![1, 2, 3] };
        for content in [Content::Blank, Content::Request("put".to_owned()), Content::Membership(vec![9, 9])] {
            let entry = encode_entry(&id, &content).unwrap();
            assert_eq!(decode_entry::<String>(7, &entry).unwrap(), (id.clone(), content.clone()));
            assert_eq!(decode_entry_id(7, &entry).unwrap(), id);
            let error = decode_entry::<String>(8, &entry).unwrap_err();
            assert!(error.to_string().contains("entry 8"), "{error}");
            for length in 0..entry.len() {
                let is_a_prefix_of_bytes = matches!(content, Content::Membership(_)) && length >= 14;
                assert_eq!(decode_entry::<String>(7, &entry[..length]).is_ok(), is_a_prefix_of_bytes, "{length}");
            }
        }
        let mut longer = encode_entry(&id, &Content::Request(1u8)).unwrap();
        longer.push(0);
        assert!(decode_entry::<u8>(7, &longer).is_err());
        longer[0] = 9;
        assert!(decode_entry::<u8>(7, &longer).unwrap_err().to_string().contains("kind 9"));
    }
}
