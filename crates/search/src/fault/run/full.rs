//! Racks that run full (protocol rule 9): filling and emptying volumes, and the rules for refused writes.

use rackweave_core::volume;
use rackweave_core::{BLOCK, Payload};

use super::{QUIET_MAX, Run};
use crate::fault::report::Failure;
use crate::fault::workload::Kind;
use rackweave_block::trace;

/// Blocks per write of a [`crate::fault::Fault::Fill`].
const FILL_BLOCKS: u32 = 16;
/// Most refused writes that are checked.
const REFUSED_MAX: u32 = 12;
/// Blocks that must fit after a volume was trimmed.
const ROOM_BLOCKS: u32 = 24;

impl Run<'_> {
    fn payload(&self, blocks: u32) -> Payload {
        let data = Payload::elided(blocks * BLOCK, self.plan.seed ^ (self.next_request + 1) << 20);
        if self.plan.params.bytes { Payload::Bytes(data.to_bytes()) } else { data }
    }

    /// Writes on from `next` in the client's own volume; each answer triggers the next write.
    pub(super) fn fill_on(&mut self, client: u32, next: u32) {
        let v = client as usize;
        let (volume, blocks) = (self.volumes[v].id(), self.volumes[v].blocks);
        if next >= blocks || self.attached[v][v].is_none() || self.down.contains_key(&self.client_node(client)) {
            return;
        }
        let count = FILL_BLOCKS.min(blocks - next);
        let offset = u64::from(next) * u64::from(BLOCK);
        let op = volume::Op::Write { volume, offset, data: self.payload(count), fua: false };
        let id = self.submit(client, op, v, Kind::Write, false);
        if let Some(p) = self.pending.get_mut(&(client, id)) {
            p.fill = Some(next + count);
        }
    }

    pub(super) fn empty(&mut self, client: u32) {
        let v = client as usize;
        if self.attached[v][v].is_some() && !self.down.contains_key(&self.client_node(client)) {
            let (volume, len) = (self.volumes[v].id(), u64::from(self.volumes[v].blocks) * u64::from(BLOCK));
            self.submit(client, volume::Op::Trim { volume, offset: 0, len, fua: false }, v, Kind::Trim, false);
        }
    }

    fn no_space_answers(&self) -> u64 {
        let name = format!("{:?} {}", Kind::Write, volume::Error::NoSpace);
        self.stats.errors.get(&name).copied().unwrap_or(0)
    }

    /// Writes block after block of every volume, without faults, until some are refused. A refused write that was sent
    /// once has no effect: the history records that, and everything is read afterwards.
    pub(super) fn fill_to_the_brim(&mut self) -> Result<(), Failure> {
        let mut refused = 0;
        for v in 0..self.volumes.len() {
            let client = self.volumes[v].writer.unwrap_or(0);
            for block in 0..self.volumes[v].blocks {
                if refused == REFUSED_MAX {
                    return Ok(());
                }
                let op = volume::Op::Write {
                    volume: self.volumes[v].id(),
                    offset: u64::from(block) * u64::from(BLOCK),
                    data: self.payload(1),
                    fua: false,
                };
                let retries = self.sim.engine().coverage().get(trace::CLIENT_RETRY);
                let before = self.no_space_answers();
                let id = self.submit(client, op, v, Kind::Write, false);
                let history = self.pending.get(&(client, id)).and_then(|p| p.history);
                self.drain("volumes are filled", QUIET_MAX)?;
                let once = self.sim.engine().coverage().get(trace::CLIENT_RETRY) == retries;
                if self.no_space_answers() > before && once {
                    refused += 1;
                    if let Some(op) = history {
                        self.history.refused(op);
                    }
                }
            }
        }
        Ok(())
    }

    /// After a trim there is room again.
    pub(super) fn trim_makes_room(&mut self) -> Result<(), Failure> {
        let client = self.volumes[0].writer.unwrap_or(0);
        let volume = self.volumes[0].id();
        let len = u64::from(self.volumes[0].blocks) * u64::from(BLOCK);
        self.submit(client, volume::Op::Trim { volume, offset: 0, len, fua: false }, 0, Kind::Trim, false);
        self.drain("a volume is trimmed", QUIET_MAX)?;
        let before = self.no_space_answers();
        for block in 0..ROOM_BLOCKS {
            let offset = u64::from(block) * u64::from(BLOCK);
            let op = volume::Op::Write { volume, offset, data: self.payload(1), fua: true };
            self.submit(client, op, 0, Kind::Write, false);
        }
        self.drain("blocks are written where room was made", QUIET_MAX)?;
        if self.no_space_answers() > before {
            return Err(Failure::Unexpected(format!("no space after {len} bytes were trimmed")));
        }
        Ok(())
    }
}
