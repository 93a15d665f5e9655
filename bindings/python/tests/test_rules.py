"""The rules that the package keeps, whatever a program does: renewal, interrupts, ends, collected guards, logs."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import signal
import subprocess
import sys
import time

import pytest
from conftest import OPTIONS, run_program

import quorate
from quorate import AsyncRedlock, Redlock

# Rule 1: renewal needs neither the interpreter nor the event loop.


def test_thread_that_keeps_the_interpreter_for_four_ttls_loses_no_lock(redlock):
    with redlock.lock("interpreter", ttl=1) as guard:
        ctypes.PyDLL(None).usleep(4_000_000)
        assert guard.is_valid()
        assert redlock.status("interpreter").verdict == "held"


def test_event_loop_that_is_blocked_for_four_ttls_loses_no_lock(servers):
    async def main():
        async with AsyncRedlock(servers.urls, **OPTIONS) as redlock:
            async with redlock.lock("event loop", ttl=1) as guard:
                time.sleep(4)
                assert guard.is_valid()
                await asyncio.sleep(0)
            assert guard.lost == "released"

    asyncio.run(main())


# Rule 2: a wait can be ended, and leaves nothing.


def test_ctrl_c_ends_a_wait_and_leaves_no_key(servers, redlock):
    with redlock.lock("ctrl-c"):
        own_keys = servers.keys_of_holder("ctrl-c")
        process = run_program(
            servers,
            """
            redlock = quorate.Redlock(URLS, **OPTIONS)
            print("waits", flush=True)
            try:
                redlock.acquire("ctrl-c", wait=None)
            except KeyboardInterrupt:
                print("interrupted", flush=True)
            """,
        )
        assert process.stdout.readline() == "waits\n"
        end = time.monotonic() + 10
        while len(servers.keys("ctrl-c")) <= own_keys and time.monotonic() < end:
            time.sleep(0.02)
        assert len(servers.keys("ctrl-c")) > own_keys
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        # 50 ms is the interval of the checks. The rest is for a busy machine.
        assert time.monotonic() - began < 1
        assert process.wait(10) == 0
        assert len(servers.keys("ctrl-c")) == own_keys
    assert servers.remaining_keys("ctrl-c") == []


def test_ctrl_c_ends_asyncio_run(servers, redlock):
    with redlock.lock("ctrl-c"):
        own_keys = servers.keys_of_holder("ctrl-c")
        process = run_program(
            servers,
            """
            import asyncio
            async def main():
                redlock = quorate.AsyncRedlock(URLS, **OPTIONS)
                print("waits", flush=True)
                await redlock.acquire("ctrl-c", wait=None)
            try:
                asyncio.run(main())
            except KeyboardInterrupt:
                print("interrupted", flush=True)
            """,
        )
        assert process.stdout.readline() == "waits\n"
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        assert process.wait(10) == 0
        assert len(servers.keys("ctrl-c")) == own_keys


def test_other_threads_run_while_one_waits(redlock):
    import threading

    caught = []

    def wait() -> None:
        try:
            redlock.acquire("held", wait=0.5)
        except quorate.LockHeld as error:
            caught.append(error)

    with redlock.lock("held"):
        thread = threading.Thread(target=wait)
        thread.start()
        steps = 0
        while thread.is_alive():
            steps += 1
        assert steps > 1000 and caught


# Rule 4: nothing is lost silently, and nothing keeps the process.


def test_lock_that_is_held_at_the_end_is_released_with_a_warning(servers):
    for end in ("", "raise SystemExit(3)", "raise KeyError"):
        process = run_program(
            servers,
            f"""
            redlock = quorate.Redlock(URLS, **dict(OPTIONS, ttl=20))
            guard = redlock.acquire("at the end")
            print("held", flush=True)
            {end}
            """,
        )
        out, errors = process.communicate(timeout=20)
        assert out == "held\n", errors
        assert "1 lock(s) were still held" in errors
        assert servers.remaining_keys("at the end") == []


def test_idle_client_does_not_keep_the_process(servers):
    process = run_program(
        servers,
        """
        redlock = quorate.Redlock(URLS, **OPTIONS)
        with redlock.lock("ended"):
            pass
        began = time.monotonic()
        """,
    )
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 0 and "Warning" not in errors, errors


def test_collected_guard_is_released_with_a_warning(servers, redlock):
    with pytest.warns(ResourceWarning, match="never released"):
        redlock.acquire("forgotten")
        gc.collect()
    assert servers.remaining_keys("forgotten") == []


def test_collected_async_guard_is_released_with_a_warning(servers):
    async def main():
        redlock = AsyncRedlock(servers.urls, **OPTIONS)
        await redlock.acquire("forgotten")
        gc.collect()
        await redlock.flush()
        await redlock.close()

    with pytest.warns(ResourceWarning, match="never released"):
        asyncio.run(main())
    assert servers.remaining_keys("forgotten") == []


def test_closed_client_releases_its_locks_with_a_warning(servers):
    redlock = Redlock(servers.urls, **OPTIONS)
    guard = redlock.acquire("closed")
    with pytest.warns(ResourceWarning, match="still held when the Redlock was closed"):
        redlock.close()
    assert guard.lost == "released" and not guard.is_valid() and guard.release() is False
    assert servers.remaining_keys("closed") == []
    with redlock.lock("closed"):
        pass
    redlock.close()


def test_killed_process_leaves_its_lock_to_the_ttl(servers, redlock):
    process = run_program(
        servers,
        """
        redlock = quorate.Redlock(URLS, **dict(OPTIONS, ttl=1))
        guard = redlock.acquire("killed")
        print("held", flush=True)
        time.sleep(60)
        """,
    )
    assert process.stdout.readline() == "held\n"
    process.kill()
    process.wait()
    process.stdout.close()
    process.stderr.close()
    assert redlock.try_acquire("killed") is None
    with redlock.lock("killed", wait=10):
        pass


# Rule 6: logs wait for nobody.


def test_messages_arrive_at_the_logger(servers):
    process = run_program(
        servers,
        """
        import logging
        logging.basicConfig(format="%(name)s %(levelname)s %(message)s")
        logging.getLogger("quorate").setLevel(logging.DEBUG)
        quorate.log_to_python(logging.DEBUG)
        quorate.log_to_python(logging.DEBUG)
        redlock = quorate.Redlock(URLS[:2] + ["redis://127.0.0.1:1"], **OPTIONS)
        with redlock.lock("logged"):
            pass
        """,
    )
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 0, errors
    assert "quorate DEBUG lock acquired fencing_token=" in errors and "quorate WARNING" in errors, errors


def test_handler_that_blocks_delays_no_lock_and_messages_are_counted(servers):
    process = run_program(
        servers,
        """
        import logging, threading
        go_on, texts = threading.Event(), []
        class Handler(logging.Handler):
            def emit(self, record):
                go_on.wait()
                texts.append(record.getMessage())
        logging.getLogger("quorate").addHandler(Handler())
        logging.getLogger("quorate").setLevel(1)
        logging.getLogger("quorate").propagate = False
        quorate.log_to_python(1)
        redlock = quorate.Redlock(URLS, **OPTIONS)
        began = time.monotonic()
        with redlock.lock("kept", ttl=1) as kept:
            for _ in range(700):
                with redlock.lock("logged"):
                    pass
            assert kept.is_valid()
        go_on.set()
        end = time.monotonic() + 10
        while not any("left out" in text for text in texts) and time.monotonic() < end:
            time.sleep(0.05)
        left_out = [text for text in texts if "left out" in text]
        assert left_out and len(texts) < 3000, (left_out, len(texts))
        print("counted")
        """,
    )
    out, errors = process.communicate(timeout=60)
    assert out == "counted\n", errors


def test_import_starts_no_thread_and_reads_no_logger():
    program = (
        "import threading, os, quorate\n"
        "quorate.Redlock('redis://127.0.0.1:1'); quorate.AsyncRedlock('redis://127.0.0.1:1')\n"
        "assert threading.active_count() == 1\n"
        "tasks = '/proc/self/task'\n"
        "assert not os.path.exists(tasks) or len(os.listdir(tasks)) == 1\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
