//! Draws plots as SVG: a few lines over two axes, in the page's own colours.
//!
//! A plot is 420 units wide, about the width of a phone. So its text has the size of the page's text, both on a phone
//! and next to a second plot on a desktop.

use std::fmt::Write;

use super::{Axis, Line, Plot, Scale};
use crate::figures::{Form, unbroken};

/// Escapes text for HTML or SVG, and keeps numbers and their units on one line.
pub(super) fn escape(text: &str) -> String {
    unbroken(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 40.0;

/// The number of colours. It is also the number of patterns, each with a mark. Up to 36 lines have different
/// combinations of colour and pattern.
const STYLES: usize = 6;

/// An axis over a range of values.
struct Ruler {
    scale: Scale,
    low: f64,
    high: f64,
}

impl Ruler {
    fn over(axis: &Axis, values: impl Iterator<Item = f64>) -> Ruler {
        let scale = axis.scale;
        let usable = values.filter(|value| value.is_finite() && (scale != Scale::Logarithmic || *value > 0.0));
        let (mut low, mut high) =
            usable.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
        if low > high {
            (low, high) = (1.0, 10.0);
        }
        match scale {
            Scale::Linear => {
                low = 0.0;
                high = if high > 0.0 { nice_above(high) } else { 1.0 };
            }
            Scale::Logarithmic => {
                if low == high {
                    (low, high) = (low / 2.0, high * 2.0);
                }
            }
            Scale::Tail => (low, high) = (0.5, 0.99999),
        }
        Ruler { scale, low, high }
    }

    /// Returns `false` if a value lies before the start of the axis, as the fast half of a distribution does.
    fn reaches(&self, value: f64) -> bool {
        value >= self.low * 0.999
    }

    /// Returns the position of a value on the axis, from 0 to 1.
    fn at(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Logarithmic => (value.max(f64::MIN_POSITIVE) / self.low).ln() / (self.high / self.low).ln(),
            Scale::Tail => {
                let nines = |quantile: f64| -(1.0 - quantile.min(self.high)).log10();
                (nines(value) - nines(self.low)) / (nines(self.high) - nines(self.low))
            }
        };
        share.clamp(0.0, 1.0)
    }

    fn ticks(&self) -> Vec<f64> {
        match self.scale {
            Scale::Linear => (0..=4).map(|step| self.high * f64::from(step) / 4.0).collect(),
            Scale::Tail => vec![0.5, 0.9, 0.99, 0.999, 0.9999],
            Scale::Logarithmic => {
                let decades = (self.high / self.low).log10();
                let steps: &[f64] = if decades > 3.0 {
                    &[1.0]
                } else if decades > 1.2 {
                    &[1.0, 3.0]
                } else {
                    &[1.0, 2.0, 5.0]
                };
                let first = self.low.log10().floor() as i32;
                let last = self.high.log10().ceil() as i32;
                let all = (first..=last).flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)));
                all.filter(|tick| (self.low * 0.999..=self.high * 1.001).contains(tick)).collect()
            }
        }
    }

    fn label(&self, axis: &Axis, tick: f64) -> String {
        match self.scale {
            Scale::Tail => format!("{}%", ((tick * 1e6).round() / 1e4)),
            _ if tick == 0.0 => "0".to_owned(),
            // Labels with two units would not fit next to the axis.
            _ if axis.form == Form::Seconds && tick >= 100.0 => format!("{} s", Form::Count.show(tick)),
            _ => without_last_zeros(&axis.form.show(tick)),
        }
    }
}

/// Returns the value at which to cut off a linear horizontal axis, or `None` if all lines fit. Without a cut, a line
/// more than 1.5 times as long as two thirds of the lines would squeeze them into a corner.
fn cut(plot: &Plot) -> Option<f64> {
    let mut ends: Vec<f64> =
        plot.lines.iter().map(|line| line.points.iter().map(|point| point.0).fold(0.0, f64::max)).collect();
    ends.sort_by(f64::total_cmp);
    let (most, last) = (*ends.get((ends.len() * 2).div_ceil(3).checked_sub(1)?)?, *ends.last()?);
    (plot.x.scale == Scale::Linear && most > 0.0 && last > most * 1.5).then_some(most * 1.1)
}

