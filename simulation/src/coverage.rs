//! Counts the events of a run. If an event never happens in any run, the code for this event is not tested.

use std::fmt;

/// The group of counted events that happen only if some masters are stores (databases or ZooKeeper).
const STORE_EVENTS: &str = "stores";
/// The group of counted events that happen only if clients count the runs of stores, or if stores number their changes.
const RUN_EVENTS: &str = "runs of stores";
/// The group of counted events that happen only if masters are replaced.
const CHANGE_EVENTS: &str = "changes of masters";
/// The group of counted events that happen only if each client process takes only one step.
const SHORT_PROCESS_EVENTS: &str = "short processes";

macro_rules! counted {
    ($($group:literal { $($name:ident: $text:literal,)* })*) => {
        /// How often each event happened.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Coverage {
            $($(#[doc = $text] pub $name: u64,)*)*
        }

        impl Coverage {
            /// Adds the counts of another run to these counts.
            pub fn add(&mut self, other: &Self) {
                $($(self.$name += other.$name;)*)*
            }

            /// Whether the events of this group can happen in the counted runs.
            fn is_possible(&self, group: &str) -> bool {
                match group {
                    STORE_EVENTS => self.sessions > 0,
                    RUN_EVENTS => self.raised_ages > 0,
                    CHANGE_EVENTS => self.marked_runs > 0,
                    SHORT_PROCESS_EVENTS => self.ended_processes > 0,
                    _ => true,
                }
            }

            /// Returns the names of all events that could have happened in the counted runs but never did.
            pub fn events_that_never_happened(&self) -> Vec<&'static str> {
                let mut missing = Vec::new();
                $($(if self.$name == 0 && self.is_possible($group) { missing.push($text); })*)*
                missing
            }
        }

        impl fmt::Display for Coverage {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                $(
                    writeln!(f, "{}", $group)?;
                    $(writeln!(f, "  {:<42}{:>14}", $text, format_grouped(self.$name))?;)*
                )*
                Ok(())
            }
        }
    };
}

