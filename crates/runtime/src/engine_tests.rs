use std::cell::RefCell;
use std::rc::Rc;

use super::*;
use crate::store::{Entries, StoreError, StoreEvent};
use bytes::Bytes;
use rackweave_core::device::{BlockOob, PageAddr, PageImage};
use rackweave_core::node::StoreWrite;
use rackweave_core::request::{Request, RequestId};
use rackweave_core::rng::seeds;
use rackweave_core::volume;
use rackweave_core::{Rng, Span, SsdId, VolumeId};
use rackweave_device::layers::{Faults, Faulty};
use rackweave_device::{MemFile, Shape};

const SHAPE: Shape = Shape { blocks: 4, pages_per_block: 4, page_bytes: 4096, meta_bytes: 4096 };

/// A node that emits scripted effects and records its events.
#[derive(Clone, Default)]
struct Scripted {
    next: Rc<RefCell<Effects>>,
    heard: Rc<RefCell<Vec<String>>>,
    room: Rc<RefCell<Vec<bool>>>,
}

impl Nodes for Scripted {
    fn handle(&mut self, _: NodeId, now: Time, event: Event, fx: &mut Effects) {
        std::mem::swap(&mut *self.next.borrow_mut(), fx);
        self.heard.borrow_mut().push(match event {
            Event::Completion(c) => format!("{} done {} {}", now.0, c.tag, c.result.is_ok()),
            Event::Stored { tag } => format!("{} stored {tag}", now.0),
            Event::Timer => format!("{} timer", now.0),
            _ => "other".into(),
        });
    }
    fn count(&self) -> u32 {
        1
    }
    fn set_host_room(&mut self, _: Time, server: u32, room: bool) {
        assert_eq!(server, 0);
        self.room.borrow_mut().push(room);
    }
}

impl Scripted {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.heard.borrow_mut())
    }
}

/// A store whose writes the test completes or fails.
#[derive(Clone, Default)]
struct Stores {
    begun: Rc<RefCell<Vec<Entries>>>,
    events: Rc<RefCell<VecDeque<StoreEvent>>>,
}
impl MetaStore for Stores {
    fn begin(&mut self, entries: Entries) {
        self.begun.borrow_mut().push(entries);
    }
    fn poll(&mut self) -> Option<StoreEvent> {
        self.events.borrow_mut().pop_front()
    }
}
impl Stores {
    fn event(&self, e: StoreEvent) {
        self.events.borrow_mut().push_back(e);
    }
    fn error(os_error: i32) -> StoreError {
        StoreError::of("meta.redb".as_ref(), io::Error::from_raw_os_error(os_error))
    }
}

/// Memory that claims to have a descriptor, so that its syncs run outside the engine.
struct Described<F>(F);
impl<F: FileIo> FileIo for Described<F> {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn read_at(&self, to: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_at(to, offset)
    }
    fn write_at(&mut self, parts: &[&[u8]], offset: u64) -> io::Result<()> {
        self.0.write_at(parts, offset)
    }
    fn allocate(&mut self, offset: u64, len: u64) -> io::Result<()> {
        self.0.allocate(offset, len)
    }
    fn sync(&mut self) -> io::Result<()> {
        self.0.sync()
    }
    fn sync_fd(&self) -> Option<RawFd> {
        Some(7)
    }
}

fn command(tag: u64, op: DeviceOp, done_at: u64) -> DeviceCommand {
    DeviceCommand { ssd: SsdId(0), tag, op, done_at: Time(done_at) }
}

fn engine<F: FileIo>(file: F, stores: Stores) -> (Engine<Scripted, F, Stores>, Scripted) {
    let node = Scripted::default();
    let device = FileSsd::open(file, SsdId(0), SHAPE).expect("opens");
    (Engine::new(node.clone(), vec![device], stores), node)
}

#[test]
fn completions_come_at_their_time_and_in_order() {
    let (mut e, node) = engine(MemFile::default(), Stores::default());
    {
        let mut fx = node.next.borrow_mut();
        let read = || DeviceOp::ReadMeta { offset: 0, len: 8 };
        fx.command(command(1, read(), 300));
        fx.command(command(2, read(), 200));
        fx.command(command(3, read(), 200));
        fx.command(command(4, read(), 50));
        fx.wake_at(Time(250));
    }
    assert!(e.run(Time(100)));
    assert_eq!(node.take(), ["100 timer", "100 done 4 true"]);
    assert_eq!(e.next_deadline(), Some(Time(200)));
    e.run(Time(200));
    assert_eq!(node.take(), ["200 done 2 true", "200 done 3 true"]);
    e.run(Time(1000));
    assert_eq!(node.take(), ["1000 done 1 true", "1000 timer"]);
    assert_eq!(e.next_deadline(), None);
}

