"""kazoo's Lock as a peer of benches/versus.rs. Usage: python kazoo_peer.py HOST MODE COUNT"""

import sys
import threading
import time

from kazoo.client import KazooClient


def client(host):
    it = KazooClient(hosts=host, timeout=10)
    it.start()
    return it


def cycle(host, count):
    lock = client(host).Lock("/kazoo/cycle")
    for i in range(2 * count):
        began = time.monotonic()
        lock.acquire()
        lock.release()
        if i >= count:
            print(int((time.monotonic() - began) * 1e6))


def hand(host, turns):
    given, every = [0.0], []

    def one():
        lock = client(host).Lock("/kazoo/hand")
        for _ in range(turns):
            lock.acquire()
            if given[0]:
                every.append(time.monotonic() - given[0])
            given[0] = time.monotonic()
            lock.release()

    threads = [threading.Thread(target=one) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for took in every[10:]:
        print(int(took * 1e6))


if __name__ == "__main__":
    host, mode, count = sys.argv[1:4]
    (cycle if mode == "cycle" else hand)(host, int(count))
