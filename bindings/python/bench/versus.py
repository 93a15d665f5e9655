"""Compares this package with pottery, redlock-py and redis-py, on five masters of this machine: `scripts/python bench`.

The contenders take turns in rounds, and each figure is the median of the rounds. ROUNDS=3 SECONDS=3 CYCLES=100000
change the number of the rounds, the length of each measurement, and the cycles of the measurement of memory. A cycle is
an acquire and a release of one lock. QUORATE_BLOCKING is the program `bindings/common/examples/blocking_cycle.rs`.

The other libraries get what is best for them: connections that stay open, and one lock object for all cycles. Of all
contenders only quorate renews its locks, has fencing tokens, and keeps the order of waiters.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from quorate import AsyncRedlock, Redlock

ROUNDS = int(os.environ.get("ROUNDS", "3"))
SECONDS = float(os.environ.get("SECONDS", "3"))
CYCLES = int(os.environ.get("CYCLES", "100000"))
MASTERS = 5
TASKS = 64
TTL = 10
INTERRUPTS = 30

not_run: list[str] = []


def missing(row: str, reason: str) -> None:
    not_run.append(row)
    print(f"NOT RUN: {row}: {reason}", flush=True)


class Masters:
    """Servers on free ports."""

    def __init__(self, count: int) -> None:
        server = shutil.which("redis-server") or shutil.which("valkey-server")
        if server is None:
            sys.exit("NOT RUN: neither redis-server nor valkey-server is installed")
        self.folder = tempfile.mkdtemp(prefix="quorate-bench-")
        self.ports: list[int] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        options = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", self.folder]
        for _ in range(count):
            with socket.socket() as listener:
                listener.bind(("127.0.0.1", 0))
                port = listener.getsockname()[1]
            self.ports.append(port)
            command = [server, "--port", str(port), *options]
            self.processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        self.urls = [f"redis://127.0.0.1:{port}" for port in self.ports]
        for port in self.ports:
            self._wait_for(port)

    def _wait_for(self, port: int) -> None:
        for _ in range(500):
            try:
                return socket.create_connection(("127.0.0.1", port), 0.2).close()
            except OSError:
                time.sleep(0.02)
        raise RuntimeError("a server did not start")

    def close(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def number_of_keys(self, name: bytes) -> int:
        """The keys of a lock and its waiters on all servers, without counters and notes, which stay longer."""
        lasting = (b"quorate:ticket:", b"quorate:note:", b"quorate:fence:", b"quorate:fencing:")
        count = 0
        for port in self.ports:
            with socket.create_connection(("127.0.0.1", port), 5) as connection:
                connection.sendall(b"KEYS *\r\n")
                stream = connection.makefile("rb")
                for _ in range(int(stream.readline()[1:])):
                    key = stream.read(int(stream.readline()[1:]) + 2)
                    count += name in key and not key.startswith(lasting)
        return count


def cycle_time(cycle: Callable[[], None]) -> float:
    """Median time of a cycle of one client, in microseconds."""
    times = []
    end = time.perf_counter() + SECONDS
    while (start := time.perf_counter()) < end:
        cycle()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


async def async_cycle_time(cycle: Callable[[], Awaitable[None]]) -> float:
    times = []
    end = time.perf_counter() + SECONDS
    while (start := time.perf_counter()) < end:
        await cycle()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


async def rate(cycle_of: Callable[[int], Callable[[], Awaitable[None]]]) -> float:
    """Locks a second of 64 tasks, each with a lock of its own."""
    locks = 0
    start = time.perf_counter()

    async def task(cycle: Callable[[], Awaitable[None]]) -> None:
        nonlocal locks
        while time.perf_counter() - start < SECONDS:
            await cycle()
            locks += 1

    await asyncio.gather(*(task(cycle_of(number)) for number in range(TASKS)))
    return locks / (time.perf_counter() - start)


class Blocking:
    """The core's API without async, in a process of its own."""

    def __init__(self, program: str, urls: list[str]) -> None:
        self.process = subprocess.Popen([program, *urls], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def cycle_time(self) -> float:
        assert self.process.stdin and self.process.stdout
        print(SECONDS, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def installed(module: str, row: str) -> bool:
    try:
        importlib.import_module(module)
    except ImportError as error:
        missing(row, f"{error}")
        return False
    return True


def thread_contenders(masters: Masters, redlock: Redlock) -> dict[str, Callable[[], None]]:
    """A cycle of each library for threads."""

    def own() -> None:
        with redlock.lock("one"):
            pass

    cycles: dict[str, Callable[[], None]] = {"quorate": own}
    if installed("pottery", "pottery.Redlock"):
        import pottery
        import redis

        clients = {redis.Redis.from_url(url) for url in masters.urls}
        lock = pottery.Redlock(key="pottery", masters=clients, auto_release_time=TTL)

        def with_pottery() -> None:
            with lock:
                pass

        cycles["pottery"] = with_pottery
    if installed("redlock", "redlock-py"):
        import redlock as redlock_py

        manager = redlock_py.Redlock([{"host": "127.0.0.1", "port": port} for port in masters.ports])

        def with_redlock_py() -> None:
            held = manager.lock("redlock-py", TTL * 1000)
            assert held
            manager.unlock(held)

        cycles["redlock-py"] = with_redlock_py
    if installed("redis", "redis-py's Lock on one server"):
        import redis

        single = redis.Redis.from_url(masters.urls[0]).lock("redis-py", timeout=TTL)

        def with_one_server() -> None:
            with single:
                pass

        cycles["redis-py, one server"] = with_one_server
    return cycles


async def measure_async(masters: Masters, results: dict[str, list[float]]) -> None:
    """One round of one client and of 64 tasks, with each library for asyncio."""
    async with AsyncRedlock(masters.urls, restart_guard="off") as redlock:

        def own(number: int) -> Callable[[], Awaitable[None]]:
            async def cycle() -> None:
                async with redlock.lock(f"task-{number}"):
                    pass

            return cycle

        contenders = {"quorate": own}
        clients = []
        try:
            from pottery import AIORedlock
            from redis.asyncio import Redis

            clients = [Redis.from_url(url) for url in masters.urls]

            def with_pottery(number: int) -> Callable[[], Awaitable[None]]:
                lock = AIORedlock(key=f"pottery-{number}", masters=set(clients), auto_release_time=TTL)

                async def cycle() -> None:
                    async with lock:
                        pass

                return cycle

            contenders["pottery"] = with_pottery
        except ImportError:
            pass
        for name, cycle_of in contenders.items():
            for _ in range(50):
                await cycle_of(0)()
            results.setdefault(f"asyncio {name}", []).append(await async_cycle_time(cycle_of(0)))
            results.setdefault(f"tasks {name}", []).append(await rate(cycle_of))
        for client in clients:
            await client.aclose()


WAITER = """
import sys, quorate
redlock = quorate.Redlock(sys.argv[1:], restart_guard="off")
while True:
    try:
        print("waits", flush=True)
        redlock.acquire("ctrl-c", wait=None)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        sys.stdin.readline()
"""


def interrupts(masters: Masters, redlock: Redlock) -> tuple[list[float], int]:
    """Milliseconds from Ctrl-C to KeyboardInterrupt in a process that waits for a lock, and the largest number of keys
    that were left 100 ms later."""
    delays = []
    left = []
    with redlock.lock("ctrl-c"):
        time.sleep(0.2)
        own_keys = masters.number_of_keys(b"ctrl-c")
        command = [sys.executable, "-c", WAITER, *masters.urls]
        waiter = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert waiter.stdin and waiter.stdout
        try:
            for _ in range(INTERRUPTS):
                assert waiter.stdout.readline() == "waits\n"
                # Long enough for a place in the queue, and at any time between two looks for signals.
                time.sleep(0.25 + random.random() / 10)
                assert masters.number_of_keys(b"ctrl-c") > own_keys
                start = time.perf_counter()
                waiter.send_signal(signal.SIGINT)
                assert waiter.stdout.readline() == "interrupted\n"
                delays.append((time.perf_counter() - start) * 1000)
                time.sleep(0.1)
                left.append(masters.number_of_keys(b"ctrl-c") - own_keys)
                print(file=waiter.stdin, flush=True)
        finally:
            waiter.kill()
            waiter.wait()
    return delays, max(left)


GROWTH = """
import asyncio, sys, quorate

def resident() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

def threads(count: int) -> None:
    for _ in range(count):
        with redlock.lock("memory"):
            pass

async def tasks(count: int) -> None:
    async def task(number: int) -> None:
        for _ in range(count // 64):
            async with locks.lock(f"memory-{number}"):
                pass
    await asyncio.gather(*(task(number) for number in range(64)))

cycles, urls = int(sys.argv[1]), sys.argv[2:]
redlock = quorate.Redlock(urls, restart_guard="off")
locks = quorate.AsyncRedlock(urls, restart_guard="off")
threads(5000)
before = resident()
threads(cycles)
print(resident() - before)
asyncio.run(tasks(20000))
before = resident()
asyncio.run(tasks(cycles))
print(resident() - before)
"""


def growth(masters: Masters) -> list[int]:
    """By how many kilobytes the memory of a process grows: cycles of one thread, cycles of 64 tasks."""
    command = [sys.executable, "-c", GROWTH, str(CYCLES), *masters.urls]
    return [int(line) for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()]


def show(row: str, own: float, name: str, other: float, unit: str, goal: str) -> None:
    print(f"{row}: quorate {own:.0f} {unit}, {name} {other:.0f} {unit}, ratio {own / other:.2f} (goal: {goal})")


def main() -> None:
    logging.disable()
    masters = Masters(MASTERS)
    try:
        run(masters)
    finally:
        masters.close()


def run(masters: Masters) -> None:
    redlock = Redlock(masters.urls, restart_guard="off")
    cycles = thread_contenders(masters, redlock)
    program = os.environ.get("QUORATE_BLOCKING", "")
    blocking = Blocking(program, masters.urls) if Path(program).is_file() else None
    if blocking is None:
        missing("the core's `blocking`", "QUORATE_BLOCKING does not name its program")
    results: dict[str, list[float]] = {}

    for cycle in cycles.values():
        for _ in range(200):
            cycle()
    for _ in range(ROUNDS):
        for name, cycle in cycles.items():
            results.setdefault(name, []).append(cycle_time(cycle))
        if blocking:
            results.setdefault("blocking", []).append(blocking.cycle_time())
        stopped = masters.processes[-1]
        stopped.send_signal(signal.SIGSTOP)
        # The client waits for the stopped master until its `node_timeout`, and then leaves it out.
        for _ in range(200):
            cycles["quorate"]()
        results.setdefault("stopped", []).append(cycle_time(cycles["quorate"]))
        stopped.send_signal(signal.SIGCONT)
        time.sleep(2)
        asyncio.run(measure_async(masters, results))
    if blocking:
        blocking.close()

    figures = {name: statistics.median(values) for name, values in results.items()}
    print(f"{MASTERS} masters, medians of {ROUNDS} rounds of {SECONDS:g} s")
    for name, text, goal in [
        ("blocking", "the core's `blocking`", "at most 1.3"),
        ("pottery", "pottery", "at most 0.1"),
        ("redlock-py", "redlock-py", "at most 0.25"),
        ("redis-py, one server", "redis-py's Lock on ONE server, without a quorum", "none"),
    ]:
        if name in figures:
            show("one client, p50 of a cycle", figures["quorate"], text, figures[name], "us", goal)
    if "asyncio pottery" in figures:
        row = "asyncio, one client, p50 of a cycle"
        show(row, figures["asyncio quorate"], "pottery", figures["asyncio pottery"], "us", "at most 0.5")
        row = f"asyncio, {TASKS} tasks"
        show(row, figures["tasks quorate"], "pottery", figures["tasks pottery"], "locks/s", "at least 10")
    row = "one of five masters stopped, p50 of a cycle"
    show(row, figures["stopped"], "with all masters", figures["quorate"], "us", "at most 1.2")

    delays, left = interrupts(masters, redlock)
    text = f"median {statistics.median(delays):.0f} ms, largest {max(delays):.0f} ms of {len(delays)}"
    print(f"Ctrl-C to KeyboardInterrupt: {text} (goal: at most 100); keys left: {left} (goal: none)")
    redlock.close()
    if Path("/proc/self/status").exists():
        threads, tasks = growth(masters)
        text = f"{threads / 1024:.1f} MB (one thread), {tasks / 1024:.1f} MB ({TASKS} tasks)"
        print(f"growth of the memory over {CYCLES} cycles: {text} (goal: below 4 MB)")
    else:
        missing("memory", "this system has no /proc/self/status")
    print(f"rows that were not run: {len(not_run)}")


if __name__ == "__main__":
    main()
