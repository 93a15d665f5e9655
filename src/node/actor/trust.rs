//! Records which server process runs at the address of each master. Decides whether the votes of that process count,
//! and which of its stored values are trusted.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use crate::node::{Fault, NodeName, ServerRun};
use crate::protocol::age::{AgeRecord, Watch};
use crate::protocol::instant::Instant;

/// Decides which stored values of the server at the other end of a connection are trusted.
#[derive(Clone, Debug)]
pub(in crate::node) struct Memory {
    /// The current run of the server process. The connection cannot outlive this run.
    pub(in crate::node) run: ServerRun,
    /// Whether the restart guard is off, because the server loses no data in a restart. Then values that were written
    /// in earlier runs of the server process are trusted too.
    pub(in crate::node) is_durable: bool,
}

impl Memory {
    /// Creates the state for a server.
    ///
    /// - `run` is the server's run id; `None` if the server does not report one.
    /// - `is_durable` is true if the restart guard is off, because the server loses no data in a restart.
    pub(in crate::node) fn new(run: Option<&str>, is_durable: bool) -> Self {
        let one_word = |run: &&str| !run.is_empty() && !run.contains(char::is_whitespace);
        let run = ServerRun::new(run.filter(one_word).unwrap_or("-"));
        Self { run, is_durable }
    }

    /// Whether a stored value that was written in the server run `run` is certainly the newest value. True if the
    /// server is still in this run, or if the server loses nothing in a restart.
    pub(in crate::node) fn trusts(&self, run: &[u8]) -> bool {
        self.is_durable || self.run.as_str().as_bytes() == run
    }
}

/// The runs of one master's server process that this client has seen, across connections.
#[derive(Default)]
pub(in crate::node) struct RunHistory(Mutex<RunRecords>);

#[derive(Default)]
struct RunRecords {
    /// The run id that the server reported on the first connection; `None` before the first connection.
    first_run: Option<String>,
    /// The server's run id, and the client id that the server assigned, both from the last connection. `None` before
    /// the first connection.
    last_connection: Option<(String, i64)>,
    /// The latest run id, and the time until which the restart guard ignores the master's votes (the zero `Instant` if
    /// the run id has never changed). `None` before the first connection.
    latest_run: Option<(String, Instant)>,
    /// The latest run id, and when this client first saw it. `None` before the first connection.
    latest_since: Option<(String, Instant)>,
    /// For how long clients have watched the latest server run, if the server has a generation marker. `None` if no
    /// connection has read the age record.
    watch: Option<Watch>,
    /// The number of times that [`RunHistory::new_life`] was called.
    life_count: u64,
}

impl RunHistory {
    /// Returns a copy for an additional connection to the same master. A new connection closes the connection whose
    /// client id is stored here. So the copy has no client id, and the first connection stays open.
    pub(in crate::node) fn for_another_connection(&self) -> Self {
        let records = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Self(Mutex::new(RunRecords {
            first_run: records.first_run.clone(),
            last_connection: None,
            latest_run: records.latest_run.clone(),
            // The additional connection may use another clock, whose times cannot be compared with these.
            latest_since: None,
            watch: None,
            life_count: records.life_count,
        }))
    }

    /// Records the run id `run`, which the master reported at `answered`. Returns the time until which the restart
    /// guard withholds the master's votes: `max_ttl` after the run id last changed. If the run id has never changed,
    /// returns the time 0, and no vote is withheld.
    ///
    /// A change of the run id counts even if the server reports a long uptime: a different server may now have this
    /// address.
    pub(in crate::node) fn guarded_until(
        &self,
        run: &str,
        answered: Instant,
        max_ttl: Duration,
    ) -> Instant {
        let mut records = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let until = match &records.latest_run {
            Some((previous, until)) if previous == run => return *until,
            Some(_) => answered + max_ttl,
            None => Instant::from_nanos(0),
        };
        records.latest_run = Some((run.to_owned(), until));
        until
    }

    /// The time at which this client first saw the run `run` of the server. A run that the client sees for the first time
    /// was first seen at `now`.
    pub(in crate::node) fn first_seen(&self, run: &str, now: Instant) -> Instant {
        let mut records = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &records.latest_since {
            Some((previous, since)) if previous == run => *since,
            _ => {
                records.latest_since = Some((run.to_owned(), now));
                now
            }
        }
    }

