//! The sentence at the top of the page, and the problems with the commands that help. No I/O, no clock.

use serde::Serialize;

use crate::text::{count, human_duration};

/// The largest number of problems of one kind that the page names. It counts the others.
const MAX_NAMED: usize = 4;

/// How urgent the state is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Level {
    Good,
    Warn,
    Bad,
}

/// A command to copy, and when to use it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Advice {
    pub(crate) why: &'static str,
    pub(crate) command: String,
}

/// One problem, in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Problem {
    pub(crate) level: Level,
    pub(crate) title: String,
    pub(crate) text: String,
    pub(crate) commands: Vec<Advice>,
    /// The id of the lock that the problem is about.
    pub(crate) lock: Option<String>,
}

/// The sentence, and everything that explains it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Verdict {
    pub(crate) level: Level,
    pub(crate) sentence: String,
    pub(crate) detail: String,
    pub(crate) problems: Vec<Problem>,
}

/// A master, as far as the sentence needs it.
#[derive(Clone, Debug)]
pub(crate) struct MasterFacts {
    pub(crate) name: String,
    pub(crate) votes: bool,
    /// Why the master does not vote.
    pub(crate) text: String,
    /// Whether the master will vote by itself after a while.
    pub(crate) is_guarded: bool,
}

/// A lock for which clients wait, or that its holder does not renew.
#[derive(Clone, Debug, Default)]
pub(crate) struct LockFacts {
    pub(crate) id: String,
    pub(crate) title: String,
    /// The name as the last word of a command.
    pub(crate) word: String,
    /// The number of the permit of a semaphore.
    pub(crate) slot: Option<usize>,
    pub(crate) holder: Option<String>,
    pub(crate) held_ms: Option<u64>,
    pub(crate) is_overdue: bool,
    /// Whether the page has seen the holder renew the lock.
    pub(crate) has_renewed: bool,
    /// The time since the last renewal that the page saw, or since it first saw the hold.
    pub(crate) unrenewed_ms: u64,
    pub(crate) left_ms: Option<u64>,
    pub(crate) waiters: usize,
    pub(crate) longest_wait_ms: u64,
}

/// A quota or a job.
#[derive(Clone, Debug, Default)]
pub(crate) struct ValueFacts {
    pub(crate) name: String,
    pub(crate) word: String,
    pub(crate) missing_on: usize,
    pub(crate) is_late: bool,
    pub(crate) last_ago_ms: Option<u64>,
    pub(crate) every_ms: Option<u64>,
}

/// Everything that the sentence depends on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) masters: Vec<MasterFacts>,
    pub(crate) quorum: usize,
    /// Whether a majority answered; `None` before the first answers.
    pub(crate) has_quorum: Option<bool>,
    pub(crate) held: usize,
    pub(crate) waiters: usize,
    pub(crate) longest_wait_ms: u64,
    /// Those that clients wait for, or that are overdue.
    pub(crate) locks: Vec<LockFacts>,
    pub(crate) values: Vec<ValueFacts>,
    /// Why the history file cannot be written.
    pub(crate) history_error: Option<String>,
    /// A wait that is at least this long is a problem.
    pub(crate) slow_wait_ms: u64,
}

/// Decides the sentence, its level, and the problems.
pub(crate) fn judge(facts: &Facts) -> Verdict {
    let votes = facts.masters.iter().filter(|master| master.votes).count();
    let masters = format!("{votes} of {} vote", count(facts.masters.len(), "master"));
    let locks = format!("{} held", are(facts.held, "lock"));
    let waits = match facts.waiters {
        0 => "nobody waits".to_owned(),
        1 => format!(
            "1 client waits, for {}",
            human_duration(facts.longest_wait_ms)
        ),
        waiters => format!(
            "{waiters} clients wait, the longest for {}",
            human_duration(facts.longest_wait_ms)
        ),
    };
    let problems = problems(facts);
    let level = problems
        .iter()
        .map(|problem| problem.level)
        .max()
        .unwrap_or(Level::Good);
    let summary = format!("{masters}, {locks}, {waits}");
    let (sentence, detail) = match (facts.has_quorum, problems.first()) {
        (None, _) => ("The masters have not answered yet".to_owned(), summary),
        (Some(false), _) => {
            let lacking = facts.quorum.saturating_sub(votes).max(1);
            (
                format!("No quorum: {masters}, {} needed", is_or_are(facts.quorum)),
                format!(
                    "No client can take or renew a lock until {}.",
                    more(lacking)
                ),
            )
        }
        (Some(true), None) => (
            summary,
            "A majority answers, no client waits for long, and the holders renew their locks."
                .to_owned(),
        ),
        (Some(true), Some(first)) => (first.title.clone(), format!("{summary}.")),
    };
    let level = if facts.has_quorum.is_none() {
        Level::Warn
    } else {
        level
    };
    Verdict {
        level,
        sentence,
        detail,
        problems,
    }
}

