//! The cases of the contract. Each case is a function that panics if the master fails it. Its name describes the rule.
#![allow(missing_docs, reason = "the name of a case is its description")]

pub mod acquire;
pub mod classic;
pub mod confirm;
pub mod counter;
pub mod extend;
pub mod force_release;
pub mod group;
pub mod line;
pub mod names;
pub mod note;
pub mod operator;
pub mod order;
pub mod permit;
pub mod release;
pub mod status;
pub mod value;

/// Calls a macro with the list of all cases of the contract, by their modules in [`cases`](crate::cases).
///
/// For example, this macro defines a test for each case:
///
/// ```no_run
/// macro_rules! tests {
///     ($($module:ident: $($case:ident)*;)*) => {
///         $($(#[tokio::test]
///         async fn $case() {
///             let master = quorate_contract::TestedMaster::memory();
///             quorate_contract::cases::$module::$case(&master).await;
///         })*)*
///     };
/// }
///
/// quorate_contract::all_cases!(tests);
/// ```
#[macro_export]
macro_rules! all_cases {
    ($with:ident) => {
        $with! {
            acquire:
                acquire_of_a_free_lock_is_granted_and_sets_the_lock_key_to_the_token
                acquire_of_a_held_lock_is_refused_with_the_remaining_ttl_of_the_lock
                acquire_of_a_lock_key_without_expiry_is_refused_without_a_remaining_ttl
                repeated_acquire_by_the_holder_is_granted_again_and_changes_nothing
                fencing_counter_rises_with_every_grant_even_after_a_release
                proposed_fencing_number_near_the_masters_clock_is_granted_unchanged
                proposed_fencing_number_is_lowered_to_at_most_one_second_ahead_of_the_masters_clock
                proposed_fencing_number_is_raised_to_at_most_one_second_behind_the_masters_clock
                granted_fencing_number_exceeds_a_counter_above_the_proposed_number
                expired_lock_can_be_acquired_by_another_client
                lock_key_expires_after_its_ttl_and_the_fencing_counter_after_a_day
                ttl_is_rounded_up_to_whole_milliseconds
                acquire_fails_and_changes_nothing_if_the_lock_key_has_another_data_type
                acquire_fails_and_sets_no_lock_key_if_the_fencing_counter_has_another_data_type
                acquire_and_confirmation_fail_if_the_fencing_counter_cannot_be_incremented
                acquire_of_a_withdrawn_claim_sets_no_key
                refusal_and_status_request_return_the_first_96_bytes_of_a_long_lock_value;
            confirm:
                confirmation_by_the_holder_sets_the_fencing_counter_to_the_confirmed_number
                fencing_number_equal_to_the_fencing_counter_is_confirmed
                confirmation_of_a_number_below_the_fencing_counter_is_refused_with_the_counter
                only_the_holder_can_confirm_its_fencing_token
                confirmation_extends_the_expiry_of_the_fencing_counter_but_not_of_the_lock
                confirmation_restores_a_deleted_fencing_counter
                confirmation_fails_if_the_fencing_counter_or_the_lock_key_has_another_data_type
                confirmation_for_a_withdrawn_claim_changes_nothing;
            counter:
                counter_ahead_of_the_clock_expires_a_day_after_the_time_in_its_number
                counter_expires_at_least_a_day_after_each_grant
                counter_raised_ahead_of_the_clock_expires_a_day_after_the_time_in_its_number
                fencing_counter_far_ahead_of_every_clock_can_be_set_and_is_kept_for_decades;
            release:
                release_by_the_holder_deletes_the_lock_key_and_keeps_the_fencing_counter
                second_release_reports_that_it_deleted_nothing
                release_does_not_delete_the_lock_key_of_another_holder
                release_does_not_delete_a_lock_key_of_another_data_type
                lock_of_a_withdrawn_claim_can_be_released
                release_of_an_expired_lock_reports_that_it_deleted_nothing;
            extend:
                extension_raises_the_expiry_of_the_lock_key
                extension_never_shortens_the_ttl_of_the_lock_key
                extension_gives_an_expiry_to_a_lock_key_without_one
                extension_restores_a_missing_lock_key
                extension_does_not_change_the_lock_key_of_another_holder
                lock_key_of_another_data_type_is_not_extended
                extension_does_not_change_the_fencing_counter
                withdrawn_lock_in_an_extension_of_many_is_not_extended
                extension_of_only_withdrawn_locks_is_not_sent
                extension_of_many_locks_is_answered_in_request_order;
            line:
                heartbeat_restores_a_missing_ticket_key
                missing_ticket_key_is_restored_to_the_largest_ticket_even_by_a_waiter_with_a_smaller_one
                forced_release_wakes_the_first_waiter_whose_heartbeat_time_has_not_ended
                release_wakes_the_first_waiter_whose_heartbeat_time_has_not_ended
                ticket_key_of_a_new_queue_expires_with_its_only_waiter
                batched_release_wakes_the_first_waiter_of_a_queue_whose_ticket_key_was_restored;
            status:
                status_request_for_an_absent_lock_returns_an_empty_state
                status_request_returns_the_holder_the_remaining_ttl_and_the_fencing_counter
                status_request_returns_each_waiter_with_the_time_at_which_its_wait_began
                status_request_changes_no_key
                status_request_fails_if_the_lock_key_has_another_data_type;
            force_release:
                forced_release_deletes_the_lock_key_and_returns_its_value
                force_released_holder_cannot_renew_after_the_next_holder_is_force_released
                break_record_outlives_the_longest_ttl_of_any_client
                first_of_hundreds_of_force_released_holders_cannot_renew_its_lock
                force_release_is_refused_if_the_break_record_is_full
                forced_release_of_a_foreign_lock_writes_no_break_record
                renewal_does_not_restore_a_force_released_lock_key_that_had_no_expiry
                forced_release_fails_and_keeps_the_lock_key_if_the_break_record_cannot_be_written
                forced_release_of_an_absent_lock_succeeds
                forced_release_does_not_delete_a_lock_key_of_another_data_type
                lock_that_only_another_master_has_cannot_be_renewed_after_its_forced_release
                forced_release_of_other_locks_keeps_the_lock_key
                lock_key_that_a_delayed_acquire_sets_after_a_forced_release_cannot_be_renewed
                repeated_forced_release_adds_a_lock_to_the_break_record_once;
            classic:
                lock_of_the_classic_algorithm_has_no_fencing_counter
                acquire_of_a_classic_lock_is_refused_if_the_lock_key_exists_with_any_value
                classic_lock_and_lock_with_a_fencing_token_exclude_each_other
                classic_lock_is_extended_restored_and_released;
            names:
                name_of_a_lock_can_contain_any_bytes
                names_that_differ_by_a_byte_are_different_locks;
            order:
                requests_take_effect_in_the_order_in_which_they_are_sent
                every_request_is_answered_exactly_once
                node_is_idle_when_every_request_is_answered
                repeated_acquire_by_a_holder_with_a_ticket_extends_its_place_in_the_queue;
            permit:
                refusal_of_a_permit_shows_which_slots_are_free;
            group:
                shared_hold_that_joins_while_the_fencing_counter_is_missing_fails_and_is_not_recorded
                repeated_acquire_of_a_shared_hold_does_not_change_its_expiry
                reader_queued_behind_a_writer_is_woken_when_the_writer_leaves_the_queue
                renewal_of_a_force_released_reader_does_not_join_the_readers_that_came_later
                shared_hold_acquired_after_a_forced_release_is_restored_by_its_renewal
                hold_that_a_delayed_acquire_takes_after_a_forced_release_cannot_be_renewed
                forced_release_keeps_a_shared_lock_with_a_hold_that_joined_later
                downgrade_of_a_force_released_lock_is_refused_even_if_the_lock_key_was_set_again
                lock_on_several_resources_is_refused_while_one_lock_key_has_a_foreign_value
                downgrade_of_a_force_released_lock_is_refused_with_the_remaining_ttl_of_the_next_holder
                writer_that_becomes_a_reader_leaves_the_queue
                lock_with_a_malformed_fencing_counter_does_not_affect_the_renewal_of_other_locks
                break_record_of_another_data_type_does_not_affect_the_renewal_of_other_locks;
            value:
                read_of_an_absent_stored_value_returns_nothing
                written_stored_value_is_read_by_the_next_holder
                stored_value_never_expires
                read_of_a_stored_value_sets_the_fencing_counter_to_the_number_of_its_reader
                only_the_holder_of_the_lock_can_read_the_stored_value
                read_with_a_number_below_the_fencing_counter_is_refused_with_the_counter
                stored_value_with_a_number_ahead_of_its_reader_can_be_read_only_by_a_later_holder
                write_with_a_number_below_the_fencing_counter_is_refused
                write_with_a_number_below_that_of_the_stored_value_is_refused
                write_with_a_number_below_that_of_a_removal_is_refused
                write_is_decided_by_fencing_numbers_and_not_by_the_lock_key
                removal_of_a_stored_value_keeps_the_lock_key_and_the_fencing_counter
                stored_value_of_another_server_run_is_trusted_on_durable_servers_only
                read_write_and_removal_fail_if_the_key_of_the_value_has_another_data_type
                read_write_and_removal_fail_if_the_key_of_the_value_contains_a_foreign_string
                read_of_a_stored_value_does_not_change_a_lock_key_of_another_data_type
                read_and_write_of_a_stored_value_fail_if_the_fencing_counter_has_another_data_type
                withdrawn_claim_can_neither_read_nor_write_the_stored_value
                write_whose_deadline_has_passed_is_not_sent
                write_applies_only_to_the_server_run_that_was_read
                stored_values_of_similar_lock_names_are_separate;
            note:
                status_shows_the_holders_note_which_outlives_the_lock_key
                status_shows_the_term_of_a_leader_with_or_without_a_note
                note_that_is_written_again_after_an_extension_expires_later
                renewal_extends_the_note_and_reports_a_missing_note
                renewal_without_the_note_flag_leaves_the_note_unchanged
                status_does_not_show_a_note_whose_lock_key_is_gone
                only_the_holder_of_the_lock_can_write_a_note
                release_removes_only_the_note_of_the_released_holder
                each_reader_has_its_own_note_which_its_release_removes
                leftover_note_is_never_shown_for_another_holder
                refusal_of_an_ordered_acquire_contains_the_holders_note
                forced_release_returns_and_removes_the_note
                note_key_of_another_data_type_is_ignored
                withdrawn_claim_in_a_request_for_several_notes_gets_no_note
                new_leader_is_announced_to_its_observers
                listing_returns_string_keys_whose_names_match_the_pattern;
        }
    };
}

