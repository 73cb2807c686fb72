//! The Redis face: replies as Redis documents them, order, memory, bad input.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use bytes::Bytes;
use rackweave_core::Rng;
use rackweave_core::kv::{Change, Error, Expires, Found, Op, Version};
use rackweave_core::request::{self, RequestId};
use rackweave_gateway::resp::parse::{ARG_MAX, ARGS_BYTES_MAX};
use rackweave_gateway::resp::{BYTES_MAX, QUEUE_BYTES_MAX, Session, Settings};
use rackweave_gateway::{Gateway, Request, SessionId};

use crate::key_map::Map;

pub struct Client {
    pub session: Session,
    pub map: Map,
    pub asked: VecDeque<(RequestId, Op)>,
}

fn session(flushall: bool) -> Session {
    Session::new(SessionId(7), Rc::new(Settings { flushall, ..Settings::default() }))
}

impl Client {
    pub fn new() -> Client {
        Client { session: session(true), map: Map { now: 1_000_000, ..Map::default() }, asked: VecDeque::new() }
    }
    pub fn send(&mut self, bytes: &[u8]) {
        self.session.input(Bytes::copy_from_slice(bytes));
    }
    pub fn take(&mut self) {
        while let Some(Request::Rack(r)) = self.session.poll_request() {
            match r.op {
                request::Op::Kv(op) => self.asked.push_back((r.id, op)),
                request::Op::Admin(op) => self.session.reply(request::Reply::new(r.id, self.map.admin(op)).into()),
                _ => panic!("{r:?}"),
            }
        }
    }
    pub fn answer(&mut self, i: usize) {
        let (id, op) = self.asked.remove(i).expect("asked");
        let result = self.map.run(op);
        self.session.reply(request::Reply::new(id, result).into());
    }
    pub fn output(&mut self) -> Vec<u8> {
        let all: Vec<u8> = self.session.output().flat_map(|c| c.to_vec()).collect();
        self.session.written(all.len());
        all
    }
    /// Everything that the session says to it, with each request answered at once.
    pub fn ask(&mut self, bytes: &[u8]) -> String {
        self.send(bytes);
        let mut all = Vec::new();
        loop {
            self.take();
            let said = self.output();
            if self.asked.is_empty() && said.is_empty() {
                return String::from_utf8_lossy(&all).into_owned();
            }
            all.extend(said);
            if !self.asked.is_empty() {
                self.answer(0);
            }
        }
    }
    /// The replies to inline commands; lines are joined by blanks.
    pub fn say(&mut self, command: &str) -> String {
        let said = self.ask(format!("{command}\r\n").as_bytes());
        said.trim_end().replace("\r\n", " ")
    }
}

pub fn array(args: &[&[u8]]) -> Vec<u8> {
    let mut b = format!("*{}\r\n", args.len()).into_bytes();
    for a in args {
        b.extend(format!("${}\r\n", a.len()).as_bytes());
        b.extend_from_slice(a);
        b.extend(b"\r\n");
    }
    b
}

/// Commands and replies, in order, on one connection; `>` advances the clock by milliseconds.
fn script(lines: &[(&str, &str)]) {
    let mut c = Client::new();
    for (command, reply) in lines {
        if let Some(ms) = command.strip_prefix('>') {
            c.map.now += ms.parse::<u64>().expect("a number");
            continue;
        }
        assert_eq!(c.say(command), *reply, "{command}");
    }
}

