//! Tests the storage of a node, on real files and on disks that lose what was not synced.

#[cfg(feature = "openraft-0-10")]
mod cluster;
mod durability;
mod machine;
mod node;
mod snapshots;
#[cfg(feature = "openraft-0-10")]
mod suite_0_10;
#[cfg(feature = "openraft-0-9")]
mod suite_0_9;
mod support;
#[cfg(all(feature = "openraft-0-9", feature = "openraft-0-10"))]
mod upgrade;
