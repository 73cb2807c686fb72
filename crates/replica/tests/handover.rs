//! Writers that follow each other while members fail, and then the volume's deletion. Earlier writers go on sending, and their
//! messages arrive late. Everything is drawn from the seed.

use rackweave_core::msg::{FENCE_ALL, IoError, IoReply, IoRequest, LiveVolumes, Role};
use rackweave_core::rng::seeds;
use rackweave_core::trace::Coverage;
use rackweave_core::{Rng, Span, VolumeId};
use rackweave_replica::trace;

use crate::cluster::{Cluster, Net, VOLUME};

const BLOCKS: u64 = 5;
const SERVERS: usize = 3;
/// Each client is the writer of one generation, its number and one more.
const WRITERS: usize = 4;

/// The metadata service's list of volumes.
fn live(volumes: &[(VolumeId, u32)]) -> LiveVolumes {
    LiveVolumes { first_unused: VolumeId(VOLUME.0 + 1), writers: volumes.into() }
}

struct Handover {
    c: Cluster,
    rng: Rng,
    /// The newest writer, and its fence until that is answered.
    writer: usize,
    fence: Option<u64>,
    /// When the fence of each writer's generation was requested and answered: the first one's needs none.
    asked: Vec<u64>,
    fenced: Vec<u64>,
    answered: Vec<(usize, u64)>,
    /// All lists of volumes so far.
    lists: Vec<LiveVolumes>,
}

