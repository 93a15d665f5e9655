"""Work that runs once per period across all machines."""

from __future__ import annotations

import functools
from collections.abc import Awaitable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Callable, TypeVar, Union

from . import _event_loop, _quorate
from ._arguments import DEFAULT, Name, Time, Wait, encoded, seconds, wait_seconds
from ._async_scope import BaseAsyncScope, check_is_async
from ._data import Record, record
from ._errors import InvalidSettings
from ._guard import AsyncGuard, Guard
from ._scope import BaseScope, check_is_sync

if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    P = ParamSpec("P")

R = TypeVar("R")

Period = Union[Time, "tuple[datetime, datetime]"]
"""The length of a period (counted from 1970, UTC), or the start and the end of one period, with time zones."""


def _native_period(period: Period) -> float | tuple[float, float]:
    if not isinstance(period, tuple):
        return seconds(period, "period")
    start, end = period
    if start.tzinfo is None or end.tzinfo is None:
        raise InvalidSettings("a period needs datetime objects with a time zone, so that all machines agree")
    return start.timestamp(), end.timestamp()


class Turn(BaseScope["Guard | None"]):
    """The work of one period, for `with` or as a decorator.

    `with` gives a guard if the work must be done now, and `None` if it is done already; `next` then is the number of
    seconds until the next period. A decorated function is not called if the work is done already: the call returns
    `None`.
    """

    __slots__ = ("_records_at_end", "next")

    def __init__(self, start: Callable[[], _quorate.Call], records_at_end: bool) -> None:
        super().__init__(start)
        self._records_at_end = records_at_end
        self.next: float | None = None

    def _acquire(self) -> Guard | None:
        native = self._start().wait()
        if isinstance(native, _quorate.Guard):
            return Guard(native)
        self.next = native
        return None

    def _leave(self, guard: Guard, error: BaseException | None) -> None:
        try:
            if self._records_at_end and error is None and guard.lost != "forked":
                guard.check()
                guard._guard.record().wait()
        finally:
            super()._leave(guard, error)

    def __enter__(self) -> Guard | None:
        return self._enter()

    def __call__(self, function: Callable[P, R]) -> Callable[P, R | None]:
        check_is_sync(function)

        @functools.wraps(function)
        def once(*args: P.args, **kwargs: P.kwargs) -> R | None:
            with self as turn:
                return None if turn is None else function(*args, **kwargs)

        return once


class AsyncTurn(BaseAsyncScope):
    """The work of one period, for `async with` or as a decorator of a coroutine function.

    `async with` gives a guard if the work must be done now, and `None` if it is done already; `next` then is the number
    of seconds until the next period. A decorated function is not called if the work is done already: the call returns
    `None`. If the lock is lost, the body is cancelled.
    """

    __slots__ = ("_records_at_end", "next")

    def __init__(self, start: Callable[[], _quorate.Call], records_at_end: bool) -> None:
        super().__init__(start)
        self._records_at_end = records_at_end
        self.next: float | None = None

    def _not_entered(self, reply: Any) -> None:
        self.next = reply

    async def _before_release(self, guard: AsyncGuard, error: BaseException | None) -> None:
        if self._records_at_end and error is None and guard.lost is None:
            await _event_loop.run(guard._guard.record())

    async def __aenter__(self) -> AsyncGuard | None:
        return await self._enter()

    def __call__(self, function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R | None]]:
        check_is_async(function)

        @functools.wraps(function)
        async def once(*args: P.args, **kwargs: P.kwargs) -> R | None:
            async with self as turn:
                return None if turn is None else await function(*args, **kwargs)

        return once


class BaseOnce:
    __slots__ = ("_core", "_options")

    def __init__(self, core: _quorate.Core, name: Name, period: Period, wait: Wait = DEFAULT, note: str = "") -> None:
        self._core = core
        native = _native_period(period)
        self._options = _quorate.OnceOptions(encoded(name), native, wait_seconds(wait), note)

    def _at_most_once(self) -> _quorate.Call:
        return self._options.at_most_once(self._core)

    def _at_least_once(self) -> _quorate.Call:
        return self._options.at_least_once(self._core)


class Once(BaseOnce):
    """Work that runs once per period across all machines, for example a nightly report.

    The masters store a record of the last period that is done. All methods raise `AcquireError` if the lock with the
    same name was not acquired, and `ValueFailed` if the record was not read or written.
    """

    __slots__ = ()

    def create(self) -> None:
        """Creates an empty record. An operator calls this once, not each start of a program. Every master must answer,
        and none may have the record."""
        self._options.create(self._core).wait()

    def drop(self) -> bool:
        """Removes the record from every master. Returns whether there was one."""
        return bool(self._options.remove(self._core).wait())

    def record(self) -> Record:
        """Reads the record. Waits for the lock."""
        return record(self._options.read(self._core).wait())

    def at_most_once(self) -> Turn:
        """The work of this period, which is recorded as done before the body runs. A crash skips the period."""
        return Turn(self._at_most_once, False)

    def at_least_once(self) -> Turn:
        """The work of this period, which is recorded as done after the body has ended without an exception. After a
        crash or an exception, the work runs again, so it must be idempotent."""
        return Turn(self._at_least_once, True)


class AsyncOnce(BaseOnce):
    """Work that runs once per period across all machines, for example a nightly report.

    The masters store a record of the last period that is done. All methods raise `AcquireError` if the lock with the
    same name was not acquired, and `ValueFailed` if the record was not read or written.
    """

    __slots__ = ()

    async def create(self) -> None:
        """Creates an empty record. An operator calls this once, not each start of a program. Every master must answer,
        and none may have the record."""
        await _event_loop.run(self._options.create(self._core))

    async def drop(self) -> bool:
        """Removes the record from every master. Returns whether there was one."""
        return bool(await _event_loop.run(self._options.remove(self._core)))

    async def record(self) -> Record:
        """Reads the record. Waits for the lock."""
        return record(await _event_loop.run(self._options.read(self._core)))

    def at_most_once(self) -> AsyncTurn:
        """The work of this period, which is recorded as done before the body runs. A crash skips the period."""
        return AsyncTurn(self._at_most_once, False)

    def at_least_once(self) -> AsyncTurn:
        """The work of this period, which is recorded as done after the body has ended without an exception. After a
        crash or an exception, the work runs again, so it must be idempotent."""
        return AsyncTurn(self._at_least_once, True)
