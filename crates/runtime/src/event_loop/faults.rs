//! `server kill|start` and `link cut|mend`; and messages about faults of the rack's host files.

use std::io::{self, Write};

use rackweave_core::msg::control::DriveTable;
use rackweave_core::{NodeId, Span, Time};
use rackweave_device::{FileIo, FileSsd};

use super::{Answer, Describe, EventLoop, MetaStore, Nodes, Place, Stage};
use rackweave_config::SERVERS_MAX;
use rackweave_rack::build::BuildError;

/// Opens the device of a server again; also returns its drive table.
pub type Reopen<F> = Box<dyn FnMut(u32) -> Result<(FileSsd<F>, DriveTable), String>>;

/// Time limit for a starting server to be admitted or refused.
const BEGIN_WAIT: Span = Span::from_secs(5);

impl<N: Nodes + Describe, F: FileIo, M: MetaStore> EventLoop<N, F, M> {
    /// Allows servers to be ended and started here; `open` opens their devices.
    pub fn reopen_by(&mut self, open: Reopen<F>) {
        self.reopen = Some(open);
    }

    /// The node of a server that can be ended here.
    fn server_here(&self, server: u32) -> Result<NodeId, String> {
        if self.reopen.is_none() {
            return Err(
                "this process ends with its node: send `server kill` to the process that started it (rackweave up)"
                    .into(),
            );
        }
        self.node_of(&format!("server-{server}")).ok_or_else(|| {
            let servers = self.names().filter(|n| n.starts_with("server-")).count();
            format!(
                "there is no server {server}: the rack has servers 0 to {} (`server add` adds one)",
                servers.saturating_sub(1)
            )
        })
    }

    /// The rack's nodes. Servers that were never added are none.
    fn names(&self) -> impl Iterator<Item = &str> {
        self.facts.names.iter().map(String::as_str).filter(|name| self.node_of(name).is_some())
    }
    fn node_of(&self, name: &str) -> Option<NodeId> {
        let node = self.facts.node_named(name)?;
        (!matches!(self.engine.nodes.may_begin(node), Err(BuildError::NotAdded { .. }))).then_some(node)
    }

    pub(super) fn kill_server(&mut self, place: Place, server: u32) {
        let ended = self.server_here(server).and_then(|node| match self.engine.has_ended(server as usize) {
            true => Err(format!("server {server} is not running")),
            false => {
                self.engine.end_server(node, server as usize);
                Ok(())
            }
        });
        self.answer_done(place, ended);
    }

    pub(super) fn start_server(&mut self, place: Place, server: u32) {
        match self.server_here(server) {
            Ok(_) if !self.engine.has_ended(server as usize) => {
                self.answer_done(place, Err(format!("server {server} is running")));
            }
            Ok(_) => {
                self.starting.push((server, place));
                self.start_waiting();
            }
            Err(e) => self.answer_done(place, Err(e)),
        }
    }

    /// Starts servers whose devices' last syncs have ended.
    pub(super) fn start_waiting(&mut self) {
        for (server, place) in std::mem::take(&mut self.starting) {
            if self.engine.still_syncs(server as usize) {
                self.starting.push((server, place));
                continue;
            }
            match self.begin_server(server) {
                Ok(()) => self.begun.push((server, place, self.clock.now() + BEGIN_WAIT)),
                Err(e) => self.answer_done(place, Err(e)),
            }
        }
    }
    /// Opens the server's drive if it is the expected one. Another drive is left unchanged.
    fn open_drive(&mut self, node: NodeId, server: u32) -> Result<Option<FileSsd<F>>, String> {
        let Some(open) = &mut self.reopen else { return Ok(None) };
        let (file, table) = open(server)?;
        let known = self.engine.nodes.check_drive(node, file.drive_id(), &table);
        known.map_err(|problem| format!("{}: {problem}", self.facts.drive_file(server)))?;
        Ok(Some(file))
    }