#[test]
fn values() {
    script(&[
        ("GET k", "$-1"),
        ("SET k v", "+OK"),
        ("GET k", "$1 v"),
        ("SET k w NX", "$-1"),
        ("SET k w XX", "+OK"),
        ("SET none w XX", "$-1"),
        ("SET k x GET", "$1 w"),
        ("SET k y NX GET", "$1 x"),
        ("SET n y NX GET", "$-1"),
        ("GET n", "$1 y"),
        ("SETNX k z", ":0"),
        ("SETNX m z", ":1"),
        ("GETSET m q", "$1 z"),
        ("GETDEL m", "$1 q"),
        ("GETDEL m", "$-1"),
        ("MSET a 1 b 2 a 3", "+OK"),
        ("MGET a b none a", "*4 $1 3 $1 2 $-1 $1 3"),
        ("MSET a", "-ERR wrong number of arguments for 'mset' command"),
        ("MSET a 1 b", "-ERR wrong number of arguments for 'mset' command"),
        ("DEL a b none a", ":2"),
        ("EXISTS k k none", ":2"),
        ("UNLINK k", ":1"),
        ("TYPE n", "+string"),
        ("TYPE none", "+none"),
        ("SET k v NX XX", "-ERR syntax error"),
        ("SET k v EX", "-ERR syntax error"),
        ("SET k v EX 1 PX 1", "-ERR syntax error"),
        ("SET k v EX 1 KEEPTTL", "-ERR syntax error"),
        ("SET k v EX 5 EX 7", "+OK"),
        ("TTL k", ":7"),
        ("SET k v EX 0", "-ERR invalid expire time in 'set' command"),
        ("SET k v EX x", "-ERR value is not an integer or out of range"),
        ("SET k v EX 9223372036854775807", "-ERR invalid expire time in 'set' command"),
        ("SET k", "-ERR wrong number of arguments for 'set' command"),
        ("SET k v WHAT", "-ERR syntax error"),
    ]);
}

#[test]
fn numbers_and_parts() {
    script(&[
        ("INCR n", ":1"),
        ("INCRBY n 41", ":42"),
        ("DECR n", ":41"),
        ("DECRBY n 50", ":-9"),
        ("INCRBY n x", "-ERR value is not an integer or out of range"),
        ("DECRBY n -9223372036854775808", "-ERR decrement would overflow"),
        ("SET n 9223372036854775807", "+OK"),
        ("INCR n", "-ERR increment or decrement would overflow"),
        ("SET n abc", "+OK"),
        ("INCR n", "-ERR value is not an integer or out of range"),
        ("INCRBYFLOAT f 10.5", "$4 10.5"),
        ("INCRBYFLOAT f 0.1", "$4 10.6"),
        ("INCRBYFLOAT f -5", "$3 5.6"),
        ("INCRBYFLOAT n 1", "-ERR value is not a valid float"),
        ("APPEND s Hello", ":5"),
        ("APPEND s \" World\"", ":11"),
        ("STRLEN s", ":11"),
        ("STRLEN none", ":0"),
        ("GETRANGE s 0 3", "$4 Hell"),
        ("GETRANGE s -5 -1", "$5 World"),
        ("GETRANGE s 0 -1", "$11 Hello World"),
        ("GETRANGE s 10 100", "$1 d"),
        ("GETRANGE s 5 3", "$0"),
        ("GETRANGE s -1 -5", "$0"),
        ("GETRANGE s -100 0", "$1 H"),
        ("GETRANGE none 0 -1", "$0"),
    ]);
}

