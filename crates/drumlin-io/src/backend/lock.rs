//! Locks of files and folders, and lock tables for backends without an operating system.

/// The kind of a file's lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lock {
    /// Held by one handle while no other handle has a lock.
    Exclusive,
    /// Held by any number of handles while no handle has the exclusive lock.
    Shared,
}

/// The locks on one file, over all its handles.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Locks {
    has_exclusive: bool,
    shared_count: u32,
}

impl Locks {
    /// Takes a lock, replacing any lock that the handle holds. Returns `false` if a different handle's lock conflicts.
    /// The handle then keeps its old lock.
    pub(crate) fn try_take(&mut self, held: &mut Option<Lock>, wanted: Lock) -> bool {
        let mut others = *self;
        let mut own = *held;
        others.release(&mut own);
        let is_free = !others.has_exclusive && (wanted == Lock::Shared || others.shared_count == 0);
        if is_free {
            *self = others;
            match wanted {
                Lock::Exclusive => self.has_exclusive = true,
                Lock::Shared => self.shared_count += 1,
            }
            *held = Some(wanted);
        }
        is_free
    }

    /// Releases the lock that the handle holds, if any.
    pub(crate) fn release(&mut self, held: &mut Option<Lock>) {
        match held.take() {
            Some(Lock::Exclusive) => self.has_exclusive = false,
            Some(Lock::Shared) => self.shared_count -= 1,
            None => {}
        }
    }
}
