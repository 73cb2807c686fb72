"""A faulty host: a FUSE file system over one flat directory whose files fail as CONTROL says. FUSE's protocol is spoken here, so
nothing but the kernel is needed; every read and write comes here as it was asked for (no page cache in between).

    faulty.py DIRECTORY MOUNT CONTROL COUNTS

CONTROL is JSON, looked at before each request; replace it by renaming. Keys, each optional:
    read, write, fsync, allocate   {"error": "EIO", "files": ["a"], "from": 0, "to": 4096, "chance": 0.5, "times": 1}
    short_reads, short_writes      chance that only a part is done (of a read perhaps nothing); "files" beside them
    delay_ms                       before each answer
    hang                           {"files": ["a"]}: fsyncs of these are answered when this key is gone (and a request comes)
COUNTS is a line of JSON: how often each fault was met. Ready when MOUNT has files.
"""
import ctypes
import errno
import json
import os
import random
import struct
import sys
import time

(LOOKUP, FORGET, GETATTR, SETATTR, OPEN, READ, WRITE, STATFS, RELEASE, FSYNC, FLUSH, INIT, INTERRUPT, DESTROY, BATCH_FORGET,
 FALLOCATE) = 1, 2, 3, 4, 14, 15, 16, 17, 18, 20, 25, 26, 36, 38, 42, 43
ROOT, WRITE_MAX, DIRECT_IO = 1, 1 << 20, 1
BIG_WRITES, MAX_PAGES = 1 << 5, 1 << 22
SET_MODE, SET_SIZE = 1 << 0, 1 << 3

directory, mount_at, control, counts_at = sys.argv[1:]
rng = random.Random(1)
nodes = {}  # node id: (name, descriptor)
faults, stamp, counts = {}, None, {}
counts_file = os.open(counts_at, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)


def count(what):
    counts[what] = counts.get(what, 0) + 1
    os.pwrite(counts_file, (json.dumps(counts) + "\n").encode(), 0)


def load():
    global faults, stamp
    try:
        s = os.stat(control)
    except FileNotFoundError:
        return
    if stamp != (s.st_ino, s.st_mtime_ns):
        stamp = (s.st_ino, s.st_mtime_ns)
        with open(control) as f:
            faults = json.load(f)


def concerns(name):
    return name in faults.get("files", [name])


def fail(op, name, offset=0, size=1 << 62):
    f = faults.get(op)
    if not f or f.get("times") == 0 or name not in f.get("files", [name]):
        return
    if offset >= f.get("to", 1 << 62) or offset + size <= f.get("from", 0) or rng.random() >= f.get("chance", 1):
        return
    if "times" in f:
        f["times"] -= 1
    count(op)
    raise OSError(getattr(errno, f["error"]), op)


