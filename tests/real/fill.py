"""Fills volume `big`, MiB by MiB: until-full | write FROM TO TAG | check FROM TO [TAG] | trim FROM TO."""
import errno
import random
import sys

import nbd

MIB = 1 << 20
SOCK, MODE = sys.argv[1], sys.argv[2]


def contents(i, tag):
    return random.Random(f"{tag}{i}").randbytes(MIB)


h = nbd.NBD()
h.set_export_name("big")
h.connect_unix(SOCK)
if MODE == "until-full":
    i = 0
    try:
        while i * MIB < h.get_size():
            h.pwrite(contents(i, "first"), i * MIB)
            i += 1
    except nbd.Error as e:
        assert e.errnum == errno.ENOSPC, e
    else:
        raise AssertionError("the rack took more than its flash holds")
    h.flush()
    print(i)
else:
    first, end = int(sys.argv[3]), int(sys.argv[4])
    tag = sys.argv[5] if len(sys.argv) > 5 else "first"
    if MODE == "trim":
        h.trim((end - first) * MIB, first * MIB)
        h.flush()
    for i in range(first, end):
        if MODE == "write":
            h.pwrite(contents(i, tag), i * MIB)
        elif MODE == "check":
            assert h.pread(MIB, i * MIB) == contents(i, tag), f"MiB {i} is not what was written"
        elif MODE == "trim":
            assert h.pread(MIB, i * MIB) == bytes(MIB), f"MiB {i} is not zero after its trim"
    if MODE == "write":
        h.flush()
