//! The kernel's request counters of a block device, used mainly to count cache flushes.

use std::fs;

use serde::{Deserialize, Serialize};

/// Request counts of a whole disk, because the kernel counts no flushes for partitions. They include requests of other
/// programs, unless the disk is a loop device that the lab attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BlockCounts {
    pub(crate) writes: u64,
    pub(crate) write_bytes: u64,
    /// Flushes that reached the device. The kernel merges flushes that are waiting at the same time into one.
    pub(crate) flushes: u64,
}

impl BlockCounts {
    /// Returns the counts since the disk with this kernel name (`vda`, `loop0`) was attached. Returns `None` if there
    /// is no such disk, or if the kernel is older than Linux 5.5 and counts no flushes.
    pub(crate) fn of(name: &str) -> Option<BlockCounts> {
        parse(&fs::read_to_string(format!("/sys/block/{name}/stat")).ok()?)
    }

    /// Returns the number of requests since an earlier reading.
    pub(crate) fn since(self, earlier: BlockCounts) -> BlockCounts {
        BlockCounts {
            writes: self.writes.saturating_sub(earlier.writes),
            write_bytes: self.write_bytes.saturating_sub(earlier.write_bytes),
            flushes: self.flushes.saturating_sub(earlier.flushes),
        }
    }
}

/// Parses the 17 fields of a `stat` file. The file counts in sectors of 512 bytes, whatever the disk's block size.
fn parse(text: &str) -> Option<BlockCounts> {
    let fields: Vec<u64> = text.split_ascii_whitespace().map_while(|word| word.parse().ok()).collect();
    Some(BlockCounts { writes: *fields.get(4)?, write_bytes: fields.get(6)? * 512, flushes: *fields.get(15)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parser reads the fields that the kernel documents. If the kernel counts no flushes, it returns `None`.
    #[test]
    fn the_kernels_fields_are_read() {
        let text = "110 1 4314 12 34 92 33848 85 0 92 137 2 0 1048584 0 16 39\n";
        let counts = parse(text).unwrap();
        assert_eq!(counts, BlockCounts { writes: 34, write_bytes: 33_848 * 512, flushes: 16 });
        let earlier = BlockCounts { writes: 30, write_bytes: 0, flushes: 6 };
        assert_eq!((counts.since(earlier).writes, counts.since(earlier).flushes), (4, 10));
        assert_eq!(parse("110 1 4314 12 34 92 33848 85 0 92 137 2 0 1048584 0"), None);
        assert_eq!(BlockCounts::of("no such disk"), None);
    }
}
