//! A key-value store on a virtual SSD of a drive in a file.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Temp, rackweave, text};

/// A drive with a virtual SSD of 8 MiB blocks.
struct Drive {
    _dir: Temp,
    path: String,
}

impl Drive {
    fn new() -> Drive {
        let dir = Temp::new();
        let path = dir.path("a.rwk").to_str().expect("a name").to_string();
        let d = Drive { _dir: dir, path };
        let (ok, _, why) = d.run("vssd", &["create", "--isolation", "channel", "--capacity", "10M"], b"");
        assert!(ok, "{why}");
        d
    }
    fn args<'a>(&'a self, command: &'a str, args: &[&'a str]) -> Vec<&'a str> {
        let mut all = vec![command, "--drive", &self.path, "--profile", "femu", "--drive-size", "1G"];
        all.extend(args);
        all
    }
    fn run(&self, command: &str, args: &[&str], input: &[u8]) -> (bool, String, String) {
        let mut child = rackweave(&self.args(command, args))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("runs");
        let mut stdin = child.stdin.take().expect("piped");
        // It may end before it has read everything.
        _ = stdin.write_all(input);
        drop(stdin);
        let out = child.wait_with_output().expect("ends");
        (out.status.success(), text(&out.stdout), text(&out.stderr))
    }
    fn kv(&self, args: &[&str]) -> (bool, String, String) {
        self.run("kv", args, b"")
    }
}

#[test]
fn pairs_are_put_read_listed_and_deleted() {
    let d = Drive::new();
    assert!(d.kv(&["put", "b", "two"]).0);
    assert!(d.run("kv", &["put", "a"], b"one\nand more").0);
    assert!(d.run("kv", &["load"], b"c\tthree\nd\t\n").0);
    assert_eq!(d.kv(&["get", "a"]).1, "one\nand more");
    assert_eq!(d.kv(&["scan", "--from", "b"]).1, "b\ttwo\nc\tthree\nd\t\n");
    assert!(d.kv(&["delete", "b"]).0);
    let (ok, _, why) = d.kv(&["get", "b"]);
    assert!(!ok && why.contains("\"b\" is not in the store"), "{why}");
    let (ok, _, why) = d.kv(&["delete", "b"]);
    assert!(!ok && why.contains("\"b\" is not in the store"), "{why}");
    let (_, said, _) = d.kv(&["scan", "--limit", "2", "--json"]);
    let all: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(all["entries"][1], serde_json::json!({ "key": "c", "value": "three" }));
    assert_eq!(all["more"], "d");
    let (_, said, _) = d.kv(&["info", "--json"]);
    let info: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!((&info["keys"], &info["vssd"]), (&3.into(), &1.into()));
}

#[test]
fn keys_and_values_are_any_bytes() {
    let d = Drive::new();
    let kv = |command: &str, args: &[&[u8]]| {
        let args = args.iter().map(|a| OsStr::from_bytes(a));
        let out = rackweave(&d.args("kv", &[command])).args(args).output().expect("runs");
        assert!(out.status.success(), "{}", text(&out.stderr));
        out.stdout
    };
    kv("put", &[b"\xff\x01", b"\x80"]);
    kv("put", &["\u{e9}".as_bytes(), b"text"]);
    assert_eq!(kv("get", &[b"\xff\x01"]), b"\x80");
    let scan = |args: &[&[u8]]| -> Value { serde_json::from_slice(&kv("scan", args)).expect("JSON") };
    let entries = serde_json::json!([{ "key": "\u{e9}", "value": "text" }, { "key_hex": "ff01", "value_hex": "80" }]);
    assert_eq!(scan(&[b"--json"]), serde_json::json!({ "entries": entries, "more": null }));
    assert_eq!(scan(&[b"--json", b"--limit", b"1"])["more_hex"], "ff01");
    assert_eq!(scan(&[b"--json", b"--from", b"\xff"])["entries"], serde_json::json!([entries[1]]));
    kv("delete", &[b"\xff\x01"]);
    assert_eq!(scan(&[b"--json"])["entries"], serde_json::json!([entries[0]]));
}

