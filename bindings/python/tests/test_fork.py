"""Forked processes: they use their own connections, and change nothing of their parent's locks."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import select
import signal
import threading
import time
import traceback
import warnings
from pathlib import Path

import pytest
from conftest import OPTIONS, run_program

import quorate
from quorate import AsyncRedlock, Redlock, _quorate
from quorate._event_loop import replies_of

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")


def in_child(work) -> str:
    """Runs a function in a forked process, and returns the text that it returns, or its traceback."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = work()
        except BaseException:
            text = traceback.format_exc()
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        text = stream.read()
    os.waitpid(child, 0)
    return text


def test_child_changes_nothing_of_the_lock_of_its_parent(redlock):
    guard = redlock.acquire("forked")

    def work() -> str:
        nonlocal guard
        results = [guard.lost, guard.is_valid(), guard.remaining, redlock.try_acquire("forked")]
        with redlock.lock("in the child", wait=5) as inner:
            results.append(inner.is_valid())
        for call in (guard.release, lambda: guard.extend(1), guard.wait_lost):
            try:
                call()
            except quorate.ForkedError:
                results.append("refused")
        with guard:
            pass
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            guard = None
        results.append(len(caught))
        redlock.close()
        return repr(results)

    assert in_child(work) == "['forked', False, 0.0, None, True, 'refused', 'refused', 'refused', 0]"
    time.sleep(2.5)
    assert guard.is_valid() and redlock.status("forked").verdict == "held"
    assert guard.release() is True


def test_block_of_the_parent_that_ends_in_the_child_releases_nothing(redlock):
    with redlock.lock("both") as guard:
        child = os.fork()
        if child == 0:
            try:
                raise SystemExit
            except SystemExit:
                guard.__exit__(None, None, None)
                os._exit(0)
        os.waitpid(child, 0)
        time.sleep(0.5)
        assert redlock.status("both").verdict == "held"
    assert guard.lost == "released"


def test_async_redlock_of_the_parent_works_in_a_child(servers):
    redlock = AsyncRedlock(servers.urls, **OPTIONS)

    async def cycle() -> str:
        async with redlock.lock("async child", wait=10) as guard:
            return str(guard.is_valid())

    async def main() -> str:
        text = await cycle()
        await redlock.close()
        return text

    assert asyncio.run(cycle()) == "True"
    assert in_child(lambda: asyncio.run(main())) == "True"
    assert asyncio.run(main()) == "True"


def test_child_takes_no_reply_of_the_event_loop_of_its_parent(servers):
    async def main():
        redlock = AsyncRedlock(servers.urls, **OPTIONS)
        guard = await redlock.acquire("inherited")
        replies = replies_of(asyncio.get_running_loop())
        status = asyncio.ensure_future(redlock.status("inherited"))
        await asyncio.sleep(0)
        # The event loop stands still until the reply is there, so only the child can read it.
        readable, _, _ = select.select([replies.bridge.fileno()], [], [], 20)
        assert readable

        def work() -> str:
            replies._take()
            replies.bridge.cancel(1)
            replies.bridge.close()
            return repr((replies.bridge.take(), replies.bridge.running_calls()))

        assert in_child(work) == "([], 0)"
        assert (await asyncio.wait_for(status, 20)).verdict == "held"
        assert await asyncio.wait_for(guard.release(), 20) is True
        await redlock.close()

    asyncio.run(main())


def test_call_of_the_parent_is_refused_in_a_child(redlock):
    calls = [redlock._core.status(b"call of the parent") for _ in range(2)]

    def work() -> str:
        results = []
        try:
            calls[0].wait()
        except quorate.ForkedError:
            results.append("refused")
        bridge = _quorate.Bridge()
        id = bridge.start(calls[1], False)
        results += [(number == id, type(error).__name__, value) for number, error, value in bridge.take()]
        return repr(results)

    assert in_child(work) == "['refused', (True, 'ForkedError', None)]"


def test_masters_in_memory_refuse_a_forked_process():
    redlock = Redlock.in_memory()
    with redlock.lock("here"):

        def work() -> str:
            try:
                redlock.acquire("there")
            except quorate.ForkedError as error:
                return str(error)
            return "no error"

        assert "memory" in in_child(work)


def test_pool_of_forked_processes_takes_turns(servers, redlock):
    with redlock.lock("parent"):
        context = multiprocessing.get_context("fork")
        with context.Pool(4, initializer=set_pool_redlock, initargs=(servers.urls,)) as pool:
            assert pool.map(work_in_pool, range(32)) == [True] * 32


pool_redlock: Redlock


def set_pool_redlock(urls: list[str]) -> None:
    global pool_redlock
    pool_redlock = Redlock(urls, **OPTIONS)


def work_in_pool(_: int) -> bool:
    with pool_redlock.lock("pool", wait=60) as guard:
        return guard.is_valid()


def test_spawned_processes_create_a_redlock_because_it_cannot_be_pickled(servers, redlock):
    with redlock.lock("parent") as guard:
        for what in (redlock, AsyncRedlock(servers.urls), guard):
            with pytest.raises(TypeError, match="pickle"):
                pickle.dumps(what)
        context = multiprocessing.get_context("spawn")
        with context.Pool(2, initializer=set_pool_redlock, initargs=(servers.urls,)) as pool:
            assert pool.map(work_in_pool, range(8)) == [True] * 8
        assert guard.is_valid()


