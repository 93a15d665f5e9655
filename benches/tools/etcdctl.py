"""The client of `etcdctl lock` for `scripts/compare-tools`: it runs a command while the lock is held.

With `command`, etcdctl runs the command. With `alone`, etcdctl holds the lock until it is ended by a signal. The lines
of text that the client reads and prints are described in `compare.py`.
"""

import os
import signal
import subprocess
import sys
import threading


def say(line):
    os.write(1, (line + "\n").encode())


class Etcdctl:
    def __init__(self, mode, program, addresses, name, ttl):
        self.mode, self.started, self.job = mode, None, None
        seconds = max(1, int(ttl) // 1000)
        self.command = [program, "--endpoints", addresses, "lock", f"--ttl={seconds}", name]
        if mode == "command":
            self.command += ["--", "sh", "-c", 'echo "job $$ $ETCD_LOCK_REV"; exec sleep 100']

    def acquire(self, seconds):
        environment = dict(os.environ, ETCDCTL_API="3")
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        self.started = subprocess.Popen(self.command, env=environment, text=True, **pipes)
        self.acquired = self.released = False
        threading.Thread(target=self.watch, args=(self.started,), daemon=True).start()
        threading.Timer(seconds, self.give_up, args=(self.started,)).start()

    def watch(self, started):
        last = ""
        for line in started.stdout:
            last = line.strip()
            if self.acquired:
                continue
            if last.startswith("job "):
                _, job, revision = last.split()
                self.job = int(job)
                self.accept(revision)
            elif self.mode == "alone" and "/" in last and "error" not in last.lower():
                self.accept("-")
        started.wait()
        if not self.acquired:
            say(f"refused {last[:100]}")
        elif self.released:
            say("released")
        else:
            say(f"lost {last[:100]}")

    def accept(self, token):
        self.acquired = True
        say(f"acquired {token}")

    def give_up(self, started):
        if not self.acquired and started is self.started:
            started.terminate()

    def held(self):
        return self.started.poll() is None

    def release(self):
        self.released = True
        if self.mode == "command":
            os.kill(self.job, signal.SIGTERM)
        else:
            self.started.terminate()


def main():
    tool = Etcdctl(*sys.argv[1:6])
    say("ready")
    for line in sys.stdin:
        verb, *rest = line.split()
        if verb == "acquire":
            tool.acquire(float(rest[0]))
        elif verb == "held":
            say("held yes" if tool.held() else "held no")
        elif verb == "release":
            tool.release()
    os._exit(0)


main()
