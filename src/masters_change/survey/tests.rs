//! Tests of the conclusions that a survey draws from the state of each master.

use super::*;
use crate::node::NodeName;
use crate::node::change::ChangeSeen;
use crate::protocol::marker::Fingerprint;

const MAX_TTL: Duration = Duration::from_secs(60);

/// The names of the old masters, and then of the next masters.
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

pub(in crate::masters_change) fn configuration() -> Configuration {
    let [old_print, next_print] =
        [&NAMES[..3], &NAMES[3..]].map(|names| Fingerprint::new(names.iter().copied()));
    Configuration::new(0, old_print, Some(next_print))
}

/// The text of the marker that the step with this number writes.
fn mark(number: u64) -> String {
    let print = configuration().print_at(number);
    let print = print.expect("the number must belong to this replacement");
    let name = None;
    let marker = Marker {
        number,
        print,
        name,
    };
    marker.to_string()
}

/// A survey of three old and three next masters without faults. The masters have markers with these numbers.
pub(in crate::masters_change) fn survey(marked: [Option<u64>; 6]) -> Survey {
    let master = |(index, name): (usize, &str)| MasterSeen {
        node: NodeName::new(name),
        is_old: index < 3,
        is_next: index >= 3,
        seen: ChangeSeen {
            mark: marked[index].map(mark),
            run_id: Some(format!("run-{name}")),
            ..ChangeSeen::default()
        },
    };
    Survey {
        masters: NAMES.into_iter().enumerate().map(master).collect(),
        carried: Vec::new(),
        advice: Vec::new(),
        configuration: configuration(),
        quorum: Quorum::joint((0..3).collect(), (3..6).collect()),
        closed_at: None,
    }
}

/// The same after the step `begin`, with another state of some masters.
fn begun_with(change: impl Fn(usize, &mut ChangeSeen)) -> Survey {
    let mut survey = survey([Some(0); 6]);
    for (index, master) in survey.masters.iter_mut().enumerate() {
        change(index, &mut master.seen);
    }
    survey
}

/// Checks that there is one line for each master in `nodes`, in this order, and that each line contains `text`.
#[track_caller]
pub(in crate::masters_change) fn assert_lines(lines: &[String], nodes: &[&str], text: &str) {
    assert_eq!(lines.len(), nodes.len(), "{lines:#?}");
    for (line, node) in lines.iter().zip(nodes) {
        assert!(line.starts_with(node) && line.contains(text), "{line}");
    }
}

fn set_of(indices: &[usize]) -> MasterSet {
    indices.iter().copied().collect()
}

pub(in crate::masters_change) fn client(kind: ClientKind) -> ClientSeen {
    ClientSeen {
        id: 1,
        name: "web".into(),
        host: None,
        pid: None,
        address: "192.0.2.1:7".into(),
        kind,
    }
}

/// A client at this step of a replacement of the masters with this fingerprint.
pub(in crate::masters_change) fn client_at(step: u64, print: Option<Fingerprint>) -> ClientSeen {
    let print = print.expect("the step must be known").number();
    client(ClientKind::AtStep(step, print))
}

pub(in crate::masters_change) const NO: Option<u64> = None;

#[test]
fn stage_is_derived_from_the_markers_of_majorities() {
    let (begun, closed, open, finished) = (Some(0), Some(1), Some(2), Some(4));
    for (marked, stage) in [
        ([NO; 6], ChangeStage::Untouched),
        ([begun, begun, NO, begun, NO, NO], ChangeStage::Untouched),
        ([begun, begun, NO, begun, begun, NO], ChangeStage::Begun),
        (
            [closed, begun, begun, begun, begun, begun],
            ChangeStage::PartlyClosed,
        ),
        (
            [NO, NO, NO, closed, closed, closed],
            ChangeStage::PartlyClosed,
        ),
        (
            [closed, closed, begun, begun, begun, begun],
            ChangeStage::Closed,
        ),
        (
            [closed, closed, closed, open, closed, closed],
            ChangeStage::Closed,
        ),
        (
            [closed, closed, closed, open, open, closed],
            ChangeStage::Open,
        ),
        ([open, open, open, finished, open, open], ChangeStage::Open),
        (
            [open, open, open, finished, finished, open],
            ChangeStage::Finished,
        ),
    ] {
        assert_eq!(survey(marked).stage(), stage, "{marked:?}");
    }
}

