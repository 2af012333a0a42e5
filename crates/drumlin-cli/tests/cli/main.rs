//! The command as its users meet it: one topic a file, each test a process or more.

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
mod malformed_input;
mod pipes;
mod read_only;
mod round_trips;
mod rows;
mod shell;
mod support;
mod tour;