#[test]
fn syncs_that_wait_share_the_next_one() {
    let (mut e, node) = engine(Described(MemFile::default()), Stores::default());
    for tag in 1..=3 {
        node.next.borrow_mut().command(command(tag, DeviceOp::Sync, 0));
    }
    e.run(Time(1));
    assert_eq!(e.take_jobs().collect::<Vec<_>>(), [SyncJob { device: 0, fd: 7 }], "one runs");
    e.sync_finished(Time(2), 0, Ok(()));
    assert_eq!(e.take_jobs().count(), 1, "two share the next");
    e.run(Time(2));
    e.sync_finished(Time(3), 0, Ok(()));
    assert_eq!(e.take_jobs().count(), 0);
    assert!(e.syncs_idle());
    e.run(Time(3));
    assert_eq!(node.take(), ["1 timer", "2 done 1 true", "3 done 2 true", "3 done 3 true"]);
}

#[test]
fn a_failed_sync_answers_all_later_ones_with_its_failure() {
    let (mut e, node) = engine(Described(Faulty::new(MemFile::default(), Faults::default())), Stores::default());
    node.next.borrow_mut().command(command(1, DeviceOp::Sync, 0));
    e.run(Time(1));
    assert_eq!(e.take_jobs().count(), 1);
    e.sync_finished(Time(2), 0, Err(io::Error::from_raw_os_error(libc::EIO)));
    node.next.borrow_mut().command(command(2, DeviceOp::Sync, 0));
    e.run(Time(2));
    e.run(Time(3));
    assert_eq!(e.take_jobs().count(), 0, "never asked again");
    assert_eq!(node.take(), ["1 timer", "2 done 1 false", "2 done 2 false"]);
}

/// A node with two pending writes, and the events that they cause.
fn writing() -> (Engine<Scripted, MemFile, Stores>, Scripted, Stores) {
    let stores = Stores::default();
    let (mut e, node) = engine(MemFile::default(), stores.clone());
    for tag in 1..=2 {
        let entries = vec![(Bytes::from(format!("{tag}")), None)];
        node.next.borrow_mut().store(StoreWrite { tag, entries });
    }
    e.run(Time(1));
    assert_eq!((node.take(), stores.begun.borrow().len()), (vec!["1 timer".into()], 2), "started, without waiting");
    (e, node, stores)
}

#[test]
fn durable_writes_are_answered_in_their_order_as_the_store_reports_them() {
    let (mut e, node, stores) = writing();
    e.run(Time(2));
    assert_eq!(node.take(), [""; 0]);
    stores.event(StoreEvent::NoRoom(Stores::error(libc::ENOSPC)));
    e.run(Time(3));
    assert!(e.store_problem().is_some_and(|p| p.contains("meta.redb") && p.contains("No space left")));
    assert!(e.take_store_news() && !e.store_failed());
    assert_eq!(node.take(), [""; 0]);
    stores.event(StoreEvent::Stored);
    e.run(Time(4));
    assert_eq!(node.take(), ["4 stored 1"]);
    assert!(e.store_problem().is_none() && e.take_store_news());
    stores.event(StoreEvent::Stored);
    e.run(Time(5));
    assert_eq!(node.take(), ["5 stored 2"]);
}

#[test]
fn after_a_store_has_failed_no_write_is_answered() {
    let (mut e, node, stores) = writing();
    stores.event(StoreEvent::Failed(Stores::error(libc::EIO)));
    stores.event(StoreEvent::Stored);
    (2..4).for_each(|t| _ = e.run(Time(t)));
    assert_eq!(node.take(), [""; 0]);
    assert!(e.store_failed() && e.take_store_news());
    let why = e.take_store_failure().expect("failed").to_string();
    assert!(why.contains("meta.redb") && why.contains("Input/output error"), "{why}");
}

fn program(page: u16) -> DeviceOp {
    let image = PageImage { sequence: u64::from(page) + 1, oob: BlockOob::default(), slots: Default::default() };
    DeviceOp::Program { page: PageAddr { block: 0, page }, image: Box::new(image) }
}

/// A request that wakes the node.
fn flush() -> Request {
    Request::new(RequestId(1), volume::Op::Flush { volume: VolumeId(1) })
}

