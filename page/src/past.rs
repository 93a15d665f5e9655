//! The past of a time window, computed from events: holds, waits, gaps, and the longest of them.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Serialize;

use crate::event::{Event, EventKind, ShownEvent};
use crate::record::OpenHold;

/// The largest numbers of holds, waits and events in one answer. The longest holds and waits, and the newest events, are kept.
const MAX_SPANS: usize = 5_000;
const MAX_WAITS: usize = 2_000;
const MAX_SHOWN: usize = 500;
const MAX_RANKED: usize = 8;

/// A hold or a wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Span {
    lock: Arc<str>,
    host: Option<Arc<str>>,
    holder: Option<Arc<str>>,
    from_ms: u64,
    /// `None` if it has not ended.
    to_ms: Option<u64>,
    /// How a hold ended; `None` for a wait, and for a hold that has not ended.
    end: Option<EventKind>,
    token: Option<u64>,
    #[serde(skip)]
    hold: Option<u64>,
}

/// A time in which something was missing: a quorum, a vote of one master, or the attention of the page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Gap {
    from_ms: u64,
    to_ms: Option<u64>,
    why: &'static str,
    master: Option<Arc<str>>,
}

/// The answer of `api/history`.
#[derive(Debug, Serialize)]
pub(crate) struct Past<'a> {
    now_ms: u64,
    from_ms: u64,
    to_ms: u64,
    holds: Vec<Span>,
    /// The number of holds, of which `holds` has the longest.
    holds_total: usize,
    waits: Vec<Span>,
    gaps: Vec<Gap>,
    /// The newest first.
    events: Vec<ShownEvent<'a>>,
    /// The number of events, of which `events` has the newest.
    total: usize,
    longest_holds: Vec<Span>,
    longest_waits: Vec<Span>,
}

/// The time window, and the lock to which the answer is limited.
#[derive(Clone, Debug)]
pub(crate) struct Window<'a> {
    pub(crate) from_ms: u64,
    pub(crate) to_ms: u64,
    pub(crate) now_ms: u64,
    pub(crate) lock: Option<&'a str>,
}

impl Window<'_> {
    fn contains(&self, from_ms: u64, to_ms: Option<u64>) -> bool {
        from_ms <= self.to_ms && to_ms.unwrap_or(self.now_ms) >= self.from_ms
    }

    /// How much of the time from `from_ms` to `to_ms` is in the window.
    fn part(&self, from_ms: u64, to_ms: Option<u64>) -> u64 {
        let end = to_ms.unwrap_or(self.now_ms).min(self.to_ms);
        end.saturating_sub(from_ms.max(self.from_ms))
    }
}

/// Identifies a hold or a wait among the events of one lock.
#[derive(Clone, Copy, PartialEq, Eq)]
struct SpanKey<'a> {
    hold: Option<u64>,
    holder: Option<&'a str>,
    token: Option<u64>,
    from_ms: Option<u64>,
}

impl<'a> SpanKey<'a> {
    fn new(event: &'a Event) -> Self {
        // A hold can get its note, and so its holder, after its first event.
        let is_known = event.hold.is_some();
        Self {
            hold: event.hold,
            holder: event.holder.as_deref().filter(|_| !is_known),
            token: event.token.filter(|_| !is_known),
            from_ms: event.from_ms,
        }
    }

    /// Whether this may be the same hold as `other`, which had no note yet when it began.
    fn fits_without_note(&self, other: &Self) -> bool {
        let has_same_holder = other.holder.is_none() || other.holder == self.holder;
        other.hold.is_none() && other.from_ms == self.from_ms && has_same_holder
    }
}

/// Computes the past of a window from the events, oldest first.
pub(crate) fn compute_past<'a>(
    events: impl Iterator<Item = &'a Event>,
    window: &Window<'_>,
) -> Past<'a> {
    let mut holds = Spans::default();
    let mut waits = Spans::default();
    let mut gaps = Gaps::default();
    let mut shown: Vec<&Event> = Vec::new();
    for event in events {
        gaps.add(event);
        if window.lock.is_some() && event.lock.as_deref() != window.lock {
            continue;
        }
        match event.kind {
            EventKind::Taken => holds.begin(event),
            EventKind::WaitBegan => waits.begin(event),
            EventKind::WaitEnded => waits.end(event, None),
            kind if kind.ends_a_hold() => holds.end(event, Some(kind)),
            _ => {}
        }
        if (window.from_ms..=window.to_ms).contains(&event.at_ms) {
            shown.push(event);
        }
    }
    let (holds, holds_total) = holds.in_window(window, MAX_SPANS);
    let (waits, _) = waits.in_window(window, MAX_WAITS);
    let gaps = gaps
        .all
        .into_iter()
        .filter(|gap| window.contains(gap.from_ms, gap.to_ms));
    let longest = |spans: &[Span]| spans.iter().take(MAX_RANKED).cloned().collect();
    Past {
        now_ms: window.now_ms,
        from_ms: window.from_ms,
        to_ms: window.to_ms,
        longest_holds: longest(&holds),
        longest_waits: longest(&waits),
        holds,
        holds_total,
        waits,
        gaps: gaps.collect(),
        events: shown
            .iter()
            .rev()
            .take(MAX_SHOWN)
            .map(|event| event.shown())
            .collect(),
        total: shown.len(),
    }
}

