//! The history in memory: the newest events, limited by number and by age.

use std::collections::VecDeque;

use crate::event::Event;

/// The largest number of events in memory.
pub(crate) const MAX_EVENTS: usize = 100_000;

/// The largest age of an event in memory, in milliseconds: 24 hours.
pub(crate) const MAX_AGE_MS: u64 = 24 * 3_600_000;

/// The newest events, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Ring {
    events: VecDeque<Event>,
    next_seq: u64,
}

impl Ring {
    /// Adds an event, gives it the next number, and returns it. Removes events that are too many or too old.
    pub(crate) fn push(&mut self, mut event: Event) -> &Event {
        self.next_seq = self.next_seq.max(event.seq).saturating_add(1);
        event.seq = self.next_seq;
        let oldest_kept = event.at_ms.saturating_sub(MAX_AGE_MS);
        while self.events.len() >= MAX_EVENTS
            || self
                .events
                .front()
                .is_some_and(|first| first.at_ms < oldest_kept)
        {
            self.events.pop_front();
        }
        self.events.push_back(event);
        &self.events[self.events.len() - 1]
    }

    /// Adds an event that was read from a file, with its number. `now_ms` decides whether it is too old.
    pub(crate) fn restore(&mut self, event: Event, now_ms: u64) {
        self.next_seq = self.next_seq.max(event.seq);
        if event.at_ms < now_ms.saturating_sub(MAX_AGE_MS) || event.at_ms > now_ms {
            return;
        }
        if self.events.len() >= MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// The events, oldest first.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Event> + Clone {
        self.events.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.events.len()
    }

    /// The number of the last event; 0 if there was none.
    pub(crate) fn last_seq(&self) -> u64 {
        self.next_seq
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::EventKind;

    fn event(at_ms: u64) -> Event {
        Event::new(EventKind::Taken, at_ms)
    }

    #[test]
    fn ring_drops_events_that_are_too_many_or_too_old() {
        let mut ring = Ring::default();
        for at_ms in 0..MAX_EVENTS as u64 + 5 {
            ring.push(event(at_ms));
        }
        assert_eq!(ring.len(), MAX_EVENTS);
        assert_eq!(ring.iter().next().map(|first| first.at_ms), Some(5));
        ring.push(event(MAX_AGE_MS + 1_000));
        assert_eq!(ring.iter().next().map(|first| first.at_ms), Some(1_000));
    }

    #[test]
    fn numbers_of_events_rise_after_a_restart() {
        let mut ring = Ring::default();
        let now = MAX_AGE_MS + 10;
        ring.restore(
            Event {
                seq: 41,
                ..event(now - 1)
            },
            now,
        );
        ring.restore(
            Event {
                seq: 42,
                ..event(0)
            },
            now,
        );
        ring.restore(
            Event {
                seq: 43,
                ..event(now + 99)
            },
            now,
        );
        assert_eq!(
            ring.len(),
            1,
            "an old event and one from the future are left out"
        );
        assert_eq!(ring.push(event(now)).seq, 44);
        assert_eq!(ring.last_seq(), 44);
    }
}
