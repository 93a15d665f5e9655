//! `quorate status NAME`: prints the state of the lock NAME on every master, and whether a majority of the masters
//! agrees on its holder. `quorate status` without a name is in `list.rs`.
//!
//! The command changes nothing on the masters. Its JSON output is an object `{"resources": [..]}`, whose entries are
//! [`ResourceStatus`].

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use clap::Args;
use quorate::{
    Fault, Hold, KeyState, Listed, NodeStatus, Note, Redlock, SemaphoreStatus, Status,
    StatusVerdict, Waiter,
};
use serde::Serialize;

use crate::config::{self, MasterOptions};
use crate::exit::{self, CommandResult, Failure, Meaning};
use crate::kind::holder_text;
use crate::output::{self, Cell, GREEN, RED, YELLOW, human};
use crate::patience::{Patience, may_be_up, patient_redlock};

/// The text below the options of `quorate status --help`.
pub(crate) const AFTER_HELP: &str = "\
Without a name, status lists the locks that are held: at most 1000, and only those that it finds within about 5s. If the
list is incomplete, a line below the list says so. If no majority of the masters answers, a lock that is not listed may
still be held. A key with the name of a lock is listed even if another program wrote it, but only if it is a string.

With names, status shows what each master reports about each lock. The verdict on a lock is one of
    held       a majority of the masters reports the same holder
    free       enough masters are free for a client to take the lock; clients that wait get it first
    split      some masters have a key, but no holder has a majority: the keys expire with their ttl
    unknown    fewer than a majority of the masters answered

A restarted master may have lost locks. Until max_ttl has passed, it does not vote, and status does not ask it.

The note names the holder. During about the first 100ms of a hold, there is no note. A holder that uses another Redlock
client has no note.

If readers or an owner hold the lock, status shows every hold with its note. A semaphore and the plain lock of the same
name are separate locks. If a permit is held, or a client waits for a permit, status shows both.

Examples:
    quorate status
    quorate status nightly-report
    quorate status --json deploy:web deploy:api | jq '.resources[].verdict'
    quorate status --starting-with deploy: --json | jq -r '.resources[] | [.resource, .note.host] | @tsv'

JSON fields (stable; absent values are null): resources[]. If no name is given, also: complete, majority_answered,
not_asked[] (master, error, error_kind).

JSON fields of an element of resources[]:
    always          resource, verdict, holder, note (host, pid, process, since, text), quorum, answered, masters[]
    masters[]       master, state (held, free, error), token, ttl_left_ms, fencing_counter, waiting[] (id, lives_ms, \
host, pid, since), latency_ms, error, error_kind
    resource_hex    only if the name is not UTF-8
    holds[]         only if readers or owners hold the lock: token, ttl_left_ms, note
    permits[]       only if permits of the semaphore are held: slot, and the fields of an element of resources[]
    permit_line[]   only if clients wait for a permit: master, waiting[]
    permits_error   only if no majority of the masters showed the semaphore: the reason
    slot            only for a permit, if no name is given";

/// How many waiters the output for people shows.
const MAX_WAITERS_SHOWN: usize = 10;

/// The exit codes of `quorate status`, with their meanings.
pub(crate) const CODES: [Meaning; 4] = [
    (
        "0",
        "a majority of masters answered; the lock can be held or free",
    ),
    ("64", ""),
    (
        "69",
        "for at least one resource, fewer than a majority of the masters answered with the state of its lock",
    ),
    ("78", ""),
];

/// Arguments of `status`.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// The names of the locks to show [default: list all locks that are held]
    resource: Vec<OsString>,

    /// List the held locks whose names begin with this text
    #[arg(long, value_name = "TEXT", conflicts_with = "resource")]
    pub(crate) starting_with: Option<OsString>,

    /// Print JSON
    #[arg(long, env = "QUORATE_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) masters: MasterOptions,
}

