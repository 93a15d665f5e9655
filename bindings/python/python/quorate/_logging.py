"""Messages of the library for the logger `quorate`."""

from __future__ import annotations

import atexit
import logging
import os
import threading

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


def _hand_over() -> None:
    while (batch := _quorate.logs_wait()) is not None:
        messages, dropped = batch
        for level, text in messages:
            _logger.log(level, "%s", text)
        if dropped:
            _logger.warning("%d messages of quorate were left out", dropped)
