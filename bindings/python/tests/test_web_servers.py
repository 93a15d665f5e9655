"""Web servers that fork their workers from a parent with a `Redlock`: started, killed and forked under load."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.request import urlopen

import pytest
from conftest import free_port

TTL = 3

# The parent of the workers imports this program, so its `Redlock` has its thread and connections there.
BEGIN = f"""
import asyncio, os, pathlib, time
from quorate import AsyncRedlock, Redlock

URLS = os.environ["URLS"].split(",")
OPTIONS = dict(restart_guard="off", node_timeout=0.25, ttl={TTL})
redlock = Redlock(URLS, **OPTIONS)
kept = redlock.acquire("kept by the parent")

def report(guard):
    return f"{{os.getpid()}} {{guard.is_valid()}} {{kept.lost}}".encode()

def announce_holder(path):
    if path == "/hold":
        pathlib.Path("holder.new").write_text(str(os.getpid()))
        os.rename("holder.new", "holder")
        return True
    return False
"""

THREADS = """
def application(environ, start_response):
    with redlock.lock("request", wait=60) as guard:
        if announce_holder(environ["PATH_INFO"]):
            time.sleep(60)
        body = report(guard)
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [body]
"""

GREENLETS = """
import gevent

def application(environ, start_response):
    pool = gevent.get_hub().threadpool
    with pool.apply(redlock.acquire, ("request",), {"wait": 60}) as guard:
        if announce_holder(environ["PATH_INFO"]):
            gevent.sleep(60)
        gevent.sleep(0.002)
        body = report(guard)
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [body]
"""

TASKS = """
locks = AsyncRedlock(URLS, **OPTIONS)

async def use_in_the_parent():
    async with locks.lock("warm"):
        pass

asyncio.run(use_in_the_parent())

async def application(scope, receive, send):
    assert scope["type"] == "http"
    async with locks.lock("request", wait=60) as guard:
        if announce_holder(scope["path"]):
            await asyncio.sleep(60)
        await asyncio.sleep(0.002)
        body = report(guard)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})
