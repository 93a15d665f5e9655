//! Tests of `quorate bench`: it runs for the given time and writes a report. It leaves no files except the report, and
//! no keys on the masters except fencing counters.

use std::process::Stdio;
use std::time::Duration;

use crate::common::{
    self, output_of, quorate_command, quorate_on, send_signal, start_masters, wait_for_output,
    wait_until,
};
use quorate_testbed::{Fault, Proxy, Way};
use serde_json::Value;

#[test]
fn bench_on_spawned_masters_writes_a_self_contained_report() {
    let out = tempfile::tempdir().expect("a directory");
    let run = output_of(
        quorate_command()
            .args(["bench", "--spawn", "--sizes", "1,3", "--tasks", "8"])
            .args(["--time", "2s", "--json", "--out"])
            .arg(out.path()),
    );
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(run.elapsed.as_secs() < 30, "{run:?}");
    let result: Value = serde_json::from_str(&run.stdout).expect("JSON");
    let sizes = result["sizes"].as_array().expect("a list");
    assert_eq!(sizes.len(), 6, "{run:?}");
    for row in sizes {
        assert!(row["cycle_us"]["p50"].as_f64() > Some(0.0), "{row}");
        assert!(row["cycles_per_s"].as_f64() > Some(0.0), "{row}");
        assert_eq!(row["failed"], 0, "{row}");
        let times = &row["rounds_us"];
        assert!(times["least"].as_f64() <= times["most"].as_f64(), "{row}");
        assert!(times["share"].as_f64() >= Some(0.0), "{row}");
    }
    let noise = &result["noise"];
    let other_noise = noise["others"]
        .as_f64()
        .expect("with --spawn, result.json must contain the processor share of other processes");
    assert!((0.0..=1.0).contains(&other_noise), "{noise}");
    assert_eq!(
        noise["noisy"] == true,
        run.stderr.contains("the machine is noisy"),
        "{run:?}"
    );
    // The round trips to the five masters take 1, 10, 40, 80 and 150 ms. An acquire waits for a majority of the
    // masters: for the third reply (40 ms) if it uses all five.
    let far_sizes = result["wide"]["sizes"].as_array().expect("a list");
    let theory: Vec<_> = far_sizes
        .iter()
        .map(|size| size["theory_ms"].as_f64())
        .collect();
    let expected = [1.0, 10.0, 10.0, 40.0, 40.0].map(Some);
    assert_eq!(theory, expected, "{run:?}");
    let acquire_ms = far_sizes[4]["measured"][0]["acquire_ms"].as_f64();
    assert!(
        acquire_ms > Some(39.0) && acquire_ms < Some(140.0),
        "{run:?}"
    );
    let page = std::fs::read_to_string(out.path().join("report.html")).expect("a report");
    assert_eq!(page.matches("<svg").count(), 4);
    for foreign in ["http:", "https:", "<script", "url(", "NaN"] {
        assert!(
            !page.contains(foreign),
            "report.html must be self-contained, but it contains {foreign}"
        );
    }
    for name in ["latency", "throughput", "cost", "wide"] {
        let figure_file = out.path().join(format!("{name}.svg"));
        let svg = std::fs::read_to_string(figure_file).expect("a picture");
        assert!(svg.starts_with("<svg xmlns=") && svg.ends_with("</svg>\n"));
        assert_eq!(svg.matches("<svg").count(), 1);
        assert!(
            !svg.contains("NaN") && svg.contains(">default</text>"),
            "{svg}"
        );
    }
    let saved_text = std::fs::read_to_string(out.path().join("result.json")).expect("a result");
    assert_eq!(
        serde_json::from_str::<Value>(&saved_text).expect("JSON"),
        result
    );
}

#[test]
fn bench_with_the_option_kinds_compares_each_kind_of_lock_with_the_plain_lock() {
    let out = tempfile::tempdir().expect("a directory");
    let run = output_of(
        quorate_command()
            .args([
                "bench", "--spawn", "--kinds", "--sizes", "3", "--tasks", "8",
            ])
            .args(["--time", "2s", "--json", "--out"])
            .arg(out.path()),
    );
    assert_eq!(run.code, Some(0), "{run:?}");
    let result: Value = serde_json::from_str(&run.stdout).expect("JSON");
    let rows = result["sizes"].as_array().expect("a list");
    let settings: Vec<_> = rows.iter().map(|row| &row["setting"]).collect();
    let kinds = ["default", "reader", "two", "four", "permit", "owner"];
    assert_eq!(settings, kinds);
    for row in rows {
        assert_eq!(row["failed"], 0, "{row}");
        assert!(row["over_lock"].as_f64() > Some(0.0), "{row}");
        assert!(row["over_classic"].is_null(), "{row}");
    }
    assert_eq!(rows[0]["over_lock"], 1.0);
    assert!(result["wide"].is_null());
    let page = std::fs::read_to_string(out.path().join("report.html")).expect("a report");
    assert_eq!(page.matches("<svg").count(), 3);
    assert!(page.contains("over lock"), "{page}");
}

