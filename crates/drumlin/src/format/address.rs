//! The address of an extent in the data file, in one 64-bit word.

use super::{SegmentUse, get_u64, put_u64};

/// A byte range of the data file: its start and its length, both in units of [`ExtentAddress::UNIT_BYTES`].
///
/// | bits | meaning |
/// | --- | --- |
/// | 0..40 | start / 64 (64 TiB) |
/// | 40..54 | length / 64 (up to 1 MiB) |
/// | 54..61 | stamp: seven bits of the segment's use |
/// | 61..64 | 0: left to the page table's tags |
///
/// Two addresses may refer to the same bytes in different uses of their segment. Their stamps usually differ. The full
/// use is in the table of segments and in the extent's header. Zero is never an address, because the superblocks are at
/// the start of the file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct ExtentAddress(u64);

/// Addresses are ordered by their start.
impl Ord for ExtentAddress {
    fn cmp(&self, other: &ExtentAddress) -> std::cmp::Ordering {
        self.start().cmp(&other.start()).then(self.0.cmp(&other.0))
    }
}

impl PartialOrd for ExtentAddress {
    fn partial_cmp(&self, other: &ExtentAddress) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl ExtentAddress {
    pub(crate) const NONE: ExtentAddress = ExtentAddress(0);
    /// Extents start at multiples of this. Rounding their length up to 64 bytes wastes 32 bytes on average, less than 1
    /// % of a 4 KiB page.
    pub(crate) const UNIT_BYTES: u64 = 64;
    pub(super) const START_BITS: u32 = 40;
    pub(super) const LENGTH_BITS: u32 = 14;
    pub(super) const STAMP_BITS: u32 = 7;
    /// The number of bits that an address uses.
    pub(crate) const BITS: u32 = ExtentAddress::START_BITS + ExtentAddress::LENGTH_BITS + ExtentAddress::STAMP_BITS;
    /// The end of the part of the file that addresses can reach: 64 TiB.
    pub(crate) const FILE_BYTES_MAX: u64 = (1 << ExtentAddress::START_BITS) * ExtentAddress::UNIT_BYTES;
    /// The length of the longest extent.
    pub(crate) const EXTENT_BYTES_MAX: u64 = ((1 << ExtentAddress::LENGTH_BITS) - 1) * ExtentAddress::UNIT_BYTES;

    /// Creates the address of `length` bytes starting at `start`. The length is rounded up to whole units.
    pub(crate) fn new(start: u64, length: u64, segment_use: SegmentUse) -> ExtentAddress {
        assert!(start.is_multiple_of(ExtentAddress::UNIT_BYTES), "extent starts between units: {start}");
        let units = length.div_ceil(ExtentAddress::UNIT_BYTES);
        assert!(units > 0 && units < 1 << ExtentAddress::LENGTH_BITS, "extent length out of range: {length}");
        let start_units = start / ExtentAddress::UNIT_BYTES;
        assert!(start_units > 0 && start_units < 1 << ExtentAddress::START_BITS, "extent start out of range: {start}");
        let stamp = ExtentAddress::stamp_of(segment_use) << (ExtentAddress::START_BITS + ExtentAddress::LENGTH_BITS);
        ExtentAddress(start_units | (units << ExtentAddress::START_BITS) | stamp)
    }

    /// Returns the stamp of a use. Successive uses have different stamps, and so do the first uses of successive
    /// openings.
    fn stamp_of(segment_use: SegmentUse) -> u64 {
        let opening = segment_use.0 >> SegmentUse::COUNT_BITS;
        segment_use.0.wrapping_add(opening.wrapping_mul(37)) & ((1 << ExtentAddress::STAMP_BITS) - 1)
    }

    /// Returns `true` if the stamp allows the address to have been assigned in this use of its segment.
    pub(crate) fn is_of(self, segment_use: SegmentUse) -> bool {
        self.0 >> (ExtentAddress::START_BITS + ExtentAddress::LENGTH_BITS) == ExtentAddress::stamp_of(segment_use)
    }

    /// Returns the address in its stored form.
    pub(crate) fn to_bits(self) -> u64 {
        self.0
    }

    /// Returns the address with this stored form, or `None` if the address is not valid.
    pub(crate) fn from_bits(bits: u64) -> Option<ExtentAddress> {
        let address = ExtentAddress(bits);
        let well_formed = bits >> ExtentAddress::BITS == 0 && address.start() > 0 && address.length() > 0;
        well_formed.then_some(address)
    }

    pub(crate) fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Returns the extent's offset in the data file, in bytes.
    pub(crate) fn start(self) -> u64 {
        (self.0 & ((1 << ExtentAddress::START_BITS) - 1)) * ExtentAddress::UNIT_BYTES
    }

    /// Returns the extent's length in bytes, a multiple of [`ExtentAddress::UNIT_BYTES`].
    pub(crate) fn length(self) -> u64 {
        ((self.0 >> ExtentAddress::START_BITS) & ((1 << ExtentAddress::LENGTH_BITS) - 1)) * ExtentAddress::UNIT_BYTES
    }
}

impl std::fmt::Debug for ExtentAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_none() { write!(f, "nowhere") } else { write!(f, "{}+{}", self.start(), self.length()) }
    }
}

