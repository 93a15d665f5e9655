"""The programs of `docs/python.md` run as they are printed, and pass `mypy --strict`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(os.environ.get("QUORATE_PAGE") or Path(__file__).resolve().parents[3] / "docs/python.md")
PORTS = ["7101", "7102", "7103"]

BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


def programs() -> list[tuple[str, str]]:
    """The programs of the page, each with the output that the page prints under it."""
    if not PAGE.exists():
        return []
    blocks = [(kind, text) for kind, text in BLOCK.findall(PAGE.read_text()) if kind != "sh"]
    kinds = [kind for kind, _ in blocks]
    assert kinds == ["python", "text"] * (len(kinds) // 2), kinds
    return [(blocks[n][1], blocks[n + 1][1]) for n in range(0, len(blocks), 2)]


pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="NOT RUN: docs/python.md is not part of the source package")


def test_page_has_programs():
    assert len(programs()) >= 10


@pytest.mark.parametrize("number", range(len(programs())))
def test_program_of_the_page_prints_what_the_page_says(servers, tmp_path, number):
    program, output = programs()[number]
    if "import gevent" in program:
        pytest.importorskip("gevent", reason="NOT RUN: gevent is not installed")
    for documented, port in zip(PORTS, servers.ports):
        program = program.replace(documented, str(port))
    if sys.version_info < (3, 10):
        # The page uses `int | None`, which annotations can use since Python 3.10.
        program = "from __future__ import annotations\n" + program
    file = tmp_path / "program.py"
    file.write_text(program)
    ran = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", str(file)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == output
    assert "Warning" not in ran.stderr, ran.stderr