/// One resource in the JSON form of `status`.
#[derive(Debug, Serialize)]
pub(crate) struct ResourceStatus {
    /// The name of the resource. If the name is not UTF-8, it is escaped: `\xNN` for an invalid byte.
    pub(crate) resource: String,
    /// The name of the resource with control characters escaped, for the output for people.
    #[serde(skip)]
    pub(crate) display_name: String,
    /// The name of the resource in hexadecimal; `None` if the name is UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) resource_hex: Option<String>,
    /// The slot of the permit if this entry describes a permit of the semaphore named `resource`; `None` otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) slot: Option<usize>,
    /// The state of the lock according to a majority of all masters: `held` (a majority reports the same holder),
    /// `free` (a majority reports no holder), `split` (a majority replied, but the lock is neither `held` nor `free`)
    /// or `unknown` (no majority replied).
    pub(crate) verdict: &'static str,
    /// The value of the lock key that a majority of masters reports; null if the verdict is not `held`. The value is
    /// the holder's token. If readers hold the lock, it is `quorate:shared`. If clients with `--owner ID` hold it, it
    /// is `quorate:owner:ID`.
    pub(crate) holder: Option<String>,
    /// The note of the lock's holder; `None` if the lock is not held, or if the holder has left no note.
    pub(crate) note: Option<NoteStatus>,
    /// The clients that hold the lock as readers (`--shared`) or with `--owner`; empty for other kinds of locks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) holds: Vec<HoldStatus>,
    /// The held permits of the semaphore named `resource`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) permits: Vec<ResourceStatus>,
    /// For each master that replied: the clients that wait for a permit of the semaphore. Empty if no client waits.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) permit_line: Vec<QueueStatus>,
    /// The error if the semaphore named `resource` could not be read. `None` if `verdict` is `unknown`: then `masters`
    /// contains the errors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) permits_error: Option<String>,
    /// True if `verdict` is `unknown`, but less than a majority of the masters are known to be down: the others may only
    /// be slow. `status` then tries again.
    #[serde(skip)]
    pub(crate) is_undecided: bool,
    /// The number of masters that are needed for a majority.
    pub(crate) quorum: usize,
    /// The number of masters that replied to `status`.
    pub(crate) answered: usize,
    /// The state of the lock on each master.
    pub(crate) masters: Vec<MasterStatus>,
}

/// The state of a lock on one master, in the JSON form of `status`.
#[derive(Debug, Serialize)]
pub(crate) struct MasterStatus {
    /// The address of the master, without credentials.
    pub(crate) master: String,
    /// The state of the lock on this master: `held`, `free` or `error`.
    pub(crate) state: &'static str,
    /// The value of the lock key on this master; null if the key does not exist, or if the master did not reply. The
    /// value is the holder's token. If readers hold the lock, it is `quorate:shared`. If clients with `--owner ID` hold
    /// it, it is `quorate:owner:ID`.
    pub(crate) token: Option<String>,
    /// Time until the lock key expires on this master, in milliseconds; null if the key does not exist or has no
    /// expiry, or if the master did not reply.
    pub(crate) ttl_left_ms: Option<u64>,
    /// The value of the fencing counter on this master; null if the master has no counter for the lock, or did not
    /// reply.
    pub(crate) fencing_counter: Option<u64>,
    /// The clients that wait for the lock on this master, the next one first.
    pub(crate) waiting: Vec<WaiterStatus>,
    /// How long the reply of this master took, in milliseconds.
    pub(crate) latency_ms: f64,
    /// Why the state of the lock on this master is unknown, as text; null if there is no error.
    pub(crate) error: Option<String>,
    /// The kind of `error`, as a word that does not change between versions; null if `error` is null.
    pub(crate) error_kind: Option<&'static str>,
}

/// The note of a holder in the JSON form.
#[derive(Debug, Serialize)]
pub(crate) struct NoteStatus {
    /// The host name of the holder's machine.
    pub(crate) host: String,
    /// The pid of the holder on its machine.
    pub(crate) pid: u32,
    /// The name of the holder's process.
    pub(crate) process: String,
    /// When the holder acquired the lock, in RFC 3339, by the clock of the holder's machine.
    pub(crate) since: String,
    /// The text of the holder's option `--note`; null if the option was not given.
    pub(crate) text: Option<String>,
    /// The whole note as one line, for the output for people.
    #[serde(skip)]
    pub(crate) summary: String,
}

impl NoteStatus {
    pub(crate) fn new(note: &Note) -> Self {
        Self {
            host: note.host.clone(),
            pid: note.pid,
            process: note.process.clone(),
            since: humantime::format_rfc3339_millis(note.since).to_string(),
            text: note.text.clone(),
            summary: note.to_string(),
        }
    }
}

