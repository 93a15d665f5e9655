"""Checks arguments, and turns them into those of the native half."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypedDict, Union

from ._errors import InvalidSettings
from ._quorate import Memory

if TYPE_CHECKING:
    from typing import Literal

Time = Union[float, timedelta]
"""Seconds, or a `timedelta`."""

Name = Union[str, bytes]
"""The name of a lock. A `str` is encoded as UTF-8."""

Masters = Union[str, Iterable[str], Memory]
"""One URL, several URLs, or masters in memory."""

PathText = Union[str, "os.PathLike[str]"]


class Default:
    """Stands for the value of the `Redlock` object, where `None` means for ever."""

    def __repr__(self) -> str:
        return "DEFAULT"


DEFAULT = Default()

Wait = Union[float, timedelta, Default, None]
"""How long to wait: seconds, 0 for a single attempt, `None` for ever."""


class Settings(TypedDict, total=False):
    """The settings of a `Redlock`; see there."""

    ttl: Time | None
    wait: Wait
    prefix: str | None
    max_hold: Time | None
    max_ttl: Time | None
    node_timeout: Time | None
    connect_timeout: Time | None
    fencing: bool | None
    order: Literal["fair", "unordered"] | None
    restart_guard: Literal["on", "after_first_contact", "off"] | None
    note: str | None
    ca_file: PathText | None
    client_cert: PathText | None
    client_key: PathText | None
    next_masters: Iterable[str] | None
    masters_generation: int | None
    masters_name: str | None


def seconds(time: Time, setting: str) -> float:
    """The time in seconds; an error if it is negative or not a number."""
    if isinstance(time, timedelta):
        time = time.total_seconds()
    if isinstance(time, bool) or not isinstance(time, (int, float)):
        raise TypeError(f"{setting}: use seconds or a timedelta, not {type(time).__name__}")
    if not 0 <= time < math.inf:
        raise InvalidSettings(f"{setting} of {time} s: use a number of seconds from 0 on")
    return float(time)


def optional_seconds(time: Time | None, setting: str) -> float | None:
    return None if time is None else seconds(time, setting)


def wait_seconds(wait: Wait) -> float | None:
    """For the native half: `None` is the value of the `Redlock` object, below 0 is for ever."""
    if isinstance(wait, Default):
        return None
    if wait is None:
        return -1.0
    if not isinstance(wait, timedelta) and wait == math.inf:
        return -1.0
    return seconds(wait, "wait")


def encoded(name: Name) -> bytes:
    if isinstance(name, str):
        return name.encode()
    if isinstance(name, bytes):
        return name
    raise TypeError(f"the name of a lock must be str or bytes, not {type(name).__name__}")


def encoded_all(names: Iterable[Name]) -> list[bytes]:
    if isinstance(names, (str, bytes)):
        raise TypeError("lock_all needs several names: use lock() for one name")
    return [encoded(name) for name in names]


_PATHS = ("ca_file", "client_cert", "client_key")
_TIMES = ("ttl", "max_hold", "max_ttl", "node_timeout", "connect_timeout")


def native_settings(masters: Masters | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings for the native half, without those that are not set."""
    settings: dict[str, Any] = {}
    if isinstance(masters, Memory):
        settings["memory"] = masters
    elif isinstance(masters, str) and "," in masters:
        raise InvalidSettings("masters: pass several URLs as a list, not as one text with commas")
    elif masters is not None:
        settings["masters"] = [masters] if isinstance(masters, str) else list(masters)
    for name, value in given.items():
        if name == "wait":
            wait = wait_seconds(value)
            if wait is not None:
                settings[name] = wait
        elif value is None:
            continue
        elif name in _TIMES:
            settings[name] = seconds(value, name)
        elif name in _PATHS:
            settings[name] = os.fspath(value)
        elif name == "next_masters":
            settings[name] = list(value)
        else:
            settings[name] = value
    return settings