#[test]
fn expiry() {
    script(&[
        ("TTL none", ":-2"),
        ("SET k v", "+OK"),
        ("TTL k", ":-1"),
        ("EXPIRE k 10", ":1"),
        ("TTL k", ":10"),
        (">1500", ""),
        ("PTTL k", ":8500"),
        ("TTL k", ":9"),
        (">1", ""),
        ("PTTL k", ":8499"),
        ("TTL k", ":8"),
        ("EXPIRETIME k", ":1010"),
        ("PEXPIRETIME k", ":1010000"),
        ("PEXPIREAT k 1010499", ":1"),
        ("EXPIRETIME k", ":1010"),
        ("PEXPIREAT k 1010500", ":1"),
        ("EXPIRETIME k", ":1011"),
        ("EXPIRE k 5 GT", ":0"),
        ("EXPIRE k 50 GT", ":1"),
        ("EXPIRE k 60 LT", ":0"),
        ("EXPIRE k 40 LT", ":1"),
        ("EXPIRE k 5 NX", ":0"),
        ("EXPIRE k 5 XX", ":1"),
        ("PERSIST k", ":1"),
        ("PERSIST k", ":0"),
        ("EXPIRE k 5 XX", ":0"),
        ("EXPIRE k 5 GT", ":0"),
        ("EXPIRE k 5 LT", ":1"),
        ("EXPIRE k 5 NX GT", "-ERR NX and XX, GT or LT options at the same time are not compatible"),
        ("EXPIRE k 5 GT LT", "-ERR GT and LT options at the same time are not compatible"),
        ("EXPIRE k 5 FOO", "-ERR Unsupported option FOO"),
        ("EXPIRE none 5", ":0"),
        ("SET k v2 KEEPTTL", "+OK"),
        ("TTL k", ":5"),
        ("INCRBY c 3", ":3"),
        ("EXPIRE c 7", ":1"),
        ("INCR c", ":4"),
        ("APPEND c 0", ":2"),
        ("TTL c", ":7"),
        ("SET c 1", "+OK"),
        ("TTL c", ":-1"),
        ("GETEX k", "$2 v2"),
        ("TTL k", ":5"),
        ("GETEX k EX 100", "$2 v2"),
        ("TTL k", ":100"),
        ("GETEX k PERSIST", "$2 v2"),
        ("TTL k", ":-1"),
        ("GETEX none EX 10", "$-1"),
        ("GETEX none EX 0", "$-1"),
        ("GETEX k EX 0", "-ERR invalid expire time in 'getex' command"),
        ("GETEX k PERSIST EX 10", "-ERR syntax error"),
        ("PEXPIREAT k 1002000", ":1"),
        (">500", ""),
        ("EXISTS k c", ":1"),
        ("SETEX e 10 v", "+OK"),
        ("PSETEX p 10 v", "+OK"),
        ("TTL e", ":10"),
        ("PTTL p", ":10"),
        (">10", ""),
        ("GET p", "$-1"),
        ("SETEX e 0 v", "-ERR invalid expire time in 'setex' command"),
        ("EXPIRE e -1", ":1"),
        ("EXISTS e", ":0"),
        ("SET e v PXAT 1", "+OK"),
        ("GET e", "$-1"),
        ("EXPIREAT c 9223372036854775807", "-ERR invalid expire time in 'expireat' command"),
    ]);
}

