//! Layers for tests: one records every write so that a power cut at any instant can be played, one fails on purpose.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use rackweave_core::Rng;

use super::io::{FileIo, MemFile};

/// Operation on one of the recorded files.
#[derive(Clone, Debug)]
pub enum Step {
    Write {
        file: usize,
        offset: u64,
        data: Vec<u8>,
    },
    Allocate {
        file: usize,
        offset: u64,
        len: u64,
    },
    /// Everything written to the file before is durable.
    Sync {
        file: usize,
    },
    /// A mark of the test (a request answered, a store committed), in order with the writes.
    Note(u64),
}

/// The steps of all recorded files, in order.
#[derive(Clone, Debug, Default)]
pub struct Journal(Rc<RefCell<Vec<Step>>>);

impl Journal {
    pub fn len(&self) -> usize {
        self.0.borrow().len()
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    pub fn note(&self, mark: u64) {
        self.0.borrow_mut().push(Step::Note(mark));
    }
    /// The step at `i`.
    ///
    /// # Panics
    /// If there is none.
    pub fn step(&self, i: usize) -> Step {
        self.0.borrow()[i].clone()
    }
    fn push(&self, s: Step) {
        self.0.borrow_mut().push(s);
    }
}

/// Plays a journal into files as they would be found after a power cut.
#[derive(Debug)]
pub struct Replay {
    journal: Journal,
    at: usize,
    durable: Vec<MemFile>,
    /// Writes since the last sync of their file, oldest first.
    pending: Vec<(usize, u64, Vec<u8>)>,
}

impl Replay {
    /// Before the first step, with the files as they were when recording began.
    pub fn new(journal: &Journal, files: Vec<MemFile>) -> Replay {
        Replay { journal: journal.clone(), at: 0, durable: files, pending: Vec::new() }
    }
    pub fn position(&self) -> usize {
        self.at
    }
    /// Takes the next step; `None` at the end.
    pub fn advance(&mut self) -> Option<Step> {
        if self.at == self.journal.len() {
            return None;
        }
        let step = self.journal.step(self.at);
        self.at += 1;
        match &step {
            Step::Write { file, offset, data } => self.pending.push((*file, *offset, data.clone())),
            Step::Allocate { file, offset, len } => {
                let _ = self.durable[*file].allocate(*offset, *len);
            }
            Step::Sync { file } => {
                let durable = &mut self.durable[*file];
                self.pending.retain(|(f, offset, data)| {
                    if f == file {
                        let _ = durable.write_at(&[data], *offset);
                    }
                    f != file
                });
            }
            Step::Note(_) => {}
        }
        Some(step)
    }
    /// The files after a power cut now: each write since the last sync of its file is there, lost, or torn at a 512 B
    /// sector, as `rng` draws.
    pub fn cut(&self, rng: &mut Rng) -> Vec<MemFile> {
        let mut files = self.durable.clone();
        let keep = rng.unit();
        for (file, offset, data) in &self.pending {
            if rng.chance(keep) {
                let _ = files[*file].write_at(&[data], *offset);
            } else if rng.chance(0.3) {
                for (i, sector) in data.chunks(512).enumerate() {
                    if rng.chance(0.5) {
                        let _ = files[*file].write_at(&[sector], offset + 512 * i as u64);
                    }
                }
            }
        }
        files
    }
}

/// Records every call and passes it on.
#[derive(Debug)]
pub struct Recorder<F> {
    inner: F,
    file: usize,
    journal: Journal,
}

impl<F> Recorder<F> {
    /// `file` is the file's name in the journal.
    pub fn new(inner: F, file: usize, journal: Journal) -> Recorder<F> {
        Recorder { inner, file, journal }
    }
    pub fn into_inner(self) -> F {
        self.inner
    }
}

impl<F: FileIo> FileIo for Recorder<F> {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }
    fn read_at(&self, to: &mut [u8], offset: u64) -> io::Result<()> {
        self.inner.read_at(to, offset)
    }
    fn write_at(&mut self, parts: &[&[u8]], offset: u64) -> io::Result<()> {
        self.inner.write_at(parts, offset)?;
        self.journal.push(Step::Write { file: self.file, offset, data: parts.concat() });
        Ok(())
    }
    fn allocate(&mut self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.allocate(offset, len)?;
        self.journal.push(Step::Allocate { file: self.file, offset, len });
        Ok(())
    }
    fn sync(&mut self) -> io::Result<()> {
        self.inner.sync()?;
        self.journal.push(Step::Sync { file: self.file });
        Ok(())
    }
}