/// Returns the part of a line up to the end of the axis. Its last point is interpolated.
fn up_to(points: &[(f64, f64)], end: f64) -> Vec<(f64, f64)> {
    let inside = points.iter().take_while(|point| point.0 <= end).count();
    let mut kept = points[..inside].to_vec();
    if let (Some(&(x, y)), Some(&(next_x, next_y))) = (kept.last(), points.get(inside)) {
        kept.push((end, y + (next_y - y) * (end - x) / (next_x - x)));
    }
    kept
}

/// Rounds up to the next of the steps below, times a power of ten. The steps are such that a quarter of each has few
/// digits. A value that exceeds a step by less than a hundredth, like the end of the last sample of four seconds, is
/// drawn at the edge.
fn nice_above(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let steps = [1.0, 1.2, 1.6, 2.0, 2.4, 3.2, 4.0, 4.8, 6.0, 8.0, 10.0];
    steps.into_iter().map(|step| step * power).find(|step| *step >= value * 0.99).unwrap_or(value)
}

/// Removes trailing zeros: `3.20 GB/s` becomes `3.2 GB/s`. Three digits and a unit of four letters are too wide for the
/// margin.
fn without_last_zeros(shown: &str) -> String {
    match shown.split_once(' ') {
        Some((number, unit)) if number.contains('.') => {
            format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => shown.to_owned(),
    }
}

/// The area of a plot: its two axes, and the mapping from values to positions.
struct Area<'p> {
    plot: &'p Plot,
    /// The drawn points of each line.
    lines: Vec<Vec<(f64, f64)>>,
    x: Ruler,
    y: Ruler,
}

impl Area<'_> {
    fn of(plot: &Plot) -> Area<'_> {
        let end = cut(plot).map_or(f64::INFINITY, nice_above);
        let lines: Vec<Vec<(f64, f64)>> = plot.lines.iter().map(|line| up_to(&line.points, end)).collect();
        let all = || lines.iter().flatten();
        let x = Ruler::over(&plot.x, all().map(|point| point.0));
        // The plot does not show the fast half of a distribution, so the axis does not have to include it.
        let drawn = all().filter(|point| x.reaches(point.0));
        let y = Ruler::over(&plot.y, drawn.map(|point| point.1));
        Area { plot, x, y, lines }
    }

    /// Returns the end of a line that exceeds the axis, or `None` if the line fits.
    fn beyond(&self, index: usize) -> Option<f64> {
        let ends =
            [&self.plot.lines[index].points, &self.lines[index]].map(|points| points.last().map(|point| point.0));
        ends[0].filter(|_| ends[1] < ends[0])
    }

    fn across(&self, value: f64) -> f64 {
        LEFT + self.x.at(value) * (WIDTH - LEFT - RIGHT)
    }

    fn up(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - self.y.at(value) * (HEIGHT - TOP - BOTTOM)
    }

    /// Draws the grid with its labels.
    fn draw_grid(&self, svg: &mut String) {
        let Area { plot, x, y, .. } = self;
        let mut draw = |text: std::fmt::Arguments<'_>| svg.write_fmt(text).expect("a string takes any text");
        for tick in y.ticks() {
            let at = self.up(tick);
            draw(format_args!("<path class=\"grid\" d=\"M{LEFT} {at:.1}H{}\"/>", WIDTH - RIGHT));
            draw(format_args!(
                "<text x=\"{}\" y=\"{:.1}\" class=\"end\">{}</text>",
                LEFT - 6.0,
                at + 3.5,
                escape(&y.label(&plot.y, tick))
            ));
        }
        let mut free = 0.0;
        for tick in x.ticks() {
            let at = self.across(tick);
            draw(format_args!("<path class=\"grid\" d=\"M{at:.1} {TOP}V{}\"/>", HEIGHT - BOTTOM));
            let label = x.label(&plot.x, tick);
            // Leave out a label that would touch the previous label.
            let half = label.chars().count() as f64 * 3.2;
            if at - half >= free {
                let inside = at.min(WIDTH - half - 1.0);
                draw(format_args!(
                    "<text x=\"{inside:.1}\" y=\"{}\" class=\"mid\">{}</text>",
                    HEIGHT - 24.0,
                    escape(&label)
                ));
                free = at + half + 6.0;
            }
        }
        draw(format_args!(
            "<text x=\"{:.1}\" y=\"{}\" class=\"mid axis\">{}</text>",
            f64::midpoint(LEFT, WIDTH - RIGHT),
            HEIGHT - 6.0,
            escape(plot.x.label)
        ));
    }

    /// Draws a line, with a mark at each point if it has few points, and with an arrow if it exceeds the axis.
    fn draw_line(&self, svg: &mut String, index: usize) {
        let (line, points) = (&self.plot.lines[index], &self.lines[index]);
        let style = style(index);
        let mut path = String::new();
        let mut marks = String::new();
        for &(right, height) in points {
            if !self.x.reaches(right) || !height.is_finite() {
                continue;
            }
            let (px, py) = (self.across(right), self.up(height));
            let step = if path.is_empty() { 'M' } else { 'L' };
            write!(path, "{step}{px:.1} {py:.1}").expect("a string takes any text");
            if line.points.len() <= MARKED_POINTS_MAX {
                write!(
                    marks,
                    "<path class=\"point\" d=\"{}\"><title>{}: {} at {}</title></path>",
                    mark(index, px, py),
                    escape(&line.name),
                    escape(&self.plot.y.form.show(height)),
                    escape(&self.x.label(&self.plot.x, right))
                )
                .expect("a string takes any text");
            }
        }
        if let (Some(_), Some(&(right, height))) = (self.beyond(index), points.last()) {
            let (px, py) = (self.across(right), self.up(height));
            write!(marks, "<path class=\"point\" d=\"M{px:.1} {py:.1}m2 -4l6 4l-6 4z\"/>")
                .expect("a string takes any text");
        }
        write!(svg, "<g class=\"{style}\"><path class=\"line\" d=\"{path}\"/>{marks}</g>")
            .expect("a string takes any text");
    }
}