    /// Whether this process has had a connection to the master. With the restart guard, each connection records its run.
    /// Without the guard, it records only its client id.
    pub(in crate::node) fn has_connected(&self) -> bool {
        let records = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        records.latest_run.is_some() || records.last_connection.is_some()
    }

    /// Whether `run` is the run id that the first connection reported.
    pub(in crate::node) fn is_first_run(&self, run: &str) -> bool {
        let mut records = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        records.first_run.get_or_insert_with(|| run.to_owned()) == run
    }

    /// Records that the server has shown this age record in the run `run`; the reply arrived at `now`. Returns for how
    /// long clients have watched this run.
    pub(in crate::node) fn record_age(
        &self,
        run: &str,
        record: Option<AgeRecord>,
        now: Instant,
    ) -> Watch {
        let mut records = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let watch = Watch::after(records.watch.take(), run, record, now);
        records.watch.insert(watch).clone()
    }

    /// The name of the next age record that this client may start (see [`AgeRecord::life`]). `seed` must differ between
    /// clients.
    pub(in crate::node) fn new_life(&self, seed: u64) -> u64 {
        let mut records = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        records.life_count += 1;
        // The finalizer of SplitMix64: different inputs give different results.
        let mixed = seed.wrapping_add(records.life_count.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Stores the server run and the client id of the current connection. Returns the client id of the previous
    /// connection if the server is still in the same run. Otherwise returns `None`, because after a restart that id may
    /// belong to another client.
    pub(in crate::node) fn replace_connection(&self, run: &str, id: i64) -> Option<i64> {
        let mut records = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (previous, last) = records.last_connection.replace((run.to_owned(), id))?;
        (previous == run).then_some(last)
    }
}

/// For the run id of each server, the address that has the vote of this server. A server that one `Redlock` reaches at
/// two addresses must not get two votes (docs/protocol.md, "Two addresses of one server").
pub(crate) struct Roster {
    /// The clock of the `Redlock`. The masters' links have clocks of their own, whose times cannot be compared.
    clock: Box<dyn Fn() -> Instant + Send + Sync>,
    max_ttl: Duration,
    servers: Mutex<Servers>,
}

#[derive(Default)]
struct Servers {
    /// By the run id of the server.
    voters: HashMap<String, Voter>,
    /// For each address the run id that it led to at its last handshake, even if the handshake was refused, and whether
    /// it led to another run before.
    latest_runs: HashMap<NodeName, (String, bool)>,
}

/// The address that has the vote of one server.
struct Voter {
    name: NodeName,
    /// Exists while the address has an open connection to the server.
    connection: Weak<()>,
    /// When this client first noticed that the address has no open connection to the server; `None` while it has one.
    left_at: Option<Instant>,
    /// The time until which the votes do not count, because the server may have voted at another address before.
    withheld_until: Instant,
}

/// The vote of a server, for one open connection to it. While this value exists, no other address gets the vote.
pub(in crate::node) struct ServerVote {
    /// Tells the [`Roster`] that the connection is open.
    _open: Arc<()>,
    /// The time for which the votes do not count yet, because the server may have voted at another address before.
    pub(in crate::node) withheld_for: Duration,
}

/// Another address of the same client has the vote of the server.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::node) struct VoteTaken {
    name: NodeName,
    /// Whether servers seem to move between the addresses: that address has no open connection to the server, and the
    /// refused address led to another server before.
    is_moving: bool,
}

impl From<VoteTaken> for Fault {
    /// That two addresses lead to one server is permanent, because only a change of the configuration ends it. If servers
    /// move between the addresses, the vote follows within `max_ttl`.
    fn from(vote_taken: VoteTaken) -> Self {
        let name = vote_taken.name.as_str();
        if !vote_taken.is_moving {
            return Self::SameServer(name.into());
        }
        Self::Down(
            format!("{name} led to this server a moment ago, and keeps its vote for up to max_ttl")
                .into(),
        )
    }
}

impl Roster {
    /// Creates the state of one `Redlock`. `clock` returns the current time.
    pub(crate) fn new(
        clock: impl Fn() -> Instant + Send + Sync + 'static,
        max_ttl: Duration,
    ) -> Self {
        Self {
            clock: Box::new(clock),
            max_ttl,
            servers: Mutex::default(),
        }
    }