#[test]
fn bench_warns_if_other_processes_use_the_cpu() {
    // Overload the machine: run one more busy loop than it has processors.
    let shells_count = std::thread::available_parallelism().map_or(2, usize::from) + 1;
    let shells = (0..shells_count).map(|_| {
        let mut shell = std::process::Command::new("sh");
        shell
            .args(["-c", "while :; do :; done"])
            .spawn()
            .expect("starts")
    });
    let mut shells: Vec<_> = shells.collect();
    let run = output_of(quorate_command().args([
        "bench", "--spawn", "--sizes", "1", "--tasks", "2", "--time", "2s",
    ]));
    for shell in &mut shells {
        shell.kill().expect("a living child");
        shell.wait().expect("a child");
    }
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(
        run.stderr
            .contains("the machine is noisy: other processes used"),
        "{run:?}"
    );
    assert!(run.stdout.contains("APART"), "{run:?}");
}

#[test]
fn bench_on_given_masters_leaves_no_keys_except_fencing_counters() {
    let masters = start_masters(3);
    let run = output_of(quorate_on(&masters).args(["bench", "--time", "1s", "--tasks", "4"]));
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(
        run.stdout.contains("MASTERS") && run.stdout.contains("default"),
        "{run:?}"
    );
    assert_eq!(keys_left(&masters), [] as [String; 0], "{run:?}");
}

#[test]
fn bench_with_the_option_nodes_compares_different_kinds_of_masters() {
    if let Err(why) = quorate_testbed::MariaDb::available() {
        quorate_testbed::not_run(
            "bench_with_the_option_nodes_compares_different_kinds_of_masters",
            &why.to_string(),
        );
        return;
    }
    let labels = |run: &common::RunOutput| -> Vec<(String, u64)> {
        assert_eq!(run.code, Some(0), "{run:?}");
        let result: Value = serde_json::from_str(&run.stdout).expect("JSON");
        assert!(result["wide"].is_null(), "{run:?}");
        let rows = result["sizes"].as_array().expect("a list");
        for row in rows {
            assert!(row["cycle_us"]["p50"].as_f64() > Some(0.0), "{row}");
            assert_eq!(row["failed"], 0, "{row}");
        }
        assert_eq!(rows[0]["over_first"], 1.0, "{run:?}");
        let is_first_row = |row: &Value| row["setting"] == "classic";
        let first_rows = rows.iter().filter(|row| is_first_row(row));
        first_rows
            .map(|row| {
                let kinds = row["kinds"].as_str().expect("kinds").to_owned();
                (kinds, row["masters"].as_u64().expect("a number"))
            })
            .collect()
    };
    let mut spawned_masters = quorate_command();
    spawned_masters.args(["bench", "--json", "--time", "2s", "--tasks", "4"]);
    spawned_masters.args([
        "--nodes",
        "redis,redis,redis",
        "--nodes",
        "redis,redis,mysql",
    ]);
    let expected_kinds = [("3 redis", 3), ("2 redis + 1 mysql", 3)];
    let expected = expected_kinds.map(|(kinds, masters)| (kinds.to_owned(), masters));
    assert_eq!(labels(&output_of(&mut spawned_masters)), expected);

    let server = quorate_testbed::MariaDb::start(quorate_testbed::MariaDbOptions::new());
    let server = server.expect("a server");
    let url = format!("{}?timeout=2s", server.url("locks"));
    assert_eq!(
        output_of(quorate_command().args(["prepare-server", &url])).code,
        Some(0)
    );
    let redis = start_masters(2);
    let urls = format!("{},{},{url}", redis[0].url(), redis[1].url());
    let mut given_masters = quorate_command();
    given_masters.args([
        "bench",
        "--json",
        "--time",
        "2s",
        "--tasks",
        "4",
        "--masters",
    ]);
    given_masters.args([&*urls, "--restart-guard", "off"]);
    let expected_kinds = [("2 redis", 2), ("1 mysql", 1), ("2 redis + 1 mysql", 3)];
    let expected = expected_kinds.map(|(kinds, masters)| (kinds.to_owned(), masters));
    assert_eq!(labels(&output_of(&mut given_masters)), expected);
}