fn are(number: usize, noun: &str) -> String {
    format!(
        "{} {}",
        count(number, noun),
        if number == 1 { "is" } else { "are" }
    )
}

fn is_or_are(number: usize) -> String {
    format!("{number} {}", if number == 1 { "is" } else { "are" })
}

fn more(number: usize) -> String {
    if number == 1 {
        "1 more master votes".to_owned()
    } else {
        format!("{number} more masters vote")
    }
}

/// All problems, the most urgent first.
fn problems(facts: &Facts) -> Vec<Problem> {
    let mut problems = Vec::new();
    problems.extend(quorum_problem(facts));
    problems.extend(lock_problems(facts));
    problems.extend(master_problem(facts));
    problems.extend(
        facts
            .values
            .iter()
            .filter_map(|value| value_problem(value, facts))
            .take(MAX_NAMED),
    );
    problems.extend(facts.history_error.as_ref().map(|why| Problem {
        level: Level::Warn,
        title: "The history file cannot be written".to_owned(),
        text: format!("{why}. The page goes on with the history in memory."),
        commands: Vec::new(),
        lock: None,
    }));
    problems.sort_by_key(|problem| std::cmp::Reverse(problem.level));
    problems
}

const DOCTOR: &str = "All checks of the masters, with advice";

fn advice(why: &'static str, command: impl Into<String>) -> Advice {
    Advice {
        why,
        command: command.into(),
    }
}

fn reasons(masters: &[&MasterFacts]) -> String {
    let reasons: Vec<String> = masters
        .iter()
        .map(|master| format!("{}: {}.", master.name, master.text))
        .collect();
    reasons.join(" ")
}

fn quorum_problem(facts: &Facts) -> Option<Problem> {
    let silent: Vec<&MasterFacts> = facts
        .masters
        .iter()
        .filter(|master| !master.votes)
        .collect();
    if facts.has_quorum != Some(false) {
        return None;
    }
    let help = if silent.iter().all(|master| master.is_guarded) {
        "These masters were started a short time ago, and vote by themselves after max_ttl."
    } else {
        "Start these servers again, or repair the network to them."
    };
    Some(Problem {
        level: Level::Bad,
        title: "No quorum: no client can take or renew a lock".to_owned(),
        text: format!("{} {help}", reasons(&silent)),
        commands: vec![advice(DOCTOR, "quorate doctor")],
        lock: None,
    })
}

fn master_problem(facts: &Facts) -> Option<Problem> {
    let silent: Vec<&MasterFacts> = facts
        .masters
        .iter()
        .filter(|master| !master.votes)
        .collect();
    if silent.is_empty() || facts.has_quorum != Some(true) {
        return None;
    }
    let votes = facts.masters.len() - silent.len();
    let spare = votes.saturating_sub(facts.quorum);
    let spare = match spare {
        0 => "No further master may fail.".to_owned(),
        spare => format!("{} may still fail.", count(spare, "master")),
    };
    Some(Problem {
        level: Level::Warn,
        title: format!(
            "{} of {} {} not vote: locks still work",
            silent.len(),
            count(facts.masters.len(), "master"),
            if silent.len() == 1 { "does" } else { "do" }
        ),
        text: format!("{} {spare}", reasons(&silent)),
        commands: vec![advice(DOCTOR, "quorate doctor")],
        lock: None,
    })
}

/// The locks for which clients wait too long, and those that are not renewed; the longest waits first.
fn lock_problems(facts: &Facts) -> Vec<Problem> {
    // Without a majority, nobody can renew: the missing majority is the problem.
    if facts.has_quorum != Some(true) {
        return Vec::new();
    }
    let is_problem =
        |lock: &&LockFacts| lock.is_overdue || lock.longest_wait_ms >= facts.slow_wait_ms;
    let mut locks: Vec<&LockFacts> = facts.locks.iter().filter(is_problem).collect();
    locks.sort_by_key(|lock| std::cmp::Reverse((lock.longest_wait_ms, lock.unrenewed_ms)));
    let others = locks.len().saturating_sub(MAX_NAMED);
    let mut problems: Vec<Problem> = locks
        .iter()
        .take(MAX_NAMED)
        .map(|lock| lock_problem(lock))
        .collect();
    if others > 0 {
        problems.push(Problem {
            level: Level::Warn,
            title: format!("{} like these", count(others, "more lock")),
            text: "Sort the list by waiters to see them.".to_owned(),
            commands: vec![advice("All locks, in a terminal", "quorate status")],
            lock: None,
        });
    }
    problems
}

