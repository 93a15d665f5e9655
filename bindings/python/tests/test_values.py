"""Quotas, work that runs once per period, and elections."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import datetime, timedelta, timezone

import pytest

import quorate
from quorate import AsyncRedlock, LockLost, Memory, Redlock, ValueFailed

DAY = timedelta(days=1)


@pytest.fixture
def memory():
    return Memory(5)


def test_quota_hands_out_no_unit_twice(memory):
    prizes = Redlock(memory).quota("prizes")
    with pytest.raises(ValueFailed) as caught:
        prizes.take()
    assert caught.value.reason == "missing" and len(caught.value.reports) == 5
    prizes.create(2)
    with pytest.raises(ValueFailed) as caught:
        prizes.create(2)
    assert caught.value.reason == "exists"
    assert prizes.take() == (True, 1) and prizes.take(2) == (False, 1) and prizes.left() == 1
    assert prizes.drop() is True and prizes.drop() is False


def test_quota_works_in_asyncio(memory):
    async def main():
        async with AsyncRedlock(memory) as redlock:
            prizes = redlock.quota("prizes", wait=5)
            await prizes.create(100)
            taken = await asyncio.gather(*(prizes.take() for _ in range(20)))
            assert sorted(take.left for take in taken) == list(range(80, 100))
            assert await prizes.left() == 80 and await prizes.drop()

    asyncio.run(main())


def test_work_runs_at_most_once_per_period(memory):
    here, there = Redlock(memory), Redlock(memory)
    here.once("nightly", DAY).create()
    turn = here.once("nightly", DAY, note="by here").at_most_once()
    with pytest.raises(KeyError), turn as guard:
        assert guard.fencing_token > 0
        raise KeyError
    again = there.once("nightly", DAY).at_most_once()
    with again as guard:
        assert guard is None and 0 < again.next <= DAY.total_seconds()
    record = there.once("nightly", DAY).record()
    today = datetime.now(timezone.utc).replace(hour=0, minute=0, second=0, microsecond=0)
    assert record.last == today and record.note == "by here"


def test_work_runs_at_least_once_per_period(memory):
    nightly = Redlock(memory).once("nightly", DAY)
    nightly.create()
    assert nightly.record().last is None
    with pytest.raises(KeyError), nightly.at_least_once():
        raise KeyError
    with nightly.at_least_once() as guard:
        assert guard is not None
    with nightly.at_least_once() as guard:
        assert guard is None
    assert nightly.drop()


def test_decorated_work_is_called_once_per_period(memory):
    nightly = Redlock(memory).once("nightly", DAY)
    nightly.create()
    calls = []

    @nightly.at_most_once()
    def work(number):
        calls.append(number)
        return number

    assert work(1) == 1 and work(2) is None and calls == [1]


def test_period_of_a_calendar_needs_a_time_zone(memory):
    redlock = Redlock(memory)
    start = datetime(2024, 2, 1, tzinfo=timezone.utc)
    month = redlock.once("invoices", (start, datetime(2024, 3, 1, tzinfo=timezone.utc)))
    month.create()
    with month.at_most_once() as guard:
        assert guard is not None
    assert month.record().last == start
    with pytest.raises(ValueError):
        redlock.once("invoices", (datetime(2024, 2, 1), datetime(2024, 3, 1)))


def test_period_whose_lock_was_lost_is_not_recorded(memory):
    redlock = Redlock(memory)
    nightly = redlock.once("nightly", DAY)
    nightly.create()
    with pytest.raises(LockLost), nightly.at_least_once() as guard:
        redlock.break_lock("nightly")
        assert guard.wait_lost(10) == "taken_away"
    assert nightly.record().last is None


def test_once_works_in_asyncio(memory):
    async def main():
        redlock = AsyncRedlock(memory)
        nightly = redlock.once("nightly", DAY)
        await nightly.create()
        with pytest.raises(KeyError):
            async with nightly.at_least_once():
                raise KeyError
        calls = []

        @nightly.at_least_once()
        async def work():
            calls.append(1)
            return "done"

        results = await asyncio.gather(*(work() for _ in range(5)))
        assert sorted(map(str, results)) == ["None"] * 4 + ["done"]
        assert calls == [1]
        turn = nightly.at_most_once()
        async with turn as guard:
            assert guard is None and turn.next > 0
        assert (await nightly.record()).last is not None
        await nightly.drop()
        await redlock.close()

    asyncio.run(main())


def test_candidate_leads_after_the_leader_resigned(memory):
    here, there = Redlock(memory), Redlock(memory)
    seen = []

    def observe():
        for leader in Redlock(memory).election("scheduler").observe():
            seen.append(None if leader is None else (leader.term, leader.note and leader.note.text))
            if len([one for one in seen if one]) == 2:
                return

    observer = threading.Thread(target=observe)
    observer.start()
    with here.election("scheduler").campaign("a") as first:
        assert there.election("scheduler").campaign("b").try_acquire() is None
        end = time.monotonic() + 10
        while (first.term, "a") not in seen and time.monotonic() < end:
            time.sleep(0.02)
    with there.election("scheduler").campaign("b") as second:
        observer.join(10)
        assert second.term > first.term
    assert [one for one in seen if one] == [(first.term, "a"), (second.term, "b")]


def test_election_works_in_asyncio(memory):
    async def main():
        async with AsyncRedlock(memory) as redlock:
            election = redlock.election("scheduler")
            async with election.campaign("a") as leadership:
                async for leader in election.observe():
                    assert leader.term == leadership.term
                    break

    asyncio.run(main())


def test_leader_is_notified_of_its_loss(memory):
    async def main():
        async with AsyncRedlock(memory, ttl=1) as redlock:
            with pytest.raises(quorate.LockLost):
                async with redlock.election("scheduler").campaign():
                    await redlock.break_lock("scheduler")
                    await asyncio.sleep(30)

    asyncio.run(main())