/// One client that holds a read lock or an owner lock, in the JSON output of `status`.
#[derive(Debug, Serialize)]
pub(crate) struct HoldStatus {
    /// The random token with which this holder acquired the lock.
    pub(crate) token: String,
    /// Time until this holder loses the lock if the holder does not renew the lock, in milliseconds.
    pub(crate) ttl_left_ms: u64,
    /// The note of this holder; null if the holder has left no note.
    pub(crate) note: Option<NoteStatus>,
}

impl HoldStatus {
    fn new(hold: &Hold) -> Self {
        Self {
            token: output::printable(&hold.value),
            ttl_left_ms: hold.lives.as_millis() as u64,
            note: hold.note.as_ref().map(NoteStatus::new),
        }
    }
}

/// One waiter of a queue in the JSON form.
#[derive(Debug, Serialize)]
pub(crate) struct WaiterStatus {
    /// The id of the waiter, which is the same on every master.
    pub(crate) id: String,
    /// Time until the waiter loses its place in the queue if it sends no further heartbeat, in milliseconds.
    pub(crate) lives_ms: u64,
    /// The host name of the waiter's machine; null if the waiter's id does not contain it.
    pub(crate) host: Option<String>,
    /// The pid of the waiter on its machine; null if the waiter's id does not contain it.
    pub(crate) pid: Option<u32>,
    /// When the client began to wait, by the clock of its machine; null if the waiter's id does not contain it.
    pub(crate) since: Option<String>,
    /// The waiter as one line, for the output for people.
    #[serde(skip)]
    pub(crate) summary: String,
}

impl WaiterStatus {
    /// The waiters in the queue of a lock on one master. `state` is the state of the lock on that master.
    fn queue_of(state: &KeyState) -> Vec<Self> {
        let rfc3339_text = humantime::format_rfc3339_millis;
        let waiter = |waiter: &Waiter| Self {
            id: output::printable(waiter.id.as_bytes()),
            lives_ms: waiter.lives.as_millis() as u64,
            host: waiter.host.clone(),
            pid: waiter.pid,
            since: waiter.since.map(|at| rfc3339_text(at).to_string()),
            summary: Self::summary_of(waiter),
        };
        state.queue.iter().map(waiter).collect()
    }

    fn summary_of(waiter: &Waiter) -> String {
        let (Some(pid), Some(since)) = (waiter.pid, waiter.since) else {
            return "unknown client".to_owned();
        };
        let host = waiter.host.as_deref().unwrap_or("unknown host");
        let since = humantime::format_rfc3339_seconds(since);
        format!("{host}, pid {pid}, since {since}")
    }
}

/// The queue of a semaphore on one master, in the JSON output of `status`.
#[derive(Debug, Serialize)]
pub(crate) struct QueueStatus {
    /// The address of the master, without credentials.
    pub(crate) master: String,
    /// The clients that wait for a permit on this master, the next one first.
    pub(crate) waiting: Vec<WaiterStatus>,
}

impl QueueStatus {
    fn new(node: &NodeStatus) -> Option<Self> {
        let waiting = WaiterStatus::queue_of(node.state.as_ref().ok()?);
        let master = node.node.to_string();
        Some(Self { master, waiting })
    }
}

impl StatusArgs {
    /// True if the command line names no lock, so that `status` lists all held locks.
    pub(crate) fn is_list(&self) -> bool {
        self.resource.is_empty()
    }
}

/// Reads the state of each resource and prints it.
pub(crate) fn run(args: StatusArgs) -> CommandResult {
    let (mut masters, _) = args.masters.complete()?;
    let statuses = config::block_on(read_patiently(&mut masters, &args.resource))?;
    if args.json {
        output::print_json(&serde_json::json!({ "resources": statuses }))?;
    } else {
        let max_ttl = masters.settings().max_ttl();
        let text_of =
            |status: &ResourceStatus| page(status) + &lasting_key_warnings(status, max_ttl);
        let texts: Vec<String> = statuses.iter().map(text_of).collect();
        output::print_page(&texts.join("\n"))?;
    }
    match statuses.iter().find(|status| status.verdict == "unknown") {
        Some(status) => Err(no_quorum_failure(status)),
        None => Ok(exit::OK),
    }
}

