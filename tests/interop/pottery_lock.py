"""Tries to acquire a lock with the PyPI package `pottery`, and prints "acquired" or "refused".

Keeps the lock until a line arrives on standard input.

Usage: python pottery_lock.py RESOURCE HOST:PORT ..   (its lock key is "redlock:" + RESOURCE)
"""

import sys

from pottery import Redlock
from redis import Redis

resource, *masters = sys.argv[1:]
clients = {Redis(host=m.split(":")[0], port=int(m.split(":")[1])) for m in masters}
lock = Redlock(key=resource, masters=clients, auto_release_time=20)
if lock.acquire(blocking=False):
    print("acquired", flush=True)
    sys.stdin.readline()
    lock.release()
    print("released", flush=True)
else:
    print("refused", flush=True)
