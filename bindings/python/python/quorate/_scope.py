"""Locks for `with`, and as decorators."""

from __future__ import annotations

import functools
import inspect
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Generic, TypeVar

from . import _quorate
from ._guard import Guard, leave

if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    P = ParamSpec("P")

R = TypeVar("R")
G = TypeVar("G")


class BaseScope(Generic[G]):
    """A lock with its options, for `with`. It may be entered several times, also by several threads."""

    __slots__ = ("_entered", "_start")

    def __init__(self, start: Callable[[], _quorate.Call]) -> None:
        self._start = start
        # The guards that each thread has entered.
        self._entered: dict[int, list[Guard | None]] = {}

    def _enter(self) -> Guard | None:
        guard = self._acquire()
        self._entered.setdefault(threading.get_ident(), []).append(guard)
        return guard

    def _acquire(self) -> Guard | None:
        native = self._start().wait()
        return Guard(native) if isinstance(native, _quorate.Guard) else None

    def _leave(self, guard: Guard, error: BaseException | None) -> None:
        leave(guard, error)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        thread = threading.get_ident()
        entered = self._entered[thread]
        guard = entered.pop()
        if not entered:
            del self._entered[thread]
        if guard is not None:
            self._leave(guard, error)


class Scope(BaseScope[Guard]):
    """A lock with its options: for `with`, as a decorator, or for `acquire()` and `try_acquire()`.

    It may be entered several times, also by several threads. Each time, the lock is acquired.
    """

    __slots__ = ("_start_once",)

    def __init__(self, start: Callable[[], _quorate.Call], start_once: Callable[[], _quorate.Call]) -> None:
        super().__init__(start)
        self._start_once = start_once

    def acquire(self) -> Guard:
        """Waits for the lock; see `Redlock.acquire`."""
        return Guard(self._start().wait())

    def try_acquire(self) -> Guard | None:
        """Makes one attempt; see `Redlock.try_acquire`."""
        native = self._start_once().wait()
        return None if native is None else Guard(native)

    def __enter__(self) -> Guard:
        guard = self._enter()
        assert guard is not None
        return guard

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorates a function: each call runs under the lock."""
        check_is_sync(function)

        @functools.wraps(function)
        def under_lock(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return under_lock


def check_is_sync(function: Callable[..., Any]) -> None:
    if inspect.iscoroutinefunction(function):
        raise TypeError("a lock of Redlock cannot decorate a coroutine function: use AsyncRedlock")
    if inspect.isgeneratorfunction(function):
        raise TypeError("a lock cannot decorate a generator function: use `with` inside it")