#[test]
fn bad_input_is_refused() {
    let d = Drive::new();
    let refused = |args: &[&str], input: &[u8], what: &str| {
        let (ok, _, why) = d.run("kv", args, input);
        assert!(!ok && why.contains(what), "{args:?}: {why}");
    };
    refused(&["put", &"k".repeat(1025), "v"], b"", "a key of 1025 bytes: a key has 1 to 1024");
    refused(&["put", "", "v"], b"", "a key of 0 bytes");
    // An eighth of a block of 8 MiB.
    refused(
        &["put", "k"],
        &[b'v'; 1_048_552],
        "a value of 1048552 bytes: with this key and blocks of this size a value has at most 1048551",
    );
    refused(&["load"], b"a\tb\nno tab\n", "line 2 has no tab");
    refused(&["scan", "--limit", "0"], b"", "a scan of 0 keys");
    refused(&["--vssd", "7", "get", "k"], b"", "vssd7 was never allocated");
    refused(&["--keyspace", "users", "get", "k"], b"", "--keyspace users: a drive's store has one keyspace");
    assert!(d.run("vssd", &["create", "--isolation", "software", "--capacity", "1M"], b"").0);
    refused(&["--vssd", "2", "get", "k"], b"", "a store needs 12");
    // None of that did any harm.
    assert_eq!(d.kv(&["get", "a"]).1, "b");
}

#[test]
fn what_was_acknowledged_survives_a_kill() {
    let d = Drive::new();
    let mut child =
        rackweave(&d.args("kv", &["load"])).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("runs");
    let mut stdin = child.stdin.take().expect("piped");
    let writer = std::thread::scope(|s| {
        s.spawn(move || {
            // Until it is killed.
            (0..).take_while(|i| writeln!(stdin, "key{i:06}\tvalue of {i} {}", "x".repeat(500)).is_ok()).count()
        });
        let mut said = BufReader::new(child.stdout.take().expect("piped"));
        let mut lines = Vec::new();
        for _ in 0..200 {
            let mut line = String::new();
            said.read_line(&mut line).expect("lines");
            lines.push(line);
        }
        child.kill().expect("kills");
        child.wait().expect("ends");
        let mut rest = String::new();
        said.read_to_string(&mut rest).expect("reads");
        lines.len() + rest.lines().count()
    });
    let (ok, said, why) = d.kv(&["scan", "--limit", "1000000"]);
    assert!(ok, "{why}");
    let found: Vec<&str> = said.lines().collect();
    assert!(found.len() >= writer, "{} pairs found, {writer} acknowledged", found.len());
    for (i, line) in found.iter().enumerate() {
        assert_eq!(*line, format!("key{i:06}\tvalue of {i} {}", "x".repeat(500)));
    }
    assert!(d.kv(&["put", "more", "goes"]).0);
    assert_eq!(d.kv(&["get", "more"]).1, "goes");
}

/// A server on a Unix socket, killed when it is dropped.
struct Served {
    child: std::process::Child,
    socket: String,
}

impl Served {
    fn new(d: &Drive, more: &[&str]) -> Served {
        let socket = format!("{}.sock", d.path);
        let at = format!("unix:{socket}");
        let mut args = vec!["serve", "--resp", &at];
        args.extend(more);
        let mut child = rackweave(&d.args("kv", &args)).stdout(Stdio::piped()).spawn().expect("runs");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut line).expect("says where");
        assert!(line.contains(&at), "{line:?}");
        Served { child, socket }
    }
    fn connect(&self) -> UnixStream {
        let s = UnixStream::connect(&self.socket).expect("connects");
        s.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        s
    }
    /// Sends inline commands; the replies, once there are this many bytes.
    fn say(&self, commands: &str, replies: &str) {
        let mut s = self.connect();
        s.write_all(commands.as_bytes()).expect("sent");
        let mut found = vec![0; replies.len()];
        s.read_exact(&mut found).expect("replies");
        assert_eq!(text(&found), replies, "{commands}");
    }
    fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("ended");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