/// Describes the holder of a lock as far as the page knows it, and says which check to make.
fn holder_text(lock: &LockFacts) -> String {
    let holder = lock.holder.as_deref().unwrap_or("a client without a note");
    let free_in = lock.left_ms.map_or_else(String::new, |left| {
        format!(
            " Without a renewal, the lock becomes free in {}.",
            human_duration(left)
        )
    });
    if lock.is_overdue {
        return format!(
            "The holder is {holder}. It is dead, hung, cut off from the masters, or does not renew.{free_in} Check this \
             process first."
        );
    }
    let held = lock
        .held_ms
        .map_or_else(String::new, |held| format!(" for {}", human_duration(held)));
    if lock.has_renewed {
        let renewed = human_duration(lock.unrenewed_ms);
        format!(
            "The holder is {holder}. It has held the lock{held}. It renewed the lock {renewed} ago, so it was alive then: \
             find out why it does not release the lock."
        )
    } else {
        format!(
            "The holder is {holder}. It has held the lock{held}. The page has seen no renewal, and none is overdue, so \
             the page cannot tell whether the holder is alive.{free_in} Look first whether this process still runs."
        )
    }
}

fn lock_problem(lock: &LockFacts) -> Problem {
    let waits = match lock.waiters {
        0 => String::new(),
        1 => format!(
            "1 client has waited for {}",
            human_duration(lock.longest_wait_ms)
        ),
        waiters => format!(
            "{waiters} clients wait, the first for {}",
            human_duration(lock.longest_wait_ms)
        ),
    };
    let silence = if lock.is_overdue {
        format!(
            "its holder has not renewed it for {}",
            human_duration(lock.unrenewed_ms)
        )
    } else {
        String::new()
    };
    let slot = lock
        .slot
        .map(|slot| format!(" --slot {slot}"))
        .unwrap_or_default();
    let parts: Vec<&str> = [waits.as_str(), silence.as_str()]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect();
    Problem {
        level: Level::Warn,
        title: format!("{}: {}", lock.title, parts.join(", and ")),
        text: holder_text(lock),
        commands: vec![
            advice(
                "The state of this lock on each master",
                format!("quorate status {}", lock.word),
            ),
            advice(
                "Only if this process has ended: a paused process can continue, and then works without the lock",
                format!("quorate break --yes{slot} {}", lock.word),
            ),
        ],
        lock: Some(lock.id.clone()),
    }
}

