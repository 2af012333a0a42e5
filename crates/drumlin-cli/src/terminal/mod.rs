//! Output for people. Figures go to stdout, and progress goes to stderr. Colours are used only on a terminal, and not
//! at all if `NO_COLOR` is set.

pub(crate) mod figures;
pub(crate) mod log;
mod output;
mod progress;

pub(crate) use output::{Common, Output, style};
pub(crate) use progress::Progress;
