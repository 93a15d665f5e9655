"""Locks for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING

from . import _data, _event_loop, _quorate
from ._arguments import DEFAULT, Name, Settings, Time, Wait, encoded, encoded_all, native_settings
from ._async_scope import AsyncScope
from ._data import Inspection, Listing, Status
from ._election import AsyncElection
from ._guard import AsyncGuard
from ._lock_options import lock_options
from ._once import AsyncOnce, Period
from ._quota import AsyncQuota
from ._redlock import BaseRedlock, warn_about_held

if TYPE_CHECKING:
    from typing_extensions import Unpack


class AsyncRedlock(BaseRedlock):
    """Locks over one set of masters, for asyncio. The settings are those of `Redlock`.

    Create one object per process and share it, also between event loops. Locks are renewed by a thread of their own, so
    an event loop that is blocked loses no lock. A call that is cancelled leaves nothing on the masters.
    """

    @classmethod
    def from_env(cls, **settings: Unpack[Settings]) -> AsyncRedlock:
        """Reads the settings from the environment: `QUORATE_MASTERS` (URLs, separated by commas), `QUORATE_TTL` (with a
        unit: `500ms`, `10s`), and so on. Arguments go before the environment."""
        redlock = cls.__new__(cls)
        redlock._core = _quorate.Core(native_settings(None, settings), True)
        return redlock

    @classmethod
    def in_memory(cls, masters: int = 3, **settings: Unpack[Settings]) -> AsyncRedlock:
        """Locks over masters in memory, for tests without servers. Several objects can share one `Memory`."""
        return cls(_quorate.Memory(masters), **settings)

    def lock(
        self,
        name: Name,
        *,
        ttl: Time | None = None,
        wait: Wait = DEFAULT,
        max_hold: Time | None = None,
        renewal: bool = True,
        shared: bool = False,
        note: str | None = None,
    ) -> AsyncScope:
        """A lock with its options, for `async with` or as a decorator. Nothing is sent before it is entered or
        acquired.

        - `ttl`, `wait`, `max_hold`, `note`: for this lock, instead of those of the `Redlock`.
        - `renewal`: whether the lock is renewed. Without, it ends after one `ttl`, unless `extend()` is called.
        - `shared`: whether other readers may hold the lock at the same time.

        The block raises `LockHeld` or `NoQuorum` if the lock was not acquired. If the lock is lost, the body is
        cancelled, and the block ends with `LockLost`. Locks are not re-entrant.
        """
        kind = "shared" if shared else "exclusive"
        return self._scope(lock_options([encoded(name)], kind, ttl, wait, max_hold, renewal, note))

    def lock_all(
        self,
        names: Iterable[Name],
        *,
        ttl: Time | None = None,
        wait: Wait = DEFAULT,
        max_hold: Time | None = None,
        renewal: bool = True,
        note: str | None = None,
    ) -> AsyncScope:
        """Up to 16 names in one lock, all or none, with one fencing token. Other orders of names cannot deadlock."""
        return self._scope(lock_options(encoded_all(names), "all", ttl, wait, max_hold, renewal, note))

    def semaphore(
        self,
        name: Name,
        permits: int,
        *,
        ttl: Time | None = None,
        wait: Wait = DEFAULT,
        max_hold: Time | None = None,
        renewal: bool = True,
        note: str | None = None,
    ) -> AsyncScope:
        """One of `permits` permits (1 to 64). The guard's `slot` is the number of the permit."""
        options = lock_options([encoded(name)], "permit", ttl, wait, max_hold, renewal, note, permits=permits)
        return self._scope(options)

    def _scope(self, options: _quorate.LockOptions) -> AsyncScope:
        core = self._core
        return AsyncScope(lambda: core.acquire(options), lambda: core.try_acquire(options))

    async def acquire(
        self,
        name: Name,
        *,
        ttl: Time | None = None,
        wait: Wait = DEFAULT,
        max_hold: Time | None = None,
        renewal: bool = True,
        shared: bool = False,
        note: str | None = None,
    ) -> AsyncGuard:
        """Waits for the lock and returns its guard; options as for `lock`. Cancelling it leaves nothing on the masters.

        Raises `LockHeld` if another client held the lock until the end of the wait, `NoQuorum` if less than a majority
        of the masters could vote, and `InvalidSettings` if the name or an option is invalid.
        """
        kind = "shared" if shared else "exclusive"
        options = lock_options([encoded(name)], kind, ttl, wait, max_hold, renewal, note)
        return AsyncGuard(await _event_loop.run(self._core.acquire(options)))

    async def try_acquire(
        self,
        name: Name,
        *,
        ttl: Time | None = None,
        max_hold: Time | None = None,
        renewal: bool = True,
        shared: bool = False,
        note: str | None = None,
    ) -> AsyncGuard | None:
        """Makes one attempt. Returns `None` if another client holds the lock. Raises `NoQuorum` if too few masters
        answered to know."""
        kind = "shared" if shared else "exclusive"
        options = lock_options([encoded(name)], kind, ttl, DEFAULT, max_hold, renewal, note)
        native = await _event_loop.run(self._core.try_acquire(options))
        return None if native is None else AsyncGuard(native)

    def owner(self, id: str) -> AsyncOwner:
        """The owner with this id (1 to 64 bytes), which several processes may use. Its holds share a lock."""
        return AsyncOwner(self._core, id)

    def quota(self, name: Name, *, wait: Wait = DEFAULT) -> AsyncQuota:
        """The quota with this name. `wait`: how long each call waits for the lock with the same name."""
        return AsyncQuota(self._core, name, wait)

    def once(self, name: Name, period: Period, *, wait: Wait = DEFAULT, note: str = "") -> AsyncOnce:
        """Work that runs once per period. `period` is a length (a day begins at midnight UTC), or the start and the end
        of one period as `datetime` objects with time zones. `note` is stored with the record."""
        return AsyncOnce(self._core, name, period, wait, note)

    def election(self, name: Name, *, ttl: Time | None = None, wait: Wait = None) -> AsyncElection:
        """The election with this name. `wait`: how long a candidate waits; for ever by default."""
        return AsyncElection(self._core, name, ttl, wait)

    async def status(self, name: Name) -> Status:
        """The state of a lock on every master. A fault of a master is a part of the result."""
        return _data.status(await _event_loop.run(self._core.status(encoded(name))))

    async def list(self, prefix: Name = "") -> Listing:
        """The locks that are held and whose names begin with `prefix`: at most 1000. Each master scans all its keys, so
        do not call it often."""
        return _data.listing(await _event_loop.run(self._core.list(encoded(prefix))))

    async def inspect(self) -> tuple[Inspection, ...]:
        """Examines every master: whether it can be used, its version, missing rights, the difference of its clock."""
        return _data.inspections(await _event_loop.run(self._core.inspect()))

    async def break_lock(self, name: Name) -> Status:
        """Deletes a lock, no matter which client holds it. An operator's last resort: the holder notices it only at its
        next renewal. Returns the state before; the verdict `unknown` means that nothing was deleted, or not everywhere:
        call it again."""
        return _data.status(await _event_loop.run(self._core.break_lock(encoded(name))))

    async def flush(self) -> None:
        """Waits until all requests were answered, for example releases of collected guards."""
        await _event_loop.run(self._core.flush())

    async def close(self) -> None:
        """Releases what is still held, with a `ResourceWarning`, sends all releases and ends the thread, within about
        400 ms. The next use starts another thread."""
        loop = asyncio.get_running_loop()
        warn_about_held(await loop.run_in_executor(None, self._core.close))

    async def __aenter__(self) -> AsyncRedlock:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncOwner:
    """An owner whose holds share a lock, in one process or in several. All holds have the same fencing token."""

    __slots__ = ("_core", "id")

    def __init__(self, core: _quorate.Core, id: str) -> None:
        self._core, self.id = core, id

    def lock(
        self,
        name: Name,
        *,
        ttl: Time | None = None,
        wait: Wait = DEFAULT,
        max_hold: Time | None = None,
        renewal: bool = True,
        note: str | None = None,
    ) -> AsyncScope:
        """A hold of this owner, for `async with`; options as for `AsyncRedlock.lock`."""
        options = lock_options([encoded(name)], "owner", ttl, wait, max_hold, renewal, note, owner=self.id)
        core = self._core
        return AsyncScope(lambda: core.acquire(options), lambda: core.try_acquire(options))

    async def acquire(self, name: Name, *, ttl: Time | None = None, wait: Wait = DEFAULT) -> AsyncGuard:
        """Waits for a hold of this owner. Its other holds do not block it."""
        return await self.lock(name, ttl=ttl, wait=wait).acquire()

    async def try_acquire(self, name: Name, *, ttl: Time | None = None) -> AsyncGuard | None:
        """Makes one attempt. Returns `None` if another owner or client holds the lock."""
        return await self.lock(name, ttl=ttl).try_acquire()
