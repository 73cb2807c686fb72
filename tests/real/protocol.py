"""Drives every NBD command and each option-haggling error through libnbd, and bad bytes through a bare socket."""
import errno
import os
import random
import socket
import struct
import sys

import nbd

SOCK = sys.argv[1]
MIB = 1 << 20


def connect(name="vm0", structured=True):
    h = nbd.NBD()
    h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
    h.set_request_structured_replies(structured)
    h.set_export_name(name)
    h.connect_unix(SOCK)
    # Let requests out of range through to the server: it is the one under test.
    h.set_strict_mode(0)
    return h


def refused(code, call, *args, **kw):
    try:
        call(*args, **kw)
    except nbd.Error as e:
        assert e.errnum == code, f"{call.__name__}{args}: {e.errno} {e}, expected {errno.errorcode[code]}"
        return
    raise AssertionError(f"{call.__name__}{args} was accepted, expected {errno.errorcode[code]}")


def extents(h, count, offset, flags=0):
    got = []
    h.block_status(count, offset, lambda ctx, off, entries, err: got.extend(entries) or 0, flags)
    return list(zip(got[::2], got[1::2]))


def commands(h):
    data = random.Random(7).randbytes(MIB)
    h.pwrite(data, 512)
    assert h.pread(MIB, 512) == data
    assert h.pread(512, 0) == bytes(512)
    h.pwrite(b"x" * 512, 4096, nbd.CMD_FLAG_FUA)
    assert h.pread(512, 4096) == b"x" * 512
    h.flush()
    h.trim(256 * 1024, 64 * 1024)
    assert h.pread(256 * 1024, 64 * 1024) == bytes(256 * 1024)
    h.zero(5 * 512, 512 * 1024 + 512)
    assert h.pread(5 * 512, 512 * 1024 + 512) == bytes(5 * 512)
    assert h.pread(512, 512 * 1024) == data[512 * 1024 - 512:512 * 1024]
    h.zero(64 * 1024, 8 * MIB, nbd.CMD_FLAG_NO_HOLE)
    assert extents(h, 64 * 1024, 8 * MIB)[0][1] & nbd.STATE_HOLE == 0
    assert extents(h, 16 * MIB, 32 * MIB)[0][1] == nbd.STATE_HOLE | nbd.STATE_ZERO
    assert len(extents(h, 64 * MIB, 0, nbd.CMD_FLAG_REQ_ONE)) == 1
    chunks = []
    h.pread_structured(MIB, 0, lambda buf, off, status, err: chunks.append((off, status)) or 0)
    assert chunks
    one = []
    h.pread_structured(MIB, 0, lambda buf, off, status, err: one.append(off) or 0, nbd.CMD_FLAG_DF)
    assert len(one) == 1, one


def errors(h):
    size = h.get_size()
    refused(errno.EINVAL, h.pread, 512, size)
    refused(errno.EINVAL, h.pread, 1024, size - 512)
    refused(errno.ENOSPC, h.pwrite, bytes(512), size)
    refused(errno.EINVAL, h.pread, 100, 0)
    refused(errno.EINVAL, h.pread, 512, 100)
    refused(errno.EINVAL, h.pwrite, bytes(100), 0)
    refused(errno.EINVAL, h.trim, 4096, 1)
    refused(errno.ENOSPC, h.zero, 4096, size)
    assert h.pread(512, 0) is not None, "the connection goes on after errors"


def haggling():
    h = nbd.NBD()
    h.set_opt_mode(True)
    h.connect_unix(SOCK)
    h.set_export_name("no-such-volume")
    refused(errno.ENOENT, h.opt_info)
    refused(errno.ENOENT, h.opt_go)
    names = []
    h.opt_list(lambda name, desc: names.append(name) or 0)
    assert sorted(names) == ["vm0", "vm1"], names
    h.set_export_name("vm0")
    h.opt_info()
    assert h.get_size() == 64 * MIB
    contexts = []
    h.opt_list_meta_context(lambda name: contexts.append(name) or 0)
    assert contexts == ["base:allocation"], contexts
    h.opt_go()
    h.pwrite(b"y" * 512, 0)
    h.shutdown()
    h = nbd.NBD()
    h.set_opt_mode(True)
    h.connect_unix(SOCK)
    h.opt_abort()
    # The old way in, without options replies.
    h = nbd.NBD()
    h.set_opt_mode(False)
    h.set_handshake_flags(nbd.HANDSHAKE_FLAG_FIXED_NEWSTYLE)
    h.set_export_name("vm0")
    h.connect_unix(SOCK)
    assert h.pread(512, 0) == b"y" * 512


def raw():
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(10)
    s.connect(SOCK)
    hello = s.recv(18, socket.MSG_WAITALL)
    assert hello[:16] == b"NBDMAGICIHAVEOPT"
    return s


def option(s, number, data=b""):
    s.sendall(b"IHAVEOPT" + struct.pack(">II", number, len(data)) + data)
    magic, opt, kind, length = struct.unpack(">QIII", s.recv(20, socket.MSG_WAITALL))
    body = s.recv(length, socket.MSG_WAITALL) if length else b""
    assert magic == 0x3E889045565A9 and opt == number
    return kind, body


def bad_options():
    err = 1 << 31
    s = raw()
    s.sendall(struct.pack(">I", 3))
    assert option(s, 99)[0] == err + 1                           # unknown: unsupported
    assert option(s, 3, b"junk")[0] == err + 3                   # LIST carries no data: invalid
    assert option(s, 8, b"junk")[0] == err + 3                   # STRUCTURED_REPLY carries no data: invalid
    assert option(s, 6, b"\0\0\0\xffvm0\0\0")[0] == err + 3      # name longer than the option
    assert option(s, 6, b"\0\0")[0] == err + 3                   # too short
    assert option(s, 5)[0] in (err + 1, err + 2)                 # no TLS here
    assert option(s, 10, struct.pack(">I", 3) + b"vm0" + struct.pack(">I", 0))[0] == err + 3  # before STRUCTURED_REPLY
    assert option(s, 8)[0] == 1
    assert option(s, 2)[0] == 1                                  # ABORT is acknowledged
    s.close()
    s = raw()
    s.sendall(struct.pack(">I", 0xFFFFFFFF))                     # client flags that do not exist
    assert s.recv(1) == b"", "unknown client flags close the connection"


def garbage(rng):
    for _ in range(50):
        s = raw()
        try:
            s.sendall(rng.randbytes(rng.randrange(1, 4096)))
        except OSError:
            pass
        s.close()
    idle = [raw() for _ in range(8)]                             # half-open clients do not keep others out
    h = connect()
    assert h.pread(512, 0) is not None
    for s in idle:
        s.close()


def multi_conn():
    a, b = connect("vm1"), connect("vm1")
    a.pwrite(b"a" * 4096, 4096)
    b.flush()                                                    # one connection's flush covers all
    assert b.pread(4096, 4096) == b"a" * 4096


h = connect()
commands(h)
errors(h)
simple = connect(structured=False)
refused(errno.EINVAL, simple.pread, 512, 64 * MIB)
assert simple.pread(512, 4096) == b"x" * 512
haggling()
bad_options()
garbage(random.Random(7))
multi_conn()
h.shutdown()
print("protocol: all commands and errors as expected")
