//! Servers' clocks differ: a span is counted by the server that carries out the change, a value judged by the one that answered.

use bytes::Bytes;
use rackweave_core::kv::{Change, Condition, Error, Expires, Found, Op, Reply, Version};
use rackweave_core::request;
use rackweave_gateway::Gateway;

use crate::resp::Client;

const HOUR: u64 = 3_600_000;

fn found(value: &str, expires: Option<u64>) -> Option<Found> {
    Some(Found { value: Bytes::from(value.to_string()), version: Version { epoch: 1, counter: 7 }, expires })
}

/// Sends commands whose gets are answered by `get`; the replies, and the changes.
fn changes(commands: &str, get: impl Fn(&[u8]) -> Reply) -> (String, Vec<Change>) {
    let (mut c, mut all) = (Client::new(), Vec::new());
    c.send(commands.as_bytes());
    loop {
        c.take();
        let Some((id, op)) = c.asked.pop_front() else { break };
        let answer = match op {
            Op::Get { key, .. } => get(&key),
            Op::Put { change, .. } => {
                all.push(change);
                Reply::Put(rackweave_core::kv::Verdict::Applied)
            }
            Op::Batch { changes, conditions } => {
                assert!(conditions.iter().all(|(_, c)| matches!(c, Condition::VersionIs(_))), "{conditions:?}");
                all.extend(changes.into_iter().map(|(_, change)| change));
                Reply::Put(rackweave_core::kv::Verdict::Applied)
            }
            other => panic!("{other:?}"),
        };
        c.session.reply(request::Reply::new(id, Ok::<_, Error>(answer)).into());
    }
    (String::from_utf8_lossy(&c.output()).trim_end().replace("\r\n", " "), all)
}

#[test]
fn a_span_is_counted_by_the_server_that_carries_out_the_change() {
    let get = |_: &[u8]| Reply::Value { found: found("v", Some(HOUR + 500)), now: HOUR };
    for (commands, reply, expires) in [
        ("EXPIRE k 10\r\n", ":1", Expires::In(10_000)),
        ("PEXPIRE k 10\r\n", ":1", Expires::In(10)),
        ("PEXPIRE k 1000 GT\r\n", ":1", Expires::In(1000)),
        ("GETEX k EX 10\r\n", "$1 v", Expires::In(10_000)),
        ("GETEX k PXAT 3600001\r\n", "$1 v", Expires::At(HOUR + 1)),
        ("SET k w EX 10 GET\r\n", "$1 v", Expires::In(10_000)),
        ("SET k w KEEPTTL\r\n", "+OK", Expires::At(HOUR + 500)),
        ("MULTI\r\nSET k w EX 10\r\nEXEC\r\n", "+OK +QUEUED *1 +OK", Expires::In(10_000)),
        (
            "MULTI\r\nEXPIRE k 10\r\nPTTL k\r\nPEXPIRETIME k\r\nAPPEND k w\r\nEXEC\r\n",
            "+OK +QUEUED +QUEUED +QUEUED +QUEUED *4 :1 :10000 :3610000 :2",
            Expires::In(10_000),
        ),
    ] {
        let (said, all) = changes(commands, get);
        let [Change::Set { expires: got, .. }] = &all[..] else { panic!("{commands}: {all:?}") };
        assert_eq!((said.as_str(), *got), (reply, expires), "{commands}");
    }
    for commands in ["EXPIRE k 0\r\n", "PEXPIRE k -1\r\n", "PEXPIREAT k 3600000\r\n"] {
        assert_eq!(changes(commands, get), (":1".into(), vec![Change::Delete]), "{commands}");
    }
    assert_eq!(changes("PEXPIRE k 400 GT\r\n", get).0, ":0");
}

#[test]
fn each_value_is_judged_by_the_clock_of_the_server_that_answered() {
    // The server of `a` is an hour behind that of `b`.
    let get = |key: &[u8]| match key {
        b"a" => Reply::Value { found: found("1", Some(HOUR + 1000)), now: HOUR },
        _ => Reply::Value { found: found("2", Some(2 * HOUR + 3000)), now: 2 * HOUR },
    };
    assert_eq!(changes("MGET a b\r\n", get).0, "*2 $1 1 $1 2");
    let commands = "MULTI\r\nPTTL a\r\nPTTL b\r\nEXISTS a b\r\nINCR a\r\nEXEC\r\n";
    let (said, all) = changes(commands, get);
    assert_eq!(said, "+OK +QUEUED +QUEUED +QUEUED +QUEUED *4 :1000 :3000 :2 :2");
    let set = Change::Set { value: "2".into(), expires: Expires::At(HOUR + 1000) };
    assert_eq!(all, [set]);
}
