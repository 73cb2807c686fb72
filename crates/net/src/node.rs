//! One node of a rack in a process of its own (`rackweave node`).

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rackweave_core::{NodeId, NodeKind, NodeName, RackId, Span, SsdId};
use rackweave_transport::Keys;

use super::incarnation::{INCARNATION_FILE, Incarnations, Kept};
use super::net::{Links, Net, NetError};
use super::{DistributedError, addresses, channel, key, refuse_together};
use rackweave_config::hosts::HostsSection;
use rackweave_config::switching::DataPlaneKind;
use rackweave_config::{MemorySection, RackConfig};
use rackweave_device::{FileSsd, OpenError, OsFile};
use rackweave_rack::capture::Capture;
use rackweave_runtime::datadir::{DataDir, private_directory};
use rackweave_runtime::engine::{Engine, ROOM_RETRY};
use rackweave_runtime::event_loop::{Admitted, Announce, EventLoop, RequestNodes};
use rackweave_runtime::kernel::KernelNode;
use rackweave_runtime::policy;
use rackweave_runtime::protocol::{self, Addresses, Protocol};
use rackweave_runtime::status::Facts;
use rackweave_runtime::store::{MetaStore, NoStore, StoreThread};
use rackweave_runtime::syncer::Syncer;
use rackweave_runtime::up::{self, UpError};
use rackweave_runtime::watch::{BEAT, Beat};
use rackweave_runtime::{Hosted, RackNodes};

/// Exit status of a refused node's process ([`UpError::is_refusal`]): its supervisor does not restart it until an
/// operator has intervened.
pub const REFUSED: i32 = 3;

/// The user's options.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Holds a directory per node of this machine.
    pub data: PathBuf,
    /// The rack's configuration, with a `[hosts]` section.
    pub config: PathBuf,
    pub name: NodeName,
    /// For the switch: the data plane, overriding the configuration.
    pub data_plane: Option<DataPlaneKind>,
    /// For a gateway: the addresses for its clients.
    pub listen: Option<Addresses>,
    /// File for a capture of its datagrams.
    pub pcap: Option<PathBuf>,
    /// For a server: its SSD is replaced by an empty one.
    pub replace_ssd: bool,
    /// Sends heartbeats on standard output ([`super::watch`]).
    pub supervised: bool,
}

/// Runs a node until SIGINT or SIGTERM; calls `ready` once others can reach it.
pub fn run(options: &NodeOptions, ready: impl FnOnce(&Facts) + 'static) -> Result<(), DistributedError> {
    let signal = up::signals()?;
    up::exact_timers();
    let name = options.name;
    let cfg = config(options)?;
    let hosts = cfg.hosts.as_ref().ok_or_else(|| DistributedError::NoHosts { path: options.config.clone() })?;
    let layout = hosts.layout();
    let Some(node) = layout.id(name) else {
        return Err(DistributedError::UnknownNode { name, rack: layout });
    };
    let addresses = addresses(hosts)?;
    let keys = keys(&cfg)?;
    refuse_together(&options.data)?;
    private_directory(&options.data)?;
    let dir = DataDir::open(&options.data.join(name.to_string()))?;
    let mut node_cfg = with_kept(&cfg, &dir, name)?;
    let gateways = layout.clients();
    let address = addresses[node.0 as usize];
    let in_kernel = (name.kind == NodeKind::Switch && cfg.switch.data_plane != DataPlaneKind::Process)
        .then(|| switch_in_kernel(&cfg, name.index, hosts, keys.clone()))
        .transpose()?;
    let mut net = open_net(name, node, &cfg, &dir, (addresses, keys), &signal)?;
    if let Some(path) = &options.pcap {
        net.capture(Capture::create(path).map_err(DistributedError::from)?);
    }
    let mut facts = Facts {
        data: std::path::absolute(dir.path())?.display().to_string(),
        node: Some((name.to_string(), address.to_string())),
        names: hosts.names().map(|n| n.to_string()).collect(),
        ..Facts::of(&cfg)
    };
    let listen = options.listen.as_ref().map(|at| protocol::listen(&cfg, at, &mut facts));
    let mut listeners = listen.transpose()?.unwrap_or_default();
    listeners.push(up::listen_control(&dir)?);
    if let Some(control) = &cfg.control {
        let tls = channel::server(&control.certificates)?;
        listeners.push((channel::listen(control, node.0, address)?, Protocol::control_tls(tls)));
    }
    let server = name.as_server().map(|i| Ok::<_, UpError>((i, device(&dir, &mut node_cfg, i, options.replace_ssd)?)));
    let (devices, ssd, empty, admitted) = match server.transpose()? {
        Some((i, (device, empty, admitted))) => (vec![device], i, empty, Some(admitted)),
        None => (Vec::new(), 0, false, None),
    };
    let drive_of = devices.first().and_then(FileSsd::rack);
    let hosted = Hosted::One { node, gateways, empty, drive_of };
    let cut = super::links::cut_at(&options.data, &name.to_string())?;
    let lost = Lost { path: up::device_path(&dir, ssd), server: ssd, drive_of };
    let (key_file, ready, first_ssd) = (hosts.key_file.clone(), Box::new(ready), SsdId(ssd));
    let memory = cfg.memory.clone();
    let every = if name.kind == NodeKind::Switch { BEAT } else { Span(u64::MAX) };
    let beat = options.supervised.then(|| Beat::new(every)).transpose()?;
    let run = Run { net, memory, key_file, facts, signal, listeners, first_ssd, ready, admitted, lost, cut, beat };
    if name == NodeName::META {
        let (mut store, saved, rack) = up::store(&dir).map_err(UpError::from)?;
        up::same_as_made(&dir, &mut store, &node_cfg)?;
        let mut nodes = RackNodes::hosting(&node_cfg, hosted, saved, up::random_u64)?;
        nodes.set_rack(rack);
        return Ok(run.until_stopped(nodes, devices, StoreThread::start(store)?)?);
    }
    let mut nodes = RackNodes::hosting(&node_cfg, hosted, Vec::new(), up::random_u64)?;
    if let Some(node) = in_kernel {
        nodes.switch_in_kernel(node);
    }
    Ok(run.until_stopped(nodes, devices, NoStore)?)
}

