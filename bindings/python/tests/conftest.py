"""Servers for the tests, and helpers that all tests use."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time

import pytest

import quorate

SERVER = shutil.which("redis-server") or shutil.which("valkey-server")

OPTIONS = {"restart_guard": "off", "ttl": 2.0, "node_timeout": 0.25}
"""Settings for servers that have just started, on a machine that is busy with other tests."""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def keys_of(port: int) -> list[bytes]:
    """All keys of a server; none if it does not answer."""
    try:
        with socket.create_connection(("127.0.0.1", port), 0.5) as connection:
            connection.settimeout(0.5)
            connection.sendall(b"KEYS *\r\n")
            stream = connection.makefile("rb")
            count = int(stream.readline()[1:])
            return [stream.read(int(stream.readline()[1:]) + 2)[:-2] for _ in range(count)]
    except OSError:
        return []


class Servers:
    """Independent servers on free ports."""

    def __init__(self, count: int) -> None:
        self.folder = tempfile.mkdtemp(prefix="quorate-python-")
        self.ports = [free_port() for _ in range(count)]
        self.urls = [f"redis://127.0.0.1:{port}" for port in self.ports]
        self.processes = [self._start(port) for port in self.ports]

    def _start(self, port: int) -> subprocess.Popen[bytes]:
        options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        process = subprocess.Popen([SERVER, *options, "--dir", self.folder], stdout=subprocess.DEVNULL)
        for _ in range(500):
            try:
                socket.create_connection(("127.0.0.1", port), 0.2).close()
                return process
            except OSError:
                time.sleep(0.02)
        raise RuntimeError("the server did not start")

    def kill(self, number: int) -> None:
        self.processes[number].kill()
        self.processes[number].wait()

    def stop(self, number: int) -> None:
        self.processes[number].send_signal(signal.SIGSTOP)

    def go_on(self, number: int) -> None:
        self.processes[number].send_signal(signal.SIGCONT)

    def close(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def keys(self, name: str) -> list[tuple[int, bytes]]:
        """The keys of locks, permits and queues with this name. Counters, notes and values stay longer than locks."""
        lasting = (
            b"quorate:ticket:",
            b"quorate:note:",
            b"quorate:fence:",
            b"quorate:fencing:",
            b"quorate:value:",
            b"quorate:broken:",
        )
        found = [(port, key) for port in self.ports for key in keys_of(port)]
        return sorted((port, key) for port, key in found if name.encode() in key and not key.startswith(lasting))

    def keys_of_holder(self, name: str) -> int:
        """Waits until every server has the key of the only holder, and returns their number. An acquire returns before
        the slowest server has answered."""
        end = time.monotonic() + 10
        while len(self.keys(name)) < len(self.ports) and time.monotonic() < end:
            time.sleep(0.02)
        return len(self.keys(name))

    def remaining_keys(self, name: str, within: float = 1.0) -> list[tuple[int, bytes]]:
        """The keys of `keys` that are still there after this time."""
        end = time.monotonic() + within
        while (keys := self.keys(name)) and time.monotonic() < end:
            time.sleep(0.02)
        return keys


def run_program(servers: Servers | None, program: str, *options: str) -> subprocess.Popen[str]:
    """Starts a Python program in which `URLS` has the addresses of the servers, and `OPTIONS` the usual settings."""
    urls = servers.urls if servers else []
    begin = f"import quorate, sys, time, os\nURLS = {urls!r}\nOPTIONS = {OPTIONS!r}\n"
    command = [sys.executable, "-W", "default", *options, "-c", begin + textwrap.dedent(program)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


needs_servers = pytest.mark.skipif(
    SERVER is None, reason="NOT RUN: neither redis-server nor valkey-server is installed"
)


@pytest.fixture(scope="session")
def servers():
    if SERVER is None:
        pytest.skip("NOT RUN: neither redis-server nor valkey-server is installed")
    servers = Servers(5)
    yield servers
    servers.close()


@pytest.fixture
def redlock(servers):
    redlock = quorate.Redlock(servers.urls, **OPTIONS)
    yield redlock
    redlock.close()


def pytest_report_header() -> list[str]:
    where = os.path.dirname(quorate.__file__)
    return [f"quorate {quorate.__version__} in {where}", f"server: {SERVER}"]
