//! Force-releases a lock at the Redis masters, in the steps of `src/rounds/force_release.rs`.

use std::sync::Arc;

use quorate::node::{Answer, Ended, KeyState, Request};

use super::event::Event;
use super::{ForceRelease, World};
use crate::clock::MS;
use crate::happening::Happening;
use crate::locker::key_of_place;

/// The time between two steps of a force-release. It is short, so that a step can fall between two messages of one
/// acquire.
const STEP_NANOS: u64 = MS / 5;

impl World {
    /// Begins to force-release the lock on a resource, on the Redis masters that are up and not in `missed`.
    pub(super) fn begin_force_release(&mut self, resource: u8, missed: u16) {
        let mut states = Vec::new();
        for master in self.reachable_masters(missed) {
            let state = self.execute_step_at(master, resource, &Arc::default(), false);
            states.extend(state);
        }
        let ended: Arc<[Ended]> = Ended::all(states.iter()).into();
        if ended.is_empty() {
            return;
        }
        self.force_releases.push(ForceRelease {
            resource,
            missed,
            ended,
            recorded: false,
        });
        let index = self.force_releases.len() - 1;
        self.schedule(self.now + STEP_NANOS, Event::ForceReleaseStep(index as u32));
    }

    /// The second step writes the break records. The third step deletes the lock keys.
    pub(super) fn continue_force_release(&mut self, index: usize) {
        let ForceRelease {
            resource,
            missed,
            recorded,
            ..
        } = self.force_releases[index];
        let ended = self.force_releases[index].ended.clone();
        let reached = self.reachable_masters(missed);
        let states = reached
            .into_iter()
            .filter_map(|master| self.execute_step_at(master, resource, &ended, recorded));
        let executed = states.count();
        if recorded {
            if executed > 0 {
                self.observer.coverage.force_releases += 1;
                let resource = usize::from(resource);
                self.report_happening_to(Happening::ForceRelease, None, Some(resource));
            }
        } else if executed > self.masters.len() / 2 {
            self.force_releases[index].recorded = true;
            self.schedule(self.now + STEP_NANOS, Event::ForceReleaseStep(index as u32));
        }
    }

    fn reachable_masters(&self, missed: u16) -> Vec<usize> {
        let indexes = 0..self.masters.len();
        indexes
            .filter(|master| {
                let is_store = self.scenario.masters[*master].store.is_some();
                self.masters[*master].up && !is_store && missed >> master & 1 == 0
            })
            .collect()
    }

    /// Executes one step at one master. Returns the state of the lock before the step; `None` if the master refuses.
    fn execute_step_at(
        &mut self,
        index: usize,
        resource: u8,
        ended: &Arc<[Ended]>,
        delete: bool,
    ) -> Option<KeyState> {
        let key: Arc<[u8]> = key_of_place(resource).as_bytes().into();
        let request = Request::Break {
            key: key.clone(),
            ended: ended.clone(),
            delete,
        };
        let master = &mut self.masters[index];
        let now_us = master.clock_us(self.now);
        let answer = master.memory.apply(now_us, &request);
        master.lock_states[usize::from(resource)] = master.lock_state(now_us, &key);
        for (process, key) in master.memory.take_published() {
            self.send_wake_up(index, &process, &key);
        }
        match answer {
            Ok(Answer::State(state)) => Some(state),
            _ => None,
        }
    }
}