/// A reference to an extent that can be verified without the table of segments, because it includes the segment's use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ExtentRef {
    pub(crate) address: ExtentAddress,
    pub(crate) segment_use: SegmentUse,
}

impl ExtentRef {
    pub(crate) const NONE: ExtentRef = ExtentRef { address: ExtentAddress::NONE, segment_use: SegmentUse(0) };
    pub(crate) const BYTES: usize = 16;

    pub(crate) fn to_bytes(self) -> [u8; ExtentRef::BYTES] {
        let mut bytes = [0; ExtentRef::BYTES];
        put_u64(&mut bytes, 0, self.address.to_bits());
        put_u64(&mut bytes, 8, self.segment_use.0);
        bytes
    }

    /// Decodes a reference. Returns `None` if the bytes are malformed.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<ExtentRef> {
        assert!(bytes.len() == ExtentRef::BYTES);
        let (address, segment_use) = (get_u64(bytes, 0), SegmentUse(get_u64(bytes, 8)));
        if (address, segment_use) == (0, SegmentUse(0)) {
            return Some(ExtentRef::NONE);
        }
        ExtentAddress::from_bits(address)
            .filter(|address| address.is_of(segment_use))
            .map(|address| ExtentRef { address, segment_use })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Incarnation;

    /// An address survives encoding, at both ends of its range.
    #[test]
    fn an_address_survives_its_bits() {
        for (start, length) in [(64, 1), (4096, 64), ((1 << 46) - 64, ExtentAddress::EXTENT_BYTES_MAX)] {
            let address = ExtentAddress::new(start, length, SegmentUse(u64::MAX));
            assert_eq!(address.start(), start);
            assert_eq!(address.length(), length.next_multiple_of(64));
            assert_eq!(ExtentAddress::from_bits(address.to_bits()), Some(address));
        }
        assert_eq!(ExtentAddress::from_bits(0), None);
        assert_eq!(ExtentAddress::from_bits(1 << 61), None);
    }

    /// Addresses are ordered by their offset in the file, regardless of length and use.
    #[test]
    fn addresses_sort_by_where_they_start() {
        let (near, far) = (ExtentAddress::new(64, 4096, SegmentUse(9)), ExtentAddress::new(128, 64, SegmentUse(1)));
        assert!(near < far);
    }

    /// The stamp distinguishes a use from its predecessor, and from the use with the same counter in the previous
    /// opening.
    #[test]
    fn stamps_of_neighbouring_uses_differ() {
        let segment_use = SegmentUse(SegmentUse::first_of(Incarnation(5)).0 + 9);
        let address = ExtentAddress::new(64, 64, segment_use);
        assert!(address.is_of(segment_use));
        assert!(!address.is_of(SegmentUse(segment_use.0 - 1)));
        assert!(!address.is_of(SegmentUse(segment_use.0 - (1 << SegmentUse::COUNT_BITS))));
    }

    /// A reference survives encoding. A stamp that does not match the use is refused.
    #[test]
    fn a_named_extent_survives_its_bytes() {
        let address = ExtentAddress::new(4096, 64, SegmentUse(300));
        let named = ExtentRef { address, segment_use: SegmentUse(300) };
        for named in [named, ExtentRef::NONE] {
            assert_eq!(ExtentRef::from_bytes(&named.to_bytes()), Some(named));
        }
        assert_eq!(ExtentRef::from_bytes(&ExtentRef { segment_use: SegmentUse(301), ..named }.to_bytes()), None);
    }
}
