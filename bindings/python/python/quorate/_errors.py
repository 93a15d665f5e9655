"""The exceptions of this package."""

from __future__ import annotations

from typing import Any

from ._data import MasterReport, Note, note, report


class QuorateError(Exception):
    """The base class of all exceptions of this package. `str()` of one names no master and no holder, so it may be
    shown to users. `details` is the text for a log: also the holder, and the reply of each master."""

    details: str = ""
    reports: tuple[MasterReport, ...] = ()
    """The reply of each master; empty if nothing was sent."""


class InvalidSettings(QuorateError, ValueError):
    """A setting, a name or a number is invalid. Nothing was sent."""


class AcquireError(QuorateError):
    """The lock was not acquired, and nothing is held."""

    resource: str = ""
    """The name of the lock."""
    waited: float = 0.0
    """Seconds that the call took."""
    attempts: int = 0
    """How often the masters were asked."""
    held_here: bool = False
    """Whether the same `Redlock` object holds the lock. Locks are not re-entrant."""
    foreign: bool = False
    """Whether another program holds the lock, for example another Redlock library."""
    holder: Note | None = None
    """The note of the holder, if it has written one."""


class LockHeld(AcquireError):
    """Another client held the lock until the end of the wait."""


class NotJoinable(LockHeld):
    """The owner that asks holds the lock already, and cannot get another hold now. A later call can succeed."""


class NoQuorum(AcquireError):
    """Less than a majority of the masters could vote until the end of the wait."""


class OtherMasters(NoQuorum):
    """Too many masters refuse the list of masters of this client. Correct the settings: waiting does not help."""


class TooLate(NoQuorum):
    """A majority granted the lock so slowly that no validity was left."""


class LockLost(QuorateError):
    """The lock ended before the work did. Another client may have held it since."""

    cause: str = ""
    """`expired` (no majority renewed it in time), `taken_away`, `max_hold`, `released` or `forked`."""


class ExtendError(QuorateError):
    """Too few masters answered to extend the lock. It stays held until its current validity ends."""


class ValueFailed(QuorateError):
    """A quota or a once-per-period record was not read or written. Nothing was taken or recorded."""

    reason: str = ""
    """`missing` (create it first), `exists`, `lost` (an operator must drop and create it), `no_quorum`, `incomplete`
    (creating and dropping need every master), `lock_lost`, `other_kind`, `ahead` or `clocks_disagree`."""


class ValueUnknown(ValueFailed):
    """The value may or may not have been written. Treat the call as failed: do not use the units, do not start the
    work."""


class ForkedError(QuorateError, RuntimeError):
    """The object belongs to the process from which this process was forked."""


class ClientClosed(QuorateError, RuntimeError):
    """The `Redlock` object was closed while the call was under way, or its thread could not be started."""


_CLASSES: dict[str, type[QuorateError]] = {
    "held": LockHeld,
    "not_joinable": NotJoinable,
    "no_quorum": NoQuorum,
    "other_masters": OtherMasters,
    "too_late": TooLate,
    "lost": LockLost,
    "not_extended": ExtendError,
    "invalid": InvalidSettings,
    "forked": ForkedError,
    "closed": ClientClosed,
    "value": ValueFailed,
}

_ACQUIRE_ATTRIBUTES = ("resource", "waited", "attempts", "held_here", "foreign")


def make(kind: str, text: str, attributes: dict[str, Any]) -> QuorateError:
    """Called by the native half: the exception for an error of this kind."""
    error_class = _CLASSES.get(kind, QuorateError)
    if attributes.get("reason") == "unknown":
        error_class = ValueUnknown
    error = error_class(text)
    error.details = attributes["details"]
    error.reports = tuple(report(each) for each in attributes["reports"])
    if isinstance(error, AcquireError):
        for name in _ACQUIRE_ATTRIBUTES:
            setattr(error, name, attributes[name])
        error.holder = note(attributes["holder"])
    elif isinstance(error, LockLost):
        error.cause = attributes["cause"]
    elif isinstance(error, ValueFailed):
        error.reason = attributes["reason"]
    return error


def lock_lost(cause: str, text: str) -> LockLost:
    """A `LockLost` with its cause."""
    error = LockLost(f"{text}: {cause}")
    error.details = str(error)
    error.cause = cause
    return error
