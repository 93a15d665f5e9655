"""The recipes for Python of `docs/schedulers.md`: several schedulers start one job, and it runs once."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest
from conftest import OPTIONS, SERVER, Servers

import quorate

PAGE = Path(os.environ.get("QUORATE_SCHEDULERS") or Path(__file__).resolve().parents[3] / "docs/schedulers.md")
PORTS = ["7101", "7102", "7103"]
BROKER = "7104"

pytestmark = pytest.mark.skipif(
    not PAGE.exists(), reason="NOT RUN: docs/schedulers.md is not part of the source package"
)


def program(name: str) -> str:
    """The program of the page whose first line has this name."""
    found = re.search(rf"```python\n(# {name}\n.*?)```", PAGE.read_text(), re.DOTALL)
    assert found, name
    return found[1]


@pytest.fixture(scope="module")
def broker():
    """A server for the tasks of celery."""
    if SERVER is None:
        pytest.skip("NOT RUN: neither redis-server nor valkey-server is installed")
    server = Servers(1)
    yield server
    server.close()


def prepare(servers: Servers, folder: Path, name: str, changes: dict[str, str], ports: dict[str, int]) -> None:
    """Writes the program of the page to a file, and creates the record, as an operator does."""
    text = program(name)
    for documented, port in ports.items():
        text = text.replace(documented, str(port))
    # The servers have just started.
    for documented, changed in {**changes, "Redlock(MASTERS)": 'Redlock(MASTERS, restart_guard="off")'}.items():
        assert documented in text, documented
        text = text.replace(documented, changed)
    (folder / name).write_text(text)
    (folder / "reports.py").write_text(
        "import os\n\n\ndef send_report() -> None:\n    with open('runs', 'a') as runs:\n        runs.write('run\\n')\n"
    )
    redlock = quorate.Redlock(servers.urls, **OPTIONS)
    redlock.once("report", 24 * 3600).drop()
    redlock.once("report", 24 * 3600).create()
    redlock.close()


def masters(servers: Servers) -> dict[str, int]:
    return dict(zip(PORTS, servers.ports[:3]))


def runs_of(processes: list[subprocess.Popen[bytes]], folder: Path, log: str, starts: int) -> tuple[int, int]:
    """Waits until the logs of the processes show that many starts of the job. Returns the number of runs, and the
    number of days that the schedulers have seen."""
    first_day = datetime.now(timezone.utc).date()
    try:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            logs = "".join(file.read_text() for file in folder.glob("log-*"))
            if logs.count(log) >= starts:
                break
            time.sleep(0.1)
        else:
            pytest.fail(f"too few starts of the job:\n{logs}")
    finally:
        # Celery starts child processes. A kill of the whole group is faster than their orderly end.
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    file = folder / "runs"
    runs = len(file.read_text().splitlines()) if file.exists() else 0
    return runs, (datetime.now(timezone.utc).date() - first_day).days + 1


def start(folder: Path, number: int, *command: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "C_FORCE_ROOT": "1"}
    with (folder / f"log-{number}").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, *command],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def test_celery_beats_of_three_replicas_run_the_task_once(servers, broker, tmp_path):
    pytest.importorskip("celery", reason="NOT RUN: celery is not installed")
    pytest.importorskip("redis", reason="NOT RUN: celery needs the package redis for its broker")
    changes = {"crontab(hour=3, minute=0)": "timedelta(seconds=0.5)"}
    ports = {**masters(servers), BROKER: broker.ports[0]}
    prepare(servers, tmp_path, "tasks.py", changes, ports)
    worker = ("-m", "celery", "-A", "tasks", "worker", "--concurrency=1", "--loglevel=INFO")
    replicas = [
        start(tmp_path, number, *worker, "--beat", f"--schedule=beat-{number}", f"--hostname=worker{number}@%h")
        for number in range(3)
    ]
    runs, days = runs_of(replicas, tmp_path, "succeeded in", 9)
    assert 1 <= runs <= days


def test_apschedulers_of_three_replicas_run_the_job_once(servers, tmp_path):
    pytest.importorskip("apscheduler", reason="NOT RUN: apscheduler is not installed")
    changes = {'"cron", hour=3': '"interval", seconds=0.5'}
    prepare(servers, tmp_path, "service.py", changes, masters(servers))
    replicas = [start(tmp_path, number, "service.py") for number in range(3)]
    runs, days = runs_of(replicas, tmp_path, "executed successfully", 9)
    assert 1 <= runs <= days
