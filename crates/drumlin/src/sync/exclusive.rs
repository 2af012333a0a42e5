//! Values that one owner at a time reaches.

use std::sync::{Mutex, PoisonError};

/// A value reached through `&mut` alone, and so shared between threads, `Sync`, whatever it is: futures are seldom.
/// The mutex is never locked; it says in safe code that `&Exclusive` gives nothing away.
pub(crate) struct Exclusive<T>(Mutex<T>);

impl<T> Exclusive<T> {
    pub(crate) fn new(value: T) -> Exclusive<T> {
        Exclusive(Mutex::new(value))
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}
