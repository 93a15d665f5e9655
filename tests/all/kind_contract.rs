//! The contract of kinds: the same questions to every kind of lock, on real masters. `tests/contract` is the same for
//! kinds of masters.
//!
//! - `kind.rs` has the interface of a kind, and `kinds.rs` implements it for each kind.
//! - The questions are functions in `acquiring.rs`, `waiting.rs`, `waking.rs`, `holding.rs` and `fencing.rs`. Each of
//!   these files is a group of questions.
//! - The list at the end of this file has one row for each kind: the groups of questions that this kind is asked. If a
//!   group has no meaning for a kind, the row shows the reason.

mod acquiring;
mod fencing;
mod holding;
mod kind;
mod kinds;
mod waiting;
mod waking;
mod world;

use std::collections::BTreeSet;

use self::kind::Kind;

/// Defines a macro for each group, which defines one test for each question. The module that calls it defines `KIND`.
macro_rules! define_groups {
    ($($group:ident: $($question:ident)*;)*) => {
        $(macro_rules! $group {
            () => {
                mod $group {
                    $(#[tokio::test]
                    async fn $question() {
                        crate::kind_contract::$group::$question(super::KIND).await;
                    })*
                }
            };
        })*

        /// The names of the groups of questions.
        const GROUPS: &[&str] = &[$(stringify!($group)),*];
    };
}

define_groups! {
    acquiring:
        lock_is_refused_while_held_and_leaves_no_key_when_it_is_released
        acquire_of_a_held_lock_ends_at_its_wait_limit
        one_dead_master_of_three_changes_nothing_and_two_give_no_quorum
        key_of_another_program_is_reported_and_not_changed
        lock_of_a_dead_client_can_be_acquired_after_its_ttl
        acquire_dropped_at_any_await_point_leaves_no_key
        acquire_dropped_at_any_time_leaves_no_key_on_real_masters
        waiting_acquire_dropped_at_any_await_point_leaves_no_key
        client_without_fencing_is_refused_or_gets_no_token;
    waiting:
        release_by_another_client_wakes_the_waiter;
    waking:
        release_wakes_a_waiter;
    holding:
        held_lock_excludes_others_and_has_its_keys_on_every_master
        dropped_guard_releases_the_lock
        renewal_keeps_the_lock_beyond_its_ttl
        renewal_restores_a_key_that_one_master_lost
        loss_is_reported_if_a_majority_has_another_value_in_a_lock_key
        loss_is_reported_after_a_forced_release
        force_released_lock_is_not_restored_on_a_master_that_did_not_have_it
        lock_of_a_dead_holder_can_be_acquired_after_its_ttl
        lock_on_memory_masters_is_listed_extended_and_force_released
        lock_on_memory_masters_leaves_no_key_after_max_hold_or_a_dropped_acquire;
    fencing:
        tokens_rise_over_holds_and_over_a_restart_of_a_master;
}

/// One row of the list of kinds.
struct KindRow {
    name: &'static str,
    kind: &'static dyn Kind,
    groups: &'static [&'static str],
    /// The groups of questions that have no meaning for this kind, each with the reason.
    excluded_groups: &'static [(&'static str, &'static str)],
}

/// Defines the tests of each kind, and the list of all kinds.
macro_rules! define_kinds {
    ($($module:ident: $kind:ident [$($group:ident)*] $(excluded_groups $not:ident: $why:literal)*;)*) => {
        $(mod $module {
            const KIND: &dyn super::Kind = &super::kinds::$kind;
            $($group!();)*
        })*

        const KINDS: &[KindRow] = &[$(KindRow {
            name: stringify!($module),
            kind: &kinds::$kind,
            groups: &[$(stringify!($group)),*],
            excluded_groups: &[$((stringify!($not), $why)),*],
        }),*];
    };
}

