//! Output for people. Figures go to stdout, progress to stderr; colours only reach a terminal, and none if `NO_COLOR`
//! is set.

pub(crate) mod figures;
pub(crate) mod log;
mod output;
mod progress;

pub(crate) use output::{Common, Output, style};
pub(crate) use progress::Progress;
