"""The programs in which the package runs: other event loops, and the workers of task queues."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

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


TASKS = """
import os
from celery import Celery
from quorate import Redlock

app = Celery("tasks", broker=os.environ["BROKER"], backend=os.environ["BROKER"])
redlock = Redlock(os.environ["URLS"].split(","), restart_guard="off", node_timeout=0.25)
# Starts the thread in the parent of the workers.
with redlock.lock("imported", wait=30):
    pass

@app.task(name="work")
def work(number):
    with redlock.lock("task", wait=60) as guard:
        return [os.getpid(), guard.is_valid()]
"""


def test_celery_workers_use_the_redlock_of_their_parent(servers, tmp_path):
    celery = pytest.importorskip("celery", reason="NOT RUN: celery is not installed")
    pytest.importorskip("redis", reason="NOT RUN: redis-py, the broker of this test, is not installed")
    (tmp_path / "tasks.py").write_text(TASKS)
    broker = f"redis://127.0.0.1:{servers.ports[0]}/9"
    environment = {**os.environ, "URLS": ",".join(servers.urls), "BROKER": broker}
    command = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--pool", "prefork", "--concurrency", "3"]
    with open(tmp_path / "log", "wb") as log:
        worker = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
    try:
        app = celery.Celery("tasks", broker=broker, backend=broker)
        results = [app.send_task("work", [number]).get(timeout=60) for number in range(5)]
        pending = [app.send_task("work", [number]) for number in range(30)]
        results += [result.get(timeout=60) for result in pending]
        pids = {pid for pid, _ in results}
        os.kill(min(pids), signal.SIGKILL)
        results += [app.send_task("work", [number]).get(timeout=60) for number in range(5)]
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(30)
    assert len(results) == 40 and all(valid for _, valid in results), (tmp_path / "log").read_text()
    assert worker.pid not in pids and len(pids) > 1
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
