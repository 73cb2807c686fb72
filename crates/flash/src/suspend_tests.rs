use rackweave_core::device::{BlockOob, Completion, DeviceData, DeviceOp, PageAddr, PageImage};
use rackweave_core::{Span, SsdId, Time};

use crate::profile::{Profile, Suspend};
use crate::timing::{Charge, Clock, Suspends, Timing};

const HOW: Suspend = Suspend { suspend: Span::from_micros(100), resume: Span::from_micros(50), reads_max: 3 };
/// Suspension of programs.
const SOONER: Suspend = Suspend { suspend: Span::from_micros(20), resume: Span::from_micros(10), reads_max: 2 };

fn at(us: u64) -> Time {
    Time::ZERO + Span::from_micros(us)
}

struct Die {
    clock: Clock,
    p: Profile,
    tag: u64,
}

impl Die {
    fn new() -> Die {
        let p = Profile::builtin("p-ssd").expect("built in");
        let mut clock = Clock::new(&p, Timing::Real);
        clock.suspend(&p, Suspends { erases: Some(HOW), programs: Some(SOONER), host_programs: None });
        Die { clock, p, tag: 0 }
    }
    fn submit(&mut self, op: &DeviceOp, end: Time) -> (u64, Time) {
        self.tag += 1;
        self.clock.submitted(self.tag, op, false, end);
        (self.tag, end)
    }
    /// Submits a program of the collector (`collects`) or of the host.
    fn page(&mut self, now: Time, collects: bool) -> (u64, Time) {
        let charge = if collects { Charge::Collector } else { Charge::Device };
        let end = self.clock.program(now, 0, 4, charge);
        let image = Box::new(PageImage { sequence: 1, oob: BlockOob::default(), slots: Vec::new().into() });
        self.tag += 1;
        let op = DeviceOp::Program { page: PageAddr { block: 1, page: 0 }, image };
        self.clock.submitted(self.tag, &op, collects, end);
        (self.tag, end)
    }
    fn erase(&mut self, now: Time) -> (u64, Time) {
        let end = self.clock.erase(now, 0, Charge::Device);
        self.submit(&DeviceOp::Erase { block: 0, oob: BlockOob::default() }, end)
    }
    /// Submits a command other than a host's read; its kind does not matter.
    fn program(&mut self, now: Time) -> (u64, Time) {
        let end = self.clock.program(now, 0, 4, Charge::Device);
        self.submit(&DeviceOp::ReadPage { page: PageAddr { block: 1, page: 0 } }, end)
    }
    fn read(&mut self, now: Time) -> Time {
        let end = self.clock.host_read(now, 0, 1);
        self.submit(&DeviceOp::ReadSlot { page: PageAddr { block: 2, page: 0 }, slot: 0 }, end).1
    }
    fn one_read(&self) -> Span {
        self.p.read + self.clock.transfer(1)
    }
    /// The time at which the command completes, and whether that is later than its announced time. A delayed completion
    /// keeps its first result.
    fn done(&mut self, (tag, promised): (u64, Time)) -> (Time, bool) {
        let first = Ok(DeviceData::Meta(bytes::Bytes::from_static(b"first")));
        let waited = self.clock.finish(promised, Completion { ssd: SsdId(7), tag, result: first });
        let Err(wait) = waited else { return (promised, false) };
        assert!(wait.tag == tag && wait.ssd == SsdId(7) && wait.done_at > promised);
        let again = Completion { ssd: SsdId(7), tag, result: Ok(DeviceData::None) };
        let c = self.clock.finish(wait.done_at, again).expect("done then");
        assert!(matches!(c.result, Ok(DeviceData::Meta(b)) if b == b"first"[..]));
        (wait.done_at, true)
    }
}

#[test]
fn a_read_interrupts_an_erase_that_takes_as_long_all_the_same() {
    let mut d = Die::new();
    let (erase, program) = (d.erase(at(0)), d.program(at(10)));
    let one = d.one_read();
    let first = d.read(at(1_000));
    assert_eq!(first, at(1_000) + HOW.suspend + one);
    let second = d.read(at(1_050));
    assert_eq!(second, first + one, "the erase is still suspended");
    let third = d.read(at(3_000));
    assert_eq!(third, at(3_000) + HOW.suspend + one);
    let held_up = second.since(at(1_000)) + third.since(at(3_000)) + HOW.resume * 2;
    // The limit of reads is reached: this one waits for the erase and the earlier commands.
    let last = d.read(at(3_300));
    assert_eq!(last, program.1 + held_up + one);
    assert_eq!(d.done(erase), (erase.1 + held_up, true));
    assert_eq!(erase.1, at(0) + d.p.erase, "the erase itself takes its normal time");
    assert_eq!(d.done(program), (program.1 + held_up, true));
    assert!(program.1 + held_up >= erase.1 + held_up + d.p.program, "the program starts after the erase");
}