/// A drive on a host that fails as its [`Faults`] say; syncs run in the engine.
fn on_host() -> (Engine<Scripted, Faulty<MemFile>, Stores>, Scripted, Faults) {
    let faults = Faults::default();
    let (e, node) = engine(Faulty::new(MemFile::default(), faults.clone()), Stores::default());
    (e, node, faults)
}

#[test]
fn what_finds_no_room_on_the_host_waits_in_its_order_and_goes_on() {
    let (mut e, node, faults) = on_host();
    let meta = || DeviceOp::WriteMeta { offset: 0, data: Bytes::from_static(&[1; 8]) };
    node.next.borrow_mut().command(command(9, meta(), 0));
    e.run(Time(0));
    node.take();
    faults.fail_allocations(Some(libc::ENOSPC));
    let ops = [program(0), program(1), DeviceOp::ReadMeta { offset: 0, len: 8 }, meta(), DeviceOp::Sync];
    e.submit(NodeId(0), flush());
    for (tag, op) in (1..).zip(ops) {
        node.next.borrow_mut().command(command(tag, op, 0));
    }
    e.run(Time(1));
    assert_eq!(
        node.take(),
        ["other", "1 timer", "1 done 3 true", "1 done 5 true"],
        "reads and syncs of stored data succeed"
    );
    assert_eq!(e.take_host_news(), [(0, Some(HostFault::NoRoom))]);
    assert_eq!(e.drive_fault(0), Some(HostFault::NoRoom));
    let again = e.next_deadline().expect("tried again");
    e.run(again);
    assert_eq!((node.take().len(), e.take_host_news()), (0, Vec::new()), "still no space, and no news");
    faults.fail_allocations(None);
    // The host has space again before the waiting changes are retried: a later change waits behind them.
    e.submit(NodeId(0), flush());
    node.next.borrow_mut().command(command(6, meta(), 0));
    e.run(Time(2));
    assert_eq!(node.take(), ["other"]);
    let again = e.next_deadline().expect("tried again");
    e.run(again);
    let done: Vec<String> = node.take().iter().map(|l| l.split_once(' ').expect("words").1.into()).collect();
    assert_eq!(done, ["done 1 true", "done 2 true", "done 4 true", "done 6 true", "timer"]);
    assert_eq!((e.take_host_news(), e.drive_fault(0)), (vec![(0, None)], None));
    assert_eq!(*node.room.borrow(), [false, true]);
    assert_eq!(e.next_deadline(), None);
}

#[test]
fn a_sync_that_finds_no_room_before_its_fdatasync_waits() {
    let (mut e, node, faults) = on_host();
    node.next.borrow_mut().command(command(1, program(0), 0));
    e.run(Time(1));
    faults.fail_writes(Some(libc::ENOSPC));
    let before = faults.syncs();
    node.take();
    (2..4).for_each(|tag| node.next.borrow_mut().command(command(tag, DeviceOp::Sync, 0)));
    e.submit(NodeId(0), flush());
    e.run(Time(2));
    assert_eq!((node.take(), faults.syncs()), (vec!["other".into(), "2 timer".into()], before));
    assert_eq!(e.drive_fault(0), Some(HostFault::NoRoom));
    faults.fail_writes(None);
    let again = e.next_deadline().expect("tried again");
    e.run(again);
    assert!(node.take().iter().filter(|l| l.ends_with("true")).count() == 2 && faults.syncs() > before);
    assert_eq!((e.drive_fault(0), e.next_deadline()), (None, None));
}

#[test]
fn a_drive_whose_file_fails_says_so_once() {
    let (mut e, node, faults) = on_host();
    faults.fail_reads(Some(libc::EIO));
    node.next.borrow_mut().command(command(1, DeviceOp::ReadMeta { offset: 0, len: 8 }, 0));
    e.run(Time(1));
    assert_eq!((e.drive_fault(0), e.take_reads_failed()), (None, vec![(0, 1, libc::EIO)]), "each failed read once");
    faults.fail_reads(None);
    faults.fail_syncs(Some(libc::EIO));
    for tag in 2..4 {
        node.next.borrow_mut().command(command(tag, DeviceOp::Sync, 0));
        e.submit(NodeId(0), flush());
        e.run(Time(tag));
    }
    let failed = HostFault::Failed { os_error: libc::EIO };
    assert_eq!((e.take_host_news(), e.drive_fault(0)), (vec![(0, Some(failed))], Some(failed)));
    let words = failed.words("/data/ssd-0.rwk");
    assert!(
        words.contains("/data/ssd-0.rwk: a write or sync failed (Input/output error")
            && words.contains("server restarts"),
        "{words}"
    );
}