/// Reads the state of each resource. Tries again with longer timeouts while any status
/// [is undecided](ResourceStatus::is_undecided).
async fn read_patiently(
    masters: &mut MasterOptions,
    names: &[OsString],
) -> Result<Vec<ResourceStatus>, Failure> {
    let statuses = statuses_of(&config::redlock(masters, None)?, names).await?;
    if !statuses.iter().any(|status| status.is_undecided) {
        return Ok(statuses);
    }
    let (redlock, mut patience) = (patient_redlock(masters)?, Patience::begin());
    loop {
        let statuses = statuses_of(&redlock, names).await?;
        let is_undecided = statuses.iter().any(|status| status.is_undecided);
        if !is_undecided || !patience.pause_to_retry().await {
            return Ok(statuses);
        }
    }
}

async fn statuses_of(
    redlock: &Redlock,
    names: &[OsString],
) -> Result<Vec<ResourceStatus>, Failure> {
    let mut statuses = Vec::with_capacity(names.len());
    for name in names {
        let status = redlock
            .status(name.as_bytes())
            .await
            .map_err(|why| invalid_name(name, why))?;
        let semaphore = redlock
            .semaphore_status(name.as_bytes())
            .await
            .map_err(|why| invalid_name(name, why))?;
        let mut status = ResourceStatus::new(name.as_bytes(), &status);
        status.add_semaphore(&semaphore);
        statuses.push(status);
    }
    Ok(statuses)
}

/// The status of the lock of this name, or of the permit in this slot.
pub(crate) async fn status_of(
    redlock: &Redlock,
    name: &OsStr,
    slot: Option<usize>,
) -> Result<Status, Failure> {
    let status = match slot {
        Some(slot) => redlock.permit_status(name.as_bytes(), slot).await,
        None => redlock.status(name.as_bytes()).await,
    };
    status.map_err(|why| invalid_name(name, why))
}

/// The failure if `name` cannot be the name of a lock, for the reason `why`.
pub(crate) fn invalid_name(name: &OsStr, reason: impl std::fmt::Display) -> Failure {
    let mut display_name = output::printable(name.as_bytes());
    if display_name.chars().count() > 40 {
        display_name = display_name.chars().take(40).chain(['…']).collect();
    }
    Failure::usage(format!(
        "cannot use '{display_name}' as the name of a lock: {reason}"
    ))
}

/// The error for a resource of which no majority of the masters reported the state.
pub(crate) fn no_quorum_failure(status: &ResourceStatus) -> Failure {
    if status.is_blocked() {
        return Failure::new(
            exit::UNAVAILABLE,
            format!(
                "nobody can get the lock '{}': on {} of {} masters, another program wrote another type of value to its \
                 key, for example a hash; delete the key if nobody needs it, or use another name or prefix",
                status.display_name,
                status.count_of_other_type(),
                status.masters.len()
            ),
        );
    }
    let kinds = status.masters.iter().filter_map(|master| master.error_kind);
    unanswered_failure(
        (status.answered, status.masters.len(), status.quorum),
        kinds,
    )
}

/// The error if too few masters replied. While masters are replaced, too few can reply although `answered` is at least
/// `needed`: the replies must contain a majority of `masters` and a majority of `next_masters`.
///
/// - `answered`: the number of masters that replied.
/// - `of`: the number of all masters.
/// - `needed`: the size of a quorum.
/// - `kinds`: the kinds of errors of the masters that did not reply. They determine the advice and the exit code.
pub(crate) fn unanswered_failure<'a>(
    (answered, masters, needed): (usize, usize, usize),
    kinds: impl Iterator<Item = &'a str>,
) -> Failure {
    let needed = if answered < needed {
        format!("{needed} are needed")
    } else {
        "but a majority of masters and a majority of next_masters are needed".to_owned()
    };
    let base_text = format!("no quorum: {answered} of {masters} masters answered, {needed}");
    let kinds: Vec<&str> = kinds.collect();
    if kinds.contains(&Fault::OtherMasters("".into()).kind()) {
        let reason = "the masters refuse this configuration: use the same masters, masters_generation and masters_name as the \
                   other clients, or run quorate masters mark if a master has lost its generation marker";
        return Failure::new(exit::CONFIG, format!("{base_text}; {reason}"));
    }
    if kinds.contains(&Fault::Quarantined(Duration::ZERO).kind()) {
        let reason = "some masters have just started or have lost their generation marker, so they do not vote until \
                   clients have been connected to them for max_ttl: run quorate masters mark --watch";
        return Failure::new(exit::UNAVAILABLE, format!("{base_text}; {reason}"));
    }
    Failure::new(exit::UNAVAILABLE, base_text)
}

