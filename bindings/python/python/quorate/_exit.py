"""The end of the interpreter: all locks that are still held are released."""

from __future__ import annotations

import atexit
import warnings

from . import _quorate


def _end() -> None:
    held = _quorate.close_all_clients()
    if held:
        text = f"quorate: {held} lock(s) were still held at the end of the process, and were released"
        warnings.warn(text, ResourceWarning, stacklevel=2)


def register() -> None:
    atexit.register(_end)
