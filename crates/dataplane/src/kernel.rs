//! The switch as BPF programs on its ports: tc-BPF, or XDP.

use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Array, HashMap, MapData, MapError, PerCpuArray, Stack};
use aya::programs::xdp::XdpMode;
use aya::programs::{
    Program, ProgramError, SchedClassifier, TcAttachType, TestRun, TestRunOptions, TestRunResult, Xdp,
};
use aya::{Ebpf, EbpfLoader};
use rackweave_core::msg::TableError;
use rackweave_core::{Incarnation, NodeId, Span, Time, VssdId};
use rackweave_switch::control::{Change, DataPlane, Position, RingChange, RowResult, check_row};
use rackweave_switch::pipeline::Counters;
use rackweave_switch::tables::{DestinationRow, Dump, PeerState, ReplicaRow};
use rackweave_switch::{BITS_EXPIRE, ROWS_MAX, Redirect, RowState};

use crate::layout::{
    COUNTERS, ChangeResult, Control, DESTINATION_GC, Destination, HEARD, KeyOf, PortKey, PortValue, READABLE,
    REPLICA_GC, RingValue, Row, change_bytes, counters, state_bytes,
};
use rackweave_switch::rings::{Prefix, Reach, Ring, RingError};

#[cfg(bpf_objects)]
const OBJECTS: Option<[&[u8]; 2]> = Some([
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/switch_tc.o")),
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/switch_xdp.o")),
]);
#[cfg(not(bpf_objects))]
const OBJECTS: Option<[&[u8]; 2]> = None;

/// Where on a port the program runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hook {
    /// On packet buffers, after segments were put together: right with every offload, copies for rings, queues.
    #[default]
    Tc,
    /// Before there is a packet buffer. UDP checksums become zero; no rings. The far end of a veth pair gets packets only
    /// with GRO on or an XDP program of its own.
    Xdp,
}

/// Most ports of equal cost towards a node.
pub const WAYS_MAX: usize = 8;

/// A soft request after a start waits at the longest this many expiry times, as in the pipeline.
const START_GUARD_EXPIRIES: u64 = 2;

/// Two racks with a switch each, of which this is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TwoRacks {
    /// The rack of this switch.
    pub rack: u32,
    /// A read may go to the other rack if no replica in this one is idle.
    pub far_reads: bool,
}

/// Configuration of a [`KernelSwitch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelConfig {
    pub node: NodeId,
    pub hook: Hook,
    /// Where reads go.
    pub redirect: Redirect,
    /// Most vSSDs the tables hold, 1 to [`ROWS_MAX`].
    pub rows_max: u32,
    /// A vSSD whose server is silent for this long is of unknown state.
    pub bits_expire: Span,
    /// A `gc_op` or `load` without a right tag is dropped.
    pub require_mac: bool,
    /// The tables' time is set by [`KernelSwitch::set_clock`] instead of being the kernel's monotonic clock.
    pub manual_clock: bool,
    /// With two racks `gc_op`s go up to the control plane ([`crate::SlowPath`]).
    pub two_racks: Option<TwoRacks>,
}

impl KernelConfig {
    pub fn new(node: NodeId) -> KernelConfig {
        KernelConfig {
            node,
            hook: Hook::Tc,
            redirect: Redirect::Gc,
            rows_max: ROWS_MAX,
            bits_expire: BITS_EXPIRE,
            require_mac: false,
            manual_clock: false,
            two_racks: None,
        }
    }
}

/// Where a host is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// Of the switch's end of the link.
    pub ifindex: u32,
    /// Of the host's end.
    pub mac: [u8; 6],
    pub place: PortPlace,
}

/// How a packet leaves by a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortPlace {
    /// Straight into the host's end of a veth pair: nothing waits.
    Peer,
    /// Through the port's queue; [`KernelSwitch::attach_behind_queue`] at the other end completes the latency stamp.
    Queue,
    /// Through the port's queue to another machine: time in the queue is not in the stamp.
    Wire,
}

