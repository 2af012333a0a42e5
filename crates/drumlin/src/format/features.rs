//! Feature bits: extensions of the format that not every version knows.
//!
//! The format version changes only if an older version could not even find out that it does not understand a database.
//! Everything else takes a feature bit of one of three classes, which says what a version that does not know it may do:
//!
//! - *must know*: not open the database at all;
//! - *must know to write*: open it for reading only;
//! - *may ignore*: anything. A version that writes to the database clears the bits of this class that it does not know,
//!   so that a newer version finds out that its additions may be outdated.

/// The feature bits of a database.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Features {
    pub(crate) to_read: u64,
    pub(crate) to_write: u64,
    pub(crate) ignorable: u64,
}

/// The features that this version knows. No bit is assigned yet.
const KNOWN: Features = Features { to_read: 0, to_write: 0, ignorable: 0 };

impl Features {
    /// Returns the bits that keep this version from opening a database with these features, for reading or for writing.
    pub(crate) fn unknown(self, to_write: bool) -> u64 {
        let unknown_to_read = self.to_read & !KNOWN.to_read;
        if to_write { unknown_to_read | self.to_write & !KNOWN.to_write } else { unknown_to_read }
    }

    /// Returns the features of a database to which this version writes.
    pub(crate) fn when_written(self) -> Features {
        debug_assert!(self.unknown(true) == 0, "a database is written that this version does not understand");
        Features { ignorable: self.ignorable & KNOWN.ignorable, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bits of each class keep from what they should, and no more.
    #[test]
    fn unknown_bits_restrict_access() {
        let none = Features::default();
        assert_eq!((none.unknown(false), none.unknown(true)), (0, 0));
        let to_read = Features { to_read: 4, ..none };
        assert_eq!((to_read.unknown(false), to_read.unknown(true)), (4, 4));
        let to_write = Features { to_write: 8, ..none };
        assert_eq!((to_write.unknown(false), to_write.unknown(true)), (0, 8));
        let ignorable = Features { ignorable: 16, ..none };
        assert_eq!((ignorable.unknown(true), ignorable.when_written()), (0, none));
    }
}