impl ResourceStatus {
    /// The JSON form of one listed lock. If the entry is a permit, its slot is included.
    pub(crate) fn from_listed(listed: &Listed) -> Self {
        Self {
            slot: listed.slot,
            ..Self::new(&listed.resource, &listed.status)
        }
    }

    /// Adds the state of the semaphore that has the same name as this resource.
    fn add_semaphore(&mut self, semaphore: &SemaphoreStatus) {
        let permits = semaphore.permits.iter();
        self.permits = permits.map(Self::from_listed).collect();
        let queue_nodes = semaphore.line.nodes.iter();
        self.permit_line = queue_nodes.clone().filter_map(QueueStatus::new).collect();
        if self
            .permit_line
            .iter()
            .all(|queue_nodes| queue_nodes.waiting.is_empty())
        {
            self.permit_line.clear();
        }
        // Report one error for the permits and the queue.
        let is_unread = semaphore.line.verdict() == StatusVerdict::Unknown;
        if is_unread && self.verdict != "unknown" {
            let mut faults =
                queue_nodes.filter_map(|node| Some((&node.node, node.state.as_ref().err()?)));
            self.permits_error = faults
                .next()
                .map(|(master, fault)| format!("{master}: {}", output::redact(&fault.to_string())));
        }
    }

    /// The number of masters that store another type of value than a string in the lock key.
    fn count_of_other_type(&self) -> usize {
        let wrong_type = Some(Fault::WrongType.kind());
        let masters = self.masters.iter();
        masters
            .filter(|master| master.error_kind == wrong_type)
            .count()
    }

    /// Whether the verdict is `unknown` only because some masters store another type of value in the lock key.
    fn is_blocked(&self) -> bool {
        let other_type_count = self.count_of_other_type();
        self.verdict == "unknown"
            && other_type_count > 0
            && self.answered + other_type_count >= self.quorum
    }

    /// The notes of all holders of the lock, one line per note.
    pub(crate) fn holders(&self) -> Vec<&str> {
        let holds = self.holds.iter().map(|hold| &hold.note);
        let notes = std::iter::once(&self.note).chain(holds).flatten();
        notes.map(|note| &*note.summary).collect()
    }

    /// The time until the lock key has expired on all masters, as text; `-` if no master reports a time.
    pub(crate) fn ttl_left_text(&self) -> String {
        let ttls_left = self.masters.iter().filter_map(|master| master.ttl_left_ms);
        let longest = ttls_left.max().map(|ms| human(Duration::from_millis(ms)));
        longest.unwrap_or_else(|| "-".to_owned())
    }

    /// The number of waiters on the master with the longest queue.
    pub(crate) fn queue_length(&self) -> usize {
        let lengths = self.masters.iter().map(|master| master.waiting.len());
        lengths.max().unwrap_or(0)
    }

    /// The holders of the lock, for one cell of a table.
    pub(crate) fn holders_text(&self) -> String {
        let holders = self.holders();
        let without_note = self.holds.len().saturating_sub(holders.len());
        match (holders.is_empty(), &self.holder) {
            (false, _) if without_note > 0 => {
                format!("{}; and {without_note} more", holders.join("; "))
            }
            (false, _) => holders.join("; "),
            (true, Some(holder)) => holder_text(holder),
            (true, None) => self.verdict.to_owned(),
        }
    }

    /// The JSON form of `status`, the library's status of the resource `name`.
    pub(crate) fn new(name: &[u8], status: &Status) -> Self {
        let (verdict, holder) = match status.verdict() {
            StatusVerdict::Held(holder) => ("held", Some(output::printable(&holder))),
            StatusVerdict::Free => ("free", None),
            StatusVerdict::Split => ("split", None),
            _ => ("unknown", None),
        };
        let faults = status.nodes.iter();
        let faults = faults.filter_map(|node| node.state.as_ref().err());
        let is_undecided = verdict == "unknown" && may_be_up(faults, status.nodes.len());
        Self {
            is_undecided,
            resource: output::json_name(name),
            display_name: output::printable(name),
            resource_hex: std::str::from_utf8(name)
                .is_err()
                .then(|| output::hex(name)),
            slot: None,
            verdict,
            holder,
            note: status.note().map(NoteStatus::new),
            holds: status.holds().iter().map(HoldStatus::new).collect(),
            permits: Vec::new(),
            permit_line: Vec::new(),
            permits_error: None,
            quorum: status.quorum,
            answered: status.nodes.iter().filter(|n| n.state.is_ok()).count(),
            masters: status.nodes.iter().map(MasterStatus::new).collect(),
        }
    }
}