#[test]
fn keys_and_server() {
    let mut c = Client::new();
    (0..25).for_each(|i| _ = c.say(&format!("SET k{i:02} v")));
    assert_eq!(c.say("DBSIZE"), ":25");
    assert!(c.say("KEYS k0*").starts_with("*10 $3 k00"));
    assert_eq!(c.say("KEYS x*"), "*0");
    assert!(c.say("SCAN 0").starts_with("*2 $2 10 *10 $3 k00"));
    assert_eq!(c.say("SCAN 20 COUNT 10 MATCH *4"), "*2 $1 0 *1 $3 k24");
    assert_eq!(c.say("SCAN 0 COUNT 100 TYPE list"), "*2 $1 0 *0");
    for (command, reply) in [
        ("SCAN x", "-ERR invalid cursor"),
        ("SCAN 0 COUNT 0", "-ERR syntax error"),
        ("SCAN 0 MATCH", "-ERR syntax error"),
        ("PING", "+PONG"),
        ("PING hi", "$2 hi"),
        ("ECHO hi", "$2 hi"),
        ("SELECT 0", "+OK"),
        ("SELECT 1", "-ERR DB index is out of range"),
        ("WAIT 1 100", ":0"),
        ("AUTH default x", "+OK"),
        ("AUTH bob x", "-WRONGPASS invalid username-password pair or user is disabled."),
        ("CLIENT SETNAME bob", "+OK"),
        ("CLIENT GETNAME", "$3 bob"),
        ("CLIENT SETINFO LIB-NAME redis-py", "+OK"),
        ("CLIENT ID", ":7"),
        ("CLIENT KILL", "-ERR unknown subcommand 'KILL'. Try CLIENT HELP."),
        ("CONFIG GET appendfsync", "*2 $11 appendfsync $6 always"),
        ("CONFIG SET a b", "-ERR unknown subcommand 'SET'. Try CONFIG HELP."),
        ("HELLO 4", "-NOPROTO unsupported protocol version"),
        ("EVAL \"return 1\" 0", "-ERR unknown command 'EVAL', with args beginning with: 'return 1' '0'"),
        ("GET", "-ERR wrong number of arguments for 'get' command"),
    ] {
        assert_eq!(c.say(command), reply, "{command}");
    }
    let get = |c: &mut Client| c.say("COMMAND INFO get");
    let entry = |kind| {
        format!("*1 *10 $3 get :2 {kind}2 $8 readonly $4 fast :1 :1 :1 {kind}3 $7 @string $5 @read $5 @fast *0 *0 *0")
    };
    assert_eq!(get(&mut c), entry('*'));
    assert!(c.say("HELLO 3 SETNAME al").starts_with("%7 $6 server $5 redis"));
    assert_eq!(get(&mut c), entry('~'));
    assert_eq!((c.say("CLIENT GETNAME").as_str(), c.say("GET none").as_str()), ("$2 al", "_"));
    assert_eq!((c.say("RESET").as_str(), c.say("GET none").as_str()), ("+RESET", "$-1"));
    assert!(c.say("INFO").contains("db0:keys=25,expires=0"));
    assert_eq!((c.say("FLUSHALL").as_str(), c.say("DBSIZE").as_str()), ("+OK", ":0"));
    c.session = session(false);
    assert!(c.say("FLUSHALL").starts_with("-NOPERM FLUSHALL and FLUSHDB are off"));
    assert_eq!(c.say("QUIT"), "+OK");
    assert!(c.session.finished());
}

#[test]
fn transactions() {
    script(&[
        ("EXEC", "-ERR EXEC without MULTI"),
        ("DISCARD", "-ERR DISCARD without MULTI"),
        ("MULTI", "+OK"),
        ("MULTI", "-ERR MULTI calls can not be nested"),
        ("WATCH k", "-ERR WATCH inside MULTI is not allowed"),
        ("SET k 1", "+QUEUED"),
        ("INCR k", "+QUEUED"),
        ("GET k", "+QUEUED"),
        ("PING", "+QUEUED"),
        ("SET j x EX 10", "+QUEUED"),
        ("TTL j", "+QUEUED"),
        ("INCR j", "+QUEUED"),
        ("EXEC", "*7 +OK :2 $1 2 +PONG +OK :10 -ERR value is not an integer or out of range"),
        ("MULTI", "+OK"),
        ("EXEC", "*0"),
        ("MULTI", "+OK"),
        ("SET a 1", "+QUEUED"),
        ("SET b 2", "+QUEUED"),
        ("EXEC", "*2 +OK +OK"),
        ("MULTI", "+OK"),
        ("SET a 9", "+QUEUED"),
        ("NOSUCH", "-ERR unknown command 'NOSUCH', with args beginning with:"),
        ("EXEC", "-EXECABORT Transaction discarded because of previous errors."),
        ("MULTI", "+OK"),
        ("KEYS *", "-ERR KEYS is not allowed in transactions here"),
        ("EXEC", "-EXECABORT Transaction discarded because of previous errors."),
        ("MULTI", "+OK"),
        ("SET a 9", "+QUEUED"),
        ("DISCARD", "+OK"),
        ("MGET a b", "*2 $1 1 $1 2"),
        ("MULTI", "+OK"),
        ("SET a 3", "+QUEUED"),
        ("MSET b 4 c 5", "+QUEUED"),
        ("EXEC", "*2 +OK +OK"),
        ("MGET a b c", "*3 $1 3 $1 4 $1 5"),
        ("MULTI", "+OK"),
        ("INCRBY a x", "+QUEUED"),
        ("EXEC", "*1 -ERR value is not an integer or out of range"),
    ]);
}

