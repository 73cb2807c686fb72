//! A second service besides the block replica: everything that a server needs from a service is in [`Service`].

use std::collections::VecDeque;

use rackweave_core::msg::control::Standing;
use rackweave_core::msg::{Block, Body, Header, IoReply, IoRequest, Op, Packet, Role, View, ViewState};
use rackweave_core::{BlockAddr, Effects, Epoch, Incarnation, SECTORS_PER_BLOCK, SetId, Span, Time, Timestamp};
use rackweave_flash::{BlockWrite, Ssd};
use rackweave_server::block::BlockService;
use rackweave_server::service::{
    Admitted, Collect, Context, FlashEvent, Freed, MakeService, Programs, Room, ServiceLoad, flash_token, token_number,
};
use rackweave_server::{OverBound, ServerConfig, Service, VssdConfig, VssdStatus};
use rackweave_switch::trace as switch_trace;

use super::rack::{LEASE, Options, Rack, contents};

/// The set whose vSSDs are registers.
const REGISTERS: u32 = 1;

/// Programs each write as a page of its own, answers once it is durable, and reads from flash. It does not replicate.
#[derive(Debug)]
pub struct Registers {
    cfg: VssdConfig,
    slot: usize,
    epoch: Epoch,
    serves: bool,
    lease: Time,
    versions: u64,
    /// Writes without a page, and those whose page is being programmed.
    waiting: VecDeque<Packet>,
    programming: Vec<(u64, Packet)>,
    syncing: Vec<Packet>,
    reading: Vec<(u64, Packet)>,
    next: u64,
    waits_for_block: bool,
    failed: bool,
}

impl Registers {
    pub fn new(vssd: &VssdConfig, slot: usize) -> Registers {
        Registers {
            cfg: vssd.clone(),
            slot,
            epoch: Epoch(0),
            serves: false,
            lease: Time::ZERO,
            versions: 0,
            waiting: VecDeque::new(),
            programming: Vec::new(),
            syncing: Vec::new(),
            reading: Vec::new(),
            next: 0,
            waits_for_block: false,
            failed: false,
        }
    }
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
    fn program(&mut self, cx: &mut Context<'_>, p: &Packet, n: u64) -> bool {
        let Body::Block(Block::Io(IoRequest::Write(w))) = &p.body else { return true };
        let addr = address(w.range.volume, w.range.first);
        self.versions += 1;
        // Above those of earlier runs.
        let version = Timestamp::new(Epoch(cx.incarnation.0 as u32), self.versions, 0);
        let write = BlockWrite { addr, version, data: w.data.clone() };
        cx.ssd.program(cx.now, self.cfg.id, &[write], flash_token(self.slot, n), cx.out).is_ok()
    }
}

fn address(volume: rackweave_core::VolumeId, sector: u64) -> BlockAddr {
    BlockAddr::new(volume, (sector / u64::from(SECTORS_PER_BLOCK)) as u32)
}
fn take(from: &mut Vec<(u64, Packet)>, token: u64) -> Packet {
    let i = from.iter().position(|(n, _)| *n == token_number(token)).expect("the token is this service's");
    from.remove(i).1
}
fn answer(fx: &mut Effects, p: &Packet, reply: IoReply) {
    let header = Header { op: Op::Reply, ..p.header };
    fx.send(Packet { src: p.dst, dst: p.src, header, body: Body::Block(Block::Reply(reply)) });
}

