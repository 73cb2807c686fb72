"""A writer that remembers: `write` stamps blocks and journals what a flush has covered until the server dies;
`check` reads every block back. A block may hold any stamp written since the last flushed one, never an older one."""
import json
import os
import random
import struct
import sys

import nbd

MODE, SOCK, JOURNAL, LIFE = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
BLOCKS = 4096
SIZE = 4096


def connect():
    h = nbd.NBD()
    h.set_export_name("v")
    h.connect_unix(SOCK)
    return h


def stamp(block, n):
    return struct.pack("<QQ", block, n) * (SIZE // 16)


def load():
    """flushed[block] = last stamp known to be on flash; maybe[block] = stamps written after it."""
    if not os.path.exists(JOURNAL):
        return {}, {}, 0
    with open(JOURNAL) as f:
        s = json.load(f)
    return {int(k): v for k, v in s["flushed"].items()}, {int(k): v for k, v in s["maybe"].items()}, s["next"]


def save(flushed, maybe, nxt):
    with open(JOURNAL + ".new", "w") as f:
        json.dump({"flushed": flushed, "maybe": maybe, "next": nxt}, f)
        f.flush()
        os.fsync(f.fileno())
    os.rename(JOURNAL + ".new", JOURNAL)


def write():
    flushed, maybe, n = load()
    rng = random.Random(LIFE)
    h = connect()
    open(f"{JOURNAL}.go.{LIFE}", "w").close()
    try:
        while True:
            since = {}
            for _ in range(rng.randrange(1, 64)):
                b = rng.randrange(BLOCKS)
                n += 1
                maybe.setdefault(b, []).append(n)
                h.pwrite(stamp(b, n), b * SIZE)
                since[b] = n
            h.flush()
            for b, at in since.items():
                flushed[b] = at
                maybe[b] = [m for m in maybe[b] if m > at]
    except nbd.Error:
        pass
    save(flushed, maybe, n)


def check():
    flushed, maybe, n = load()
    h = connect()
    for b in range(BLOCKS):
        data = h.pread(SIZE, b * SIZE)
        low = flushed.get(b, 0)
        if data == bytes(SIZE):
            assert low == 0, f"block {b} is gone; stamp {low} was flushed"
            at = 0
        else:
            block, at = struct.unpack("<QQ", data[:16])
            assert data == stamp(block, at), f"block {b} is torn"
            assert block == b, f"block {b} holds block {block}"
            assert at == low or at in maybe.get(b, []), f"block {b} holds stamp {at}; flushed {low}, later {maybe.get(b)}"
        flushed[b] = at
    h.flush()
    save({b: v for b, v in flushed.items() if v}, {}, n)


write() if MODE == "write" else check()