fn value_problem(value: &ValueFacts, facts: &Facts) -> Option<Problem> {
    let is_lost = facts.masters.len().saturating_sub(value.missing_on) < facts.quorum;
    let status = || {
        vec![advice(
            "The last run, and whether this period is done",
            format!("quorate once --status {}", value.word),
        )]
    };
    if value.missing_on > 0 && is_lost && !facts.masters.is_empty() {
        return Some(Problem {
            level: Level::Bad,
            title: format!(
                "{}: its record is lost, so the job does not run",
                value.name
            ),
            text: format!(
                "{} of {} have lost it.",
                value.missing_on,
                count(facts.masters.len(), "master")
            ),
            commands: vec![advice("Advice for lost records", "quorate doctor")],
            lock: None,
        });
    }
    let (true, Some(ago), Some(every)) = (value.is_late, value.last_ago_ms, value.every_ms) else {
        return None;
    };
    Some(Problem {
        level: Level::Warn,
        title: format!("{}: the job has not run in this period", value.name),
        text: format!(
            "The last period that is recorded as done began {} ago, and a period begins every {}. Find out whether cron, \
             or another scheduler, has started `quorate once` since then.",
            human_duration(ago),
            human_duration(every)
        ),
        commands: status(),
        lock: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(votes: usize) -> Facts {
        let master = |index: usize| MasterFacts {
            name: format!("m{index}"),
            votes: index < votes,
            text: if index < votes {
                String::new()
            } else {
                "down (refused)".to_owned()
            },
            is_guarded: false,
        };
        Facts {
            masters: (0..5).map(master).collect(),
            quorum: 3,
            has_quorum: Some(votes >= 3),
            held: 12,
            slow_wait_ms: 60_000,
            ..Facts::default()
        }
    }

    #[test]
    fn sentence_is_green_if_a_majority_votes_and_nobody_waits_for_long() {
        let verdict = judge(&Facts {
            waiters: 3,
            longest_wait_ms: 4_200,
            ..facts(5)
        });
        assert_eq!(verdict.level, Level::Good);
        assert_eq!(
            verdict.sentence,
            "5 of 5 masters vote, 12 locks are held, 3 clients wait, the longest for 4 s"
        );
        let verdict = judge(&Facts {
            held: 1,
            ..facts(5)
        });
        assert_eq!(
            verdict.sentence,
            "5 of 5 masters vote, 1 lock is held, nobody waits"
        );
    }

    #[test]
    fn sentence_is_red_without_a_quorum_and_names_the_masters() {
        let late = LockFacts {
            title: "a".to_owned(),
            is_overdue: true,
            ..LockFacts::default()
        };
        let verdict = judge(&Facts {
            locks: vec![late],
            ..facts(2)
        });
        assert_eq!(verdict.level, Level::Bad);
        assert_eq!(
            verdict.sentence,
            "No quorum: 2 of 5 masters vote, 3 are needed"
        );
        assert_eq!(
            verdict.detail,
            "No client can take or renew a lock until 1 more master votes."
        );
        assert!(
            verdict.problems[0].text.contains("m4: down (refused)"),
            "{verdict:?}"
        );
        assert_eq!(
            verdict.problems.len(),
            1,
            "the locks are not to blame: {verdict:?}"
        );
    }

    #[test]
    fn lost_minority_is_amber_and_says_how_many_masters_may_still_fail() {
        let verdict = judge(&facts(3));
        assert_eq!(verdict.level, Level::Warn);
        assert_eq!(
            verdict.sentence,
            "2 of 5 masters do not vote: locks still work"
        );
        assert!(
            verdict.problems[0]
                .text
                .ends_with("No further master may fail."),
            "{verdict:?}"
        );
        assert!(
            judge(&facts(4)).problems[0]
                .text
                .ends_with("1 master may still fail.")
        );
    }

    #[test]
    fn dead_holder_with_a_queue_is_named_first() {
        let lock = |title: &str, is_overdue, waiters, longest_wait_ms| LockFacts {
            id: format!("l:{title}"),
            title: title.to_owned(),
            word: title.to_owned(),
            holder: Some("app-7 pid 4711 (invoice)".to_owned()),
            is_overdue,
            unrenewed_ms: 163_000,
            left_ms: Some(437_000),
            waiters,
            longest_wait_ms,
            ..LockFacts::default()
        };
        let locks = vec![
            lock("quick", false, 1, 2_000),
            lock("billing", true, 3, 720_000),
        ];
        let verdict = judge(&Facts {
            locks,
            waiters: 4,
            longest_wait_ms: 720_000,
            ..facts(5)
        });
        assert_eq!(
            verdict.sentence,
            "billing: 3 clients wait, the first for 12 min, and its holder has not renewed it for 2 min 43 s"
        );
        let [problem] = &verdict.problems[..] else {
            panic!("one problem: {verdict:?}");
        };
        assert!(
            problem.text.contains("app-7 pid 4711") && problem.text.contains("7 min 17 s"),
            "{problem:?}"
        );
        assert_eq!(problem.commands[1].command, "quorate break --yes billing");
    }

    #[test]
    fn holder_is_called_alive_only_if_the_page_has_seen_a_renewal() {
        let lock = LockFacts {
            held_ms: Some(73_000),
            unrenewed_ms: 20_000,
            left_ms: Some(527_000),
            ..LockFacts::default()
        };
        let unknown = holder_text(&lock);
        assert!(
            unknown.contains("cannot tell whether the holder is alive"),
            "{unknown}"
        );
        assert!(unknown.contains("becomes free in 8 min 47 s"), "{unknown}");
        let renewed = holder_text(&LockFacts {
            has_renewed: true,
            ..lock
        });
        let text = "It renewed the lock 20 s ago, so it was alive then";
        assert!(renewed.contains(text), "{renewed}");
    }

    #[test]
    fn many_problems_are_counted_not_listed() {
        let lock = |n: u64| LockFacts {
            title: format!("l{n}"),
            longest_wait_ms: 60_000 + n,
            waiters: 1,
            ..LockFacts::default()
        };
        let verdict = judge(&Facts {
            locks: (0..50).map(lock).collect(),
            ..facts(5)
        });
        assert_eq!(verdict.problems.len(), MAX_NAMED + 1);
        assert!(
            verdict.problems[MAX_NAMED]
                .title
                .starts_with("46 more locks"),
            "{verdict:?}"
        );
    }

    #[test]
    fn job_that_did_not_run_and_lost_record_are_problems() {
        let late = ValueFacts {
            name: "nightly".to_owned(),
            word: "nightly".to_owned(),
            is_late: true,
            last_ago_ms: Some(100_000_000),
            every_ms: Some(86_400_000),
            ..ValueFacts::default()
        };
        let lost = ValueFacts {
            name: "weekly".to_owned(),
            missing_on: 3,
            ..ValueFacts::default()
        };
        let verdict = judge(&Facts {
            values: vec![late, lost],
            ..facts(5)
        });
        let titles: Vec<&str> = verdict
            .problems
            .iter()
            .map(|problem| problem.title.as_str())
            .collect();
        assert_eq!(
            titles,
            [
                "weekly: its record is lost, so the job does not run",
                "nightly: the job has not run in this period"
            ]
        );
        assert_eq!(verdict.level, Level::Bad);
    }
}