counted! {
    "the lock" {
        acquired: "acquisitions",
        held_by_other: "refusals: another client holds the lock",
        no_quorum: "refusals: no quorum",
        too_late: "refusals: too late",
        dropped_acquires: "acquires dropped midway",
        dropped_releases: "releases dropped midway",
        hand_overs: "locks handed over to another client",
        confirms: "confirmations of fencing tokens sent",
        renewed: "validity extended",
        restored: "lock keys restored by extensions",
        risk_notices: "notices that a lock may be lost soon",
        lost_locks: "lost locks reported to their holders",
        queued_requests: "lock requests of queued waiters",
        batches: "renewals of several locks in one request",
        acquired_together: "lock requests sent in batches",
        released_together: "releases sent in batches",
        deletions: "releases with the command DELIFEQ",
        deletions_refused: "DELIFEQ commands refused",
        woken_waiters: "wake-ups sent to waiters",
        groups: "requests for shared locks or several keys",
        holds_of_several: "holds of several resources",
        reader_holds: "holds of readers",
        owner_holds: "holds of owners",
        permits: "holds of permits",
        shared_holders: "further holders of a shared lock",
        downgraded: "writers downgraded to readers",
        not_downgraded: "write locks lost during a downgrade",
        notes_sent: "holders' notes sent to masters",
        leaders_announced: "new leaders announced to observers",
        leaders_seen: "leaders reported with their notes",
        unnamed_seen: "leaders reported without a note",
        nobody_seen: "reports that there is no leader",
        named_refusals: "refusals that contain the holder's note",
        values_created: "values created",
        values_removed: "values removed",
        units_taken: "units taken",
        units_left: "reports of the number of units left",
        once_jobs_done: "jobs of `once` done",
        jobs_done_then_recorded: "jobs of `once` done, then recorded",
        jobs_not_recorded: "jobs of `once` done, perhaps not recorded",
        jobs_skipped: "jobs of `once` skipped: already done",
        values_lost: "calls that found a value lost or missing",
        unknown_writes: "writes with an unknown result",
        values_cut: "quota and `once` calls dropped midway",
        waited_after_healing: "locks acquired after all faults ended",
    }
    "masters" {
        crashes: "crashes",
        empty_restarts: "restarts, everything lost",
        stale_restarts: "restarts, the latest changes lost",
        full_restarts: "restarts, nothing lost",
        stalls: "messages that waited for a stalled master",
        jumps: "clock jumps",
        refusals: "requests refused: BUSY, OOM and the like",
        out_of_memory_refusals: "requests refused: OOM for some keys only",
        forgotten_scripts: "calls of scripts that were not loaded",
        garbage: "malformed replies",
        foreign_keys: "lock keys written by another program",
        force_releases: "locks force-released at Redis masters",
        skipped_days: "jumps of all clocks by several days",
    }
    "network" {
        partitions: "packets delayed by partitions",
        lost_packets: "packets lost and sent again",
        duplicates: "messages executed twice",
        leftovers: "packets received after a connection ended",
        resets: "connections reset",
        reconnects: "connections made",
        half_open: "connections dead on one side only",
        killed_connections: "old connections closed with CLIENT KILL",
        pings: "pings on connections",
        pending_releases: "connections that first send a release",
    }
    "stores" {
        sessions: "sessions",
        loads: "reads",
        stale_loads: "stale reads",
        commits: "commits",
        stale_commits: "commits refused: the record had changed",
        late_commits: "late commits of abandoned sessions",
        late_stale: "late commits refused as outdated",
        delayed_commits: "commits that the server delayed",
        store_wake_ups: "wake-up messages to listeners",
        store_force_releases: "locks force-released at stores",
    }
    "runs of stores" {
        begun_runs: "runs begun: the server had no row",
        replaced_runs: "runs replaced: the row did not fit",
        runs_begun_again: "runs begun again: the store was set back",
        raised_ages: "ages of runs raised by clients",
        backend_crashes: "crashes of one backend that ended a run",
        clean_restarts: "clean restarts",
        promotions: "promotions of standbys that lacked commits",
        old_copies: "starts of old copies that contained a run",
        emptied_tables: "tables of records emptied",
        ended_sessions: "sessions ended: the table was emptied, or another run began",
        machines_set_back: "machines set back with their memory",
        restored_snapshots: "snapshots restored under the same names",
        refused_numbers: "answers refused: the store was set back",
        repaired_stores: "stores with another identity",
    }
    "changes of masters" {
        marked_runs: "runs with generation markers",
        reconfigured: "clients reconfigured",
        begin_markers: "markers written by `masters begin`",
        closed_masters: "masters closed",
        opened_masters: "masters opened",
        finish_markers: "markers written by `masters finish`",
        closed_outdated: "connections of outdated clients closed",
        carried_counters: "fencing counters raised by `masters open`",
        retired_masters: "masters stopped for good",
        unanswered_commands: "operator commands without an answer",
        failed_operator_steps: "operator steps that failed",
        refused_by_mark: "votes refused by a generation marker",
        restored_markers: "generation markers restored by clients",
        written_age_records: "age records raised or started by clients",
        restarts_with_older_marker: "masters restarted with an older marker",
        markers_written_by_hand: "markers restored by the administrator",
        lost_marker_majorities: "runs in which a majority lost its markers",
        wall_clock_jumps: "jumps of clients' wall clocks",
        joint_holds: "holds that need two majorities of masters",
        holds_after_replacement: "holds on new masters after a replacement",
    }
    "clients" {
        pauses: "processes paused during their work",
        kills: "processes killed",
        task_delays: "tasks delayed at an await point",
        preemptions: "tasks preempted before reading a clock",
    }
    "short processes" {
        ended_processes: "processes that took only one step",
        elections: "leaders of stores changed",
    }
    "in all" {
        messages: "messages executed by masters",
        events: "events",
        sim_ms: "simulated milliseconds",
    }
}

/// Formats a number with its digits in groups of three.
pub fn format_grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}
