#!/usr/bin/env python3
"""Does the same to a lock of each tool, and records what happens. `scripts/compare-tools` starts this program.

Each run starts its own servers and the clients of one tool. A client is a program that gets the addresses of the
servers, the name of the lock and its TTL in milliseconds. It reads one verb per line, and prints:

    ready                 after the start: it is connected
    acquired TOKEN        to `acquire SECONDS`; TOKEN is a number that rises from holder to holder, or -
    refused REASON        to `acquire SECONDS`, at the latest when these seconds have passed
    held yes, held no     to `held`: the tool's own check, asked by the holder
    released, failed ..   to `release`
    forked PID            to `fork release` and `fork stay`; the child prints `child released` or `child failed ..`
    lost CAUSE            whenever the tool notifies the holder, unasked, that it no longer has the lock
    suspended             whenever the tool notifies the holder that it may no longer have the lock

Each run appends one line for each cell of the table: the row of the table, the tool, the number of the run, what
happened, the milliseconds, and a detail, separated by tabs. `tests/all/pages.rs` computes the cells from these lines
in the same way as `cell` below.
"""

import argparse
import collections
import concurrent.futures
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import threading
import time

import servers

TTL = 3.0
ROWS = [
    "pause: another holder meanwhile",
    "pause: the first holder continues",
    "pause: a token that rises",
    "one server killed: a new lock",
    "one server killed: the holder",
    "one server restarted empty",
    "two servers restarted empty",
    "one clock jumps ahead",
    "two clocks jump ahead",
    "clocks set back, the holder dies",
    "a waiter dies",
    "a forked child releases",
    "the holder dies, its child lives",
    "the network of the holder is cut",
]
MARKS = ("<!-- tools: scripts/compare-tools writes this table -->", "<!-- end of tools -->")

Tool = collections.namedtuple("Tool", "name servers count renews forks command")


class Bench:
    """What all runs share."""

    def __init__(self, home, quorate, shim, scratch):
        self.home, self.quorate, self.shim, self.scratch = home, quorate, shim, scratch
        self.processes, self.ports = servers.Processes(scratch), servers.Ports()
        self.etcd, self.etcdctl = home / "root/usr/bin/etcd", home / "root/usr/bin/etcdctl"

    def tools(self):
        """The tools that are installed."""
        here = pathlib.Path(__file__).parent
        python = self.home / "venv/bin/python"
        jars = [self.home / f"root/usr/share/java/curator-{part}.jar" for part in ("recipes", "framework", "client")]
        curator = [*servers.JAVA, "-cp", servers.classpath(self.home / "classes", *jars), "Curator"]
        tools = [
            Tool("quorate", servers.Redis, 3, True, True, [self.quorate]),
            Tool("redlock (npm)", servers.Redis, 3, True, False, ["node", self.home / "node/redlock.mjs"]),
            Tool("pottery", servers.Redis, 3, False, True, [python, here / "locks.py", "pottery"]),
            Tool("redis-py", servers.Redis, 1, False, True, [python, here / "locks.py", "redis-py"]),
            Tool("python-redis-lock", servers.Redis, 1, True, True, [python, here / "locks.py", "python-redis-lock"]),
            Tool("etcdctl lock", servers.Etcd, 3, True, False,
                 [sys.executable, here / "etcdctl.py", "alone", self.etcdctl]),
            Tool("etcdctl lock .. COMMAND", servers.Etcd, 3, True, False,
                 [sys.executable, here / "etcdctl.py", "command", self.etcdctl]),
            Tool("Curator", servers.ZooKeeper, 3, True, False, curator),
        ]
        needed = {
            "redlock (npm)": self.home / "node/node_modules/redlock",
            "pottery": self.home / "venv/installed",
            "redis-py": self.home / "venv/installed",
            "python-redis-lock": self.home / "venv/installed",
            "etcdctl lock": self.etcd,
            "etcdctl lock .. COMMAND": self.etcd,
            "Curator": self.home / "classes/Curator.class",
        }
        return [tool for tool in tools if tool.name not in needed or needed[tool.name].exists()]


