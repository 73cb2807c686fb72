//! SELECT: the keyspace of a connection.

use std::rc::Rc;

use rackweave_core::keyspace::KeyspaceId;
use rackweave_core::kv::Op;
use rackweave_core::request::{self, RequestId};
use rackweave_core::{Span, admin};
use rackweave_gateway::resp::{Session, Settings};
use rackweave_gateway::{Gateway, Request, SessionId};

use crate::resp::Client;

const OUT_OF_RANGE: &str = "-ERR DB index is out of range";

/// A client of a rack with the keyspaces 1, `users`, and 2, `logs`.
fn client() -> Client {
    let mut c = Client::new();
    let settings = Settings { flushall: true, keyspaces: true, ..Settings::default() };
    c.session = Session::new(SessionId(7), Rc::new(settings));
    c.map.add(1, "users");
    c.map.add(2, "logs");
    c
}

/// Commands and replies, in order.
fn script(c: &mut Client, lines: &[(&str, &str)]) {
    for (command, reply) in lines {
        assert_eq!(c.say(command), *reply, "{command}");
    }
}

/// A session, its request of the metadata service for a keyspace, and what it says to the answer.
fn answered(result: Result<admin::Reply, admin::Error>) -> String {
    let mut c = client();
    c.send(b"SELECT users\r\n");
    let Some(Request::Rack(r)) = c.session.poll_request() else { panic!("no request") };
    assert!(matches!(&r.op, request::Op::Admin(admin::Op::KeyspaceInfo { name }) if &**name == "users"), "{r:?}");
    c.session.reply(request::Reply::new(r.id, result).into());
    String::from_utf8(c.output()).expect("text")
}

#[test]
fn keys_are_of_the_keyspace_that_is_selected() {
    let mut c = client();
    script(
        &mut c,
        &[
            ("SET k first", "+OK"),
            ("SELECT 1", "+OK"),
            ("GET k", "$-1"),
            ("SET k second", "+OK"),
            ("INCR n", ":1"),
            ("SELECT logs", "+OK"),
            ("MSET k third j third", "+OK"),
            ("DBSIZE", ":2"),
            ("SELECT users", "+OK"),
            ("GET k", "$6 second"),
            ("SELECT default", "+OK"),
            ("GET k", "$5 first"),
            ("EXISTS n j", ":0"),
            ("SELECT 2", "+OK"),
            ("SCAN 0 MATCH j", "*2 $1 0 *1 $1 j"),
            ("FLUSHDB", "+OK"),
            ("SELECT 1", "+OK"),
            ("DBSIZE", ":2"),
            ("SELECT 0", "+OK"),
            ("GET k", "$5 first"),
        ],
    );
    assert_eq!(c.map.others[&1].1.all.len(), 2);
}

#[test]
fn what_is_not_there_is_not_selected() {
    let mut c = client();
    let beyond = format!("SELECT {}", KeyspaceId::MAX);
    let long = "n".repeat(65);
    script(
        &mut c,
        &[
            ("SELECT 1", "+OK"),
            ("SELECT 3", OUT_OF_RANGE),
            ("SELECT -1", OUT_OF_RANGE),
            (&beyond, OUT_OF_RANGE),
            ("SELECT nobody", "-ERR no keyspace is named \"nobody\""),
            ("SELECT \"a b\"", "-ERR no keyspace is named \"a b\""),
            (&format!("SELECT {long}"), &format!("-ERR no keyspace is named \"{long}\"")),
            ("SELECT 1x", "-ERR value is not an integer or out of range"),
            ("SELECT", "-ERR wrong number of arguments for 'select' command"),
            ("CLIENT INFO", "$23 id=7 name= db=1 resp=2"),
        ],
    );
    // A server of one keyspace knows that no other can be there.
    let mut c = Client::new();
    c.map.add(1, "users");
    script(
        &mut c,
        &[
            ("SELECT 1", OUT_OF_RANGE),
            ("SELECT users", "-ERR no keyspace is named \"users\""),
            ("SELECT default", "+OK"),
            ("CONFIG GET databases", "*2 $9 databases $1 1"),
        ],
    );
}

#[test]
fn errors_of_the_rack_are_the_reply() {
    let waited = Span::from_secs(3);
    assert_eq!(answered(Err(admin::Error::TimedOut { waited })), "-ERR the rack did not answer within 3000.0 ms\r\n");
    let other = "-ERR the storage's answer does not match the request\r\n";
    assert_eq!(answered(Ok(admin::Reply::Done)), other);
    assert_eq!(answered(Ok(admin::Reply::Keyspaces(Vec::new()))), other);
}

