"""The clients of three Python libraries for `scripts/compare-tools`: redis-py, python-redis-lock and pottery.

Each is used as its documentation shows. The lines of text that the client reads and prints are described in
`compare.py`.
"""

import os
import sys
import time

from redis import Redis


def say(line):
    os.write(1, (line + "\n").encode())


class RedisPy:
    """redis.lock.Lock. It has a timeout and no renewal."""

    def __init__(self, addresses, name, ttl):
        self.redis = [client(address) for address in addresses][0]
        self.redis.ping()
        self.name, self.ttl = name, ttl

    def acquire(self, seconds):
        self.lock = self.redis.lock(self.name, timeout=self.ttl)
        return self.lock.acquire(blocking_timeout=seconds)

    def held(self):
        return self.lock.owned()

    def release(self):
        self.lock.release()


class PythonRedisLock(RedisPy):
    """redis_lock.Lock with auto_renewal: a thread extends the lock after two thirds of its time."""

    def acquire(self, seconds):
        import redis_lock

        self.lock = redis_lock.Lock(self.redis, self.name, expire=int(self.ttl), auto_renewal=True)
        # Without a timeout, as in `with lock:`. With a timeout, a waiter would not look again before its end.
        return self.lock.acquire()

    def held(self):
        return self.lock.get_owner_id() == self.lock.id


class Pottery:
    """pottery.Redlock. The caller may extend the lock three times; there is no renewal."""

    def __init__(self, addresses, name, ttl):
        self.masters = {client(address) for address in addresses}
        for master in self.masters:
            master.ping()
        self.name, self.ttl = name, ttl

    def acquire(self, seconds):
        from pottery import Redlock

        self.lock = Redlock(key=self.name, masters=self.masters, auto_release_time=self.ttl)
        return self.lock.acquire(blocking=True, timeout=seconds)

    def held(self):
        return self.lock.locked() > 0

    def release(self):
        self.lock.release()


def client(address):
    host, port = address.split(":")
    return Redis(host=host, port=int(port))


def reason(error):
    return f"{type(error).__name__} {error}".replace("\n", " ")[:100]


def release(tool):
    try:
        tool.release()
        return "released"
    except Exception as error:
        return "failed " + reason(error)


def fork(tool, what):
    child = os.fork()
    if child:
        say(f"forked {child}")
        if what == "release":
            os.waitpid(child, 0)
        return
    if what == "release":
        say("child " + release(tool))
    else:
        time.sleep(60)
    os._exit(0)


def main():
    which, addresses, name, ttl = sys.argv[1:5]
    kinds = {"redis-py": RedisPy, "python-redis-lock": PythonRedisLock, "pottery": Pottery}
    tool = kinds[which](addresses.split(","), name, int(ttl) / 1000)
    say("ready")
    for line in sys.stdin:
        verb, *rest = line.split()
        if verb == "release":
            say(release(tool))
            continue
        if verb == "fork":
            fork(tool, rest[0])
            continue
        try:
            if verb == "acquire":
                say("acquired -" if tool.acquire(float(rest[0])) else "refused held")
            elif verb == "held":
                say("held yes" if tool.held() else "held no")
        except Exception as error:
            say("refused " + reason(error) if verb == "acquire" else "held " + reason(error))
    os._exit(0)


main()