#[test]
fn a_read_goes_before_an_erase_that_waits() {
    let mut d = Die::new();
    let (program, erase) = (d.program(at(0)), d.erase(at(1)));
    let read = d.read(at(100));
    assert_eq!(read, program.1 + d.one_read(), "nothing is interrupted, and no time is lost");
    assert_eq!(d.done(program), (program.1, false));
    let begun = read + Span::from_micros(200);
    let interrupts = d.read(begun);
    assert_eq!(interrupts, begun + HOW.suspend + d.one_read());
    let held_up = d.one_read() + interrupts.since(begun) + HOW.resume;
    assert_eq!(d.done(erase), (erase.1 + held_up, true));
    // A suspended erase also delays the erase behind it.
    let later = d.erase(erase.1 + held_up);
    let second = d.erase(erase.1 + held_up);
    let now = later.1 - Span::from_micros(10);
    let read = d.read(now);
    let shift = read.since(now) + HOW.resume;
    assert_eq!((d.done(later).0, d.done(second).0), (later.1 + shift, second.1 + shift));
}

#[test]
fn more_slots_of_a_page_are_read_while_the_erase_is_suspended() {
    let mut d = Die::new();
    let erase = d.erase(at(0));
    let read = d.read(at(500));
    let both = d.clock.read_on(at(500), 0, read).expect("the page is in the register");
    assert_eq!(both, read + d.clock.transfer(1));
    assert_eq!(d.done(erase).0, erase.1 + both.since(at(500)) + HOW.resume);
}

#[test]
fn a_read_interrupts_a_program_of_the_collector_and_none_of_the_host() {
    let mut d = Die::new();
    let host = d.page(at(0), false);
    assert_eq!(d.read(at(100)), host.1 + d.one_read(), "it waits");
    let mut d = Die::new();
    let (moved, behind) = (d.page(at(0), true), d.page(at(1), false));
    let first = d.read(at(300));
    assert_eq!(first, at(300) + SOONER.suspend + d.one_read());
    let held_up = first.since(at(300)) + SOONER.resume;
    let second = d.read(at(600));
    assert_eq!(second, at(600) + SOONER.suspend + d.one_read());
    let held_up = held_up + second.since(at(600)) + SOONER.resume;
    assert_eq!(d.read(at(650)), behind.1 + held_up + d.one_read(), "a program lets two reads pass");
    assert_eq!(d.done(moved), (moved.1 + held_up, true));
    assert_eq!(d.done(behind), (behind.1 + held_up, true));
}

#[test]
fn a_read_suspends_a_host_program_if_configured() {
    let p = Profile::builtin("p-ssd").expect("built in");
    let mut clock = Clock::new(&p, Timing::Real);
    clock.suspend(&p, Suspends { host_programs: Some(SOONER), ..Suspends::default() });
    let mut d = Die { clock, p, tag: 0 };
    let host = d.page(at(0), false);
    let read = d.read(at(300));
    assert_eq!(read, at(300) + SOONER.suspend + d.one_read());
    assert_eq!(d.done(host), (host.1 + read.since(at(300)) + SOONER.resume, true));
    let moved = d.page(at(5_000), true);
    assert_eq!(d.read(at(5_100)), moved.1 + d.one_read(), "the collector's programs are not suspended");
}

#[test]
fn either_may_be_suspended_without_the_other() {
    let p = Profile::builtin("p-ssd").expect("built in");
    for (erases, programs) in [(true, false), (false, true)] {
        let mut clock = Clock::new(&p, Timing::Real);
        let (how, sooner) = (erases.then_some(HOW), programs.then_some(SOONER));
        clock.suspend(&p, Suspends { erases: how, programs: sooner, host_programs: None });
        let mut d = Die { clock, p: p.clone(), tag: 0 };
        let erase = d.erase(at(0));
        assert_eq!(d.read(at(10)) < erase.1, erases);
        let now = erase.1 + d.p.erase;
        let program = d.page(now, true);
        assert_eq!(d.read(now + Span::from_micros(100)) < program.1, programs);
    }
}

#[test]
fn without_it_reads_wait() {
    let p = Profile::builtin("p-ssd").expect("built in");
    let mut clock = Clock::new(&p, Timing::Real);
    let end = clock.erase(at(0), 0, Charge::Device);
    assert_eq!(clock.host_read(at(1_000), 0, 1), end + p.read + clock.transfer(1));
}
