"""Messages of the library for the logger `quorate`."""

from __future__ import annotations

import atexit
import importlib
import logging
import os
import sys
import threading
from collections.abc import Callable

from . import _quorate

_logger = logging.getLogger("quorate")
_thread: threading.Thread | None = None
_wanted = False


def log_to_python(level: int = logging.WARNING) -> None:
    """Passes messages of this level and above to the logger `quorate`. May be called once; the level stays.

    A thread of its own hands over the messages, so logging never delays a renewal. At most 1024 messages wait for it.
    If more arrive, they are counted, and a warning says how many were left out.
    """
    global _wanted
    if _wanted or not _quorate.logs_start(level):
        return
    _wanted = True
    os.register_at_fork(after_in_child=_forget_thread)
    atexit.register(_end)
    start_thread()


def start_thread() -> None:
    """Starts the thread, if messages are wanted and it does not run. A forked process has no thread at first."""
    global _thread
    if not _wanted or _thread is not None:
        return
    _thread = threading.Thread(target=_hand_over, name="quorate-logging", daemon=True)
    _thread.start()


def _forget_thread() -> None:
    global _thread
    _thread = None


def _end() -> None:
    # Before the interpreter ends: a thread that enters an interpreter that has ended would end the process.
    _quorate.logs_end()
    if _thread is not None:
        _thread.join(1)


def _waiter() -> Callable[[], tuple[list[tuple[int, str]], int] | None]:
    """The function that waits for messages. If gevent has replaced threads by greenlets, it waits in a thread of the
    operating system, because a greenlet that waits stops all others (`test_messages_stop_no_greenlet`)."""
    gevent = sys.modules.get("gevent.monkey")
    if gevent is None or not gevent.is_module_patched("threading"):
        return _quorate.logs_wait
    pool = importlib.import_module("gevent.threadpool").ThreadPool(1)
    return lambda: pool.apply(_quorate.logs_wait)


def _hand_over() -> None:
    wait = _waiter()
    while (batch := wait()) is not None:
        messages, dropped = batch
        for level, text in messages:
            _logger.log(level, "%s", text)
        if dropped:
            _logger.warning("%d messages of quorate were left out", dropped)