/// A drive on a host whose disk has no room now and then, and what its commands do in their order.
struct OnFull {
    engine: Engine<Scripted, Faulty<MemFile>, Stores>,
    node: Scripted,
    faults: Faults,
    rng: Rng,
    now: Time,
    tag: u64,
    /// Commands that change the drive, and other ones, without an answer.
    changes: VecDeque<u64>,
    others: Vec<u64>,
    /// The next page of each block.
    next: [u16; SHAPE.blocks as usize],
}

impl OnFull {
    fn new(seed: u64) -> OnFull {
        let (mut engine, node, faults) = on_host();
        engine.run(Time(0));
        let (changes, others, next) = (VecDeque::new(), Vec::new(), [0; SHAPE.blocks as usize]);
        OnFull { engine, node, faults, rng: Rng::new(seed), now: Time(1), tag: 0, changes, others, next }
    }
    fn op(&mut self) -> DeviceOp {
        let block = self.rng.below(u64::from(SHAPE.blocks)) as u32;
        let page = self.next[block as usize];
        match self.rng.below(6) {
            0 => DeviceOp::Sync,
            1 => DeviceOp::ReadMeta { offset: 0, len: 8 },
            2 => DeviceOp::WriteMeta { offset: self.rng.below(64) * 8, data: Bytes::from_static(&[1; 8]) },
            _ if page == SHAPE.pages_per_block => {
                self.next[block as usize] = 0;
                DeviceOp::Erase { block, oob: BlockOob::default() }
            }
            _ => {
                self.next[block as usize] += 1;
                let image = PageImage { sequence: self.tag + 1, oob: BlockOob::default(), slots: Default::default() };
                DeviceOp::Program { page: PageAddr { block, page }, image: Box::new(image) }
            }
        }
    }
    fn submit(&mut self) {
        for _ in 0..self.rng.between(1, 6) {
            let op = self.op();
            self.tag += 1;
            match op {
                DeviceOp::Sync | DeviceOp::ReadMeta { .. } => self.others.push(self.tag),
                _ => self.changes.push_back(self.tag),
            }
            self.node.next.borrow_mut().command(command(self.tag, op, 0));
        }
        self.engine.submit(NodeId(0), flush());
    }
    /// Changes are answered in their order, and no command fails for want of room.
    fn run(&mut self) -> Result<(), String> {
        self.now += Span::from_millis(self.rng.below(400));
        while !self.engine.run(self.now) {}
        for line in self.node.take() {
            let Some((_, done)) = line.split_once(" done ") else { continue };
            let (tag, ok) = done.split_once(' ').ok_or("two words")?;
            let tag: u64 = tag.parse().map_err(|_| "a number")?;
            if ok != "true" {
                return Err(format!("command {tag} fails: {:?}", self.engine.drive_fault(0)));
            }
            match self.others.iter().position(|t| *t == tag) {
                Some(at) => _ = self.others.swap_remove(at),
                None if self.changes.pop_front() != Some(tag) => return Err(format!("{tag} overtakes others")),
                None => {}
            }
        }
        Ok(())
    }
    fn full(&mut self, full: bool) {
        let why = full.then_some(libc::ENOSPC);
        let both = self.rng.chance(0.5);
        self.faults.fail_allocations(why);
        self.faults.fail_writes(why.filter(|_| both));
    }
}

fn on_full(seed: u64) -> Result<(), String> {
    let mut s = OnFull::new(seed);
    for _ in 0..60 {
        if s.rng.chance(0.3) {
            let full = s.rng.chance(0.5);
            s.full(full);
        }
        if s.rng.chance(0.7) {
            s.submit();
        }
        s.run()?;
    }
    s.full(false);
    for _ in 0..20 {
        s.now += ROOM_RETRY;
        s.run()?;
    }
    if s.changes.is_empty() && s.others.is_empty() && s.engine.drive_fault(0).is_none() {
        return Ok(());
    }
    Err(format!("{:?} and {:?} wait with room: {:?}", s.changes, s.others, s.engine.drive_fault(0)))
}

#[test]
fn a_full_host_delays_commands_and_changes_neither_their_order_nor_their_results() {
    for seed in seeds(0..100) {
        on_full(seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}
