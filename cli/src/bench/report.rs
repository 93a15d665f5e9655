//! Writes `report.html`, which is one self-contained page with the results, and its plots as separate pictures.

use super::plot::{Scale, Series, bar_chart, legend, line_chart, standalone_svg, trimmed_number};
use super::results::{Results, Row};
use super::setting::Setting;

/// CSS of the report, for light mode, dark mode and print.
const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5b6675; --grid: #dfe4ea; --page: #ffffff;
  --c0: #1f6fc4; --c1: #d97706; --c2: #0f8a6a; --c3: #8e44ad; --c4: #6b7280; --c5: #a3402b; --rule: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --soft: #9aa6b5; --grid: #2c3440;
  --page: #12161c; --c0: #6db3f8; --c1: #f6ad55; --c2: #4fd1a5; --c3: #c79be0; --c4: #a7b0bd; --c5: #e5937f; --rule: #ff8a80; } }
body { margin: 2rem auto; max-width: 56rem; padding: 0 1rem; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .2rem; }
p { margin: .3rem 0; } .soft, figcaption { color: var(--soft); font-size: .9rem; }
figure { margin: .6rem 0 0; max-width: 46rem; } svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; } svg .tick, svg .axis { fill: var(--soft); }
.grid { stroke: var(--grid); } .line { fill: none; stroke: var(--c); stroke-width: 2.2; }
.band { fill: var(--c); opacity: .1; } .edge { fill: none; stroke: var(--c); stroke-width: .8; } .dot { fill: var(--c); stroke: var(--page); stroke-width: 1; }
.bar { fill: var(--c); } .bar.more { opacity: .45; }
.theory { --c: var(--rule); } .theory.line { stroke-width: 8; opacity: .35; stroke-linejoin: round; } .theory.dot { opacity: 0; }
.s0 { --c: var(--c0); } .s1 { --c: var(--c1); } .s2 { --c: var(--c2); }
.s3 { --c: var(--c3); } .s4 { --c: var(--c4); } .s5 { --c: var(--c5); }
.s1.line { stroke-dasharray: 8 3; } .s2.line { stroke-dasharray: 2 3; } .s3.line { stroke-dasharray: 8 3 2 3; }
.s4.line { stroke-dasharray: 4 2; } .s5.line { stroke-dasharray: 1 4; }
.legend { font-size: .9rem; } .key { margin-right: 1.2rem; white-space: nowrap; }
.key::before { content: ''; display: inline-block; width: .8em; height: .8em; margin-right: .4em;
  border-radius: 2px; background: var(--c); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .8rem; width: 100%; }
