//! Values that only their exclusive owner can access.

use std::sync::{Mutex, PoisonError};

/// A value that is only accessible through `&mut`, and is therefore `Sync` whatever its type, such as a future that is
/// not. The mutex is never locked; it expresses in safe code that `&Exclusive` gives no access.
pub(crate) struct Exclusive<T>(Mutex<T>);

impl<T> Exclusive<T> {
    pub(crate) fn new(value: T) -> Exclusive<T> {
        Exclusive(Mutex::new(value))
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}
