"""The programs in which the package runs: other event loops, and the workers of task queues."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from conftest import OPTIONS, run_program

from quorate import Redlock


def test_uvloop_runs_all_calls(servers):
    pytest.importorskip("uvloop", reason="NOT RUN: uvloop is not installed")
    process = run_program(
        servers,
        """
        import asyncio, gc, uvloop
        async def main():
            async with quorate.AsyncRedlock(URLS, **OPTIONS) as redlock:
                async with redlock.lock("uvloop") as guard:
                    assert await redlock.try_acquire("uvloop") is None
                for number in range(200):
                    task = asyncio.ensure_future(redlock.acquire(f"uvloop:{number % 5}", wait=None))
                    await asyncio.sleep(0.0005 * (number % 5))
                    task.cancel()
                    try:
                        await (await task).release()
                    except asyncio.CancelledError:
                        pass
                try:
                    async with redlock.lock("uvloop", ttl=1):
                        await redlock.break_lock("uvloop")
                        await asyncio.sleep(30)
                except quorate.LockLost:
                    print("lost")
        for _ in range(3):
            loop = uvloop.new_event_loop()
            loop.run_until_complete(main())
            loop.close()
        """,
    )
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0 and out == "lost\n" * 3, (out, errors)
    assert servers.remaining_keys("uvloop") == []


def test_greenlets_wait_in_the_thread_pool_of_gevent(servers):
    """A wait in a greenlet stops the hub, so the greenlet that holds the lock cannot release it."""
    pytest.importorskip("gevent", reason="NOT RUN: gevent is not installed")
    process = run_program(
        servers,
        """
        from gevent import monkey
        monkey.patch_all()
        import gevent
        redlock = quorate.Redlock(URLS, **OPTIONS)
        steps = []

        def hold(acquire):
            with acquire():
                steps.append("held")
                gevent.sleep(0.2)
                steps.append("ends")

        def wait(acquire):
            try:
                with acquire():
                    steps.append("acquired")
            except quorate.LockHeld as error:
                steps.append(f"held here: {error.held_here}")

        def in_the_hub():
            return redlock.acquire("greenlets", wait=0.5)

        def in_the_pool():
            return gevent.get_hub().threadpool.apply(redlock.acquire, ("greenlets",), {"wait": 30})

        for acquire in (in_the_hub, in_the_pool):
            first = gevent.spawn(hold, acquire)
            while not steps:
                gevent.sleep(0.01)
            gevent.joinall([first, gevent.spawn(wait, acquire)], raise_error=True)
            print(*steps, sep=", ")
            steps.clear()

        # By default, 10 greenlets can wait at a time.
        pool = gevent.get_hub().threadpool
        assert pool.maxsize == 10
        pool.maxsize = 50
        with redlock.lock("greenlets"):
            waiting = [gevent.spawn(in_the_pool) for _ in range(20)]
            while len(pool) < 20:
                gevent.sleep(0.01)
        for greenlet in waiting:
            greenlet.kill()
        time.sleep(0.5)

        # A greenlet that stops to wait drops the guard that comes later.
        with redlock.lock("greenlets") as guard:
            with gevent.Timeout(0.1, False):
                in_the_pool()
                print("never printed")
        time.sleep(0.5)
        assert redlock.acquire("greenlets", wait=10).release()
        """,
    )
    out, errors = process.communicate(timeout=60)
    assert out == "held, held here: True, ends\nheld, ends, acquired\n", (out, errors)
    assert "never released" in errors and process.returncode == 0, errors


def test_messages_stop_no_greenlet(servers):
    """After `monkey.patch_all`, the thread that hands over messages is a greenlet."""
    pytest.importorskip("gevent", reason="NOT RUN: gevent is not installed")
    process = run_program(
        servers,
        """
        from gevent import monkey
        monkey.patch_all()
        import gevent, logging
        logging.basicConfig(format="%(name)s %(levelname)s %(message)s")
        logging.getLogger("quorate").setLevel(logging.DEBUG)
        quorate.log_to_python(logging.DEBUG)
        for name in ("first", "second"):
            with quorate.Redlock(URLS, **OPTIONS) as redlock, redlock.lock(name):
                gevent.sleep(0.2)
        print("ends")
        """,
    )
    try:
        out, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert out == "ends\n" and process.returncode == 0, errors
    assert errors.count("quorate DEBUG lock acquired") == 2, errors


TASKS = """
import os, pathlib, time
from celery import Celery
from quorate import Redlock

