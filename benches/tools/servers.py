"""The servers of the comparison: sets of Redis servers, etcd and ZooKeeper ensembles, and a proxy that can go silent.

All of them listen on 127.0.0.1 only. Every process that this module starts is in a group of its own. When the driver
ends, however it ends, a guard process kills all groups and removes the folder of the servers.
"""

import mmap
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

JARS = "/usr/share/java"
ZOOKEEPER = [
    "zookeeper", "zookeeper-jute", "slf4j-api", "slf4j-nop", "netty-buffer", "netty-codec", "netty-common",
    "netty-handler", "netty-resolver", "netty-transport", "netty-transport-native-epoll",
    "netty-transport-native-unix-common", "netty-all", "snappy-java", "metrics-core", "commons-io", "commons-cli",
    "log4j-1.2", "guava", "jackson-databind", "jackson-core", "jackson-annotations",
]
JAVA = ["java", "-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]
START = 60  # seconds until a server must serve

GUARD = """
import os, shutil, signal, sys
groups = set()
for line in sys.stdin:
    number = int(line)
    groups.add(number) if number > 0 else groups.discard(-number)
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass
shutil.rmtree(sys.argv[1], ignore_errors=True)
"""


class Processes:
    """Starts processes in groups of their own. At the end, kills the groups that are left, and removes the folder."""

    def __init__(self, folder):
        self.lock = threading.Lock()
        command = [sys.executable, "-c", GUARD, folder]
        self.guard = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True)

    def start(self, command, **options):
        with self.lock:
            process = subprocess.Popen([str(word) for word in command], start_new_session=True, **options)
            self.note(process.pid)
        return process

    def note(self, number):
        self.guard.stdin.write(f"{number}\n")
        self.guard.stdin.flush()

    def kill(self, process):
        with self.lock:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        process.wait()
        with self.lock:
            self.note(-process.pid)


class Ports:
    """Hands out ports below the range of outgoing connections, each once."""

    def __init__(self):
        self.lock, self.next = threading.Lock(), 12000 + os.getpid() % 8000

    def take(self):
        with self.lock:
            while True:
                self.next += 1
                with socket.socket() as probe:
                    try:
                        probe.bind(("127.0.0.1", self.next))
                        return self.next
                    except OSError:
                        continue


def wait_until(check, what, within=START):
    until = time.monotonic() + within
    while not check():
        if time.monotonic() > until:
            raise RuntimeError(f"{what} did not happen within {within} s")
        time.sleep(0.02)


