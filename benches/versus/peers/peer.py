"""The peers from PyPI: `pottery` and `aioredlock`. They exchange lines of text with `quorate-bench peers`."""

import asyncio
import json
import sys
import time

TTL = 10.0


class Pottery:
    """pottery.AIORedlock over redis.asyncio."""

    def __init__(self, urls):
        from redis.asyncio import Redis

        self.masters = {Redis.from_url(url) for url in urls}

    async def acquire(self, resource):
        from pottery import AIORedlock

        lock = AIORedlock(key=resource, masters=self.masters, auto_release_time=TTL)
        return lock if await lock.acquire(blocking=False) else None

    async def release(self, lock):
        await lock.release()


class Aioredlock:
    """aioredlock.Aioredlock without its watchdogs, because no other implementation renews locks here."""

    def __init__(self, urls):
        from aioredlock import Aioredlock as Manager

        self.manager = Manager(urls, retry_count=3, internal_lock_timeout=TTL)

    async def acquire(self, resource):
        return await self.manager.lock(resource, lock_timeout=TTL)

    async def release(self, lock):
        await self.manager.unlock(lock)


async def alone(peer, name, cycles):
    acquire, release, failed = [], [], 0
    for n in range(cycles):
        started = time.perf_counter_ns()
        try:
            lock = await peer.acquire(f"{name}:alone:{n % 64}")
            if lock is None:
                failed += 1
                continue
            acquired = time.perf_counter_ns()
            await peer.release(lock)
        except Exception:
            failed += 1
            continue
        acquire.append((acquired - started) // 1000)
        release.append((time.perf_counter_ns() - acquired) // 1000)
    return {"acquire": acquire, "release": release, "failed": failed}


async def burst(peer, name, tasks, ms):
    cpu, started = time.process_time(), time.perf_counter()
    seen = {"cycles": 0, "failed": 0}

    async def work(task):
        while time.perf_counter() - started < ms / 1000:
            try:
                lock = await peer.acquire(f"{name}:burst:{task}")
                if lock is None:
                    seen["failed"] += 1
                    continue
                await peer.release(lock)
                seen["cycles"] += 1
            except Exception:
                seen["failed"] += 1

    await asyncio.gather(*(work(task) for task in range(tasks)))
    seen["seconds"] = time.perf_counter() - started
    seen["cpu"] = time.process_time() - cpu
    return seen


async def main():
    name, urls = sys.argv[1], sys.argv[2].split(",")
    peer = {"pottery": Pottery, "aioredlock": Aioredlock}[name](urls)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        what, *numbers = line.split()
        numbers = [int(n) for n in numbers]
        run = alone if what == "alone" else burst
        print(json.dumps(await run(peer, name, *numbers)), flush=True)


asyncio.run(main())