#[test]
fn values_are_copied_only_while_a_majority_of_the_next_masters_answers_and_none_is_open() {
    // A next master without a number did not answer.
    let check = |next: [Option<u64>; 3]| {
        let [d, e, f] = next;
        let mut survey = survey([Some(1), Some(1), Some(1), d, e, f]);
        for master in survey
            .masters
            .iter_mut()
            .filter(|master| master.seen.mark.is_none())
        {
            master.seen.fault = Some(Fault::Timeout(Duration::from_secs(1)));
        }
        survey.check_next_masters_are_closed()
    };
    assert!(check([Some(1); 3]).is_ok());
    assert!(check([Some(1), NO, Some(1)]).is_ok());
    let too_few_answers = check([Some(1), NO, NO]);
    assert!(
        matches!(&too_few_answers, Err(CarryResult::Undecided(text)) if text.contains("e: ")),
        "the error must name the masters that did not answer"
    );
    // A single open master is enough: another operator may have copied the values.
    for next in [[Some(1), Some(2), Some(1)], [NO, Some(2), NO], [Some(2); 3]] {
        let checked = check(next);
        assert!(matches!(checked, Err(CarryResult::Nowhere)), "{next:?}");
    }
}

#[test]
fn old_masters_are_open_for_a_replacement_if_a_majority_of_them_has_its_marker() {
    let is_open_for = |marked, number| survey(marked).is_open_for(number);
    assert!(is_open_for([Some(2), Some(3), NO, NO, NO, NO], 2));
    assert!(!is_open_for(
        [Some(2), Some(1), Some(1), Some(3), Some(3), Some(3)],
        2
    ));
    assert!(!is_open_for([NO; 6], 0));
}

#[test]
fn master_lost_its_marker_if_another_master_of_its_set_has_one() {
    let survey = survey([Some(0), NO, NO, NO, NO, NO]);
    let has_marker_like: Vec<bool> = (0..6).map(|index| survey.has_marker_like(index)).collect();
    assert_eq!(has_marker_like, [true, true, true, false, false, false]);
}

#[test]
fn master_counts_as_closed_throughout_only_if_it_was_closed_in_both_surveys_of_one_run() {
    let earlier = survey([Some(1), Some(1), NO, Some(1), Some(1), Some(1)]);
    let mut later = survey([Some(1), NO, Some(1), Some(2), Some(1), Some(1)]);
    later.masters[4].seen.run_id = Some("another run".into());
    later.masters[5].seen.run_id = None;
    assert_eq!(earlier.closed_throughout(&later), set_of(&[0, 3]));
    later.masters[5].seen.run_id = earlier.masters[5].seen.run_id.clone();
    assert_eq!(earlier.closed_throughout(&later), set_of(&[0, 3, 5]));
    // Without a run id, nobody knows whether the server was restarted.
    let mut earlier = earlier;
    for survey in [&mut earlier, &mut later] {
        survey.masters[0].seen.run_id = None;
    }
    assert_eq!(earlier.closed_throughout(&later), set_of(&[3, 5]));
}

