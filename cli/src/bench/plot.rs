//! Draws plots as SVG text. The plots need no scripts and no network access, and are readable in print and in dark
//! mode.
//!
//! Colours are CSS classes that the page defines. Every bar and point shows its value when the mouse is over it (SVG
//! `title`), and a table of the page contains every value.

use quorate_testbed::measure::number;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 300.0;
const LEFT_MARGIN: f64 = 64.0;
const RIGHT_MARGIN: f64 = 16.0;
const TOP_MARGIN: f64 = 14.0;
const BOTTOM_MARGIN: f64 = 46.0;

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
    fn for_values(scale: Scale, values: impl Iterator<Item = f64>) -> Self {
        let values: Vec<f64> = values.filter(|v| v.is_finite() && *v > 0.0).collect();
        let max = values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        let min = values.iter().copied().fold(max, f64::min);
        match scale {
            Scale::Linear => {
                let step = tick_step(max);
                Self {
                    scale,
                    low: 0.0,
                    high: (max / step).ceil() * step,
                }
            }
            Scale::Log => Self {
                scale,
                low: nice_below(min),
                high: nice_above(max),
            },
        }
    }

    fn y_of(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear => value / self.high,
            Scale::Log => (value / self.low).ln() / (self.high / self.low).ln(),
        };
        HEIGHT - BOTTOM_MARGIN - share.clamp(0.0, 1.0) * (HEIGHT - TOP_MARGIN - BOTTOM_MARGIN)
    }

    fn ticks(&self) -> Vec<f64> {
        match self.scale {
            Scale::Linear => {
                let step = tick_step(self.high);
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

/// The distance between two tick marks of an axis: a round number, so that an axis from 0 to `max` has about five tick
/// marks.
fn tick_step(max: f64) -> f64 {
    let rough = max / 5.0;
    let decade = 10_f64.powf(rough.log10().floor());
    let nice = [1.0, 2.0, 5.0, 10.0].map(|n| n * decade);
    nice.into_iter()
        .find(|n| *n >= rough * 0.999)
        .unwrap_or(rough)
}

fn nice_below(value: f64) -> f64 {
    let decade = 10_f64.powf(value.log10().floor());
    let nice = [5.0, 2.0, 1.0].map(|n| n * decade);
    nice.into_iter().find(|n| *n <= value).unwrap_or(decade)
}

fn nice_above(value: f64) -> f64 {
    let decade = 10_f64.powf(value.log10().floor());
    let nice = [1.0, 2.0, 5.0, 10.0].map(|n| n * decade);
    nice.into_iter()
        .find(|n| *n >= value)
        .unwrap_or(10.0 * decade)
}

/// Formats a number for an axis: short, with thousands as `k`.
fn tick_label(value: f64) -> String {
    if value >= 10_000.0 {
        format!("{}k", trimmed_number(value / 1e3))
    } else {
        trimmed_number(value)
    }
}

/// Formats a number with at most two decimals and without trailing zeros.
pub(super) fn trimmed_number(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn chart_frame(
    axis: &Axis,
    x_labels: &[String],
    x_title: &str,
    y_title: &str,
    shapes: &str,
    aria_label: &str,
) -> String {
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{aria_label}\">\n"
    );
    for tick in axis.ticks() {
        let y = axis.y_of(tick);
        svg += &format!(
            "<line class=\"grid\" x1=\"{LEFT_MARGIN}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
            WIDTH - RIGHT_MARGIN,
            LEFT_MARGIN - 8.0,
            y + 4.0,
            tick_label(tick)
        );
    }
    for (n, x_label) in x_labels.iter().enumerate() {
        svg += &format!(
            "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{x_label}</text>\n",
            x_center(n, x_labels.len()),
            HEIGHT - BOTTOM_MARGIN + 18.0
        );
    }
    svg += &format!(
        "<text class=\"axis\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{x_title}</text>\n\
         <text class=\"axis\" transform=\"translate(14 {:.1}) rotate(-90)\" text-anchor=\"middle\">{y_title}</text>\n",
        f64::midpoint(LEFT_MARGIN, WIDTH - RIGHT_MARGIN),
        HEIGHT - 6.0,
        f64::midpoint(TOP_MARGIN, HEIGHT - BOTTOM_MARGIN)
    );
    svg + shapes + "</svg>\n"
}

/// The x coordinate of the middle of position `n` (from 0). `count` is the number of positions on the x axis.
fn x_center(n: usize, count: usize) -> f64 {
    LEFT_MARGIN + (WIDTH - LEFT_MARGIN - RIGHT_MARGIN) * (n as f64 + 0.5) / count as f64
}

/// A plot of lines, each with an optional band above it.
pub(super) fn line_chart(
    scale: Scale,
    x_labels: &[String],
    all_series: &[Series],
    x_title: &str,
    y_title: &str,
    aria_label: &str,
) -> String {
    let all_values = all_series.iter().flat_map(|series| {
        let upper = series.upper.iter().flatten();
        series.values.iter().chain(upper).copied()
    });
    let axis = Axis::for_values(scale, all_values);
    let to_points = |values: &[f64]| -> Vec<String> {
        let values = values.iter().enumerate();
        values
            .map(|(n, value)| {
                format!(
                    "{:.1},{:.1}",
                    x_center(n, x_labels.len()),
                    axis.y_of(*value)
                )
            })
            .collect()
    };
    let mut shapes = String::new();
    for series in all_series {
        if let Some(upper) = &series.upper {
            let upper_edge = to_points(upper);
            let mut band = to_points(&series.values);
            band.extend(upper_edge.iter().rev().cloned());
            let class = series.class;
            shapes += &format!(
                "<polygon class=\"band {class}\" points=\"{}\"/>\n",
                band.join(" ")
            );
            let upper_edge = upper_edge.join(" ");
            shapes += &format!("<polyline class=\"edge {class}\" points=\"{upper_edge}\"/>\n");
        }
    }
    for series in all_series {
        let to_points = to_points(&series.values);
        let class = series.class;
        shapes += &format!(
            "<polyline class=\"line {class}\" points=\"{}\"/>\n",
            to_points.join(" ")
        );
        for (n, value) in series.values.iter().enumerate() {
            let upper = series.upper.as_ref().and_then(|upper| upper.get(n));
            let upper = upper.map_or(String::new(), |upper| format!(", p99 {}", number(*upper)));
            shapes += &format!(
                "<circle class=\"dot {class}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\"><title>{} at {}: {}{upper}</title></circle>\n",
                x_center(n, x_labels.len()),
                axis.y_of(*value),
                series.name,
                x_labels[n],
                number(*value)
            );
        }
    }
    chart_frame(&axis, x_labels, x_title, y_title, &shapes, aria_label)
}

/// A plot with bars side by side at every x position. Each value in `upper` is stacked on top of its bar.
pub(super) fn bar_chart(
    x_labels: &[String],
    all_series: &[Series],
    x_title: &str,
    y_title: &str,
    aria_label: &str,
) -> String {
    let total = |series: &Series, n: usize| {
        series.values[n] + series.upper.as_ref().map_or(0.0, |upper| upper[n])
    };
    let tops = all_series
        .iter()
        .flat_map(|series| (0..x_labels.len()).map(move |n| total(series, n)));
    let axis = Axis::for_values(Scale::Linear, tops);
    let slot_width = (WIDTH - LEFT_MARGIN - RIGHT_MARGIN) / x_labels.len() as f64;
    let width = (slot_width * 0.78 / all_series.len() as f64).min(54.0);
    let mut shapes = String::new();
    for (index, series) in all_series.iter().enumerate() {
        let class = series.class;
        for (n, x_label) in x_labels.iter().enumerate() {
            let value = series.values[n];
            let left = x_center(n, x_labels.len())
                + (index as f64 - all_series.len() as f64 / 2.0) * width;
            let (top, baseline) = (axis.y_of(value), axis.y_of(0.0));
            let upper_value = series.upper.as_ref().map(|upper| upper[n]);
            let upper_text = upper_value.map_or(String::new(), |upper_value| {
                format!(" + {}", number(upper_value))
            });
            let title = format!(
                "<title>{} at {x_label}: {}{upper_text}</title>",
                series.name,
                number(value)
            );
            shapes += &format!(
                "<rect class=\"bar {class}\" x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\">{title}</rect>\n",
                left + 1.0,
                width - 2.0,
                baseline - top
            );
            let mut label_y = top;
            if let Some(upper_value) = upper_value {
                label_y = axis.y_of(value + upper_value);
                shapes += &format!(
                    "<rect class=\"bar more {class}\" x=\"{:.1}\" y=\"{label_y:.1}\" width=\"{:.1}\" height=\"{:.1}\">{title}</rect>\n",
                    left + 1.0,
                    width - 2.0,
                    top - label_y
                );
            }
            if width >= 24.0 {
                shapes += &format!(
                    "<text class=\"value\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n",
                    left + width / 2.0,
                    label_y - 5.0,
                    number(total(series, n))
                );
            }
        }
    }
    chart_frame(&axis, x_labels, x_title, y_title, &shapes, aria_label)
}

/// The legend of a plot: the name and the colour of each series.
pub(super) fn legend(all_series: &[Series]) -> String {
    let keys: Vec<String> = all_series
        .iter()
        .map(|series| {
            format!(
                "<span class=\"key {}\">{}</span>",
                series.class, series.name
            )
        })
        .collect();
    format!("<p class=\"legend\">{}</p>\n", keys.join(" "))
}

/// Colours for a plot outside the report. They are readable on a white and on a black background.
const STANDALONE_STYLE: &str = "text { fill: #6e7781; font: 12px system-ui, sans-serif; } .title { font-weight: 600; \
font-size: 15px; } .grid { stroke: #8b949e; stroke-opacity: .3; } .line { fill: none; stroke: var(--c); \
stroke-width: 2.2; } .band { fill: var(--c); opacity: .12; } .edge { fill: none; stroke: var(--c); \
stroke-width: .8; } .dot, .bar { fill: var(--c); } .bar.more { opacity: .45; } .theory { --c: #cf4a42; } .theory.line { stroke-width: 8; \
opacity: .35; stroke-linejoin: round; } .theory.dot { opacity: 0; } .s0 { --c: #2f81d8; } .s1 { --c: #d97706; } .s2 { --c: #16976f; } .s3 { --c: #9b59b6; } .s4 { --c: #7b8494; } .s5 { --c: #c0553f; } \
.s1.line { stroke-dasharray: 8 3; } .s2.line { stroke-dasharray: 2 3; }";

/// Makes a complete SVG file from a plot, with title and legend.
pub(super) fn standalone_svg(
    title: &str,
    caption: &str,
    all_series: &[Series],
    svg: &str,
) -> String {
    let shapes = svg.split_once('\n').map_or("", |(_, shapes)| shapes);
    let shapes = shapes.trim_end().trim_end_matches("</svg>");
    let header_height = 64.0;
    let mut keys = String::new();
    let mut left = LEFT_MARGIN;
    for series in all_series {
        keys += &format!(
            "<rect class=\"bar {}\" x=\"{left:.1}\" y=\"-23\" width=\"10\" height=\"10\" rx=\"2\"/>\
             <text x=\"{:.1}\" y=\"-14\">{}</text>\n",
            series.class,
            left + 15.0,
            series.name
        );
        left += 40.0 + 7.0 * series.name.len() as f64;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 -{header_height} {WIDTH} {}\" width=\"{WIDTH}\" \
         height=\"{}\" role=\"img\" aria-label=\"{title}: {caption}\">\n<style>{STANDALONE_STYLE}</style>\n\
         <text class=\"title\" x=\"{LEFT_MARGIN}\" y=\"-46\">{title}</text>\n\
         <text x=\"{LEFT_MARGIN}\" y=\"-30\">{caption}</text>\n{keys}{shapes}</svg>\n",
        HEIGHT + header_height,
        HEIGHT + header_height
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axis_ticks_are_round_and_enclose_the_values() {
        let linear = Axis::for_values(Scale::Linear, [3.0, 87.0].into_iter());
        assert_eq!(linear.ticks(), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        let log = Axis::for_values(Scale::Log, [130.0, 4_100.0].into_iter());
        assert_eq!(
            log.ticks(),
            [100.0, 200.0, 500.0, 1_000.0, 2_000.0, 5_000.0]
        );
        assert_eq!(tick_label(20_000.0), "20k");
    }

    #[test]
    fn plot_without_values_is_valid_svg() {
        let empty_series = Series {
            name: "classic",
            class: "s0",
            values: vec![f64::NAN],
            upper: None,
        };
        let svg = line_chart(Scale::Log, &["1".into()], &[empty_series], "", "", "");
        assert!(
            svg.starts_with("<svg") && svg.ends_with("</svg>\n"),
            "{svg}"
        );
    }
}