#[test]
fn a_deleted_keyspace_says_so_until_another_is_selected() {
    let mut c = client();
    let gone = "-ERR the keyspace was deleted; SELECT another one, or 0 for the first";
    script(&mut c, &[("SELECT users", "+OK"), ("SET k v", "+OK")]);
    c.map.others.remove(&1);
    script(
        &mut c,
        &[
            ("GET k", gone),
            ("SET k v", gone),
            ("INCR k", gone),
            ("DBSIZE", gone),
            ("SELECT 1", OUT_OF_RANGE),
            ("GET k", gone),
            ("MULTI", "+OK"),
            ("SET k v", "+QUEUED"),
            ("EXEC", gone),
            ("PING", "+PONG"),
            ("SELECT 0", "+OK"),
            ("GET k", "$-1"),
        ],
    );
}

#[test]
fn the_connection_shows_its_keyspace_until_it_is_reset() {
    let mut c = client();
    script(&mut c, &[("SELECT logs", "+OK"), ("SET k v", "+OK"), ("CLIENT INFO", "$23 id=7 name= db=2 resp=2")]);
    assert_eq!(c.say("INFO keyspace"), "$44 # Keyspace db2:keys=1,expires=0,avg_ttl=0");
    assert_eq!(c.say("CONFIG GET databases"), format!("*2 $9 databases $2 {}", KeyspaceId::MAX));
    assert!(c.say("HELLO 3").starts_with("%7"));
    assert_eq!(c.say("GET k"), "$1 v", "HELLO keeps the keyspace");
    script(&mut c, &[("RESET", "+RESET"), ("GET k", "$-1"), ("CLIENT INFO", "$23 id=7 name= db=0 resp=2")]);
}

#[test]
fn a_pipeline_has_each_command_in_the_keyspace_of_its_place() {
    let mut c = client();
    let all = "SET k 0\r\nSELECT 1\r\nSET k 1\r\nSELECT 0\r\nGET k\r\nSELECT logs\r\nGET k\r\nSELECT 7\r\nGET k\r\n\
               SELECT users\r\nGET k\r\nRESET\r\nGET k\r\n";
    let wanted = "+OK +OK +OK +OK $1 0 +OK $-1 -ERR DB index is out of range $-1 +OK $1 1 +RESET $1 0";
    for piece in [1, 7, 1000] {
        let mut said = String::new();
        for part in all.as_bytes().chunks(piece) {
            said.push_str(&c.ask(part));
        }
        assert_eq!(said.trim_end().replace("\r\n", " "), wanted, "pieces of {piece}");
    }
    // What follows a SELECT waits until it is answered, and a retried command stays where it began.
    c.send(b"SELECT users\r\nINCR n\r\nSELECT 0\r\nINCR n\r\n");
    let mut ops: Vec<(RequestId, bool)> = Vec::new();
    let Some(Request::Rack(r)) = c.session.poll_request() else { panic!("no request") };
    assert!(matches!(r.op, request::Op::Admin(_)) && c.session.poll_request().is_none());
    let request::Op::Admin(op) = r.op else { panic!("{r:?}") };
    c.session.reply(request::Reply::new(r.id, c.map.admin(op)).into());
    c.take();
    ops.extend(c.asked.iter().map(|(id, op)| (*id, matches!(op, Op::In { .. }))));
    assert_eq!(ops.iter().map(|o| o.1).collect::<Vec<_>>(), [true], "INCR of the same key waits");
    assert_eq!(c.ask(b""), "+OK\r\n:1\r\n+OK\r\n:1\r\n");
    assert_eq!((c.map.all.len(), c.map.others[&1].1.all.len()), (2, 2));
}

#[test]
fn a_transaction_is_of_one_keyspace() {
    let mut c = client();
    let abort = "-EXECABORT Transaction discarded because of previous errors.";
    let refused = "-ERR SELECT of another keyspace is not allowed in transactions here";
    let watched = "-ERR SELECT of another keyspace is not possible while keys are watched";
    script(
        &mut c,
        &[
            ("SELECT users", "+OK"),
            ("WATCH k", "+OK"),
            ("SELECT 0", watched),
            ("SELECT logs", watched),
            ("SELECT 1", "+OK"),
            ("MULTI", "+OK"),
            ("SELECT 1", "+QUEUED"),
            ("SELECT users", "+QUEUED"),
            ("SET k v", "+QUEUED"),
            ("SELECT x1!", "+QUEUED"),
            ("EXEC", "*4 +OK +OK +OK -ERR no keyspace is named \"x1!\""),
            ("GET k", "$1 v"),
            ("MULTI", "+OK"),
            ("SET k w", "+QUEUED"),
            ("SELECT 0", refused),
            ("EXEC", abort),
            ("GET k", "$1 v"),
            ("SELECT 0", "+OK"),
            ("GET k", "$-1"),
            ("MULTI", "+OK"),
            ("SELECT 0", "+QUEUED"),
            ("EXEC", "*1 +OK"),
        ],
    );
}
