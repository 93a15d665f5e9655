"""Locks for threads."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from . import _data, _quorate
from ._arguments import (
    DEFAULT,
    Masters,
    Name,
    PathText,
    Settings,
    Time,
    Wait,
    encoded,
    encoded_all,
    native_settings,
)
from ._data import Inspection, Listing, Status
from ._election import Election
from ._guard import Guard
from ._lock_options import lock_options
from ._once import Once, Period
from ._quota import Quota
from ._scope import Scope

if TYPE_CHECKING:
    from typing_extensions import Unpack


class BaseRedlock:
    """The part of `Redlock` and `AsyncRedlock` that does not wait."""

    _core: _quorate.Core

    def __init__(
        self,
        masters: Masters,
        *,
        ttl: Time | None = None,
        wait: Wait = DEFAULT,
        prefix: str | None = None,
        max_hold: Time | None = None,
        max_ttl: Time | None = None,
        node_timeout: Time | None = None,
        connect_timeout: Time | None = None,
        fencing: bool | None = None,
        order: Literal["fair", "unordered"] | None = None,
        restart_guard: Literal["on", "after_first_contact", "off"] | None = None,
        note: str | None = None,
        ca_file: PathText | None = None,
        client_cert: PathText | None = None,
        client_key: PathText | None = None,
        next_masters: Iterable[str] | None = None,
        masters_generation: int | None = None,
        masters_name: str | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "masters", "__class__")}
        self._core = _quorate.Core(native_settings(masters, given), False)

    @property
    def masters(self) -> list[str]:
        """The addresses of the masters, without credentials."""
        return self._core.masters()


class Redlock(BaseRedlock):
    """Locks over one set of masters, for threads. `AsyncRedlock` is for asyncio.

    Create one object per process and share it: all its locks use the same connections and the same thread, which starts
    with the first lock. The constructor does not connect. In a forked process, the object connects again by itself.

    - `masters`: URLs of independent servers (`redis://user:password@host:6379/0`, `rediss://` with TLS, `unix://`),
      never replicas of each other. Use 3 or 5. Or `Memory` objects.
    - `ttl`: how long the masters keep a lock without a renewal. Default: 10 s. A held lock is renewed each third of it.
    - `wait`: how long to wait for a lock. Default: 30 s. 0 makes a single attempt, `None` waits for ever.
    - `prefix`: begins the key of every lock. Default: none.
    - `max_hold`: the longest time that a lock is held, renewals included. Default: no limit.
    - `max_ttl`: the longest `ttl` of any client of these masters; the same for all clients. Default: 30 s.
    - `node_timeout`: how long to wait for the reply of a master. Default: 50 ms.
    - `connect_timeout`: how long to wait for a connection. Default: 500 ms.
    - `fencing`: whether each lock has a fencing token. Default: True.
    - `order`: "fair" (first come, first served; the default) or "unordered".
    - `restart_guard`: whether the votes of a restarted master are ignored for `max_ttl`: "on" (the default),
      "after_first_contact" (for tests with new servers), or "off" (only for servers that never lose a write).
    - `note`: a text about this process, which others see as the holder. Default: host, process id and program only.
    - `ca_file`, `client_cert`, `client_key`: PEM files for `rediss://`. Default: the certificates of the system.
    - `next_masters`, `masters_generation`, `masters_name`: for a change of the masters while locks are in use.

    Raises `InvalidSettings` if a setting is invalid.
    """

    @classmethod
    def from_env(cls, **settings: Unpack[Settings]) -> Redlock:
        """Reads the settings from the environment: `QUORATE_MASTERS` (URLs, separated by commas), `QUORATE_TTL` (with a
        unit: `500ms`, `10s`), and so on. Arguments go before the environment."""
        redlock = cls.__new__(cls)
        redlock._core = _quorate.Core(native_settings(None, settings), True)
        return redlock

    @classmethod
    def in_memory(cls, masters: int = 3, **settings: Unpack[Settings]) -> Redlock:
        """Locks over masters in memory, for tests without servers. Several objects can share one `Memory`."""
        return cls(_quorate.Memory(masters), **settings)

    def lock(
        self,
        name: Name,
        *,
        ttl: Time | None = None,
        wait: Wait = DEFAULT,
        max_hold: Time | None = None,
        renewal: bool = True,
        shared: bool = False,
        note: str | None = None,
    ) -> Scope:
        """A lock with its options, for `with` or as a decorator. Nothing is sent before it is entered or acquired.

        - `ttl`, `wait`, `max_hold`, `note`: for this lock, instead of those of the `Redlock`.
        - `renewal`: whether the lock is renewed. Without, it ends after one `ttl`, unless `extend()` is called.
        - `shared`: whether other readers may hold the lock at the same time.

        The block raises `LockHeld` or `NoQuorum` if the lock was not acquired, and `LockLost` at its end if the lock
        was lost. Locks are not re-entrant.
        """
        kind = "shared" if shared else "exclusive"
        return self._scope(lock_options([encoded(name)], kind, ttl, wait, max_hold, renewal, note))

    def lock_all(
        self,
        names: Iterable[Name],
        *,
        ttl: Time | None = None,
        wait: Wait = DEFAULT,
        max_hold: Time | None = None,
        renewal: bool = True,
        note: str | None = None,
    ) -> Scope:
        """Up to 16 names in one lock, all or none, with one fencing token. Other orders of names cannot deadlock."""
        return self._scope(lock_options(encoded_all(names), "all", ttl, wait, max_hold, renewal, note))

    def semaphore(
        self,
        name: Name,
        permits: int,
        *,
        ttl: Time | None = None,
        wait: Wait = DEFAULT,
        max_hold: Time | None = None,
        renewal: bool = True,
        note: str | None = None,
    ) -> Scope:
        """One of `permits` permits (1 to 64). The guard's `slot` is the number of the permit."""
        options = lock_options([encoded(name)], "permit", ttl, wait, max_hold, renewal, note, permits=permits)
        return self._scope(options)

    def _scope(self, options: _quorate.LockOptions) -> Scope:
        core = self._core
        return Scope(lambda: core.acquire(options), lambda: core.try_acquire(options))

    def acquire(
        self,
        name: Name,
        *,
        ttl: Time | None = None,
        wait: Wait = DEFAULT,
        max_hold: Time | None = None,
        renewal: bool = True,
        shared: bool = False,
        note: str | None = None,
    ) -> Guard:
        """Waits for the lock and returns its guard; options as for `lock`. Ctrl-C ends the wait.

        Raises `LockHeld` if another client held the lock until the end of the wait, `NoQuorum` if less than a majority
        of the masters could vote, and `InvalidSettings` if the name or an option is invalid.
        """
        kind = "shared" if shared else "exclusive"
        options = lock_options([encoded(name)], kind, ttl, wait, max_hold, renewal, note)
        return Guard(self._core.acquire(options).wait())

    def try_acquire(
        self,
        name: Name,
        *,
        ttl: Time | None = None,
        max_hold: Time | None = None,
        renewal: bool = True,
        shared: bool = False,
        note: str | None = None,
    ) -> Guard | None:
        """Makes one attempt. Returns `None` if another client holds the lock. Raises `NoQuorum` if too few masters
        answered to know."""
        kind = "shared" if shared else "exclusive"
        options = lock_options([encoded(name)], kind, ttl, DEFAULT, max_hold, renewal, note)
        native = self._core.try_acquire(options).wait()
        return None if native is None else Guard(native)

    def owner(self, id: str) -> Owner:
        """The owner with this id (1 to 64 bytes), which several processes may use. Its holds share a lock."""
        return Owner(self._core, id)

    def quota(self, name: Name, *, wait: Wait = DEFAULT) -> Quota:
        """The quota with this name. `wait`: how long each call waits for the lock with the same name."""
        return Quota(self._core, name, wait)

    def once(self, name: Name, period: Period, *, wait: Wait = DEFAULT, note: str = "") -> Once:
        """Work that runs once per period. `period` is a length (a day begins at midnight UTC), or the start and the end
        of one period as `datetime` objects with time zones. `note` is stored with the record."""
        return Once(self._core, name, period, wait, note)

    def election(self, name: Name, *, ttl: Time | None = None, wait: Wait = None) -> Election:
        """The election with this name. `wait`: how long a candidate waits; for ever by default."""
        return Election(self._core, name, ttl, wait)

    def status(self, name: Name) -> Status:
        """The state of a lock on every master. A fault of a master is a part of the result."""
        return _data.status(self._core.status(encoded(name)).wait())

    def list(self, prefix: Name = "") -> Listing:
        """The locks that are held and whose names begin with `prefix`: at most 1000. Each master scans all its keys, so
        do not call it often."""
        return _data.listing(self._core.list(encoded(prefix)).wait())

    def inspect(self) -> tuple[Inspection, ...]:
        """Examines every master: whether it can be used, its version, missing rights, the difference of its clock."""
        return _data.inspections(self._core.inspect().wait())

    def break_lock(self, name: Name) -> Status:
        """Deletes a lock, no matter which client holds it. An operator's last resort: the holder notices it only at its
        next renewal. Returns the state before; the verdict `unknown` means that nothing was deleted, or not everywhere:
        call it again."""
        return _data.status(self._core.break_lock(encoded(name)).wait())

    def flush(self) -> None:
        """Waits until all requests were answered, for example releases of collected guards."""
        self._core.flush().wait()

    def close(self) -> None:
        """Releases what is still held, with a `ResourceWarning`, sends all releases and ends the thread, within about
        400 ms. The next use starts another thread."""
        warn_about_held(self._core.close())

    def __enter__(self) -> Redlock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def warn_about_held(released: int) -> None:
    if released:
        text = f"{released} lock(s) were still held when the Redlock was closed, and were released"
        warnings.warn(text, ResourceWarning, stacklevel=3)


class Owner:
    """An owner whose holds share a lock, in one process or in several. All holds have the same fencing token."""

    __slots__ = ("_core", "id")

    def __init__(self, core: _quorate.Core, id: str) -> None:
        self._core, self.id = core, id

    def lock(
        self,
        name: Name,
        *,
        ttl: Time | None = None,
        wait: Wait = DEFAULT,
        max_hold: Time | None = None,
        renewal: bool = True,
        note: str | None = None,
    ) -> Scope:
        """A hold of this owner, for `with`; options as for `Redlock.lock`."""
        options = lock_options([encoded(name)], "owner", ttl, wait, max_hold, renewal, note, owner=self.id)
        core = self._core
        return Scope(lambda: core.acquire(options), lambda: core.try_acquire(options))

    def acquire(self, name: Name, *, ttl: Time | None = None, wait: Wait = DEFAULT) -> Guard:
        """Waits for a hold of this owner. Its other holds do not block it."""
        return self.lock(name, ttl=ttl, wait=wait).acquire()

    def try_acquire(self, name: Name, *, ttl: Time | None = None) -> Guard | None:
        """Makes one attempt. Returns `None` if another owner or client holds the lock."""
        return self.lock(name, ttl=ttl).try_acquire()
