//! The flash manager on a backend, a call at a time: what the C library and other programs that wait use. Time passes
//! as the modelled device takes it, or not at all.

use rackweave_core::device::{Backend, Completion, DeviceCommand, DeviceError};
use rackweave_core::{BLOCK, Payload, Time, VssdId};

use super::api::{AllocError, Block, BlockError, BlockInfo, VirtualSsds};
use super::{BootError, ConfigError, Done, FlashManager, ManagerConfig, ManagerOut};
use crate::isolation::Isolation;

/// A drive with what is behind it.
#[derive(Debug)]
pub struct BlockingDrive<B> {
    manager: FlashManager,
    backend: B,
    now: Time,
    out: ManagerOut,
    in_flight: Vec<(DeviceCommand, Completion)>,
    done: Vec<Done>,
    token: u64,
}

/// Reason why a drive was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Boot(#[from] BootError),
}

impl<B: Backend> BlockingDrive<B> {
    /// Recovers what is on the backend.
    pub fn open(cfg: ManagerConfig, backend: B) -> Result<BlockingDrive<B>, OpenError> {
        let manager = FlashManager::new(cfg)?;
        let (out, in_flight, done) = (ManagerOut::new(), Vec::new(), Vec::new());
        let mut d = BlockingDrive { manager, backend, now: Time::ZERO, out, in_flight, done, token: 0 };
        d.manager.boot(d.now, &mut d.out);
        d.settle();
        let result =
            d.done.drain(..).find_map(|d| if let Done::Recovered { result } = d { Some(result) } else { None });
        result.unwrap_or(Err(DeviceError::Backend { os_error: 0 }.into()))?;
        Ok(d)
    }
    pub fn manager(&self) -> &FlashManager {
        &self.manager
    }
    /// Modelled time that has passed.
    pub fn now(&self) -> Time {
        self.now
    }
    pub fn backend_mut(&mut self) -> &mut B {
        &mut self.backend
    }
    /// Ends what is under way and writes down that nothing is.
    pub fn close(mut self) -> Result<B, BlockError> {
        let token = self.next_token();
        self.manager.close(self.now, token, &mut self.out);
        self.wait_synced(token)?;
        Ok(self.backend)
    }
    /// Does all that can be done without a further call.
    pub fn settle(&mut self) {
        while self.step() {}
    }
    /// Swaps worn and calm dies now, to the end. False: nothing would be gained.
    pub fn swap(&mut self) -> bool {
        let begun = self.manager.swap_now(self.now, &mut self.out);
        self.settle();
        begun
    }

    /// For a state machine that uses the manager: the time, the manager, and where its commands and answers go.
    pub fn parts(&mut self) -> (Time, &mut FlashManager, &mut ManagerOut) {
        (self.now, &mut self.manager, &mut self.out)
    }
    /// Answers there are, to the caller of [`BlockingDrive::parts`].
    pub fn take_done(&mut self) -> Vec<Done> {
        self.done.append(&mut self.out.done);
        std::mem::take(&mut self.done)
    }

