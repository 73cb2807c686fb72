//! Logs that keyspaces get and give back while a server runs; the test is the metadata service.

use rackweave_core::admin::Isolation;
use rackweave_core::keyspace::KeyspaceId;
use rackweave_core::msg::control::{DriveRefusal, LogPlace, Standing};
use rackweave_core::msg::{Body, Class, Control, Header, LiveVolumes, Op, Packet};
use rackweave_core::{Epoch, Incarnation, Layout, NodeId, Payload, SetId, Span, SsdId, Time, VssdId};
use rackweave_flash::manager::Done;
use rackweave_flash::manager::api::Block;
use rackweave_flash::{Profile, Share, Ssd, SsdConfig};
use rackweave_server::block::BlockService;
use rackweave_server::service::{Admitted, Collect, Context, FlashEvent, MakeService, Programs, Room, ServiceLoad};
use rackweave_server::{DriveProblem, OverBound, Server, ServerConfig, Service, VssdConfig, VssdStatus};
use rackweave_sim::{AnyNode, CutOdds, Disk, Engine, FaultDisk, Inbox, NetState, Network};
use rackweave_switch::{Switch, SwitchConfig};

pub const AREA: VssdId = VssdId(14);
const SSD: SsdId = SsdId(0);
const HOP: Span = Span::from_micros(10);
const PAGE: u32 = 16_384;

/// Writes its name into a block of its log, unless there is one already, and reads it from then on without a pause: the log is in
/// use as long as the service is there.
#[derive(Debug)]
pub struct Reader {
    id: VssdId,
    place: LogPlace,
    block: Option<Block>,
    /// What the log had when the service came: bytes of the first block.
    found: Option<Vec<u8>>,
    begun: bool,
    pub reads: u64,
}

impl Reader {
    fn begin(&mut self, cx: &mut Context<'_>) {
        let token = u64::from(cx.ssd.log_user(self.id)) << 48;
        let now = cx.now;
        let found = cx.ssd.with_log(now, self.id, cx.out, |m, v, out| {
            let first = m.next_block(v, 0).expect("made");
            if let Some(b) = first {
                m.read(now, (v, b), (0, u64::from(PAGE)), token, out).expect("written");
            } else {
                m.alloc_block(now, v, token, out).expect("it is empty");
            }
            first
        });
        self.begun = found.is_some();
        self.block = found.flatten();
    }
}