impl Handover {
    fn new(seed: u64) -> Handover {
        let mut rng = Rng::stream(seed, 6);
        let net = Net { loss: *rng.pick(&[0.02, 0.1, 0.25]), ..Net::BAD };
        let mut c = Cluster::new(SERVERS, WRITERS, seed, net);
        for s in &mut c.servers {
            let mut store = s.store();
            (store.forget_ranges, store.slow) = (rng.chance(0.5), *rng.pick(&[0, 2, 3]));
        }
        let mut h = Handover {
            c,
            rng,
            writer: 0,
            fence: None,
            asked: vec![0],
            fenced: vec![0],
            answered: Vec::new(),
            lists: Vec::new(),
        };
        h.tell(live(&[(VOLUME, 1)]));
        h
    }
    fn any_server(&mut self) -> usize {
        self.rng.below(SERVERS as u64) as usize
    }
    fn well(&self) -> bool {
        let members = self.c.view.members.iter().filter(|m| m.role == Role::Member).count();
        members == SERVERS && self.c.servers.iter().all(|s| s.up && !s.cut_off)
    }
    /// Whether an unanswered operation of this client changes one of the blocks: a client keeps overlapping ones in order.
    fn busy(&self, client: usize, first: u64, end: u64) -> bool {
        self.c.clients[client].pending.values().filter(|p| !p.acked).any(|p| match &p.io {
            IoRequest::Write(w) => {
                w.range.first / 8 < end && first < (w.range.first + u64::from(w.range.count)).div_ceil(8)
            }
            IoRequest::Zero { range, .. } => u64::from(range.first) < end && first < u64::from(range.end()),
            _ => false,
        })
    }
    fn change(&mut self, client: usize) {
        let first = self.rng.below(BLOCKS * 8);
        let most = *self.rng.pick(&[3, 8, 24]);
        let count = self.rng.between(1, most.min(BLOCKS * 8 - first));
        let (block, blocks) = (first / 8, (first % 8 + count).div_ceil(8));
        // The newest one writes when it knows that the earlier ones are fenced.
        if self.busy(client, block, block + blocks) || client == self.writer && self.fence.is_some() {
            return;
        }
        let to = self.any_server();
        self.c.attach = client as u32 + 1;
        let op = if self.rng.chance(0.2) {
            self.c.zero(client, to, block as u32, blocks as u32)
        } else {
            self.c.write(client, to, first, count as u32, self.rng.chance(0.1))
        };
        self.answered.push((client, op));
    }
    fn step(&mut self) {
        let any = self.rng.below(self.writer as u64 + 1) as usize;
        let (client, to) = (if self.rng.chance(0.7) { self.writer } else { any }, self.any_server());
        match self.rng.below(12) {
            _ if self.c.waiting(client) >= 8 => {}
            0..=3 => {
                let first = self.rng.below(BLOCKS * 8 - 8);
                self.c.read(client, to, first, self.rng.between(1, 8) as u32);
            }
            4 => _ = self.c.flush(client, to),
            5 if self.fence.is_none() && self.rng.chance(0.1) => self.attach(),
            // An earlier one attaches again.
            6 if client < self.writer && self.rng.chance(0.2) => _ = self.c.fence(client, to, client as u32 + 1),
            7 if self.rng.chance(0.2) => {
                let late = self.rng.pick(&self.lists).clone();
                self.c.learn_volumes(to, &late);
            }
            _ => self.change(client),
        }
        if !self.answered.is_empty() && self.rng.chance(0.2) {
            let (client, op) = *self.rng.pick(&self.answered);
            self.c.late_copy(client, op, to);
        }
    }
    /// Servers that start hear this, and others late or never.
    fn tell(&mut self, volumes: LiveVolumes) {
        self.lists.push(volumes.clone());
        self.c.volumes = volumes;
    }
    /// Another writer.
    fn attach(&mut self) {
        if self.writer + 1 == WRITERS {
            return;
        }
        self.writer += 1;
        self.tell(live(&[(VOLUME, self.writer as u32 + 1)]));
        self.asked.push(self.c.now().0);
        let to = self.any_server();
        self.fence = Some(self.c.fence(self.writer, to, self.writer as u32 + 1));
    }
    fn attached(&mut self) {
        let Some(op) = self.fence else { return };
        let done = self.c.replies.iter().any(|r| (r.0, r.1) == (self.writer, op));
        if done {
            self.fenced.push(self.c.now().0);
            self.fence = None;
        }
    }
    fn disturb(&mut self) {
        let i = self.any_server();
        if self.well() {
            if self.rng.chance(0.5) { self.c.crash(i) } else { self.c.cut_off(i, true) }
        } else {
            self.end_faults();
        }
    }
    fn end_faults(&mut self) {
        for i in 0..SERVERS {
            self.c.restart(i);
            self.c.cut_off(i, false);
        }
    }
    /// A writer is refused only for a newer one, and writes nothing after that one's fence is answered.
    fn judge(&mut self) -> Result<(), String> {
        for (client, op, reply) in &self.c.replies {
            let p = &self.c.clients[*client].pending[op];
            let newer = self.asked.get(client + 1);
            match (&p.io, reply) {
                (_, IoReply::Failed(IoError::Fenced { .. })) if newer.is_none() => {
                    return Err(format!("operation {op} of the newest writer, {client}, was refused: {:?}", p.io));
                }
                (IoRequest::Fence { attach, .. }, IoReply::Done)
                    if self.fenced.get(*attach as usize).is_some_and(|at| p.start > *at) =>
                {
                    return Err(format!("generation {attach} is attached after a newer one"));
                }
                _ => {}
            }
        }
        for e in self.c.history.sectors.values_mut().flatten().filter(|e| e.write) {
            e.until = self.fenced.get(e.attach as usize).copied().unwrap_or(u64::MAX);
        }
        match self.c.history.violation() {
            Some((sector, h)) => Err(format!("sector {sector} has no order: {h:?}; fenced {:?}", self.fenced)),
            None => Ok(()),
        }
    }
    /// The volume is deleted while it is read and written, in some seeds while its set recovers: nobody sees zeroes of it, and no
    /// member keeps anything.
    fn delete(&mut self) -> Result<(), String> {
        let newest = self.writer;
        self.c.attach = newest as u32 + 1;
        let to = self.any_server();
        self.c.write(newest, to, 0, BLOCKS as u32 * 8, true);
        if !self.c.run_idle(Span::from_secs(30)) {
            return Err("it cannot be filled".into());
        }
        self.c.set_net(Net::BAD);
        let slow = self.rng.below(3);
        for s in &mut self.c.servers {
            s.store().slow = slow;
        }
        let recovers = self.rng.chance(0.4);
        if recovers {
            for n in 0..BLOCKS {
                let to = self.any_server();
                self.c.write(newest, to, n * 8, 8, false);
            }
            self.c.run_for(Span::from_micros(self.rng.between(10, 3_000)));
            (0..SERVERS).for_each(|i| self.c.crash(i));
            self.end_faults();
            self.c.run_for(Span::from_millis(self.rng.between(1, 120)));
        }
        self.tell(live(&[]));
        if recovers && self.rng.chance(0.7) {
            let i = self.any_server();
            self.c.learn_volumes(i, &live(&[]));
        }
        let to = self.any_server();
        self.c.fence(0, to, FENCE_ALL);
        let before = self.c.replies.len();
        for n in 0..40 {
            let (to, block) = (self.any_server(), n % BLOCKS * 8);
            if self.rng.chance(0.3) && self.c.waiting(newest) < 8 {
                self.c.write(newest, to, block, 8, false);
            } else {
                self.c.read(newest, to, block, 8);
            }
            self.c.run_for(Span::from_micros(self.rng.between(10, 2_000)));
        }
        if self.rng.chance(0.3) {
            let i = self.any_server();
            self.c.crash(i);
            self.c.run_for(Span::from_millis(100));
        }
        self.c.calm();
        if !self.c.run_idle(Span::from_secs(30)) {
            return Err(format!("after the deletion requests are not answered: {}", self.c.describe()));
        }
        let zero = |r: &IoReply| matches!(r, IoReply::Data(d) if (0..d.sectors()).any(|i| d.identity(i) == 0));
        if let Some((_, op, _)) = self.c.replies[before..].iter().find(|r| zero(&r.2)) {
            return Err(format!("{:?} of a deleted volume is zeroes", self.c.clients[newest].pending[op].io));
        }
        let to = self.any_server();
        let last = [self.c.read(newest, to, 0, 8), self.c.write(newest, to, 0, 8, false)];
        self.c.run_idle(Span::from_secs(30));
        for reply in last.map(|op| self.c.reply(newest, op)) {
            if !matches!(reply, Some(IoReply::Failed(IoError::Fenced { attach: FENCE_ALL }))) {
                return Err(format!("a deleted volume answers {reply:?}"));
            }
        }
        self.c.converge(Span::from_secs(10)).map_err(|e| format!("after the deletion: {e}"))?;
        for (i, s) in self.c.servers.iter().enumerate() {
            if !s.store().contents().is_empty() {
                return Err(format!("server {i} keeps {:?} of a deleted volume", s.store().contents().keys()));
            }
        }
        Ok(())
    }
}

