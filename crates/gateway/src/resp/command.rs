//! Commands on keys: parsed from arguments. [`super::strings`] carries them out.

use bytes::Bytes;
use rackweave_core::kv::Expires;

use super::parse::integer;

/// When a value is to expire, as a command says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Milliseconds from now.
    In(i64),
    /// Milliseconds since 1970.
    At(i64),
}

impl When {
    /// The expiry of a value, if the time has not passed.
    pub fn expires(self) -> Expires {
        match self {
            When::In(ms) => Expires::In(ms as u64),
            When::At(ms) => Expires::At(ms as u64),
        }
    }
}

/// What SET does with the expiry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expiry {
    #[default]
    Clear,
    Keep,
    To(When),
}

/// SET's NX and XX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Only {
    Absent,
    Present,
}

/// The reply of a command that sets a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetReply {
    /// OK, or null if the condition failed.
    Ok,
    /// 1 or 0 (SETNX).
    Count,
    /// The old value (GET).
    Old,
}

/// EXPIRE's NX, XX, GT and LT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpireIf {
    pub none: bool,
    pub some: bool,
    pub later: bool,
    pub earlier: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TtlForm {
    Seconds,
    Millis,
    AtSeconds,
    AtMillis,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    Get,
    MGet,
    Set {
        value: Bytes,
        only: Option<Only>,
        expiry: Expiry,
        reply: SetReply,
    },
    /// The values of the keys, in their order.
    MSet(Vec<Bytes>),
    GetDel,
    /// `None`: the expiry stays. The error of a wrong time is that of a key that is there.
    GetEx(Option<Parsed<Expiry>>),
    Del,
    Exists,
    IncrBy(i64),
    IncrByFloat(Bytes),
    Append(Bytes),
    StrLen,
    GetRange(i64, i64),
    Expire {
        when: When,
        only: ExpireIf,
    },
    Ttl(TtlForm),
    Persist,
    Type,
}

/// A command and its keys.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyCommand {
    pub keys: Vec<Bytes>,
    pub action: Action,
}

impl KeyCommand {
    /// Whether it never changes a key.
    pub fn reads(&self) -> bool {
        use Action::*;
        matches!(self.action, Get | MGet | Exists | StrLen | GetRange(..) | Ttl(_) | Type | GetEx(None | Some(Err(_))))
    }
    /// Bytes of keys and values.
    pub fn bytes(&self) -> usize {
        let values = match &self.action {
            Action::Set { value, .. } | Action::Append(value) => value.len(),
            Action::MSet(values) => values.iter().map(Bytes::len).sum(),
            _ => 0,
        };
        values + self.keys.iter().map(Bytes::len).sum::<usize>()
    }
}

pub const SYNTAX: &str = "syntax error";
pub const NOT_INTEGER: &str = "value is not an integer or out of range";

/// Most bytes of an argument in an error, as Redis has it.
pub const SHOWN_MAX: usize = 128;

/// An argument as an error shows it.
pub fn shown(arg: &[u8]) -> String {
    arg[..arg.len().min(SHOWN_MAX)].escape_ascii().to_string()
}

/// The error is a text for the client.
pub type Parsed<T> = Result<T, String>;

fn number(b: &Bytes) -> Parsed<i64> {
    integer(b).ok_or_else(|| NOT_INTEGER.into())
}
fn is(b: &Bytes, word: &str) -> bool {
    b.eq_ignore_ascii_case(word.as_bytes())
}

/// A time of a command: positive, and in milliseconds still a number.
fn when(command: &str, text: &Bytes, unit_ms: i64, absolute: bool) -> Parsed<When> {
    let n = number(text)?;
    if n <= 0 {
        return Err(format!("invalid expire time in '{command}' command"));
    }
    any_when(command, n, unit_ms, absolute)
}
fn any_when(command: &str, n: i64, unit_ms: i64, absolute: bool) -> Parsed<When> {
    let invalid = || format!("invalid expire time in '{command}' command");
    let ms = n.checked_mul(unit_ms).ok_or_else(invalid)?;
    // Redis adds the current time.
    if !absolute && ms > i64::MAX - (1 << 43) {
        return Err(invalid());
    }
    Ok(if absolute { When::At(ms) } else { When::In(ms) })
}

/// An option's number, its unit in milliseconds, and whether it counts from 1970.
type Time<'a> = (&'a Bytes, i64, bool);

/// The options EX, PX, EXAT and PXAT, with their number.
fn time_option<'a>(args: &'a [Bytes], at: &mut usize) -> Parsed<Time<'a>> {
    let options = [("EX", 1000, false), ("PX", 1, false), ("EXAT", 1000, true), ("PXAT", 1, true)];
    let (_, unit, absolute) = options.into_iter().find(|o| is(&args[*at], o.0)).ok_or(SYNTAX)?;
    *at += 1;
    Ok((args.get(*at).ok_or(SYNTAX)?, unit, absolute))
}

