//! What INFO, HELLO and CONFIG GET say about the server.

use bytes::Bytes;
use rackweave_core::keyspace::KeyspaceId;

use super::glob::Glob;
use super::parse::ARG_MAX;
use super::reply::Reply;

/// The version of Redis whose replies these are: clients choose commands by it.
pub const REDIS_VERSION: &str = "7.0.15";

/// Facts about the server, for INFO.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    pub version: &'static str,
    pub pid: u32,
    pub port: u16,
}

impl Facts {
    /// The sections of these names, or all. `keys` and `expiring` are of the keyspace with that number.
    pub fn text(&self, sections: &[Bytes], keyspace: u32, keys: u64, expiring: u64) -> String {
        let Facts { version, pid, port } = self;
        let server = format!(
            "redis_version:{REDIS_VERSION}\r\nrackweave_version:{version}\r\nredis_mode:standalone\r\nos:Linux\r\n\
             process_id:{pid}\r\ntcp_port:{port}\r\n"
        );
        let line = || format!("db{keyspace}:keys={keys},expires={expiring},avg_ttl=0\r\n");
        let keyspace = if keys == 0 { String::new() } else { line() };
        let all = [
            ("Server", server),
            ("Persistence", "loading:0\r\naof_enabled:1\r\n".into()),
            ("Replication", "role:master\r\nconnected_slaves:0\r\n".into()),
            ("Cluster", "cluster_enabled:0\r\n".into()),
            ("Keyspace", keyspace),
        ];
        let is = |s: &Bytes, word: &str| s.eq_ignore_ascii_case(word.as_bytes());
        let every = |s: &Bytes| ["all", "everything", "default"].iter().any(|w| is(s, w));
        let wanted = |name: &str| sections.is_empty() || sections.iter().any(|s| is(s, name) || every(s));
        let shown = all.iter().filter(|(name, _)| wanted(name)).map(|(name, text)| format!("# {name}\r\n{text}"));
        shown.collect::<Vec<_>>().join("\r\n")
    }
}

/// Settings that CONFIG GET reports, because clients read them: nothing is evicted, every answered change is durable.
const SETTINGS: [(&str, &str); 6] = [
    ("appendfsync", "always"),
    ("appendonly", "yes"),
    ("maxmemory", "0"),
    ("maxmemory-policy", "noeviction"),
    ("save", ""),
    ("timeout", "0"),
];

/// `keyspaces`: there are others than the first.
pub fn config_get(patterns: &[Bytes], keyspaces: bool) -> Reply {
    let (databases, longest) = (if keyspaces { KeyspaceId::MAX } else { 1 }.to_string(), ARG_MAX.to_string());
    let computed = [("databases", &*databases), ("proto-max-bulk-len", &*longest)];
    let mut all: Vec<_> = SETTINGS.into_iter().chain(computed).map(|s| (s, false)).collect();
    for p in patterns {
        let pattern = Glob::new(&p.to_ascii_lowercase());
        all.iter_mut().for_each(|((name, _), wanted)| *wanted |= pattern.matches(name.as_bytes()));
    }
    let wanted = all.into_iter().filter_map(|(s, wanted)| wanted.then_some(s));
    Reply::Map(wanted.map(|(k, v)| (Reply::bulk(k), Reply::bulk(v.to_string()))).collect())
}