    /// Answers the requests for started servers.
    pub(super) fn look_at_begun(&mut self, now: Time) {
        for (server, place, until) in std::mem::take(&mut self.begun) {
            let done = match self.engine.nodes.taken_in(server) {
                _ if self.engine.has_ended(server as usize) => Err(format!("server {server} was ended")),
                Some(true) => Ok(()),
                Some(false) => Err(format!("server {server} is refused: {}", self.end_refused(server))),
                None if now >= until => Ok(()),
                None => {
                    self.begun.push((server, place, until));
                    continue;
                }
            };
            self.answer_done(place, done);
        }
    }
    /// Ends and reports servers whose drives turned out to be other than expected.
    pub(super) fn look_for_refused(&mut self) {
        if self.reopen.is_some() {
            let servers = 0..SERVERS_MAX;
            let running = servers.filter(|&i| self.engine.nodes.drive_refused(i).is_some());
            let refused: Vec<u32> = running.filter(|i| self.begun.iter().all(|b| b.0 != *i)).collect();
            refused.into_iter().for_each(|i| drop(self.end_refused(i)));
        } else if self.admitted.is_none() && self.engine.nodes.drive_problem().is_some() {
            (self.stage, self.refused) = (Stage::Stopped, true);
        }
    }
    /// Ends the server, so that it may start again once the cause is removed.
    fn end_refused(&mut self, server: u32) -> String {
        let why = match self.engine.nodes.drive_refused(server) {
            Some(problem) => format!("{}: {problem}", self.facts.drive_file(server)),
            None => "the metadata service refused its registration".into(),
        };
        if let Some(node) = self.engine.nodes.layout().server(server) {
            self.engine.end_server(node, server as usize);
        }
        self.note_refused(server, why)
    }
    fn note_refused(&mut self, server: u32, why: String) -> String {
        let _ = writeln!(io::stderr(), "rackweave: server {server} is refused until `server start {server}`: {why}");
        self.refused_servers.insert(server, why.clone());
        why
    }

    fn begin_server(&mut self, server: u32) -> Result<(), String> {
        let node = self.server_here(server)?;
        if !self.engine.has_ended(server as usize) {
            return Err(format!("server {server} is running"));
        }
        self.engine.nodes.may_begin(node).map_err(|e| e.to_string())?;
        match self.open_drive(node, server) {
            Ok(Some(file)) => self.engine.begin_server(node, server as usize, file).map_err(|e| e.to_string())?,
            Ok(None) => return Ok(()),
            Err(why) => return Err(format!("server {server} is refused: {}", self.note_refused(server, why))),
        }
        self.refused_servers.remove(&server);
        Ok(())
    }

    pub(super) fn cut_link(&mut self, place: Place, a: &str, b: &str, cut: bool) {
        let node = |name: &str| {
            let all = || self.names().collect::<Vec<_>>().join(", ");
            self.node_of(name).ok_or_else(|| format!("there is no node {name}; the rack's nodes: {}", all()))
        };
        let done = node(a).and_then(|x| Ok((x, node(b)?))).and_then(|(x, y)| match x == y {
            true => Err(format!("{a} has no link to itself")),
            false if self.engine.cut_link(x, y, cut) => Ok(()),
            false => Err(format!("the link between {a} and {b} is {}", if cut { "already cut" } else { "not cut" })),
        });
        self.answer_done(place, done);
    }

    /// Reports changed faults of the files of drives and of the metadata service.
    pub(super) fn say_host_news(&mut self) {
        for (server, fault) in self.engine.take_host_news() {
            let words = match fault {
                Some(fault) => self.facts.words_of(server, fault),
                None => {
                    format!("{}: the host's disk has space again; the drive resumes", self.facts.drive_file(server))
                }
            };
            let _ = writeln!(io::stderr(), "rackweave: {words}");
        }
        if self.engine.take_store_news() {
            let words = match self.engine.store_problem() {
                Some(why) if self.engine.store_failed() => format!("the metadata service has failed: {why}"),
                Some(why) => format!(
                    "the metadata service cannot write: {why}. Commands that change volumes or servers fail; other writes wait \
                     until it can"
                ),
                None => "the metadata service can write again".into(),
            };
            let _ = writeln!(io::stderr(), "rackweave: {words}");
        }
    }
    /// Reports reads that failed in the last second.
    pub(super) fn say_reads_failed(&mut self) {
        for (server, n, os_error) in self.engine.take_reads_failed() {
            let file = self.facts.drive_file(server);
            let why = io::Error::from_raw_os_error(os_error);
            let _ =
                writeln!(io::stderr(), "rackweave: {file}: {n} reads failed ({why}); other copies are read instead");
        }
    }

    fn answer_done(&mut self, place: Place, done: Result<(), String>) {
        let answer = done.map_or_else(|message| Answer::Error { message }, |()| Answer::Done);
        self.answer(self.clock.now(), place, &answer);
    }
}
