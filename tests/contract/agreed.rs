//! Tests that the memory master and other masters (a real server, stores) give the same replies to random sequences of
//! requests.

use quorate_contract::TestedMaster;
use quorate_contract::agreement::{Operations, Sequences, Times, compare};

use crate::server_keys::server;

fn compare_server(times: &Times, short_count: u32, full_count: u32, operations: Operations) {
    let sequences = Sequences::new(short_count, full_count);
    compare(async { server(None) }, times, sequences, operations);
}

/// Compares a store in memory. `has_clock` is whether this store has a clock.
fn compare_table(has_clock: bool, times: &Times, operations: Operations) {
    let table = async { TestedMaster::table(has_clock) };
    compare(table, times, Sequences::new(12, 40), operations);
}

#[test]
fn memory_master_and_real_master_give_the_same_reply_to_every_request() {
    compare_server(&Times::LASTING, 25, 200, Operations::Single);
}

#[test]
fn memory_master_replies_like_a_real_master_while_locks_expire_and_waiters_die() {
    compare_server(&Times::FLEETING, 8, 60, Operations::Single);
}

#[test]
fn memory_master_replies_like_a_real_master_for_reader_owner_and_multi_resource_locks() {
    compare_server(&Times::LASTING, 40, 300, Operations::Groups);
}

#[test]
fn memory_master_replies_like_a_real_master_while_holds_of_readers_and_owners_expire() {
    compare_server(&Times::FLEETING, 12, 160, Operations::Groups);
}

#[test]
fn memory_master_replies_like_a_real_master_while_waiters_join_and_leave_queues() {
    compare_server(&Times::FLEETING, 15, 200, Operations::Queue);
}

#[test]
fn store_with_a_server_clock_replies_like_the_memory_master() {
    compare_table(true, &Times::LASTING, Operations::Single);
    compare_table(true, &Times::LASTING, Operations::Groups);
}

#[test]
fn store_replies_like_the_memory_master_while_locks_expire_and_queues_change() {
    compare_table(true, &Times::FLEETING, Operations::Groups);
    compare_table(true, &Times::FLEETING, Operations::Queue);
}

#[test]
fn store_without_a_server_clock_replies_like_the_memory_master() {
    compare_table(false, &Times::LASTING, Operations::Single);
    compare_table(false, &Times::LASTING, Operations::Groups);
}
