//! One connection at work: what is under way on it, in the order of asking.

use std::collections::VecDeque;
use std::time::Duration;

use super::buffers::Output;
use super::decode::{NoAnswer, decode};
use super::deletion::Deletion;
use super::handshake::Negotiated;
use super::loaded::Scripts;
use super::many::{Each, decode_many};
use super::refusal::{is_denied_key, is_noscript, not_admitted};
use super::resp::{Command, Value};
use super::runs::{Placed, Runs};
use super::shared::Shared;
use crate::keys::{LEADER, MASTERS};
use crate::node::actor::mailbox::Queued;
use crate::node::actor::marks::Missed;
use crate::node::actor::owed::Owed;
use crate::node::actor::trust::Memory;
use crate::node::actor::window::Window;
use crate::node::{Answer, Fault, Request, Subscriber};
use crate::protocol::instant::Instant;
use crate::protocol::mark::{Admission, Mark, RESTORED};
use crate::protocol::restart::guarded_for;
use crate::settings::RestartGuard;

/// The most requests that are taken at one look.
const BATCH: usize = 512;

/// Bytes that may wait for the socket before no more is taken.
const BACKLOG: usize = 256 << 10;

/// How long after its last answer a stalled connection is given up for a new one.
const STALL: Duration = Duration::from_millis(500);

/// After this much silence an idle master is asked for a sign of life: wake-ups come over this
/// connection, and one that a firewall has forgotten says nothing by itself.
const IDLE: Duration = Duration::from_secs(2);

pub(super) struct Online {
    scripts: Scripts,
    /// What releases by themselves are written as.
    deletion: Deletion,
    quarantined_until: Instant,
    memory: Memory,
    /// Why this master gives no votes to this client, where that stays so.
    refused: Option<Fault>,
    /// Since when the master is known to have no mark.
    unmarked: Option<Instant>,
    /// Its mark has been missed on this connection.
    missed: bool,
    /// Until when its votes do not count because it has lost its mark, if it has.
    doubted_until: Option<Instant>,
    since: Instant,
    /// When the master was last heard.
    heard: Instant,
    /// What the master has been asked and has not answered yet, in the order of asking.
    under_way: VecDeque<Sent>,
    /// What waits for scripts that are to be loaded, for the first time or because the master has lost
    /// them; sent before all others.
    again: Vec<Queued>,
    /// The sets that are to be loaded for it.
    wanted: Vec<usize>,
    /// What was asked together with others, or by a command that is not to be had, and is to be asked by itself; goes
    /// first.
    apart: Vec<Queued>,
    /// What is about to be written, before and after it was arranged.
    runs: Runs<Queued>,
    placed: Vec<Placed<Queued>>,
    /// What one reply is about, and what it means for each.
    answered: Vec<Queued>,
    each: Vec<Each>,
    /// The scripts for many at once have been asked for.
    many_wanted: bool,
    /// Since when an answer is overdue. Nothing but what is under way is asked meanwhile.
    stalled_since: Option<Instant>,
    window: Window,
}

/// Something the master has been asked.
struct Sent {
    what: What,
    at: Instant,
    /// How many requests behind it have their answers in the same reply.
    along: usize,
}

impl Sent {
    fn alone(what: What, at: Instant) -> Self {
        Self { what, at, along: 0 }
    }
}

enum What {
    Request(Queued),
    /// A script that is loaded again.
    Script(usize),
    Ping,
    /// The mark, given back to a master that has none.
    Mark,
    /// How long the mark has to live, after it was given back.
    MarkLeft,
    /// The server's command that compares and deletes.
    Trial,
}

impl Online {
    pub(super) fn new(negotiated: Negotiated, shared: &Shared, now: Instant) -> Self {
        Self {
            scripts: negotiated.scripts,
            deletion: negotiated.deletion,
            quarantined_until: negotiated.quarantined_until,
            memory: negotiated.memory,
            refused: negotiated.refused,
            unmarked: negotiated.unmarked,
            missed: false,
            doubted_until: negotiated.restored.map(|left| now + left),
            since: now,
            heard: now,
            under_way: VecDeque::new(),
            again: Vec::new(),
            wanted: Vec::new(),
            apart: Vec::new(),
            runs: Runs::new(negotiated.least_acquires),
            placed: Vec::new(),
            answered: Vec::new(),
            each: Vec::new(),
            many_wanted: false,
            stalled_since: None,
            window: Window::new(shared.options.node_timeout),
        }
    }

