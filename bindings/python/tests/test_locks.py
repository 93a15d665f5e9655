"""All kinds of locks, on real servers."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import pytest
from conftest import OPTIONS

import quorate
from quorate import InvalidSettings, LockHeld, LockLost, Redlock


def test_lock_excludes_others_until_its_release(servers, redlock):
    with redlock.lock("cycle", wait=5) as guard:
        assert guard.is_valid() and guard.lost is None and 1.0 < guard.remaining <= 2
        first = guard.fencing_token
        assert redlock.try_acquire("cycle") is None
        with Redlock(servers.urls, **OPTIONS) as other, pytest.raises(LockHeld) as caught:
            other.acquire("cycle", wait=0.2)
        error = caught.value
        assert error.resource == "cycle" and error.waited >= 0.2 and error.attempts > 0 and not error.held_here
        assert len(error.reports) == 5 and {report.outcome for report in error.reports} <= {"no", "silent"}
        assert "127.0.0.1" in error.details and "127.0.0.1" not in str(error)
    assert guard.lost == "released" and not guard.is_valid() and guard.release() is False
    assert guard.remaining == 0
    with redlock.lock("cycle") as guard:
        assert guard.fencing_token > first


def test_lock_of_the_same_object_is_reported_as_held_here(redlock):
    with redlock.lock("twice"), pytest.raises(LockHeld) as caught:
        redlock.acquire("twice", wait=0.2)
    assert caught.value.held_here


def test_readers_share_a_lock_and_exclude_a_writer(redlock):
    with redlock.lock("document", shared=True) as one, redlock.lock("document", shared=True) as two:
        assert one.is_valid() and two.is_valid()
        assert redlock.try_acquire("document") is None


def test_lock_on_several_names_holds_all_of_them(redlock):
    with redlock.lock_all(["a", "b"]) as both:
        assert sorted(both.resources) == ["a", "b"]
        assert redlock.try_acquire("a") is None and redlock.try_acquire("b") is None
    with pytest.raises(TypeError):
        redlock.lock_all("ab")


def test_semaphore_gives_each_permit_once(redlock):
    with redlock.semaphore("api", 2) as one, redlock.semaphore("api", 2) as two:
        assert {one.slot, two.slot} == {0, 1}
        assert redlock.semaphore("api", 2).try_acquire() is None


def test_holds_of_one_owner_share_the_lock_and_its_token(servers, redlock):
    with Redlock(servers.urls, **OPTIONS) as elsewhere, redlock.owner("order-4711").lock("stock") as outer:
        with elsewhere.owner("order-4711").lock("stock", wait=2) as inner:
            assert outer.fencing_token == inner.fencing_token
        assert redlock.try_acquire("stock") is None
        assert redlock.owner("order-4712").try_acquire("stock") is None
    with pytest.raises(InvalidSettings):
        redlock.owner("").acquire("stock")


def test_extend_lengthens_a_lock_without_renewal(redlock):
    guard = redlock.acquire("lease", ttl=1, renewal=False)
    guard.extend(timedelta(seconds=5))
    assert guard.remaining > 4
    assert guard.wait_lost(0.05) is None
    assert guard.release() is True
    with pytest.raises(LockLost) as caught:
        guard.extend(1)
    assert caught.value.cause == "released"


def test_lock_without_renewal_expires(redlock):
    guard = redlock.acquire("short", ttl=1, renewal=False)
    guard.check()
    assert guard.wait_lost(5) == "expired"
    assert guard.lost == "expired"
    with pytest.raises(LockLost) as caught:
        guard.check()
    assert caught.value.cause == "expired"
    assert guard.release() is False and guard.lost == "expired"


def test_lock_is_not_held_longer_than_max_hold(redlock):
    with pytest.raises(LockLost) as caught, redlock.lock("bounded", max_hold=0.5) as guard:
        assert guard.wait_lost(5) == "max_hold"
    assert caught.value.cause == "max_hold"


def test_error_of_the_block_goes_before_the_loss(redlock):
    with pytest.raises(KeyError), redlock.lock("broken by its block", max_hold=0.3) as guard:
        guard.wait_lost(5)
        raise KeyError


def test_decorated_function_runs_under_the_lock(redlock):
    @redlock.lock("decorated")
    def work(number: int) -> int:
        assert redlock.try_acquire("decorated") is None
        return number + 1

    assert work(1) == 2 and work.__name__ == "work"
    redlock.acquire("decorated", wait=0).release()
    with pytest.raises(TypeError):

        @redlock.lock("decorated")
        async def wrong() -> None: ...


def test_one_scope_can_be_entered_by_many_threads(redlock):
    scope = redlock.lock("count", wait=60)
    count = 0

    def work() -> None:
        nonlocal count
        for _ in range(20):
            with scope:
                before = count
                time.sleep(0)
                count = before + 1

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count == 320


def test_status_and_list_show_the_holder(redlock):
    assert redlock.status("shown").verdict == "free"
    with redlock.lock("shown", note="migration 17"):
        time.sleep(0.4)
        status = redlock.status("shown")
        assert status.verdict == "held" and status.holder.text == "migration 17" and status.holder.pid > 0
        assert len(status.masters) == 5 and all(master.held for master in status.masters)
        assert all(0 < master.expires_in <= 2 for master in status.masters)
        listing = redlock.list("sho")
        assert [lock.name for lock in listing.locks] == ["shown"] and listing.complete
        with pytest.raises(LockHeld) as caught:
            Redlock(redlock_urls(redlock), **OPTIONS).acquire("shown", wait=0.2)
        assert caught.value.holder.text == "migration 17" and "migration 17" in caught.value.details


def redlock_urls(redlock: Redlock) -> list[str]:
    return [master if "://" in master else f"redis://{master}" for master in redlock.masters]


def test_broken_lock_is_reported_as_taken_away(redlock):
    guard = redlock.acquire("seized")
    assert redlock.break_lock("seized").verdict == "held"
    assert guard.wait_lost(5) == "taken_away"
    assert guard.release() is False


def test_inspect_describes_each_master(redlock):
    masters = redlock.inspect()
    assert len(masters) == 5
    assert all(master.fault is None and master.server in ("redis", "valkey") for master in masters)
    assert all(master.wakes_waiters and master.missing_rights == () for master in masters)


def test_settings_are_read_from_the_environment(servers, monkeypatch):
    monkeypatch.setenv("QUORATE_MASTERS", ",".join(servers.urls))
    monkeypatch.setenv("QUORATE_RESTART_GUARD", "off")
    monkeypatch.setenv("QUORATE_TTL", "3s")
    with Redlock.from_env(prefix="env:") as redlock, redlock.lock("from env") as guard:
        assert 2 < guard.remaining <= 3
        assert any(key == b"env:from env" for _, key in servers.keys("from env"))
    monkeypatch.setenv("QUORATE_TTL", "soon")
    with pytest.raises(InvalidSettings, match="QUORATE_TTL"):
        Redlock.from_env()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Redlock([]),
        lambda: Redlock(["redis://127.0.0.1:1", "redis://127.0.0.1:1"]),
        lambda: Redlock("redis://127.0.0.1:1", ttl=-1),
        lambda: Redlock("redis://127.0.0.1:1", ttl=float("nan")),
        lambda: Redlock("redis://127.0.0.1:1", ttl=0.001),
        lambda: Redlock("redis://127.0.0.1:1", restart_guard="maybe"),
        lambda: Redlock("redis://127.0.0.1:1", order="first"),
        lambda: Redlock("redis://127.0.0.1:1", ca_file="/nowhere.pem"),
        lambda: Redlock.in_memory(0),
        lambda: Redlock.in_memory().acquire(""),
        lambda: Redlock.in_memory().acquire("x" * 2000),
        lambda: Redlock.in_memory().acquire("x", ttl=3600),
        lambda: Redlock.in_memory().acquire("x", wait=-1),
        lambda: Redlock.in_memory().semaphore("x", 0).acquire(),
        lambda: Redlock.in_memory().lock_all(["a", "a"]).acquire(),
        lambda: Redlock.in_memory().quota("x").take(0),
        lambda: Redlock.in_memory().once("x", 0).create(),
    ],
)
def test_invalid_argument_raises_a_value_error(make):
    with pytest.raises(ValueError):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Redlock.in_memory().acquire(7),
        lambda: Redlock.in_memory().acquire("x", ttl="1"),
        lambda: Redlock.in_memory().acquire("x", ttl=True),
    ],
)
def test_argument_of_another_type_raises_a_type_error(make):
    with pytest.raises(TypeError):
        make()


def test_password_is_in_no_text():
    with Redlock("redis://user:geheim@127.0.0.1:1", connect_timeout=0.1) as redlock:
        with pytest.raises(quorate.NoQuorum) as caught:
            redlock.acquire("secret", wait=0)
        texts = [str(caught.value), caught.value.details, repr(caught.value.reports), repr(redlock.masters)]
    with pytest.raises(InvalidSettings) as invalid:
        Redlock("redis://user:geheim@127.0.0.1:1:2:3")
    assert "geheim" not in " ".join([*texts, str(invalid.value)])


def test_several_urls_in_one_text_are_refused_with_what_to_do() -> None:
    with pytest.raises(InvalidSettings, match="as a list"):
        Redlock("redis://127.0.0.1:1,redis://127.0.0.1:2")
