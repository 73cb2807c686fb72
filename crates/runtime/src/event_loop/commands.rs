//! Commands from the command line to a running rack: administration, and reports of this process.

use bytes::Bytes;
use rackweave_core::admin::{self, RackStatus, ServerStatus};
use rackweave_core::volume::VolumeInfo;
use rackweave_core::{Layout, NodeId, Time};
use rackweave_device::FileIo;
use rackweave_gateway as gateway;
use rackweave_gateway::control::LineTooLong;

use super::{EventLoop, Place, Waiter};
use crate::control::{Answer, Command, Local, Memory};
use crate::engine::Nodes;
use crate::key::{KeyChange, KeyFile, KeyFileError};
use crate::status::{Describe, View};
use crate::store::MetaStore;

impl<N: Nodes + Describe, F: FileIo, M: MetaStore> EventLoop<N, F, M> {
    /// Handles a line of a control connection.
    pub(super) fn command_line(&mut self, place: Place, line: Result<Bytes, LineTooLong>) {
        match parse(line) {
            Ok(c) => self.command(place, c),
            Err(message) => {
                if let Some(conn) = self.touch(place) {
                    conn.refuse(Answer::Error { message }.line());
                }
            }
        }
    }

    fn command(&mut self, place: Place, c: Command) {
        let local = match c {
            Command::Admin(op) => return self.ask_admin(op, Waiter::Control(place)),
            Command::Local(local) => local,
        };
        match local {
            Local::Status => self.report(place, false),
            Local::ServerKill { server } => self.kill_server(place, server),
            Local::ServerStart { server } => self.start_server(place, server),
            Local::LinkCut { a, b } => self.cut_link(place, &a, &b, true),
            Local::LinkMend { a, b } => self.cut_link(place, &a, &b, false),
            Local::PolicyShow => self.show_policy(place),
            Local::PolicySet { policy } => self.set_policy(place, &policy),
            Local::KeyChange { change } => {
                let answer = match self.change_keys(&change) {
                    Ok(()) => Answer::Done,
                    Err(e) => Answer::Error { message: e.to_string() },
                };
                self.answer(self.clock.now(), place, &answer);
            }
        }
    }

    /// Takes a step of a key rotation here and in the key file, which other processes on this machine may share.
    fn change_keys(&mut self, change: &KeyChange) -> Result<(), KeyFileError> {
        let (Some(path), Some(net)) = (&self.key_file, &mut self.net) else { return Err(KeyFileError::None) };
        let mut file = KeyFile::load(path)?;
        file.change(change)?;
        let keys = file.keys()?;
        self.engine.nodes.set_keys(&keys);
        net.set_keys(keys);
        Ok(())
    }

    pub(super) fn report(&mut self, place: Place, metrics: bool) {
        // A command that queries every process also queries the metadata service's, and must not wait for it twice.
        if !metrics && self.takers.admin != Some(Layout::META) {
            return self.report_here(place, metrics);
        }
        let waiter = Waiter::Report { place, metrics, rack: None };
        self.ask_admin(admin::Op::RackStatus, waiter);
    }

    pub(super) fn ask_admin(&mut self, op: admin::Op, waiter: Waiter) {
        match (self.takers.admin, waiter) {
            (Some(admin), waiter) => self.ask(admin, op, waiter),
            (None, Waiter::Report { place, metrics, .. }) => self.report_here(place, metrics),
            (None, Waiter::Control(place)) => {
                let message = "this process administers no volumes: use the metadata service's control socket".into();
                self.answer(self.clock.now(), place, &Answer::Error { message });
            }
            (None, Waiter::Stop | Waiter::Gone) => {}
        }
    }

    /// Reports the state of the nodes in this process, without querying others.
    fn report_here(&mut self, place: Place, metrics: bool) {
        let now = self.clock.now();
        let nodes = (0..self.engine.nodes.count()).map(NodeId);
        let here = nodes.filter(|&n| !self.engine.nodes.vssds(n, now).is_empty());
        let server = |node| ServerStatus { node, alive: true, last_heartbeat: now, ssds: Vec::new() };
        let rack = RackStatus { servers: here.map(server).collect(), ..RackStatus::default() };
        self.answer_report(now, place, metrics, &rack, &[]);
    }

