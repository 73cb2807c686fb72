"""Redis clients against a rack, or against `rackweave kv serve --drive FILE`.

resp.py differential OURS REDIS SEED COUNT   the same random commands to both (Unix sockets): every reply is the same
resp.py redis-py OURS                        redis-py: values, pipelines, transactions, WATCH, scans, RESP3
resp.py fill OURS FILE                       SETs one after another until the server is gone; writes down what was answered
resp.py check OURS FILE                      all of that is there
"""
import os
import random
import socket
import sys


class Raw:
    """A connection that returns replies as they are, errors included."""

    def __init__(self, path):
        self.s = socket.socket(socket.AF_UNIX)
        self.s.settimeout(30)
        self.s.connect(path)
        self.f = self.s.makefile("rb")

    def send(self, *commands):
        out = b""
        for args in commands:
            args = [a if isinstance(a, bytes) else str(a).encode() for a in args]
            out += b"*%d\r\n" % len(args) + b"".join(b"$%d\r\n%s\r\n" % (len(a), a) for a in args)
        self.s.sendall(out)

    def reply(self):
        line = self.f.readline()
        if not line.endswith(b"\r\n"):
            raise EOFError("the connection ended")
        kind, rest = line[:1], line[1:-2]
        if kind in b"*%~":
            n = int(rest)
            return None if n < 0 else [self.reply() for _ in range(n * (2 if kind == b"%" else 1))]
        if kind == b"$":
            n = int(rest)
            return None if n < 0 else self.f.read(n + 2)[:-2]
        return line[:-2]

    def ask(self, *args):
        self.send(args)
        return self.reply()


NUMBERS = ["0", "1", "-1", "7", "-13", "9223372036854775807", "-9223372036854775808", "9223372036854775808", "x", "", "1.5", "01", " 1"]
# Sums that 80-bit floats have exactly: others differ by design (docs/resp.md).
FLOATS = ["0.5", "-2.25", "3", "1e3", "x", "inf", ""]


# A common part of the differential test's keys: a rack needs one for transactions over several keys.
TAG = os.environ.get("RESP_TAG", "").encode()


def command(r):
    key = lambda: TAG + b"k%d" % r.randrange(6)
    value = lambda: r.choice([b"v%d" % r.randrange(100), b"%d" % r.randrange(-50, 50), b"1.5", b"", b"\0\r\n\xff", b"x" * r.choice([1, 30, 3000])])
    number = lambda: r.choice(NUMBERS) if r.random() < 0.5 else str(r.randrange(-20, 20))
    # Far enough away that no second passes between the two servers.
    ttl = lambda: r.choice(["10000", "99999", "0", "-1", "x", "9223372036854775807"])
    at = lambda: r.choice(["33000000000", "44000000000", "1", "0", "-5", "x"])
    option = lambda: r.choice([["EX", ttl()], ["PX", ttl() + "000"], ["EXAT", at()], ["PXAT", at() + "000"], ["KEEPTTL"], ["NX"], ["XX"], ["GET"], ["BAD"], ["EX"]])
    some = lambda: [key() for _ in range(r.randrange(1, 4))]
    expire = lambda: r.choice([[], [], ["NX"], ["XX"], ["GT"], ["LT"], ["NX", "GT"], ["GT", "LT"], ["BAD"]])
    return r.choice([
        lambda: ["SET", key(), value()] + sum((option() for _ in range(r.choice([0, 0, 1, 1, 2, 3]))), []),
        lambda: ["GET", key()],
        lambda: ["SETNX", key(), value()],
        lambda: ["SETEX", key(), ttl(), value()],
        lambda: ["PSETEX", key(), ttl() + "000", value()],
        lambda: ["GETSET", key(), value()],
        lambda: ["GETDEL", key()],
        lambda: ["GETEX", key()] + r.choice([[], ["PERSIST"], ["EX", ttl()], ["PXAT", at() + "000"], ["BAD"], ["EX", "100", "PERSIST"]]),
        lambda: ["MGET"] + some(),
        lambda: ["MSET"] + sum(([k, value()] for k in some()), []) + r.choice([[], [], [], [b"odd"]]),
        lambda: [r.choice(["DEL", "UNLINK", "EXISTS", "TOUCH"])] + some(),
        lambda: [r.choice(["INCR", "DECR"]), key()],
        lambda: [r.choice(["INCRBY", "DECRBY"]), key(), number()],
        lambda: ["INCRBYFLOAT", key(), r.choice(FLOATS)],
        lambda: ["APPEND", key(), value()],
        lambda: ["STRLEN", key()],
        lambda: [r.choice(["GETRANGE", "SUBSTR"]), key(), number(), number()],
        lambda: [r.choice(["EXPIRE", "PEXPIRE"]), key(), ttl()] + expire(),
        lambda: [r.choice(["EXPIREAT", "PEXPIREAT"]), key(), at()] + expire(),
        lambda: ["TTL", key()],
        lambda: [r.choice(["EXPIRETIME", "TYPE", "PERSIST"]), key()],
        lambda: ["KEYS", r.choice(["*", "k[0-2]", "k?", "[^k]*", "k\\1", "none", "k[2-0]", "*1"])],
        lambda: ["PING"] + r.choice([[], [b"x"], [b"x", b"y"]]),
        lambda: ["ECHO", value()],
        # Redis takes no names.
        lambda: ["SELECT", r.choice(["0", "99"])],
        lambda: ["NOSUCH", b"a", b"b" * r.choice([1, 200])],
        lambda: [r.choice(["GET", "SET", "INCR", "ECHO", "MGET", "EXPIRE"])],
    ])()