/// Renders the plot with its title and legend.
pub(super) fn render(plot: &Plot) -> String {
    let area = Area::of(plot);
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
        escape(&format!("{}: {} by {}", plot.title, plot.y.label, plot.x.label))
    );
    area.draw_grid(&mut svg);
    for index in 0..plot.lines.len() {
        area.draw_line(&mut svg, index);
    }
    svg.push_str("</svg>");
    let drawn = [plot.y.label, plot.drawn].into_iter().filter(|words| !words.is_empty()).collect::<Vec<_>>().join("; ");
    format!(
        "<figure><figcaption>{}<small>{}</small></figcaption>{svg}<ul>{}</ul></figure>",
        escape(&plot.title),
        escape(&drawn),
        legend(&area)
    )
}

/// Returns the legend: each line's name with a sample of the line and, if the line exceeds the axis, its end.
fn legend(area: &Area<'_>) -> String {
    let plot = area.plot;
    let name = |(index, line): (usize, &Line)| {
        let style = style(index);
        let mark = match line.points.len() <= MARKED_POINTS_MAX {
            true => format!("<path class=\"point\" d=\"{}\"/>", mark(index, 17.0, 4.0)),
            false => String::new(),
        };
        let beyond = area.beyond(index).map_or(String::new(), |end| format!(" (to {})", area.x.label(&plot.x, end)));
        format!(
            "<li><svg class=\"key {style}\" viewBox=\"0 0 34 8\"><path class=\"line\" d=\"M1 4H33\"/>{mark}</svg>{}</li>",
            escape(&format!("{}{beyond}", line.name))
        )
    };
    plot.lines.iter().enumerate().map(name).collect()
}

/// The maximum number of points of a line whose points are marked.
const MARKED_POINTS_MAX: usize = 16;

/// Returns the outline of a line's mark centred at a point: a circle, square, triangle, diamond, inverted triangle or
/// cross.
fn mark(index: usize, x: f64, y: f64) -> String {
    let shape = match pattern(index) {
        0 => "m-2.6 0a2.6 2.6 0 1 0 5.2 0a2.6 2.6 0 1 0 -5.2 0z",
        1 => "m-2.4 -2.4h4.8v4.8h-4.8z",
        2 => "m0 -3.2l3.1 5.4h-6.2z",
        3 => "m0 -3.4l3.4 3.4l-3.4 3.4l-3.4 -3.4z",
        4 => "m0 3.2l3.1 -5.4h-6.2z",
        _ => "m-1 -3.2h2v2.2h2.2v2h-2.2v2.2h-2v-2.2h-2.2v-2h2.2z",
    };
    format!("M{x:.1} {y:.1}{shape}")
}

/// Returns the index of a line's pattern and mark. After every six lines, each colour is paired with the next pattern.
fn pattern(index: usize) -> usize {
    (index + index / STYLES) % STYLES
}

