"""A lock of the PyPI package `pottery`, driven by lines on standard input.

- "try" tries to acquire the lock, and prints "acquired" or "refused".
- "release" releases it, and prints "released".

Usage: python pottery_lock.py RESOURCE HOST:PORT ..   (its lock key is "redlock:" + RESOURCE)
"""

import sys

from pottery import Redlock
from redis import Redis

resource, *masters = sys.argv[1:]
clients = {Redis(host=m.split(":")[0], port=int(m.split(":")[1])) for m in masters}
lock = Redlock(key=resource, masters=clients, auto_release_time=20)
for line in sys.stdin:
    if line.strip() == "try":
        print("acquired" if lock.acquire(blocking=False) else "refused", flush=True)
    else:
        lock.release()
        print("released", flush=True)