#[test]
fn marker_of_other_masters_or_of_another_name_does_not_belong_to_this_replacement() {
    let other_print = Fingerprint::new(["x", "y", "z"]);
    let marker_of = |number, print, name| {
        Some(
            Marker {
                number,
                print,
                name,
            }
            .to_string(),
        )
    };
    let next_print = configuration().print_at(1).expect("the next masters");
    let name = Some(Fingerprint::new(["shop"]));
    let surveyed = begun_with(|index, seen| match index {
        1 => seen.mark = marker_of(1, other_print, None),
        2 => seen.mark = Some("not a marker".into()),
        // The first marker of a replacement after this one.
        3 => seen.mark = marker_of(5, other_print, None),
        4 => seen.mark = marker_of(1, next_print, name),
        5 => seen.mark = None,
        _ => {}
    });
    // A master without a marker, and a master with a marker of a known replacement, are no obstacle.
    let obstacles = surveyed.obstacles();
    assert_eq!(obstacles.len(), 4, "{obstacles:#?}");
    assert_lines(
        &obstacles[..1],
        &["b"],
        "belongs to other masters or a later replacement",
    );
    assert_lines(
        &obstacles[1..2],
        &["c"],
        "\"not a marker\", which is not a generation marker",
    );
    assert_lines(
        &obstacles[2..3],
        &["d"],
        "belongs to other masters or a later replacement",
    );
    assert_lines(&obstacles[3..], &["e"], "bears a name");
    assert_eq!(surveyed.masters_marked_at_least(0), set_of(&[0, 3, 4]));
    assert_eq!(surveyed.masters_marked_at_least(1), set_of(&[3, 4]));
    assert!(surveyed.markers_without_name().is_empty());
    // For a client with this name, only the marker of the master `e` bears the name.
    let named = Survey {
        configuration: configuration().named(Some("shop")),
        ..surveyed
    };
    assert_eq!(named.masters_marked_at_least(0), set_of(&[4]));
    assert_lines(
        &named.markers_without_name(),
        &["a", "b", "d"],
        "does not bear the name",
    );
    let obstacles = named.obstacles();
    assert!(
        obstacles.iter().all(|line| !line.contains("bears a name")),
        "{obstacles:#?}"
    );
}

#[test]
fn server_that_is_named_twice_and_a_master_without_a_right_are_obstacles() {
    let surveyed = begun_with(|index, seen| match index {
        1 | 2 => seen.run_id = None,
        4 => seen.run_id = Some("run-a".into()),
        _ => {}
    });
    let is_same = "is the same server as a: name each server once";
    assert_lines(&surveyed.obstacles(), &["e"], is_same);
    assert!(begun_with(|_, _| {}).obstacles().is_empty());
}

#[test]
fn address_that_leads_to_several_servers_in_turn_is_reported() {
    let first = survey([NO; 6]);
    let mut later = vec![survey([NO; 6]), survey([NO; 6]), survey([NO; 6])];
    assert!(first.alternating_addresses(&later).is_empty());
    later[0].masters[1].seen.run_id = Some("another server".into());
    later[2].masters[1].seen.run_id = Some("a third server".into());
    later[1].masters[3].seen.run_id = None;
    let lines = first.alternating_addresses(&later);
    assert_lines(&lines, &["b"], "leads to 3 servers in turn");
}

#[test]
fn next_master_that_is_too_young_or_evicts_keys_is_unfit() {
    let second = Duration::from_secs(1);
    let surveyed = begun_with(|index, seen| {
        seen.uptime = Some(MAX_TTL + second);
        match index {
            // The state of an old master that does not stay is not checked.
            0 => {
                seen.uptime = Some(second);
                seen.eviction = Some("allkeys-lru".into());
            }
            3 => seen.uptime = Some(MAX_TTL),
            4 => seen.eviction = Some("allkeys-lru".into()),
            5 => {
                seen.is_uptime_impossible = true;
                seen.uptime = Some(Duration::ZERO);
                seen.eviction = Some("noeviction".into());
            }
            _ => {}
        }
    });
    let unfit = surveyed.unfit_next_masters(MAX_TTL);
    assert_eq!(unfit.len(), 3, "{unfit:#?}");
    assert_lines(
        &unfit[..1],
        &["d"],
        "has been up for only 60s, but its votes count only after 61s",
    );
    assert_lines(&unfit[1..2], &["e"], "evicts keys (allkeys-lru)");
    assert_lines(&unfit[2..], &["f"], "reports an impossible uptime");
    assert!(begun_with(|_, _| {}).unfit_next_masters(MAX_TTL).is_empty());
}