fn run(seed: u64) -> Result<Handover, String> {
    let mut h = Handover::new(seed);
    for n in 0..200 {
        for _ in 0..h.rng.between(1, 4) {
            h.step();
        }
        h.attached();
        if n % 20 == 10 && h.rng.chance(0.6) {
            h.disturb();
        }
        let pause = Span::from_micros(h.rng.between(10, 6_000));
        h.c.run_for(pause);
        h.attached();
    }
    h.c.calm();
    let idle = h.c.run_idle(Span::from_secs(30));
    h.attached();
    let calm = h.c.converge(Span::from_secs(10));
    for i in 0..SERVERS {
        h.c.read(0, i, 0, BLOCKS as u32 * 8);
    }
    let read = h.c.run_idle(Span::from_secs(5));
    h.c.close();
    h.judge()?;
    if !idle || !read {
        return Err(format!("requests were not answered: {}", h.c.describe()));
    }
    calm?;
    h.delete()?;
    Ok(h)
}

#[test]
fn earlier_writers_change_nothing_and_a_deleted_volume_is_gone() {
    let of = seeds(0..40);
    let mut seen = Coverage::default();
    let mut writers = 0;
    for seed in of.clone() {
        let h = run(seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        seen.merge(h.c.coverage());
        writers += h.writer;
    }
    let must = [trace::FENCE_REFUSED, trace::DUPLICATE_MUTATION, trace::SHADOW_COMPLETE];
    assert!(of != (0..40) || writers > 40 && must.iter().all(|t| seen.get(*t) > 0), "{writers} writers, {seen:?}");
}