    fn next_token(&mut self) -> u64 {
        self.token += 1;
        self.token
    }
    /// Executes the manager's commands and delivers the answer that is due first. False: none is pending.
    pub fn step(&mut self) -> bool {
        for c in self.out.commands.drain(..) {
            let result = self.backend.execute(&c.op);
            let completion = Completion { ssd: c.ssd, tag: c.tag, result };
            self.in_flight.push((c, completion));
        }
        self.done.append(&mut self.out.done);
        let first = (0..self.in_flight.len()).min_by_key(|i| self.in_flight[*i].0.done_at);
        let wake = self.manager.wake().filter(|_| self.manager.swapping());
        match (first, wake) {
            (Some(i), wake) if wake.is_none_or(|w| self.in_flight[i].0.done_at <= w) => {
                let (c, completion) = self.in_flight.remove(i);
                self.now = self.now.max(c.done_at);
                self.manager.handle(self.now, completion, &mut self.out);
            }
            (_, Some(wake)) => {
                self.now = self.now.max(wake);
                self.manager.tick(self.now, &mut self.out);
            }
            _ => return false,
        }
        self.done.append(&mut self.out.done);
        true
    }
    /// Goes on until `wanted` is answered.
    fn wait<T>(&mut self, wanted: impl Fn(&Done) -> Option<T>) -> Option<T> {
        loop {
            self.done.append(&mut self.out.done);
            let found = self.done.iter().enumerate().find_map(|(i, d)| Some((i, wanted(d)?)));
            if let Some((i, found)) = found {
                self.done.remove(i);
                return Some(found);
            }
            self.done.retain(|d| !matches!(d, Done::Swapped));
            if !self.step() {
                return None;
            }
        }
    }
    fn wait_synced(&mut self, token: u64) -> Result<(), BlockError> {
        let mine =
            |d: &Done| if let Done::Synced { token: t, result } = d { (*t == token).then_some(*result) } else { None };
        self.wait(mine).map_or_else(|| Err(self.unanswered()), |synced| Ok(synced?))
    }
    fn append(&mut self, vssd: VssdId, block: Block, offset: Option<u64>, data: Payload) -> Result<(), BlockError> {
        let token = self.next_token();
        self.when_queues_have_room(|m, now, out| m.write(now, (vssd, block), offset, &data, token, out))?;
        let mine =
            |d: &Done| if let Done::Written { token: t, result } = d { (*t == token).then_some(*result) } else { None };
        self.wait(mine).unwrap_or(Err(self.unanswered()))
    }
    /// Repeats the call until no die's queue is too full for it: only this driver shortens them.
    fn when_queues_have_room(
        &mut self,
        ask: impl Fn(&mut FlashManager, Time, &mut ManagerOut) -> Result<(), BlockError>,
    ) -> Result<(), BlockError> {
        loop {
            match ask(&mut self.manager, self.now, &mut self.out) {
                Err(BlockError::QueueFull { .. }) if self.step() => {}
                asked => return asked,
            }
        }
    }
    /// Why an answer is missing, though no command is pending.
    fn failure(&self) -> DeviceError {
        self.manager.failed().unwrap_or(DeviceError::Backend { os_error: 0 })
    }
    fn unanswered(&self) -> BlockError {
        self.failure().into()
    }
    /// As [`VirtualSsds::write_data`], of contents that may be elided.
    pub fn write(&mut self, vssd: VssdId, block: Block, data: &Payload) -> Result<(), BlockError> {
        self.write_in_parts(vssd, block, None, data)
    }
    fn write_in_parts(
        &mut self,
        vssd: VssdId,
        block: Block,
        offset: Option<u64>,
        data: &Payload,
    ) -> Result<(), BlockError> {
        let g = *self.manager.geometry();
        let (page, bytes) = (u64::from(g.page_bytes), u64::from(data.len()));
        let info = self.manager.block(block).ok().filter(|_| block.vssd == vssd);
        let size = self.manager.block_bytes(vssd)?;
        if let Some(i) = info.filter(|i| offset.unwrap_or(i.written).saturating_add(bytes) > size) {
            return Err(BlockError::PastEnd { block, offset: offset.unwrap_or(i.written), bytes, size });
        }
        if info.is_none() || bytes == 0 || !bytes.is_multiple_of(page) {
            return self.append(vssd, block, offset, data.clone());
        }
        // At most as much at a time as a die's queue takes.
        let part = (page * u64::from(self.manager.config().profile.queue_depth)) as u32 / rackweave_core::SECTOR;
        let mut at = 0;
        while at < data.sectors() {
            let n = part.min(data.sectors() - at);
            let here = offset.map(|o| o + u64::from(at) * u64::from(rackweave_core::SECTOR));
            self.append(vssd, block, here, data.slice(at, n))?;
            at += n;
        }
        Ok(())
    }
    /// Reads from a block, in units of 4096 bytes.
    pub fn read(&mut self, block: Block, offset: u64, bytes: u64) -> Result<Payload, BlockError> {
        let token = self.next_token();
        let range = (offset, bytes);
        self.when_queues_have_room(|m, now, out| m.read(now, (block.vssd, block), range, token, out))?;
        let mine = |d: &Done| match d {
            Done::Read { token: t, result } if *t == token => Some(result.clone()),
            _ => None,
        };
        self.wait(mine).unwrap_or(Err(self.unanswered()))
    }
}

