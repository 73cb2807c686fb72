"""Writes and reads a volume of each of two racks while the other's switch is killed and all of its servers are away.

    two_racks.py SOCKET MODEL RACKWEAVE DATA    and later    two_racks.py SOCKET MODEL
"""
import json
import os
import random
import signal
import subprocess
import sys
import time

import nbd

BLOCK, BLOCKS = 4096, 4096
SOCK, MODEL, *RACK = sys.argv[1:]
RACKS = [[0, 1, 2], [3, 4, 5]]


def contents(block, stamp):
    return random.Random(block << 32 | stamp).randbytes(16) * (BLOCK // 16) if stamp else bytes(BLOCK)


class Volume:
    def __init__(self, name, stamps=None):
        self.name, self.stamps, self.last = name, stamps or {}, 0
        self.rng = random.Random(name)
        self.h = nbd.NBD()
        self.h.set_export_name(name)
        self.h.connect_unix(SOCK)

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

    def go_on(self, seconds=1.0):
        """The slowest request."""
        slowest, end = 0, time.monotonic() + seconds
        while (begun := time.monotonic()) < end:
            self.step()
            slowest = max(slowest, time.monotonic() - begun)
        return slowest

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
    return len(vssds) == 3 * len(s["sets"]) and all(v["serving"] and v["role"] == "member" for v in vssds)


if not RACK:
    with open(MODEL) as f:
        for name, stamps in json.load(f).items():
            Volume(name, stamps).verify()
    sys.exit()

now = status()
volumes = {home(now, name): Volume(name) for name in ("first", "second")}
assert len(volumes) == 2, "a volume of each rack"
for v in volumes.values():
    v.go_on()
for rack, servers in enumerate(RACKS):
    other = volumes[1 - rack]
    switch = "switch" if rack == 0 else f"switch-{rack}"
    os.kill(next(p["pid"] for p in status()["processes"] if p["name"] == switch), signal.SIGKILL)
    for s in servers:
        rackweave("server", "kill", str(s))
    slowest = other.go_on(3)
    for s in servers:
        rackweave("server", "start", str(s))
    end = time.monotonic() + 30
    while not whole():
        assert time.monotonic() < end, f"not whole within 30 s after the servers of rack {rack} started"
        time.sleep(0.1)
    volumes[rack].go_on()
    print(f"    without the switch and the servers of rack {rack}: the other's volume goes on, its slowest request {slowest:.2f} s")
for v in volumes.values():
    v.h.flush()
    v.verify()
with open(MODEL, "w") as f:
    json.dump({v.name: v.stamps for v in volumes.values()}, f)