def ask(port, text):
    """Sends a text to a port, and returns the first bytes of the answer, or nothing."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as stream:
            stream.sendall(text)
            return stream.recv(4096)
    except OSError:
        return b""


class Servers:
    """A set of servers of one kind. The subclass knows the command of a server, and whether it serves."""

    def __init__(self, bench, folder, count, shifted=False):
        self.bench, self.folder = bench, folder
        self.ports = [bench.ports.take() for _ in range(count)]
        self.processes = [None] * count
        self.clocks = []
        if shifted:
            for number in range(count):
                with open(folder / f"clock{number}", "wb") as file:
                    file.write(bytes(8))
                self.clocks.append(folder / f"clock{number}")
        self.prepare()
        for number in range(count):
            self.begin(number)
        for number in range(count):
            self.serve(number)

    def prepare(self):
        pass

    def addresses(self):
        return [f"127.0.0.1:{port}" for port in self.ports]

    def data(self, number):
        return self.folder / f"server{number}"

    def begin(self, number):
        self.data(number).mkdir(exist_ok=True)
        environment = dict(os.environ)
        if self.clocks:
            environment["LD_PRELOAD"] = str(self.bench.shim)
            environment["QUORATE_CLOCK_OFFSET_FILE"] = str(self.clocks[number])
        log = open(self.folder / f"server{number}.log", "ab")
        options = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "env": environment}
        self.processes[number] = self.bench.processes.start(self.command(number), **options)

    def serve(self, number):
        wait_until(lambda: self.serves(number), f"server {number} in {self.folder} serves")

    def kill(self, number):
        self.bench.processes.kill(self.processes[number])

    def restart_empty(self, number):
        """Returns false if the server does not start without its data."""
        self.kill(number)
        shutil.rmtree(self.data(number))
        self.data(number).mkdir()
        self.prepare_empty(number)
        self.begin(number)
        try:
            wait_until(lambda: self.serves(number) or self.processes[number].poll() is not None, "a start", 15)
        except RuntimeError:
            return False
        return self.processes[number].poll() is None

    def prepare_empty(self, number):
        pass

    def jump(self, number, seconds):
        with open(self.clocks[number], "r+b") as file, mmap.mmap(file.fileno(), 8) as shared:
            shared[:] = struct.pack("=q", seconds * 1_000_000_000)

    def leader(self):
        """The number of the server to kill: the leader, if the servers have one."""
        return 0

    def stop(self):
        for process in self.processes:
            if process is not None:
                self.bench.processes.kill(process)


class Redis(Servers):
    def command(self, number):
        return [
            "redis-server", "--port", self.ports[number], "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
            "--dir", self.data(number),
        ]

    def serves(self, number):
        return ask(self.ports[number], b"PING\r\n") == b"+PONG\r\n"


class Etcd(Servers):
    def prepare(self):
        self.peers = [self.bench.ports.take() for _ in self.ports]

    def command(self, number):
        client, peer = (f"http://127.0.0.1:{port}" for port in (self.ports[number], self.peers[number]))
        cluster = ",".join(f"m{n}=http://127.0.0.1:{port}" for n, port in enumerate(self.peers))
        return [
            self.bench.etcd, "--name", f"m{number}", "--data-dir", self.data(number) / "data",
            "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
            "--initial-advertise-peer-urls", peer, "--initial-cluster", cluster, "--initial-cluster-state", "new",
            "--initial-cluster-token", self.folder.name, "--logger", "zap",
        ]

    def serves(self, number):
        health = f"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n".encode()
        return b'"health":"true"' in ask(self.ports[number], health)

    def leader(self):
        for number, address in enumerate(self.addresses()):
            command = [self.bench.etcdctl, "--endpoints", address, "endpoint", "status", "-w", "fields"]
            environment = dict(os.environ, ETCDCTL_API="3")
            said = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=10).stdout
            fields = dict(line.split(" : ", 1) for line in said.splitlines() if " : " in line)
            if fields.get('"Leader"') and fields['"Leader"'] == fields.get('"MemberID"'):
                return number
        return 0


class ZooKeeper(Servers):
    def prepare(self):
        self.peers = [(self.bench.ports.take(), self.bench.ports.take()) for _ in self.ports]
        for number in range(len(self.ports)):
            self.data(number).mkdir(exist_ok=True)
            self.prepare_empty(number)

    def prepare_empty(self, number):
        members = [f"server.{n + 1}=127.0.0.1:{a}:{b}" for n, (a, b) in enumerate(self.peers)]
        lines = [
            "tickTime=500", "initLimit=20", "syncLimit=10", f"dataDir={self.data(number)}", "maxClientCnxns=0",
            f"clientPort={self.ports[number]}", "clientPortAddress=127.0.0.1", "admin.enableServer=false",
            "extendedTypesEnabled=true", "4lw.commands.whitelist=*", *members,
        ]
        (self.folder / f"zoo{number}.cfg").write_text("\n".join(lines) + "\n")
        (self.data(number) / "myid").write_text(str(number + 1))

    def command(self, number):
        return [
            *JAVA, "-cp", classpath(), "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            self.folder / f"zoo{number}.cfg",
        ]

    def serves(self, number):
        return b"Mode: " in ask(self.ports[number], b"srvr")

    def leader(self):
        modes = [ask(port, b"srvr") for port in self.ports]
        return next((number for number, mode in enumerate(modes) if b"Mode: leader" in mode), 0)


def classpath(*others):
    return ":".join([f"{JARS}/{name}.jar" for name in ZOOKEEPER] + [str(other) for other in others])


class Proxy:
    """Forwards connections to one server, until `freeze`: from then on it forwards nothing and closes nothing."""

    def __init__(self, bench, address):
        host, port = address.split(":")
        self.server, self.frozen, self.streams = (host, int(port)), False, []
        self.listener = socket.create_server(("127.0.0.1", bench.ports.take()))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            self.streams.append(client)
            if self.frozen:
                continue
            try:
                server = socket.create_connection(self.server)
            except OSError:
                client.close()
                continue
            self.streams.append(server)
            for source, target in ((client, server), (server, client)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self.forward, args=(source, target), daemon=True).start()

    def forward(self, source, target):
        try:
            while data := source.recv(65536):
                if self.frozen:
                    return
                target.sendall(data)
        except OSError:
            pass
        if not self.frozen:
            try:
                target.shutdown(socket.SHUT_WR)
            except OSError:
                pass

    def freeze(self):
        self.frozen = True

    def stop(self):
        for stream in [self.listener, *self.streams]:
            try:
                stream.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads from it
            except OSError:
                pass
            stream.close()
