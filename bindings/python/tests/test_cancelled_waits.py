"""Thousands of waits that end without the lock leave no key on the masters, while the lock is still held."""

from __future__ import annotations

import asyncio
import random
import threading
import time

import pytest
from conftest import OPTIONS, run_program

import quorate
from quorate import AsyncRedlock, Redlock
from quorate._event_loop import replies_of

WAITS = 10_000

# The keys that a wait leaves behind would expire after the `ttl`, so it is longer than these tests.
LONG = {**OPTIONS, "ttl": 30}


def names_of(kind: str, count: int) -> list[str]:
    return [f"{kind}:{number}" for number in range(count)]


@pytest.fixture
def held(servers):
    """Holds locks until the end of the test. Calling it returns the keys on all servers before any wait."""
    holder = Redlock(servers.urls, **LONG)
    guards: list[quorate.Guard] = []

    def hold(names: list[str]) -> list[tuple[int, bytes]]:
        guards.extend(holder.acquire(name) for name in names)
        holder.flush()
        return servers.keys(names[0].split(":")[0])

    yield hold
    for guard in guards:
        guard.release()
    holder.close()


def new_keys(servers, kind: str, before: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """The keys that were not there before the waits, after the time that their removal may take."""
    end = time.monotonic() + 5
    while (left := [key for key in servers.keys(kind) if key not in before]) and time.monotonic() < end:
        time.sleep(0.02)
    return left


def test_ten_thousand_cancelled_waits_of_tasks_leave_no_key(servers, held):
    names = names_of("tasks", 250)
    before = held(names)

    async def main() -> None:
        waiter = AsyncRedlock(servers.urls, **LONG)
        for number in range(WAITS // len(names)):
            tasks = [asyncio.ensure_future(waiter.acquire(name, wait=None)) for name in names]
            if number == 0:
                # The other rounds are cancelled at any time. These waits have places in the queues of the masters.
                end = time.monotonic() + 20
                while len(servers.keys("tasks")) < 2 * len(before) and time.monotonic() < end:
                    await asyncio.sleep(0.02)
                assert len(servers.keys("tasks")) >= 2 * len(before)
            else:
                await asyncio.sleep(random.random() * 0.15)
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(result, asyncio.CancelledError) for result in results)
        assert new_keys(servers, "tasks", before) == []
        assert replies_of(asyncio.get_running_loop()).bridge.running_calls() == 0
        await waiter.close()

    asyncio.run(main())


def test_ten_thousand_waits_of_threads_that_end_leave_no_key(servers, held):
    names = names_of("threads", 50)
    before = held(names)
    waiter = Redlock(servers.urls, **LONG)
    ended = []

    def wait(name: str) -> None:
        for _ in range(WAITS // len(names)):
            try:
                waiter.acquire(name, wait=random.uniform(0.001, 0.08))
            except (quorate.LockHeld, quorate.NoQuorum):
                # On a busy machine, too few masters answer within the shortest of these times.
                ended.append(name)

    threads = [threading.Thread(target=wait, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    seen = 0
    while any(thread.is_alive() for thread in threads):
        seen = max(seen, len(servers.keys("threads")))
        time.sleep(0.05)
    assert len(ended) == WAITS
    # Waits had places in the queues of the masters.
    assert seen > len(before)
    assert new_keys(servers, "threads", before) == []
    waiter.close()


def test_waits_that_signals_interrupt_leave_no_key(servers, held):
    """A signal ends the wait of the main thread at any time: before the request is sent, in the queue, or later."""
    processes_at_a_time, waits = 8, 40
    names = names_of("signals", processes_at_a_time)
    before = held(names)
    processes = [
        run_program(
            servers,
            f"""
            import random, signal
            class Interrupt(Exception): pass
            def interrupt(*_): raise Interrupt
            signal.signal(signal.SIGALRM, interrupt)
            redlock = quorate.Redlock(URLS, **dict(OPTIONS, ttl=30))
            redlock.inspect()
            ended = 0
            for _ in range({waits}):
                try:
                    signal.setitimer(signal.ITIMER_REAL, random.uniform(0.001, 0.12))
                    redlock.acquire({name!r}, wait=None)
                except Interrupt:
                    ended += 1
            print(ended, flush=True)
            time.sleep(60)
            """,
        )
        for name in names
    ]
    try:
        assert [process.stdout.readline() for process in processes] == [f"{waits}\n"] * len(processes)
        assert new_keys(servers, "signals", before) == []
    finally:
        for process in processes:
            process.kill()
            process.communicate()