#[test]
fn watched_keys_stop_a_transaction() {
    let mut c = Client::new();
    c.say("SET a 1");
    for (change, wanted) in [("SET a 1", "*-1"), ("DEL a", "*-1"), ("SET other 1", "*1 +OK"), ("EXPIRE a 10", "*-1")] {
        c.say("SET a 1");
        c.say("WATCH a b");
        // Another connection's change, whose value may be the same.
        let mut other = session(false);
        std::mem::swap(&mut c.session, &mut other);
        c.say(change);
        std::mem::swap(&mut c.session, &mut other);
        c.say("MULTI");
        c.say("SET t v");
        assert_eq!(c.say("EXEC"), wanted, "{change}");
    }
    c.say("WATCH b");
    c.say("UNWATCH");
    c.say("SET b 1");
    c.say("MULTI");
    c.say("SET t v");
    assert_eq!(c.say("EXEC"), "*1 +OK");
    // A pipeline in one piece.
    assert_eq!(
        c.ask(b"WATCH b\r\nMULTI\r\nINCR b\r\nEXEC\r\nGET b\r\n"),
        "+OK\r\n+OK\r\n+QUEUED\r\n*1\r\n:2\r\n$1\r\n2\r\n"
    );
}

/// Others change the keys between the reads and the change of a command: it begins again.
#[test]
fn conflicts_are_retried() {
    let mut c = Client::new();
    c.say("SET n 1");
    for command in ["INCR n\r\n", "MULTI\r\nINCR n\r\nINCR m\r\nEXEC\r\n"] {
        c.send(command.as_bytes());
        let mut conflicts = 0;
        loop {
            c.take();
            let Some((_, op)) = c.asked.front() else { break };
            if matches!(op, Op::Put { .. } | Op::Batch { .. }) && conflicts < 3 {
                conflicts += 1;
                let change = Change::Set { value: format!("{}", conflicts * 100).into(), expires: Expires::Never };
                c.map.change(&Bytes::from("n"), change);
            }
            c.answer(0);
        }
        assert_eq!(conflicts, 3);
        let said = c.output();
        assert!(String::from_utf8_lossy(&said).contains(":301"), "{}", said.escape_ascii());
    }
    // Not for ever.
    c.send(b"INCR n\r\n");
    loop {
        c.take();
        let Some((_, op)) = c.asked.front() else { break };
        if matches!(op, Op::Put { .. }) {
            let change = Change::Set { value: "5".into(), expires: Expires::Never };
            c.map.change(&Bytes::from("n"), change);
        }
        c.answer(0);
    }
    assert!(c.output().starts_with(b"-TRYAGAIN"));
}

/// However answers are ordered, replies come in the order of the commands, and commands on one key follow each other.
#[test]
fn pipelines_are_answered_in_order() {
    for seed in 0..400 {
        let (mut c, mut rng) = (Client::new(), Rng::new(seed));
        let mut model: BTreeMap<u64, i64> = BTreeMap::new();
        let (mut bytes, mut wanted) = (Vec::new(), String::new());
        let keys = rng.between(1, 8);
        for i in 0..rng.between(1, 200) as i64 {
            let of = [rng.below(keys), rng.below(keys), rng.below(keys)];
            let (command, reply) = command(rng.below(9), i, of, &mut model);
            bytes.extend(command.as_bytes());
            wanted.push_str(&reply);
        }
        let mut said = Vec::new();
        let mut rest = &bytes[..];
        loop {
            if c.session.wants_input() && !rest.is_empty() {
                let (now, later) = rest.split_at((rng.between(1, 400) as usize).min(rest.len()));
                c.send(now);
                rest = later;
            }
            c.take();
            if c.asked.is_empty() && rest.is_empty() {
                break;
            }
            if !c.asked.is_empty() {
                c.answer(rng.below(c.asked.len() as u64) as usize);
            }
            if rng.chance(0.3) {
                said.extend(c.output());
            }
        }
        said.extend(c.output());
        assert_eq!(String::from_utf8_lossy(&said), wanted, "seed {seed}");
        assert!(c.session.held() == 0 && c.session.in_flight() == 0, "{:?}", c.session);
    }
}