class Client:
    """A client of a tool, with everything that it has printed, and when."""

    def __init__(self, run, addresses, name):
        self.run, self.lines, self.arrived = run, [], threading.Condition()
        log = open(run.folder / "clients.log", "ab")
        command = [*run.tool.command, ",".join(addresses), name, int(TTL * 1000)]
        pipes = {"stdin": servers.subprocess.PIPE, "stdout": servers.subprocess.PIPE, "stderr": log}
        self.process = run.bench.processes.start(command, text=True, **pipes)
        run.clients.append(self)
        threading.Thread(target=self.read, daemon=True).start()
        if self.wait("ready", 60) is None:
            raise RuntimeError(f"{run.tool.name} did not start: see {run.folder}")

    def read(self):
        for line in self.process.stdout:
            with self.arrived:
                self.lines.append((time.monotonic(), line.strip()))
                self.arrived.notify_all()

    def say(self, line):
        """Sends a line. Returns the number of lines that the client had printed before."""
        seen = len(self.lines)
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return seen

    def find(self, words, since=0):
        """The time and the text of the first line that begins with one of the words."""
        words = (words,) if isinstance(words, str) else words
        return next((line for line in self.lines[since:] if line[1].split(" ")[0] in words), None)

    def wait(self, words, seconds, since=0):
        with self.arrived:
            self.arrived.wait_for(lambda: self.find(words, since), timeout=max(0, seconds))
            line = self.find(words, since)
        if line is None and self.process.poll() is not None:
            # A client that crashes says nothing about its tool.
            raise RuntimeError(f"a client of {self.run.tool.name} has ended: {self.lines[-1:]}")
        return line

    def ask(self, line, words, seconds):
        return self.wait(words, seconds, self.say(line))

    def acquire(self, seconds):
        return self.ask(f"acquire {seconds}", ("acquired", "refused"), seconds + 5)

    def must_acquire(self):
        line = self.acquire(10)
        if line is None or not line[1].startswith("acquired"):
            raise RuntimeError(f"{self.run.tool.name}: the first acquire failed: {line}")
        return line

    def believes(self):
        """What the tool answers if the holder asks: yes, no, an error, or nothing."""
        line = self.ask("held", "held", 3)
        return "no answer" if line is None else line[1].split(" ", 1)[1]

    def signal(self, number):
        os.killpg(self.process.pid, number)


class Run:
    """One run: its servers, its clients and the cells that it records."""

    def __init__(self, bench, tool, number):
        self.bench, self.tool, self.number = bench, tool, number
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="run", dir=bench.scratch))
        self.clients, self.proxies, self.cells, self.servers = [], [], [], None

    def start(self, shifted=False):
        self.servers = self.tool.servers(self.bench, self.folder, self.tool.count, shifted)
        if self.tool.name == "quorate":
            time.sleep(TTL + 1.2)  # masters that have just started do not vote before max_ttl has passed

    def client(self, name="lock", addresses=None):
        return Client(self, addresses or self.servers.addresses(), name)

    def record(self, row, what, seconds=None, detail=""):
        ms = "" if seconds is None else str(round(seconds * 1000))
        self.cells.append((row, self.tool.name, str(self.number), what, ms, " ".join(detail.split())[:120]))

    def end(self):
        for client in self.clients:
            self.bench.processes.kill(client.process)
        for proxy in self.proxies:
            proxy.stop()
        if self.servers:
            self.servers.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def acquired(line):
    return line is not None and line[1].startswith("acquired")


def overlap(run, row, first, second, since, began):
    """Records whether the second client got the lock while the first still relied on it."""
    line = second.wait(("acquired", "refused"), 3 * TTL + 5)
    lost = first.find(("lost", "suspended"))
    # Without renewal, a holder that counts the time itself, from before the acquire, stops after the TTL.
    ends = began + TTL if not run.tool.renews else (lost[0] if lost else float("inf"))
    if not acquired(line):
        believes = first.believes()
        if believes == "yes" and not lost:
            run.record(row, "one holder", None, "kept for the whole run")
        elif lost:
            run.record(row, "one holder, notified", lost[0] - since, f"{lost[1]}; other: {line and line[1]}")
        else:
            run.record(row, "nobody holds it", None, f"{believes}; other: {line and line[1]}")
    elif line[0] < ends:
        run.record(row, "two holders", line[0] - since, f"lost: {lost and lost[1]}; asked: {first.believes()}")
    elif lost:
        run.record(row, "one holder, notified", lost[0] - since, f"{lost[1]}; other {line[0] - lost[0]:.3f} s later")
    else:
        run.record(row, "one holder", None, f"other after {line[0] - since:.3f} s")