def attr(node):
    s = os.fstat(nodes[node][1]) if node != ROOT else os.stat(directory)
    ns = [s.st_atime_ns, s.st_mtime_ns, s.st_ctime_ns]
    whole, part = [t // 10**9 for t in ns], [t % 10**9 for t in ns]
    return struct.pack("<6Q10I", node, s.st_size, s.st_blocks, *whole, *part, s.st_mode, s.st_nlink, s.st_uid, s.st_gid, 0,
                       4096, 0)


def lookup(node, body):
    name = body.rstrip(b"\0").decode()
    found = next((n for n, (known, _) in nodes.items() if known == name), None)
    if found is None:
        fd = os.open(os.path.join(directory, name), os.O_RDWR)
        found = len(nodes) + 2
        nodes[found] = (name, fd)
    return struct.pack("<4Q2I", found, 0, 0, 0, 0, 0) + attr(found)


def read(node, body):
    name, fd = nodes[node]
    _, offset, size = struct.unpack_from("<2QI", body)
    fail("read", name, offset, size)
    if concerns(name) and size > 1 and rng.random() < faults.get("short_reads", 0):
        count("short_reads")
        size = rng.randrange(0, size)
    return os.pread(fd, size, offset)


def write(node, body):
    name, fd = nodes[node]
    _, offset, size = struct.unpack_from("<2QI", body)
    fail("write", name, offset, size)
    if concerns(name) and size > 1 and rng.random() < faults.get("short_writes", 0):
        count("short_writes")
        size = rng.randrange(1, size)
    return struct.pack("<2I", os.pwrite(fd, memoryview(body)[40:40 + size], offset), 0)


def setattr_(node, body):
    valid, _, _, size = struct.unpack_from("<2I2Q", body)
    if valid & SET_SIZE:
        os.ftruncate(nodes[node][1], size)
    if valid & SET_MODE:
        os.fchmod(nodes[node][1], struct.unpack_from("<I", body, 68)[0])
    return struct.pack("<Q2I", 0, 0, 0) + attr(node)


def fsync(node, _):
    name, fd = nodes[node]
    fail("fsync", name)
    os.fdatasync(fd)
    return b""


def hangs(op, node):
    return op == FSYNC and nodes[node][0] in faults.get("hang", {}).get("files", [])


libc = ctypes.CDLL(None, use_errno=True)


def allocate(node, body):
    name, fd = nodes[node]
    _, offset, length, mode = struct.unpack_from("<3QI", body)
    fail("allocate", name, offset, length)
    if libc.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length)) != 0:
        raise OSError(ctypes.get_errno(), "fallocate")
    return b""


def statfs(_, __):
    s = os.statvfs(directory)
    return struct.pack("<5Q4I24x", s.f_blocks, s.f_bfree, s.f_bavail, s.f_files, s.f_ffree, s.f_bsize, 255, s.f_frsize, 0)


def init(_, body):
    major, minor, readahead, flags = struct.unpack_from("<4I", body)
    flags &= BIG_WRITES | MAX_PAGES
    return struct.pack("<4I2H2I2HI28x", 7, min(minor, 31), readahead, flags, 16, 12, WRITE_MAX, 1, WRITE_MAX // 4096, 0, 0)


ANSWERS = {
    INIT: init,
    LOOKUP: lookup,
    GETATTR: lambda node, _: struct.pack("<Q2I", 0, 0, 0) + attr(node),
    SETATTR: setattr_,
    OPEN: lambda node, _: struct.pack("<Q2I", 0, DIRECT_IO, 0),
    READ: read,
    WRITE: write,
    FSYNC: fsync,
    FALLOCATE: allocate,
    STATFS: statfs,
    FLUSH: lambda *_: b"",
    RELEASE: lambda *_: b"",
}

dev = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={dev},rootmode=40000,user_id=0,group_id=0".encode()
if libc.mount(b"faulty", mount_at.encode(), b"fuse", 6, options) != 0:  # no suid, no devices
    sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")


def answer(op, unique, node, body):
    try:
        done, error = ANSWERS[op](node, body), 0
    except KeyError:
        done, error = b"", errno.ENOSYS
    except OSError as e:
        done, error = b"", e.errno
    try:
        os.write(dev, struct.pack("<IiQ", 16 + len(done), -error, unique) + done)
    except FileNotFoundError:
        pass  # whoever asked is gone


held = []  # requests that hang
while True:
    try:
        request = os.read(dev, WRITE_MAX + 8192)
    except OSError as e:
        if e.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
            continue
        sys.exit(0 if e.errno == errno.ENODEV else f"/dev/fuse: {e}")
    _, op, unique, node = struct.unpack_from("<2I2Q", request)
    if op in (FORGET, BATCH_FORGET, INTERRUPT, DESTROY):
        continue
    load()
    if faults.get("delay_ms"):
        time.sleep(faults["delay_ms"] / 1000)
    held.append((op, unique, node, request[40:]))
    ready = [r for r in held if not hangs(r[0], r[2])]
    held = [r for r in held if hangs(r[0], r[2])]
    for r in ready:
        answer(*r)
