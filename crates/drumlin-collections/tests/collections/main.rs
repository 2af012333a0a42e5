//! Collections as a program uses them.

mod building;
mod changes;
mod documents;
mod dropped;
mod examples;
mod expiry;
mod history;
mod kill;
mod notes;
mod scans;
mod schema;
mod types;
mod unique;
mod views;
