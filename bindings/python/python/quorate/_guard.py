"""Held locks."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Any

from . import _event_loop, _quorate
from ._arguments import Time, optional_seconds, seconds
from ._data import MasterReport, Risk, report, risk
from ._errors import lock_lost


class BaseGuard:
    """The part of a held lock that does not wait."""

    __slots__ = ("__weakref__", "_guard")
    _guard: _quorate.Guard

    def __init__(self, guard: _quorate.Guard) -> None:
        self._guard = guard

    @property
    def fencing_token(self) -> int | None:
        """A number that is larger than the token of every earlier holder. Pass it to every system to which you write,
        and let that system refuse smaller tokens. `None` with `fencing=False`."""
        return self._guard.fencing_token

    @property
    def term(self) -> int:
        """The term of a leader: its fencing token."""
        token = self._guard.fencing_token
        assert token is not None, "an election needs fencing tokens"
        return token

    @property
    def resources(self) -> list[str]:
        """The names of the locked resources. Bytes that are not UTF-8 are replaced."""
        return [name.decode(errors="replace") for name in self._guard.resources]

    @property
    def slot(self) -> int | None:
        """The number of the permit, from 0, if this is one of a semaphore."""
        return self._guard.slot

    @property
    def token(self) -> str:
        """The random value of this lock on the masters, as `quorate status` shows it. It is not the fencing token."""
        return self._guard.token

    @property
    def remaining(self) -> float:
        """Seconds for which the lock stays valid without a further renewal; 0.0 once it has ended."""
        return self._guard.remaining

    @property
    def lost(self) -> str | None:
        """Why the lock ended: `expired`, `taken_away`, `max_hold`, `released`, or `forked` in a forked process. `None`
        while it is held."""
        return self._guard.lost

    @property
    def reports(self) -> list[MasterReport]:
        """The reply of each master to the acquire, or to the last renewal if it failed."""
        return [report(raw) for raw in self._guard.reports()]

    def is_valid(self) -> bool:
        """Whether the lock is held now. Ask right before each step that needs the lock."""
        return self._guard.is_valid()

    def check(self) -> None:
        """Raises `LockLost` if the lock is not held any more."""
        if not self._guard.is_valid():
            raise lock_lost(self._guard.lost or "expired", "the lock is lost")

    def __repr__(self) -> str:
        state = "held" if self.is_valid() else self.lost
        names = ", ".join(self.resources)
        return f"<{type(self).__name__} of {names}: {state}, fencing token {self.fencing_token}>"

    def __del__(self) -> None:
        guard = getattr(self, "_guard", None)
        if guard is not None and not guard.is_released():
            text = f"{self!r} was never released; it is released now"
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)


class Guard(BaseGuard):
    """A held lock. It is renewed in the background until it is released, lost, or held for `max_hold`.

    A guard may be used by several threads. At the end of a `with` block, it is released; if the lock was lost before,
    the block ends with `LockLost`.
    """

    __slots__ = ()

    def release(self) -> bool:
        """Releases the lock, and waits until a majority of the masters has released it, so that the next client can
        have it. Returns whether the lock was still valid. Another release returns False."""
        return bool(self._guard.release().wait())

    def extend(self, ttl: Time) -> None:
        """Extends the lock once, to `ttl` seconds from now. Never shortens it.

        Raises `LockLost`, `ExtendError` (still held until `remaining` ends), or `InvalidSettings` if `ttl` is above
        `max_ttl`.
        """
        self._guard.extend(seconds(ttl, "ttl")).wait()

    def wait_lost(self, timeout: Time | None = None) -> str | None:
        """Waits until the lock has ended, and returns why; see `lost`. Returns `None` after `timeout` seconds."""
        cause: str | None = self._guard.wait_lost(optional_seconds(timeout, "timeout")).wait()
        return cause

    def at_risk(self, margin: Time) -> Iterator[Risk]:
        """Yields a `Risk` each time no more than `margin` seconds of the validity are left, because the lock was not
        renewed in time. Ends when the lock has ended. Use it to save work before a loss; `lost` says whether one
        came."""
        watcher = self._guard.at_risk(seconds(margin, "margin"))
        while (notice := risk(watcher.next().wait())) is not None:
            yield notice

    def __enter__(self) -> Guard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave(self, error)


def leave(guard: Guard, error: BaseException | None) -> None:
    """Ends the block of a guard: releases it, and raises `LockLost` if it was lost and the block raised nothing."""
    cause = guard.lost
    if cause == "forked":
        # The lock is the parent's.
        return
    guard.release()
    if error is None and cause is not None and cause != "released":
        raise lock_lost(cause, "the lock was lost while the block ran")


class AsyncGuard(BaseGuard):
    """A held lock. It is renewed in the background until it is released, lost, or held for `max_hold`."""

    __slots__ = ()

    def release(self) -> asyncio.Future[bool]:
        """Releases the lock. The releases are sent at once, also if nobody awaits the result. Await it to wait until a
        majority of the masters has released it; the result says whether the lock was still valid."""
        # Not a coroutine: one that is cancelled before its first step would release nothing.
        return _event_loop.start(self._guard.release())

    async def extend(self, ttl: Time) -> None:
        """Extends the lock once, to `ttl` seconds from now. Never shortens it.

        Raises `LockLost`, `ExtendError` (still held until `remaining` ends), or `InvalidSettings` if `ttl` is above
        `max_ttl`.
        """
        await _event_loop.run(self._guard.extend(seconds(ttl, "ttl")))

    async def wait_lost(self, timeout: Time | None = None) -> str | None:
        """Waits until the lock has ended, and returns why; see `lost`. Returns `None` after `timeout` seconds."""
        call = self._guard.wait_lost(optional_seconds(timeout, "timeout"))
        cause: str | None = await _event_loop.run(call)
        return cause

    async def at_risk(self, margin: Time) -> AsyncIterator[Risk]:
        """Yields a `Risk` each time no more than `margin` seconds of the validity are left, because the lock was not
        renewed in time. Ends when the lock has ended. Use it to save work before a loss; `lost` says whether one
        came."""
        watcher = self._guard.at_risk(seconds(margin, "margin"))
        while (notice := risk(await _event_loop.run(watcher.next()))) is not None:
            yield notice

    async def __aenter__(self) -> AsyncGuard:
        return self

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        cause = self.lost
        if cause == "forked":
            return
        await self.release()
        if error is None and cause is not None and cause != "released":
            raise lock_lost(cause, "the lock was lost while the block ran")