/// The configuration, for the metadata service with the keys that it keeps.
fn with_kept(cfg: &RackConfig, dir: &DataDir, name: NodeName) -> Result<RackConfig, UpError> {
    let mut cfg = cfg.clone();
    if name == NodeName::META {
        up::fill_from_store(&dir.file(up::STORE_FILE), &mut cfg)?;
    }
    Ok(cfg)
}

/// The configuration with the options applied.
fn config(options: &NodeOptions) -> Result<RackConfig, DistributedError> {
    let (mut cfg, written) = up::read_written(&options.config)?;
    if let Some(kind) = options.data_plane {
        cfg.switch.data_plane = kind;
        cfg.validate().map_err(|error| UpError::Config { path: options.config.clone(), error })?;
    }
    policy::in_real_time(&cfg).map_err(|error| UpError::Config { path: options.config.clone(), error })?;
    for o in written.overridden(&cfg) {
        eprintln!("rackweave: {}: {o} by an option", options.config.display());
    }
    Ok(cfg)
}

/// Opens the node's network under a new incarnation.
fn open_net(
    name: NodeName,
    node: NodeId,
    cfg: &RackConfig,
    dir: &DataDir,
    (addresses, keys): (Vec<SocketAddr>, Keys),
    signal: &OwnedFd,
) -> Result<Net, DistributedError> {
    let version = cfg.protocol_version.unwrap_or(rackweave_transport::VERSION);
    let kept = name.kind == NodeKind::Server;
    let switches = rackweave_rack::build::layout(cfg).switches().collect();
    let links = Links { paths: cfg.paths, mtu: cfg.mtu, kept, memory: cfg.memory.network_bytes(), switches };
    let incarnation_file = |error| DistributedError::Incarnation { path: dir.file(INCARNATION_FILE), error };
    let mut incarnations = Kept::open(dir).map_err(incarnation_file)?;
    let incarnation =
        first_incarnation(&mut incarnations, &dir.file(INCARNATION_FILE), signal).map_err(incarnation_file)?;
    let net = Net::speaking(version, links, node, addresses, keys, incarnation, up::random_u64());
    let mut net = net.map_err(|e| match e {
        NetError::Bind { address, error } => DistributedError::Bind { name, address, error },
        e => e.into(),
    })?;
    net.incarnations_from(Box::new(incarnations));
    net.set_rings(
        cfg.switch.ring_plans(&rackweave_rack::build::layout(cfg), &mut Vec::new()),
        cfg.switch.data_plane != DataPlaneKind::Process,
    );
    Ok(net)
}

