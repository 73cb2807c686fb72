//! SELECT: the keyspace of a connection, by its number or name.

use bytes::Bytes;
use rackweave_core::admin::{self, KeyspaceError, NAME_MAX};
use rackweave_core::keyspace::{FIRST_NAME, Keyspace, KeyspaceId, is_name};
use rackweave_core::request::{Operation, Outcome};

use super::Session;
use super::command::NOT_INTEGER;
use super::exec::Task;
use super::parse::integer;
use super::prepare::Prepared;
use super::reply::Reply;

/// The keyspace of a connection; `None`: the first.
#[derive(Clone, Debug, Default)]
pub struct Selected(Option<(Keyspace, Box<str>)>);

impl Selected {
    pub fn keyspace(&self) -> Option<Keyspace> {
        self.0.as_ref().map(|s| s.0)
    }
    pub fn number(&self) -> u32 {
        self.0.as_ref().map_or(0, |s| s.0.id.number())
    }
    /// Whether the argument of SELECT names it.
    fn is(&self, named: &str) -> bool {
        named == self.0.as_ref().map_or(FIRST_NAME, |s| &s.1) || named == self.number().to_string()
    }
}

fn out_of_range() -> Reply {
    Reply::err("DB index is out of range")
}
fn unknown(name: &str) -> Reply {
    if integer(name.as_bytes()).is_some() {
        return out_of_range();
    }
    let shown: String = name.chars().take(NAME_MAX + 1).collect();
    Reply::err(format!("no keyspace is named {shown:?}"))
}

/// The name or number, in the form of one that exists.
///
/// # Errors
/// No keyspace can have it.
fn named(arg: &Bytes) -> Result<&str, Reply> {
    let Some(name) = std::str::from_utf8(arg).ok().filter(|n| n.starts_with(|c: char| c.is_ascii_alphabetic())) else {
        let number = integer(arg).ok_or_else(|| Reply::err(NOT_INTEGER))?;
        let exists = (0..i64::from(KeyspaceId::MAX)).contains(&number);
        return std::str::from_utf8(arg).ok().filter(|_| exists).ok_or_else(out_of_range);
    };
    if is_name(name) { Ok(name) } else { Err(unknown(name)) }
}

/// A SELECT that waits for the metadata service.
#[derive(Debug)]
pub struct Select {
    name: Box<str>,
}

impl Select {
    pub fn request(&self) -> admin::Op {
        admin::Op::KeyspaceInfo { name: self.name.clone() }
    }
    /// # Errors
    /// There is no such keyspace, or the rack did not answer.
    pub fn answer(&self, outcome: Outcome) -> Result<Selected, Reply> {
        match admin::Op::result(outcome) {
            Some(Ok(admin::Reply::Keyspace(info))) if info.id.is_first() => Ok(Selected(None)),
            Some(Ok(admin::Reply::Keyspace(info))) => Ok(Selected(Some((info.keyspace(), info.name)))),
            Some(Err(admin::Error::Keyspace(KeyspaceError::Unknown { .. }))) => Err(unknown(&self.name)),
            Some(Err(e)) => Err(Reply::err(e)),
            _ => Err(super::exec::wrong_answer()),
        }
    }
}

impl Session {
    /// Outside of transactions.
    pub(super) fn select(&mut self, arg: &Bytes) -> Prepared {
        let name = match named(arg) {
            Ok(name) => name,
            Err(reply) => return Prepared::reply(reply),
        };
        let first = name == "0" || name == FIRST_NAME;
        if !first && !self.settings.keyspaces {
            return Prepared::reply(unknown(name));
        }
        // EXEC would look for the watched keys in the other keyspace.
        if !self.watched.is_empty() && !self.selected.is(name) {
            return Prepared::reply(Reply::err("SELECT of another keyspace is not possible while keys are watched"));
        }
        if first {
            self.selected = Selected::default();
            return Prepared::reply(Reply::OK);
        }
        Prepared::alone(Task::Select(Select { name: name.into() }), name.len())
    }
    /// Inside of a transaction, whose changes are one batch in one keyspace.
    ///
    /// # Errors
    /// The transaction fails.
    pub(super) fn select_queued(&self, arg: &Bytes) -> Result<Reply, Reply> {
        match named(arg) {
            Ok(name) if self.selected.is(name) => Ok(Reply::OK),
            Ok(name) if !self.settings.keyspaces => Ok(unknown(name)),
            Ok(_) => Err(Reply::err("SELECT of another keyspace is not allowed in transactions here")),
            Err(refused) => Ok(refused),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_that_a_keyspace_can_have() {
        let said = |arg: &str| named(&Bytes::from(arg.to_string())).map(str::to_string);
        let last = (KeyspaceId::MAX - 1).to_string();
        for good in ["0", "1", &last, "default", "a.b_c-D9", &"n".repeat(NAME_MAX)] {
            assert_eq!(said(good), Ok(good.to_string()));
        }
        for far in ["-1", &KeyspaceId::MAX.to_string(), "9223372036854775807"] {
            assert_eq!(said(far), Err(out_of_range()), "{far}");
        }
        for neither in ["", "01", "1a", " 1", ".a", "ä", "99999999999999999999"] {
            assert_eq!(said(neither), Err(Reply::err(NOT_INTEGER)), "{neither}");
        }
        for name in ["a b", "aä", "a/b"] {
            assert_eq!(said(name), Err(Reply::err(format!("no keyspace is named {name:?}"))));
        }
        assert!(said(&"n".repeat(NAME_MAX + 1)).is_err());
    }
}