/// A command, and its reply on a server that carries out one at a time.
fn command(kind: u64, i: i64, of: [u64; 3], model: &mut BTreeMap<u64, i64>) -> (String, String) {
    let [key, second, third] = of;
    let bulk = |v: Option<&i64>| v.map_or("$-1\r\n".into(), |v| format!("${}\r\n{v}\r\n", v.to_string().len()));
    match kind {
        0 | 1 => {
            model.insert(key, i);
            (format!("SET k{key} {i}\r\n"), "+OK\r\n".into())
        }
        2 => (format!("GET k{key}\r\n"), bulk(model.get(&key))),
        3 => {
            let gone = [key, second].iter().filter(|k| model.remove(k).is_some()).count();
            (format!("DEL k{key} k{second}\r\n"), format!(":{gone}\r\n"))
        }
        4 => {
            let values: String = of.iter().map(|k| bulk(model.get(k))).collect();
            (format!("MGET k{key} k{second} k{third}\r\n"), format!("*3\r\n{values}"))
        }
        5 => {
            let there = of.iter().filter(|k| model.contains_key(k)).count();
            (format!("EXISTS k{key} k{second} k{third}\r\n"), format!(":{there}\r\n"))
        }
        6 => {
            model.insert(key, i);
            model.insert(second, i + 1);
            (format!("MSET k{key} {i} k{second} {}\r\n", i + 1), "+OK\r\n".into())
        }
        7 if i % 4 == 0 => {
            let v = bulk(model.get(&key));
            model.insert(second, i);
            let text = format!("MULTI\r\nGET k{key}\r\nSET k{second} {i}\r\nEXEC\r\n");
            (text, format!("+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n{v}+OK\r\n"))
        }
        7 => ("PING\r\n".into(), "+PONG\r\n".into()),
        _ => {
            let v = model.entry(key).or_insert(0);
            *v += 1;
            (format!("INCR k{key}\r\n"), format!(":{v}\r\n"))
        }
    }
}

/// A command that waits for another of its key holds up those of this key alone.
#[test]
fn commands_of_other_keys_do_not_wait_for_one_that_waits() {
    let mut c = Client::new();
    c.send(b"SET a 1\r\nGET a\r\nINCR a\r\nMGET a b\r\nSET b 2\r\nGET b\r\nSET c 3\r\nGET a\r\n");
    let asked = |c: &mut Client| -> Vec<String> {
        c.take();
        let what = |op: &Op| match op {
            Op::Put { key, .. } => format!("put {}", key.escape_ascii()),
            Op::Get { key, .. } => format!("get {}", key.escape_ascii()),
            other => format!("{other:?}"),
        };
        c.asked.iter().map(|(_, op)| what(op)).collect()
    };
    assert_eq!(asked(&mut c), ["put a", "put c"], "MGET waits for `a`, SET of `b` for MGET");
    c.answer(1);
    assert_eq!((asked(&mut c), c.output()), (vec!["put a".into()], Vec::new()), "replies keep their order");
    c.answer(0);
    assert_eq!((asked(&mut c), c.output()), (vec!["get a".into()], b"+OK\r\n".to_vec()));
    c.answer(0);
    assert_eq!(asked(&mut c), ["get a"], "INCR reads first");
    c.answer(0);
    assert_eq!(asked(&mut c), ["put a"]);
    c.answer(0);
    assert_eq!(asked(&mut c), ["get a", "get b", "get a"], "MGET and the last GET do not wait for each other");
    let mut said = c.output();
    while !asked(&mut c).is_empty() {
        c.answer(0);
        said.extend(c.output());
    }
    let wanted = "$1\r\n1\r\n:2\r\n*2\r\n$1\r\n2\r\n$-1\r\n+OK\r\n$1\r\n2\r\n+OK\r\n$1\r\n2\r\n";
    assert_eq!(String::from_utf8_lossy(&said), wanted);
}

