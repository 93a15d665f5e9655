"""The options of a lock for the native half."""

from __future__ import annotations

from . import _quorate
from ._arguments import Time, Wait, optional_seconds, wait_seconds


def lock_options(
    names: list[bytes],
    kind: str,
    ttl: Time | None,
    wait: Wait,
    max_hold: Time | None,
    renewal: bool,
    note: str | None,
    *,
    permits: int = 0,
    owner: str | None = None,
) -> _quorate.LockOptions:
    return _quorate.LockOptions(
        names,
        kind,
        ttl=optional_seconds(ttl, "ttl"),
        wait=wait_seconds(wait),
        max_hold=optional_seconds(max_hold, "max_hold"),
        renewal=renewal,
        note=note,
        permits=permits,
        owner=owner,
    )
