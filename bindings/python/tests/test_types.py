"""Programs of users pass `mypy --strict`, and mistakes do not."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import test_page

import quorate

pytestmark = pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="NOT RUN: mypy is not installed")

SAMPLE = """
import asyncio
from datetime import timedelta
from typing import Optional

import quorate
from quorate import AsyncRedlock, Guard, LockHeld, Redlock

redlock = Redlock("redis://127.0.0.1:1", ttl=timedelta(seconds=5), order="unordered", wait=None)

@redlock.lock("sum")
def add(a: int, b: int = 1) -> int:
    return a + b

number: int = add(1, b=2)

@redlock.once("nightly", 86400).at_most_once()
def report(day: str) -> str:
    return day

text: Optional[str] = report("today")

def work(guard: Guard) -> Optional[int]:
    return guard.fencing_token

try:
    with redlock.lock("a", wait=0) as guard:
        work(guard)
    attempt = redlock.try_acquire("a")
    if attempt is not None:
        released: bool = attempt.release()
except LockHeld as error:
    waited: float = error.waited
    for report_of_master in error.reports:
        name: str = report_of_master.master

locks = AsyncRedlock.from_env(prefix="x:")

@locks.lock("sum")
async def add_later(a: int) -> int:
    return a

async def main() -> None:
    later: int = await add_later(1)
    async with locks.semaphore("api", 3) as permit:
        slot: Optional[int] = permit.slot
    async for leader in locks.election("scheduler").observe():
        term: Optional[int] = leader and leader.term
    listing: quorate.Listing = await locks.list("a")

asyncio.run(main())
"""

MISTAKES = {
    'redlock.lock("a", ttl="5")': "arg-type",
    'redlock.lock("a", timeout=5)': "call-arg",
    'Redlock("redis://a", restart_guard="maybe")': "arg-type",
    'redlock.try_acquire("a").release()': "union-attr",
    "add('1')": "arg-type",
    'number = redlock.quota("a").take()': "assignment",
}


def mypy(folder: Path, *files: Path) -> str:
    """The output of mypy. It reads the package where this test imports it from."""
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--python-version", "3.10"]
    place = str(Path(quorate.__file__).parents[1])
    ran = subprocess.run(
        [*command, "--cache-dir", str(folder / "cache"), *map(str, files)],
        capture_output=True,
        text=True,
        check=False,
        env={"MYPYPATH": place, "PATH": ""} if "site-packages" not in place else {"PATH": ""},
    )
    return ran.stdout + ran.stderr


def test_sample_and_programs_of_the_page_pass(tmp_path):
    files = [tmp_path / "sample.py"]
    files[0].write_text(SAMPLE)
    for number, (program, _) in enumerate(test_page.programs()):
        if "import gevent" in program and importlib.util.find_spec("gevent-stubs") is None:
            print("NOT RUN: the program of gevent, because types-gevent is not installed")
            continue
        files.append(tmp_path / f"page_{number}.py")
        files[-1].write_text(program)
    assert mypy(tmp_path, *files) == ""


def test_mistakes_are_found(tmp_path):
    file = tmp_path / "mistakes.py"
    file.write_text(SAMPLE + "\n".join(MISTAKES) + "\n")
    found = mypy(tmp_path, file)
    lines = len(SAMPLE.splitlines())
    for number, (mistake, code) in enumerate(MISTAKES.items(), lines + 1):
        assert any(f":{number}: error" in line and f"[{code}]" in line for line in found.splitlines()), (mistake, found)
