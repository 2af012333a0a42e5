//! Rules of the project that its sources and documents keep.

mod architecture;
mod documents;
mod face;
mod glossary;
mod limits;
mod public_docs;
#[path = "../support/mod.rs"]
mod support;
