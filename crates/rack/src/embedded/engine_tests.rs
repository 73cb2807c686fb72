use std::cell::RefCell;
use std::rc::Rc;

use super::*;
use bytes::Bytes;
use rackweave_core::SsdId;
use rackweave_device::layers::{Faults, Faulty};
use rackweave_device::{MemFile, Shape};

const SHAPE: Shape = Shape { blocks: 4, pages_per_block: 4, page_bytes: 4096, meta_bytes: 4096 };

/// One node that does what it is told and writes down what it hears.
#[derive(Clone, Default)]
struct Scripted {
    next: Rc<RefCell<Effects>>,
    heard: Rc<RefCell<Vec<String>>>,
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
}

impl Scripted {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.heard.borrow_mut())
    }
}

#[derive(Default)]
struct Stores {
    fail: Rc<RefCell<bool>>,
}
impl MetaStore for Stores {
    fn write(&mut self, _: &StoreWrite) -> Result<(), StoreError> {
        if *self.fail.borrow() {
            return Err(StoreError::of(io::Error::from_raw_os_error(libc::ENOSPC)));
        }
        Ok(())
    }
}

/// Memory that claims to have a descriptor, so that its syncs are run on the side.
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

#[test]
fn a_durable_write_that_fails_is_tried_again_and_nothing_overtakes_it() {
    let fail = Rc::new(RefCell::new(true));
    let (mut e, node) = engine(MemFile::default(), Stores { fail: Rc::clone(&fail) });
    for tag in 1..=2 {
        let entries = vec![(Bytes::from_static(b"k"), None)];
        node.next.borrow_mut().store(StoreWrite { tag, entries });
    }
    e.run(Time(1));
    assert!(e.store_error().is_some());
    assert_eq!(node.take(), ["1 timer"]);
    *fail.borrow_mut() = false;
    let again = e.next_deadline().expect("tried again");
    e.run(again);
    assert_eq!(node.take().len(), 2);
    assert!(e.store_error().is_none());
}
