//! Counts what happened in a run: a simulation in which nothing happens proves nothing.

use std::fmt;

/// The groups of things that happen only if some masters are stores, or are replaced.
const STORES: &str = "stores";
const CHANGES: &str = "changes of masters";

macro_rules! counted {
    ($($group:literal { $($name:ident: $text:literal,)* })*) => {
        /// How often each thing happened.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Coverage {
            $($(#[doc = $text] pub $name: u64,)*)*
        }

        impl Coverage {
            /// Adds the counts of another run.
            pub fn add(&mut self, other: &Self) {
                $($(self.$name += other.$name;)*)*
            }

            /// Whether things of this group can have happened.
            fn may(&self, group: &str) -> bool {
                match group {
                    STORES => self.sessions > 0,
                    CHANGES => self.told > 0,
                    _ => true,
                }
            }

            /// The names of everything that never happened.
            pub fn missing(&self) -> Vec<&'static str> {
                let mut missing = Vec::new();
                $($(if self.$name == 0 && self.may($group) { missing.push($text); })*)*
                missing
            }
        }

        impl fmt::Display for Coverage {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                $(
                    writeln!(f, "{}", $group)?;
                    $(writeln!(f, "  {:<42}{:>14}", $text, grouped(self.$name))?;)*
                )*
                Ok(())
            }
        }
    };
}

counted! {
    "the lock" {
        acquired: "acquisitions",
        held_by_other: "refusals: held by another",
        no_quorum: "refusals: no quorum",
        too_late: "refusals: too late",
        cut: "acquires dropped midway",
        cut_releases: "releases dropped midway",
        hand_overs: "hand-overs to another client",
        confirms: "slow fencing rounds: confirmations sent",
        renewed: "validity prolonged",
        restored: "keys put back (healed minorities)",
        lost: "losses told to a holder",
        lined_up: "attempts from a place in line: sent",
        batches: "renewals of several locks at once",
        acquired_together: "attempts that came with others: sent",
        released_together: "releases that came with others: sent",
        deletions: "releases by the server's own command: sent",
        deletions_refused: "releases by a command that is not to be had",
        woken: "waiters woken",
        groups: "messages about several locks or classes",
        several: "holds of several resources",
        shared: "holds of readers",
        owned: "holds of owners",
        permits: "holds of permits",
        beside: "holds that began beside another",
        downgraded: "writers that became readers",
        not_downgraded: "writers that lost the lock over it",
        noted: "notes sent to masters",
        announced: "new leaders announced to somebody",
        leaders_seen: "leaders seen, with their notes",
        unnamed_seen: "leaders seen without a note",
        nobody_seen: "observers told of nobody",
        named_refusals: "refusals with the note of who holds",
        created: "values created",
        removed: "values removed",
        taken: "pieces taken",
        pieces_left: "looks at what is left, and sold out",
        due: "periods done",
        done_at_least: "periods done and then written down",
        not_recorded: "periods done and perhaps not written down",
        done_before: "periods found done",
        values_lost: "values found lost or missing",
        unknown: "writes that may have been or not",
        values_cut: "calls about values dropped midway",
        waited_after_healing: "waiters served after healing",
    }
    "masters" {
        crashes: "crashes",
        empty_restarts: "restarts, empty",
        stale_restarts: "restarts, stale disk",
        full_restarts: "restarts, nothing lost",
        stalls: "stalls",
        jumps: "clock jumps",
        refusals: "requests refused: BUSY, OOM, hung up, ..",
        forgotten_scripts: "scripts asked for and not there",
        garbage: "answers to another question",
        strangers: "values of strangers under lock keys",
        breaks: "locks broken by somebody",
        skips: "days in which nobody came",
    }
    "network" {
        partitions: "partitions",
        lost_packets: "packets lost and sent again",
        duplicates: "messages executed twice",
        leftovers: "messages after their connection",
        resets: "connections reset",
        reconnects: "connections made",
        half_open: "connections forgotten by one side",
        kicked: "old connections ended by new ones",
        pings: "signs of life asked for",
        owed: "releases first on a new connection",
    }
    "stores" {
        sessions: "sessions",
        loads: "reads",
        stale_loads: "reads that were out of date",
        commits: "commits",
        stale_commits: "commits that found another version",
        late_commits: "commits done for a session that was given up",
        late_stale: "those that found another version",
        stuck: "commits that waited at the server",
        words: "words to those who listen",
    }
    "changes of masters" {
        told: "clients told other masters",
        prepared: "marks set by who prepares",
        closed: "masters closed",
        opened: "masters opened",
        finished: "masters whose change was finished",
        ended: "connections of outdated clients ended",
        carried: "fencing counters raised by who opens",
        retired: "masters stopped for good",
        unanswered: "words of operators without an answer",
        not_yet: "steps that were not taken yet",
        refused_by_mark: "votes refused by the mark",
        given_again: "marks given again by clients",
        fallen: "masters that came back with an older mark",
        mended: "marks written by hand after a majority was lost",
        split: "runs whose masters lost too many marks",
        joint: "holds by masters of two sets",
        later: "holds by masters that came later",
    }
    "clients" {
        pauses: "processes paused",
        kills: "processes killed",
        dozes: "tasks paused at an await",
        preempted: "tasks paused between two looks at a clock",
    }
    "in all" {
        messages: "messages executed by masters",
        events: "events",
        sim_ms: "simulated milliseconds",
    }
}

/// Formats a number with its digits in groups of three.
pub fn grouped(number: u64) -> String {
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
