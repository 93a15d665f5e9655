//! Draws plots as SVG text. The plots need no scripts and no network access, and are readable in print and in dark
//! mode.
//!
//! Colours are CSS classes that the page defines. Every bar and point shows its value when the mouse is over it (SVG
//! `title`), and a table of the page contains every value.

use quorate_testbed::measure::number;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 46.0;

/// The values of one line of a plot, or of the bars of one colour.
pub(super) struct Series {
    /// The name of the series in the legend.
    pub(super) name: &'static str,
    /// The CSS class that gives the colour: `s0`, `s1`, and so on.
    pub(super) class: &'static str,
    /// The values, one for each position on the x axis.
    pub(super) values: Vec<f64>,
    /// Optional second values, one for each position on the x axis:
    ///
    /// - in a plot of lines, the y values at the upper edge of the shaded band
    /// - in a plot of bars, the height of the pale bar on top of each bar
    pub(super) upper: Option<Vec<f64>>,
}

/// How the y axis maps values to heights: linearly or logarithmically.
#[derive(Clone, Copy)]
pub(super) enum Scale {
    /// Linear scale, which starts at zero.
    Linear,
    /// Logarithmic scale.
    Log,
}

struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
}

impl Axis {
    fn over(scale: Scale, values: impl Iterator<Item = f64>) -> Self {
        let values: Vec<f64> = values.filter(|v| v.is_finite() && *v > 0.0).collect();
        let most = values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        let least = values.iter().copied().fold(most, f64::min);
        match scale {
            Scale::Linear => {
                let step = step(most);
                Self {
                    scale,
                    low: 0.0,
                    high: (most / step).ceil() * step,
                }
            }
            Scale::Log => Self {
                scale,
                low: below(least),
                high: above(most),
            },
        }
    }

    fn y(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear => value / self.high,
            Scale::Log => (value / self.low).ln() / (self.high / self.low).ln(),
        };
        HEIGHT - BOTTOM - share.clamp(0.0, 1.0) * (HEIGHT - TOP - BOTTOM)
    }

    fn ticks(&self) -> Vec<f64> {
        match self.scale {
            Scale::Linear => {
                let step = step(self.high);
                let count = (self.high / step).round() as usize;
                (0..=count).map(|n| n as f64 * step).collect()
            }
            Scale::Log => {
                let mut ticks = Vec::new();
                let mut decade = 10_f64.powf(self.low.log10().floor());
                while decade <= self.high {
                    ticks.extend([1.0, 2.0, 5.0].map(|n| n * decade));
                    decade *= 10.0;
                }
                let inside = |tick: &f64| *tick >= self.low * 0.999 && *tick <= self.high * 1.001;
                ticks.retain(inside);
                ticks
            }
        }
    }
}

/// The distance between two tick marks of an axis: a round number, so that an axis from 0 to `most` has about five tick
/// marks.
fn step(most: f64) -> f64 {
    let rough = most / 5.0;
    let decade = 10_f64.powf(rough.log10().floor());
    let nice = [1.0, 2.0, 5.0, 10.0].map(|n| n * decade);
    nice.into_iter()
        .find(|n| *n >= rough * 0.999)
        .unwrap_or(rough)
}

fn below(value: f64) -> f64 {
    let decade = 10_f64.powf(value.log10().floor());
    let nice = [5.0, 2.0, 1.0].map(|n| n * decade);
    nice.into_iter().find(|n| *n <= value).unwrap_or(decade)
}

fn above(value: f64) -> f64 {
    let decade = 10_f64.powf(value.log10().floor());
    let nice = [1.0, 2.0, 5.0, 10.0].map(|n| n * decade);
    nice.into_iter()
        .find(|n| *n >= value)
        .unwrap_or(10.0 * decade)
}

/// Formats a number for an axis: short, with thousands as `k`.
fn label(value: f64) -> String {
    if value >= 10_000.0 {
        format!("{}k", trim(value / 1e3))
    } else {
        trim(value)
    }
}

