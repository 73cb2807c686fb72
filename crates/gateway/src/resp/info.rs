//! What INFO, HELLO and CONFIG GET say about the server.

use bytes::Bytes;

use super::glob;
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
    /// The sections of these names, or all.
    pub fn text(&self, sections: &[Bytes], keys: u64, expiring: u64) -> String {
        let Facts { version, pid, port } = self;
        let server = format!(
            "redis_version:{REDIS_VERSION}\r\nrackweave_version:{version}\r\nredis_mode:standalone\r\nos:Linux\r\n\
             process_id:{pid}\r\ntcp_port:{port}\r\n"
        );
        let keyspace =
            if keys == 0 { String::new() } else { format!("db0:keys={keys},expires={expiring},avg_ttl=0\r\n") };
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
const SETTINGS: [(&str, &str); 7] = [
    ("appendfsync", "always"),
    ("appendonly", "yes"),
    ("databases", "1"),
    ("maxmemory", "0"),
    ("maxmemory-policy", "noeviction"),
    ("save", ""),
    ("timeout", "0"),
];

pub fn config_get(patterns: &[Bytes]) -> Reply {
    let wanted = |name: &str| patterns.iter().any(|p| glob::matches(&p.to_ascii_lowercase(), name.as_bytes()));
    let longest = ARG_MAX.to_string();
    let all = SETTINGS.into_iter().chain([("proto-max-bulk-len", &*longest)]).filter(|s| wanted(s.0));
    Reply::Map(all.map(|(k, v)| (Reply::bulk(k), Reply::bulk(v.to_string()))).collect())
}
