//! Which slot of a semaphore to ask for next (docs/protocol.md, "Several resources, readers, owners, semaphores").

use super::quorum::{MasterSet, Quorum};

/// The answers of the masters to a claim on one slot of a semaphore.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotAnswers<'a> {
    /// For each refusing master: its index, and its free slots as a bit mask.
    pub(crate) free: &'a [(usize, u64)],
    /// The masters that granted the requested slot.
    pub(crate) granted: MasterSet,
    pub(crate) asked_slot: u8,
    /// The masters that have not answered yet.
    pub(crate) silent: MasterSet,
}

/// Whether to ask for another slot of the semaphore, and for which one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextSlot {
    /// Ask for this slot.
    Ask(u8),
    /// All slots are held, so there is no slot to ask for.
    AllHeld,
    /// The masters that have not answered yet decide whether a slot is free, so wait for them.
    Undecided,
}

/// Chooses the slot to ask for next. The search begins at `start`.
///
/// - First choice: a slot that each master of a majority reported as free, or has just granted to this client.
/// - Second choice: a slot that each master of a majority reported as free, or may have free. A master that granted a
///   slot does not report its other slots, so each of them may be free there.
pub(crate) fn next_slot(
    quorum: Quorum,
    answers: SlotAnswers<'_>,
    permits: u8,
    start: u8,
) -> NextSlot {
    let masters_with_free = |slot: u8| -> MasterSet {
        let showing = answers
            .free
            .iter()
            .filter(|(_, bits)| bits >> slot & 1 == 1);
        showing.map(|(node, _)| *node).collect()
    };
    let masters_showing = |slot: u8| {
        let granted = if slot == answers.asked_slot {
            answers.granted
        } else {
            MasterSet::default()
        };
        masters_with_free(slot).or(granted)
    };
    let masters_that_may_grant = |slot: u8| masters_with_free(slot).or(answers.granted);
    let mut slots = (0..permits).map(|step| (start % permits + step) % permits);
    if let Some(slot) = slots
        .clone()
        .find(|&slot| quorum.is_met_by(masters_showing(slot)))
    {
        return NextSlot::Ask(slot);
    }
    let may_be_free = |slot| quorum.is_met_by(masters_that_may_grant(slot).or(answers.silent));
    match slots.find(|&slot| may_be_free(slot)) {
        None => NextSlot::AllHeld,
        Some(_) if answers.silent.len() > 0 => NextSlot::Undecided,
        Some(slot) => NextSlot::Ask(slot),
    }
}

/// The slots, as a bit mask, that other processes occupy, for a semaphore with `permits` slots. `free` are the slots that
/// the masters report as free, and `own` are the slots that this process holds or asks for.
pub(crate) fn occupied_slots(permits: u8, free: u64, own: u64) -> u64 {
    let all_slots = u64::MAX >> (64 - permits.clamp(1, 64));
    all_slots & !(free | own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_that_are_neither_free_nor_in_use_by_this_process_are_occupied_by_others() {
        assert_eq!(occupied_slots(5, 0b0_0001, 0b0_0110), 0b1_1000);
        assert_eq!(occupied_slots(5, 0b0_0011, 0b0_0110), 0b1_1000);
        assert_eq!(occupied_slots(1, 0, 0), 1);
        assert_eq!(occupied_slots(1, 0, 1), 0);
        assert_eq!(occupied_slots(64, 1, 0), u64::MAX - 1);
        // Requests with such numbers of permits are refused elsewhere.
        assert_eq!(occupied_slots(0, 0, 0), 1);
        assert_eq!(occupied_slots(65, 1, 0), u64::MAX - 1);
    }

    fn choose_slot(free: &[u64], granted: usize, asked_slot: u8, start: u8) -> Option<u8> {
        let free: Vec<_> = free.iter().copied().enumerate().collect();
        let answers = SlotAnswers {
            free: &free,
            granted: (free.len()..free.len() + granted).collect(),
            asked_slot,
            silent: MasterSet::default(),
        };
        match next_slot(Quorum::new(3), answers, 4, start) {
            NextSlot::Ask(slot) => Some(slot),
            NextSlot::AllHeld => None,
            NextSlot::Undecided => {
                panic!("next_slot() must decide, because all masters have answered")
            }
        }
    }

    #[test]
    fn choice_of_a_slot_waits_only_for_answers_that_can_change_it() {
        let choose_slot = |free: &[u64], silent| {
            let free: Vec<_> = free.iter().copied().enumerate().collect();
            let answers = SlotAnswers {
                free: &free,
                granted: MasterSet::default(),
                asked_slot: 0,
                silent: (free.len()..free.len() + silent).collect(),
            };
            next_slot(Quorum::new(3), answers, 4, 0)
        };
        assert_eq!(choose_slot(&[0b0010, 0b0000], 1), NextSlot::Undecided);
        assert_eq!(choose_slot(&[0b0010, 0b0000], 0), NextSlot::AllHeld);
        assert_eq!(choose_slot(&[0b0000, 0b0000], 1), NextSlot::AllHeld);
        assert_eq!(choose_slot(&[0b0010, 0b0010], 1), NextSlot::Ask(1));
    }

    #[test]
    fn no_slot_is_chosen_unless_a_majority_shows_the_same_free_slot() {
        assert_eq!(choose_slot(&[0b0010, 0b0110], 0, 0, 0), Some(1));
        assert_eq!(
            choose_slot(&[0b0010, 0b0100], 0, 0, 0),
            None,
            "no slot must be chosen if each master shows a different free slot"
        );
        assert_eq!(choose_slot(&[], 0, 0, 0), None);
    }

    #[test]
    fn chosen_slot_is_one_that_a_majority_grants_or_shows_as_free() {
        assert_eq!(choose_slot(&[0b0001], 1, 0, 0), Some(0));
        assert_eq!(choose_slot(&[0b1000, 0b1000], 1, 0, 0), Some(3));
        assert_eq!(
            choose_slot(&[0b0010, 0b0011], 1, 0, 0),
            Some(0),
            "slot 0 must be chosen although two masters report slot 1 as free: the search begins at slot 0"
        );
    }

    #[test]
    fn all_slots_of_a_master_that_granted_one_are_treated_as_free() {
        // There are three masters. In the cases with fewer than three answers, the other masters have failed.
        assert_eq!(choose_slot(&[0b0010], 1, 0, 0), Some(1));
        assert_eq!(
            choose_slot(&[0b1010], 1, 0, 2),
            Some(3),
            "the search must start at the given slot"
        );
        assert_eq!(choose_slot(&[0b0000], 1, 0, 0), None);
        assert_eq!(
            choose_slot(&[0b0010, 0b0001], 1, 0, 0),
            Some(0),
            "slot 0 must be chosen, because one master granted it and another shows it as free"
        );
        assert_eq!(
            choose_slot(&[], 1, 0, 0),
            None,
            "one master must not count as a majority"
        );
    }

    #[test]
    fn search_for_a_slot_starts_at_the_given_slot() {
        let free = [0b1111, 0b1111];
        assert_eq!(choose_slot(&free, 0, 0, 2), Some(2));
        assert_eq!(
            choose_slot(&free, 0, 0, 7),
            Some(3),
            "a start beyond the last slot must wrap around"
        );
        assert_eq!(
            choose_slot(&[0b0011, 0b0011], 0, 0, 2),
            Some(0),
            "the search must wrap around"
        );
    }
}