    pub(super) fn lived(&self, now: Instant) -> Duration {
        now.saturating_since(self.since)
    }

    pub(super) fn is_stalled(&self) -> bool {
        self.stalled_since.is_some()
    }

    pub(super) fn is_at_work(&self) -> bool {
        !self.under_way.is_empty()
    }

    pub(super) fn is_crowded(&self) -> bool {
        self.under_way.len() > 1
    }

    /// The command that compares and deletes has not been answered.
    pub(super) fn is_trying(&self) -> bool {
        self.deletion == Deletion::Trying
    }

    /// Nothing that was taken is unanswered.
    pub(super) fn is_idle(&self) -> bool {
        let request = |sent: &Sent| matches!(sent.what, What::Request(_));
        let waits = !self.again.is_empty() || !self.apart.is_empty();
        !waits && !self.under_way.iter().any(request)
    }

    /// Takes in one reply or push. An error ends the connection.
    pub(super) fn hear(
        &mut self,
        shared: &Shared,
        owed: &mut Owed,
        value: &Value<'_>,
        now: Instant,
    ) -> Result<(), Fault> {
        self.heard = now;
        if let Value::Push(push) = value
            && !self.is_answer(push)
        {
            wake(shared.subscriber.get(), push);
            return Ok(());
        }
        let Some(Sent { what, at, along }) = self.under_way.pop_front() else {
            return Err(Fault::Down("an answer that nobody asked for".into()));
        };
        match what {
            What::Request(queued) if along > 0 => {
                self.answered.push(queued);
                for _ in 0..along {
                    if let Some(Sent {
                        what: What::Request(queued),
                        ..
                    }) = self.under_way.pop_front()
                    {
                        self.answered.push(queued);
                    }
                }
                self.hear_many(shared, owed, value, (at, now))?;
            }
            What::Request(queued) => {
                self.window.learn(at, now);
                let Some(queued) = self.ask_otherwise(queued, value) else {
                    return Ok(());
                };
                let answer = match decode(&queued.request, value, &self.memory) {
                    Ok(answer) => Ok(answer),
                    Err(NoAnswer::Fault(fault)) => Err(fault),
                    Err(NoAnswer::Odd(fault)) => {
                        owed.keep(&queued);
                        queued.answer(Err(fault.clone()));
                        return Err(fault);
                    }
                };
                settle(shared, owed, queued, answer, is_noscript(value), now);
            }
            // Without those for many each goes by itself.
            What::Script(index)
                if Scripts::is_of_many(index) && matches!(value, Value::Error(_)) => {}
            What::Script(index) => self.scripts.loaded(index, value)?,
            What::Ping => match value {
                Value::Simple(_) | Value::Bulk(_) | Value::Error(_) => {}
                _ => return Err(Fault::Down("an odd answer to PING".into())),
            },
            // Written, or there again, or not allowed: the next handshake looks.
            What::Mark => {}
            What::MarkLeft => self.hear_mark_left(shared, value, now),
            What::Trial => self.deletion.tried(value),
        }
        Ok(())
    }

    /// Asks again, in another way, what could not be done as it was asked; anything else comes back.
    fn ask_otherwise(&mut self, queued: Queued, value: &Value<'_>) -> Option<Queued> {
        if is_noscript(value) && !queued.resent {
            self.send_again(queued);
        } else if queued.compared && Deletion::is_refused(value) {
            self.deletion = Deletion::Script;
            self.ask_apart(queued);
        } else if queued.is_of_several()
            && matches!(value, Value::Error(error) if is_denied_key(error))
        {
            // The user may not use the key of one of them.
            self.apart.extend(queued.split());
        } else {
            return Some(queued);
        }
        None
    }

    /// Takes in the reply to all that have been put into `answered`.
    fn hear_many(
        &mut self,
        shared: &Shared,
        owed: &mut Owed,
        value: &Value<'_>,
        (at, now): (Instant, Instant),
    ) -> Result<(), Fault> {
        let mut answered = std::mem::take(&mut self.answered);
        let mut each = std::mem::take(&mut self.each);
        if let Err(fault) = decode_many(&answered, value, &mut each) {
            for queued in answered {
                owed.keep(&queued);
                queued.answer(Err(fault.clone()));
            }
            return Err(fault);
        }
        let noscript = is_noscript(value);
        for (queued, said) in answered.drain(..).zip(each.drain(..)) {
            self.window.learn(at, now);
            if noscript && !queued.resent {
                self.send_again(queued);
            } else if let Some(answer) = said {
                settle(shared, owed, queued, answer, noscript, now);
            } else {
                self.ask_apart(queued);
            }
        }
        (self.answered, self.each) = (answered, each);
        Ok(())
    }

