"""Locks in asyncio: cancellation, losses and event loops."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
import warnings

import pytest
from conftest import OPTIONS

from quorate import AsyncRedlock, ClientClosed, LockHeld, LockLost, Memory, Redlock
from quorate._event_loop import replies_of


def test_async_lock_excludes_others_until_its_release(servers):
    async def main():
        async with AsyncRedlock(servers.urls, **OPTIONS) as redlock:
            async with redlock.lock("async") as guard:
                assert guard.is_valid() and guard.fencing_token > 0
                assert await redlock.try_acquire("async") is None
                with pytest.raises(LockHeld):
                    await redlock.acquire("async", wait=0.1)
                assert (await redlock.status("async")).verdict == "held"
                assert [lock.name for lock in (await redlock.list("asyn")).locks] == ["async"]
            assert guard.lost == "released"
            assert (await redlock.status("async")).verdict == "free"
            assert len(await redlock.inspect()) == 5
            guard = await redlock.acquire("async", ttl=1, renewal=False)
            await guard.extend(5)
            assert guard.remaining > 4 and await guard.wait_lost(0.05) is None
            assert await guard.release() is True and await guard.release() is False
            async with redlock.lock_all(["x", "y"]), redlock.semaphore("api", 1) as permit:
                assert permit.slot == 0
            async with redlock.owner("me").lock("mine"):
                assert (await redlock.owner("me").acquire("mine")).is_valid()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        asyncio.run(main())


def test_decorated_coroutine_function_runs_under_the_lock():
    async def main():
        async with AsyncRedlock.in_memory() as redlock:

            @redlock.lock("decorated")
            async def work(number: int) -> int:
                assert await redlock.try_acquire("decorated") is None
                return number + 1

            assert await asyncio.gather(work(1), work(2)) == [2, 3]
            with pytest.raises(TypeError):
                redlock.lock("decorated")(lambda: None)

    asyncio.run(main())


def test_cancelled_wait_leaves_the_queue(servers):
    async def main():
        holder, waiter = AsyncRedlock(servers.urls, **OPTIONS), AsyncRedlock(servers.urls, **OPTIONS)
        async with holder.lock("cancelled"):
            before = servers.keys_of_holder("cancelled")
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(waiter.acquire("cancelled", wait=None), 0.3)
            # Otherwise the place of this waiter counts as that of the next one.
            end = time.monotonic() + 10
            while len(servers.keys("cancelled")) > before and time.monotonic() < end:
                await asyncio.sleep(0.02)
            task = asyncio.create_task(waiter.acquire("cancelled", wait=None))
            end = time.monotonic() + 10
            while len(servers.keys("cancelled")) == before and time.monotonic() < end:
                await asyncio.sleep(0.02)
            assert len(servers.keys("cancelled")) > before
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            end = time.monotonic() + 2
            while len(servers.keys("cancelled")) > before and time.monotonic() < end:
                await asyncio.sleep(0.02)
            assert len(servers.keys("cancelled")) == before
            assert not replies_of(asyncio.get_running_loop())._futures
        await holder.close()
        await waiter.close()

    asyncio.run(main())


def test_thousands_of_cancelled_acquires_leave_no_key(servers):
    """Some are cancelled before they are sent, some at the moment at which they get the lock, some later."""

    async def main():
        redlock = AsyncRedlock(servers.urls, **OPTIONS)
        won = 0
        for number in range(3000):
            task = asyncio.create_task(redlock.acquire(f"won:{number % 7}", wait=None))
            if number % 4:
                await asyncio.sleep(0.0003 * (number % 8))
            task.cancel()
            try:
                guard = await task
            except asyncio.CancelledError:
                continue
            won += 1
            await guard.release()
        replies = replies_of(asyncio.get_running_loop())
        await redlock.flush()
        assert won < 3000 and not replies._futures and not replies._unwatched and not replies._watchers
        assert replies.bridge.running_calls() == 0
        await redlock.close()

    asyncio.run(main())
    assert servers.remaining_keys("won:", 2) == []


def test_cancelled_scope_leaves_no_key(servers):
    async def body(redlock, name):
        async with redlock.lock(name, wait=None):
            await asyncio.sleep(0)

    async def main():
        redlock = AsyncRedlock(servers.urls, **OPTIONS)
        for number in range(500):
            task = asyncio.create_task(body(redlock, f"scope:{number % 5}"))
            await asyncio.sleep(0.0003 * (number % 10))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        replies = replies_of(asyncio.get_running_loop())
        await redlock.close()
        assert not replies._futures and not replies._unwatched and not replies._watchers

    asyncio.run(main())
    assert servers.remaining_keys("scope:", 2) == []


def test_loss_cancels_the_body(servers, redlock):
    async def main():
        async with AsyncRedlock(servers.urls, **OPTIONS) as locks:
            began = time.monotonic()
            with pytest.raises(LockLost) as caught:
                async with locks.lock("broken", ttl=1, wait=5):
                    redlock.break_lock("broken")
                    await asyncio.sleep(30)
            assert caught.value.cause == "taken_away" and time.monotonic() - began < 10
            await asyncio.sleep(0)
            if sys.version_info >= (3, 11):
                assert asyncio.current_task().cancelling() == 0

    asyncio.run(main())


def test_loss_of_a_lock_whose_body_does_not_wait_is_raised_at_its_end():
    async def main():
        memory = Memory(3)
        breaker = Redlock(memory)
        async with AsyncRedlock(memory, ttl=1) as locks:
            with pytest.raises(LockLost):
                async with locks.lock("busy") as guard:
                    breaker.break_lock("busy")
                    while guard.is_valid():
                        time.sleep(0.01)
            await asyncio.sleep(0.01)
            with pytest.raises(KeyError):
                async with locks.lock("busy", wait=5) as guard:
                    breaker.break_lock("busy")
                    while guard.is_valid():
                        time.sleep(0.01)
                    raise KeyError
            await asyncio.sleep(0.01)

    asyncio.run(main())


def test_cancellation_from_outside_stays_a_cancellation():
    async def main():
        memory = Memory(3)
        async with AsyncRedlock(memory) as locks:

            async def body():
                async with locks.lock("outside"):
                    await asyncio.sleep(30)

            task = asyncio.create_task(body())
            await asyncio.sleep(0.2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await locks.status("outside")).verdict == "free"

    asyncio.run(main())


@pytest.mark.skipif(sys.version_info < (3, 11), reason="NOT RUN: asyncio.timeout came with Python 3.11")
def test_timeout_around_a_body_stays_a_timeout():
    async def main():
        async with AsyncRedlock.in_memory() as locks:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1), locks.lock("timed"):
                    await asyncio.sleep(30)
            with pytest.raises(TimeoutError):
                async with locks.lock("timed"), asyncio.timeout(0.1):
                    await asyncio.sleep(30)

    asyncio.run(main())


def test_many_tasks_take_turns(servers):
    async def main():
        count = 0
        async with AsyncRedlock(servers.urls, **OPTIONS) as redlock:
            scope = redlock.lock("turns", wait=60)

            async def work():
                nonlocal count
                for _ in range(10):
                    async with scope:
                        before = count
                        await asyncio.sleep(0)
                        count = before + 1

            await asyncio.gather(*(work() for _ in range(32)))
        assert count == 320

    asyncio.run(main())


def test_event_loops_leave_no_file_descriptor():
    redlock = AsyncRedlock.in_memory()

    async def cycle():
        async with redlock.lock("loops") as guard:
            return guard.fencing_token

    tokens = [asyncio.run(cycle()) for _ in range(20)]
    assert tokens == sorted(set(tokens))
    gc.collect()
    before = len(os.listdir("/dev/fd"))
    for _ in range(20):
        asyncio.run(cycle())
    gc.collect()
    assert len(os.listdir("/dev/fd")) <= before + 3


def test_lock_that_is_acquired_for_a_loop_that_has_ended_is_released():
    memory = Memory(3)
    redlock = AsyncRedlock(memory)
    holder = Redlock(memory)
    guard = holder.acquire("left behind")
    loop = asyncio.new_event_loop()
    task = loop.create_task(redlock.acquire("left behind", wait=None))
    loop.run_until_complete(asyncio.sleep(0.1))
    loop.close()
    task._log_destroy_pending = False
    del task, loop
    gc.collect()
    guard.release()
    assert holder.acquire("left behind", wait=5).release()


def test_pending_call_fails_when_the_client_is_closed():
    async def main():
        memory = Memory(3)
        redlock, holder = AsyncRedlock(memory), Redlock(memory)
        guard = holder.acquire("held")
        task = asyncio.create_task(redlock.acquire("held", wait=None))
        await asyncio.sleep(0.1)
        await redlock.close()
        with pytest.raises(ClientClosed):
            await asyncio.wait_for(task, 5)
        guard.release()

    asyncio.run(main())


def test_call_outside_an_event_loop_raises_a_runtime_error():
    coroutine = AsyncRedlock.in_memory().acquire("x")
    with pytest.raises(RuntimeError):
        coroutine.send(None)