def pause(run):
    run.start()
    first, second = run.client(), run.client()
    token = first.must_acquire()[1].split(" ")[1]
    time.sleep(0.5)
    first.signal(signal.SIGSTOP)
    stopped = time.monotonic()
    line = second.acquire(4 * TTL)
    if not acquired(line):
        run.record("pause: another holder meanwhile", "no", None, str(line))
    else:
        run.record("pause: another holder meanwhile", "yes", line[0] - stopped)
    time.sleep(0.5)
    continued = time.monotonic()
    first.signal(signal.SIGCONT)
    lost = first.wait(("lost", "suspended"), 2 * TTL)
    row = "pause: the first holder continues"
    if lost:
        run.record(row, "notified", lost[0] - continued, lost[1])
    else:
        believes = first.believes()
        word = "not notified; if asked: held" if believes == "yes" else "not notified; if asked: not held"
        run.record(row, word, None, believes)
    later = line[1].split(" ")[1] if acquired(line) else "-"
    rises = token.isdigit() and later.isdigit() and int(later) > int(token)
    run.record("pause: a token that rises", "yes" if rises else "none", None, f"{token}, {later}")


def kill(run):
    run.start()
    first, other = run.client(), run.client("other")
    first.must_acquire()
    time.sleep(0.2)
    run.servers.kill(run.servers.leader())
    killed = time.monotonic()
    line = other.acquire(15)
    if acquired(line):
        run.record("one server killed: a new lock", "yes", line[0] - killed)
    else:
        run.record("one server killed: a new lock", "none in 15 s", None, str(line and line[1]))
    row = "one server killed: the holder"
    if not run.tool.renews and run.tool.count > 1:
        # Its lock ends after its TTL in any case, so it is asked now.
        believes = first.believes()
        run.record(row, "keeps it" if believes == "yes" else "not notified; if asked: not held", None, believes)
        return
    first.wait("lost", killed + 2 * TTL - time.monotonic())
    lost, suspended = first.find("lost"), first.find("suspended")
    believes = first.believes()
    if lost:
        run.record(row, "notified", lost[0] - killed, lost[1])
    elif believes == "yes" and suspended:
        run.record(row, "warned, keeps it", suspended[0] - killed)
    elif believes == "yes":
        run.record(row, "keeps it")
    else:
        run.record(row, "not notified; if asked: error", None, believes)


def restart(run, row, count):
    if run.tool.count < count:
        return run.record(row, "has one server")
    run.start()
    first, second = run.client(), run.client()
    began = time.monotonic()
    first.must_acquire()
    since, refused = time.monotonic(), []
    for number in range(count):
        if not run.servers.restart_empty(number):
            refused.append(number)
        time.sleep(0.1)
    second.say(f"acquire {3 * TTL}")
    overlap(run, row, first, second, since, began)
    if refused:
        row, tool, number, what, ms, detail = run.cells[-1]
        detail = f"{len(refused)} did not start without their data; {detail}"[:120]
        run.cells[-1] = (row, tool, number, f"{what}; the server stays down", ms, detail)


def clock(run, row, count):
    if run.tool.count < count:
        return run.record(row, "has one server")
    if run.tool.servers is servers.Etcd:
        return run.record(row, "not measured", None, "etcd is linked statically: its clock cannot be shifted")
    run.start(shifted=True)
    first, second = run.client(), run.client()
    began = time.monotonic()
    first.must_acquire()
    time.sleep(0.1)
    since = time.monotonic()
    for number in range(count):
        run.servers.jump(number, 3600)
    second.say(f"acquire {3 * TTL}")
    overlap(run, row, first, second, since, began)


def set_back(run, row):
    if run.tool.servers is servers.Etcd:
        return run.record(row, "not measured", None, "etcd is linked statically: its clock cannot be shifted")
    run.start(shifted=True)
    first, second = run.client(), run.client()
    first.must_acquire()
    time.sleep(0.1)
    for number in range(min(2, run.tool.count)):
        run.servers.jump(number, -3600)
    first.signal(signal.SIGKILL)
    record_when_free(run, row, second)