def transaction(r):
    body = [command(r) for _ in range(r.randrange(0, 5))]
    # KEYS may not be queued here, and DBSIZE counts expired keys on both sides, each its own.
    body = [c for c in body if c[0] != "KEYS"]
    return ([["WATCH", TAG + b"k1"]] if r.random() < 0.4 else []) + [["MULTI"]] + body + [[r.choice(["EXEC", "EXEC", "DISCARD"])]]


def same(x, y):
    """Times in seconds since 1970 may lie on two sides of a second."""
    if isinstance(x, list) and isinstance(y, list):
        return len(x) == len(y) and all(map(same, x, y))
    if x == y:
        return True
    times = [int(v[1:]) for v in (x, y) if isinstance(v, bytes) and v[:1] == b":" and len(v) > 10]
    return len(times) == 2 and abs(times[0] - times[1]) <= 1


def differential(ours, redis, seed, count):
    r, done = random.Random(seed), 0
    a, b, other = Raw(ours), Raw(redis), (Raw(ours), Raw(redis))
    for s in (a, b):
        for k in range(6):
            s.ask("DEL", TAG + b"k%d" % k)
    while done < count:
        commands = transaction(r) if r.random() < 0.15 else [command(r) for _ in range(r.choice([1, 1, 1, 5]))]
        # Another connection's change meets watched keys.
        if commands[0][0] == "WATCH" and r.random() < 0.5:
            for s in (a, b):
                s.send(commands[0])
            assert a.reply() == b.reply()
            change = r.choice([["SET", TAG + b"k1", b"other"], ["DEL", TAG + b"k1"], ["SET", TAG + b"k2", b"other"]])
            assert other[0].ask(*change) == other[1].ask(*change)
            commands = commands[1:]
        a.send(*commands)
        b.send(*commands)
        for c in commands:
            x, y = a.reply(), b.reply()
            if c[0] == "KEYS" and isinstance(y, list):
                x, y = sorted(x), sorted(y)
            # The two were set, and are asked, at different moments; a TTL is rounded to seconds.
            if c[0] == "TTL" and min(x[:1], y[:1]) == b":" and int(x[1:]) > 0 and abs(int(x[1:]) - int(y[1:])) == 1:
                x = y
            if not same(x, y):
                raise SystemExit(f"seed {seed}, after {done} commands: {commands}\n{c}\nRedis:     {y!r}\nRackweave: {x!r}")
        done += len(commands)
    print(f"  {done} commands, the same replies")


