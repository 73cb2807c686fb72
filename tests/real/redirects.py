"""Overwrites a volume of each of two racks until servers collect, the switches hear of it, and reads are redirected. All that is read is
what was written. Then without the servers of the first rack its switch, if it is in the kernel, redirects reads to the other rack.

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
PATIENCE = 90


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
    if all(map(counters.get, MUST)):
        break
    assert time.monotonic() < end, f"not within {PATIENCE} s: {counters}"
for v in volumes:
    v.h.flush()
    for chunk in range(CHUNKS):
        v.check(chunk)
assert status()["switch"]["error"] is None
print("    " + ", ".join(f"{counters[name]} {name}" for name in MUST))
if PLANE == "process":
    sys.exit()

# A read as the programs see it, from the gateway's host: clients need none of these once they know that their servers are gone.
SEND = """import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for vssd in sys.argv[1:]:
    s.sendto(b"\\x03" + int(vssd).to_bytes(4, "big") + bytes(75), ("10.0.0.2", 21079))
"""
with open(f"{DATA}/namespaces") as f:
    gateway = dict(line.split() for line in f)["gateway-0"]
vssds = [str(m["vssd"]) for x in status()["sets"] for m in x["members"] if m["server"] < 3]
for server in range(3):
    subprocess.run([RACKWEAVE, "server", "kill", str(server), "--data", DATA], capture_output=True, check=True)
end = time.monotonic() + 30
while not (far := dict(status()["switch"]["counters"]).get("redirects_far", 0)):
    assert time.monotonic() < end, "no read for a silent server's vSSD went to the other rack within 30 s"
    subprocess.run(["nsenter", f"--net={gateway}", "/usr/bin/python3", "-c", SEND, *vssds], check=True)
print(f"    {far} redirects_far without the servers of rack 0")
