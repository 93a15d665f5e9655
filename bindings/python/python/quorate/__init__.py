"""Locks over independent Redis or Valkey masters, with renewal and fencing tokens.

`Redlock` is for threads, `AsyncRedlock` for asyncio. Both have the same methods:

    redlock = quorate.Redlock(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])
    with redlock.lock("month-end") as guard:
        close_books(fence=guard.fencing_token)

All times are in seconds (`float` or `int`), or `timedelta` objects.
"""

from ._async_redlock import AsyncOwner, AsyncRedlock
from ._async_scope import AsyncScope
from ._data import Inspection, Leader, Listed, Listing, MasterReport, MasterStatus, Note, Record, Risk, Status, Take
from ._election import AsyncElection, Election
from ._errors import (
    AcquireError,
    ClientClosed,
    ExtendError,
    ForkedError,
    InvalidSettings,
    LockHeld,
    LockLost,
    NoQuorum,
    NotJoinable,
    OtherMasters,
    QuorateError,
    TooLate,
    ValueFailed,
    ValueUnknown,
)
from ._exit import register as _register_exit
from ._guard import AsyncGuard, Guard
from ._logging import log_to_python
from ._once import AsyncOnce, Once
from ._quorate import Memory, __version__
from ._quota import AsyncQuota, Quota
from ._redlock import Owner, Redlock
from ._scope import Scope

_register_exit()

__all__ = [
    "AcquireError",
    "AsyncElection",
    "AsyncGuard",
    "AsyncOnce",
    "AsyncOwner",
    "AsyncQuota",
    "AsyncRedlock",
    "AsyncScope",
    "ClientClosed",
    "Election",
    "ExtendError",
    "ForkedError",
    "Guard",
    "Inspection",
    "InvalidSettings",
    "Leader",
    "Listed",
    "Listing",
    "LockHeld",
    "LockLost",
    "MasterReport",
    "MasterStatus",
    "Memory",
    "NoQuorum",
    "NotJoinable",
    "Note",
    "Once",
    "OtherMasters",
    "Owner",
    "QuorateError",
    "Quota",
    "Record",
    "Redlock",
    "Risk",
    "Scope",
    "Status",
    "Take",
    "TooLate",
    "ValueFailed",
    "ValueUnknown",
    "__version__",
    "log_to_python",
]
