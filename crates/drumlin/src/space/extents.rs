//! Extents that are not pages: appending, reading and verifying them.

use super::Space;
use super::table::CHUNK_PAGES;
use crate::error::{Error, Result};
use crate::format::catalogue::CloneOrigin;
use crate::format::extent::{HEADER_BYTES, Header, Kind, PageKey, TABLE_PAGES};
use crate::format::{Epoch, ExtentAddress, KeyspaceId, PageId, extent};
use crate::io::AlignedBuffer;

pub(super) fn append_payload(
    space: &Space,
    epoch: Epoch,
    kind: Kind,
    keyspace: KeyspaceId,
    index: usize,
    payload: &[u8],
) -> Result<ExtentAddress> {
    assert!(!payload.is_empty(), "an extent of nothing");
    let mut page = vec![0; HEADER_BYTES];
    page.extend_from_slice(payload);
    space.append(epoch, PageKey { keyspace, page: PageId(index as u32) }, kind, &page, None)
}

/// Reads and verifies an extent that is not a page. Returns its header and its decompressed contents.
pub(crate) fn read_extent(space: &Space, address: ExtentAddress) -> Result<(Header, Vec<u8>)> {
    let (start, length, offset) = space.cover(address);
    let mut buffer = AlignedBuffer::zeroed(length);
    space.read(&mut buffer, start).map_err(|error| Error::io("reading", space.path(), error))?;
    open_extent(space, address, &buffer[offset..offset + address.length() as usize])
}

/// Verifies an extent that has been read. Returns its header and its decompressed contents.
pub(crate) fn open_extent(space: &Space, address: ExtentAddress, bytes: &[u8]) -> Result<(Header, Vec<u8>)> {
    let reason = |reason| space.corrupted("an extent", address, reason);
    let header = space.verify(address, bytes).map_err(reason)?;
    let mut page = vec![0; header.raw_bytes.min(ExtentAddress::EXTENT_BYTES_MAX as usize)];
    extent::decode(bytes, &header, &mut page).map_err(reason)?;
    Ok((header, page))
}

/// Like [`open_extent`], but decompresses into the beginning of `page`, which must be long enough for the contents.
pub(crate) fn open_extent_into(space: &Space, address: ExtentAddress, bytes: &[u8], page: &mut [u8]) -> Result<Header> {
    let reason = |reason| space.corrupted("an extent", address, reason);
    let header = space.verify(address, bytes).map_err(reason)?;
    let page = page.get_mut(..header.raw_bytes).ok_or_else(|| reason(extent::ExtentError::Length))?;
    extent::decode(bytes, &header, page).map_err(reason)?;
    Ok(header)
}

pub(super) fn read_payload(
    space: &Space,
    kind: Kind,
    keyspace: KeyspaceId,
    index: usize,
    address: ExtentAddress,
) -> Result<Vec<u8>> {
    let extent = read_extent(space, address)?;
    payload_of(space, kind, |id| id == keyspace, PageId(index as u32), address, extent)
}

/// Returns the payload of an extent, which must have this kind and page, and an id of the keyspace.
fn payload_of(
    space: &Space,
    kind: Kind,
    is_stored_as: impl Fn(KeyspaceId) -> bool,
    number: PageId,
    address: ExtentAddress,
    (header, mut page): (Header, Vec<u8>),
) -> Result<Vec<u8>> {
    if header.kind != kind {
        return Err(space.corrupted("an extent", address, extent::ExtentError::Kind));
    }
    if header.page_key.page != number || !is_stored_as(header.page_key.keyspace) {
        return Err(space.corrupted("an extent", address, extent::ExtentError::PageKey(header.page_key)));
    }
    page.drain(..HEADER_BYTES);
    Ok(page)
}

/// Returns the entries stored in a chunk's extent, which must have an id of the keyspace.
pub(super) fn chunk_entries(
    space: &Space,
    is_stored_as: impl Fn(KeyspaceId) -> bool,
    chunk: usize,
    address: ExtentAddress,
    extent: (Header, Vec<u8>),
) -> Result<Vec<u64>> {
    assert!(chunk <= u32::MAX as usize / CHUNK_PAGES, "chunk {chunk} is of no pages");
    let payload = payload_of(space, Kind::Table, is_stored_as, PageId(chunk as u32), address, extent)?;
    let (entries, origins) = payload.split_at_checked(TABLE_PAGES * 8).unwrap_or_default();
    if entries.is_empty() || (chunk > 0 && !origins.is_empty()) || CloneOrigin::decode_all(origins).is_none() {
        return Err(space.corrupted("a page table", address, extent::ExtentError::Length));
    }
    Ok(numbers(entries))
}

pub(crate) fn numbers(payload: &[u8]) -> Vec<u64> {
    assert!(payload.len().is_multiple_of(8), "a table of {} bytes ends within a number", payload.len());
    payload.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes"))).collect()
}
