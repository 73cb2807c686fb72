//! Whole sets that crash after a FLUSH, with copies that cannot be read and drives that lost records (protocol rule 29): each
//! block is what was flushed if any copy of that can be read, and otherwise an error until it is written again. Everything is
//! drawn from the seed.

use rackweave_core::msg::{IoError, IoReply, IoRequest};
use rackweave_core::rng::seeds;
use rackweave_core::{BlockAddr, Rng, Span};
use rackweave_replica::Store;

use crate::cluster::{Cluster, Net, VOLUME};
use crate::memory::{Contents, Memory};

const BLOCKS: u64 = 6;
const SERVERS: usize = 3;
const MINUTE: Span = Span::from_secs(60);

fn at(block: u64) -> BlockAddr {
    BlockAddr::new(VOLUME, block as u32)
}

struct World {
    c: Cluster,
    rng: Rng,
    /// Flushed contents of each block; `None`: no copy can be read.
    blocks: Vec<Option<u64>>,
    lost: u64,
}

impl World {
    fn done(&mut self, op: u64) -> Result<(), String> {
        let idle = self.c.run_idle(MINUTE);
        match self.c.reply(0, op) {
            Some(IoReply::Done) if idle => Ok(()),
            r => Err(format!("{op}: {r:?}, {}", self.c.describe())),
        }
    }
    fn any_server(&mut self) -> usize {
        self.rng.below(SERVERS as u64) as usize
    }
    /// Writes and zeroes some blocks, and flushes them.
    fn change(&mut self) -> Result<(), String> {
        for b in 0..BLOCKS {
            let to = self.any_server();
            if self.rng.chance(0.4) {
                continue;
            }
            if self.rng.chance(0.3) {
                let op = self.c.zero(0, to, b as u32, 1);
                self.done(op)?;
                self.blocks[b as usize] = Some(0);
                continue;
            }
            let op = self.c.write(0, to, b * 8, 8, false);
            let IoRequest::Write(w) = &self.c.clients[0].pending[&op].io else { unreachable!() };
            self.blocks[b as usize] = Some(w.data.identity(0));
            self.done(op)?;
        }
        let to = self.any_server();
        let op = self.c.flush(0, to);
        self.done(op)
    }
    /// Damages drives while all servers are down: all but one may lose records, back to those of the images.
    fn damage(&mut self, images: &[Contents]) {
        let first = self.any_server();
        self.c.witnesses = (0..SERVERS).filter(|&i| i == first || self.rng.chance(0.5)).collect();
        let version = |w: &World, i: usize, b: u64| w.c.servers[i].store().version(at(b));
        let newest: Vec<_> = (0..BLOCKS).map(|b| (0..SERVERS).map(|i| version(self, i, b)).max()).collect();
        for (i, image) in images.iter().enumerate() {
            let witness = self.c.witnesses.contains(&i);
            if !witness && self.rng.chance(0.2) {
                *self.c.servers[i].store() = Memory::new();
            }
            for b in 0..BLOCKS {
                let (lose, back, corrupt) = (self.rng.chance(0.3), self.rng.chance(0.5), self.rng.chance(0.4));
                let mut store = self.c.servers[i].store();
                if !witness && lose {
                    store.lose(at(b), back.then_some(image));
                } else if corrupt && store.mapped(at(b)) {
                    store.corrupt.insert(at(b));
                }
            }
        }
        for b in 0..BLOCKS {
            let can_read = |i: usize| {
                let store = self.c.servers[i].store();
                Some(store.version(at(b))) == newest[b as usize] && !store.corrupt.contains(&at(b))
            };
            // Zeroes need no copy.
            if self.blocks[b as usize].is_some_and(|v| v != 0) && !(0..SERVERS).any(can_read) {
                self.blocks[b as usize] = None;
                self.lost += 1;
            }
        }
    }
    fn check(&mut self) -> Result<(), String> {
        for b in 0..BLOCKS {
            for i in 0..SERVERS {
                let op = self.c.read(0, i, b * 8, 8);
                let idle = self.c.run_idle(MINUTE);
                let found = match self.c.reply(0, op) {
                    Some(IoReply::Data(d)) if idle => Some(d.identity(0)),
                    Some(IoReply::Failed(IoError::Corrupt)) if idle => None,
                    r => return Err(format!("block {b}: {r:?}, {}", self.c.describe())),
                };
                if found != self.blocks[b as usize] {
                    let (blocks, witnesses) = (&self.blocks, &self.c.witnesses);
                    return Err(format!(
                        "block {b} is {found:x?} at server {i}, of {blocks:x?}; witnesses {witnesses:?}"
                    ));
                }
            }
        }
        Ok(())
    }
}

fn run(seed: u64) -> Result<u64, String> {
    let mut rng = Rng::stream(seed, 8);
    let c = Cluster::new(SERVERS, 1, seed, Net { loss: *rng.pick(&[0.0, 0.1]), ..Net::BAD });
    let mut w = World { c, rng, blocks: vec![Some(0); BLOCKS as usize], lost: 0 };
    w.c.track = false;
    let forgets = w.rng.chance(0.5);
    w.c.servers.iter().for_each(|s| s.store().forget_ranges = forgets);
    for _ in 0..3 {
        let images: Vec<_> = w.c.servers.iter().map(|s| s.store().image()).collect();
        w.change()?;
        (0..SERVERS).for_each(|i| w.c.crash(i));
        w.c.run_for(Span::from_millis(200));
        w.damage(&images);
        (0..SERVERS).for_each(|i| w.c.restart(i));
        // Copies that cannot be read differ from loss marks.
        match w.c.converge(MINUTE) {
            Err(e) if !e.contains("differ in") => return Err(e),
            _ => {}
        }
        w.check()?;
    }
    Ok(w.lost)
}

#[test]
fn what_was_flushed_is_read_or_its_loss_is_reported() {
    let of = seeds(0..40);
    let lost: u64 = of.clone().map(|s| run(s).unwrap_or_else(|e| panic!("seed {s}: {e}"))).sum();
    assert!(of != (0..40) || lost > 20, "{lost} lost");
}