impl Service for Registers {
    fn load(&self) -> ServiceLoad {
        ServiceLoad {
            reads_begun: self.reading.len(),
            writes_waiting: self.waiting.len(),
            pages_begun: self.programming.len(),
            ..ServiceLoad::default()
        }
    }
    fn free_ratio(&self, ssd: &Ssd) -> f64 {
        ssd.space(self.cfg.id).free_ratio()
    }
    fn collect(&mut self, cx: &mut Context<'_>, order: Collect) {
        match order {
            Collect::Start => cx.ssd.gc_start(cx.now, self.cfg.id, cx.out),
            Collect::Rest | Collect::Stop => cx.ssd.gc_stop(self.cfg.id),
        }
    }
    fn collecting(&self, ssd: &Ssd) -> bool {
        ssd.gc_running(self.cfg.id)
    }
    fn erasing(&self, ssd: &Ssd) -> bool {
        ssd.gc_erases(self.cfg.id)
    }
    fn room(&self, ssd: &Ssd) -> Room {
        let (used, capacity) = ssd.room(self.cfg.id);
        Room { capacity, used }
    }
    fn standing(&self) -> Standing {
        Standing { epoch: self.epoch, complete: true, failed: self.failed }
    }
    fn status(&self, now: Time, _: &Ssd, status: &mut VssdStatus) {
        status.serving = self.serves && now < self.lease;
        status.replica.writes = self.versions;
    }
    fn check(&self, _: &Ssd) -> Result<(), OverBound> {
        Ok(())
    }
    fn handle_packet(&mut self, cx: &mut Context<'_>, p: Packet) -> Admitted {
        cx.changed = true;
        match &p.body {
            Body::Block(Block::Io(IoRequest::Write(_))) => self.waiting.push_back(p),
            Body::Block(Block::Io(IoRequest::Read { range, .. })) => {
                let n = self.number();
                let addr = address(range.volume, range.first);
                self.reading.push((n, p));
                cx.ssd.read(cx.now, self.cfg.id, addr, flash_token(self.slot, n), cx.out);
            }
            _ => {}
        }
        Admitted::Taken
    }
    fn handle_flash(&mut self, cx: &mut Context<'_>, event: FlashEvent) {
        cx.changed = true;
        match event {
            FlashEvent::Read { token, result, .. } => {
                let p = take(&mut self.reading, token);
                answer(cx.fx, &p, IoReply::Data(result.expect("nothing damages it")));
            }
            FlashEvent::Programmed { token, ok } => {
                assert!(ok);
                self.syncing.push(take(&mut self.programming, token));
                cx.ssd.sync(cx.now, self.cfg.id, token, cx.out);
            }
            FlashEvent::Synced { ok, .. } => {
                assert!(ok);
                answer(cx.fx, &self.syncing.remove(0), IoReply::Done);
            }
            FlashEvent::Log(done) => panic!("it is no log vSSD: {done:?}"),
        }
    }
    fn handle_freed(&mut self, _: Freed) {
        self.waits_for_block = false;
    }
    fn handle_timer(&mut self, _: &mut Context<'_>) {}
    fn install_view(&mut self, _: &mut Context<'_>, view: &View, me: Incarnation) {
        self.epoch = view.epoch;
        let mut own = view.members.iter().filter(|m| m.vssd == self.cfg.id && m.incarnation == me);
        self.serves = own.any(|m| m.role == Role::Member) && view.state == ViewState::Normal;
    }
    fn set_lease(&mut self, until: Time) {
        self.lease = until;
    }
    fn fail(&mut self) {
        self.failed = true;
    }
    fn vacate(&mut self, _: &ServerConfig, free: &VssdConfig) {
        self.cfg = free.clone();
    }
    fn poll_programs(&mut self, cx: &mut Context<'_>) -> Programs {
        let mut allocated = false;
        while !self.waits_for_block
            && let Some(p) = self.waiting.pop_front()
        {
            let n = self.number();
            if self.program(cx, &p, n) {
                self.programming.push((n, p));
                allocated = true;
            } else {
                self.waiting.push_front(p);
                self.waits_for_block = true;
            }
        }
        Programs { allocated, waits_for_block: self.waits_for_block, no_victim: false }
    }
    fn poll_answers(&mut self, _: &mut Context<'_>) -> Time {
        Time::MAX
    }
}

fn make(server: &ServerConfig, vssd: &VssdConfig, slot: usize) -> Box<dyn Service> {
    if vssd.set == SetId(REGISTERS) {
        Box::new(Registers::new(vssd, slot))
    } else {
        Box::new(BlockService::new(server, vssd, slot))
    }
}

#[test]
fn a_second_service_shares_a_drive_with_the_block_replica() {
    let services = MakeService::new(make);
    let mut r = Rack::serving(Options { services, ..Options::default() });
    assert_eq!(r.write(0, 7, contents(1)), Some(IoReply::Done));
    assert_eq!(r.write(REGISTERS, 7, contents(2)), Some(IoReply::Done));
    assert_eq!(r.flush(0), Some(IoReply::Done));
    r.run(LEASE * 2);
    assert!(r.all_members(), "heartbeats report both");
    assert_eq!((r.read(0, 7), r.read(REGISTERS, 7)), (contents(1), contents(2)));
    let (vssd, node) = r.members(REGISTERS)[0];
    let server = r.server(node.0 as usize - 2);
    assert!(server.service::<Registers>(vssd).is_some() && server.service::<BlockService>(vssd).is_none());

    // Its pages are collected like any others: with the switch's consent, while the block replicas continue.
    let status = |r: &Rack| {
        let report = r.server(node.0 as usize - 2).status(r.now());
        report.vssds.into_iter().find(|v| v.vssd == vssd).expect("it is there")
    };
    let pages = status(&r).exported_bytes() / 4096;
    for i in 0.. {
        assert!(i < 8 * pages, "never collected: {:?}", status(&r));
        assert_eq!(r.write(REGISTERS, (i % 64) as u32, contents(i)), Some(IoReply::Done), "write {i}");
        if status(&r).gc_episodes > 0 && status(&r).flash.erases > 0 {
            break;
        }
    }
    assert!(r.count(switch_trace::GC_ACCEPTED) + r.count(switch_trace::GC_BACKGROUND) > 0, "the switch knows of it");
    assert_eq!((r.read(0, 7), r.servers().all(|s| s.check().is_ok())), (contents(1), true));
    r.run(Span::from_millis(10));
    r.assert_nand();
}