def test_redlock_of_the_parent_works_in_a_pool(redlock):
    global inherited_redlock
    inherited_redlock = redlock
    with redlock.lock("parent") as guard:
        with multiprocessing.get_context("fork").Pool(4) as pool:
            assert pool.map(work_with_inherited, range(32)) == [True] * 32
        assert guard.is_valid()


inherited_redlock: Redlock


def work_with_inherited(_: int) -> bool:
    with inherited_redlock.lock("pool", wait=60) as guard:
        return guard.is_valid()


def test_pool_goes_on_after_a_kill_of_a_worker_and_forks_under_load(redlock, tmp_path):
    """A worker that holds the lock of all others is killed. Each worker ends after two tasks, and the pool forks the
    next one while other threads use the same `Redlock`."""
    global inherited_redlock
    inherited_redlock = redlock
    ended, failures = threading.Event(), []

    def busy(number: int) -> None:
        while not ended.is_set():
            try:
                with redlock.lock(f"busy:{number}", wait=30):
                    pass
            except quorate.QuorateError as error:
                failures.append(error.details)

    threads = [threading.Thread(target=busy, args=(number,)) for number in range(2)]
    with redlock.lock("parent") as guard, multiprocessing.get_context("fork").Pool(4, maxtasksperchild=2) as pool:
        for thread in threads:
            thread.start()
        file = tmp_path / "holder"
        pool.apply_async(hold_with_inherited, (file,))
        end = time.monotonic() + 30
        while not file.exists() and time.monotonic() < end:
            time.sleep(0.02)
        killed = int(file.read_text())
        os.kill(killed, signal.SIGKILL)
        pids = pool.map(pid_with_inherited, range(24), chunksize=1)
        ended.set()
        for thread in threads:
            thread.join()
        assert guard.is_valid() and not failures, failures[:3]
    assert killed not in pids and len(set(pids)) >= 12 and os.getpid() not in pids


def hold_with_inherited(file: Path) -> None:
    with inherited_redlock.lock("pool", wait=60):
        file.with_suffix(".new").write_text(str(os.getpid()))
        file.with_suffix(".new").rename(file)
        time.sleep(60)


def pid_with_inherited(_: int) -> int:
    with inherited_redlock.lock("pool", wait=60) as guard:
        assert guard.is_valid()
        return os.getpid()


def test_forks_under_load_neither_hang_nor_lose_a_lock(servers):
    """Forks while other threads acquire and release, with messages switched on."""
    process = run_program(
        servers,
        """
        import logging, threading, warnings
        warnings.simplefilter("ignore")
        logging.getLogger("quorate").setLevel(1)
        logging.getLogger("quorate").addHandler(logging.NullHandler())
        quorate.log_to_python(1)
        redlock = quorate.Redlock(URLS, **dict(OPTIONS, ttl=5))
        ended, failures = threading.Event(), []
        def busy(number):
            while not ended.is_set():
                try:
                    with redlock.lock(f"busy:{number}", wait=30):
                        pass
                except quorate.QuorateError as error:
                    failures.append(error.details)
        threads = [threading.Thread(target=busy, args=(n,)) for n in range(8)]
        [thread.start() for thread in threads]
        with redlock.lock("kept") as kept:
            children = []
            for number in range(60):
                child = os.fork()
                if child == 0:
                    code = 1
                    try:
                        if kept.lost == "forked":
                            with redlock.lock(f"child:{number % 5}", wait=60):
                                code = 0
                            redlock.close()
                    finally:
                        os._exit(code)
                children.append(child)
                if len(children) >= 6:
                    assert os.waitpid(children.pop(0), 0)[1] == 0
            for child in children:
                assert os.waitpid(child, 0)[1] == 0
            assert kept.is_valid()
        ended.set()
        [thread.join() for thread in threads]
        assert not failures, failures[:3]
        print("ok")
        """,
    )
    out, errors = process.communicate(timeout=110)
    assert out == "ok\n", errors
    for name in ("busy:", "child:", "kept"):
        assert servers.remaining_keys(name) == []


def test_messages_arrive_in_a_forked_process(servers):
    process = run_program(
        servers,
        """
        import logging
        logging.basicConfig(format="%(process)d %(message)s")
        logging.getLogger("quorate").setLevel(logging.DEBUG)
        quorate.log_to_python(logging.DEBUG)
        redlock = quorate.Redlock(URLS, **OPTIONS)
        with redlock.lock("parent"):
            pass
        child = os.fork()
        if child == 0:
            with redlock.lock("child"):
                pass
            time.sleep(0.3)
            os._exit(0)
        os.waitpid(child, 0)
        print(child)
        """,
    )
    out, errors = process.communicate(timeout=30)
    assert f"{out.strip()} lock acquired" in errors, errors


def test_child_that_ends_normally_warns_about_its_own_locks_only(servers, redlock):
    process = run_program(
        servers,
        """
        redlock = quorate.Redlock(URLS, **OPTIONS)
        guard = redlock.acquire("of the parent")
        child = os.fork()
        if child == 0:
            sys.exit(0)
        os.waitpid(child, 0)
        time.sleep(0.5)
        print(guard.is_valid(), redlock.status("of the parent").verdict)
        guard.release()
        """,
    )
    out, errors = process.communicate(timeout=30)
    assert out == "True held\n" and "still held" not in errors and "never released" not in errors, (out, errors)
