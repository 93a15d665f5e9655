//! Force-releases a lock at the Redis masters, in the steps of `src/rounds/force_release.rs`.

use std::sync::Arc;

use quorate::node::{Answer, Ended, KeyState, Request};

use super::event::Event;
use super::{ForceRelease, World};
use crate::clock::MS;
use crate::locker::name;
use crate::seeded_bugs::Flaw;

/// The time between two steps of a force-release. It is short, so that a step can fall between two messages of one
/// acquire.
const STEP: u64 = MS / 5;

impl World {
    /// Begins to force-release the lock on a resource, on the Redis masters that are up and not in `missed`.
    pub(super) fn break_lock(&mut self, resource: u8, missed: u16) {
        self.watch.coverage.breaks += 1;
        let mut states = Vec::new();
        for master in self.reached(missed) {
            let state = self.break_at(master, resource, &Arc::default(), false);
            if self.flaw == Some(Flaw::BreakWhereHeld) {
                let ended = Ended::all(state.iter());
                self.break_at(master, resource, &ended.into(), true);
            }
            states.extend(state);
        }
        let ended: Arc<[Ended]> = Ended::all(states.iter()).into();
        if ended.is_empty() || self.flaw == Some(Flaw::BreakWhereHeld) {
            return;
        }
        self.force_releases.push(ForceRelease {
            resource,
            missed,
            ended,
            recorded: false,
        });
        let index = self.force_releases.len() - 1;
        self.at(self.now + STEP, Event::Break(index as u32));
    }

    /// The second step writes the break records. The third step deletes the lock keys.
    pub(super) fn break_step(&mut self, index: usize) {
        let ForceRelease {
            resource,
            missed,
            recorded,
            ..
        } = self.force_releases[index];
        let ended = self.force_releases[index].ended.clone();
        let reached = self.reached(missed);
        let done = reached
            .into_iter()
            .filter_map(|master| self.break_at(master, resource, &ended, recorded));
        let done = done.count();
        if !recorded && done > self.masters.len() / 2 {
            self.force_releases[index].recorded = true;
            self.at(self.now + STEP, Event::Break(index as u32));
        }
    }

    fn reached(&self, missed: u16) -> Vec<usize> {
        let all = 0..self.masters.len();
        all.filter(|master| {
            let store = self.scenario.masters[*master].store.is_some();
            self.masters[*master].up && !store && missed >> master & 1 == 0
        })
        .collect()
    }

    /// Executes one step at one master. Returns the state of the lock before the step; `None` if the master refuses.
    fn break_at(
        &mut self,
        index: usize,
        resource: u8,
        ended: &Arc<[Ended]>,
        delete: bool,
    ) -> Option<KeyState> {
        let key: Arc<[u8]> = name(resource).as_bytes().into();
        let request = Request::Break {
            key: key.clone(),
            ended: ended.clone(),
            delete,
        };
        let master = &mut self.masters[index];
        let now_us = master.micros(self.now);
        let was = master.memory.apply(now_us, &request);
        master.seen[usize::from(resource)] = master.peek_key(now_us, &key);
        for (process, key) in master.memory.take_published() {
            self.publish(index, &process, &key);
        }
        match was {
            Ok(Answer::State(state)) => Some(state),
            _ => None,
        }
    }
}
