"""Overwrites a volume of each of two racks until servers of both collect and both switches redirect reads. All that is read is
what was written.

    redirects.py SOCKET RACKWEAVE DATA DATA_PLANE
"""
import json
import random
import subprocess
import sys
import time

import nbd

SOCK, RACKWEAVE, DATA, PLANE = sys.argv[1:]
CHUNK, CHUNKS, BLOCK = 65536, 256, 4096
# Seconds until all of it must have happened.
PATIENCE = 180


def status():
    return json.loads(subprocess.run([RACKWEAVE, "status", "--json", "--data", DATA], capture_output=True, text=True, check=True).stdout)


class Volume:
    def __init__(self, name):
        self.rng, self.stamps = random.Random(name), [0] * CHUNKS
        self.h = nbd.NBD()
        self.h.set_export_name(name)
        self.h.connect_unix(SOCK)

    def contents(self, chunk):
        stamp = self.stamps[chunk]
        return random.Random(chunk << 32 | stamp).randbytes(16) * (BLOCK // 16) if stamp else bytes(BLOCK)

    def step(self):
        chunk = self.rng.randrange(CHUNKS)
        self.stamps[chunk] += 1
        self.h.pwrite(self.contents(chunk) * (CHUNK // BLOCK), chunk * CHUNK)
        for _ in range(2):
            self.check(self.rng.randrange(CHUNKS))

    def check(self, chunk):
        at = chunk * CHUNK + self.rng.randrange(CHUNK // BLOCK) * BLOCK
        assert self.h.pread(BLOCK, at) == self.contents(chunk), f"at {at}: not what write {self.stamps[chunk]} left"


MUST = ["reads", "writes", "redirects", "gc_accepted", "gc_finished", "far_states"]
volumes, end = [Volume(name) for name in ("first", "second")], time.monotonic() + PATIENCE
switch = status()["switch"]
assert switch["data_plane"] == PLANE, switch
while True:
    for _ in range(100):
        for v in volumes:
            v.step()
    counters = dict(status()["switch"]["counters"])
    if all(counters.get(name) for name in MUST):
        break
    assert time.monotonic() < end, f"not within {PATIENCE} s: {counters}"
for v in volumes:
    v.h.flush()
    for chunk in range(CHUNKS):
        v.check(chunk)
assert status()["switch"]["error"] is None
print("    " + ", ".join(f"{counters[name]} {name}" for name in MUST))