/// Formats a number with at most two decimals and without trailing zeros.
pub(super) fn trim(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn frame(
    axis: &Axis,
    places: &[String],
    x_title: &str,
    y_title: &str,
    marks: &str,
    what: &str,
) -> String {
    let mut svg =
        format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{what}\">\n");
    for tick in axis.ticks() {
        let y = axis.y(tick);
        svg += &format!(
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
            WIDTH - RIGHT,
            LEFT - 8.0,
            y + 4.0,
            label(tick)
        );
    }
    for (n, place) in places.iter().enumerate() {
        svg += &format!(
            "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{place}</text>\n",
            x(n, places.len()),
            HEIGHT - BOTTOM + 18.0
        );
    }
    svg += &format!(
        "<text class=\"axis\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{x_title}</text>\n\
         <text class=\"axis\" transform=\"translate(14 {:.1}) rotate(-90)\" text-anchor=\"middle\">{y_title}</text>\n",
        f64::midpoint(LEFT, WIDTH - RIGHT),
        HEIGHT - 6.0,
        f64::midpoint(TOP, HEIGHT - BOTTOM)
    );
    svg + marks + "</svg>\n"
}

/// The x coordinate of the middle of position `n` (from 0). `places` is the number of positions on the x axis.
fn x(n: usize, places: usize) -> f64 {
    LEFT + (WIDTH - LEFT - RIGHT) * (n as f64 + 0.5) / places as f64
}

/// A plot of lines, each with an optional band above it.
pub(super) fn lines(
    scale: Scale,
    places: &[String],
    series: &[Series],
    x_title: &str,
    y_title: &str,
    what: &str,
) -> String {
    let all = series.iter().flat_map(|one| {
        let upper = one.upper.iter().flatten();
        one.values.iter().chain(upper).copied()
    });
    let axis = Axis::over(scale, all);
    let points = |values: &[f64]| -> Vec<String> {
        let values = values.iter().enumerate();
        values
            .map(|(n, value)| format!("{:.1},{:.1}", x(n, places.len()), axis.y(*value)))
            .collect()
    };
    let mut marks = String::new();
    for one in series {
        if let Some(upper) = &one.upper {
            let edge = points(upper);
            let mut around = points(&one.values);
            around.extend(edge.iter().rev().cloned());
            let class = one.class;
            marks += &format!(
                "<polygon class=\"band {class}\" points=\"{}\"/>\n",
                around.join(" ")
            );
            let edge = edge.join(" ");
            marks += &format!("<polyline class=\"edge {class}\" points=\"{edge}\"/>\n");
        }
    }
    for one in series {
        let points = points(&one.values);
        let class = one.class;
        marks += &format!(
            "<polyline class=\"line {class}\" points=\"{}\"/>\n",
            points.join(" ")
        );
        for (n, value) in one.values.iter().enumerate() {
            let upper = one.upper.as_ref().and_then(|upper| upper.get(n));
            let upper = upper.map_or(String::new(), |upper| format!(", p99 {}", number(*upper)));
            marks += &format!(
                "<circle class=\"dot {class}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\"><title>{} at {}: {}{upper}</title></circle>\n",
                x(n, places.len()),
                axis.y(*value),
                one.name,
                places[n],
                number(*value)
            );
        }
    }
    frame(&axis, places, x_title, y_title, &marks, what)
}

/// A plot with bars side by side at every x position. Each value in `upper` is stacked on top of its bar.
pub(super) fn bars(
    places: &[String],
    series: &[Series],
    x_title: &str,
    y_title: &str,
    what: &str,
) -> String {
    let total =
        |one: &Series, n: usize| one.values[n] + one.upper.as_ref().map_or(0.0, |upper| upper[n]);
    let tops = series
        .iter()
        .flat_map(|one| (0..places.len()).map(move |n| total(one, n)));
    let axis = Axis::over(Scale::Linear, tops);
    let room = (WIDTH - LEFT - RIGHT) / places.len() as f64;
    let width = (room * 0.78 / series.len() as f64).min(54.0);
    let mut marks = String::new();
    for (at, one) in series.iter().enumerate() {
        let class = one.class;
        for (n, place) in places.iter().enumerate() {
            let value = one.values[n];
            let left = x(n, places.len()) + (at as f64 - series.len() as f64 / 2.0) * width;
            let (top, floor) = (axis.y(value), axis.y(0.0));
            let more = one.upper.as_ref().map(|upper| upper[n]);
            let words = more.map_or(String::new(), |more| format!(" + {}", number(more)));
            let title = format!(
                "<title>{} at {place}: {}{words}</title>",
                one.name,
                number(value)
            );
            marks += &format!(
                "<rect class=\"bar {class}\" x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\">{title}</rect>\n",
                left + 1.0,
                width - 2.0,
                floor - top
            );
            let mut above = top;
            if let Some(more) = more {
                above = axis.y(value + more);
                marks += &format!(
                    "<rect class=\"bar more {class}\" x=\"{:.1}\" y=\"{above:.1}\" width=\"{:.1}\" height=\"{:.1}\">{title}</rect>\n",
                    left + 1.0,
                    width - 2.0,
                    top - above
                );
            }
            if width >= 24.0 {
                marks += &format!(
                    "<text class=\"value\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n",
                    left + width / 2.0,
                    above - 5.0,
                    number(total(one, n))
                );
            }
        }
    }
    frame(&axis, places, x_title, y_title, &marks, what)
}