define_kinds! {
    fair: Fair [acquiring waiting waking holding fencing];
    unordered: Unordered [acquiring holding fencing]
        excluded_groups waiting: "the waiter polls, because the masters store no queue"
        excluded_groups waking: "the waiter polls, because the masters store no queue";
    classic: Classic [acquiring holding]
        excluded_groups waiting: "the waiter polls, because clients without fencing do not queue"
        excluded_groups waking: "the waiter polls, because clients without fencing do not queue"
        excluded_groups fencing: "the lock has no token";
    several: Several [acquiring waiting waking holding fencing];
    reader: Reader [acquiring waiting waking holding fencing];
    owner: Owner [acquiring waiting waking holding fencing];
    permit: Permit [acquiring waiting waking holding fencing];
    leader: Leader [acquiring waiting waking holding fencing];
    once: Once [acquiring waiting waking holding fencing];
    quota: Quota [acquiring waiting]
        excluded_groups waking: "each call releases the lock before it returns"
        excluded_groups holding: "each call releases the lock before it returns"
        excluded_groups fencing: "the call does not return the token of its lock";
}

#[test]
fn every_kind_is_asked_each_group_of_questions_or_gives_a_reason() {
    for row in KINDS {
        let excluded_groups = row.excluded_groups.iter().map(|(group, _)| *group);
        let mut group_names: Vec<&str> =
            row.groups.iter().copied().chain(excluded_groups).collect();
        group_names.sort_unstable();
        let mut all_groups = GROUPS.to_vec();
        all_groups.sort_unstable();
        assert_eq!(group_names, all_groups, "{}", row.name);
        assert!(row.excluded_groups.iter().all(|(_, why)| !why.is_empty()));
    }
}

fn read_text(path: &str) -> String {
    let path = crate::repository::root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The variants of the enum `Kind` of the library.
fn kind_variants() -> Vec<String> {
    let code = read_text("src/acquire/kind.rs");
    let (_, body) = code.split_once("enum Kind {\n").expect("the enum");
    let (body, _) = body.split_once("\n}\n").expect("the end of the enum");
    let lines = body.lines().map(str::trim);
    let variant_lines =
        lines.filter(|line| line.starts_with(|first: char| first.is_ascii_uppercase()));
    let names = variant_lines.filter_map(|line| line.split(['(', ',']).next());
    names.map(|name| format!("Kind::{name}")).collect()
}

/// The files of a folder of the library, except `mod.rs`.
fn files_of_folder(folder: &str) -> Vec<String> {
    let modules = read_text(&format!("{folder}/mod.rs"));
    let names = modules.lines().filter_map(|line| {
        let (_, name) = line.split_once("mod ")?;
        name.strip_suffix(';')
    });
    names.map(|name| format!("{folder}/{name}.rs")).collect()
}

/// The calls in the first table of `docs/kinds.md`, without their arguments, e.g. `redlock.lock.shared`.
fn calls_on_the_page() -> Vec<String> {
    let page = read_text("docs/kinds.md");
    let (_, table) = page.split_once("| you want |").expect("the table");
    let rows = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let calls = rows.filter_map(|row| row.split('`').nth(1));
    let names = calls.map(|call| {
        let parts = call.split(['(', ')']).step_by(2);
        parts.collect::<String>()
    });
    names.collect()
}

/// Variants of the enum `Kind` that are no kinds of locks, each with the reason.
const NO_KINDS: [(&str, &str); 2] = [
    (
        "Kind::RawKey",
        "only the replacement of masters takes this lock",
    ),
    ("Kind::InvalidShared", "an invalid request"),
];

#[test]
fn every_kind_of_the_library_is_in_the_contract() {
    let parts_in_contract: BTreeSet<&str> = KINDS
        .iter()
        .flat_map(|row| row.kind.parts_of_the_library())
        .copied()
        .chain(NO_KINDS.map(|(name, _)| name))
        .collect();
    let parts_in_library = [
        kind_variants(),
        files_of_folder("src/kinds"),
        calls_on_the_page(),
    ]
    .concat();
    assert!(parts_in_library.len() > 15, "{parts_in_library:?}");
    for part in &parts_in_library {
        assert!(
            parts_in_contract.contains(&**part),
            "tests/all/kind_contract.rs must have a row for {part}"
        );
    }
    for part in parts_in_contract {
        assert!(
            parts_in_library.iter().any(|other| other == part),
            "{part} does not exist"
        );
    }
}
