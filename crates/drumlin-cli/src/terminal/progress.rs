//! Progress on stderr. It is not shown if stderr is not a terminal, or with `--quiet`.

use std::time::Duration;

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressState, ProgressStyle};

use super::Output;
use super::figures;

/// A line on stderr that shows the progress of a command.
#[derive(Clone, Debug)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// Counts bytes towards a total.
    pub(crate) fn bytes(output: Output, what: &'static str, total: u64) -> Progress {
        Progress::new(output, what, Some(total), "{msg:12} {bar:28.cyan/dim} {done} of {whole}  {speed}/s  {eta}")
    }

    /// Counts items towards a total.
    pub(crate) fn items(output: Output, what: &'static str, total: u64) -> Progress {
        Progress::new(output, what, Some(total), "{msg:13} {bar:28.cyan/dim} {human_pos} of {human_len}  {eta}")
    }

    /// Counts elapsed milliseconds towards the planned time. [`say`](Progress::say) shows the current step.
    pub(crate) fn work(output: Output, planned_ms: u64) -> Progress {
        Progress::new(
            output,
            "",
            Some(planned_ms),
            "{bar:20.cyan/dim} {percent:>3} %  {prefix:>4} left  {wide_msg:.dim}",
        )
    }

    /// Counts items whose total is unknown.
    pub(crate) fn counter(output: Output, what: &'static str) -> Progress {
        Progress::new(output, what, None, "{spinner:.cyan} {msg} {human_pos}")
    }

    /// Shows that the command is busy.
    pub(crate) fn spinner(output: Output, what: &'static str) -> Progress {
        Progress::new(output, what, None, "{spinner:.cyan} {msg}")
    }

    /// Shows remarks, but no progress.
    pub(crate) fn none() -> Progress {
        Progress(ProgressBar::hidden())
    }

    fn new(output: Output, what: &'static str, total: Option<u64>, template: &str) -> Progress {
        let target = if output.quiet() { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr_with_hz(10) };
        // Clear the progress line even if the command fails, before its error is printed.
        let bar = ProgressBar::with_draw_target(total, target).with_finish(ProgressFinish::AndClear);
        let style = ProgressStyle::with_template(template)
            .expect("a valid template")
            .progress_chars("━━─")
            .with_key("done", |state: &ProgressState, f: &mut dyn std::fmt::Write| write_bytes(f, state.pos()))
            .with_key("whole", |state: &ProgressState, f: &mut dyn std::fmt::Write| {
                write_bytes(f, state.len().unwrap_or(0));
            })
            .with_key("speed", |state: &ProgressState, f: &mut dyn std::fmt::Write| {
                write_bytes(f, state.per_sec() as u64);
            });
        bar.set_style(style);
        bar.set_message(what);
        bar.enable_steady_tick(Duration::from_millis(120));
        Progress(bar)
    }

    pub(crate) fn add(&self, amount: u64) {
        self.0.inc(amount);
    }

    pub(crate) fn set(&self, amount: u64) {
        self.0.set_position(amount);
    }

    pub(crate) fn set_total(&self, total: u64) {
        self.0.set_length(total);
    }

    /// Shows the current step.
    pub(crate) fn say(&self, what: &str) {
        self.0.set_message(what.to_owned());
    }

    /// Shows the remaining time.
    pub(crate) fn say_left(&self, left: Duration) {
        self.0.set_prefix(format!("{:#}", HumanDuration(Duration::from_secs(left.as_secs()))));
    }

    /// Prints a line above the progress line.
    pub(crate) fn remark(&self, text: &str) {
        self.0.suspend(|| anstream::eprintln!("{text}"));
    }

    /// Clears the progress line.
    pub(crate) fn finish(&self) {
        self.0.finish_and_clear();
    }
}

fn write_bytes(f: &mut dyn std::fmt::Write, number: u64) {
    // If the formatter fails, there is no way to report the error.
    let _ = f.write_str(&figures::bytes(number));
}
