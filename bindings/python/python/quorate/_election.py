"""Leader election."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Callable

from . import _event_loop, _quorate
from ._arguments import Name, Time, Wait, encoded, optional_seconds, wait_seconds
from ._async_scope import AsyncScope
from ._data import Leader, leader
from ._scope import Scope


class BaseElection:
    __slots__ = ("_core", "_name", "_ttl", "_wait")

    def __init__(self, core: _quorate.Core, name: Name, ttl: Time | None = None, wait: Wait = None) -> None:
        self._core, self._name = core, encoded(name)
        self._ttl = optional_seconds(ttl, "ttl")
        self._wait = wait_seconds(wait)

    def _campaign(self, note: str | None) -> Callable[[], _quorate.Call]:
        return lambda: self._core.campaign(self._name, self._ttl, self._wait, note)

    def _attempt(self, note: str | None) -> Callable[[], _quorate.Call]:
        return lambda: self._core.try_campaign(self._name, self._ttl, note)

    def _observer(self) -> _quorate.Observer:
        return self._core.observe(self._name, self._ttl)


class Election(BaseElection):
    """An election: at most one candidate leads, and observers see which."""

    __slots__ = ()

    def campaign(self, note: str | None = None) -> Scope:
        """A candidacy, for `with` or `acquire()`: waits until this client leads. Observers see `note`, for example an
        address. The guard's `term` is larger than that of every earlier leader; its release resigns."""
        return Scope(self._campaign(note), self._attempt(note))

    def observe(self) -> Iterator[Leader | None]:
        """Yields the leader of now, and then each new leader; `None` if there is none. Never ends: use `break`."""
        observer = self._observer()
        while True:
            yield leader(observer.next().wait())


class AsyncElection(BaseElection):
    """An election: at most one candidate leads, and observers see which."""

    __slots__ = ()

    def campaign(self, note: str | None = None) -> AsyncScope:
        """A candidacy, for `async with` or `acquire()`: waits until this client leads. Observers see `note`, for
        example an address. The guard's `term` is larger than that of every earlier leader; its release resigns."""
        return AsyncScope(self._campaign(note), self._attempt(note))

    async def observe(self) -> AsyncIterator[Leader | None]:
        """Yields the leader of now, and then each new leader; `None` if there is none. Never ends: use `break`."""
        observer = self._observer()
        while True:
            yield leader(await _event_loop.run(observer.next()))