def record_when_free(run, row, client):
    """Records when the client gets the lock of a holder that has died now."""
    since = time.monotonic()
    line = client.acquire(4 * TTL)
    if acquired(line):
        run.record(row, "free after", line[0] - since)
    else:
        run.record(row, f"not free in {4 * TTL:.0f} s", None, str(line and line[1]))


def waiter(run, row):
    run.start()
    first, dies, waits = run.client(), run.client(), run.client()
    first.must_acquire()
    dies.say("acquire 20")
    time.sleep(0.3)
    seen = waits.say("acquire 20")
    time.sleep(0.3)
    dies.signal(signal.SIGKILL)
    time.sleep(0.05)
    if waits.find("acquired", seen):
        raise RuntimeError("the waiter has the lock before its release")
    since = time.monotonic()
    first.say("release")
    line = waits.wait(("acquired", "refused"), 20, seen)
    run.record(row, "next after" if acquired(line) else "not in 20 s", line[0] - since if acquired(line) else None)


def fork(run, row, what):
    if not run.tool.forks:
        return run.record(row, "cannot fork")
    run.start()
    first, second = run.client(), run.client()
    first.must_acquire()
    forked = first.ask(f"fork {what}", "forked", 5)
    if forked is None:
        raise RuntimeError("the client did not fork")
    if what == "release":
        child = first.wait("child", 5)
        since = time.monotonic()
        line = second.acquire(1)
        detail = f"{child and child[1]}; the parent, asked: {first.believes()}"
        run.record(row, "two holders" if acquired(line) else "no effect", None, detail)
        return
    time.sleep(0.2)
    os.kill(first.process.pid, signal.SIGKILL)
    record_when_free(run, row, second)


def cut(run, row):
    run.start()
    run.proxies = [servers.Proxy(run.bench, address) for address in run.servers.addresses()]
    first, second = run.client(addresses=[proxy.address for proxy in run.proxies]), run.client()
    first.must_acquire()
    time.sleep(0.5)
    for proxy in run.proxies:
        proxy.freeze()
    since = time.monotonic()
    line = second.acquire(4 * TTL)
    lost = first.wait(("lost", "suspended"), 2 * TTL if acquired(line) else 0)
    if not acquired(line):
        return run.record(row, f"not free in {4 * TTL:.0f} s", None, f"{line}; {lost}")
    detail = f"other after {line[0] - since:.3f} s; first: {lost and lost[1]}"
    if lost is None:
        run.record(row, "not notified", None, f"{detail}; asked: {first.believes()}")
    elif lost[0] <= line[0]:
        run.record(row, "notified before, by", line[0] - lost[0], detail)
    else:
        run.record(row, "notified too late, by", lost[0] - line[0], detail)


SCENARIOS = [
    pause,
    kill,
    lambda run: restart(run, "one server restarted empty", 1),
    lambda run: restart(run, "two servers restarted empty", 2),
    lambda run: clock(run, "one clock jumps ahead", 1),
    lambda run: clock(run, "two clocks jump ahead", 2),
    lambda run: set_back(run, "clocks set back, the holder dies"),
    lambda run: waiter(run, "a waiter dies"),
    lambda run: fork(run, "a forked child releases", "release"),
    lambda run: fork(run, "the holder dies, its child lives", "stay"),
    lambda run: cut(run, "the network of the holder is cut"),
]


def perform(bench, tool, number, scenario):
    """One run. A run that cannot be done is repeated twice, and then recorded as a failure of the comparison."""
    for attempt in range(3):
        run = Run(bench, tool, number)
        try:
            scenario(run)
            return run.cells, None
        except Exception as error:
            problem = f"{tool.name}: {error!r}"
            print(f"attempt {attempt + 1}: {problem}", file=sys.stderr)
        finally:
            run.end()
    return [], problem


def cell(lines):
    """What is in one cell of the table: what happened in the runs, the most frequent first, and the range of times."""
    seen = collections.defaultdict(list)
    for _, _, _, what, ms, _ in lines:
        seen[what].append(ms)
    parts = []
    for what, times in sorted(seen.items(), key=lambda item: (-len(item[1]), item[0])):
        numbers = sorted(int(ms) for ms in times if ms)
        text = what
        if numbers:
            low, high = numbers[0], numbers[-1]
            text += f" {low} ms" if low == high else f" {low}-{high} ms"
        if len(times) < len(lines):
            text += f" ({len(times)} of {len(lines)})"
        parts.append(text)
    return ", ".join(parts)