th, td { padding: .25rem .35rem; text-align: right; border-bottom: 1px solid var(--grid); white-space: nowrap; }
th { color: var(--soft); font-weight: 600; vertical-align: bottom; white-space: normal; }
td:nth-child(2), th:nth-child(2) { text-align: left; } tr.first td { border-top: 2px solid var(--grid); }
@media print { :root { color-scheme: light; --ink: #000; --soft: #444; --grid: #ccc; --page: #fff; --c0: #1f6fc4;
  --c1: #d97706; --c2: #0f8a6a; --c3: #8e44ad; --c4: #6b7280; --c5: #a3402b; --rule: #b3261e; } body { margin: 0; max-width: none; font-size: 11pt; }
  section { break-inside: avoid; } figure { max-width: 15cm; } .scroll { overflow: visible; }
  table { font-size: 8pt; } th, td { padding: 2px 4px; }
  .key::before, .bar, .band { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
";

const CLASSES: [&str; 6] = ["s0", "s1", "s2", "s3", "s4", "s5"];

/// The whole page `report.html`.
pub(super) fn html(results: &Results) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>quorate: benchmark report</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
         <h1>Benchmark report</h1>\n\
         <p class=\"soft\">quorate {}, {}; {}; {} processors. The measurement took {} s. In each of its three rounds, \
         every set of masters was measured in every setting. Do not compare times with those of other reports, because \
         times depend on the machine and its load.</p>\n",
        results.version,
        results.when,
        escape(&results.server),
        results.processors,
        results.took_ms / 1000
    );
    if let Some(warning) = results.noise.warning() {
        page += &format!("<p><strong>Warning: {warning}.</strong></p>\n");
    }
    for figure in figures(results) {
        let body = format!(
            "<figure>\n{}{}</figure>\n",
            legend(&figure.series),
            figure.svg
        );
        page += &section(figure.title, &figure.description, &body);
    }
    page += &section(
        "All numbers",
        "Times in microseconds.",
        &html_table(results),
    );
    page + "<p class=\"soft\">Settings of the plain lock: classic (SET NX PX only), fenced (with fencing tokens), \
            default (with fencing tokens, first come first served).<br>Other kinds of locks, with the settings of \
            default: reader, two and four (one lock on two or four resources), permit (one of four permits), owner \
            (a lock that belongs to an owner).</p>\n\
            </body>\n</html>\n"
}

/// One plot of the report, with its title and texts.
struct Figure {
    file: &'static str,
    title: &'static str,
    /// A short caption for the SVG file of this plot. The page `report.html` shows the longer text `description`
    /// instead.
    caption: String,
    description: String,
    series: Vec<Series>,
    svg: String,
}

fn figures(results: &Results) -> Vec<Figure> {
    let x_labels = size_labels(results);
    let mut figures = vec![
        latency_figure(results, &x_labels),
        throughput_figure(results, &x_labels),
        cost_figure(results, &x_labels),
    ];
    figures.extend(far_figure(results));
    figures
}

/// The plots as separate files: pairs of file name and content.
pub(super) fn svg_files(results: &Results) -> Vec<(String, String)> {
    let svg_file = |figure: Figure| {
        let svg = standalone_svg(figure.title, &figure.caption, &figure.series, &figure.svg);
        (format!("{}.svg", figure.file), svg)
    };
    figures(results).into_iter().map(svg_file).collect()
}

fn section(title: &str, description: &str, body: &str) -> String {
    format!("<section>\n<h2>{title}</h2>\n<p class=\"soft\">{description}</p>\n{body}</section>\n")
}

fn size_labels(results: &Results) -> Vec<String> {
    results
        .sizes
        .iter()
        .step_by(results.settings.len())
        .map(Row::label)
        .collect()
}

fn series_per_setting(
    results: &Results,
    value: impl Fn(&Row) -> f64,
    upper: Option<&dyn Fn(&Row) -> f64>,
) -> Vec<Series> {
    results
        .settings
        .iter()
        .zip(CLASSES)
        .map(|(&setting, class)| {
            let rows = || results.sizes.iter().filter(|row| row.setting == setting);
            Series {
                name: setting.name(),
                class,
                values: rows().map(&value).collect(),
                upper: upper.map(|upper| rows().map(upper).collect()),
            }
        })
        .collect()
}

fn latency_figure(results: &Results, x_labels: &[String]) -> Figure {
    let series = series_per_setting(
        results,
        |row| row.cycle_us.p50,
        Some(&|row| row.cycle_us.p99),
    );
    let aria_label = "Latency of an acquire and release, by number of masters";
    let svg = line_chart(
        Scale::Log,
        x_labels,
        &series,
        "masters",
        "microseconds",
        aria_label,
    );
    Figure {
        file: "latency",
        title: if results.is_by_kind() {
            "Latency of an acquire and release, by kind of masters"
        } else {
            "Latency by number of masters"
        },
        caption: "one client; one acquire and release; line: median; band: median to p99; log scale".to_owned(),
        description: "One client acquires and releases one lock repeatedly. Line: median time of one acquire and release. Band: from the median to the 99th percentile. The scale is logarithmic."
            .to_owned(),
        series,
        svg,
    }
}

fn throughput_figure(results: &Results, x_labels: &[String]) -> Figure {
    let series = series_per_setting(results, |row| row.cycles_per_s, None);
    let aria_label = "Acquires and releases per second, by number of masters";
    let svg = line_chart(
        Scale::Linear,
        x_labels,
        &series,
        "masters",
        "cycles a second",
        aria_label,
    );
    Figure {
        file: "throughput",
        title: if results.is_by_kind() {
            "Acquires and releases per second, by kind of masters"
        } else {
            "Throughput by number of masters"
        },
        caption: format!(
            "{} tasks in one thread, each with its own lock",
            results.tasks
        ),
        description: format!(
            "{} tasks in one thread, each with a lock of its own.",
            results.tasks
        ),
        series,
        svg,
    }
}

fn cost_figure(results: &Results, x_labels: &[String]) -> Figure {
    let server_micros = |row: &Row| row.server_cpu_us.unwrap_or(0.0);
    let is_stacked = results.sizes.iter().any(|row| row.server_cpu_us.is_some());
    let upper: Option<&dyn Fn(&Row) -> f64> = if is_stacked {
        Some(&server_micros)
    } else {
        None
    };
    let series = series_per_setting(results, |row| row.client_cpu_us, upper);
    let aria_label = "Processor time of an acquire and release, by number of masters";
    let svg = bar_chart(x_labels, &series, "masters", "microseconds", aria_label);
    let (caption, description) = if is_stacked {
        (
            "processor time: client (full colour) and all servers together (pale, on top)",
            "Processor time of one acquire and release: client (full colour) and all servers together (pale, on top).",
        )
    } else {
        (
            "processor time of the client for one acquire and release",
            "Processor time of the client for one acquire and release.",
        )
    };
    Figure {
        file: "cost",
        title: "Cost of a cycle",
        caption: caption.to_owned(),
        description: description.to_owned(),
        series,
        svg,
    }
}

/// The figure with the expected and the measured time of an acquire on masters that are far apart. `None` if the
/// benchmark made no such measurement.
fn far_figure(results: &Results) -> Option<Figure> {
    let far_results = results.wide.as_ref()?;
    // Draw the expected times first, as pale, wide lines. The measured lines are drawn over them.
    let mut series = vec![Series {
        name: "theory",
        class: "theory",
        values: far_results
            .sizes
            .iter()
            .map(|size| size.theory_ms)
            .collect(),
        upper: None,
    }];
    for (n, (setting, class)) in Setting::PLAIN_LOCK.into_iter().zip(CLASSES).enumerate() {
        let measured = far_results
            .sizes
            .iter()
            .map(|size| size.measured[n].acquire_ms);
        series.push(Series {
            name: setting.name(),
            class,
            values: measured.collect(),
            upper: None,
        });
    }
    let round_trips: Vec<String> = far_results
        .round_trips_ms
        .iter()
        .map(|ms| trimmed_number(*ms))
        .collect();
    let x_labels: Vec<String> = far_results
        .sizes
        .iter()
        .map(|size| size.masters.to_string())
        .collect();
    let title = format!(
        "number of masters (round trip of each master, in ms: {})",
        round_trips.join(", ")
    );
    let aria_label = "Time of an acquire, compared with the time in which a majority can reply";
    let svg = line_chart(
        Scale::Linear,
        &x_labels,
        &series,
        &title,
        "milliseconds",
        aria_label,
    );
    let description = format!(
        "In theory, an acquire takes one round trip of the q-th fastest master (q: the size of a majority). {}",
        if far_results.simulated {
            "quorate has started these masters, and proxies delay their replies to simulate the round trips."
        } else {
            "The round trip of a master is the median time of an acquire on this master alone."
        }
    );
    Some(Figure {
        file: "wide",
        title: "Masters far apart",
        caption: "an acquire takes about one round trip of the q-th fastest master (q: the size of a majority)"
            .to_owned(),
        description,
        series,
        svg,
    })
}

fn html_table(results: &Results) -> String {
    let mut text = "<div class=\"scroll\"><table>\n<tr>".to_owned();
    for (heading, ..) in results.columns() {
        text += &format!("<th>{heading}</th>");
    }
    text += "</tr>\n";
    for row in &results.sizes {
        let is_first = results.settings.first() == Some(&row.setting);
        text += if is_first {
            "<tr class=\"first\">"
        } else {
            "<tr>"
        };
        for (_, _, cell) in results.columns() {
            text += &format!("<td>{}</td>", cell(row));
        }
        text += "</tr>\n";
    }
    text + "</table></div>\n"
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
