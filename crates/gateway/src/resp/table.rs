//! The commands that are served, as COMMAND reports them.

use bytes::Bytes;

use super::reply::Reply;

/// Most names in COMMAND INFO and COMMAND DOCS: their replies are made without a grant of memory.
pub const NAMES_MAX: usize = 256;

#[derive(Clone, Copy, Debug)]
pub struct Info {
    /// In lower case.
    pub name: &'static str,
    /// Number of arguments with the name; negative: at least that many.
    arity: i32,
    /// Words in Redis's terms.
    flags: &'static str,
    /// Positions of the first and last key, and their distance.
    keys: [i32; 3],
    group: &'static str,
    summary: &'static str,
}

const fn c(name: &'static str, arity: i32, flags: &'static str, keys: [i32; 3], of: [&'static str; 2]) -> Info {
    Info { name, arity, flags, keys, group: of[0], summary: of[1] }
}

const ONE: [i32; 3] = [1, 1, 1];
const ALL: [i32; 3] = [1, -1, 1];
const NONE: [i32; 3] = [0, 0, 0];
const S: &str = "string";
const G: &str = "generic";
const C: &str = "connection";
const T: &str = "transactions";
const V: &str = "server";

/// In the order of their names.
pub const COMMANDS: &[Info] = &[
    c("append", 3, "write denyoom fast", ONE, [S, "Appends to the value of a key"]),
    c("auth", -2, "noscript loading stale fast", NONE, [C, "Authenticates the connection"]),
    c("client", -2, "noscript loading stale", NONE, [C, "Names and describes connections"]),
    c("command", -1, "loading stale", NONE, [V, "Describes commands"]),
    c("config", -2, "admin noscript loading stale", NONE, [V, "Shows settings"]),
    c("dbsize", 1, "readonly fast", NONE, [V, "Returns the number of keys of the database"]),
    c("decr", 2, "write denyoom fast", ONE, [S, "Subtracts one from the integer value of a key"]),
    c("decrby", 3, "write denyoom fast", ONE, [S, "Subtracts a number from the integer value of a key"]),
    c("del", -2, "write", ALL, [G, "Deletes keys"]),
    c("discard", 1, "noscript loading stale fast", NONE, [T, "Discards a transaction"]),
    c("echo", 2, "loading stale fast", NONE, [C, "Returns its argument"]),
    c("exec", 1, "noscript loading stale", NONE, [T, "Executes a transaction"]),
    c("exists", -2, "readonly fast", ALL, [G, "Counts those of the keys that have a value"]),
    c("expire", -3, "write fast", ONE, [G, "Sets the expiry of a key, in seconds from now"]),
    c("expireat", -3, "write fast", ONE, [G, "Sets the expiry of a key, in seconds since 1970"]),
    c("expiretime", 2, "readonly fast", ONE, [G, "Returns the expiry of a key, in seconds since 1970"]),
    c("flushall", -1, "write", NONE, [V, "Deletes all keys of the database"]),
    c("flushdb", -1, "write", NONE, [V, "Deletes all keys of the database"]),
    c("get", 2, "readonly fast", ONE, [S, "Returns the value of a key"]),
    c("getdel", 2, "write fast", ONE, [S, "Returns the value of a key and deletes it"]),
    c("getex", -2, "write fast", ONE, [S, "Returns the value of a key and changes its expiry"]),
    c("getrange", 4, "readonly", ONE, [S, "Returns a part of the value of a key"]),
    c("getset", 3, "write denyoom fast", ONE, [S, "Sets the value of a key and returns the old one"]),
    c("hello", -1, "noscript loading stale fast", NONE, [C, "Chooses the version of the protocol"]),
    c("incr", 2, "write denyoom fast", ONE, [S, "Adds one to the integer value of a key"]),
    c("incrby", 3, "write denyoom fast", ONE, [S, "Adds a number to the integer value of a key"]),
    c("incrbyfloat", 3, "write denyoom fast", ONE, [S, "Adds a number to the decimal value of a key"]),
    c("info", -1, "loading stale", NONE, [V, "Describes the server"]),
    c("keys", 2, "readonly", NONE, [G, "Returns the keys that match a pattern"]),
    c("mget", -2, "readonly fast", ALL, [S, "Returns the values of keys"]),
    c("mset", -3, "write denyoom", [1, -1, 2], [S, "Sets the values of keys, each for itself"]),
    c("multi", 1, "noscript loading stale fast", NONE, [T, "Begins a transaction"]),
    c("persist", 2, "write fast", ONE, [G, "Removes the expiry of a key"]),
    c("pexpire", -3, "write fast", ONE, [G, "Sets the expiry of a key, in milliseconds from now"]),
    c("pexpireat", -3, "write fast", ONE, [G, "Sets the expiry of a key, in milliseconds since 1970"]),
    c("pexpiretime", 2, "readonly fast", ONE, [G, "Returns the expiry of a key, in milliseconds since 1970"]),
    c("ping", -1, "fast", NONE, [C, "Answers"]),
    c("psetex", 4, "write denyoom", ONE, [S, "Sets the value and the expiry of a key, in milliseconds"]),
    c("pttl", 2, "readonly fast", ONE, [G, "Returns the time to live of a key, in milliseconds"]),
    c("quit", -1, "noscript loading stale fast", NONE, [C, "Closes the connection"]),
    c("reset", 1, "noscript loading stale fast", NONE, [C, "Resets the connection"]),
    c("scan", -2, "readonly", NONE, [G, "Returns keys page by page"]),
    c("select", 2, "loading stale fast", NONE, [C, "Chooses the database: a keyspace, by its number or name"]),
    c("set", -3, "write denyoom", ONE, [S, "Sets the value of a key"]),
    c("setex", 4, "write denyoom", ONE, [S, "Sets the value and the expiry of a key, in seconds"]),
    c("setnx", 3, "write denyoom fast", ONE, [S, "Sets the value of a key that has none"]),
    c("strlen", 2, "readonly fast", ONE, [S, "Returns the length of the value of a key"]),
    c("substr", 4, "readonly", ONE, [S, "Returns a part of the value of a key"]),
    c("touch", -2, "readonly fast", ALL, [G, "Counts those of the keys that have a value"]),
    c("ttl", 2, "readonly fast", ONE, [G, "Returns the time to live of a key, in seconds"]),
    c("type", 2, "readonly fast", ONE, [G, "Returns the type of the value of a key"]),
    c("unlink", -2, "write fast", ALL, [G, "Deletes keys"]),
    c("unwatch", 1, "noscript loading stale fast", NONE, [T, "Forgets the watched keys"]),
    c("wait", 3, "noscript", NONE, [G, "Returns the number of replicas, which is 0"]),
    c("watch", -2, "noscript loading stale fast", ALL, [T, "Watches keys until the next transaction"]),
];

pub fn find(name: &str) -> Option<&'static Info> {
    COMMANDS.binary_search_by(|c| c.name.cmp(name)).ok().map(|i| &COMMANDS[i])
}

