"""Locks for `async with`, and as decorators of coroutine functions."""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
from collections.abc import Awaitable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, TypeVar

from . import _event_loop, _quorate
from ._errors import lock_lost
from ._guard import AsyncGuard

if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    P = ParamSpec("P")

R = TypeVar("R")


class _Body:
    """The body of one `async with`. It is cancelled when its lock is lost, as `asyncio.timeout` does after its time."""

    __slots__ = ("_cancellations", "_id", "_replies", "_task", "cause", "guard")

    def __init__(self, guard: AsyncGuard, task: asyncio.Task[Any], replies: _event_loop.Replies, id: int) -> None:
        self.guard = guard
        self.cause: str | None = None
        """Why the body was cancelled."""
        self._task, self._replies, self._id = task, replies, id
        self._cancellations = 0
        if sys.version_info >= (3, 11):
            self._cancellations = task.cancelling()
        replies.watch(id, self._on_loss)

    def _on_loss(self, cause: str) -> None:
        self.cause = cause
        self._task.cancel()

    async def end(self, error: BaseException | None) -> str | None:
        """Releases the lock. Returns the cause of a loss that the caller must raise."""
        self._replies.unwatch(self._id)
        cause = self.cause or self.guard.lost
        if cause == "forked":
            return None
        is_cancelled_by_loss = self.cause is not None
        if is_cancelled_by_loss and sys.version_info >= (3, 11):
            # A cancellation from outside stays one.
            is_cancelled_by_loss = self._task.uncancel() <= self._cancellations
        await self._release(is_cancelled_by_loss and error is None)
        if cause is None or cause == "released":
            return None
        if error is None or (isinstance(error, asyncio.CancelledError) and is_cancelled_by_loss):
            return cause
        return None

    async def _release(self, cancellation_is_due: bool) -> None:
        released = self.guard.release()
        try:
            await released
        except asyncio.CancelledError:
            # The body ended before the cancellation because of the loss reached it.
            if not cancellation_is_due:
                raise


class BaseAsyncScope:
    """A lock with its options, for `async with`. It may be entered several times, also by several tasks."""

    __slots__ = ("_entered", "_start")

    def __init__(self, start: Callable[[], _quorate.Call]) -> None:
        self._start = start
        # The bodies that each task has entered.
        self._entered: dict[asyncio.Task[Any], list[_Body | None]] = {}

    async def _enter(self) -> AsyncGuard | None:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a lock can only be entered inside a task")
        replies = _event_loop.replies_of(loop)
        id, native = await replies.run(loop, self._start(), watch=True)
        body = None
        if isinstance(native, _quorate.Guard):
            body = _Body(AsyncGuard(native), task, replies, id)
        else:
            replies.unwatch(id)
            self._not_entered(native)
        self._entered.setdefault(task, []).append(body)
        return None if body is None else body.guard

    def _not_entered(self, reply: Any) -> None:
        """Called with the reply if no lock was acquired."""

    async def _before_release(self, guard: AsyncGuard, error: BaseException | None) -> None:
        """Called at the end of the body, before the lock is released."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        entered = self._entered[task]
        body = entered.pop()
        if not entered:
            del self._entered[task]
        if body is None:
            return
        failure = None
        try:
            await self._before_release(body.guard, error)
        except BaseException as raised:
            failure = raised
        cause = await body.end(failure or error)
        if cause is not None:
            raise lock_lost(cause, "the lock was lost while the block ran") from (failure or error)
        if failure is not None:
            raise failure


class AsyncScope(BaseAsyncScope):
    """A lock with its options: for `async with`, as a decorator, or for `acquire()` and `try_acquire()`.

    It may be entered several times, also by several tasks. Each time, the lock is acquired. If the lock is lost, the
    body of `async with` is cancelled, and the block ends with `LockLost`.
    """

    __slots__ = ("_start_once",)

    def __init__(self, start: Callable[[], _quorate.Call], start_once: Callable[[], _quorate.Call]) -> None:
        super().__init__(start)
        self._start_once = start_once

    async def acquire(self) -> AsyncGuard:
        """Waits for the lock; see `AsyncRedlock.acquire`."""
        return AsyncGuard(await _event_loop.run(self._start()))

    async def try_acquire(self) -> AsyncGuard | None:
        """Makes one attempt; see `AsyncRedlock.try_acquire`."""
        native = await _event_loop.run(self._start_once())
        return None if native is None else AsyncGuard(native)

    async def __aenter__(self) -> AsyncGuard:
        guard = await self._enter()
        assert guard is not None
        return guard

    def __call__(self, function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
        """Decorates a coroutine function: each call runs under the lock."""
        check_is_async(function)

        @functools.wraps(function)
        async def under_lock(*args: P.args, **kwargs: P.kwargs) -> R:
            async with self:
                return await function(*args, **kwargs)

        return under_lock


def check_is_async(function: Callable[..., Any]) -> None:
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise TypeError("a lock cannot decorate a generator function: use `async with` inside it")
    if not inspect.iscoroutinefunction(function):
        raise TypeError("a lock of AsyncRedlock decorates coroutine functions only: use Redlock for others")
