"""Two clients of volume `v` while the host fails below the rack's files: one writes and remembers, one reads what never changes.
Every block that was acknowledged reads as it was written, and no request fails but for want of room.

    host_faults.py WORK SOCKET LOG|verify      (environment: rackweave, data)
"""
import errno
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

import nbd

WORK, SOCK, LOG = sys.argv[1:]
DATA, DRIVES, STORE = os.environ["data"], ["ssd-0.rwk", "ssd-1.rwk", "ssd-2.rwk"], "meta.redb"
BLOCK, STILL, WRITTEN = 4096, range(0, 1024), range(1024, 9216)  # blocks
WAIT_MAX = 20


def connect():
    h = nbd.NBD()
    h.set_export_name("v")
    h.connect_unix(SOCK)
    return h


def contents(block, stamp):
    return random.Random(block << 32 | stamp).randbytes(16) * (BLOCK // 16) if stamp else bytes(BLOCK)


def rackweave(*args):
    return subprocess.run([os.environ["rackweave"], *args, "--data", DATA], capture_output=True, text=True)


def status():
    r = rackweave("status", "--json")
    assert r.returncode == 0, f"status: {r.stderr}"
    return json.loads(r.stdout)


def whole(s):
    vssds = [v for x in s["servers"] for v in x["vssds"]]
    members = all(m["role"] == "member" for x in s["sets"] for m in x["members"])
    serving = len(vssds) == 3 * len(s["sets"]) and all(v["serving"] and v["role"] == "member" for v in vssds)
    sound = not any(x["drive_fault"] for x in s["servers"]) and not s["rack"]["store_error"]
    return serving and members and sound and all(p["error"] is None for p in s["processes"])


def until(what, condition, seconds=WAIT_MAX):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        writer.check()
        reader.check()
        time.sleep(0.05)


class Client(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.done, self.failure, self.stop = 0, None, False
        self.h = connect()

    def run(self):
        try:
            while not self.stop:
                self.step()
                self.done += 1
        except BaseException as e:  # said by whoever looks
            self.failure = e

    def check(self):
        if self.failure:
            raise AssertionError(f"{type(self).__name__}: {self.failure}")

    def goes_on(self, n=20):
        before = self.done
        until(f"{type(self).__name__} goes on", lambda: self.done >= before + n)

    def end(self):
        self.stop = True
        self.join(WAIT_MAX)
        assert not self.is_alive(), f"{type(self).__name__} hangs"
        self.check()


class Reader(Client):
    rng = random.Random(1)

    def step(self):
        first = self.rng.randrange(len(STILL) - 8)
        n = self.rng.randrange(1, 9)
        found = self.h.pread(n * BLOCK, first * BLOCK)
        assert found == b"".join(contents(b, 1) for b in range(first, first + n)), f"blocks {first} to {first + n} read wrong"


class Writer(Client):
    rng = random.Random(2)
    stamp, refused, flushes = 1, 0, 0
    # Small and few until the disk is to be full, so that drives have not grown to their whole size by then.
    sizes, pause = [1, 1, 4, 16], 0.005

    def __init__(self, model):
        super().__init__()
        self.model = model  # block: stamps that it may have, the last one acknowledged first

    def step(self):
        first = self.rng.randrange(WRITTEN.start, WRITTEN.stop - max(self.sizes))
        blocks = range(first, first + self.rng.choice(self.sizes))
        if self.rng.random() < 0.3:
            found = self.h.pread(len(blocks) * BLOCK, first * BLOCK)
            for i, b in enumerate(blocks):
                part = found[i * BLOCK:(i + 1) * BLOCK]
                seen = [s for s in self.model.get(b, [0]) if part == contents(b, s)]
                assert seen, f"block {b} is none of {self.model.get(b, [0])}"
                self.model[b] = seen[:1]
            return
        self.stamp += 1
        data = b"".join(contents(b, self.stamp) for b in blocks)
        try:
            self.h.pwrite(data, first * BLOCK)
        except nbd.Error as e:
            assert e.errnum == errno.ENOSPC, f"write: {e}"
            self.refused += 1
            # A request of several blocks may have been done in part.
            for b in blocks:
                self.model[b] = self.model.get(b, [0]) + [self.stamp]
            time.sleep(0.01)
            return
        for b in blocks:
            self.model[b] = [self.stamp]
        if self.rng.random() < 0.05:
            self.h.flush()
            self.flushes += 1
        time.sleep(self.pause)


def verify(h, model):
    for first in range(0, WRITTEN.stop, 64):
        found = h.pread(64 * BLOCK, first * BLOCK)
        for i, b in enumerate(range(first, first + 64)):
            part, may = found[i * BLOCK:(i + 1) * BLOCK], [1] if b in STILL else model.get(b, [0])
            assert any(part == contents(b, s) for s in may), f"block {b} is none of {may}"


def control(**faults):
    with open(f"{WORK}/control.new", "w") as f:
        json.dump(faults, f)
    os.rename(f"{WORK}/control.new", f"{WORK}/control")


def counts():
    with open(f"{WORK}/counts") as f:
        line = f.readline()
    return json.loads(line) if line else {}


def fault(what, seconds, **faults):
    """The faults come and go while both clients go on; each was met."""
    before = counts()
    control(**faults)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        writer.goes_on()
        reader.goes_on()
    control()
    met = {k: n - before.get(k, 0) for k, n in counts().items() if n > before.get(k, 0)}
    assert met, f"{what}: no fault was met"
    writer.goes_on()
    reader.goes_on()
    print(f"    {what}: met {met}")


def healed():
    return sum(v["healed"] for x in status()["servers"] for v in x["vssds"])


def log():
    with open(LOG, errors="replace") as f:
        return f.read()


def said(*words):
    lines = log().splitlines()
    assert any(all(w in line for w in words) for line in lines), f"not said: {words}"


def starved():
    return [x["server"] for x in status()["servers"] if "no space left" in (x["drive_fault"] or "")]


def full_disk():
    """Another file fills the disk that all files of the rack lie on, the metadata service's too."""
    filler = f"{WORK}/disk/filler"
    writer.sizes, writer.pause = [64, 128], 0

    def fill():
        with open(filler, "ab", buffering=0) as f:
            try:
                while True:
                    f.write(bytes(1 << 16))
            except OSError as e:
                assert e.errno == errno.ENOSPC, e

    # Again and again: a drive that finds less than it wants to grow by gives back what it found. The first one that must grow keeps
    # the others waiting.
    until("the status says that there is no room", lambda: fill() or starved(), 60)
    server, writer.sizes = starved()[0], [1, 4]
    until("the metadata service knows that there is no room", lambda: fill() or status()["rack"]["store_error"])
    r = rackweave("volume", "create", "w", "--size", "4M")
    assert r.returncode != 0 and "meta.redb" in r.stderr and "nothing was changed" in r.stderr, f"volume create: {r}"
    shown = rackweave("status").stdout
    assert f"WARNING: server {server}: " in shown and f"ssd-{server}.rwk: no space left on the host's disk" in shown, shown
    # Longer than any lease.
    begun, refused = time.monotonic(), writer.refused
    while time.monotonic() < begun + 3:
        reader.goes_on()
    s = status()
    # Leases go on. The first drive that takes nothing leaves its sets, and is filled when there is room.
    serving = [v["set"] for x in s["servers"] for v in x["vssds"] if v["serving"]]
    assert all(serving.count(x["set"]) >= 2 for x in s["sets"]), f"too few serve: {s['sets']}, {s['rack']['store_error']}"
    if s["processes"]:
        # What the metadata service must write for the set to go on has its space; a new process has none for its incarnation.
        # Not the one that waits for room: it is to say below that it has it.
        killed = 2 if server != 2 else 1
        file = f"server-{killed}/incarnation"
        os.kill(next(p["pid"] for p in s["processes"] if p["name"] == f"server-{killed}"), signal.SIGKILL)
        until("the sets go on without it", lambda: all(m["server"] != killed for x in status()["sets"] for m in x["members"]))
        until("it says why it does not start", lambda: any(file in line and "No space left" in line for line in log().splitlines()))
        reader.goes_on(100)
    os.unlink(filler)
    emptied = time.monotonic()
    writer.goes_on(100)
    until("the rack is whole again", lambda: whole(status()))
    took = time.monotonic() - emptied
    assert rackweave("volume", "create", "w", "--size", "4M").returncode == 0, "volume create"
    assert rackweave("volume", "delete", "w").returncode == 0, "volume delete"
    said(DATA, f"ssd-{server}.rwk", "no space left on the host's disk")
    said(DATA, f"ssd-{server}.rwk", "the host's disk has space again")
    said("the metadata service cannot write", DATA, "meta.redb")
    said("the metadata service can write again")
    print(f"    a full disk: {writer.refused - refused} writes refused, {took:.1f} s from there being room to all going on")


def one_full_disk():
    """Only one drive finds no room: its sets go on without it, flushes too, and take it back."""
    no_room = {"error": "ENOSPC", "files": DRIVES[1:2]}
    refused = writer.refused
    control(write=no_room, allocate=no_room)
    until("the status says which sets go on without it", lambda: "Sets that go on without it: " in (status()["servers"][1]["drive_fault"] or ""))
    until("all of them do", lambda: all(len(x["members"]) == 2 for x in status()["sets"]))
    before, met = writer.flushes, writer.refused
    writer.goes_on(200)
    until("flushes end", lambda: writer.flushes > before + 5)
    assert writer.refused == met, "nobody asks it for room"
    control()
    until("it is a member again", lambda: whole(status()))
    print(f"    one full disk: {met - refused} writes refused before its sets went on without it")


def failed_fsync():
    control(fsync={"error": "EIO", "files": [DRIVES[1]], "times": 1})
    until("the drive has failed", lambda: "a write or sync failed" in (status()["servers"][1]["drive_fault"] or ""))
    writer.goes_on(100)
    reader.goes_on(100)
    # It stays so, though each further fsync would succeed (protocol rule 12).
    assert "a write or sync failed" in status()["servers"][1]["drive_fault"]
    said(DATA, "ssd-1.rwk: a write or sync failed (Input/output error", "until its server restarts")
    for c in ("kill", "start"):
        r = rackweave("server", c, "1")
        assert r.returncode == 0, f"server {c}: {r.stderr}"
        writer.goes_on()
    until("the server is a member again", lambda: whole(status()))
    print("    a failed fsync: out until its server started again")


def volumes():
    return [v["name"] for v in status()["volumes"]]


def hanging_store():
    """The disk hangs below the metadata service's file: leases, reads and writes go on for longer than any lease; nothing is stored."""
    control(hang={"files": [STORE]})
    creating = subprocess.Popen([os.environ["rackweave"], "volume", "create", "x", "--size", "4M", "--data", DATA],
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    slowest, begun = 0, time.monotonic()
    while time.monotonic() < begun + 4:
        before = time.monotonic()
        writer.goes_on(1)
        reader.goes_on(1)
        slowest = max(slowest, time.monotonic() - before)
    assert slowest < 1, f"clients stood still for {slowest:.1f} s"
    until("the status says that it hangs", lambda: "hangs" in (status()["rack"]["store_error"] or ""))
    r = rackweave("volume", "create", "y", "--size", "4M")
    assert r.returncode != 0 and STORE in r.stderr and "nothing was changed" in r.stderr, f"volume create: {r}"
    s = status()
    assert all(v["serving"] for x in s["servers"] for v in x["vssds"]), "leases go on"
    control()
    until("it is stored", lambda: volumes() == ["v", "x"] and not status()["rack"]["store_error"])
    creating.wait(WAIT_MAX)
    assert rackweave("volume", "delete", "x").returncode == 0, "volume delete"
    said("the metadata service cannot write", DATA, STORE, "hangs")
    print(f"    a disk that hangs below {STORE}: clients' longest wait {slowest:.2f} s")


model_at = f"{WORK}/model"
if LOG == "verify":
    with open(model_at) as f:
        verify(connect(), {int(b): s for b, s in json.load(f).items()})
    sys.exit()

h = connect()
for first in range(0, len(STILL), 256):
    h.pwrite(b"".join(contents(b, 1) for b in range(first, first + 256)), first * BLOCK)
h.flush()
reader, writer = Reader(), Writer({})
reader.start()
writer.start()
writer.goes_on(200)
before = healed()
fault("reads fail at one server", 1.5, read={"error": "EIO", "files": DRIVES[:1]})
until("what could not be read was healed", lambda: healed() > before)
fault("reads fail in a part of another file", 1.5, read={"error": "EIO", "files": DRIVES[2:], "from": 8 << 20, "to": 40 << 20})
said(DATA, "ssd-0.rwk", "reads failed (Input/output error")
fault("short reads and writes of every drive", 2, short_reads=0.5, short_writes=0.5, files=DRIVES)
fault("a slow disk", 0.5, delay_ms=2, short_reads=0.1, files=DRIVES)
until("the rack is whole", lambda: whole(status()))
no_room = {"error": "ENOSPC", "files": DRIVES}
control(write=no_room, allocate=no_room)
until("the status says that there is no room", starved)
reader.goes_on(100)
control()
writer.goes_on(100)
until("the rack is whole", lambda: whole(status()))
print(f"    all drives' files full: {writer.refused} writes refused")
one_full_disk()
failed_fsync()
hanging_store()
full_disk()
writer.end()
reader.end()
h.flush()
verify(h, writer.model)
with open(model_at, "w") as f:
    json.dump(writer.model, f)
print(f"    {writer.done} steps of the writer, {reader.done} of the reader, all as written")
