//! The shops of the engines in the commerce benchmark, one per file.

mod drumlin;

#[cfg(feature = "sqlite")]
mod sqlite;

use std::path::Path;

use crate::commerce::Shop;
use crate::engine::{Result, Settings};

/// Opens a shop in an existing folder. Creates it if the folder is empty.
pub type Open = fn(&Path, &Settings) -> Result<Box<dyn Shop>>;

/// Returns the shops of this build, by the names of their engines.
#[must_use]
pub fn all() -> Vec<(&'static str, Open)> {
    vec![
        ("drumlin", drumlin::open),
        #[cfg(feature = "sqlite")]
        ("sqlite", sqlite::open),
    ]
}

/// Returns the shop of the engine with this name, if the engine has a shop.
#[must_use]
pub fn named(engine: &str) -> Option<Open> {
    all().into_iter().find(|(name, _)| *name == engine).map(|(_, open)| open)
}
