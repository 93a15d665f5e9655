//! Writes `report.html`, which is one self-contained page with the results, and its plots as separate pictures.

use super::plot::{Scale, Series, bars, legend, lines, standalone, trim};
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
        page += &section(figure.title, &figure.words, &body);
    }
    page += &section("All numbers", "Times in microseconds.", &table(results));
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
    /// A short caption for the SVG file of this plot. The page `report.html` shows the longer text `words` instead.
    caption: String,
    words: String,
    series: Vec<Series>,
    svg: String,
}

fn figures(results: &Results) -> Vec<Figure> {
    let places = sizes(results);
    let mut all = vec![
        latency(results, &places),
        throughput(results, &places),
        cost(results, &places),
    ];
    all.extend(far(results));
    all
}

/// The plots as separate files: pairs of file name and content.
pub(super) fn pictures(results: &Results) -> Vec<(String, String)> {
    let picture = |figure: Figure| {
        let svg = standalone(figure.title, &figure.caption, &figure.series, &figure.svg);
        (format!("{}.svg", figure.file), svg)
    };
    figures(results).into_iter().map(picture).collect()
}

fn section(title: &str, words: &str, body: &str) -> String {
    format!("<section>\n<h2>{title}</h2>\n<p class=\"soft\">{words}</p>\n{body}</section>\n")
}

fn sizes(results: &Results) -> Vec<String> {
    results
        .sizes
        .iter()
        .step_by(results.settings.len())
        .map(Row::label)
        .collect()
}

fn series(
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

fn latency(results: &Results, places: &[String]) -> Figure {
    let all = series(
        results,
        |row| row.cycle_us.p50,
        Some(&|row| row.cycle_us.p99),
    );
    let what = "Latency of an acquire and release, by number of masters";
    let svg = lines(Scale::Log, places, &all, "masters", "microseconds", what);
    Figure {
        file: "latency",
        title: if results.is_by_kind() {
            "Latency of an acquire and release, by kind of masters"
        } else {
            "Latency by number of masters"
        },
        caption: "one client; one acquire and release; line: median; band: median to p99; log scale".to_owned(),
        words: "One client acquires and releases one lock repeatedly. Line: median time of one acquire and release. Band: from the median to the 99th percentile. The scale is logarithmic."
            .to_owned(),
        series: all,
        svg,
    }
}

fn throughput(results: &Results, places: &[String]) -> Figure {
    let all = series(results, |row| row.cycles_per_s, None);
    let what = "Acquires and releases per second, by number of masters";
    let svg = lines(
        Scale::Linear,
        places,
        &all,
        "masters",
        "cycles a second",
        what,
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
        words: format!(
            "{} tasks in one thread, each with a lock of its own.",
            results.tasks
        ),
        series: all,
        svg,
    }
}

fn cost(results: &Results, places: &[String]) -> Figure {
    let servers = |row: &Row| row.server_cpu_us.unwrap_or(0.0);
    let stacked = results.sizes.iter().any(|row| row.server_cpu_us.is_some());
    let upper: Option<&dyn Fn(&Row) -> f64> = if stacked { Some(&servers) } else { None };
    let all = series(results, |row| row.client_cpu_us, upper);
    let what = "Processor time of an acquire and release, by number of masters";
    let svg = bars(places, &all, "masters", "microseconds", what);
    let (caption, words) = if stacked {
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
        words: words.to_owned(),
        series: all,
        svg,
    }
}

/// The figure with the expected and the measured time of an acquire on masters that are far apart. `None` if the
/// benchmark made no such measurement.
fn far(results: &Results) -> Option<Figure> {
    let wide = results.wide.as_ref()?;
    // Draw the expected times first, as pale, wide lines. The measured lines are drawn over them.
    let mut all = vec![Series {
        name: "theory",
        class: "theory",
        values: wide.sizes.iter().map(|size| size.theory_ms).collect(),
        upper: None,
    }];
    for (n, (setting, class)) in Setting::ALL.into_iter().zip(CLASSES).enumerate() {
        let measured = wide.sizes.iter().map(|size| size.measured[n].acquire_ms);
        all.push(Series {
            name: setting.name(),
            class,
            values: measured.collect(),
            upper: None,
        });
    }
    let trips: Vec<String> = wide.round_trips_ms.iter().map(|ms| trim(*ms)).collect();
    let places: Vec<String> = wide
        .sizes
        .iter()
        .map(|size| size.masters.to_string())
        .collect();
    let title = format!(
        "number of masters (round trip of each master, in ms: {})",
        trips.join(", ")
    );
    let what = "Time of an acquire, compared with the time in which a majority can reply";
    let svg = lines(Scale::Linear, &places, &all, &title, "milliseconds", what);
    let words = format!(
        "In theory, an acquire takes one round trip of the q-th fastest master (q: the size of a majority). {}",
        if wide.simulated {
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
        words,
        series: all,
        svg,
    })
}

fn table(results: &Results) -> String {
    let mut text = "<div class=\"scroll\"><table>\n<tr>".to_owned();
    for (heading, ..) in results.columns() {
        text += &format!("<th>{heading}</th>");
    }
    text += "</tr>\n";
    for row in &results.sizes {
        let first = results.settings.first() == Some(&row.setting);
        text += if first {
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
