//! Commands about all keys of a keyspace: SCAN, KEYS, DBSIZE, INFO, FLUSHALL, FLUSHDB. None of them is a snapshot.

use bytes::Bytes;
use rackweave_core::kv::{self, Change, Condition, Op, SCAN_MAX};

use super::exec::{Answer, Ask, Asks, failure, wrong_answer};
use super::glob::Glob;
use super::info::Facts;
use super::reply::Reply;

/// Most bytes of the keys that KEYS returns, with [`KEY_COST`] for each.
pub const KEYS_BYTES_MAX: usize = 4 << 20;
const KEY_COST: usize = 64;
/// Memory of one page of keys.
pub const PAGE_BYTES: usize = SCAN_MAX as usize * 1024;

#[derive(Debug)]
pub enum Whole {
    Scan {
        cursor: u64,
        limit: u32,
        pattern: Option<Bytes>,
        none: bool,
    },
    Keys {
        pattern: Bytes,
        found: Vec<Bytes>,
        bytes: usize,
    },
    DbSize,
    /// Facts about the server, the sections that are wanted, and the number of the keyspace.
    Info(Box<(Facts, Vec<Bytes>, u32)>),
    FlushAll {
        cursor: u64,
        deleting: usize,
        /// Of the keys of the page.
        bytes: usize,
        error: Option<Reply>,
    },
}

fn page(cursor: u64, limit: u32) -> Ask {
    Ask::new(0, Op::Scan { cursor, limit }, PAGE_BYTES)
}

impl Whole {
    pub fn keys(pattern: Bytes) -> Whole {
        Whole::Keys { pattern, found: Vec::new(), bytes: 0 }
    }
    pub fn flush_all() -> Whole {
        Whole::FlushAll { cursor: 0, deleting: 0, bytes: 0, error: None }
    }
    pub fn begin(&self, asks: &mut Asks) {
        asks.push(match self {
            Whole::Scan { cursor, limit, .. } => page(*cursor, *limit),
            Whole::Keys { .. } | Whole::FlushAll { .. } => page(0, SCAN_MAX),
            Whole::DbSize | Whole::Info(_) => Ask::new(0, Op::Count, 0),
        });
    }
    /// Memory of the keys that it keeps.
    pub fn bytes(&self) -> usize {
        match self {
            Whole::Keys { bytes, .. } | Whole::FlushAll { bytes, .. } => *bytes,
            Whole::Scan { .. } | Whole::DbSize | Whole::Info(_) => 0,
        }
    }
    pub fn answer(&mut self, answer: Answer, asks: &mut Asks) -> Option<Reply> {
        if let Whole::FlushAll { .. } = self {
            return self.flushed(answer, asks);
        }
        let answer = match answer {
            Ok(answer) => answer,
            Err(e) => return Some(failure(&e)),
        };
        match (self, answer) {
            (Whole::Scan { pattern, none, .. }, kv::Reply::Page { keys, cursor }) => {
                let pattern = pattern.as_ref().map(|p| Glob::new(p));
                let wanted = |k: &Bytes| !*none && pattern.as_ref().is_none_or(|p| p.matches(k));
                let keys = keys.into_iter().filter(wanted).map(Reply::Bulk).collect();
                Some(Reply::Array(vec![Reply::bulk(cursor.to_string()), Reply::Array(keys)]))
            }
            (Whole::Keys { pattern, found, bytes }, kv::Reply::Page { keys, cursor }) => {
                let pattern = Glob::new(pattern);
                let more = keys.into_iter().filter(|k| pattern.matches(k));
                for k in more {
                    *bytes += k.len() + KEY_COST;
                    found.push(k);
                }
                if *bytes > KEYS_BYTES_MAX {
                    let text = format!(
                        "KEYS returns at most {KEYS_BYTES_MAX} bytes, {KEY_COST} for each key included; use SCAN"
                    );
                    return Some(Reply::err(text));
                }
                if cursor != 0 {
                    asks.push(page(cursor, SCAN_MAX));
                    return None;
                }
                Some(Reply::Array(std::mem::take(found).into_iter().map(Reply::Bulk).collect()))
            }
            (Whole::DbSize, kv::Reply::Count { keys, .. }) => Some(Reply::Integer(keys as i64)),
            (Whole::Info(of), kv::Reply::Count { keys, expiring }) => {
                Some(Reply::Text(of.0.text(&of.1, of.2, keys, expiring)))
            }
            _ => Some(wrong_answer()),
        }
    }
    /// Deletes page by page. It goes on behind a failure, and reports it at the end.
    fn flushed(&mut self, answer: Answer, asks: &mut Asks) -> Option<Reply> {
        let Whole::FlushAll { cursor, deleting, bytes, error } = self else { return None };
        match answer {
            Ok(kv::Reply::Page { keys, cursor: next }) => {
                (*cursor, *deleting) = (next, keys.len());
                *bytes = keys.iter().map(|k| k.len() + KEY_COST).sum();
                let all = Condition::Always;
                asks.extend(keys.into_iter().map(|key| {
                    let op = Op::Put { key, condition: all, change: Change::Delete };
                    Ask::new(0, op, 0)
                }));
            }
            Ok(kv::Reply::Put(_)) => *deleting -= 1,
            Ok(_) => return Some(wrong_answer()),
            Err(e) if *deleting == 0 => return Some(failure(&e)),
            Err(e) => {
                *deleting -= 1;
                error.get_or_insert(failure(&e));
            }
        }
        match *deleting {
            0 if *cursor == 0 => Some(error.take().unwrap_or(Reply::OK)),
            0 => {
                asks.push(page(*cursor, SCAN_MAX));
                None
            }
            _ => None,
        }
    }
}
