"""A limited number of units that are handed out across all machines."""

from __future__ import annotations

from . import _event_loop, _quorate
from ._arguments import DEFAULT, Name, Wait, encoded, wait_seconds
from ._data import Take


class BaseQuota:
    __slots__ = ("_core", "_options")

    def __init__(self, core: _quorate.Core, name: Name, wait: Wait = DEFAULT) -> None:
        self._core = core
        self._options = _quorate.QuotaOptions(encoded(name), wait_seconds(wait))


class Quota(BaseQuota):
    """A limited number of units: prizes, seats, licences. No unit is handed out twice.

    All methods raise `AcquireError` if the lock with the same name was not acquired, and `ValueFailed` if the quota was
    not read or written.
    """

    __slots__ = ()

    def create(self, units: int) -> None:
        """Creates the quota. An operator calls this once, not each start of a program. Every master must answer, and
        none may have the quota."""
        self._options.create(self._core, units).wait()

    def take(self, units: int = 1) -> Take:
        """Takes this number of units, all or none: `(taken, left)`. After `ValueUnknown`, treat the units as wasted."""
        return Take(*self._options.take(self._core, units).wait())

    def left(self) -> int:
        """How many units are left."""
        return int(self._options.left(self._core).wait())

    def drop(self) -> bool:
        """Removes the quota from every master. Returns whether there was one."""
        return bool(self._options.remove(self._core).wait())


class AsyncQuota(BaseQuota):
    """A limited number of units: prizes, seats, licences. No unit is handed out twice.

    All methods raise `AcquireError` if the lock with the same name was not acquired, and `ValueFailed` if the quota was
    not read or written.
    """

    __slots__ = ()

    async def create(self, units: int) -> None:
        """Creates the quota. An operator calls this once, not each start of a program. Every master must answer, and
        none may have the quota."""
        await _event_loop.run(self._options.create(self._core, units))

    async def take(self, units: int = 1) -> Take:
        """Takes this number of units, all or none: `(taken, left)`. After `ValueUnknown`, treat the units as wasted."""
        return Take(*await _event_loop.run(self._options.take(self._core, units)))

    async def left(self) -> int:
        """How many units are left."""
        return int(await _event_loop.run(self._options.left(self._core)))

    async def drop(self) -> bool:
        """Removes the quota from every master. Returns whether there was one."""
        return bool(await _event_loop.run(self._options.remove(self._core)))
