//! `server kill|start` and `link cut|mend`.

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

    fn answer_done(&mut self, place: Place, done: Result<(), String>) {
        let answer = done.map_or_else(|message| Answer::Error { message }, |()| Answer::Done);
        self.answer(self.clock.now(), place, &answer);
    }
}