impl<B: Backend> VirtualSsds for BlockingDrive<B> {
    fn alloc_vssd(&mut self, isolation: Isolation, level: u32, capacity: u64) -> Result<VssdId, AllocError> {
        let token = self.next_token();
        self.manager.alloc_vssd(self.now, (isolation, level, capacity), token, &mut self.out)?;
        let mine = |d: &Done| match d {
            Done::VssdAllocated { token: t, result } if *t == token => Some(result.clone()),
            _ => None,
        };
        self.wait(mine).unwrap_or(Err(AllocError::Failed(self.failure())))
    }
    fn dealloc_vssd(&mut self, vssd: VssdId) -> Result<(), BlockError> {
        let token = self.next_token();
        self.manager.dealloc_vssd(self.now, vssd, token, &mut self.out)?;
        let mine = |d: &Done| {
            if let Done::VssdFreed { token: t, result } = d { (*t == token).then_some(*result) } else { None }
        };
        self.wait(mine).unwrap_or(Err(self.unanswered()))
    }
    fn block_size(&self, vssd: VssdId) -> Result<u64, BlockError> {
        self.manager.block_bytes(vssd)
    }
    fn read_data(&mut self, vssd: VssdId, offset: u64, to: &mut [u8]) -> Result<(), BlockError> {
        let size = self.manager.block_bytes(vssd)?;
        let mut done = 0;
        while done < to.len() {
            let at = offset.saturating_add(done as u64);
            let block = Block { vssd, index: u32::try_from(at / size).unwrap_or(u32::MAX) };
            let (inside, unit) = (at % size, u64::from(BLOCK));
            // To the end of the block, in whole units, and at most as much at a time as a die's queue takes.
            let most = u64::from(self.manager.config().profile.queue_depth) * unit - inside % unit;
            let n = (to.len() - done).min((size - inside) as usize).min(most as usize);
            let info = self.manager.block(block)?;
            if inside + n as u64 > info.written {
                return Err(BlockError::Unwritten { block, offset: inside, bytes: n as u64, written: info.written });
            }
            let first = inside / unit * unit;
            let data = self.read(block, first, (inside + n as u64).next_multiple_of(unit) - first)?.to_bytes();
            let skip = (inside - first) as usize;
            to[done..done + n].copy_from_slice(&data[skip..skip + n]);
            done += n;
        }
        Ok(())
    }
    fn alloc_block(&mut self, vssd: VssdId) -> Result<Block, BlockError> {
        let token = self.next_token();
        self.manager.alloc_block(self.now, vssd, token, &mut self.out)?;
        let mine = |d: &Done| match d {
            Done::BlockAllocated { token: t, result } if *t == token => Some(*result),
            _ => None,
        };
        self.wait(mine).unwrap_or(Err(self.unanswered()))
    }
    fn write_data(&mut self, vssd: VssdId, block: Block, data: &[u8]) -> Result<(), BlockError> {
        self.write_bytes(vssd, block, None, data)
    }
    fn write_data_at(&mut self, vssd: VssdId, block: Block, offset: u64, data: &[u8]) -> Result<(), BlockError> {
        self.write_bytes(vssd, block, Some(offset), data)
    }
    fn free_block(&mut self, vssd: VssdId, block: Block) -> Result<(), BlockError> {
        self.manager.free_block(self.now, vssd, block, &mut self.out)
    }
    fn next_block(&self, vssd: VssdId, from: u32) -> Result<Option<BlockInfo>, BlockError> {
        self.manager.next_block(vssd, from)?.map(|b| self.manager.block(b)).transpose()
    }
    fn sync(&mut self) -> Result<(), BlockError> {
        let token = self.next_token();
        self.manager.sync(self.now, token, &mut self.out);
        self.wait_synced(token)
    }
}

impl<B: Backend> BlockingDrive<B> {
    fn write_bytes(&mut self, vssd: VssdId, block: Block, at: Option<u64>, data: &[u8]) -> Result<(), BlockError> {
        let (bytes, page_bytes) = (data.len() as u64, self.manager.geometry().page_bytes);
        let size = self.manager.block_bytes(vssd)?;
        // A payload's length is in sectors and 32 bits: what does not fit is refused before it is made one.
        if bytes == 0 || !bytes.is_multiple_of(u64::from(page_bytes)) {
            self.manager.block(block).and_then(|_| self.mine(vssd, block))?;
            return Err(BlockError::UnalignedLength { bytes, page_bytes });
        }
        if bytes > size {
            let written = self.manager.block(block)?.written;
            return Err(BlockError::PastEnd { block, offset: at.unwrap_or(written), bytes, size });
        }
        let data = Payload::Bytes(bytes::Bytes::copy_from_slice(data));
        self.write_in_parts(vssd, block, at, &data)
    }
    fn mine(&self, vssd: VssdId, block: Block) -> Result<(), BlockError> {
        if block.vssd == vssd { Ok(()) } else { Err(BlockError::ForeignBlock { vssd, block }) }
    }
}