/// Reason why the data plane did not start.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("built without clang: there are no BPF programs")]
    NotBuilt,
    #[error("rows_max is {rows_max}; 1 to {ROWS_MAX} fit")]
    RowsMax { rows_max: u32 },
    #[error("the kernel rejects the programs: {0}")]
    Load(#[from] aya::EbpfError),
    #[error(transparent)]
    Fault(#[from] KernelFault),
}

/// A system call on the loaded data plane failed.
#[derive(Debug, thiserror::Error)]
pub enum KernelFault {
    #[error("namespace: {0}")]
    Namespace(#[from] std::io::Error),
    #[error("XDP has no rings: it cannot copy a packet for each member")]
    NoRings,
    #[error("{node} is behind {ways} ports: 1 to {WAYS_MAX}")]
    Ways { node: NodeId, ways: usize },
    #[error("a queue behind an XDP port: the packet leaves past all queues")]
    NoQueue,
    #[error(transparent)]
    Ring(#[from] RingError),
    #[error("map: {0}")]
    Map(#[from] MapError),
    #[error("program: {0}")]
    Program(#[from] ProgramError),
    #[error("the object has no {what} {name:?}")]
    Missing { what: &'static str, name: &'static str },
    #[error("the row program answered {code}")]
    BadChange { code: u32 },
    #[error("{vssd} has no row in the kernel's table")]
    NoRow { vssd: VssdId },
    #[error("{vssd}: the kernel's table does not take the control plane's row ({result:?})")]
    NotFollowed { vssd: VssdId, result: RowResult },
}

/// Tables and programs in the kernel. All of it, attached programs too, goes when this is dropped.
#[derive(Debug)]
pub struct KernelSwitch {
    cfg: KernelConfig,
    bpf: Ebpf,
    position: Position,
    refused: u64,
}

impl KernelSwitch {
    pub fn hook(&self) -> Hook {
        self.cfg.hook
    }
    /// Reason why no data plane can run here, if there is one: tests are then skipped.
    pub fn unavailable() -> Option<String> {
        // SAFETY: getuid has no preconditions.
        if unsafe { libc::getuid() } != 0 {
            return Some("needs root".into());
        }
        match KernelSwitch::load(KernelConfig { rows_max: 16, ..KernelConfig::new(NodeId(1)) }) {
            Ok(_) => None,
            Err(LoadError::NotBuilt) => Some(LoadError::NotBuilt.to_string()),
            // A verifier's refusal is a failure, not a reason to skip.
            Err(LoadError::Fault(KernelFault::Program(ProgramError::LoadError { .. }))) => None,
            Err(e) => Some(format!("no BPF: {e}")),
        }
    }

    /// Loads programs and empty tables.
    pub fn load(cfg: KernelConfig) -> Result<KernelSwitch, LoadError> {
        let [tc, xdp] = OBJECTS.ok_or(LoadError::NotBuilt)?;
        if cfg.rows_max == 0 || cfg.rows_max > ROWS_MAX {
            return Err(LoadError::RowsMax { rows_max: cfg.rows_max });
        }
        let (ip, expire) = (cfg.node.ipv4(), cfg.bits_expire.0);
        let TwoRacks { rack, far_reads } = cfg.two_racks.unwrap_or(TwoRacks { rack: 0, far_reads: false });
        let [mac, manual, two, far] =
            [cfg.require_mac, cfg.manual_clock, cfg.two_racks.is_some(), far_reads].map(u8::from);

        let home_mask: u32 = (1 << cfg.rows_max.ilog2()) - 1;
        let mut loader = EbpfLoader::new();
        loader
            .override_global("switch_ip", &ip, true)
            .override_global("bits_expire_ns", &expire, true)
            .override_global("home_mask", &home_mask, true)
            .override_global("require_mac", &mac, true)
            .override_global("manual_clock", &manual, true)
            .override_global("two_racks", &two, true)
            .override_global("own_rack", &rack, true)
            .override_global("far_reads", &far, true);
        for map in ["slot_of", "destinations", "rows", "free_slots"] {
            loader.map_max_entries(map, cfg.rows_max);
        }
        let bpf = loader.load(if cfg.hook == Hook::Tc { tc } else { xdp })?;
        let mut switch = KernelSwitch { cfg, bpf, position: Position::default(), refused: 0 };
        switch.load_programs()?;
        switch.set_redirect(cfg.redirect)?;
        switch.begin()?;
        Ok(switch)
    }

    fn load_programs(&mut self) -> Result<(), KernelFault> {
        match self.cfg.hook {
            Hook::Tc => {
                self.program::<SchedClassifier>("ingress")?.load()?;
                self.program::<SchedClassifier>("behind_queue")?.load()?;
            }
            Hook::Xdp => self.program::<Xdp>("ingress")?.load()?,
        }
        Ok(self.program::<SchedClassifier>("change_row")?.load()?)
    }

    fn begin(&mut self) -> Result<(), KernelFault> {
        let rows = self.cfg.rows_max;
        let mut free: Stack<_, u32> = Stack::try_from(self.map_mut("free_slots")?)?;
        for slot in (0..rows).rev() {
            free.push(slot, 0)?;
        }
        let start = self.now();
        let control =
            Control { start_until: (start + self.cfg.bits_expire * START_GUARD_EXPIRIES).0, ..Control::default() };
        self.set_control(control)
    }

    fn map(&self, name: &'static str) -> Result<&aya::maps::Map, KernelFault> {
        self.bpf.map(name).ok_or(KernelFault::Missing { what: "map", name })
    }
    fn map_mut(&mut self, name: &'static str) -> Result<&mut aya::maps::Map, KernelFault> {
        self.bpf.map_mut(name).ok_or(KernelFault::Missing { what: "map", name })
    }
    fn program<'a, P>(&'a mut self, name: &'static str) -> Result<&'a mut P, KernelFault>
    where
        &'a mut P: TryFrom<&'a mut Program, Error = ProgramError>,
    {
        let program = self.bpf.program_mut(name).ok_or(KernelFault::Missing { what: "program", name })?;
        Ok(program.try_into()?)
    }
    fn array<V: aya::Pod>(&self, name: &'static str) -> Result<Array<&MapData, V>, KernelFault> {
        Ok(Array::try_from(self.map(name)?)?)
    }
    fn control(&self) -> Result<Control, KernelFault> {
        Ok(self.array("control")?.get(&0, 0)?)
    }
    fn set_control(&mut self, control: Control) -> Result<(), KernelFault> {
        let mut map: Array<_, Control> = Array::try_from(self.map_mut("control")?)?;
        Ok(map.set(0, control, 0)?)
    }

    /// The tables' time.
    pub fn now(&self) -> Time {
        if self.cfg.manual_clock {
            return Time(self.control().map_or(0, |c| c.now));
        }
        let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `t` is a valid timespec to write to.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) };
        Time(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
    }
    /// Sets the tables' time of a data plane with `manual_clock`.
    pub fn set_clock(&mut self, now: Time) -> Result<(), KernelFault> {
        let control = self.control()?;
        self.set_control(Control { now: now.0, ..control })
    }

    /// Sets the destination of later reads.
    pub fn set_redirect(&mut self, redirect: Redirect) -> Result<(), KernelFault> {
        let value: u8 = match redirect {
            Redirect::Off => 0,
            Redirect::Gc => 1,
            Redirect::Load => 2,
        };
        // The only variable of the programs that is not constant.
        let mut map: Array<_, u8> = Array::try_from(self.map_mut(".data")?)?;
        map.set(0, value, 0)?;
        self.cfg.redirect = redirect;
        Ok(())
    }
    pub fn redirect(&self) -> Redirect {
        self.cfg.redirect
    }

    /// Sets the port behind which a node is.
    pub fn set_port(&mut self, node: NodeId, port: Port) -> Result<(), KernelFault> {
        self.set_ports(node, &[port])
    }
    /// Sets the ports behind which a node is: several of equal cost share its flows by a hash of addresses and UDP ports.
    pub fn set_ports(&mut self, node: NodeId, all: &[Port]) -> Result<(), KernelFault> {
        if all.is_empty() || all.len() > WAYS_MAX {
            return Err(KernelFault::Ways { node, ways: all.len() });
        }
        if self.cfg.hook == Hook::Xdp && all.iter().any(|p| p.place == PortPlace::Queue) {
            return Err(KernelFault::NoQueue);
        }
        let mut map: HashMap<_, PortKey, PortValue> = HashMap::try_from(self.map_mut("ports")?)?;
        // The first, which says how many there are, last.
        for (way, port) in all.iter().enumerate().rev() {
            let place = match port.place {
                PortPlace::Peer => 0,
                PortPlace::Queue => 1,
                PortPlace::Wire => 2,
            };
            let value = PortValue { ifindex: port.ifindex, mac: port.mac, place, ways: all.len() as u8 };
            map.insert(PortKey { ip: node.ipv4(), way: way as u32 }, value, 0)?;
        }
        Ok(())
    }
    /// The key of the `gc_op`s and `load`s of a server's incarnation.
    pub fn set_key(
        &mut self,
        key_id: u8,
        node: NodeId,
        incarnation: Incarnation,
        key: [u64; 2],
    ) -> Result<(), KernelFault> {
        let mut map: HashMap<_, KeyOf, [u64; 2]> = HashMap::try_from(self.map_mut("keys")?)?;
        map.insert(KeyOf { incarnation: incarnation.0, node: node.0, key_id: u32::from(key_id) }, key, 0)?;
        Ok(())
    }
    pub fn remove_key(&mut self, key_id: u8, node: NodeId, incarnation: Incarnation) -> Result<(), KernelFault> {
        let mut map: HashMap<_, KeyOf, [u64; 2]> = HashMap::try_from(self.map_mut("keys")?)?;
        map.remove(&KeyOf { incarnation: incarnation.0, node: node.0, key_id: u32::from(key_id) })?;
        Ok(())
    }

    /// Sets the group of a ring's prefix; an existing ring is replaced.
    pub fn set_ring(&mut self, ring: &Ring) -> Result<(), KernelFault> {
        ring.check()?;
        if self.cfg.hook == Hook::Xdp {
            return Err(KernelFault::NoRings);
        }
        let mut value = RingValue { multicast: u8::from(ring.reach == Reach::All), ..RingValue::default() };
        value.count = ring.members.len() as u8;
        for (to, member) in value.members.iter_mut().zip(&ring.members) {
            *to = member.ipv4();
        }
        let mut map: LpmTrie<_, u32, RingValue> = LpmTrie::try_from(self.map_mut("rings")?)?;
        Ok(map.insert(&ring_key(ring.prefix), value, 0)?)
    }
    /// All rings, by prefix.
    pub fn rings(&self) -> Result<Vec<Ring>, KernelFault> {
        if self.cfg.hook == Hook::Xdp {
            return Ok(Vec::new());
        }
        let map: LpmTrie<_, u32, RingValue> = LpmTrie::try_from(self.map("rings")?)?;
        let mut all = Vec::new();
        for entry in map.iter() {
            let (key, value) = entry?;
            let prefix = Prefix { address: u32::from_be(key.data()).into(), bits: key.prefix_len() as u8 };
            let reach = if value.multicast == 0 { Reach::Share } else { Reach::All };
            let members = value.members.iter().take(usize::from(value.count)).map(|&ip| node(ip)).collect();
            all.push(Ring { prefix, reach, members });
        }
        all.sort_by_key(|r| r.prefix);
        Ok(all)
    }
    pub fn remove_ring(&mut self, prefix: Prefix) -> Result<(), KernelFault> {
        let mut map: LpmTrie<_, u32, RingValue> = LpmTrie::try_from(self.map_mut("rings")?)?;
        Ok(map.remove(&ring_key(prefix))?)
    }

    /// Attaches the program to the ingress of an interface of the calling thread's network namespace.
    pub fn attach(&mut self, interface: &str) -> Result<(), KernelFault> {
        match self.cfg.hook {
            Hook::Tc => {
                self.program::<SchedClassifier>("ingress")?.attach(interface, TcAttachType::Ingress)?;
            }
            Hook::Xdp => {
                self.program::<Xdp>("ingress")?.attach(interface, XdpMode::Default)?;
            }
        }
        Ok(())
    }
    /// Number of programs at the interface's ingress traffic control hook.
    pub fn attached(interface: &str) -> Result<usize, KernelFault> {
        Ok(SchedClassifier::query_tcx(interface, TcAttachType::Ingress)?.1.len())
    }
    /// Attaches the program that completes the latency stamp, at the far end of a port with [`PortPlace::Queue`].
    pub fn attach_behind_queue(&mut self, interface: &str) -> Result<(), KernelFault> {
        self.program::<SchedClassifier>("behind_queue")?.attach(interface, TcAttachType::Ingress)?;
        Ok(())
    }

    /// Runs the program on a frame, `repeat` times, without a network: what it returned, the frame afterwards, and the mean
    /// time of a run.
    pub fn test_run(&mut self, frame: &[u8], repeat: u32) -> Result<(u32, Vec<u8>, std::time::Duration), KernelFault> {
        self.run("ingress", frame, repeat)
    }
    /// As [`KernelSwitch::test_run`], of the program behind a queue.
    pub fn test_run_behind_queue(&mut self, frame: &[u8]) -> Result<(u32, Vec<u8>, std::time::Duration), KernelFault> {
        self.run("behind_queue", frame, 1)
    }
    fn run(
        &mut self,
        name: &'static str,
        frame: &[u8],
        repeat: u32,
    ) -> Result<(u32, Vec<u8>, std::time::Duration), KernelFault> {
        let mut out = vec![0; frame.len() + 64];
        let mut options = TestRunOptions::new();
        options.data_in = Some(frame);
        options.data_out = Some(&mut out);
        options.repeat = repeat;
        let result = match self.cfg.hook {
            Hook::Xdp if name == "ingress" => self.program::<Xdp>(name)?.test_run(options)?,
            _ => self.program::<SchedClassifier>(name)?.test_run(options)?,
        };
        let TestRunResult { return_value, duration, data_size_out, .. } = result;
        out.truncate(data_size_out as usize);
        Ok((return_value, out, duration))
    }

    /// Sets a vSSD's state as the control plane decided it. `expires_in` is the time for which the report of its server still counts.
    ///
    /// # Errors
    /// The vSSD has no row, or a newer incarnation's.
    pub fn set_state(&mut self, vssd: VssdId, state: &RowState, expires_in: Span) -> Result<(), KernelFault> {
        let until = if state.heard_until.is_some() { self.now() + expires_in } else { Time::ZERO };
        let (code, ..) = self.run("change_row", &state_bytes(vssd, state, until), 1)?;
        match ChangeResult::from_code(code) {
            ChangeResult::Done => Ok(()),
            ChangeResult::NotThere => Err(KernelFault::NoRow { vssd }),
            _ => Err(KernelFault::BadChange { code }),
        }
    }

    /// Number of rows in the tables.
    pub fn rows(&self) -> Result<u32, KernelFault> {
        Ok(self.control()?.rows)
    }
    fn counted(&self) -> Result<[u64; COUNTERS], KernelFault> {
        let map: PerCpuArray<_, u64> = PerCpuArray::try_from(self.map("counters")?)?;
        let mut n = [0; COUNTERS];
        for (i, n) in n.iter_mut().enumerate() {
            *n = map.get(&(i as u32), 0)?.iter().sum();
        }
        Ok(n)
    }
}

fn ring_key(prefix: Prefix) -> Key<u32> {
    Key::new(u32::from(prefix.bits), u32::from(prefix.address).to_be())
}

fn node(ip: u32) -> NodeId {
    NodeId::from_ipv4(ip).expect("only addresses of nodes are written")
}

impl DataPlane for KernelSwitch {
    type Fault = KernelFault;

    fn position(&self) -> Position {
        self.position
    }
    fn set_position(&mut self, position: Position) {
        self.position = position;
    }
    fn rows_max(&self) -> u32 {
        self.cfg.rows_max
    }

    /// By a program under the tables' lock: `gc_op`s go on meanwhile.
    fn change(&mut self, _: Time, change: &Change) -> Result<RowResult, KernelFault> {
        if let Change::Create(a) = change
            && let Err(e) = check_row(a.vssd, &a.row)
        {
            self.refused += 1;
            return Ok(RowResult::Refused(e));
        }
        if matches!(change, Change::Delete { vssd: VssdId(0), .. }) {
            return Ok(RowResult::Done);
        }
        let options = change_bytes(change);
        let (code, ..) = self.run("change_row", &options, 1)?;
        Ok(match ChangeResult::from_code(code) {
            ChangeResult::Done | ChangeResult::NotThere => RowResult::Done,
            ChangeResult::Stale => RowResult::Stale,
            ChangeResult::Full => RowResult::Refused(TableError::Full { rows: self.control()?.rows }),
            ChangeResult::Bad(code) => return Err(KernelFault::BadChange { code }),
        })
    }

    fn change_ring(&mut self, change: &RingChange) -> Result<Result<(), RingError>, KernelFault> {
        match change {
            RingChange::Set(ring) => match self.set_ring(ring) {
                Err(KernelFault::Ring(error)) => Ok(Err(error)),
                result => result.map(Ok),
            },
            RingChange::Remove(prefix) if self.rings()?.iter().any(|r| r.prefix == *prefix) => {
                self.remove_ring(*prefix).map(Ok)
            }
            RingChange::Remove(_) => Ok(Ok(())),
        }
    }

    fn dump(&self, now: Time) -> Result<Dump, KernelFault> {
        let control = self.control()?;
        let (destinations, rows) = (self.array::<Destination>("destinations")?, self.array::<Row>("rows")?);
        let mut all = Vec::with_capacity(control.rows as usize);
        for slot in 0..control.slots {
            let d = destinations.get(&slot, 0)?;
            if d.vssd != 0 {
                all.push((d, rows.get(&slot, 0)?));
            }
        }
        all.sort_unstable_by_key(|(d, _)| d.vssd);
        let flags = |vssd: u32| {
            let found = all.binary_search_by_key(&vssd, |(d, _)| d.vssd);
            found.map_or(0, |i| all[i].0.flags_at(now.0))
        };
        let peer = |p: &crate::layout::Peer| {
            let f = flags(p.vssd);
            let (vssd, server) = (VssdId(p.vssd), node(p.server));
            let collecting = f & (REPLICA_GC | DESTINATION_GC) != 0;
            PeerState { vssd, server, readable: f & READABLE != 0, collecting }
        };
        let mut dump = Dump { generation: control.changes, rings: self.rings()?, ..Dump::default() };
        for (d, r) in &all {
            let (vssd, f) = (VssdId(d.vssd), d.flags_at(now.0));
            let peers = r.peers[..usize::from(r.peer_count)].iter().map(peer).collect();
            dump.replica.push(ReplicaRow { vssd, collecting: f & REPLICA_GC != 0, peers });
            dump.destination.push(DestinationRow {
                vssd,
                server: node(d.server),
                collecting: f & DESTINATION_GC != 0,
                readable: f & READABLE != 0,
                heard: f & HEARD != 0,
            });
        }
        Ok(dump)
    }

    /// Expiries are not counted: here a state expires by not being looked at.
    fn counters(&self) -> Result<Counters, KernelFault> {
        let mut c = counters(&self.counted()?);
        c.rows_refused += self.refused;
        Ok(c)
    }
}
