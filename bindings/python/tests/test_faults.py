"""Servers that are killed or stopped, and masters in memory."""

from __future__ import annotations

import asyncio
import time

import pytest
from conftest import OPTIONS, Servers, needs_servers

from quorate import AsyncRedlock, Memory, NoQuorum, Redlock


@needs_servers
def test_minority_of_killed_and_stopped_servers_loses_no_lock():
    servers = Servers(5)
    redlock = Redlock(servers.urls, **OPTIONS)
    try:
        with redlock.lock("faults") as guard:
            servers.kill(0)
            servers.stop(1)
            time.sleep(2.5)
            assert guard.is_valid()
            with redlock.lock("more", wait=5) as more:
                assert more.is_valid()
            asyncio.run(acquire_once(servers))
        guard = redlock.acquire("faults", wait=10)
        servers.stop(2)
        with pytest.raises(NoQuorum) as caught:
            redlock.acquire("none", wait=0.3)
        assert len(caught.value.reports) == 5
        assert guard.wait_lost(10) == "expired"
        guard.release()
        servers.go_on(1)
        servers.go_on(2)
        with redlock.lock("none", wait=10):
            pass
        redlock.close()
    finally:
        servers.close()


async def acquire_once(servers: Servers) -> None:
    async with AsyncRedlock(servers.urls, **OPTIONS) as redlock, redlock.lock("async", wait=5) as guard:
        assert guard.is_valid()


def test_lock_at_risk_is_reported_before_its_loss():
    masters = Memory(3)
    guard = Redlock(masters, ttl=2).acquire("at risk")
    for number in range(3):
        masters.set(number, "down")
    notices = []
    for risk in guard.at_risk(1):
        assert guard.is_valid() and 0 < risk.remaining <= 1 and len(risk.reports) == 3
        notices.append(risk.reason)
    assert notices == ["renewal_failed"] and guard.lost == "expired"
    guard.release()
    assert list(guard.at_risk(1)) == []

    async def main():
        locks = AsyncRedlock.in_memory(ttl=2)
        guard = await locks.acquire("at risk", ttl=1, renewal=False)
        assert [risk.reason async for risk in guard.at_risk(0.5)] == ["not_renewed"]
        await guard.release()

    asyncio.run(main())


def test_masters_in_memory_are_shared_and_fail_as_servers_do():
    masters = Memory(3)
    here, there = Redlock(masters), Redlock(masters)
    with here.lock("stock"):
        assert there.try_acquire("stock") is None
    masters.set(0, "down")
    with there.lock("stock"):
        masters.set(1, "mute")
        with pytest.raises(NoQuorum):
            here.acquire("other", wait=0.1)
        masters.set(1, "up")
    masters.forget(1)
    with here.lock("stock"):
        pass
    for number, condition in ((3, "up"), (0, "sideways")):
        with pytest.raises(ValueError):
            masters.set(number, condition)