impl MasterStatus {
    fn new(node: &NodeStatus) -> Self {
        let mut status = Self {
            master: node.node.to_string(),
            state: "error",
            token: None,
            ttl_left_ms: None,
            fencing_counter: None,
            waiting: Vec::new(),
            latency_ms: (node.latency.as_secs_f64() * 1e6).round() / 1e3,
            error: None,
            error_kind: None,
        };
        match &node.state {
            Ok(state) => {
                status.state = if state.holder.is_some() {
                    "held"
                } else {
                    "free"
                };
                status.token = state.holder.as_deref().map(output::printable);
                status.ttl_left_ms = state.ttl_left.map(|left| left.as_millis() as u64);
                status.fencing_counter = state.counter;
                status.waiting = WaiterStatus::queue_of(state);
            }
            Err(fault) => {
                status.error = Some(output::redact(&fault.to_string()).into_owned());
                status.error_kind = Some(fault.kind());
            }
        }
        status
    }

    fn row(&self) -> Vec<Cell> {
        let or_dash = |value: Option<String>| Cell::from(value.unwrap_or_else(|| "-".to_owned()));
        let state = match self.state {
            "held" => Cell::styled("held", YELLOW),
            "free" => Cell::styled("free", GREEN),
            other => Cell::styled(other, RED),
        };
        let ttl_left = match (self.ttl_left_ms, self.state) {
            (Some(ms), _) => Some(human(Duration::from_millis(ms))),
            (None, "held") => Some("no expiry".to_owned()),
            _ => None,
        };
        vec![
            self.master.clone().into(),
            state,
            or_dash(self.token.clone()),
            or_dash(ttl_left),
            or_dash(self.fencing_counter.map(|counter| counter.to_string())),
            or_dash((self.state != "error").then(|| self.waiting.len().to_string())),
            human(Duration::from_secs_f64(self.latency_ms / 1e3)).into(),
            or_dash(self.error.clone()),
        ]
    }
}

/// The output for people about one resource: the verdict, then a table of the masters.
fn page(status: &ResourceStatus) -> String {
    let (style, verdict_text) = match (status.verdict, &status.holder) {
        ("held", Some(holder)) => (YELLOW, format!("held by {}", holder_text(holder))),
        ("free", _) => (GREEN, "free".to_owned()),
        ("split", _) => (
            YELLOW,
            "split: no holder has a majority of the masters".to_owned(),
        ),
        _ if status.is_blocked() => (
            RED,
            format!(
                "blocked: on {} of {} masters, another program wrote another type of value to the lock key",
                status.count_of_other_type(),
                status.masters.len()
            ),
        ),
        _ => (RED, "unknown: no majority answered".to_owned()),
    };
    let answered = if status.is_blocked() {
        "can vote"
    } else {
        "answered"
    };
    let rows: Vec<Vec<Cell>> = status.masters.iter().map(MasterStatus::row).collect();
    let queues = status.masters.iter().map(|master| &master.waiting);
    let notes = holder_lines(status) + &waiting_lines(queues, status.note.as_ref());
    let (lock_prefix, semaphore) = match (status.permits.len(), waiting_for_permits(status)) {
        (0, 0) => ("", String::new()),
        (0, waiting) => ("plain lock ", format!("; {waiting} waiting for a permit")),
        (1, _) => ("plain lock ", "; 1 permit held".to_owned()),
        (held, _) => ("plain lock ", format!("; {held} permits held")),
    };
    format!(
        "{}: {lock_prefix}{style}{verdict_text}{style:#}{semaphore} ({} of {} masters {answered}, {} are a majority)\n{notes}{}{}",
        status.display_name,
        status.answered,
        status.masters.len(),
        status.quorum,
        output::table(
            &[
                "MASTER", "STATE", "TOKEN", "TTL LEFT", "FENCING", "WAITING", "LATENCY", "ERROR"
            ],
            &rows
        ),
        permits_text(status)
    )
}