#[test]
fn old_master_that_stays_may_be_young_but_must_not_evict_keys() {
    let mut surveyed = begun_with(|index, seen| {
        if index < 2 {
            seen.uptime = Some(Duration::ZERO);
            seen.is_uptime_impossible = index == 1;
            seen.eviction = Some("volatile-ttl".into());
        }
    });
    surveyed.masters[0].is_next = true;
    surveyed.masters[1].is_next = true;
    let unfit = surveyed.unfit_next_masters(MAX_TTL);
    assert_lines(&unfit, &["a", "b"], "evicts keys (volatile-ttl)");
}

#[test]
fn clocks_may_differ_by_max_ttl_less_two_seconds_but_always_by_one_second() {
    let apart = |offsets: [Option<i64>; 3], max_ttl: u64| {
        let surveyed = begun_with(|index, seen| {
            seen.clock_offset_ms = offsets.get(index).copied().flatten();
        });
        let max_ttl = Duration::from_secs(max_ttl);
        let line = surveyed.clocks_apart(max_ttl);
        let unfit = surveyed.unfit_next_masters(max_ttl);
        assert_eq!(unfit, Vec::from_iter(line.clone()));
        line
    };
    assert_eq!(apart([None; 3], 60), None);
    assert_eq!(apart([Some(-8_000), Some(50_000), None], 60), None);
    let line = apart([Some(-8_000), Some(0), Some(50_001)], 60);
    let line = line.expect("the clocks must count as too far apart");
    assert!(
        line.contains("differ by 58.001s, but at most 58s is allowed"),
        "{line}"
    );
    assert_eq!(apart([Some(0), Some(1_000), None], 1), None);
    assert!(apart([Some(0), Some(1_001), None], 1).is_some());
    assert!(apart([Some(0), Some(1_001), None], 2).is_some());
}

#[test]
fn client_of_other_masters_is_reported_unless_its_masters_are_unknown() {
    let other_print = Some(Fingerprint::new(["x", "y", "z"]));
    let [old_print, next_print] = [configuration().print_at(0), configuration().print_at(1)];
    for (seen_client, is_of_other_masters) in [
        (client_at(0, old_print), false),
        (client_at(1, next_print), false),
        (client_at(2, next_print), false),
        (client_at(0, next_print), true),
        (client_at(1, old_print), true),
        (client_at(2, other_print), true),
        // The masters of a later replacement are unknown.
        (client_at(3, other_print), false),
        (client(ClientKind::Untold), false),
        (client(ClientKind::Unknown), false),
    ] {
        let surveyed = begun_with(|index, seen| {
            if index == 4 {
                seen.clients = vec![seen_client.clone()];
            }
        });
        assert_eq!(
            surveyed.is_of_other_masters(&seen_client),
            is_of_other_masters,
            "{seen_client:?}"
        );
        let reported = surveyed.clients_of_other_masters();
        let nodes: &[&str] = if is_of_other_masters { &["e"] } else { &[] };
        assert_lines(
            &reported,
            nodes,
            "the client web at 192.0.2.1:7 is configured with other masters",
        );
    }
}

#[test]
fn client_that_does_not_check_the_marker_is_reported_for_old_masters_only() {
    let old_print = configuration().print_at(0);
    let surveyed = begun_with(|index, seen| match index {
        0 => seen.clients = vec![client_at(0, old_print), client(ClientKind::Untold)],
        1 => {
            let name = String::new();
            seen.clients = vec![ClientSeen {
                name,
                ..client(ClientKind::Unknown)
            }];
        }
        3 => seen.clients = vec![client(ClientKind::Untold), client(ClientKind::Unknown)],
        _ => {}
    });
    let text = "at 192.0.2.1:7 takes locks but does not check the generation marker";
    let reported = surveyed.clients_without_notice(false);
    assert_lines(&reported, &["a: web", "b: a client without a name"], text);
    assert_lines(&surveyed.clients_without_notice(true), &["a: web"], text);
}

