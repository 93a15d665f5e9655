//! Once-per-period records.

use crate::clock::MS;
use crate::kind::ValueStep;
use crate::scenario::{Fault, FaultKind, Scenario, Step};

fn force_release(at: u64) -> Fault {
    let kind = FaultKind::ForceRelease {
        resource: Step::RECORD_RESOURCE,
        missed: 0,
    };
    Fault::at_ms(at, kind)
}

/// A partition between one client and some masters (bit n is master n). It lasts from `from` to `to`, in milliseconds
/// since the beginning of the run. Messages that are sent in this time arrive right after its end.
fn partition_of_client(client: u8, masters: u16, from: u64, to: u64) -> Fault {
    let kind = FaultKind::Partition {
        clients: 1 << client,
        masters,
        to: true,
        from: true,
        lasts: (to - from) * MS,
    };
    Fault::at_ms(from, kind)
}

/// A scenario in which client 0 creates a once-per-period record. `think` milliseconds after the start, client 1 takes
/// the lock of the record for `hold` milliseconds, without renewal. Client 1 reads the record, waits for half of
/// `hold`, and writes the record.
fn scenario_with_record(masters: usize, think: u64, hold: u64) -> Scenario {
    let mut scenario = Scenario::quiet(1, masters, 3);
    scenario.settings.node_timeout = 250 * MS;
    scenario.net.again = MS;
    scenario.clients[0].steps = vec![Step::of_record(ValueStep::Create(0))];
    scenario.clients[1].steps = vec![Step {
        think: think * MS,
        hold: hold * MS,
        renew: false,
        ..Step::of_record(ValueStep::SeparateCalls)
    }];
    scenario
}

/// An extension can create the holder's lock key on a master that never granted the lock. It does not raise the fencing
/// counter there. The holder's read must raise it, so that the master rejects late writes of the previous holder.
pub(super) fn late_write_to_an_extended_key(_: u64) -> Scenario {
    let mut scenario = scenario_with_record(3, 100, 200);
    scenario.clients[2].steps = vec![Step {
        think: 310 * MS,
        hold: 100 * MS,
        extend: Some(1_000 * MS),
        ..Step::of_record(ValueStep::SeparateCalls)
    }];
    scenario.faults = vec![
        partition_of_client(1, 0b001, 300, 385),
        partition_of_client(1, 0b100, 300, 900),
        force_release(306),
        Fault::busy(0, 307, 340),
        partition_of_client(2, 0b010, 358, 900),
    ];
    scenario
}

/// A scenario in which clients 1 and 2 have the same `once` job. These events happen in order:
///
/// - The lock is force-released while client 1 still believes that it holds the lock.
/// - Three of five masters grant the lock to client 2, which does the work and records the period as done.
/// - One of these three masters loses its memory.
///
/// Now three of the five masters do not store the record of client 2: this master, and the two that did not grant the
/// lock to client 2. These three are a majority, so they could accept a record of client 1 for the same period.
pub(super) fn one_master_forgets(_: u64) -> Scenario {
    let mut scenario = scenario_with_record(5, 50, 300);
    scenario.clients[2].steps = vec![Step {
        think: 235 * MS,
        ..Step::of_record(ValueStep::AtMostOnce)
    }];
    let (master, down, age) = (4, 5 * MS, MS);
    scenario.faults = vec![
        Fault::busy(0, 228, 260),
        Fault::busy(1, 228, 260),
        force_release(230),
        Fault::at_ms(280, FaultKind::Crash { master, down, age }),
    ];
    scenario
}

/// As [`one_master_forgets`], and client 1 cannot reach two of the masters while it reads the record.
pub(super) fn one_master_forgets_after_a_partition(variant: u64) -> Scenario {
    let mut scenario = one_master_forgets(variant);
    let partition = partition_of_client(1, 0b11000, 195, 340);
    scenario.faults.insert(0, partition);
    scenario
}

/// A client creates a record and removes it again. Then another client has a job that needs the record.
pub(super) fn removed_record(_: u64) -> Scenario {
    let mut scenario = Scenario::quiet(1, 3, 2);
    let step_after = |think, kind| Step {
        think: think * MS,
        ..Step::of_record(kind)
    };
    let remove = ValueStep::Remove { record: true };
    scenario.clients[0].steps = vec![step_after(1, ValueStep::Create(0)), step_after(50, remove)];
    scenario.clients[1].steps = vec![step_after(300, ValueStep::AtLeastOnce)];
    scenario
}