"""


class WebServer:
    """A web server with three workers, which is asked by four clients at a time."""

    def __init__(self, servers, folder: Path, program: str, command: list[str]) -> None:
        self.folder, self.port = folder, free_port()
        (folder / "application.py").write_text(BEGIN + program)
        self.log = folder / "log"
        environment = {**os.environ, "URLS": ",".join(servers.urls)}
        command = [part.replace("PORT", str(self.port)) for part in command]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True
            )

    def ask(self, path: str = "/") -> list[str]:
        """The answer to a request. A killed worker breaks its connections, so the request is sent again."""
        end = time.monotonic() + 60
        while True:
            try:
                with urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as response:
                    return response.read().decode().split()
            except (OSError, http.client.HTTPException) as error:
                if time.monotonic() > end or self.process.poll() is not None:
                    raise AssertionError(self.log.read_text()) from error
                time.sleep(0.05)

    def ask_until(self, is_enough, answers: list[list[str]]) -> None:
        """Asks with four clients at a time, until the answers are enough."""
        failures = []
        end = time.monotonic() + 60

        def client() -> None:
            try:
                while not is_enough() and not failures:
                    assert time.monotonic() < end, (answers, self.log.read_text())
                    answers.append(self.ask())
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=client) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures

    def kill_holder(self) -> int:
        """Kills a worker that holds the lock for which all others wait."""
        holder = self.folder / "holder"

        def hold() -> None:
            # The worker is killed before it answers.
            with contextlib.suppress(OSError, http.client.HTTPException):
                urlopen(f"http://127.0.0.1:{self.port}/hold", timeout=60).close()

        thread = threading.Thread(target=hold)
        thread.start()
        end = time.monotonic() + 60
        while not holder.exists() and time.monotonic() < end:
            time.sleep(0.02)
        pid = int(holder.read_text())
        os.kill(pid, signal.SIGKILL)
        thread.join()
        return pid

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def start(servers, tmp_path):
    started: list[WebServer] = []

    def start(program: str, command: list[str]) -> WebServer:
        started.append(WebServer(servers, tmp_path, program, command))
        return started[-1]

    yield start
    for server in started:
        server.close()


def workers_lose_nothing_but_what_a_killed_worker_held(servers, redlock, server: WebServer) -> None:
    answers: list[list[str]] = []
    # A slow worker starts after its siblings have answered many requests.
    server.ask_until(lambda: len(answers) >= 40 and len({pid for pid, _, _ in answers}) > 1, answers)
    workers = {pid for pid, _, _ in answers}

    # Requests of four clients go on while a worker that holds the lock is killed, and until others were forked.
    killed: list[int] = []
    is_enough = lambda: killed and len({pid for pid, _, _ in answers} - workers) >= 2  # noqa: E731
    load = threading.Thread(target=server.ask_until, args=(is_enough, answers))
    load.start()
    killed.append(server.kill_holder())
    load.join(90)
    assert not load.is_alive(), server.log.read_text()

    later: list[list[str]] = []
    server.ask_until(lambda: len(later) >= 20, later)
    assert str(killed[0]) not in {pid for pid, _, _ in later}
    assert all((valid, lost) == ("True", "forked") for _, valid, lost in answers + later), server.log.read_text()
    assert str(server.process.pid) not in workers
    assert redlock.status("kept by the parent").verdict == "held"
    server.end()
    # The parent and the workers release what they held, or leave it to the `ttl`.
    assert servers.remaining_keys("kept by the parent", TTL + 5) == []
    assert servers.remaining_keys("request", TTL + 5) == []


def gunicorn(*options: str) -> list[str]:
    pytest.importorskip("gunicorn", reason="NOT RUN: gunicorn is not installed")
    command = [sys.executable, "-m", "gunicorn", "--preload", "--workers", "3", "--bind", "127.0.0.1:PORT"]
    # A worker ends after some 20 requests, and the parent forks another.
    command += ["--max-requests", "20", "--max-requests-jitter", "10", "--graceful-timeout", "5"]
    return [*command, *options, "application:application"]


def test_gunicorn_with_threads(servers, redlock, start):
    server = start(THREADS, gunicorn("--worker-class", "gthread", "--threads", "2"))
    workers_lose_nothing_but_what_a_killed_worker_held(servers, redlock, server)


def test_gunicorn_with_gevent_workers(servers, redlock, start):
    pytest.importorskip("gevent", reason="NOT RUN: gevent is not installed")
    server = start(GREENLETS, gunicorn("--worker-class", "gevent"))
    workers_lose_nothing_but_what_a_killed_worker_held(servers, redlock, server)


def test_gunicorn_with_uvicorn_workers(servers, redlock, start):
    pytest.importorskip("uvicorn_worker", reason="NOT RUN: uvicorn-worker is not installed")
    server = start(TASKS, gunicorn("--worker-class", "uvicorn_worker.UvicornWorker"))
    workers_lose_nothing_but_what_a_killed_worker_held(servers, redlock, server)


@pytest.mark.parametrize("threads", [1, 2])
def test_uwsgi(servers, redlock, start, threads):
    uwsgi = Path(sys.executable).with_name("uwsgi")
    if not uwsgi.exists():
        pytest.skip("NOT RUN: uWSGI is not installed")
    command = [str(uwsgi), "--http-socket", "127.0.0.1:PORT", "--module", "application", "--master", "--processes", "3"]
    command += ["--max-requests", "20", "--min-worker-lifetime", "1", "--die-on-term", "--need-app"]
    command += ["--virtualenv", sys.prefix, "--worker-reload-mercy", "5"]
    # With one thread, uWSGI does not initialize the threads of Python.
    if threads > 1:
        command += ["--enable-threads", "--threads", str(threads)]
    server = start(THREADS, command)
    workers_lose_nothing_but_what_a_killed_worker_held(servers, redlock, server)
