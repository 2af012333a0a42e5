//! Many logs by index in one folder, durable by one sync: the log under a consensus protocol, a queue, or a database.
//!
//! A folder holds any number of logs. Each is a sequence of entries with ascending indexes, and has a few small named
//! values. Entries are appended at the end, cut off from the end ([`Log::truncate_after`]) and forgotten from the
//! beginning ([`Log::purge_to`]). Appends of all logs go to one stream of segment files, and callers that meet share
//! one write and one sync. There are no timers: who finds the stream idle writes.
//!
//! ```
//! use drumlin::logs::{Logs, LogsOptions};
//!
//! # let folder = std::env::temp_dir().join(format!("drumlin-doc-logs-{}", std::process::id()));
//! let logs = Logs::open(&folder, &LogsOptions::new().memory(64 << 20))?; // created, or recovered
//! let log = logs.log(7);
//! let receipt = log.append(101, &["a", "b", "c"])?; // readable when this returns
//! receipt.wait()?; // durable
//! assert_eq!(log.get(102)?, "b");
//! log.truncate_after(102)?;
//! log.set("vote", "node 3")?.wait()?;
//! let entries: Vec<_> = log.range(101..)?.collect::<Result<_, _>>()?;
//! assert_eq!(entries.len(), 2);
//! # logs.close()?;
//! # std::fs::remove_dir_all(folder).unwrap();
//! # Ok::<(), drumlin::Error>(())
//! ```
//!
//! # Durability
//!
//! Every change returns a [`Receipt`], which is answered once the change is durable. The changes of a folder become
//! durable in the order in which they were made: a cut before the entries that are appended after it, a vote before or
//! after an entry as it was set. After a crash, there is everything that was acknowledged, and possibly more of what
//! was not, in this order and without gaps. A [`Batch`] is there as a whole or not at all.
//!
//! If a write or a sync fails, every receipt that was not answered gets the error, nothing is tried again, and nothing
//! is acknowledged until the folder is opened again. Entries can still be read.
//!
//! # Space and memory
//!
//! Space is given back in the background: the segment files take less than twice the live bytes and four segments, also
//! if one log is never purged. [`Logs::stats`] names the logs that hold most. On a full disk, appends fail with
//! [`Error::DiskFull`](crate::Error::DiskFull), while purging, cutting and values go on in a reserve.
//!
//! [`LogsOptions::memory`] is the budget for the index, the newest entries and all buffers. An entry that is not in
//! memory takes one read, or two if it is an older one of very many, and each is verified when it is read.

mod batch;
mod cache;
mod callbacks;
mod handle;
mod head;
mod index;
mod listed;
mod lists;
mod live;
mod maintenance;
mod moving;
mod opening;
mod options;
mod place;
mod range;
mod receipt;
mod shared;
mod space;
mod state;
mod stats;
#[cfg(feature = "fuzzing")]
pub(crate) use index::fuzz::{index as fuzz_index, sample as fuzz_index_sample};

#[cfg(test)]
mod tests;

pub use batch::Batch;
pub use handle::{Log, Logs};
pub use options::LogsOptions;
pub use range::{Entry, Range};
pub use receipt::Receipt;
pub use stats::{LogSize, LogsStats};