/// The command of this name in lower case, whose number of arguments is right. `None`: it is none on keys.
pub fn parse(name: &str, args: &[Bytes]) -> Option<Parsed<KeyCommand>> {
    let first = args.get(1).cloned().unwrap_or_default();
    let one = |action| Ok(KeyCommand { keys: vec![first.clone()], action });
    let all = |action| Ok(KeyCommand { keys: args[1..].to_vec(), action });
    let plain_set = |value: &Bytes, expiry, only, reply| Action::Set { value: value.clone(), only, expiry, reply };
    Some(match name {
        "get" => one(Action::Get),
        "set" => set(args).and_then(one),
        "setnx" => one(plain_set(&args[2], Expiry::Clear, Some(Only::Absent), SetReply::Count)),
        "setex" | "psetex" => when(name, &args[2], if name == "setex" { 1000 } else { 1 }, false)
            .and_then(|w| one(plain_set(&args[3], Expiry::To(w), None, SetReply::Ok))),
        "getset" => one(plain_set(&args[2], Expiry::Clear, None, SetReply::Old)),
        "getdel" => one(Action::GetDel),
        "getex" => getex(args).and_then(one),
        "mget" => all(Action::MGet),
        "mset" => mset(args),
        "del" | "unlink" => all(Action::Del),
        "exists" | "touch" => all(Action::Exists),
        "incr" => one(Action::IncrBy(1)),
        "decr" => one(Action::IncrBy(-1)),
        "incrby" => number(&args[2]).and_then(|n| one(Action::IncrBy(n))),
        "decrby" => number(&args[2])
            .and_then(|n| n.checked_neg().ok_or_else(|| "decrement would overflow".into()))
            .and_then(|n| one(Action::IncrBy(n))),
        "incrbyfloat" => one(Action::IncrByFloat(args[2].clone())),
        "append" => one(Action::Append(args[2].clone())),
        "strlen" => one(Action::StrLen),
        "getrange" | "substr" => {
            number(&args[2]).and_then(|a| Ok((a, number(&args[3])?))).and_then(|(a, b)| one(Action::GetRange(a, b)))
        }
        "expire" | "pexpire" | "expireat" | "pexpireat" => expire(name, args).and_then(one),
        "ttl" => one(Action::Ttl(TtlForm::Seconds)),
        "pttl" => one(Action::Ttl(TtlForm::Millis)),
        "expiretime" => one(Action::Ttl(TtlForm::AtSeconds)),
        "pexpiretime" => one(Action::Ttl(TtlForm::AtMillis)),
        "persist" => one(Action::Persist),
        "type" => one(Action::Type),
        _ => return None,
    })
}

/// The number of an option is looked at when all options are known, as in Redis.
enum Wanted<'a> {
    Expiry(Expiry),
    To(Time<'a>),
}

impl Wanted<'_> {
    fn expiry(self, command: &str) -> Parsed<Expiry> {
        match self {
            Wanted::Expiry(e) => Ok(e),
            Wanted::To((n, unit, absolute)) => when(command, n, unit, absolute).map(Expiry::To),
        }
    }
}

/// A time option that may come again, but not beside another one.
fn again<'a>(wanted: Option<Wanted<'_>>, time: Time<'a>) -> Parsed<Wanted<'a>> {
    match wanted {
        Some(Wanted::To((_, unit, absolute))) if (unit, absolute) != (time.1, time.2) => Err(SYNTAX.into()),
        Some(Wanted::Expiry(_)) => Err(SYNTAX.into()),
        _ => Ok(Wanted::To(time)),
    }
}

fn set(args: &[Bytes]) -> Parsed<Action> {
    let (mut only, mut wanted, mut reply) = (None, None, SetReply::Ok);
    let mut at = 3;
    while at < args.len() {
        let word = &args[at];
        if is(word, "NX") && only != Some(Only::Present) {
            only = Some(Only::Absent);
        } else if is(word, "XX") && only != Some(Only::Absent) {
            only = Some(Only::Present);
        } else if is(word, "GET") {
            reply = SetReply::Old;
        } else if is(word, "KEEPTTL") && !matches!(wanted, Some(Wanted::To(_))) {
            wanted = Some(Wanted::Expiry(Expiry::Keep));
        } else {
            wanted = Some(again(wanted, time_option(args, &mut at)?)?);
        }
        at += 1;
    }
    let expiry = wanted.map_or(Ok(Expiry::Clear), |w| w.expiry("set"))?;
    Ok(Action::Set { value: args[2].clone(), only, expiry, reply })
}

fn getex(args: &[Bytes]) -> Parsed<Action> {
    let mut wanted = None;
    let mut at = 2;
    while at < args.len() {
        if is(&args[at], "PERSIST") && !matches!(wanted, Some(Wanted::To(_))) {
            wanted = Some(Wanted::Expiry(Expiry::Clear));
        } else {
            wanted = Some(again(wanted, time_option(args, &mut at)?)?);
        }
        at += 1;
    }
    Ok(Action::GetEx(wanted.map(|w| w.expiry("getex"))))
}

fn mset(args: &[Bytes]) -> Parsed<KeyCommand> {
    if args.len().is_multiple_of(2) {
        return Err("wrong number of arguments for 'mset' command".into());
    }
    let keys = args[1..].iter().step_by(2).cloned().collect();
    Ok(KeyCommand { keys, action: Action::MSet(args[2..].iter().step_by(2).cloned().collect()) })
}

fn expire(name: &str, args: &[Bytes]) -> Parsed<Action> {
    let mut only = ExpireIf::default();
    for word in &args[3..] {
        match () {
            () if is(word, "NX") => only.none = true,
            () if is(word, "XX") => only.some = true,
            () if is(word, "GT") => only.later = true,
            () if is(word, "LT") => only.earlier = true,
            () => return Err(format!("Unsupported option {}", shown(word))),
        }
    }
    if only.none && (only.some || only.later || only.earlier) {
        return Err("NX and XX, GT or LT options at the same time are not compatible".into());
    }
    if only.later && only.earlier {
        return Err("GT and LT options at the same time are not compatible".into());
    }
    let unit = if name.starts_with('p') { 1 } else { 1000 };
    let when = any_when(name, number(&args[2])?, unit, name.ends_with("at"))?;
    Ok(Action::Expire { when, only })
}
