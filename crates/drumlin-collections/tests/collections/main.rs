//! Tests of collections through the public API.

mod building;
mod bulk_load;
mod changes;
mod documents;
mod dropped;
mod examples;
mod expiry;
mod history;
mod kill;
mod many;
mod notes;
mod scans;
mod schema;
mod turns;
mod types;
mod unique;
mod views;
