//! One contract, every implementation of `Node`: a master in memory, a real server, and every
//! further server program that `QUORATE_TEST_SERVERS` names (paths with commas between).

mod acquire;
mod agreement;
mod arm;
mod classic;
mod confirm;
mod extend;
mod group;
mod look;
mod names;
mod note;
mod order;
mod permit;
mod release;
#[path = "../support/mod.rs"]
mod support;
mod value;

/// Runs each case on every arm.
macro_rules! contract {
    ($($module:ident: $($case:ident)*;)*) => {
        mod memory {
            $($(#[tokio::test]
            async fn $case() {
                crate::$module::$case(&crate::arm::Arm::memory()).await;
            })*)*
        }
        mod table {
            $($(#[tokio::test]
            async fn $case() {
                crate::$module::$case(&crate::arm::Arm::table(true)).await;
            })*)*
        }
        mod table_without_a_clock {
            $($(#[tokio::test]
            async fn $case() {
                crate::$module::$case(&crate::arm::Arm::table(false)).await;
            })*)*
        }
        mod server {
            $($(#[tokio::test]
            async fn $case() {
                crate::$module::$case(&crate::arm::Arm::server(None)).await;
            })*)*
        }
        mod other_servers {
            $($(#[tokio::test]
            async fn $case() {
                for arm in crate::arm::Arm::others() {
                    crate::$module::$case(&arm).await;
                }
            })*)*
        }
    };
}

contract! {
    acquire:
        a_free_lock_is_granted_and_its_key_holds_the_token
        a_held_lock_is_refused_with_the_time_that_is_left
        a_key_without_expiry_is_refused_without_a_time
        a_repeated_acquire_is_granted_again_and_changes_nothing
        the_counter_rises_with_every_grant_also_over_a_release
        a_proposal_near_the_masters_clock_is_taken_as_it_is
        a_proposal_from_the_future_is_held_to_one_second_ahead
        a_proposal_from_the_past_is_held_to_one_second_behind
        a_counter_above_the_proposal_wins
        an_expired_lock_is_free
        the_lock_lives_its_ttl_and_the_counter_a_day
        a_part_of_a_millisecond_counts_as_a_whole_one
        another_type_on_the_lock_key_is_a_fault_and_left_alone
        another_type_on_the_counter_key_is_a_fault_and_nothing_is_taken
        a_counter_that_cannot_be_counted_on_is_a_fault_and_nothing_is_taken
        a_withdrawn_acquire_takes_nothing
        of_a_long_value_a_refusal_and_a_look_tell_the_beginning;
    confirm:
        a_holder_sets_the_counter_to_exactly_the_number
        a_counter_at_the_number_is_confirmed
        a_counter_above_the_number_is_answered_and_kept
        only_the_holder_confirms
        a_confirmation_gives_the_counter_another_day_and_the_lock_nothing
        a_lost_counter_is_set_anew
        another_type_stands_in_the_way_of_a_confirmation
        a_withdrawn_confirmation_changes_nothing;
    release:
        a_holder_deletes_its_key_and_keeps_the_counter
        a_second_release_finds_nothing
        another_holders_key_is_left_alone
        another_type_is_left_alone_by_a_release
        a_withdrawn_claim_is_still_released
        an_expired_lock_is_no_longer_there_to_release;
    extend:
        an_extension_raises_the_expiry
        an_extension_never_shortens
        a_key_without_expiry_is_given_one
        a_missing_key_is_put_back
        another_holders_key_is_not_extended
        another_type_is_not_ours_to_extend
        an_extension_does_not_touch_the_counter
        a_withdrawn_lock_among_many_is_left_alone
        an_extension_of_withdrawn_locks_only_is_not_sent
        many_locks_are_answered_in_the_order_asked;
    look:
        a_look_at_nothing_finds_nothing
        a_look_tells_holder_time_and_counter
        a_look_changes_nothing
        a_look_at_another_type_is_a_fault
        a_break_deletes_the_lock_and_tells_what_was_there
        who_was_broken_stays_so_when_the_next_is_broken_too
        another_clients_lock_is_broken_without_a_mark
        a_break_that_cannot_be_noted_does_nothing
        a_break_of_nothing_is_no_fault
        a_break_leaves_another_type_alone;
    classic:
        a_classic_lock_keeps_no_counter
        a_classic_lock_is_refused_whatever_stands_there
        a_classic_and_a_fenced_lock_exclude_each_other
        a_classic_lock_is_extended_put_back_and_released;
    names:
        any_bytes_make_a_name
        names_that_differ_by_a_byte_are_different_locks;
    order:
        requests_take_effect_in_the_order_sent
        every_request_is_answered_once
        a_node_is_idle_when_all_is_answered
        a_claim_that_is_repeated_keeps_its_place_in_line_alive;
    permit:
        a_refusal_tells_of_every_slot_whether_it_is_free;
    group:
        who_joins_where_the_counter_is_gone_gets_no_number_and_no_place
        readers_behind_a_writer_that_gives_up_are_woken
        a_hold_that_was_broken_does_not_join_who_came_after
        a_key_that_cannot_be_renewed_stands_in_no_others_way
        another_type_where_a_break_is_noted_stands_in_no_others_way;
    value:
        where_nothing_was_written_nothing_is_read
        what_was_written_is_read_by_the_next_holder
        a_value_never_expires
        a_read_sets_the_counter_to_exactly_the_number
        only_the_holder_reads
        a_counter_above_the_number_is_answered_to_a_read
        a_value_of_a_larger_number_is_for_the_next_holder_to_read
        a_write_below_the_counter_is_refused
        a_write_below_the_number_of_the_value_is_refused
        numbers_decide_a_write_and_not_who_holds_the_lock
        a_value_is_removed_and_the_rest_stays
        what_another_run_of_the_server_wrote_is_not_vouched_for
        another_type_under_the_values_key_is_a_fault_and_left_alone
        a_string_of_somebody_elses_is_a_fault_and_left_alone
        a_lock_key_of_another_type_is_left_alone_by_a_read
        a_counter_of_another_type_stands_in_the_way_of_both
        a_withdrawn_claim_neither_reads_nor_writes
        a_write_whose_time_is_over_is_not_sent
        a_write_goes_to_the_run_of_the_server_that_was_read_and_to_no_other
        values_of_neighbouring_names_are_apart;
    note:
        a_note_of_the_holder_is_shown_and_kept_for_longer_than_its_lock
        the_term_of_a_leader_is_told_also_where_it_says_nothing_else
        a_note_takes_over_the_expiry_that_a_renewal_gave_its_lock
        a_renewal_keeps_the_note_alive_and_says_where_it_is_gone
        a_renewal_that_does_not_look_after_the_note_leaves_it_alone
        a_note_that_is_kept_is_not_shown_where_the_lock_is_gone
        only_the_holder_writes_a_note
        a_release_takes_the_note_along_and_never_anothers
        every_hold_of_a_class_has_a_note_that_ends_with_it
        a_note_that_was_left_is_never_shown_for_another_holder
        who_is_refused_in_order_is_told_the_holders_note
        a_break_tells_the_note_and_takes_it_along
        another_type_on_the_note_key_is_left_alone_and_in_nobodys_way
        a_withdrawn_lock_among_many_gets_no_note
        a_new_leader_is_announced_to_those_who_watch
        keys_are_named_by_what_their_names_begin_with;
}