/// A new incarnation for this process. On a full disk it waits for room, until a signal stops the process.
fn first_incarnation(kept: &mut Kept, path: &Path, signal: &OwnedFd) -> io::Result<u64> {
    let mut said = false;
    loop {
        let e = match kept.above(0) {
            Err(e) if e.kind() == io::ErrorKind::StorageFull => e,
            done => return done,
        };
        if !std::mem::replace(&mut said, true) {
            eprintln!(
                "rackweave: {}: {e}; without a new incarnation the node sends nothing; it starts when the disk has space",
                path.display()
            );
        }
        let mut stop = libc::pollfd { fd: signal.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor, which is open.
        if unsafe { libc::poll(&mut stop, 1, (ROOM_RETRY.0 / 1_000_000) as i32) } > 0 {
            return Err(e);
        }
    }
}

fn switch_in_kernel(
    cfg: &RackConfig,
    rack: u32,
    hosts: &HostsSection,
    keys: Keys,
) -> Result<KernelNode, DistributedError> {
    // Problems of the ports were reported when the configuration was checked.
    let ports = cfg.switch.plan(hosts, rack, &mut Vec::new());
    let plane = cfg.switch.data_plane;
    KernelNode::start(cfg, rack, ports, keys).map_err(|error| DistributedError::DataPlane { plane, error })
}

/// Opens the server's device. If its file is missing or blank and not to be replaced, a new one is created on trial,
/// and gets its name once the metadata service confirms that this server has not run before: the file may have been
/// lost with its directory. Also returns whether the device is such a new one, and the function to call on admission.
fn device(
    dir: &DataDir,
    cfg: &mut RackConfig,
    server: u32,
    replace: bool,
) -> Result<(FileSsd<OsFile>, bool, Admitted), UpError> {
    let path = up::device_path(dir, server);
    let there = up::has_device(&path)?;
    if replace && there {
        return Err(UpError::DeviceInPlace { path, server });
    }
    if replace || there {
        let mut one = divided(dir, cfg, server)?;
        let said = move |adopted: Option<RackId>| {
            if let Some(rack) = adopted.filter(|_| there) {
                up::say_adopted(&path, rack);
            }
            Ok(())
        };
        return Ok((one.swap_remove(0), false, Box::new(said)));
    }
    rackweave_rack::new::choose(cfg);
    let (device, admitted) = up::device_on_trial(dir, cfg, server)?;
    Ok((device, true, admitted))
}

/// Opens the server's device. If the configuration does not say how many slots are kept free, its drive does: as a new
/// rack chooses, or none, as every rack of an earlier version.
fn divided(dir: &DataDir, cfg: &mut RackConfig, server: u32) -> Result<Vec<FileSsd<OsFile>>, UpError> {
    let omitted = cfg.ssd.spare.is_none();
    rackweave_rack::new::choose(cfg);
    match up::devices(dir, cfg, server..server + 1, None) {
        Err(UpError::Drive { .. }) if omitted && cfg.spare() > 0 => {
            cfg.ssd.spare = Some(0);
            up::devices(dir, cfg, server..server + 1, None)
        }
        opened => opened,
    }
}

/// Everything that the loop of one node needs besides the node.
struct Run {
    net: Net,
    key_file: Option<PathBuf>,
    facts: Facts,
    signal: OwnedFd,
    listeners: Vec<(rackweave_runtime::net::Listener, Protocol)>,
    first_ssd: SsdId,
    memory: MemorySection,
    ready: Announce,
    admitted: Option<Admitted>,
    lost: Lost,
    /// Nodes whose packets are dropped from the start.
    cut: Vec<String>,
    beat: Option<Beat>,
}

/// The message if the metadata service refuses the server.
struct Lost {
    path: PathBuf,
    server: u32,
    drive_of: Option<RackId>,
}

impl Lost {
    fn error(self, rack: Option<RackId>) -> UpError {
        let Lost { path, server, drive_of } = self;
        match drive_of.zip(rack).filter(|(found, wanted)| found != wanted) {
            Some((found, wanted)) => UpError::Device { path, error: OpenError::Rack { found, wanted } },
            None => UpError::DeviceLost { path, server },
        }
    }
}

impl Run {
    fn until_stopped<M: MetaStore>(
        self,
        nodes: RackNodes,
        devices: Vec<FileSsd<OsFile>>,
        store: M,
    ) -> Result<(), UpError> {
        let takers = RequestNodes { client: nodes.client(), admin: nodes.admin() };
        let mut engine = Engine::with_ssds_from(self.first_ssd, nodes, devices, store);
        let own = self.facts.node.as_ref().and_then(|(name, _)| self.facts.node_named(name));
        for (own, other) in own.into_iter().flat_map(|own| self.cut.iter().map(move |o| (own, o))) {
            if let Some(other) = self.facts.node_named(other) {
                engine.cut_link(own, other, true);
            }
        }
        let syncer = Syncer::new(true)?;
        let mut serve =
            EventLoop::new(engine, takers, Some(Box::new(self.net)), self.facts, syncer, self.signal, self.listeners)?;
        serve.keys_in(self.key_file);
        serve.limit_memory(&self.memory);
        if let Some(beat) = self.beat {
            serve.beat_by(beat);
        }
        // Its vSSDs serve only once the other nodes run, but it is reachable now.
        serve.when_ready(0, self.ready);
        if let Some(admitted) = self.admitted {
            serve.when_admitted(admitted);
        }
        serve.run()?;
        if serve.refused() {
            let problem = serve.drive_problem();
            return Err(match problem {
                Some(error) => UpError::Drive { path: self.lost.path, error },
                None => self.lost.error(serve.rack()),
            });
        }
        let failure = serve.take_store_failure();
        for (i, closed) in serve.close().into_iter().enumerate() {
            closed.map_err(|error| UpError::Close { ssd: SsdId(self.first_ssd.0 + i as u32), error })?;
        }
        failure.map_or(Ok(()), |error| Err(UpError::StoreFailed(error)))
    }
}

/// The cluster keys, if the configuration names a key file.
pub(super) fn keys(cfg: &RackConfig) -> Result<Keys, DistributedError> {
    let file = cfg.hosts.as_ref().and_then(|h| h.key_file.as_ref());
    let Some(file) = file else { return Ok(Keys::none()) };
    Ok(key::load(file)?)
}
