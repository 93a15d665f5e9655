//! Tests of `quorate-chaos export`: the operations of histories made by hand.

use crate::support::history_builder::{HistoryBuilder, MS, obtained, wait};
use quorate_chaos::event::Event;
use quorate_chaos::export;
use quorate_chaos::history::History;
use quorate_chaos::scenario::Scenario;
use serde_json::{Value, json};

/// The operations of a history, without the line about the run. Times are in milliseconds.
fn operations(history: HistoryBuilder) -> Vec<Value> {
    let mut text = Vec::new();
    let history = History::new(history.0);
    export::write(&Scenario::default(), &history, &mut text).expect("a history must be exported");
    let text = String::from_utf8(text).expect("the operations must be UTF-8");
    let lines = text.lines().skip(1).map(|line| {
        let mut line: Value = serde_json::from_str(line).expect("each line must be JSON");
        for time in ["call", "return"] {
            line[time] = line[time].as_u64().map(|t| t / MS).into();
        }
        line
    });
    lines.collect()
}

/// Call, return and outcome of each operation of this kind.
fn spans(operations: &[Value], op: &str) -> Vec<(Value, Value, Value)> {
    let of_kind = operations.iter().filter(|operation| operation["op"] == op);
    let spans = of_kind.map(|operation| {
        let field = |name: &str| operation.get(name).cloned().unwrap_or_default();
        (field("call"), field("return"), field("outcome"))
    });
    spans.collect()
}

fn died() -> Event {
    Event::Gone {
        meant: true,
        how: "signal: 9".into(),
    }
}

fn wrote(op: u64, began: u64) -> Event {
    Event::Wrote {
        op,
        key: "file".into(),
        from: "4".into(),
        to: Some("5".into()),
        began: began * MS,
    }
}

#[test]
fn acquisition_without_a_result_is_open_and_a_failed_one_is_not() {
    let why = "held".to_owned();
    let history = HistoryBuilder::default()
        .at(1, "c1", wait(1))
        .at(5, "c1", died())
        .at(2, "c2", wait(1))
        .at(9, "c2", Event::Missed { op: 1, why })
        .at(10, "c2", wait(2));
    let expected = [
        (json!(1), Value::Null, json!("open")),
        (json!(2), json!(9), json!("failed")),
        (json!(10), Value::Null, json!("open")),
    ];
    let operations = operations(history);
    assert_eq!(spans(&operations, "acquire"), expected);
    assert_eq!(spans(&operations, "end"), []);
}

#[test]
fn hold_ends_at_its_release_or_at_the_end_of_its_validity() {
    let hold = |until: u64| {
        HistoryBuilder::default().at(1, "c1", wait(1)).at(
            10,
            "c1",
            obtained(1, Some(7), Some(until * MS)),
        )
    };
    let release = Event::Release { op: 1, until: None };
    let released = |open| Event::Released { op: 1, on: 3, open };
    let end = |history: HistoryBuilder| spans(&operations(history), "end");
    let span =
        |call: u64, returned: u64, cause: &str| [(json!(call), json!(returned), json!(cause))];
    let in_time = hold(100).at(20, "c1", release.clone());
    assert_eq!(end(in_time.clone()), span(20, 100, "released"));
    assert_eq!(
        end(in_time.clone().at(25, "c1", released(0))),
        span(20, 25, "released")
    );
    assert_eq!(
        end(in_time.at(25, "c1", released(1))),
        span(20, 100, "released"),
        "a master without a reply may count the hold until its validity ends"
    );
    let expired = hold(100).at(150, "c1", release);
    assert_eq!(end(expired), span(100, 100, "expired"));
    let killed = hold(100).at(50, "c1", died());
    assert_eq!(end(killed), span(50, 100, "died"));
}

#[test]
fn write_under_a_lock_differs_from_a_late_write_and_from_an_unknown_write() {
    let release = |op| Event::Release { op, until: None };
    let history = HistoryBuilder::default()
        .at(1, "c1", wait(1))
        .at(2, "c1", obtained(1, Some(1), None))
        .at(3, "c1", wrote(1, 3))
        .at(4, "c1", release(1))
        .at(5, "c2", wait(1))
        .at(6, "c2", obtained(1, Some(2), Some(10 * MS)))
        .at(20, "c2", wrote(1, 7))
        .at(21, "c2", release(1))
        .at(22, "c3", wait(1))
        .at(23, "c3", obtained(1, Some(3), None))
        .at(30, "c3", died());
    let operations = operations(history);
    let span = |call: u64, returned: u64| [(json!(call), json!(returned), Value::Null)];
    assert_eq!(spans(&operations, "write"), span(3, 3));
    assert_eq!(spans(&operations, "set"), span(7, 20));
    assert_eq!(spans(&operations, "unknown"), span(23, 30));
}
