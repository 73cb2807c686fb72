//! Reads: slots that lie side by side are one call.

use rackweave_core::{BLOCK, Payload};

use super::summary::NONE;
use super::{Answer, BlockMap, Io, MapDone, MapError, Op};
use crate::manager::api::BlockError;

#[derive(Debug)]
pub(super) struct Read {
    token: u64,
    parts: Vec<Part>,
    left: u32,
    error: Option<MapError>,
}

#[derive(Debug)]
struct Part {
    lba: u32,
    blocks: u32,
    data: Option<Payload>,
}

impl BlockMap {
    /// Reads whole blocks from `lba` on; answered by [`MapDone::Read`]. Unwritten blocks read as zeroes.
    pub fn read(&mut self, io: &mut Io, lba: u32, blocks: u32, token: u64) -> Result<(), MapError> {
        self.in_range(lba, u64::from(blocks))?;
        let mut parts = Vec::new();
        let mut at = lba;
        while at < lba + blocks {
            let n = self.run(at, lba + blocks);
            parts.push(Part { lba: at, blocks: n, data: None });
            at += n;
        }
        let left = parts.len() as u32;
        let read = self.reads.insert(Read { token, parts, left, error: None });
        (0..left as usize).for_each(|part| self.read_part(io, read, part));
        self.go_on(io);
        Ok(())
    }
    /// Blocks from `lba` on, up to `end`, that one call brings.
    fn run(&self, lba: u32, end: u32) -> u32 {
        let first = self.map[lba as usize];
        let alone = |l: u32| l == NONE || self.fresh.contains_key(&l);
        if alone(first) {
            return 1;
        }
        let mut n = 1;
        while lba + n < end
            && self.map[(lba + n) as usize] == first + n
            && !(first + n).is_multiple_of(self.slots)
            && !alone(first + n)
        {
            n += 1;
        }
        n
    }
    fn read_part(&mut self, io: &mut Io, read: usize, part: usize) {
        let Part { lba, blocks, .. } = self.reads[read].parts[part];
        // Blocks that are no longer adjacent are read one at a time.
        let n = self.run(lba, lba + blocks);
        if n < blocks {
            let rest = Part { lba: lba + n, blocks: blocks - n, data: None };
            let r = &mut self.reads[read];
            r.parts[part].blocks = n;
            r.parts.push(rest);
            r.left += 1;
            let new = r.parts.len() - 1;
            self.read_part(io, read, new);
        }
        let location = self.map[lba as usize];
        if location == NONE {
            return self.part_read(read, part, Ok(Answer::Data(Payload::zero(BLOCK))));
        }
        if let Some(data) = self.fresh.get(&location).cloned() {
            return self.part_read(read, part, Ok(Answer::Data(data)));
        }
        let at = (self.cfg.vssd, self.block(location / self.slots));
        let range = (u64::from(location % self.slots) * u64::from(BLOCK), u64::from(n) * u64::from(BLOCK));
        let token = self.token(Op::Read { read, part });
        match io.manager.read(io.now, at, range, token, io.out) {
            Ok(()) => {}
            Err(e) => {
                self.forget(token);
                if matches!(e, BlockError::QueueFull { .. }) {
                    self.refused.push_back((read, part));
                } else {
                    self.part_read(read, part, Err(e));
                }
            }
        }
    }
    pub(super) fn read_refused(&mut self, io: &mut Io) {
        for (read, part) in std::mem::take(&mut self.refused) {
            self.read_part(io, read, part);
        }
    }
    pub(super) fn part_read(&mut self, read: usize, part: usize, result: Result<Answer, BlockError>) {
        let r = &mut self.reads[read];
        match result {
            Ok(Answer::Data(d)) => r.parts[part].data = Some(d),
            Ok(_) => {}
            Err(e) => r.error = r.error.or(Some(e.into())),
        }
        r.left -= 1;
        if r.left > 0 {
            return;
        }
        let Read { token, mut parts, error, .. } = self.reads.remove(read);
        parts.sort_by_key(|p| p.lba);
        let data: Vec<Payload> = parts.into_iter().filter_map(|p| p.data).collect();
        let result = error.map_or_else(|| Ok(Payload::concat(&data)), Err);
        self.done.push(MapDone::Read { token, result });
    }
}