#[test]
fn bench_refuses_unusable_options_or_servers_before_it_measures() {
    for (args, words) in [
        (&["bench"][..], "use --spawn"),
        (&["bench", "--spawn", "--sizes", "0"], "1 to 64 masters"),
        (&["bench", "--spawn", "--time", "10ms"], "below 1s"),
        (&["bench", "--nodes", "redis,oracle"], "oracle"),
        (
            &["bench", "--nodes", "redis", "--sizes", "1"],
            "cannot be used with",
        ),
        (
            &["bench", "--masters", "redis://127.0.0.1:1", "--sizes", "3"],
            "more than the number of masters, which is 1",
        ),
    ] {
        let run = output_of(quorate_command().args(args));
        assert_eq!(run.code, Some(64), "{run:?}");
        assert!(run.stderr.contains(words), "{run:?}");
    }
    let run = output_of(
        quorate_command()
            .args(["bench", "--spawn"])
            .env("QUORATE_SERVER", "/nonexistent/redis-server")
            .env("PATH", "/nonexistent"),
    );
    assert_eq!(run.code, Some(70), "{run:?}");
    assert!(run.stderr.contains("QUORATE_SERVER"), "{run:?}");
    let run = output_of(
        quorate_command()
            .args(["bench", "--nodes", "mysql"])
            .env("PATH", "/nonexistent"),
    );
    assert_eq!(run.code, Some(70), "{run:?}");
    assert!(run.stderr.contains("mariadb-server-core"), "{run:?}");
    let run = output_of(quorate_command().args(["bench", "--masters", "redis://127.0.0.1:1"]));
    assert_eq!(run.code, Some(69), "{run:?}");
}

#[test]
fn interrupted_bench_stops_its_spawned_masters() {
    let temporary = tempfile::tempdir().expect("a directory");
    let child = quorate_command()
        .args(["bench", "--spawn", "--sizes", "2", "--time", "60s"])
        .env("TMPDIR", temporary.path())
        .env("QUORATE_SERVER_DATA", temporary.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    let count_entries = || std::fs::read_dir(temporary.path()).expect("read").count();
    wait_until("the spawned masters are running", || count_entries() >= 5);
    std::thread::sleep(Duration::from_millis(500));
    send_signal(&child, "INT");
    let run = wait_for_output(child);
    assert_eq!((run.code, &*run.stdout), (Some(130), ""), "{run:?}");
    assert!(
        run.stderr.contains("use an odd number of masters"),
        "{run:?}"
    );
    assert_eq!(count_entries(), 0, "{run:?}");
}

/// All keys that the benchmark has left on the masters, except fencing counters.
fn keys_left(masters: &quorate_testbed::Masters) -> Vec<String> {
    let keys =
        masters.iter().flat_map(
            |master| match master.command(&["KEYS", "*"]).expect("keys") {
                quorate_testbed::Reply::Array(keys) => keys,
                other => panic!("the answer to KEYS must be a list, not {other:?}"),
            },
        );
    let key_names = keys.map(|key| key.text().expect("text").into_owned());
    key_names
        .filter(|name| !name.starts_with("quorate:fence:"))
        .collect()
}

#[test]
fn interrupted_bench_has_released_its_locks_when_it_exits() {
    let masters = start_masters(3);
    for (tasks, after) in [(8, 40), (64, 450), (400, 1500), (5000, 1500)] {
        let child = quorate_on(&masters)
            .args(["bench", "--sizes", "1,3", "--time", "12s"])
            .args(["--tasks", &tasks.to_string()])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts");
        wait_until("the benchmark is running", || {
            !keys_left(&masters).is_empty()
        });
        std::thread::sleep(Duration::from_millis(after));
        send_signal(&child, "TERM");
        let run = wait_for_output(child);
        assert_eq!((run.code, run.died_of), (Some(143), Some(15)), "{run:?}");
        assert_eq!(
            keys_left(&masters),
            [] as [String; 0],
            "the benchmark with {tasks} tasks has leaked keys: {run:?}"
        );
    }
}

#[test]
fn interrupted_bench_releases_locks_on_slow_masters_within_the_node_timeout() {
    let masters = start_masters(3);
    let behind_proxy = |master: &quorate_testbed::Server| {
        let proxy = Proxy::start(master.addr()).expect("a proxy");
        proxy
            .inject(Fault::latency(Way::ToServer, Duration::from_millis(700)))
            .keep();
        (master.url_at(proxy.addr()), proxy)
    };
    let (urls, _proxies): (Vec<_>, Vec<_>) = masters.iter().map(behind_proxy).unzip();
    let child = quorate_on(&masters)
        .args(["bench", "--sizes", "3", "--time", "60s", "--tasks", "4"])
        .args(["--node-timeout", "2s", "--connect-timeout", "10s"])
        .args(["--masters", &urls.join(",")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    wait_until("the benchmark is running", || {
        !keys_left(&masters).is_empty()
    });
    send_signal(&child, "INT");
    let run = wait_for_output(child);
    assert_eq!(run.code, Some(130), "{run:?}");
    assert_eq!(keys_left(&masters), [] as [String; 0], "{run:?}");
}