def table(lines):
    tools = list(dict.fromkeys(line[1] for line in lines))
    rows = ["| | " + " | ".join(tools) + " |", "|" + "---|" * (len(tools) + 1)]
    for row in ROWS:
        cells = [cell([line for line in lines if line[:2] == (row, tool)]) for tool in tools]
        rows.append(f"| {row} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def write_page(page, versions, lines):
    before, rest = page.read_text().split(MARKS[0])
    _, after = rest.split(MARKS[1])
    page.write_text(f"{before}{MARKS[0]}\n\nVersions: {versions}\n\n{table(lines)}\n\n{MARKS[1]}{after}")


def read_log(log):
    lines = [line.split("\t") for line in log.read_text().splitlines() if not line.startswith("#")]
    return [tuple((line + [""] * 6)[:6]) for line in lines]


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--home", type=pathlib.Path, required=True, help="the folder with the installed tools")
    parser.add_argument("--quorate", type=pathlib.Path, required=True, help="the client of quorate")
    parser.add_argument("--shim", type=pathlib.Path, required=True, help="the library that shifts a server's clock")
    parser.add_argument("--runs", type=int, default=5, help="runs of each scenario with each tool")
    parser.add_argument("--jobs", type=int, default=8, help="runs at the same time")
    parser.add_argument("--tool", action="append", help="only this tool (repeat it for several)")
    parser.add_argument("--scenario", type=int, action="append", help="only the scenario with this number, from 0")
    parser.add_argument("--log", type=pathlib.Path, help="write the lines to this file; with --tool or --scenario, keep the other cells")
    parser.add_argument("--heading", default="", help="the first line of the log")
    parser.add_argument("--page", type=pathlib.Path, help="write the table into this page")
    return parser.parse_args()


def perform_all(bench, tools, scenarios, chosen):
    """The lines of all runs, sorted, and the runs that could not be done."""
    lines, problems = [], []
    pool = concurrent.futures.ThreadPoolExecutor(max(1, chosen.jobs))
    runs = [
        pool.submit(perform, bench, tool, number, scenario)
        for number in range(1, chosen.runs + 1)
        for scenario in scenarios
        for tool in tools
    ]
    for done in concurrent.futures.as_completed(runs):
        cells, problem = done.result()
        lines += cells
        if problem:
            problems.append(problem)
    pool.shutdown()
    names = [tool.name for tool in tools]
    lines.sort(key=lambda line: (ROWS.index(line[0]), names.index(line[1]), int(line[2])))
    return lines, problems


def main():
    chosen = options()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    scratch = tempfile.mkdtemp(prefix="quorate-tools-", dir=memory)
    bench = Bench(chosen.home.resolve(), chosen.quorate.resolve(), chosen.shim.resolve(), scratch)
    tools = [tool for tool in bench.tools() if not chosen.tool or tool.name in chosen.tool]
    scenarios = [SCENARIOS[number] for number in chosen.scenario] if chosen.scenario else SCENARIOS
    lines, problems = perform_all(bench, tools, scenarios, chosen)
    if (chosen.tool or chosen.scenario) and chosen.log and chosen.log.exists():
        measured = {line[:2] for line in lines}
        lines += [line for line in read_log(chosen.log) if line[:2] not in measured]
        names = [tool.name for tool in bench.tools()]
        lines.sort(key=lambda line: (ROWS.index(line[0]), names.index(line[1]), int(line[2])))
    text = "".join("\t".join(line).rstrip("\t") + "\n" for line in lines)
    print(table(lines))
    for problem in problems:
        print(f"a run could not be done: {problem}", file=sys.stderr)
    if problems or not lines:
        sys.exit(1)
    if chosen.log:
        chosen.log.parent.mkdir(parents=True, exist_ok=True)
        chosen.log.write_text(f"# {chosen.heading}\n" + text)
    else:
        print("\n" + text)
    if chosen.page:
        write_page(chosen.page, chosen.heading, lines)


if __name__ == "__main__":
    main()
