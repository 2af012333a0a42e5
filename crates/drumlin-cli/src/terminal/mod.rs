//! Output for people. Figures go to stdout, progress goes to stderr. Colours are used only on a terminal, and not if
//! `NO_COLOR` is set.

pub(crate) mod figures;
pub(crate) mod log;
mod output;
mod progress;

pub(crate) use output::{Common, Output, style};
pub(crate) use progress::Progress;