/// Returns the CSS classes for a line's colour and pattern.
fn style(index: usize) -> String {
    format!("c{} d{}", index % STYLES, pattern(index))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every scale puts its lowest value at one end and its highest at the other, and labels the values between them.
    #[test]
    fn scales_reach_from_end_to_end() {
        for (scale, values) in
            [(Scale::Linear, vec![0.0, 8.0]), (Scale::Logarithmic, vec![1.0, 256.0]), (Scale::Tail, vec![0.5, 0.99999])]
        {
            let axis = Axis { label: "", form: Form::Count, scale };
            let ruler = Ruler::over(&axis, values.clone().into_iter());
            assert!(ruler.at(values[0]) < 0.01 && ruler.at(values[1]) > 0.99, "{scale:?}");
            let ticks = ruler.ticks();
            assert!((3..=9).contains(&ticks.len()), "{scale:?}: {ticks:?}");
            assert!(ticks.iter().all(|tick| (0.0..=1.0).contains(&ruler.at(*tick))));
        }
    }

    /// Axis labels have at most eight characters, whatever the highest value, so they fit next to the axis.
    #[test]
    fn labels_fit_beside_the_axis() {
        let forms = [(Form::Rate, 5e6), (Form::Bandwidth, 5e9), (Form::Seconds, 5e3), (Form::Micros, 5e6)];
        for (form, value_max) in forms {
            let axis = Axis { label: "", form, scale: Scale::Linear };
            for share in [1.0, 0.98, 0.9, 0.6, 0.05, 0.0026, 3e-5] {
                let ruler = Ruler::over(&axis, [value_max * share].into_iter());
                let labels: Vec<String> = ruler.ticks().iter().map(|tick| ruler.label(&axis, *tick)).collect();
                assert!(labels.iter().all(|label| label.chars().count() <= 8), "{labels:?}");
            }
        }
        let axis = Axis { label: "", form: Form::Seconds, scale: Scale::Logarithmic };
        let ruler = Ruler::over(&axis, [0.01, 400.0].into_iter());
        assert_eq!(ruler.label(&axis, 100.0), "100 s");
    }

    /// Plots with no points, or with a single point, can be drawn.
    #[test]
    fn small_plots_are_drawn() {
        let mut plot = Plot::new("Plot <1>", ("x", Form::Count, Scale::Logarithmic), ("y", Form::Rate, Scale::Linear));
        assert!(render(&plot).contains("Plot &lt;1&gt;"));
        plot.line("one", vec![(4.0, 100.0)]);
        let svg = render(&plot);
        assert!(svg.contains("class=\"point\"") && !svg.contains("NaN"), "{svg}");
    }

    /// A single slow case does not stretch the axis: its line is cut off, and the legend says where it ends.
    #[test]
    fn a_slow_case_is_cut_off() {
        let axis = ("time", Form::Seconds, Scale::Linear);
        let mut plot = Plot::new("Scans", axis, ("rate", Form::Bandwidth, Scale::Linear)).drawing("one round");
        let course = |end: f64| (0..=40).map(|step| (end * f64::from(step) / 40.0, 1e9)).collect::<Vec<_>>();
        for (name, end) in [("a", 0.5), ("b", 0.6), ("c", 0.55)] {
            plot.line(name, course(end));
        }
        assert!(Area::of(&plot).x.high < 0.61);
        plot.line("slow", course(3.2));
        let area = Area::of(&plot);
        assert!(area.x.high < 0.81, "{}", area.x.high);
        assert_eq!(area.lines[3].last().map(|point| point.0), Some(area.x.high));
        let html = render(&plot);
        assert!(html.contains("slow (to 3.2\u{a0}s)") && html.contains("one round"), "{html}");
        // With two lines, there is no majority, so no line is cut off.
        plot.lines.drain(..2);
        assert_eq!(Area::of(&plot).x.high, 3.2);
    }

    /// The first six lines differ by their patterns alone, and 36 lines by colour and pattern together.
    #[test]
    fn lines_differ_without_colours() {
        let patterns: std::collections::BTreeSet<usize> = (0..STYLES).map(pattern).collect();
        assert_eq!(patterns.len(), STYLES);
        let styles: std::collections::BTreeSet<String> = (0..36).map(style).collect();
        assert_eq!(styles.len(), 36);
        for (number, colours) in [(1, "c0 d1"), (2, "c0 d2")] {
            assert_eq!(style(number * STYLES), colours);
        }
    }
}