app = Celery("tasks", broker=os.environ["BROKER"], backend=os.environ["BROKER"])
redlock = Redlock(os.environ["URLS"].split(","), restart_guard="off", node_timeout=0.25, ttl=3)
# Starts the thread in the parent of the workers.
with redlock.lock("imported", wait=30):
    pass

@app.task(name="work")
def work(number):
    with redlock.lock("task", wait=60) as guard:
        return [os.getpid(), guard.is_valid()]

@app.task(name="hold")
def hold():
    with redlock.lock("task", wait=60):
        pathlib.Path("holder.new").write_text(str(os.getpid()))
        os.rename("holder.new", "holder")
        time.sleep(60)
"""


def test_celery_workers_use_the_redlock_of_their_parent(servers, tmp_path):
    celery = pytest.importorskip("celery", reason="NOT RUN: celery is not installed")
    pytest.importorskip("redis", reason="NOT RUN: redis-py, the broker of this test, is not installed")
    (tmp_path / "tasks.py").write_text(TASKS)
    broker = f"redis://127.0.0.1:{servers.ports[0]}/9"
    environment = {**os.environ, "URLS": ",".join(servers.urls), "BROKER": broker}
    command = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--pool", "prefork", "--concurrency", "3"]
    # A worker ends after some tasks, and its parent forks another.
    command += ["--max-tasks-per-child", "5"]
    with open(tmp_path / "log", "wb") as log:
        worker = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
    try:
        app = celery.Celery("tasks", broker=broker, backend=broker)
        results = [app.send_task("work", [number]).get(timeout=60) for number in range(5)]
        pending = [app.send_task("work", [number]) for number in range(30)]
        results += [result.get(timeout=60) for result in pending]
        # Tasks wait for a lock whose holder is killed.
        app.send_task("hold")
        end = time.monotonic() + 60
        while not (tmp_path / "holder").exists() and time.monotonic() < end:
            time.sleep(0.05)
        killed = int((tmp_path / "holder").read_text())
        pending = [app.send_task("work", [number]) for number in range(20)]
        os.kill(killed, signal.SIGKILL)
        results += [result.get(timeout=60) for result in pending]
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(30)
    assert len(results) == 55 and all(valid for _, valid in results), (tmp_path / "log").read_text()
    pids = {pid for pid, _ in results}
    assert worker.pid not in pids and len(pids) > 3
    assert killed not in {pid for pid, _ in results[35:]}
    with Redlock(servers.urls, **OPTIONS) as redlock:
        redlock.acquire("task", wait=15).release()


def resident_kilobytes() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="NOT RUN: this system has no /proc/self/status")
def test_memory_does_not_grow_with_the_number_of_locks():
    import asyncio

    from quorate import AsyncRedlock, Memory

    memory = Memory(3)
    redlock, locks = Redlock(memory), AsyncRedlock(memory)

    def cycles(count: int) -> None:
        for _ in range(count):
            with redlock.lock("cycle"):
                pass

    async def async_cycles(count: int) -> None:
        for _ in range(count):
            async with locks.lock("cycle", wait=30):
                pass
            task = asyncio.ensure_future(locks.acquire("cycle", wait=30))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    cycles(1500)
    asyncio.run(async_cycles(1000))
    before = resident_kilobytes()
    cycles(4000)
    asyncio.run(async_cycles(2000))
    assert resident_kilobytes() - before < 4096
