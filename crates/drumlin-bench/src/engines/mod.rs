//! The engines of this build, one per file.

pub(crate) mod drumlin;

#[cfg(feature = "bf-tree")]
mod bf_tree;
#[cfg(feature = "fjall")]
mod fjall;
#[cfg(feature = "lmdb")]
mod lmdb;
#[cfg(feature = "nebari")]
mod nebari;
#[cfg(feature = "redb")]
mod redb;
#[cfg(feature = "rocksdb")]
mod rocksdb;
#[cfg(feature = "sled")]
mod sled;
#[cfg(feature = "sqlite")]
mod sqlite;

use crate::engine::Peer;

/// Returns all engines of this build, Drumlin first.
#[must_use]
pub fn all() -> Vec<Peer> {
    vec![
        drumlin::PEER,
        #[cfg(feature = "lmdb")]
        lmdb::PEER,
        #[cfg(feature = "rocksdb")]
        rocksdb::PEER,
        #[cfg(feature = "sqlite")]
        sqlite::PEER,
        #[cfg(feature = "redb")]
        redb::PEER,
        #[cfg(feature = "fjall")]
        fjall::PEER,
        #[cfg(feature = "sled")]
        sled::PEER,
        #[cfg(feature = "bf-tree")]
        bf_tree::PEER,
        #[cfg(feature = "sqlite")]
        sqlite::ROLLBACK_PEER,
        #[cfg(feature = "nebari")]
        nebari::PEER,
    ]
}

/// Returns the engines that run only if the command line names them: Drumlin with different settings.
#[must_use]
pub fn variants() -> Vec<Peer> {
    vec![drumlin::PEER_OF_8_KIB, drumlin::PEER_OF_16_KIB]
}

/// Returns the engine or variant with this name.
#[must_use]
pub fn named(name: &str) -> Option<Peer> {
    all()
        .into_iter()
        .chain(crate::logs::peers())
        .chain(crate::raft::peers())
        .chain(variants())
        .find(|peer| peer.name == name)
}

#[cfg(test)]
mod tests {
    use super::{all, variants};

    /// The reported versions match the manifest, and no two engines have the same name.
    #[test]
    fn versions_are_those_of_the_manifest() {
        let manifest = include_str!("../../Cargo.toml");
        let mut names = Vec::new();
        for peer in all().into_iter().chain(variants()).chain(crate::logs::peers()).chain(crate::raft::peers()) {
            assert!(!names.contains(&peer.name), "{} twice", peer.name);
            names.push(peer.name);
            let pinned = manifest.contains(&format!("\"={}\"", peer.version));
            assert!(peer.name.starts_with("drumlin") || pinned, "{} {}", peer.name, peer.version);
        }
        assert_eq!(names[0], "drumlin");
    }
}