/// The holds that have begun and not ended by the last of these events, by lock.
pub(crate) fn open_holds<'a>(
    events: impl Iterator<Item = &'a Event>,
) -> HashMap<Arc<str>, Vec<OpenHold>> {
    let mut holds = Spans::default();
    for event in events {
        match event.kind {
            EventKind::Taken => holds.begin(event),
            kind if kind.ends_a_hold() => holds.end(event, Some(kind)),
            _ => {}
        }
    }
    let mut open: HashMap<Arc<str>, Vec<OpenHold>> = HashMap::new();
    for span in holds.all.into_iter().filter(|span| span.to_ms.is_none()) {
        open.entry(span.lock).or_default().push(OpenHold {
            hold: span.hold,
            from_ms: span.from_ms,
            holder: span.holder,
            token: span.token,
        });
    }
    open
}

/// Holds or waits that are put together from their first and their last event.
#[derive(Default)]
struct Spans<'a> {
    all: Vec<Span>,
    /// The spans that have not ended, by lock, with their places in `all`.
    open: HashMap<&'a str, Vec<(SpanKey<'a>, usize)>>,
}

impl<'a> Spans<'a> {
    fn begin(&mut self, event: &'a Event) {
        if let (Some(lock), Some(span)) = (event.lock.as_deref(), span(event)) {
            let key = SpanKey::new(event);
            let open = self.open.entry(lock).or_default();
            open.retain(|(other, _)| *other != key);
            open.push((key, self.all.len()));
            self.all.push(span);
        }
    }

    /// Ends a span. Its first event can be missing, because it was too old: the last event has all facts.
    fn end(&mut self, event: &'a Event, kind: Option<EventKind>) {
        let (Some(lock), Some(mut ended)) = (event.lock.as_deref(), span(event)) else {
            return;
        };
        ended.to_ms = Some(event.at_ms);
        ended.end = kind;
        match self.remove_open(lock, &SpanKey::new(event)) {
            Some(index) => self.all[index] = ended,
            None => self.all.push(ended),
        }
    }

    /// The place of the open span with this key, or of the open hold that had no note yet when it began.
    fn remove_open(&mut self, lock: &str, key: &SpanKey<'a>) -> Option<usize> {
        let open = self.open.get_mut(lock)?;
        let same = open.iter().position(|(other, _)| other == key);
        let place = same.or_else(|| {
            open.iter()
                .position(|(other, _)| key.fits_without_note(other))
        })?;
        Some(open.swap_remove(place).1)
    }

    /// The spans in the window, those with the longest time in the window first, and their number.
    fn in_window(self, window: &Window<'_>, max: usize) -> (Vec<Span>, usize) {
        let mut spans = self.all;
        spans.retain(|span| window.contains(span.from_ms, span.to_ms));
        spans.sort_by_key(|span| std::cmp::Reverse(window.part(span.from_ms, span.to_ms)));
        let total = spans.len();
        spans.truncate(max);
        (spans, total)
    }
}

fn span(event: &Event) -> Option<Span> {
    Some(Span {
        lock: event.lock.clone()?,
        host: event.host.clone(),
        holder: event.holder.clone(),
        from_ms: event.from_ms.unwrap_or(event.at_ms),
        to_ms: None,
        end: None,
        token: event.token,
        hold: event.hold,
    })
}

#[derive(Default)]
struct Gaps {
    all: Vec<Gap>,
    last_ms: u64,
}

impl Gaps {
    fn add(&mut self, event: &Event) {
        let at_ms = event.at_ms;
        match event.kind {
            EventKind::QuorumLost => self.begin("no quorum", None, at_ms),
            EventKind::QuorumRestored => self.end("no quorum", None, at_ms),
            EventKind::MasterDown | EventKind::MasterGuarded => {
                self.begin("master", event.master.as_ref(), at_ms);
            }
            EventKind::MasterUp => self.end("master", event.master.as_ref(), at_ms),
            EventKind::WatchPaused => self.begin("nobody watched", None, at_ms),
            EventKind::WatchBegan => {
                // A page that was killed wrote no last event.
                self.begin("nobody watched", None, self.last_ms.max(1));
                self.end("nobody watched", None, at_ms);
            }
            _ => {}
        }
        self.last_ms = at_ms;
    }

    fn open(&mut self, why: &str, master: Option<&Arc<str>>) -> Option<&mut Gap> {
        let mut gaps = self.all.iter_mut().rev();
        gaps.find(|gap| gap.to_ms.is_none() && gap.why == why && gap.master.as_ref() == master)
    }

    fn begin(&mut self, why: &'static str, master: Option<&Arc<str>>, from_ms: u64) {
        if self.open(why, master).is_none() {
            let master = master.cloned();
            self.all.push(Gap {
                from_ms,
                to_ms: None,
                why,
                master,
            });
        }
    }

