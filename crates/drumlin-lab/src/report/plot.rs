//! Plots as SVG, drawn by hand: a few lines over two axes, in the page's own colours.
//!
//! A plot is 420 units wide, about the width of a phone: its letters stay as large as the page's on a phone, and beside
//! another plot on a desk.

use std::fmt::Write;

use super::{Axis, Line, Plot, Scale};
use crate::figures::Form;

/// Text within HTML or SVG.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 40.0;

/// The number of colours for lines; further lines are dashed.
const COLOURS: usize = 6;

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

    /// Returns `false` for values below the axis: of a distribution its fast half.
    fn reaches(&self, value: f64) -> bool {
        value >= self.low * 0.999
    }

    /// The position of a value, from 0 to 1.
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
            // Two units would not fit beside the axis.
            _ if axis.form == Form::Seconds && tick >= 100.0 => format!("{} s", Form::Count.show(tick)),
            _ => without_last_zeros(&axis.form.show(tick)),
        }
    }
}

/// The next of the steps below times a power of ten. A quarter of each has few digits. A value that exceeds a step by
/// less than a hundredth, like the end of the last sample of four seconds, is drawn at the edge.
fn nice_above(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let steps = [1.0, 1.2, 1.6, 2.0, 2.4, 3.2, 4.0, 4.8, 6.0, 8.0, 10.0];
    steps.into_iter().map(|step| step * power).find(|step| *step >= value * 0.99).unwrap_or(value)
}

/// `3.20 GB/s` as `3.2 GB/s`: three digits and a unit of four letters are too wide for the margin.
fn without_last_zeros(shown: &str) -> String {
    match shown.split_once(' ') {
        Some((number, unit)) if number.contains('.') => {
            format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => shown.to_owned(),
    }
}

/// The area of a plot: its two axes, and the way from values to positions.
struct Area<'p> {
    plot: &'p Plot,
    x: Ruler,
    y: Ruler,
}

impl Area<'_> {
    fn of(plot: &Plot) -> Area<'_> {
        let all = || plot.lines.iter().flat_map(|line| line.points.iter());
        let x = Ruler::over(&plot.x, all().map(|point| point.0));
        // The fast half of a distribution is not drawn, so the axis need not reach down to it.
        let drawn = all().filter(|point| x.reaches(point.0));
        let y = Ruler::over(&plot.y, drawn.map(|point| point.1));
        Area { plot, x, y }
    }

    fn across(&self, value: f64) -> f64 {
        LEFT + self.x.at(value) * (WIDTH - LEFT - RIGHT)
    }

    fn up(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - self.y.at(value) * (HEIGHT - TOP - BOTTOM)
    }

    /// The grid with its labels.
    fn draw_grid(&self, svg: &mut String) {
        let Area { plot, x, y } = self;
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
            // Labels that would touch the previous one are left out.
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

    /// A line, with a dot at each point if there are few.
    fn draw_line(&self, svg: &mut String, line: &Line, style: &str) {
        let mut path = String::new();
        let mut dots = String::new();
        for &(right, height) in &line.points {
            if !self.x.reaches(right) || !height.is_finite() {
                continue;
            }
            let (px, py) = (self.across(right), self.up(height));
            let step = if path.is_empty() { 'M' } else { 'L' };
            write!(path, "{step}{px:.1} {py:.1}").expect("a string takes any text");
            if line.points.len() <= 16 {
                write!(
                    dots,
                    "<circle cx=\"{px:.1}\" cy=\"{py:.1}\" r=\"2.4\"><title>{}: {} at {}</title></circle>",
                    escape(&line.name),
                    escape(&self.plot.y.form.show(height)),
                    escape(&self.x.label(&self.plot.x, right))
                )
                .expect("a string takes any text");
            }
        }
        write!(svg, "<g class=\"{style}\"><path class=\"line\" d=\"{path}\"/>{dots}</g>")
            .expect("a string takes any text");
    }
}

/// The plot with its title and the names of its lines.
pub(super) fn render(plot: &Plot) -> String {
    let area = Area::of(plot);
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
        escape(&format!("{}: {} by {}", plot.title, plot.y.label, plot.x.label))
    );
    area.draw_grid(&mut svg);
    for (index, line) in plot.lines.iter().enumerate() {
        area.draw_line(&mut svg, line, &style(index));
    }
    svg.push_str("</svg>");
    format!(
        "<figure><figcaption>{}<small>{}</small></figcaption>{svg}<ul>{}</ul></figure>",
        escape(&plot.title),
        escape(plot.y.label),
        legend(plot)
    )
}

/// The names of the lines, each with a piece of its line.
fn legend(plot: &Plot) -> String {
    let name = |(index, line): (usize, &Line)| {
        let style = style(index);
        format!(
            "<li><svg class=\"key {style}\" viewBox=\"0 0 22 8\"><path class=\"line\" d=\"M1 4H21\"/></svg>{}</li>",
            escape(&line.name)
        )
    };
    plot.lines.iter().enumerate().map(name).collect()
}

fn style(index: usize) -> String {
    let dashes = if index >= COLOURS { " dashed" } else { "" };
    format!("c{}{dashes}", index % COLOURS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every scale puts its lowest value at one end, its highest at the other, and labels what lies between.
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

    /// Labels of axes have no more than eight characters, which is what fits beside them, whatever the highest value.
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

    /// A plot without points, or with one, is still a plot.
    #[test]
    fn small_plots_are_drawn() {
        let mut plot = Plot::new("Plot <1>", ("x", Form::Count, Scale::Logarithmic), ("y", Form::Rate, Scale::Linear));
        assert!(render(&plot).contains("Plot &lt;1&gt;"));
        plot.line("one", vec![(4.0, 100.0)]);
        let svg = render(&plot);
        assert!(svg.contains("<circle") && !svg.contains("NaN"), "{svg}");
    }
}