impl Service for Reader {
    fn handle_flash(&mut self, cx: &mut Context<'_>, event: FlashEvent) {
        let FlashEvent::Log(done) = event else { panic!("{event:?}") };
        let (now, token) = (cx.now, u64::from(cx.ssd.log_user(self.id)) << 48);
        let data = Payload::Bytes(vec![self.id.0 as u8; PAGE as usize].into());
        match done {
            Done::BlockAllocated { result, .. } => self.block = Some(result.expect("sound")),
            Done::Read { result, .. } => {
                let bytes = result.expect("whole").to_bytes().to_vec();
                self.found.get_or_insert(bytes);
                self.reads += 1;
            }
            Done::Written { result, .. } => result.expect("sound"),
            other => panic!("{other:?}"),
        }
        let block = self.block.expect("it has one");
        cx.ssd.with_log(now, self.id, cx.out, |m, v, out| {
            let written = m.block(block).expect("its own").written > 0;
            if written {
                m.read(now, (v, block), (0, u64::from(PAGE)), token, out).expect("written");
            } else {
                m.write(now, (v, block), None, &data, token, out).expect("fits");
            }
        });
    }
    fn standing(&self) -> Standing {
        Standing { epoch: Epoch(0), complete: self.reads > 0, failed: false }
    }
    fn poll_answers(&mut self, cx: &mut Context<'_>) -> Time {
        if !self.begun {
            self.begin(cx);
        }
        Time::MAX
    }
    fn status(&self, _: Time, _: &Ssd, status: &mut VssdStatus) {
        status.serving = self.reads > 0;
    }
    fn load(&self) -> ServiceLoad {
        ServiceLoad::default()
    }
    fn free_ratio(&self, _: &Ssd) -> f64 {
        1.0
    }
    fn collect(&mut self, _: &mut Context<'_>, _: Collect) {}
    fn collecting(&self, _: &Ssd) -> bool {
        false
    }
    fn erasing(&self, _: &Ssd) -> bool {
        false
    }
    fn room(&self, _: &Ssd) -> Room {
        Room::default()
    }
    fn check(&self, _: &Ssd) -> Result<(), OverBound> {
        Ok(())
    }
    fn handle_packet(&mut self, _: &mut Context<'_>, _: Packet) -> Admitted {
        Admitted::Taken
    }
    fn handle_timer(&mut self, _: &mut Context<'_>) {}
    fn fail(&mut self) {}
    fn vacate(&mut self, _: &ServerConfig, _: &VssdConfig) {}
    fn poll_programs(&mut self, _: &mut Context<'_>) -> Programs {
        Programs::default()
    }
}

/// A server with one vSSD of blocks, and two channels for logs.
struct World {
    engine: Engine<AnyNode>,
    node: NodeId,
    starts: u64,
    plan: u64,
}

pub fn make(server: &ServerConfig, vssd: &VssdConfig, slot: usize) -> Box<dyn Service> {
    match vssd.keyspace {
        None => BlockService::make(server, vssd, slot),
        Some(place) => {
            let (id, block, found) = (vssd.id, None, None);
            Box::new(Reader { id, place, block, found, begun: false, reads: 0 })
        }
    }
}

/// A keyspace's log, named by its serial number.
pub fn log(serial: u32, isolation: Isolation, units: u16) -> LogPlace {
    let (keyspace, vssd) = (KeyspaceId::new(serial, serial % 7), VssdId(0x1_0000 + serial));
    LogPlace { keyspace, vssd, isolation, units, min_copies: 2, made: false }
}
pub fn made(log: LogPlace) -> LogPlace {
    LogPlace { made: true, ..log }
}

impl World {
    fn new() -> World {
        let layout = Layout::new(1, 0);
        let network = Network { hop: HOP, bytes_per_s: 0, ..Network::constant(HOP) };
        let node = layout.server(0).expect("a server");
        let mut w = World { engine: Engine::new(NetState::new(network, layout, 0), 0), node, starts: 0, plan: 0 };
        w.engine.put_disk(SSD, Disk::Fault(Box::new(FaultDisk::new())));
        w.engine.boot(Layout::META, Inbox::default());
        w.engine.boot(Layout::SWITCH, Switch::new(SwitchConfig::new(Layout::SWITCH)));
        w.start();
        w
    }
    /// Starts the server, and admits it.
    fn start(&mut self) {
        self.starts += 1;
        let mut profile = Profile::builtin("p-ssd").expect("built in").scaled_to(96 << 20).expect("possible");
        profile.geometry.channels = 4;
        let vssds =
            vec![VssdConfig { id: VssdId(1), set: SetId(0), share: Share::Channels(1), peers: vec![], keyspace: None }];
        let mut cfg = ServerConfig::new(self.node, Layout::new(1, 0), SsdConfig::new(SSD, profile), vssds);
        (cfg.log_area, cfg.services, cfg.nonce) = (Some((AREA, 2)), MakeService::new(make), self.starts);
        self.engine.boot(self.node, Server::new(cfg).expect("good configuration"));
        let nonce = self.starts;
        self.until(|w| w.sent(|c| matches!(c, Control::ServerHello(h) if h.nonce == nonce)));
        let incarnation = Incarnation(self.starts);
        self.send(Control::ServerWelcome { nonce, incarnation, volumes: LiveVolumes::default() });
        self.until(|w| w.server().admitted() == Some(true));
    }
    fn restart(&mut self) {
        self.engine.crash(self.node, &[SSD]);
        self.start();
    }
    fn server(&self) -> &Server {
        self.engine.get(self.node).expect("it runs")
    }
    /// The service on this log, if it is served.
    fn reader(&self, log: LogPlace) -> Option<&Reader> {
        self.server().service(log.vssd)
    }
    /// The metadata service received such a message.
    fn sent(&self, is: impl Fn(&Control) -> bool) -> bool {
        let inbox: &Inbox = self.engine.get(Layout::META).expect("it runs");
        inbox.packets.iter().any(|(_, p)| matches!(&p.body, Body::Control(c) if is(c)))
    }
    fn confirmed(&self) -> bool {
        self.sent(|c| matches!(c, Control::LogsDone { plan, done: true, .. } if *plan == self.plan))
    }
    fn send(&mut self, c: Control) {
        let (op, class, vssd, original_vssd) = (Op::Control, Class::Gold, VssdId(0), VssdId(0));
        let (set, epoch, incarnation) = (SetId(0), Epoch(0), Incarnation(0));
        let header = Header { op, vssd, lat: 0, class, original_vssd, set, epoch, incarnation, request: 1 };
        self.engine.post(Packet { src: Layout::META, dst: self.node, header, body: Body::Control(c) });
    }
    fn until(&mut self, holds: impl Fn(&World) -> bool) {
        let end = self.engine.now() + Span::from_secs(5);
        while !holds(self) {
            assert!(self.engine.now() < end, "{:#?}", self.server().status(end));
            assert!(self.engine.step(), "nothing will ever happen");
        }
    }
    fn run(&mut self, ms: u64) {
        let end = self.engine.now() + Span::from_millis(ms);
        self.engine.run_until(end);
    }
    /// Sends the plan.
    fn ask(&mut self, next_serial: u32, logs: &[LogPlace]) {
        self.plan += 1;
        let (plan, incarnation) = (self.plan, Incarnation(self.starts));
        self.send(Control::Logs { plan, incarnation, next_serial, logs: logs.to_vec() });
    }
    /// Sends it, waits until it is carried out, sends that it is known, and waits until every log is read.
    fn have(&mut self, next_serial: u32, logs: &[LogPlace]) {
        self.ask(next_serial, logs);
        self.until(World::confirmed);
        let logs: Vec<LogPlace> = logs.iter().map(|l| made(*l)).collect();
        self.ask(next_serial, &logs);
        self.until(World::confirmed);
        self.until(|w| logs.iter().all(|l| w.reader(*l).is_some_and(|r| r.reads > 2)));
        let serials: Vec<u32> = logs.iter().map(|l| l.keyspace.serial()).collect();
        assert_eq!(self.server().ssd().area_logs(), serials);
        let named = |v: &VssdStatus| v.vssd.0 > 0x1_0000;
        let mut served: Vec<VssdId> =
            self.server().status(self.engine.now()).vssds.into_iter().filter(named).map(|v| v.vssd).collect();
        served.sort_unstable();
        assert_eq!(served, logs.iter().map(|l| l.vssd).collect::<Vec<_>>());
    }
    /// What the log's service found in it.
    fn found(&self, log: LogPlace) -> u8 {
        self.reader(log).and_then(|r| r.found.as_ref()).expect("it was read")[0]
    }
}

#[test]
fn a_plan_makes_logs_which_a_restart_finds_and_a_later_plan_deletes() {
    let (one, two, three) = (log(1, Isolation::Channel, 1), log(2, Isolation::Die, 1), log(3, Isolation::Die, 2));
    let mut w = World::new();
    w.have(3, &[one, two]);
    let status = w.server().status(w.engine.now()).vssds;
    let isolation = |l: LogPlace| status.iter().find(|v| v.vssd == l.vssd).map(|v| (v.isolation, v.dies.len(), v.set));
    assert_eq!(
        [one, two].map(isolation),
        [
            Some((Some(rackweave_flash::isolation::Isolation::Channel), 4, one.keyspace.log_set())),
            Some((Some(rackweave_flash::isolation::Isolation::Die), 1, two.keyspace.log_set()))
        ]
    );
    assert_eq!(w.reader(two).map(|r| r.place), Some(made(two)));
    w.restart();
    w.have(3, &[made(one), made(two)]);
    assert_eq!((w.found(one), w.found(two)), (1, 2), "each has its own data");
    // The first one's slot is vacant, and the next log gets it.
    w.have(3, &[made(two)]);
    assert!(w.reader(one).is_none());
    w.have(4, &[made(two), three]);
    assert_eq!(w.found(three), 3);
    w.restart();
    w.have(4, &[made(two), made(three)]);
    assert_eq!((w.found(two), w.found(three)), (2, 3));
    w.have(4, &[]);
}

#[test]
fn a_log_waits_until_the_one_that_had_its_units_is_gone() {
    let (old, new) = (log(1, Isolation::Channel, 2), log(2, Isolation::Channel, 2));
    let mut w = World::new();
    w.have(2, &[old]);
    // It is in use until its service is gone.
    w.have(3, &[new]);
    assert_eq!(w.found(new), 2);
    // More than there is: not carried out before there is room.
    let more = log(3, Isolation::Die, 1);
    w.ask(4, &[made(new), more]);
    w.run(500);
    assert!(!w.confirmed() && w.reader(more).is_none() && w.reader(new).is_some());
    // Others do not wait for it.
    w.have(5, &[]);
    let (fits, third) = (log(4, Isolation::Channel, 1), log(5, Isolation::Channel, 2));
    w.ask(6, &[fits, third]);
    let reported = |w: &World| {
        w.sent(|c| matches!(c, Control::LogsDone { plan, made, done: false } if *plan == w.plan && made[..] == [4]))
    };
    w.until(reported);
    w.ask(6, &[made(fits), third]);
    w.until(|w| w.reader(fits).is_some_and(|r| r.reads > 2));
    assert!(!w.confirmed());
    w.have(6, &[more]);
}

#[test]
fn a_log_that_is_reported_as_made_survives_a_power_cut() {
    let one = log(1, Isolation::Die, 1);
    let mut w = World::new();
    w.ask(2, &[one]);
    w.until(|w| w.sent(|c| matches!(c, Control::LogsDone { made, .. } if made[..] == [1])));
    w.engine.crash(w.node, &[SSD]);
    w.engine.power_cut(SSD, CutOdds { drop: 1.0, tear: 0.0 });
    w.start();
    w.have(2, &[made(one)]);
}

#[test]
fn an_older_plan_or_one_for_another_run_is_not_followed() {
    let (one, two) = (log(1, Isolation::Channel, 1), log(2, Isolation::Channel, 1));
    let mut w = World::new();
    w.have(3, &[one]);
    w.have(3, &[made(one), two]);
    w.send(Control::Logs { plan: 1, incarnation: Incarnation(1), next_serial: 3, logs: vec![] });
    w.send(Control::Logs { plan: 9, incarnation: Incarnation(7), next_serial: 3, logs: vec![] });
    w.run(200);
    assert!(w.reader(one).is_some() && w.reader(two).is_some());
    // Sent again it is confirmed again.
    w.have(3, &[made(one), made(two)]);
}

#[test]
fn an_earlier_copy_of_the_store_or_the_drive_is_refused_and_nothing_is_erased() {
    let (one, two, lost) = (log(1, Isolation::Channel, 1), log(2, Isolation::Die, 1), made(log(3, Isolation::Die, 1)));
    let mut w = World::new();
    w.have(3, &[one, two]);
    for (next, plan, why) in [
        (2, vec![made(one)], DriveRefusal::UnknownLog { serial: 2, next: 2 }),
        (4, vec![made(one), lost], DriveRefusal::MissingLog { vssd: lost.vssd }),
        // Another keyspace with a number that was given out before.
        (4, vec![one, made(two)], DriveRefusal::OtherLog { serial: 1 }),
    ] {
        w.restart();
        w.ask(next, &plan);
        w.until(|w| w.server().drive_refused().is_some());
        assert_eq!(w.server().drive_refused(), Some(DriveProblem::Refused(why)));
        // What follows is not followed either.
        w.ask(9, &[]);
        w.run(500);
        assert!(!w.confirmed());
    }
    w.restart();
    w.have(4, &[made(one), made(two)]);
    assert_eq!((w.found(one), w.found(two)), (1, 2));
}
