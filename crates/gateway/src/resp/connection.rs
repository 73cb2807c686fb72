//! Commands about the connection and the server, which need no storage: they are answered at once, in their turn.

use bytes::Bytes;

use super::command::{NOT_INTEGER, SYNTAX, shown};
use super::glob::PATTERN_MAX;
use super::info::{REDIS_VERSION, config_get};
use super::parse::integer;
use super::reply::{Protocol, Reply};
use super::{Session, Settings, table};

/// Longest name of a client.
const NAME_MAX: usize = 256;

fn is(b: &Bytes, word: &str) -> bool {
    b.eq_ignore_ascii_case(word.as_bytes())
}
fn arity(command: &str) -> Reply {
    Reply::err(format!("wrong number of arguments for '{command}' command"))
}
fn unknown_sub(command: &str, sub: &Bytes) -> Reply {
    Reply::err(format!("unknown subcommand '{}'. Try {} HELP.", shown(sub), command.to_ascii_uppercase()))
}
/// The error of a pattern that takes too long to match.
pub fn too_long(pattern: &Bytes) -> Option<Reply> {
    let len = pattern.len();
    (len > PATTERN_MAX).then(|| Reply::err(format!("a pattern of {len} bytes: at most {PATTERN_MAX}")))
}

/// A reply without effect on the connection; `None`: the command is another one.
pub fn plain(name: &str, args: &[Bytes], settings: &Settings) -> Option<Reply> {
    Some(match name {
        "ping" => match args {
            [_] => Reply::Simple("PONG"),
            [_, text] => Reply::Bulk(text.clone()),
            _ => arity("ping"),
        },
        "echo" => Reply::Bulk(args[1].clone()),
        "command" => table::command(args).unwrap_or_else(|| unknown_sub("command", &args[1])),
        "config" => match args {
            [_, sub, patterns @ ..] if is(sub, "GET") && !patterns.is_empty() => {
                let too_long = patterns.iter().find_map(too_long);
                too_long.unwrap_or_else(|| config_get(patterns, settings.keyspaces))
            }
            [_, sub] if is(sub, "GET") => arity("config|get"),
            _ => unknown_sub("config", &args[1]),
        },
        // Every answered change is durable here, and there are no other copies.
        "wait" => match (integer(&args[1]), integer(&args[2])) {
            (Some(_), Some(ms)) if ms < 0 => Reply::err("timeout is negative"),
            (Some(_), Some(_)) => Reply::Integer(0),
            (_, None) => Reply::err("timeout is not an integer or out of range"),
            (None, _) => Reply::err(NOT_INTEGER),
        },
        "auth" => auth(&args[1..]),
        _ => return None,
    })
}

/// There is one user, without a password.
fn auth(args: &[Bytes]) -> Reply {
    match args {
        [_] => Reply::err(
            "AUTH <password> called without any password configured for the default user. Are you sure your \
             configuration is correct?",
        ),
        [user, _] if &user[..] == b"default" => Reply::OK,
        [_, _] => Reply::error("WRONGPASS invalid username-password pair or user is disabled."),
        _ => Reply::err(SYNTAX),
    }
}

impl Session {
    pub(super) fn client(&mut self, args: &[Bytes]) -> Reply {
        match &args[1..] {
            [sub] if is(sub, "ID") => Reply::Integer(i64::from(self.id.0)),
            [sub] if is(sub, "GETNAME") && self.name.is_empty() => Reply::Null,
            [sub] if is(sub, "GETNAME") => Reply::Bulk(self.name.clone()),
            [sub] if is(sub, "INFO") => Reply::Text(format!("{}\n", self.described())),
            [sub, name] if is(sub, "SETNAME") => self.set_name(name).unwrap_or(Reply::OK),
            [sub, what, value] if is(sub, "SETINFO") => {
                if !is(what, "LIB-NAME") && !is(what, "LIB-VER") {
                    return Reply::err(format!("Unrecognized option '{}'", shown(what)));
                }
                if value.iter().any(|b| !(33..=126).contains(b)) {
                    let what = String::from_utf8_lossy(what).to_ascii_lowercase();
                    return Reply::err(format!("{what} cannot contain spaces, newlines or special characters."));
                }
                Reply::OK
            }
            [sub, ..] if ["ID", "GETNAME", "INFO", "SETNAME", "SETINFO"].iter().any(|w| is(sub, w)) => {
                arity(&format!("client|{}", String::from_utf8_lossy(sub).to_ascii_lowercase()))
            }
            [sub, ..] => unknown_sub("client", sub),
            [] => arity("client"),
        }
    }
    fn described(&self) -> String {
        let resp = if self.protocol == Protocol::Resp3 { 3 } else { 2 };
        format!("id={} name={} db={} resp={resp}", self.id.0, self.name.escape_ascii(), self.selected.number())
    }
    /// The error, if it is no name.
    fn set_name(&mut self, name: &Bytes) -> Option<Reply> {
        if name.len() > NAME_MAX {
            return Some(Reply::err(format!("a client name of {} bytes: at most {NAME_MAX}", name.len())));
        }
        if name.iter().any(|b| !(33..=126).contains(b)) {
            return Some(Reply::err("Client names cannot contain spaces, newlines or special characters."));
        }
        self.name = Bytes::copy_from_slice(name);
        None
    }
    pub(super) fn hello(&mut self, args: &[Bytes]) -> Reply {
        let protocol = match args.get(1).map(|v| integer(v)) {
            None => self.protocol,
            Some(Some(2)) => Protocol::Resp2,
            Some(Some(3)) => Protocol::Resp3,
            Some(Some(_)) => return Reply::error("NOPROTO unsupported protocol version"),
            Some(None) => return Reply::err("Protocol version is not an integer or out of range"),
        };
        let (mut rest, mut name) = (args.get(2..).unwrap_or_default(), None);
        while let Some((option, values)) = rest.split_first() {
            rest = match values {
                [user, password, rest @ ..] if is(option, "AUTH") => {
                    let refused = auth(&[user.clone(), password.clone()]);
                    if refused.is_error() {
                        return refused;
                    }
                    rest
                }
                [n, rest @ ..] if is(option, "SETNAME") => {
                    name = Some(n.clone());
                    rest
                }
                _ => return Reply::err(format!("Syntax error in HELLO option '{}'", shown(option))),
            };
        }
        if let Some(refused) = name.and_then(|n| self.set_name(&n)) {
            return refused;
        }
        self.protocol = protocol;
        let pair = |k: &str, v: Reply| (Reply::bulk(k), v);
        Reply::Map(vec![
            pair("server", Reply::bulk("redis")),
            pair("version", Reply::bulk(REDIS_VERSION)),
            pair("proto", Reply::Integer(if protocol == Protocol::Resp3 { 3 } else { 2 })),
            pair("id", Reply::Integer(i64::from(self.id.0))),
            pair("mode", Reply::bulk("standalone")),
            pair("role", Reply::bulk("master")),
            pair("modules", Reply::Array(vec![])),
        ])
    }
}
