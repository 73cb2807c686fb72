//! `server kill|start` and `link cut|mend`; and what the host does to the files of the rack, in words.

use std::io::{self, Write};

use rackweave_core::NodeId;
use rackweave_device::{FileIo, FileSsd};

use super::{Answer, Describe, MetaStore, Nodes, Place, Serve};

/// Opens the device of a server anew.
pub type Reopen<F> = Box<dyn FnMut(u32) -> Result<FileSsd<F>, String>>;

impl<N: Nodes + Describe, F: FileIo, M: MetaStore> Serve<N, F, M> {
    /// Servers may be ended and begin again here: `open` opens their devices.
    pub fn reopen_by(&mut self, open: Reopen<F>) {
        self.reopen = Some(open);
    }

    /// The node of a server that can be ended here.
    fn server_here(&self, server: u32) -> Result<NodeId, String> {
        if self.reopen.is_none() {
            return Err("this process ends with its node: `server kill` asks who started it (rackweave up)".into());
        }
        self.facts.node_named(&format!("server-{server}")).ok_or_else(|| {
            let servers = self.facts.names.iter().filter(|n| n.starts_with("server-")).count();
            format!("there is no server {server}: the rack's are 0 to {}", servers.saturating_sub(1))
        })
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

    /// Begins those whose devices' last syncs have ended.
    pub(super) fn start_waiting(&mut self) {
        for (server, place) in std::mem::take(&mut self.starting) {
            if self.engine.still_syncs(server as usize) {
                self.starting.push((server, place));
                continue;
            }
            let begun = self.begin_server(server);
            self.answer_done(place, begun);
        }
    }

    fn begin_server(&mut self, server: u32) -> Result<(), String> {
        let node = self.server_here(server)?;
        if !self.engine.has_ended(server as usize) {
            return Err(format!("server {server} is running"));
        }
        self.engine.nodes.may_begin(node).map_err(|e| e.to_string())?;
        let Some(open) = &mut self.reopen else { return Ok(()) };
        let file = open(server)?;
        self.engine.begin_server(node, server as usize, file).map_err(|e| e.to_string())
    }

    pub(super) fn cut_link(&mut self, place: Place, a: &str, b: &str, cut: bool) {
        let node = |name: &str| {
            let all = self.facts.names.join(", ");
            self.facts.node_named(name).ok_or(format!("there is no node {name}: the rack's are {all}"))
        };
        let done = node(a).and_then(|x| Ok((x, node(b)?))).and_then(|(x, y)| match x == y {
            true => Err(format!("{a} has no link to itself")),
            false if self.engine.cut_link(x, y, cut) => Ok(()),
            false => Err(format!("the link between {a} and {b} is {}", if cut { "cut already" } else { "not cut" })),
        });
        self.answer_done(place, done);
    }

    /// What has changed with the files of drives and of the metadata service.
    pub(super) fn say_host_news(&mut self) {
        for (server, fault) in self.engine.take_host_news() {
            let node = self.engine.nodes.layout().server(server);
            let words = match fault {
                Some(fault) => self.facts.words_of(node, fault),
                None => format!(
                    "{}: there is room on the host's disk again; the drive goes on",
                    self.facts.drive_file(node)
                ),
            };
            let _ = writeln!(io::stderr(), "rackweave: {words}");
        }
        if self.engine.take_store_news() {
            let words = match self.engine.store_problem() {
                Some(why) => format!(
                    "the metadata service cannot write: {why}; volumes and servers are not changed (each command says so), what keeps the \
                     rack going is tried again every second"
                ),
                None => "the metadata service writes again".into(),
            };
            let _ = writeln!(io::stderr(), "rackweave: {words}");
        }
    }
    /// Reads that failed in the last second.
    pub(super) fn say_reads_failed(&mut self) {
        for (server, n, os_error) in self.engine.take_reads_failed() {
            let file = self.facts.drive_file(self.engine.nodes.layout().server(server));
            let why = io::Error::from_raw_os_error(os_error);
            let _ = writeln!(
                io::stderr(),
                "rackweave: {file}: {n} reads failed ({why}); other copies are read in their place"
            );
        }
    }

    fn answer_done(&mut self, place: Place, done: Result<(), String>) {
        let answer = done.map_or_else(|message| Answer::Error { message }, |()| Answer::Done);
        self.answer(self.clock.now(), place, &answer);
    }
}