#[test]
fn binary_keys_and_failures() {
    let mut c = Client::new();
    let key = [0, 255, b'\r', b'\n', b'*'];
    assert_eq!(c.ask(&array(&[b"SET", &key, b"\0\r\n"])), "+OK\r\n");
    assert_eq!(c.ask(&array(&[b"GET", &key])), "$3\r\n\0\r\n\r\n");
    for (e, text) in [
        (Error::KeyLength { bytes: 0, max: 1024 }, "-ERR a key of 0 bytes: a key has 1 to 1024"),
        (Error::NoSpace { bytes: 9 }, "-OOM no space left: 9 bytes more do not fit; delete something"),
        (Error::Io, "-ERR the device failed"),
    ] {
        c.map.fails = Some(e);
        for command in
            ["SET k v", "GET k", "INCR k", "DEL k", "MGET a b c", "MSET a 1 b 2", "DBSIZE", "SCAN 0", "WATCH k"]
        {
            assert_eq!(c.say(command), text, "{command}");
        }
        assert_eq!(
            c.ask(b"MULTI\r\nINCR k\r\nINCR j\r\nEXEC\r\nPING\r\n"),
            format!("+OK\r\n+QUEUED\r\n+QUEUED\r\n{text}\r\n+PONG\r\n")
        );
    }
}

#[test]
fn a_client_that_never_reads_is_no_longer_heard() {
    let mut c = Client::new();
    c.say(&format!("SET k {}", "v".repeat(50_000)));
    // As much as a driver reads from it.
    let piece = "GET k\r\n".repeat(10_000);
    let mut sent = 0;
    for _ in 0..100_000 {
        c.take();
        if !c.asked.is_empty() {
            c.answer(0);
        } else if c.session.wants_input() {
            c.send(piece.as_bytes());
            sent += 1;
        } else {
            break;
        }
        assert!(c.session.held() < BYTES_MAX, "{}", c.session.held());
    }
    assert!(sent < 3 && !c.session.wants_input() && c.session.waits_for_client());
    // Within the budget of its process.
    let mut c = Client::new();
    c.map.all.insert("k".into(), Found { value: vec![1; 900_000].into(), version: Version::default(), expires: None });
    c.session.set_limit(100_000);
    c.send(b"GET k\r\n");
    c.take();
    c.answer(0);
    c.take();
    assert!(c.asked.is_empty() && c.session.needs().is_some_and(|n| (900_000..1_000_000).contains(&n)));
    c.session.set_limit(c.session.needs().expect("it waits"));
    c.take();
    c.answer(0);
    assert!(c.output().len() > 900_000);
}

#[test]
fn a_pipeline_of_100_000_takes_little_memory() {
    let mut c = Client::new();
    let piece = "SET k v\r\nGET k\r\nPING\r\n".repeat(1000);
    let (mut pieces, mut replies, mut most) = (0, 0, 0);
    loop {
        if c.session.wants_input() && pieces < 34 {
            c.send(piece.as_bytes());
            pieces += 1;
        }
        c.take();
        most = most.max(c.session.held());
        if !c.asked.is_empty() {
            c.answer(0);
        }
        let said = c.output();
        replies += said.iter().filter(|b| **b == b'\n').count();
        c.take();
        if pieces == 34 && c.asked.is_empty() && said.is_empty() {
            break;
        }
    }
    // A value has two lines.
    assert_eq!(replies, 34 * 4000);
    assert!(most < 300_000, "{most}");
}

