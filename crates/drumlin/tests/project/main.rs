//! Tests of the project's rules for its sources and documents.

mod architecture;
mod documents;
mod glossary;
mod limits;
mod public_api;
mod public_docs;
#[path = "../support/mod.rs"]
mod support;
mod tuning;