    fn end(&mut self, why: &str, master: Option<&Arc<str>>, at_ms: u64) {
        if let Some(gap) = self.open(why, master) {
            gap.to_ms = Some(at_ms);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: EventKind, at_ms: u64, from_ms: u64) -> Event {
        Event {
            lock: Some("l:a".into()),
            holder: Some("app-1 pid 7".into()),
            from_ms: Some(from_ms),
            ..Event::new(kind, at_ms)
        }
    }

    fn window(from_ms: u64, to_ms: u64) -> Window<'static> {
        Window {
            from_ms,
            to_ms,
            now_ms: 1_000,
            lock: None,
        }
    }

    #[test]
    fn hold_is_put_together_from_its_first_and_its_last_event() {
        let events = [
            event(EventKind::Taken, 100, 90),
            event(EventKind::Released, 200, 90),
            event(EventKind::Taken, 300, 290),
        ];
        let past = compute_past(events.iter(), &window(0, 1_000));
        let times: Vec<_> = past
            .holds
            .iter()
            .map(|hold| (hold.from_ms, hold.to_ms))
            .collect();
        assert_eq!(times, [(290, None), (90, Some(200))], "the longest first");
        assert_eq!(past.total, 3);
        assert_eq!(past.events[0].shown_at(), 300);
    }

    #[test]
    fn hold_whose_first_event_is_forgotten_is_shown() {
        let events = [event(EventKind::Expired, 200, 90)];
        let past = compute_past(events.iter(), &window(0, 1_000));
        assert_eq!(past.holds[0].from_ms, 90);
        assert_eq!(past.holds[0].end, Some(EventKind::Expired));
    }

    #[test]
    fn hold_that_got_its_note_later_is_one_hold() {
        let without_note = Event {
            holder: None,
            ..event(EventKind::Taken, 100, 90)
        };
        let events = [without_note, event(EventKind::Released, 200, 90)];
        assert_eq!(
            compute_past(events.iter(), &window(0, 1_000)).holds.len(),
            1
        );
        assert!(open_holds(events.iter()).is_empty());
        assert_eq!(open_holds(events[..1].iter()).len(), 1);
    }

    #[test]
    fn holds_of_one_holder_are_distinguished() {
        let reader = |kind, at_ms, hold| Event {
            hold: Some(hold),
            holder: (kind != EventKind::Taken).then(|| "app-1 pid 7".into()),
            ..event(kind, at_ms, 90)
        };
        let events = [
            reader(EventKind::Taken, 100, 1),
            reader(EventKind::Taken, 100, 2),
            reader(EventKind::Released, 200, 2),
        ];
        let open = open_holds(events.iter());
        let open: Vec<_> = open["l:a"].iter().map(|open| open.hold).collect();
        assert_eq!(open, [Some(1)]);
    }

    #[test]
    fn ends_without_beginnings_take_no_time_for_each_open_hold() {
        let of_lock = |kind, number: u64| Event {
            lock: Some(format!("l:{number}").into()),
            ..event(kind, 100, 90)
        };
        let taken = (0..30_000).map(|number| of_lock(EventKind::Taken, number));
        let ended = (30_000..60_000).map(|number| of_lock(EventKind::Released, number));
        let events: Vec<Event> = taken.chain(ended).collect();
        let started_at = std::time::Instant::now();
        assert_eq!(
            compute_past(events.iter(), &window(0, 1_000)).holds_total,
            60_000
        );
        let elapsed = started_at.elapsed();
        assert!(elapsed < std::time::Duration::from_secs(5), "{elapsed:?}");
    }

    #[test]
    fn window_and_lock_limit_the_answer() {
        let other = Event {
            lock: Some("l:b".into()),
            ..event(EventKind::Taken, 500, 500)
        };
        let events = [
            event(EventKind::Taken, 100, 90),
            event(EventKind::Released, 200, 90),
            other,
        ];
        assert!(
            compute_past(events.iter(), &window(300, 400))
                .holds
                .is_empty()
        );
        assert_eq!(
            compute_past(events.iter(), &window(150, 160)).holds.len(),
            1
        );
        let one = Window {
            lock: Some("l:b"),
            ..window(0, 1_000)
        };
        let past = compute_past(events.iter(), &one);
        assert_eq!((past.holds.len(), past.total), (1, 1));
    }

    #[test]
    fn gaps_show_when_the_page_did_not_run() {
        let events = [
            Event::new(EventKind::QuorumLost, 10),
            Event::new(EventKind::QuorumLost, 20),
            Event::new(EventKind::QuorumRestored, 30),
            Event::new(EventKind::WatchBegan, 500),
        ];
        let past = compute_past(events.iter(), &window(0, 1_000));
        let gaps: Vec<_> = past
            .gaps
            .iter()
            .map(|gap| (gap.why, gap.from_ms, gap.to_ms))
            .collect();
        assert_eq!(
            gaps,
            [
                ("no quorum", 10, Some(30)),
                ("nobody watched", 30, Some(500))
            ]
        );
    }
}