impl Info {
    pub fn takes(&self, args: usize) -> bool {
        let n = self.arity.unsigned_abs() as usize;
        if self.arity < 0 { args >= n } else { args == n }
    }
    fn entry(&self) -> Reply {
        let words = |text: &str| Reply::Set(text.split(' ').map(Reply::bulk).collect());
        let mut categories: Vec<String> = vec![format!("@{}", self.group)];
        let kinds = [("write", "@write"), ("readonly", "@read"), ("fast", "@fast"), ("admin", "@admin")];
        categories.extend(kinds.iter().filter(|k| self.has(k.0)).map(|k| k.1.into()));
        Reply::Array(vec![
            Reply::bulk(self.name),
            Reply::Integer(self.arity.into()),
            words(self.flags),
            Reply::Integer(self.keys[0].into()),
            Reply::Integer(self.keys[1].into()),
            Reply::Integer(self.keys[2].into()),
            words(&categories.join(" ")),
            Reply::Array(vec![]),
            Reply::Array(vec![]),
            Reply::Array(vec![]),
        ])
    }
    fn has(&self, flag: &str) -> bool {
        self.flags.split(' ').any(|f| f == flag)
    }
    fn docs(&self) -> Reply {
        let pair = |k: &str, v: &str| (Reply::bulk(k), Reply::bulk(v));
        Reply::Map(vec![pair("summary", self.summary), pair("group", self.group)])
    }
    /// The keys among the arguments of this command.
    fn keys_of(&self, args: &[Bytes]) -> Vec<Reply> {
        let [first, last, step] = self.keys;
        if first == 0 {
            return Vec::new();
        }
        let end = if last < 0 { args.len() as i32 + last } else { last };
        let at = (first..=end).step_by(step.max(1) as usize);
        at.filter_map(|i| args.get(i as usize).cloned().map(Reply::Bulk)).collect()
    }
}