/// Calls a macro with the list of the cases about the orders of operators, in the same form as
/// [`all_cases!`](crate::all_cases). Only masters that store a generation marker must pass these cases: those whose
/// [`Node::change`](quorate::node::Node::change) executes orders.
#[macro_export]
macro_rules! operator_cases {
    ($with:ident) => {
        $with! {
            operator:
                raised_marker_is_stored_with_an_age_record_if_the_master_had_none
                restored_marker_gets_an_age_record_of_zero
                generation_marker_is_raised_but_never_lowered
                raised_marker_keeps_the_age_record
                name_is_added_to_a_marker_of_the_same_masters_and_number_only
                text_that_is_no_marker_is_not_overwritten
                marker_key_of_another_data_type_is_not_overwritten
                counter_below_the_carried_number_is_raised_and_expires_like_a_granted_one
                counter_above_the_carried_number_is_not_lowered
                counter_carried_ahead_of_the_clock_expires_a_day_after_the_time_in_its_number
                counter_of_a_lock_that_an_owner_holds_is_reported_and_not_raised
                counter_above_the_carried_number_is_not_reported_although_an_owner_holds_the_lock
                counter_is_raised_although_a_reader_or_another_client_holds_the_lock
                counter_is_raised_although_the_lock_key_has_another_data_type
                carrying_stops_at_a_counter_of_another_data_type
                carrying_stops_at_a_malformed_counter
                counters_far_behind_the_clock_are_not_listed
                listed_values_are_the_locks_under_which_a_value_is_stored;
        }
    };
}
