//! Tests that the memory master and other masters (a real server, stores) give the same replies to random sequences of
//! requests.

use proptest::prelude::*;

use crate::agreement::{
    Deed, FLEETING, LASTING, Sequences, Times, compare_with, deed, group_deed, line_deed,
};
use crate::arm::Arm;

fn compare(times: &Times, cases: Sequences, deeds: impl Strategy<Value = Deed>) {
    compare_with(|| Arm::server(None), times, cases, deeds);
}

#[test]
fn memory_master_and_real_master_give_the_same_reply_to_every_request() {
    compare(&LASTING, Sequences::of(25, 200), deed());
}

#[test]
fn memory_master_replies_like_a_real_master_while_locks_expire_and_waiters_die() {
    compare(&FLEETING, Sequences::of(8, 60), deed());
}

#[test]
fn memory_master_replies_like_a_real_master_for_reader_owner_and_multi_resource_locks() {
    compare(&LASTING, Sequences::of(40, 300), group_deed());
}

#[test]
fn memory_master_replies_like_a_real_master_while_holds_of_readers_and_owners_expire() {
    compare(&FLEETING, Sequences::of(12, 160), group_deed());
}

#[test]
fn memory_master_replies_like_a_real_master_while_waiters_join_and_leave_queues() {
    compare(&FLEETING, Sequences::of(15, 200), line_deed());
}

#[test]
fn store_with_a_server_clock_replies_like_the_memory_master() {
    compare_with(|| Arm::table(true), &LASTING, Sequences::of(12, 40), deed());
    compare_with(
        || Arm::table(true),
        &LASTING,
        Sequences::of(12, 40),
        group_deed(),
    );
}

#[test]
fn store_replies_like_the_memory_master_while_locks_expire_and_queues_change() {
    compare_with(
        || Arm::table(true),
        &FLEETING,
        Sequences::of(12, 40),
        group_deed(),
    );
    compare_with(
        || Arm::table(true),
        &FLEETING,
        Sequences::of(12, 40),
        line_deed(),
    );
}

#[test]
fn store_without_a_server_clock_replies_like_the_memory_master() {
    compare_with(
        || Arm::table(false),
        &LASTING,
        Sequences::of(12, 40),
        deed(),
    );
    compare_with(
        || Arm::table(false),
        &LASTING,
        Sequences::of(12, 40),
        group_deed(),
    );
}
