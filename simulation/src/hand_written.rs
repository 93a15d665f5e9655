//! Scenarios written by hand, for cases that randomly drawn scenarios rarely contain. The tests play them with the
//! library, and `mutants/seeded.toml` names those that must catch a seeded bug.

mod kinds;
mod stores;
mod values;

use crate::scenario::Scenario;

/// A scenario written by hand.
#[derive(Clone, Copy, Debug)]
pub struct HandWritten {
    /// The name of the scenario.
    pub name: &'static str,
    /// The number of variants of the scenario. They differ in the times of some events, or in the random delays.
    pub variants: u64,
    draw: fn(u64) -> Scenario,
}

impl HandWritten {
    /// Returns the variant with this number, from 0. A larger number than there are variants gives a variant again.
    pub fn draw(self, variant: u64) -> Scenario {
        (self.draw)(variant % self.variants)
    }
}

/// All scenarios written by hand.
pub const HAND_WRITTEN: [HandWritten; 11] = [
    HandWritten {
        name: "force-release-during-confirm",
        variants: 400,
        draw: kinds::force_release_during_confirm,
    },
    HandWritten {
        name: "three-clients-two-permits",
        variants: 40,
        draw: kinds::three_clients_two_permits,
    },
    HandWritten {
        name: "slot-on-two-masters",
        variants: 20,
        draw: kinds::slot_on_two_masters,
    },
    HandWritten {
        name: "one-resource-or-both",
        variants: 40,
        draw: kinds::one_resource_or_both,
    },
    HandWritten {
        name: "value-of-another-program",
        variants: 1,
        draw: kinds::value_of_another_program,
    },
    HandWritten {
        name: "late-write-to-an-extended-key",
        variants: 1,
        draw: values::late_write_to_an_extended_key,
    },
    HandWritten {
        name: "one-master-forgets",
        variants: 1,
        draw: values::one_master_forgets,
    },
    HandWritten {
        name: "one-master-forgets-after-a-partition",
        variants: 1,
        draw: values::one_master_forgets_after_a_partition,
    },
    HandWritten {
        name: "removed-record",
        variants: 1,
        draw: values::removed_record,
    },
    HandWritten {
        name: "version-repeats-after-a-restore",
        variants: 36,
        draw: stores::version_repeats_after_a_restore,
    },
    HandWritten {
        name: "quota-of-a-restored-store",
        variants: 1,
        draw: stores::quota_of_a_restored_store,
    },
];

/// Returns the index of the scenario with this name in [`HAND_WRITTEN`]; `None` if there is none.
pub fn hand_written(name: &str) -> Option<usize> {
    HAND_WRITTEN
        .iter()
        .position(|scenario| scenario.name == name)
}
