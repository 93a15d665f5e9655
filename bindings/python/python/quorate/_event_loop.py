"""The connection between an event loop of asyncio and the native half.

The native half makes a socket readable when results are there. Only the thread of the event loop touches futures.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import Any, Callable

from . import _quorate


class Replies:
    """The results for one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.bridge = _quorate.Bridge()
        self._futures: dict[int, asyncio.Future[Any]] = {}
        self._watchers: dict[int, Callable[[str], None]] = {}
        # The locks that were acquired with `watch`, until `watch` or `unwatch` is called; and their loss, if it came
        # before that.
        self._unwatched: dict[int, str | None] = {}
        loop.add_reader(self.bridge.fileno(), self._take)

    def _take(self) -> None:
        for id, error, value in self.bridge.take():
            future = self._futures.pop(id, None)
            if future is not None:
                if future.done():
                    # Cancelled: a lock is released when `value` is dropped.
                    self._unwatched.pop(id, None)
                elif error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(value)
            elif id in self._watchers:
                self._watchers.pop(id)(value)
            elif id in self._unwatched:
                self._unwatched[id] = value

    def start(self, loop: asyncio.AbstractEventLoop, call: _quorate.Call) -> asyncio.Future[Any]:
        """Starts the call. Cancelling the future does not cancel the call."""
        future = loop.create_future()
        self._futures[self.bridge.start(call, False)] = future
        return future

    async def run(self, loop: asyncio.AbstractEventLoop, call: _quorate.Call, watch: bool = False) -> tuple[int, Any]:
        """Waits for the result. If this coroutine is cancelled, the call is cancelled as well."""
        future = loop.create_future()
        id = self.bridge.start(call, watch)
        self._futures[id] = future
        if watch:
            self._unwatched[id] = None
        try:
            return id, await future
        except BaseException:
            self._unwatched.pop(id, None)
            if self._futures.pop(id, None) is not None:
                self.bridge.cancel(id)
            raise

    def watch(self, id: int, on_loss: Callable[[str], None]) -> None:
        """Calls `on_loss` when the lock is lost that the call with this number has acquired."""
        cause = self._unwatched.pop(id, None)
        if cause is not None:
            on_loss(cause)
        else:
            self._watchers[id] = on_loss

    def unwatch(self, id: int) -> None:
        self._unwatched.pop(id, None)
        self._watchers.pop(id, None)


# Only the reader of the event loop keeps its `Replies`. So they go when the loop is closed, and with them the calls
# that nobody waits for. The futures of a `Replies` refer to the loop: a strong reference here would keep both.
_replies: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[Replies]] = weakref.WeakKeyDictionary()


def replies_of(loop: asyncio.AbstractEventLoop) -> Replies:
    reference = _replies.get(loop)
    replies = None if reference is None else reference()
    if replies is None or replies.bridge.is_forked():
        replies = Replies(loop)
        _replies[loop] = weakref.ref(replies)
    return replies


def start(call: _quorate.Call) -> asyncio.Future[Any]:
    """Starts the call in the running event loop. Cancelling the future does not cancel the call."""
    loop = asyncio.get_running_loop()
    return replies_of(loop).start(loop, call)


async def run(call: _quorate.Call) -> Any:
    """Runs the call in the running event loop, and returns its result."""
    loop = asyncio.get_running_loop()
    _, value = await replies_of(loop).run(loop, call)
    return value
