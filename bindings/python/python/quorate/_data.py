"""Results as named tuples. The native half returns plain tuples."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any, NamedTuple


class Note(NamedTuple):
    """Describes the holder of a lock. For information only: no decision depends on it."""

    host: str
    pid: int
    process: str
    since: datetime
    """When the hold began, by the holder's clock."""
    text: str | None
    """The text of `note=`."""


class MasterReport(NamedTuple):
    """The reply of one master to one request."""

    master: str
    """Its address, without credentials."""
    outcome: str
    """One word, for example `yes`, `no`, `silent`, or the kind of a fault."""
    text: str
    latency: float | None
    """Seconds until the reply; `None` without a reply."""


class MasterStatus(NamedTuple):
    """The state of a lock on one master."""

    master: str
    fault: str | None
    """Why the master gave no answer."""
    held: bool
    expires_in: float | None
    """Seconds until the lock key expires on this master."""
    waiters: int


class Status(NamedTuple):
    """The state of a lock on all masters."""

    verdict: str
    """`held`, `free`, `split` (no majority for one holder) or `unknown` (no majority answered)."""
    holder: Note | None
    fencing_counter: int | None
    """The largest fencing token that any master has given out for this lock."""
    masters: tuple[MasterStatus, ...]


class Listed(NamedTuple):
    """One lock of a listing."""

    name: str
    slot: int | None
    """The number of the permit, if it is one of a semaphore."""
    status: Status


class Listing(NamedTuple):
    """The locks that are held, by name."""

    locks: tuple[Listed, ...]
    complete: bool
    """False if there are more than 1000 locks, or if the masters could not be asked for all names."""
    faults: tuple[tuple[str, str], ...]
    """The masters that could not be asked, and why."""
    majority_answered: bool


class Inspection(NamedTuple):
    """The state of one master. A field is `None` if the server does not report it."""

    master: str
    fault: str | None
    server: str | None
    version: str | None
    role: str | None
    round_trip: float | None
    uptime: float | None
    clock_offset: float | None
    """Seconds by which the server's clock is ahead of this machine's clock."""
    quarantined: float | None
    """Seconds for which the votes of a restarted master do not count yet."""
    missing_rights: tuple[str, ...]
    wakes_waiters: bool


class Take(NamedTuple):
    """The result of taking units from a quota."""

    taken: bool
    left: int


class Risk(NamedTuple):
    """A notice that a held lock may be lost soon."""

    reason: str
    """`renewal_failed` (no majority; it is repeated), `renewal_late`, `not_renewed` or `max_hold`."""
    remaining: float
    """Seconds until the lock is lost, if nothing extends it before."""
    text: str
    """For a log: the reason, and the reply of each master."""
    reports: tuple[MasterReport, ...]


class Leader(NamedTuple):
    """The leader of an election."""

    term: int
    """Larger than the term of every earlier leader."""
    note: Note | None


class Record(NamedTuple):
    """A once-per-period record."""

    last: datetime | None
    """The start of the last period that is recorded as done."""
    note: str


def moment(timestamp: float) -> datetime:
    """The time at this number of seconds since 1970, in UTC."""
    return datetime.fromtimestamp(timestamp, timezone.utc)


def note(raw: Any) -> Note | None:
    if raw is None:
        return None
    host, pid, process, since, text = raw
    return Note(host, pid, process, moment(since), text)


def report(raw: Any) -> MasterReport:
    return MasterReport(*raw)


def status(raw: Any) -> Status:
    verdict, holder, counter, masters = raw
    return Status(verdict, note(holder), counter, tuple(MasterStatus(*master) for master in masters))


def listing(raw: Any) -> Listing:
    locks, complete, faults, majority_answered = raw
    listed = tuple(Listed(name.decode(errors="replace"), slot, status(state)) for name, slot, state in locks)
    return Listing(listed, complete, tuple(faults), majority_answered)


def inspections(raw: Any) -> tuple[Inspection, ...]:
    return tuple(Inspection._make((*facts, tuple(rights), wakes)) for *facts, rights, wakes in raw)


def risk(raw: Any) -> Risk | None:
    """The notice; `None` if the lock has ended."""
    if not isinstance(raw, tuple):
        return None
    reason, remaining, text, reports = raw
    return Risk(reason, remaining, text, tuple(report(one) for one in reports))


def leader(raw: Any) -> Leader | None:
    return None if raw is None else Leader(raw[0], note(raw[1]))


def record(raw: Any) -> Record:
    last, text = raw
    return Record(None if last is None else moment(last), text)