#[test]
fn values_that_nobody_reads_expire() {
    let d = Drive::new();
    let served = Served::new(&d, &[]);
    // What expires later does not delay what expires soon.
    served.say("SET later v EX 1000\r\nSET soon v PX 200\r\nDBSIZE\r\n", "+OK\r\n+OK\r\n:2\r\n");
    let mut s = served.connect();
    let mut count = || {
        s.write_all(b"DBSIZE\r\n").expect("sent");
        let mut found = [0; 4];
        s.read_exact(&mut found).expect("a reply");
        found[1]
    };
    let until = Instant::now() + Duration::from_secs(20);
    while count() != b'1' {
        assert!(Instant::now() < until, "an expired value takes room");
    }
}

#[test]
fn redis_clients_are_served_and_answered_sets_survive_a_kill() {
    let d = Drive::new();
    assert!(d.kv(&["put", "hello", "world"]).0);
    let mut served = Served::new(&d, &[]);
    served.say("PING\r\nGET hello\r\nGET none\r\n", "+PONG\r\n$5\r\nworld\r\n$-1\r\n");
    served.say("SELECT 0\r\nSELECT 1\r\nGET hello\r\n", "+OK\r\n-ERR DB index is out of range\r\n$5\r\nworld\r\n");
    served.say("SET k 1 EX 1000\r\nINCR k\r\nTTL k\r\nDEL hello k2\r\n", "+OK\r\n:2\r\n:1000\r\n:1\r\n");
    served.say("MULTI\r\nSET a 1\r\nAPPEND b xy\r\nEXEC\r\n", "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n:2\r\n");
    // Answered sets, and one client that is in the middle of a command, and one that never reads.
    let mut answered = 0;
    let mut client = served.connect();
    client.write_all(b"*2\r\n$3\r\nGET\r\n$100").expect("sent");
    let mut deaf = served.connect();
    deaf.write_all("GET a\r\n".repeat(1000).as_bytes()).expect("sent");
    for i in 0..50 {
        served.say(&format!("SET n{i} v{i}\r\n"), "+OK\r\n");
        answered += 1;
    }
    served.kill();
    let (ok, _, why) = d.kv(&["get", "n0"]);
    assert!(ok, "{why}");
    let mut served = Served::new(&d, &["--flushall"]);
    for i in 0..answered {
        served.say(&format!("GET n{i}\r\n"), &format!("${}\r\nv{i}\r\n", format!("v{i}").len()));
    }
    served.say("MGET a b k hello\r\n", "*4\r\n$1\r\n1\r\n$2\r\nxy\r\n$1\r\n2\r\n$-1\r\n");
    // A client that closes its side gets the replies to what it sent.
    let mut s = served.connect();
    s.write_all(b"STRLEN b\r\nINCR k\r\nGET").expect("sent");
    s.shutdown(std::net::Shutdown::Write).expect("closed");
    let mut found = Vec::new();
    s.read_to_end(&mut found).expect("ends");
    assert_eq!(text(&found), ":2\r\n:3\r\n");
    served.say("FLUSHALL\r\nDBSIZE\r\n", "+OK\r\n:0\r\n");
    // In order, by a signal.
    let pid = served.child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().expect("runs").success());
    assert!(served.child.wait().expect("ended").success());
    assert_eq!(d.kv(&["scan"]).1, "");
}

#[test]
fn expired_values_are_absent_for_every_command() {
    let d = Drive::new();
    let mut served = Served::new(&d, &[]);
    served.say("SET gone 1 PX 1\r\nSET kept 2\r\nSET later 3 EX 1000\r\n", "+OK\r\n+OK\r\n+OK\r\n");
    served.kill();
    assert_eq!(d.kv(&["scan"]).1, "kept\t2\nlater\t3\n");
    assert!(!d.kv(&["get", "gone"]).0);
    let served = Served::new(&d, &[]);
    served.say("EXISTS gone\r\nGET gone\r\n", ":0\r\n$-1\r\n");
}