/// The legend of a plot: the name and the colour of each series.
pub(super) fn legend(series: &[Series]) -> String {
    let keys: Vec<String> = series
        .iter()
        .map(|one| format!("<span class=\"key {}\">{}</span>", one.class, one.name))
        .collect();
    format!("<p class=\"legend\">{}</p>\n", keys.join(" "))
}

/// Colours for a plot outside the report. They are readable on a white and on a black background.
const ALONE: &str = "text { fill: #6e7781; font: 12px system-ui, sans-serif; } .title { font-weight: 600; \
font-size: 15px; } .grid { stroke: #8b949e; stroke-opacity: .3; } .line { fill: none; stroke: var(--c); \
stroke-width: 2.2; } .band { fill: var(--c); opacity: .12; } .edge { fill: none; stroke: var(--c); \
stroke-width: .8; } .dot, .bar { fill: var(--c); } .bar.more { opacity: .45; } .theory { --c: #cf4a42; } .theory.line { stroke-width: 8; \
opacity: .35; stroke-linejoin: round; } .theory.dot { opacity: 0; } .s0 { --c: #2f81d8; } .s1 { --c: #d97706; } .s2 { --c: #16976f; } .s3 { --c: #9b59b6; } .s4 { --c: #7b8494; } .s5 { --c: #c0553f; } \
.s1.line { stroke-dasharray: 8 3; } .s2.line { stroke-dasharray: 2 3; }";

/// Makes a complete SVG file from a plot, with title and legend.
pub(super) fn standalone(title: &str, caption: &str, series: &[Series], svg: &str) -> String {
    let marks = svg.split_once('\n').map_or("", |(_, marks)| marks);
    let marks = marks.trim_end().trim_end_matches("</svg>");
    let above = 64.0;
    let mut keys = String::new();
    let mut left = LEFT;
    for one in series {
        keys += &format!(
            "<rect class=\"bar {}\" x=\"{left:.1}\" y=\"-23\" width=\"10\" height=\"10\" rx=\"2\"/>\
             <text x=\"{:.1}\" y=\"-14\">{}</text>\n",
            one.class,
            left + 15.0,
            one.name
        );
        left += 40.0 + 7.0 * one.name.len() as f64;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 -{above} {WIDTH} {}\" width=\"{WIDTH}\" \
         height=\"{}\" role=\"img\" aria-label=\"{title}: {caption}\">\n<style>{ALONE}</style>\n\
         <text class=\"title\" x=\"{LEFT}\" y=\"-46\">{title}</text>\n\
         <text x=\"{LEFT}\" y=\"-30\">{caption}</text>\n{keys}{marks}</svg>\n",
        HEIGHT + above,
        HEIGHT + above
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axis_ticks_are_round_and_enclose_the_values() {
        let linear = Axis::over(Scale::Linear, [3.0, 87.0].into_iter());
        assert_eq!(linear.ticks(), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        let log = Axis::over(Scale::Log, [130.0, 4_100.0].into_iter());
        assert_eq!(
            log.ticks(),
            [100.0, 200.0, 500.0, 1_000.0, 2_000.0, 5_000.0]
        );
        assert_eq!(label(20_000.0), "20k");
    }

    #[test]
    fn plot_without_values_is_valid_svg() {
        let none = Series {
            name: "classic",
            class: "s0",
            values: vec![f64::NAN],
            upper: None,
        };
        let svg = lines(Scale::Log, &["1".into()], &[none], "", "", "");
        assert!(
            svg.starts_with("<svg") && svg.ends_with("</svg>\n"),
            "{svg}"
        );
    }
}