    /// The master has lost its scripts: they are loaded, and this is sent again.
    fn send_again(&mut self, mut queued: Queued) {
        queued.resent = true;
        self.again.push(queued);
        self.wanted = self.scripts.loaded_sets().collect();
    }

    /// What could not be done as it was asked is asked by itself, by the script that does it.
    fn ask_apart(&mut self, mut queued: Queued) {
        queued.apart = true;
        self.apart.push(queued);
    }

    /// Whether a push is the answer to what was asked first: subscriptions are answered so, in turn.
    fn is_answer(&self, push: &[Value<'_>]) -> bool {
        let Some(What::Request(queued)) = self.under_way.front().map(|sent| &sent.what) else {
            return false;
        };
        let kind = match queued.request {
            Request::Watch { on: true, .. } => &b"subscribe"[..],
            Request::Watch { on: false, .. } => b"unsubscribe",
            _ => return false,
        };
        push.first().and_then(Value::text) == Some(kind)
    }

    /// Looks whether a stalled master has caught up, once all that came has been heard.
    pub(super) fn caught_up(&mut self, limit: Duration, now: Instant) {
        if self.stalled_since.is_some() {
            // As long as the next answer is overdue as well, what is asked now would be late too.
            let next = self.under_way.front();
            self.stalled_since = next.filter(|sent| sent.at + limit <= now).map(|_| now);
        }
    }

    /// Writes what has gathered; true when there may be more. Not to be asked for while the master is stalled.
    pub(super) fn take(
        &mut self,
        shared: &Shared,
        owed: &mut Owed,
        out: &mut Output,
        batch: &mut Vec<Queued>,
        now: Instant,
    ) -> bool {
        let room = self.window.width().saturating_sub(self.under_way.len());
        if room == 0 || out.rest().len() >= BACKLOG {
            return false;
        }
        if !self.again.is_empty() {
            // The order is kept: nothing overtakes what came back, so wait until all has landed.
            if !self.under_way.is_empty() {
                return false;
            }
            if !self.wanted.is_empty() {
                // Scripts have the same names again, so what needs them goes out right behind; the name
                // of one that is loaded for the first time comes with its answer.
                let known: Vec<usize> = self.scripts.loaded_sets().collect();
                let are_named = self.wanted.iter().all(|set| known.contains(set));
                for set in std::mem::take(&mut self.wanted) {
                    self.load(set, shared, out, now);
                }
                if !are_named {
                    return true;
                }
            }
            batch.append(&mut self.again);
        }
        // Before all that comes behind it: a release of the same claim.
        batch.splice(0..0, self.apart.drain(..));
        let room = room.min(BATCH);
        // They go first, and leave room for others however many there are
        // (`owed_releases_never_starve_requests`).
        batch.extend(owed.take(room / 2, now));
        let room = room.saturating_sub(batch.len());
        if room > 0 {
            shared.mailbox.take(room, batch);
        }
        // Also when all of it has been withdrawn or is guarded: what waits behind it rings no bell
        // of its own, the queue was never empty (`every_request_is_answered_once`).
        let took = !batch.is_empty();
        if took {
            self.miss_mark(shared, out, now);
        }
        let quarantine = self.quarantine(shared, now);
        for queued in batch.drain(..) {
            if let Some(fault) = self.withheld(&queued.request, quarantine) {
                queued.answer(Err(fault));
            } else if let Some(set) = self.scripts.lacks(&queued.request) {
                if !self.wanted.contains(&set) {
                    self.wanted.push(set);
                }
                self.again.push(queued);
            } else if queued.request.is_withdrawn() || queued.request.is_void(now, &self.memory.run)
            {
                queued.answer(Err(Fault::Withdrawn));
            } else {
                self.runs.add(queued, &mut self.placed);
            }
        }
        self.runs.close(&mut self.placed);
        self.write(shared, out, now);
        took
    }

    /// Writes what has been placed.
    fn write(&mut self, shared: &Shared, out: &mut Output, now: Instant) {
        let mut placed = std::mem::take(&mut self.placed);
        if !self.scripts.has(Scripts::MANY) && placed.iter().any(|one| one.along > 0) {
            // Nobody waits for the scripts: until they are there each goes by itself.
            for one in &mut placed {
                one.along = 0;
            }
            if !std::mem::replace(&mut self.many_wanted, true) {
                self.load(Scripts::MANY, shared, out, now);
            }
        }
        let mut at = 0;
        while let Some(first) = placed.get(at) {
            let next = at + 1 + first.along;
            match &mut placed[at..next] {
                [one] => self.write_one(&mut one.member, out.commands()),
                run => self.scripts.encode_many(run, out.commands()),
            }
            at = next;
        }
        let written = placed.iter().map(|one| &one.member.request);
        let tries = self.deletion.try_behind(written, out.commands());
        self.under_way
            .extend(placed.drain(..).map(|Placed { member, along }| Sent {
                what: What::Request(member),
                at: now,
                along,
            }));
        if tries {
            self.under_way.push_back(Sent::alone(What::Trial, now));
        }
        self.placed = placed;
    }

    fn write_one(&self, queued: &mut Queued, out: &mut Vec<u8>) {
        // Noted here: by when it is answered the claim may have a note.
        queued.compared = self.deletion.write(&queued.request, out);
        if !queued.compared {
            (self.scripts).encode(&queued.request, &self.memory.run, out);
        }
    }

    /// Asks the master to load a set of scripts.
    fn load(&mut self, set: usize, shared: &Shared, out: &mut Output, now: Instant) {
        let scripts = (self.scripts).load(set, shared.options.max_ttl, out.commands());
        let load = |index| Sent::alone(What::Script(index), now);
        self.under_way.extend(scripts.map(load));
    }

    /// Why something is not asked for.
    fn withheld(&self, request: &Request, quarantine: Duration) -> Option<Fault> {
        match &self.refused {
            Some(fault) if request.is_for_current_masters() => Some(fault.clone()),
            _ if quarantine.is_zero() || !request.rests_on_memory() => None,
            _ => Some(Fault::Quarantined(quarantine)),
        }
    }

    /// A master without a mark, where another has one, has forgotten what it knew or is another server than it was: it
    /// is guarded as one that has restarted, and given the mark again, so that nobody is let in who was closed out. The
    /// lifetime of that mark makes clients guard it that connect later.
    fn miss_mark(&mut self, shared: &Shared, out: &mut Output, now: Instant) {
        let options = &shared.options;
        let Some(since) = self.unmarked else {
            return;
        };
        let mark = match options.marks.missed() {
            Missed::Nothing => return,
            // It is restored when the marks of more masters have been seen.
            Missed::Unknown => None,
            Missed::Known(mark) => Some(mark),
        };
        if mark.is_some() {
            self.unmarked = None;
        }
        // The first mark of a change is put on the next masters by who prepares it: a client that was told a wrong
        // one would shut out those whose master that is.
        let may_restore = |mark: &Mark| {
            let prepared = mark.number > options.configuration.first_mark()
                || !options.configuration.has_next()
                || options.marks.is_old(shared.address.name());
            prepared && options.configuration.admission(Some(*mark)) == Admission::Admitted
        };
        if let Some(mark) = mark.filter(may_restore) {
            let mark = mark.to_string();
            let lifetime = RESTORED.as_millis().to_string();
            let restored = ["SET", MASTERS, &mark, "NX", "PX", &lifetime];
            // Where its time is over here it is over for all: the mark needs no lifetime.
            let guarded = now < since + options.max_ttl;
            let words = if guarded { &restored } else { &restored[..4] };
            Command::words(out.commands(), words);
            self.under_way.push_back(Sent::alone(What::Mark, now));
        }
        if options.restart_guard != RestartGuard::Off && !self.missed {
            self.missed = true;
            self.doubted_until = Some(since + options.max_ttl);
            Command::words(out.commands(), &["PTTL", MASTERS]);
            self.under_way.push_back(Sent::alone(What::MarkLeft, now));
        }
    }

    /// The mark was missed at the handshake, and has this long to live now.
    fn hear_mark_left(&mut self, shared: &Shared, value: &Value<'_>, now: Instant) {
        let (options, node) = (&shared.options, shared.address.name());
        let Value::Int(left) = value else {
            return;
        };
        match left {
            // Marked since as the other masters were, on the server of this very connection: nothing was lost.
            -1 => self.trust(shared),
            0.. => self.doubted_until = Some(now + guarded_for(*left, options.max_ttl)),
            _ => {}
        }
        if self.doubted_until.is_some_and(|until| until > now) {
            tracing::warn!(
                %node,
                "master has lost the mark of its masters and does not vote for a while"
            );
        }
    }

    /// For how much longer its votes do not count.
    fn quarantine(&mut self, shared: &Shared, now: Instant) -> Duration {
        if self.doubted_until.is_some_and(|until| until <= now) {
            self.trust(shared);
        }
        let until = self.doubted_until.max(Some(self.quarantined_until));
        until.map_or(Duration::ZERO, |until| until.saturating_since(now))
    }

    /// Its mark was not lost, or every lock that it does not know of is over.
    fn trust(&mut self, shared: &Shared) {
        self.doubted_until = None;
        shared.options.marks.trusts(shared.address.name());
    }

    /// When [`tick`](Self::tick) has something to do.
    pub(super) fn wake_at(&self, owed: &Owed, limit: Duration) -> Instant {
        match (self.stalled_since, self.under_way.front()) {
            (Some(since), _) => since + STALL.max(4 * limit),
            (None, Some(oldest)) => oldest.at + limit,
            (None, None) => {
                let idle = self.heard + IDLE;
                owed.wake_at().map_or(idle, |respite| respite.min(idle))
            }
        }
    }

    /// Reports what is overdue, gives up a stalled connection, asks a silent master for a sign of
    /// life.
    pub(super) fn tick(
        &mut self,
        shared: &Shared,
        out: &mut Output,
        now: Instant,
    ) -> Result<(), Fault> {
        let limit = shared.options.node_timeout;
        if let Some(since) = self.stalled_since {
            return if now < since + STALL.max(4 * limit) {
                Ok(())
            } else {
                Err(Fault::Stalled)
            };
        }
        let Some(oldest) = self.under_way.front() else {
            if now >= self.heard + IDLE {
                Command::words(out.commands(), &["PING"]);
                self.under_way.push_back(Sent::alone(What::Ping, now));
            }
            return Ok(());
        };
        if now < oldest.at + limit {
            return Ok(());
        }
        self.stalled_since = Some(now);
        let open = self.under_way.iter_mut().filter_map(|sent| match sent {
            Sent {
                what: What::Request(queued),
                ..
            } => Some(queued),
            _ => None,
        });
        for queued in open.chain(&mut self.again).chain(&mut self.apart) {
            queued.time_out(Fault::Timeout(limit));
        }
        Ok(())
    }

    /// What is still open when the connection ends.
    pub(super) fn hang_up(self) -> impl Iterator<Item = Queued> {
        let open = self
            .under_way
            .into_iter()
            .filter_map(|sent| match sent.what {
                What::Request(queued) => Some(queued),
                What::Script(_) | What::Ping | What::Mark | What::MarkLeft | What::Trial => None,
            });
        open.chain(self.apart).chain(self.again)
    }
}

/// Passes an answer on.
fn settle(
    shared: &Shared,
    owed: &mut Owed,
    queued: Queued,
    answer: Result<Answer, Fault>,
    noscript: bool,
    now: Instant,
) {
    let answer = match answer {
        Err(Fault::OtherMasters(mark)) => {
            let mark = Mark::read(mark.as_bytes());
            let fault = not_admitted(shared.options.configuration, mark);
            Err(fault.unwrap_or(Fault::Server("a mark that admits us".into())))
        }
        answer => answer,
    };
    match &answer {
        Err(fault) if noscript || passes(fault) => {
            owed.postpone(&queued, shared.options.max_ttl, now);
        }
        Ok(Answer::Released(_)) => owed.delivered(),
        _ => {}
    }
    queued.answer(answer);
}

/// A wake-up: the channel's message is the key that may be free, or has a new leader.
fn wake(subscriber: Option<&Subscriber>, push: &[Value<'_>]) {
    if let (Some(subscriber), [kind, channel, key]) = (subscriber, push)
        && kind.text() == Some(b"message")
        && let (Some(channel), Some(key)) = (channel.text(), key.text())
    {
        if channel.starts_with(LEADER.as_bytes()) {
            subscriber.sink.announced(subscriber.node, key);
        } else {
            subscriber.sink.woken(subscriber.node, key);
        }
    }
}

/// Whether a master that answered this may well say something else a while later.
fn passes(fault: &Fault) -> bool {
    matches!(
        fault,
        Fault::Loading | Fault::ReadOnly | Fault::OutOfMemory | Fault::Misconf | Fault::Busy
    )
}