/// Injected failures of calls, set while the device runs.
#[derive(Clone, Debug, Default)]
pub struct Faults(Rc<RefCell<FaultSet>>);

#[derive(Clone, Debug, Default)]
struct FaultSet {
    write: Option<i32>,
    /// Writes that succeed before.
    writes_left: u64,
    allocate: Option<i32>,
    sync: Option<i32>,
    read: Option<i32>,
    syncs: u64,
}

impl Faults {
    /// OS error of every write from now on; `None` heals.
    pub fn fail_writes(&self, os_error: Option<i32>) {
        self.fail_writes_after(os_error.map(|e| (e, 0)));
    }
    /// Fails writes as [`Faults::fail_writes`] does, once `n` more writes have succeeded.
    pub fn fail_writes_after(&self, fails: Option<(i32, u64)>) {
        let mut f = self.0.borrow_mut();
        (f.write, f.writes_left) = (fails.map(|e| e.0), fails.map_or(0, |e| e.1));
    }
    pub fn fail_allocations(&self, os_error: Option<i32>) {
        self.0.borrow_mut().allocate = os_error;
    }
    pub fn fail_syncs(&self, os_error: Option<i32>) {
        self.0.borrow_mut().sync = os_error;
    }
    pub fn fail_reads(&self, os_error: Option<i32>) {
        self.0.borrow_mut().read = os_error;
    }
    /// Number of syncs that reached the layer.
    pub fn syncs(&self) -> u64 {
        self.0.borrow().syncs
    }
}

/// Fails as its [`Faults`] say, and passes other calls on.
#[derive(Debug)]
pub struct Faulty<F> {
    inner: F,
    faults: Faults,
}

impl<F> Faulty<F> {
    pub fn new(inner: F, faults: Faults) -> Faulty<F> {
        Faulty { inner, faults }
    }
}

fn fail(os_error: Option<i32>) -> io::Result<()> {
    os_error.map_or(Ok(()), |e| Err(io::Error::from_raw_os_error(e)))
}

impl<F: FileIo> FileIo for Faulty<F> {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }
    fn read_at(&self, to: &mut [u8], offset: u64) -> io::Result<()> {
        fail(self.faults.0.borrow().read)?;
        self.inner.read_at(to, offset)
    }
    fn write_at(&mut self, parts: &[&[u8]], offset: u64) -> io::Result<()> {
        let fails = {
            let mut f = self.faults.0.borrow_mut();
            let fails = f.write.filter(|_| f.writes_left == 0);
            f.writes_left = f.writes_left.saturating_sub(1);
            fails
        };
        if let (Some(_), Some(first)) = (fails, parts.first()) {
            // Whole sectors of it, as may happen.
            self.inner.write_at(&[&first[..first.len() / 2 / 512 * 512]], offset)?;
        }
        fail(fails)?;
        self.inner.write_at(parts, offset)
    }
    fn allocate(&mut self, offset: u64, len: u64) -> io::Result<()> {
        fail(self.faults.0.borrow().allocate)?;
        self.inner.allocate(offset, len)
    }
    fn sync(&mut self) -> io::Result<()> {
        self.faults.0.borrow_mut().syncs += 1;
        fail(self.faults.0.borrow().sync)?;
        self.inner.sync()
    }
}
