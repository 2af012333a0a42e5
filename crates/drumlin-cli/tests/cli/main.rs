//! Tests of the command as users see it: one topic per file, and at least one process per test.

mod backups;
mod changes;
mod count;
mod du;
mod exit_codes;
mod extract;
mod in_use;
mod index;
mod interrupted;
mod json_output;
mod lab;
mod large_values;
mod logs;
mod malformed_input;
mod pipes;
mod prepared;
mod read_only;
mod repair;
mod round_trips;
mod rows;
mod shell;
mod support;
mod tour;
