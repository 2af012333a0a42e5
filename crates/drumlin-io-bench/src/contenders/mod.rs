//! The contenders: drumlin-io, the libraries that compete with it (its peers), and plain code without such a library.

#[cfg(feature = "peers")]
mod compio;
mod drumlin;
#[cfg(feature = "peers")]
mod glommio;
#[cfg(feature = "peers")]
mod monoio;
mod raw;
mod tasks;
mod tokio;
#[cfg(feature = "peers")]
mod tokio_uring;

use std::io;
use std::sync::Arc;

use crate::work::{Measured, Row, Work};

/// The contender that is compared with the best of the peers.
pub(crate) const DRUMLIN: &str = "drumlin-io";

/// One column of the table.
#[derive(Clone, Copy)]
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    /// `true` for the interfaces of other libraries, with which drumlin-io is compared.
    pub(crate) is_peer: bool,
    has: fn(Row) -> bool,
    pub(crate) run: fn(&Arc<Work>) -> io::Result<Measured>,
}

impl Contender {
    pub(crate) fn has(self, row: Row) -> bool {
        (self.has)(row)
    }
}

/// Returns the contenders of this build, in the order of the columns.
pub(crate) fn contenders() -> Vec<Contender> {
    let column = |name, is_peer, run| Contender { name, is_peer, has: |_| true, run };
    let all = [
        column(DRUMLIN, false, drumlin::block_on),
        column("drumlin-io (one thread)", false, drumlin::one_thread),
        Contender { has: |row| !row.is_sequential(), ..column("drumlin-io (registered)", false, drumlin::registered) },
        Contender { has: |row| row == Row::Write, ..column("drumlin-io (stream)", false, drumlin::write_stream) },
        column("drumlin-io in tokio", false, drumlin::in_tokio),
        #[cfg(feature = "peers")]
        column("compio", true, compio::run),
        #[cfg(feature = "peers")]
        column("glommio", true, glommio::run),
        #[cfg(feature = "peers")]
        column("monoio", true, monoio::run),
        #[cfg(feature = "peers")]
        column("tokio-uring", true, tokio_uring::run),
        column("tokio::fs", true, tokio::buffered),
        column("tokio, pread", true, tokio::direct),
        column("threads, pread", false, raw::threads),
        column("bare queue", false, raw::queue),
    ];
    all.into()
}