/// One line for each master that keeps the lock key for longer than `max_ttl`, or for ever. The line says how such a key arises, and
/// what to do if nobody holds the lock. Empty if no master does.
fn lasting_key_warnings(status: &ResourceStatus, max_ttl: Duration) -> String {
    let warning = |master: &MasterStatus| {
        if master.state == "held" && master.ttl_left_ms.is_none() {
            return Some(format!(
                "{}: the lock key has no expiry, so another program wrote it. Nobody gets the lock until the key is \
                 deleted. If nobody needs the key, quorate break --foreign deletes it.\n",
                master.master
            ));
        }
        let ttl_left = Duration::from_millis(master.ttl_left_ms?);
        (ttl_left > max_ttl).then(|| {
            format!(
                "{}: the lock key expires in {}, which is longer than max_ttl ({}): another program wrote it, or the \
                 master's clock was set back since. A holder that lives removes it when it releases the lock. If the \
                 holder is gone, quorate break removes it.\n",
                master.master,
                human(ttl_left),
                human(max_ttl)
            )
        })
    };
    status.masters.iter().filter_map(warning).collect()
}

/// Describes the longest queue of any master: one line for each of the first [`MAX_WAITERS_SHOWN`] waiters, and one
/// line with the number of the remaining waiters.
///
/// `holder` names the process that holds the lock. If the first waiter is the same process, the waiter's line says so.
fn waiting_lines<'a>(
    queues: impl Iterator<Item = &'a Vec<WaiterStatus>>,
    holder: Option<&NoteStatus>,
) -> String {
    // Leave out waiters that have lost their place because they sent no heartbeat. A master removes such a waiter only
    // when another client requests the lock.
    let live_queues =
        queues.map(|queue| queue.iter().filter(|waiter| waiter.lives_ms > 0).collect());
    let waiters: Vec<&WaiterStatus> = live_queues.max_by_key(Vec::len).unwrap_or_default();
    let mut lines = String::new();
    for (index, waiter) in waiters.iter().take(MAX_WAITERS_SHOWN).enumerate() {
        // The first waiter can be the holder: a client can stay in the queue after it has acquired the lock.
        let holder_text = index == 0
            && holder.is_some_and(|holder| {
                (Some(&holder.host), Some(holder.pid)) == (waiter.host.as_ref(), waiter.pid)
            });
        let holder_text = if holder_text {
            " (same process as the holder)"
        } else {
            ""
        };
        lines += &format!("waiting: {}{holder_text}\n", waiter.summary);
    }
    if let Some(more @ 1..) = waiters.len().checked_sub(MAX_WAITERS_SHOWN) {
        lines += &format!("waiting: {more} more, see --json\n");
    }
    lines
}

/// One line for each holder that has stored a note about itself on the masters.
pub(crate) fn holder_lines(status: &ResourceStatus) -> String {
    let mut lines = String::new();
    for holder in status.holders() {
        lines += &format!("holder: {holder}\n");
    }
    lines
}

/// The number of clients that wait for a permit, on the master with the longest queue.
fn waiting_for_permits(status: &ResourceStatus) -> usize {
    let queues = status.permit_line.iter().map(|line| line.waiting.len());
    queues.max().unwrap_or(0)
}

/// The output for people about the semaphore that has the same name as the lock: the held permits and the number of
/// waiters, or the reason why they could not be read. Empty if no permit is held and no client waits.
fn permits_text(status: &ResourceStatus) -> String {
    const LABEL: &str = "semaphore of the same name (a separate lock)";
    let permits = &status.permits;
    if let Some(why) = &status.permits_error {
        return format!("{LABEL}: cannot read its permits: {why}\n");
    }
    let waiting = waiting_for_permits(status);
    if permits.is_empty() && waiting == 0 {
        return String::new();
    }
    let row = |permit: &ResourceStatus| -> Vec<Cell> {
        let counters = permit.masters.iter().filter_map(|m| m.fencing_counter);
        let counter = counters.max().map(|counter| counter.to_string());
        vec![
            permit.slot.unwrap_or_default().to_string().into(),
            permit.verdict.into(),
            permit.ttl_left_text().into(),
            counter.unwrap_or_else(|| "-".to_owned()).into(),
            permit.holders_text().into(),
        ]
    };
    let rows: Vec<Vec<Cell>> = permits.iter().map(row).collect();
    let mut text = format!("{LABEL}: {} held, {waiting} waiting\n", permits.len());
    if !rows.is_empty() {
        text += &output::table(&["SLOT", "STATE", "TTL LEFT", "FENCING", "HOLDER"], &rows);
    }
    let queues = status.permit_line.iter().map(|line| &line.waiting);
    text + &waiting_lines(queues, None)
}