    /// Records that the address `name` leads to the server with the run id `run`. Keep the returned vote as long as the
    /// connection is open.
    ///
    /// If another address has the vote of this server, returns that address as an error. It keeps the vote while it has
    /// an open connection to the server, and for `max_ttl` after that: until then, its votes may still count for a
    /// lock. If it has led to a different server since, the address `name` takes the vote over, but its votes are
    /// withheld for the rest of this time.
    pub(in crate::node) fn claim_vote(
        &self,
        run: &str,
        name: &NodeName,
    ) -> Result<ServerVote, VoteTaken> {
        let now = (self.clock)();
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        let Servers {
            voters,
            latest_runs,
        } = &mut *servers;
        let led_elsewhere = match latest_runs.get(name) {
            Some((known, moved)) => *moved || known != run,
            None => false,
        };
        latest_runs.insert(name.clone(), (run.to_owned(), led_elsewhere));
        voters.retain(|_, voter| voter.kept_until(now, self.max_ttl) > now);
        let new_voter = || Voter::new(name, Instant::from_nanos(0));
        let voter = voters.entry(run.to_owned()).or_insert_with(new_voter);
        if voter.name != *name {
            let has_moved = latest_runs
                .get(&voter.name)
                .is_some_and(|(other, _)| other != run);
            if voter.left_at.is_none() || !has_moved {
                return Err(VoteTaken {
                    name: voter.name.clone(),
                    is_moving: voter.left_at.is_some() && led_elsewhere,
                });
            }
            *voter = Voter::new(name, voter.kept_until(now, self.max_ttl));
        }
        let connection = voter.connection.upgrade().unwrap_or_default();
        (voter.connection, voter.left_at) = (Arc::downgrade(&connection), None);
        Ok(ServerVote {
            _open: connection,
            withheld_for: voter.withheld_until.saturating_since(now),
        })
    }
}

impl Voter {
    fn new(name: &NodeName, withheld_until: Instant) -> Self {
        Self {
            name: name.clone(),
            connection: Weak::new(),
            left_at: None,
            withheld_until,
        }
    }

    /// The time until which no other address gets the vote of the server.
    fn kept_until(&mut self, now: Instant, max_ttl: Duration) -> Instant {
        if self.connection.strong_count() > 0 {
            return Instant::NEVER;
        }
        *self.left_at.get_or_insert(now) + max_ttl
    }
}

impl fmt::Debug for Roster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Roster").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// A roster whose clock shows the number of seconds in the returned counter; `max_ttl` is 30 s.
    fn roster() -> (Roster, Arc<AtomicU64>) {
        let secs = Arc::new(AtomicU64::new(1_000));
        let clock = secs.clone();
        let now = move || Instant::from_nanos(clock.load(Ordering::Relaxed) * 1_000_000_000);
        (Roster::new(now, Duration::from_secs(30)), secs)
    }

    fn withheld_secs(entered: &Result<ServerVote, VoteTaken>) -> Result<u64, &str> {
        let secs = entered.as_ref().map(|vote| vote.withheld_for.as_secs());
        secs.map_err(|vote_taken| vote_taken.name.as_str())
    }