    pub(super) fn answer_report(
        &mut self,
        now: Time,
        place: Place,
        metrics: bool,
        rack: &RackStatus,
        volumes: &[VolumeInfo],
    ) {
        let view = View {
            now,
            facts: &self.facts,
            refused: &self.refused_servers,
            uptime: now.since(self.started),
            standstill: self.clock.skipped(),
            connections: self.conns.iter().filter(|(_, c)| c.1.is_client()).count() as u64,
            memory: Memory {
                budget: self.budget.bytes() as u64,
                held: self.budget.held() as u64,
                waiting: self.budget.waiting() as u64,
                closed: self.budget.closed(),
            },
            latencies: &self.latencies,
            by_volume: &self.by_volume,
            network: self.net.as_deref(),
            counted: self.counted(),
            keys: self.net.as_ref().map(|n| n.keys()).unwrap_or_default(),
            rack,
            volumes,
        };
        let status = view.status(now, &self.engine);
        if !metrics {
            return self.answer(now, place, &Answer::Status(Box::new(status)));
        }
        if let Some(conn) = self.touch(place) {
            conn.reply(now, gateway::Reply::Metrics(status.metrics()));
        }
    }

    /// Counters of network, links and listeners.
    fn counted(&self) -> Vec<(String, u64)> {
        let lost = self.engine.lost_on_links();
        let lost = (lost > 0).then(|| ("drop_link_cut".into(), lost));
        self.net.as_ref().map(|n| n.counters()).into_iter().flatten().chain(self.refusals.all()).chain(lost).collect()
    }
}

/// Parses a line into a command.
fn parse(line: Result<Bytes, LineTooLong>) -> Result<Command, String> {
    let line = line.map_err(|e| e.to_string())?;
    serde_json::from_slice(&line).map_err(|e| format!("not a command: {e}"))
}

#[cfg(test)]
mod tests {
    use rackweave_gateway::control::Session;
    use rackweave_gateway::{Gateway, Reply, Request};

    use super::*;

    /// The next line of a session, answered as the loop does: its command, or the length of the refusal.
    fn next(s: &mut Session) -> Option<Result<Command, usize>> {
        let Request::Command(line) = s.poll_request()? else { panic!("no line") };
        let parsed = parse(line);
        let answer = parsed.clone().map_or_else(|message| Answer::Error { message }, |_| Answer::Done).line();
        let refused = answer.len();
        s.reply(Reply::Command(answer));
        Some(parsed.map_err(|_| refused))
    }

    #[test]
    fn lines_become_commands() {
        let mut s = Session::default();
        s.input("nonsense\n{\"op\":\"volume_list\"}\n{\"op\":\"status\"}\n{\"op".into());
        assert!(matches!(next(&mut s), Some(Err(_))), "the nonsense is answered");
        assert_eq!(next(&mut s), Some(Ok(admin::Op::VolumeList.into())));
        assert_eq!(next(&mut s), Some(Ok(Local::Status.into())));
        assert_eq!(next(&mut s), None);
    }

    /// The control frames' fuzz target, run briefly from a seed: for any bytes in any segments, each line gets one
    /// answer or is waited for, within bounded memory.
    #[test]
    fn no_frames_break_a_control_connection() {
        let corpus: [&[u8]; 5] = [
            b"{\"op\":\"volume_create\",\"name\":\"v\",\"size\":4096}\n",
            b"{\"op\":\"set_recover\",\"set\":3,\"without\":[1,2]}\n",
            b"{\"op\":\"key_change\",\"change\":{\"add\":{\"id\":2,\"key\":\"00\"}}}\n",
            b"{\"op\":\"status\"}\n",
            b"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\n",
        ];
        let (mut commands, mut refused) = (0, 0);
        for seed in 0..20_000 {
            let mut rng = rackweave_core::Rng::new(seed);
            let mut s = Session::default();
            let (mut lines, mut answers) = (0, 0);
            for _ in 0..rng.below(6) {
                let mut b = rng.pick(&corpus).to_vec();
                for _ in 0..rng.below(4) {
                    let at = rng.below(b.len() as u64) as usize;
                    match rng.below(3) {
                        0 => b[at] = rng.next_u64() as u8,
                        1 => b.truncate(at.max(1)),
                        _ => b.extend_from_within(at..),
                    }
                }
                lines += b.iter().filter(|&&c| c == b'\n').count();
                s.input(b.into());
                while let Some(line) = next(&mut s) {
                    answers += 1;
                    match line {
                        Ok(_) => commands += 1,
                        Err(bytes) => refused += bytes,
                    }
                }
                assert_eq!(answers, lines, "seed {seed}: every whole line is answered");
                s.written(s.output_len());
            }
            assert!(s.held() <= rackweave_gateway::control::LINE_MAX);
        }
        assert!(commands > 5_000 && refused > 100_000, "{commands} commands, {refused} bytes of refusals");
    }
}