#[test]
fn configuration_is_refused_if_the_masters_that_reject_it_prevent_a_majority() {
    // The marker number 3 rejects clients that still know the old masters.
    let refuses = |marked| survey(marked).refuses();
    assert!(!refuses([Some(2); 6]));
    assert!(!refuses([
        Some(3),
        Some(2),
        Some(2),
        Some(3),
        Some(2),
        Some(2)
    ]));
    assert!(refuses([
        Some(3),
        Some(3),
        Some(2),
        Some(2),
        Some(2),
        Some(2)
    ]));
    assert!(refuses([
        Some(2),
        Some(2),
        Some(2),
        Some(3),
        Some(3),
        Some(2)
    ]));
    // A master that did not answer may admit the client.
    let mut surveyed = survey([Some(3), Some(3), Some(2), Some(2), Some(2), Some(2)]);
    surveyed.masters[0].seen.fault = Some(Fault::OutOfMemory);
    assert!(!surveyed.refuses());
}

#[test]
fn values_counters_and_owners_of_all_masters_are_merged() {
    let owner = [OWNER_VALUE_PREFIX.as_bytes(), b"order-7"].concat();
    let fence_key = [Family::Fence.key_prefix().as_bytes(), b"job"].concat();
    let surveyed = begun_with(|index, seen| {
        seen.names = vec![[b"z".to_vec(), b"y".to_vec()][index % 2].clone()];
        // The numbers of the next masters are larger, but only those of the old masters count.
        seen.counters = vec![(b"k".to_vec(), [5, 9, 7, 100, 100, 100][index])];
        seen.values = [1, 0, 0, 0, 2, 0][index];
        if index == 3 || index == 4 {
            seen.owned = vec![(fence_key.clone(), owner.clone())];
        }
    });
    assert_eq!(surveyed.value_names(), [b"y".to_vec(), b"z".to_vec()]);
    let largest_counters = surveyed.largest_counters();
    assert_eq!(
        largest_counters.into_iter().collect::<Vec<_>>(),
        [(b"k".to_vec(), 9)]
    );
    assert_lines(
        &surveyed.next_masters_with_values(),
        &["e"],
        "already stores 2 values",
    );
    let text = "cannot be raised while the owner \"order-7\" holds the lock";
    assert_lines(&surveyed.held_by_owners(), &["\"job\""], text);
}

#[test]
fn owner_is_reported_only_if_a_majority_of_the_next_masters_did_not_raise_the_counter() {
    let held_by_owners = |owned_at: &[usize], faults: &[usize]| {
        let surveyed = begun_with(|index, seen| {
            if owned_at.contains(&index) {
                seen.owned = vec![(b"k".to_vec(), b"owner".to_vec())];
            }
            if faults.contains(&index) {
                seen.fault = Some(Fault::OutOfMemory);
            }
        });
        surveyed.held_by_owners().len()
    };
    assert_eq!(held_by_owners(&[3], &[]), 0);
    assert_eq!(held_by_owners(&[3, 4], &[]), 1);
    assert_eq!(held_by_owners(&[3], &[5]), 1);
    assert_eq!(held_by_owners(&[0, 1, 2], &[]), 0);
    // The counters of different locks were refused, each by one master.
    let surveyed = begun_with(|index, seen| {
        let lock = format!("lock-{index}").into_bytes();
        seen.owned = vec![(lock, b"owner".to_vec())];
    });
    assert_eq!(surveyed.held_by_owners(), [""; 0]);
}

#[test]
fn missing_condition_is_followed_by_the_faults_of_the_masters() {
    let surveyed = begun_with(|index, seen| {
        seen.fault = (index == 2).then_some(Fault::OutOfMemory);
    });
    assert!(surveyed.missing_unless(true, "too few").is_empty());
    let missing = surveyed.missing_unless(false, "too few");
    assert_eq!(missing[0], "too few");
    assert_lines(&missing[1..], &["c: "], &Fault::OutOfMemory.to_string());
    assert_eq!(surveyed.faults(), missing[1..]);
    assert_eq!(surveyed.masters_without_fault(), set_of(&[0, 1, 3, 4, 5]));
}
