//! Catalogues: byte strings of any length, stored in parts of which each names the previous one.

use super::Space;
use super::extents::{append_payload, read_payload};
use crate::error::{Error, Result};
use crate::format::catalogue::PART_BYTES;
use crate::format::extent::Kind;
use crate::format::{Epoch, ExtentAddress, ExtentRef, KeyspaceId};

/// Appends a catalogue. Returns the addresses of its parts, and a reference to the last one.
pub(super) fn append_parts(
    space: &Space,
    epoch: Epoch,
    kind: Kind,
    bytes: &[u8],
) -> Result<(Vec<ExtentAddress>, ExtentRef)> {
    assert!(!bytes.is_empty(), "a catalogue is never empty");
    assert!(matches!(kind, Kind::Catalogue | Kind::Kept), "a catalogue of kind {kind:?}");
    let mut parts = Vec::with_capacity(bytes.len().div_ceil(PART_BYTES));
    let mut last = ExtentRef::NONE;
    for (index, part) in bytes.chunks(PART_BYTES).enumerate() {
        let payload = [&last.to_bytes()[..], part].concat();
        let address = append_payload(space, epoch, kind, KeyspaceId(0), index, &payload)?;
        parts.push(address);
        last = space.segments.name(address);
    }
    Ok((parts, last))
}

/// Reads a catalogue of this length, from its last part to its first. Calls `before` with each part before reading it.
/// Allocates memory only for parts that exist. Returns the addresses of the parts, and the catalogue.
pub(super) fn read_parts(
    space: &Space,
    kind: Kind,
    last: ExtentRef,
    catalogue_bytes: u64,
    what: &str,
    mut before: impl FnMut(ExtentRef) -> Result<()>,
) -> Result<(Vec<ExtentAddress>, Vec<u8>)> {
    let malformed = || Error::corrupted(space.path(), what, "it is malformed");
    let part_count = u32::try_from(catalogue_bytes.div_ceil(PART_BYTES as u64)).map_err(|_| malformed())?;
    let (mut addresses, mut parts) = (Vec::new(), Vec::new());
    let mut next = last;
    let mut rest_bytes = catalogue_bytes;
    for index in (0..part_count).rev() {
        if next == ExtentRef::NONE {
            return Err(malformed());
        }
        before(next)?;
        let payload = read_payload(space, kind, KeyspaceId(0), index as usize, next.address)?;
        let expected_bytes = rest_bytes - u64::from(index) * PART_BYTES as u64;
        if payload.len() as u64 != ExtentRef::BYTES as u64 + expected_bytes {
            return Err(malformed());
        }
        addresses.push(next.address);
        next = ExtentRef::from_bytes(&payload[..ExtentRef::BYTES]).ok_or_else(malformed)?;
        parts.push(payload);
        rest_bytes -= expected_bytes;
    }
    if next != ExtentRef::NONE {
        return Err(malformed());
    }
    debug_assert!(rest_bytes == 0, "{rest_bytes} bytes of a catalogue are in no part");
    addresses.reverse();
    Ok((addresses, parts.iter().rev().flat_map(|part| &part[ExtentRef::BYTES..]).copied().collect()))
}