/// COMMAND and its subcommands; `None`: there is no such subcommand.
pub fn command(args: &[Bytes]) -> Option<Reply> {
    let name = |b: &Bytes| String::from_utf8_lossy(b).to_ascii_lowercase();
    let Some(sub) = args.get(1).map(name) else {
        return Some(Reply::Array(COMMANDS.iter().map(Info::entry).collect()));
    };
    let rest = &args[2..];
    Some(match sub.as_str() {
        "count" if rest.is_empty() => Reply::Integer(COMMANDS.len() as i64),
        "list" if rest.is_empty() => Reply::Array(COMMANDS.iter().map(|c| Reply::bulk(c.name)).collect()),
        "info" | "docs" if rest.len() > NAMES_MAX => {
            Reply::err(format!("{} names in COMMAND {}: at most {NAMES_MAX}", rest.len(), sub.to_ascii_uppercase()))
        }
        "info" if rest.is_empty() => Reply::Array(COMMANDS.iter().map(Info::entry).collect()),
        "info" => Reply::Array(rest.iter().map(|n| find(&name(n)).map_or(Reply::NullArray, Info::entry)).collect()),
        "docs" => {
            let named: Vec<&Info> = rest.iter().filter_map(|n| find(&name(n))).collect();
            let all = if rest.is_empty() { COMMANDS.iter().collect() } else { named };
            Reply::Map(all.iter().map(|c| (Reply::bulk(c.name), c.docs())).collect())
        }
        "getkeys" if !rest.is_empty() => match find(&name(&rest[0])) {
            None => Reply::err("Invalid command specified"),
            Some(c) if !c.takes(rest.len()) => Reply::err("Invalid number of arguments specified for command"),
            Some(c) => match c.keys_of(rest) {
                keys if keys.is_empty() => Reply::err("The command has no key arguments"),
                keys => Reply::Array(keys),
            },
        },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_and_found() {
        assert!(COMMANDS.windows(2).all(|w| w[0].name < w[1].name));
        assert!(find("get").is_some_and(|c| c.takes(2) && !c.takes(3)));
        assert!(find("del").is_some_and(|c| c.takes(7) && !c.takes(1)));
        assert!(find("eval").is_none());
    }

    #[test]
    fn keys_are_found_among_arguments() {
        let args = |s: &str| s.split(' ').map(|w| Bytes::from(w.to_string())).collect::<Vec<_>>();
        let keys = |s: &str| command(&args(&format!("COMMAND GETKEYS {s}"))).expect("served");
        assert_eq!(keys("MSET a 1 b 2"), Reply::Array(vec![Reply::bulk("a"), Reply::bulk("b")]));
        assert_eq!(keys("get x"), Reply::Array(vec![Reply::bulk("x")]));
        assert!(keys("ping").is_error() && keys("nothing 1").is_error() && keys("get").is_error());
    }
}