    #[test]
    fn second_address_of_a_server_is_refused_until_max_ttl_after_the_last_connection_of_the_first()
    {
        let (a, b) = (NodeName::new("a"), NodeName::new("b"));
        let (roster, secs) = roster();
        let advance = |secs_passed| secs.fetch_add(secs_passed, Ordering::Relaxed);
        let first_vote = roster.claim_vote("run 1", &a);
        assert_eq!(withheld_secs(&first_vote), Ok(0));
        let again = roster.claim_vote("run 1", &a);
        assert_eq!(
            withheld_secs(&again),
            Ok(0),
            "a new connection to the same run of the server must be accepted"
        );
        drop(first_vote);
        advance(1_000);
        assert_eq!(
            withheld_secs(&roster.claim_vote("run 1", &b)),
            Err("a"),
            "the first address must keep the vote while it has a connection"
        );
        drop(again);
        assert_eq!(withheld_secs(&roster.claim_vote("run 1", &b)), Err("a"));
        advance(29);
        assert_eq!(withheld_secs(&roster.claim_vote("run 1", &b)), Err("a"));
        advance(1);
        let other_vote = roster.claim_vote("run 1", &b);
        assert_eq!(
            withheld_secs(&other_vote),
            Ok(0),
            "an address that has gone must not keep the vote for ever"
        );
        assert_eq!(withheld_secs(&roster.claim_vote("run 1", &a)), Err("b"));
    }

    /// Three servers exchange their addresses at once. An acquire must wait for them, so no fault may be permanent.
    #[test]
    fn vote_that_an_address_without_a_connection_keeps_is_waited_for() {
        let names = ["a", "b", "c"].map(NodeName::new);
        let (roster, secs) = roster();
        let runs = ["run a", "run b", "run c"];
        let first_votes: Vec<_> = runs
            .iter()
            .zip(&names)
            .map(|(run, name)| roster.claim_vote(run, name))
            .collect();
        let vote_taken = roster.claim_vote("run b", &names[0]).err().map(Fault::from);
        assert_eq!(
            vote_taken,
            Some(Fault::SameServer("b".into())),
            "b has a connection"
        );
        drop(first_votes);
        for (run, name) in runs.iter().cycle().skip(1).zip(&names) {
            // The address that had the vote has not shown its new server yet.
            if let Err(vote_taken) = roster.claim_vote(run, name) {
                let fault = Fault::from(vote_taken);
                assert!(fault.passes_by_itself(), "{fault}");
            }
        }
        secs.fetch_add(31, Ordering::Relaxed);
        for (run, name) in runs.iter().cycle().skip(1).zip(&names) {
            assert_eq!(withheld_secs(&roster.claim_vote(run, name)), Ok(0));
        }
    }

    #[test]
    fn address_of_a_restarted_server_is_accepted_immediately() {
        let (a, b) = (NodeName::new("a"), NodeName::new("b"));
        let (roster, _) = roster();
        let first_vote = roster.claim_vote("run 1", &a);
        let other_vote = roster.claim_vote("run 2", &b);
        assert_eq!(
            (withheld_secs(&first_vote), withheld_secs(&other_vote)),
            (Ok(0), Ok(0))
        );
        drop(first_vote);
        assert_eq!(withheld_secs(&roster.claim_vote("run 3", &a)), Ok(0));
    }

    #[test]
    fn exchanged_addresses_vote_again_max_ttl_after_both_have_left_their_old_servers() {
        let (a, b) = (NodeName::new("a"), NodeName::new("b"));
        let (roster, secs) = roster();
        let advance = |secs_passed| secs.fetch_add(secs_passed, Ordering::Relaxed);
        let (first, second) = (
            roster.claim_vote("run 1", &a),
            roster.claim_vote("run 2", &b),
        );
        drop(first);
        assert_eq!(
            withheld_secs(&roster.claim_vote("run 2", &a)),
            Err("b"),
            "the old connection of b is open, so its server must not vote at a"
        );
        drop(second);
        advance(5);
        let at_b = roster.claim_vote("run 1", &b);
        assert_eq!(
            withheld_secs(&at_b),
            Ok(25),
            "a was seen without its connection 5 s ago, and leads to another server"
        );
        let at_a = roster.claim_vote("run 2", &a);
        assert_eq!(withheld_secs(&at_a), Ok(30));
        advance(10);
        let at_a = (roster.claim_vote("run 2", &a), at_a).0;
        assert_eq!(
            withheld_secs(&at_a),
            Ok(20),
            "a new connection must neither shorten nor extend the time"
        );
        advance(20);
        assert_eq!(withheld_secs(&roster.claim_vote("run 2", &a)), Ok(0));
        assert_eq!(withheld_secs(&roster.claim_vote("run 1", &b)), Ok(0));
        assert_eq!(withheld_secs(&roster.claim_vote("run 1", &a)), Err("b"));
    }

