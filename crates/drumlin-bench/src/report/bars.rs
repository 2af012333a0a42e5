//! Bar charts of each engine's median, with the range of its turns.

use std::fmt::Write;

use drumlin_lab::Form;

use crate::results::Measured;

const WIDTH: f64 = 520.0;
const BAR_HEIGHT: f64 = 20.0;
const LABEL_WIDTH: f64 = 110.0;
const VALUE_WIDTH: f64 = 80.0;

/// Escapes text for HTML.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Draws a workload's rates or, if it measures openings, its times. Returns an empty string if no engine has finished a
/// turn.
pub(super) fn render(workload: &Measured) -> String {
    let is_opening = super::tables::is_opening(workload);
    let form = if is_opening { Form::Micros } else { Form::Rate };
    let value = |figures: &crate::workloads::Figures| {
        if is_opening { figures.latencies.mean_us } else { figures.rate }
    };
    let bars: Vec<(&str, f64, (f64, f64))> = workload
        .entries
        .iter()
        .filter(|entry| !entry.turns.is_empty())
        .map(|entry| (entry.engine.as_str(), entry.median(value), entry.range(value)))
        .collect();
    let most = bars.iter().map(|(_, _, (_, high))| *high).fold(0.0, f64::max);
    if bars.is_empty() || most <= 0.0 {
        return String::new();
    }
    let height = bars.len() as f64 * BAR_HEIGHT + 4.0;
    let across = |value: f64| LABEL_WIDTH + value / most * (WIDTH - LABEL_WIDTH - VALUE_WIDTH);
    let title = escape(&format!("{}: {}", workload.name, workload.title));
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\">");
    for (index, (name, median, (low, high))) in bars.iter().enumerate() {
        let top = index as f64 * BAR_HEIGHT;
        let class = if *name == "drumlin" { "bar own" } else { "bar" };
        write!(
            svg,
            "<text x=\"{}\" y=\"{:.1}\" class=\"end\">{}</text>\
             <rect class=\"{class}\" x=\"{LABEL_WIDTH}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{}\"/>\
             <path class=\"range\" d=\"M{:.1} {:.1}H{:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            LABEL_WIDTH - 6.0,
            top + 14.0,
            escape(name),
            top + 3.0,
            across(*median) - LABEL_WIDTH,
            BAR_HEIGHT - 6.0,
            across(*low),
            top + BAR_HEIGHT / 2.0,
            across(*high),
            across(*high) + 6.0,
            top + 14.0,
            escape(&form.show(*median))
        )
        .expect("a string takes any text");
    }
    let what = if is_opening { "time; less is better" } else { &workload.unit };
    let unit = if is_opening { what.to_owned() } else { format!("{what} a second") };
    format!(
        "<figure><figcaption>{title}<small>{unit}; median, and the range of the turns</small></figcaption>{svg}</svg></figure>"
    )
}