#[test]
fn bad_input_is_refused_with_its_rule() {
    for (bytes, error) in [
        (&b"*4294967295\r\n"[..], "-ERR Protocol error: invalid multibulk length\r\n"),
        (b"*1\r\n$999999999999\r\n", "-ERR Protocol error: invalid bulk length\r\n"),
        (b"*1\r\n*1\r\n*1\r\n", "-ERR Protocol error: expected '$', got '*'\r\n"),
        (b"\"a\r\n", "-ERR Protocol error: unbalanced quotes in request\r\n"),
        (b"POST / HTTP/1.1\r\n\r\nSET k v\r\n", "-ERR Protocol error: an HTTP request\r\n"),
        (b"host: localhost\r\n\r\nSET k v\r\n", "-ERR Protocol error: an HTTP request\r\n"),
    ] {
        let mut c = Client::new();
        assert_eq!(c.ask(b"PING\r\n"), "+PONG\r\n");
        assert_eq!(c.ask(bytes), error);
        assert!(c.session.finished() && !c.session.wants_input() && c.ask(b"PING\r\n").is_empty());
    }
    let mut c = Client::new();
    let long = vec![b'v'; ARG_MAX + 1];
    let said = c.ask(&[array(&[b"SET", b"k", &long]), b"PING\r\n".to_vec()].concat());
    let refused = format!("-ERR an argument of {} bytes: an argument has at most {ARG_MAX}\r\n", ARG_MAX + 1);
    assert_eq!(said, refused + "+PONG\r\n");
    let part = Bytes::from(vec![b'v'; ARG_MAX]);
    let mut args: Vec<&[u8]> = vec![b"DEL"];
    args.extend((0..=ARGS_BYTES_MAX / ARG_MAX).map(|_| &part[..]));
    assert!(c.ask(&array(&args)).starts_with("-ERR a command of more than 16777216 bytes"));
    // In a transaction, too.
    c.say("MULTI");
    assert!(c.ask(&array(&[b"SET", b"k", &long])).starts_with("-ERR an argument"));
    assert!(c.say("EXEC").starts_with("-EXECABORT"));
    c.say("MULTI");
    let mut said = String::new();
    for _ in 0..=QUEUE_BYTES_MAX / ARG_MAX {
        said = c.ask(&array(&[b"SET", b"k", &part]));
    }
    assert!(said.starts_with("-ERR a transaction of more than 4194304 bytes"), "{said}");
    assert!(c.say("EXEC").starts_with("-EXECABORT"));
    // Values that together are more than a connection may have.
    for i in 0..70 {
        let found = Found { value: part.clone(), version: Version::default(), expires: None };
        c.map.all.insert(format!("k{i}").into(), found);
    }
    let all = (0..70).map(|i| format!("k{i}")).collect::<Vec<_>>().join(" ");
    let said = c.say(&format!("MGET {all}"));
    assert!(said.starts_with("-ERR the command takes") && said.contains("at most 67108864"), "{}", &said[..100]);
    assert_eq!(c.say("PING"), "+PONG");
}

#[test]
fn any_bytes_are_taken() {
    for seed in 0..500 {
        let (mut c, mut rng) = (Client::new(), Rng::new(seed));
        for _ in 0..rng.between(1, 20) {
            let mut bytes = array(&[b"SET", b"key", b"value"]);
            let words: [&[u8]; 6] =
                [b"*2\r\n", b"$3\r\nGET\r\n", b"MULTI\r\n", b"EXEC\r\n", b"WATCH k\r\n", b"INCR k\r\n"];
            bytes.extend_from_slice(words[rng.below(6) as usize]);
            for _ in 0..rng.below(3) {
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] = rng.next_u64() as u8;
            }
            c.ask(&bytes);
            assert!(c.session.held() < 1 << 20 && c.session.in_flight() == 0);
        }
    }
}