    #[test]
    fn server_that_moves_to_a_new_address_has_no_vote_there_while_its_old_votes_may_count() {
        let (a, b) = (NodeName::new("a"), NodeName::new("b"));
        let (roster, _) = roster();
        let old_connection = roster.claim_vote("run 1", &a);
        let _moved = roster.claim_vote("run 3", &a);
        assert_eq!(
            withheld_secs(&roster.claim_vote("run 1", &b)),
            Err("a"),
            "the old connection of a is open"
        );
        drop(old_connection);
        // The address b was never connected before, so no other rule withholds its votes.
        assert_eq!(withheld_secs(&roster.claim_vote("run 1", &b)), Ok(30));
    }

    #[test]
    fn value_written_in_an_earlier_server_run_is_trusted_only_on_a_durable_server() {
        let memory = |is_durable| Memory::new(Some("run"), is_durable);
        assert!(memory(false).trusts(b"run") && !memory(false).trusts(b"other"));
        assert!(memory(true).trusts(b"other"));
        assert_eq!(Memory::new(Some("two words"), true).run.as_str(), "-");
    }

    #[test]
    fn votes_of_a_new_server_at_a_known_address_are_ignored_for_max_ttl() {
        let history = RunHistory::default();
        let at_secs = |secs: u64| Instant::from_nanos(secs * 1_000_000_000);
        let guarded_until =
            |run, now| history.guarded_until(run, at_secs(now), Duration::from_secs(30));
        assert_eq!(
            guarded_until("run 1", 5),
            at_secs(0),
            "the restart guard must not apply to the first server run"
        );
        assert_eq!(guarded_until("run 1", 9), at_secs(0));
        assert_eq!(guarded_until("run 2", 10), at_secs(40));
        assert_eq!(
            guarded_until("run 2", 20),
            at_secs(40),
            "a new connection to the same server run must not extend the restart guard"
        );
        assert_eq!(
            guarded_until("run 1", 21),
            at_secs(51),
            "the restart guard must apply when the first server run returns, because its data is outdated"
        );
        assert_eq!(
            history.for_another_connection().guarded_until(
                "run 1",
                at_secs(30),
                Duration::from_secs(30)
            ),
            at_secs(51)
        );
    }

    #[test]
    fn connection_with_or_without_the_restart_guard_counts_as_a_connection() {
        let [guarded, unguarded] = [(); 2].map(|()| RunHistory::default());
        assert!(!guarded.has_connected());
        guarded.guarded_until("run 1", Instant::from_nanos(0), Duration::from_secs(30));
        unguarded.replace_connection("run 1", 5);
        assert!(guarded.has_connected() && unguarded.has_connected());
        // Only the run is known to an additional connection, which has no client id yet.
        assert!(guarded.for_another_connection().has_connected());
        assert!(!unguarded.for_another_connection().has_connected());
    }

    #[test]
    fn client_id_of_the_previous_connection_is_forgotten_after_a_server_restart() {
        let history = RunHistory::default();
        assert_eq!(history.replace_connection("run 1", 5), None);
        assert_eq!(history.replace_connection("run 1", 9), Some(5));
        assert_eq!(history.replace_connection("run 2", 3), None);
        assert!(history.is_first_run("run 1") && !history.is_first_run("run 2"));
    }

    #[test]
    fn run_was_first_seen_when_the_server_last_changed_to_it() {
        let history = RunHistory::default();
        for (run, now, seen_since) in [
            ("run 1", 5, 5),
            ("run 1", 9, 5),
            ("run 2", 10, 10),
            ("run 2", 11, 10),
            ("run 1", 20, 20),
        ] {
            let first_seen = history.first_seen(run, Instant::from_nanos(now));
            assert_eq!(first_seen.as_nanos(), seen_since, "{run} at {now}");
        }
    }

    /// The expected numbers are the published ones of `SplitMix64` for this seed.
    #[test]
    fn names_of_age_records_are_the_numbers_of_a_known_generator() {
        let history = RunHistory::default();
        let lives = [(); 3].map(|()| history.new_life(1_234_567));
        let published = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
        ];
        assert_eq!(lives, published);
    }
}
