"""A client of a volume of each of two racks writes and reads all the while: without a rack's switch, and then without that and all of the
rack's servers.

    two_racks.py SOCKET MODEL RACKWEAVE DATA    and later    two_racks.py SOCKET MODEL
"""
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

import nbd

BLOCK, BLOCKS = 4096, 1024
SOCK, MODEL, *RACK = sys.argv[1:]
RACKS = [[0, 1, 2], [3, 4, 5]]
# Of a request, in seconds: a lease, and the way over the other rack.
SLOWEST = 10


def contents(block, stamp):
    return random.Random(block << 32 | stamp).randbytes(16) * (BLOCK // 16) if stamp else bytes(BLOCK)


class Volume(threading.Thread):
    def __init__(self, name, stamps=None):
        super().__init__(daemon=True, name=name)
        self.stamps, self.last, self.done, self.slowest = stamps or {}, 0, 0, 0
        self.rng, self.stop, self.failure = random.Random(name), False, None
        self.h = nbd.NBD()
        self.h.set_export_name(name)
        self.h.connect_unix(SOCK)

    def run(self):
        try:
            while not self.stop:
                begun = time.monotonic()
                self.step()
                self.slowest = max(self.slowest, time.monotonic() - begun)
                self.done += 1
        except BaseException as e:  # said by whoever looks
            self.failure = e

    def step(self):
        block = self.rng.randrange(BLOCKS)
        if self.rng.random() < 0.5:
            return self.check(block)
        self.last += 1
        self.h.pwrite(contents(block, self.last), block * BLOCK)
        self.stamps[str(block)] = self.last
        if self.last % 32 == 0:
            self.h.flush()

    def check(self, block):
        found, stamp = self.h.pread(BLOCK, block * BLOCK), self.stamps.get(str(block), 0)
        assert found == contents(block, stamp), f"{self.name}: block {block} is not what write {stamp} left"

    def goes_on(self, n=50):
        end, before = time.monotonic() + SLOWEST, self.done
        while self.done < before + n:
            assert not self.failure, f"{self.name}: {self.failure}"
            assert time.monotonic() < end, f"{self.name}: {self.done - before} requests in {SLOWEST} s"
            time.sleep(0.02)

    def verify(self):
        for block in range(BLOCKS):
            self.check(block)


def rackweave(*args):
    r = subprocess.run([RACK[0], *args, "--data", RACK[1]], capture_output=True, text=True)
    assert r.returncode == 0, f"rackweave {args}: {r.stderr}"
    return r.stdout


def status():
    return json.loads(rackweave("status", "--json"))


def home(s, volume):
    """The rack of most of its copies."""
    of = next(v["sets"] for v in s["volumes"] if v["name"] == volume)
    servers = [m["server"] for x in s["sets"] if x["set"] in of for m in x["members"]]
    return max((0, 1), key=lambda rack: sum(m in RACKS[rack] for m in servers))


def whole():
    s = status()
    vssds = [v for x in s["servers"] for v in x["vssds"]]
    members = all(v["serving"] and v["role"] == "member" for v in vssds)
    return members and len(vssds) == 3 * len(s["sets"]) and all(p["error"] is None for p in s["processes"])


class Away(threading.Thread):
    """A rack's switch, which ends whenever it is started again."""

    def __init__(self, rack):
        super().__init__(daemon=True)
        self.name_of, self.stop, self.kills, self.failure = "switch" if rack == 0 else f"switch-{rack}", False, 0, None
        self.start()

    def run(self):
        try:
            while not self.stop:
                pid = next(p["pid"] for p in status()["processes"] if p["name"] == self.name_of)
                if pid:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                        self.kills += 1
                time.sleep(0.05)
        except BaseException as e:  # said by whoever looks
            self.failure = e

    def end(self):
        self.stop = True
        self.join()
        assert not self.failure, f"{self.name_of}: {self.failure}"
        assert self.kills > 1, "it was started again meanwhile"


def until_whole(what):
    end = time.monotonic() + 60
    while not whole():
        assert time.monotonic() < end, f"not whole within 60 s after {what}"
        time.sleep(0.1)


if not RACK:
    with open(MODEL) as f:
        for name, stamps in json.load(f).items():
            Volume(name, stamps).verify()
    sys.exit()

now = status()
volumes = {home(now, name): Volume(name) for name in ("first", "second")}
assert len(volumes) == 2, "a volume of each rack"
for v in volumes.values():
    v.start()
for rack, servers in enumerate(RACKS):
    for v in volumes.values():
        v.goes_on()
        v.slowest = 0
    away = Away(rack)
    until = time.monotonic() + 3
    while time.monotonic() < until:
        # Requests of its own volume first try the switch, which is there for a moment each second.
        for v in volumes.values():
            v.goes_on(5)
    slowest = [volumes[r].slowest for r in (rack, 1 - rack)]
    print(f"    without the switch of rack {rack}: slowest request {slowest[0]:.2f} s of its own volume, {slowest[1]:.2f} s of the other")
    volumes[1 - rack].slowest = 0
    for s in servers:
        rackweave("server", "kill", str(s))
    until = time.monotonic() + 3
    while time.monotonic() < until:
        volumes[1 - rack].goes_on()
    print(f"    without its servers, too: slowest request {volumes[1 - rack].slowest:.2f} s of the other's volume")
    away.end()
    for s in servers:
        rackweave("server", "start", str(s))
    until_whole(f"the servers of rack {rack} started")
for v in volumes.values():
    v.goes_on()
    v.stop = True
    v.join(SLOWEST)
    assert not v.failure and not v.is_alive(), f"{v.name}: {v.failure}"
    v.h.flush()
    v.verify()
with open(MODEL, "w") as f:
    json.dump({v.name: v.stamps for v in volumes.values()}, f)
