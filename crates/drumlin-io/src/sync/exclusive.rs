//! Values that only their exclusive owner can access.

use std::fmt;
use std::sync::{Mutex, PoisonError};

/// A value that is only accessible through `&mut`. The wrapper is `Sync` even if the value is not, for instance a
/// future. The mutex is never locked; it expresses in safe code that `&Exclusive` gives no access.
pub struct Exclusive<T>(Mutex<T>);

impl<T> Exclusive<T> {
    /// Wraps a value.
    #[inline]
    pub fn new(value: T) -> Exclusive<T> {
        Exclusive(Mutex::new(value))
    }

    /// Returns the value.
    #[inline]
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> fmt::Debug for Exclusive<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Exclusive")
    }
}