def redis_py(ours):
    import redis

    for protocol in (2, 3):
        c = redis.Redis(unix_socket_path=ours, protocol=protocol)
        c.ping()
        assert c.set("a", "1") is True and c.get("a") == b"1" and c.incr("a") == 2
        assert c.set("n", "x", nx=True) and c.set("n", "y", nx=True) is None
        assert c.set("n", "z", ex=100, get=True) == b"x" and 0 < c.ttl("n") <= 100
        assert c.mget("a", "none") == [b"2", None]
        assert c.incrbyfloat("f", 0.5) == 0.5 and c.append("s", "abc") == 3 and c.getrange("s", 1, -1) == b"bc"
        # A transaction by default; without one, a pipeline.
        assert c.pipeline().set("p", 1).incr("p").get("p").execute() == [True, 2, b"2"]
        assert c.pipeline(transaction=False).set("p", 5).incr("p").execute() == [True, 6]
        with c.pipeline() as p:
            p.watch("p")
            c.set("p", 100)
            p.multi()
            p.set("p", 7)
            try:
                p.execute()
                raise SystemExit("a watched key was changed, and the transaction executed")
            except redis.WatchError:
                pass
        c.transaction(lambda p: (p.get("p"), p.multi(), p.set("p", 8)), "p")
        assert c.get("p") == b"8"
        c.mset({f"many{i}": i for i in range(1000)})
        assert {k for k in c.scan_iter("many*", count=100)} == {b"many%d" % i for i in range(1000)}
        assert len(c.keys("many*")) == 1000 and c.dbsize() >= 1000
        assert c.delete(*[f"many{i}" for i in range(1000)]) == 1000
        binary = bytes(range(256))
        c.set(binary, binary * 1000)
        assert c.get(binary) == binary * 1000 and c.strlen(binary) == 256_000 and c.delete(binary) == 1
        assert c.info("server")["redis_mode"] == "standalone" and "get" in c.command()
        assert c.config_get("appendfsync") == {"appendfsync": "always"} and c.client_setname("me") and c.client_getname() in ("me", b"me")
        for refused in (lambda: c.eval("return 1", 0), lambda: c.lpush("l", 1), lambda: c.flushall()):
            try:
                refused()
                raise SystemExit("not refused")
            except redis.ResponseError:
                pass
        # Releasing is a script.
        lock = c.lock("lock", timeout=10)
        try:
            lock.acquire()
            lock.release()
            raise SystemExit("a lock was released: docs/resp.md says it cannot be")
        except redis.ResponseError:
            pass
        c.delete("a", "n", "f", "s", "p", "lock")
    print(f"  redis-py {redis.__version__}, RESP2 and RESP3")


def fill(ours, path):
    s, i = Raw(ours), 0
    with open(path, "w") as done:
        try:
            while True:
                # Several at a time, of which the last ones may not be answered.
                s.send(*(["SET", f"kill{j}", f"value {j}"] for j in range(i, i + 8)))
                for j in range(i, i + 8):
                    assert s.reply() == b"+OK"
                    done.write(f"{j}\n")
                    done.flush()
                i += 8
        except (OSError, EOFError):
            pass


def check(ours, path):
    s, n = Raw(ours), 0
    with open(path) as done:
        # Those so far: others may follow faster than they are checked.
        for line in done.readlines():
            if line.endswith("\n"):
                j, n = int(line), n + 1
                assert s.ask("GET", f"kill{j}") == b"value %d" % j, f"kill{j} was answered and is not there"
    assert n > 50, f"only {n} sets were answered"
    print(f"  {n} answered sets are there")


if __name__ == "__main__":
    what, *args = sys.argv[1:]
    if what == "differential":
        differential(args[0], args[1], int(args[2]), int(args[3]))
    else:
        {"redis-py": redis_py, "fill": fill, "check": check}[what](*args)
