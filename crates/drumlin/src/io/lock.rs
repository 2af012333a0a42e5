//! Locks of files and folders, and their keeping for backends without an operating system.

/// The kinds of a file's lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lock {
    /// Of one handle, while no other has a lock.
    Exclusive,
    /// Of any number of handles, while none has the exclusive lock.
    Shared,
}

/// The locks that the handles of one file hold.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Locks {
    has_exclusive: bool,
    shared_count: u32,
}

impl Locks {
    /// Takes a lock in place of the one that the handle holds; `false`, and the handle keeps it, where other handles
    /// are in the way.
    pub(super) fn try_take(&mut self, held: &mut Option<Lock>, wanted: Lock) -> bool {
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

    /// Gives up the lock that the handle holds.
    pub(super) fn release(&mut self, held: &mut Option<Lock>) {
        match held.take() {
            Some(Lock::Exclusive) => self.has_exclusive = false,
            Some(Lock::Shared) => self.shared_count -= 1,
            None => {}
        }
    }
}
