//! Starts a rack: directory, configuration, devices, nodes, sockets; and stops it.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use rackweave_core::device::{Backend, DeviceData, DeviceError, DeviceOp};
use rackweave_core::msg::control::DriveTable;
use rackweave_core::{DriveId, NodeKind, RackId, SsdId};

use super::control::{SOCKET, short_path};
use super::datadir::{DataDir, DataDirError, write_durably};
use super::engine::Engine;
use super::event_loop::{Admitted, EventLoop, RequestNodes};
use super::net::{ListenError, Listener};
use super::policy;
use super::protocol::{self, Addresses, Protocol};
use super::rack::{RackNodes, shape};
use super::secure::SecureError;
use super::status::Facts;
use super::store::{StoreError, StoreFile, StoreThread};
use super::syncer::Syncer;
use rackweave_config::fixed::{self, Changed};
use rackweave_config::policy::Policy;
use rackweave_config::switching::DataPlaneKind;
use rackweave_config::{ConfigError, KvSection, MTU_DEFAULT, Problem, RackConfig, Size, TimingConfig, Written};
use rackweave_core::NodeName;
use rackweave_core::media_faults::MediaFaults;
use rackweave_device::convert::ConvertError;
use rackweave_device::{FileSsd, OpenError, OsFile, Shape};
use rackweave_flash::table::{self, Table};
use rackweave_flash::{Geometry, RecoveryError, VictimPolicy};
use rackweave_server::{DriveProblem, ServerConfig};

pub const CONFIG_FILE: &str = "rack.toml";
pub const STORE_FILE: &str = "meta.redb";

/// The user's options.
#[derive(Clone, Debug)]
pub struct Options {
    pub data: PathBuf,
    pub listen: Addresses,
    pub config: Option<PathBuf>,
    /// A new rack has replicated keys.
    pub keys: bool,
    pub servers: Option<u32>,
    pub ssd_size: Option<Size>,
    /// For this run only.
    pub timing: Option<TimingConfig>,
    /// For this run only.
    pub victims: Option<VictimPolicy>,
    /// With a process per node: each node in its own network namespace, around a switch with this data plane.
    pub netns: Option<DataPlaneKind>,
    /// Number of gateways of a rack with a process per node; `None`: those of `[hosts]`, or one.
    pub gateways: Option<u32>,
    /// Servers whose SSD is replaced by an empty one.
    pub replace_ssd: Vec<u32>,
    /// Directory for packet captures, with a process per node.
    pub pcap: Option<PathBuf>,
    /// Servers that do not run this time.
    pub absent: Vec<u32>,
}

/// Why a rack did not start, or did not stop cleanly.
#[derive(Debug, thiserror::Error)]
pub enum UpError {
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    #[error("{path}: {error}")]
    ConfigFile { path: PathBuf, error: io::Error },
    #[error("{path}: {error}")]
    Config { path: PathBuf, error: ConfigError },
    #[error(transparent)]
    Options(ConfigError),
    #[error(
        "{key} = {asked}: fixed at {stored} when the rack in {data} was created. Set it back; for another value, create a rack in \
         another directory and copy the volumes"
    )]
    Fixed { data: PathBuf, key: &'static str, stored: String, asked: String },
    #[error("{path}: {error}")]
    Device { path: PathBuf, error: OpenError },
    #[error("{path}: {error}")]
    Convert { path: PathBuf, error: ConvertError },
    #[error("{data} has no metadata service's store: `convert` needs the rack's whole data directory")]
    NothingToConvert { data: PathBuf },
    #[error("{path}: {error}")]
    Drive { path: PathBuf, error: DriveProblem },
    #[error(
        "{path} is missing or empty, but the rack has run with it: put it back, or replace it with --replace-ssd {server} by an empty \
         SSD that is filled from the other copies"
    )]
    DeviceMissing { path: PathBuf, server: u32 },
    #[error("--replace-ssd {server}: {path} is still there; move it away first")]
    DeviceInPlace { path: PathBuf, server: u32 },
    #[error(
        "{path} is missing or empty, but server {server} has run with it: put it back, or replace it with --replace-ssd by an empty \
         SSD that is filled from the other copies"
    )]
    DeviceLost { path: PathBuf, server: u32 },
    #[error("--replace-ssd {server}: no rack has run in {data} yet, so all SSDs are empty")]
    NothingToReplace { data: PathBuf, server: u32 },
    #[error("--{option} {server}: the rack has servers 0 to {}", .servers - 1)]
    NoSuchServer { option: &'static str, server: u32, servers: u32 },
    #[error("{replaced} SSDs replaced at once: one of {replicas} copies must remain")]
    AllReplaced { replaced: usize, replicas: u32 },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(
        "the metadata service ends, since its store failed: {0}. The file may lack what was written last, none of which was \
         acknowledged; the next start writes it anew"
    )]
    StoreFailed(StoreError),
    #[error(
        "{path} is missing, but {drive} belongs to rack {rack}, which has run: put it back. Only the metadata service's store lists \
         the volumes"
    )]
    StoreMissing { path: PathBuf, drive: PathBuf, rack: RackId },
    #[error("--resp {address}: the rack has no keys (kv.channels, kv.replicas): `--keys` gives them to a new rack")]
    NoKeys { address: String },
    #[error(
        "{path}: kv.replicas = {replicas}: needs kv.channels, the channels of every drive for keys; `--keys` chooses them for a new rack"
    )]
    NoKeyChannels { path: PathBuf, replicas: u32 },
    #[error(transparent)]
    Nodes(#[from] rackweave_rack::build::BuildError),
    #[error(transparent)]
    Secure(#[from] SecureError),
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error("the driver failed: {0}")]
    Driver(#[from] io::Error),
    #[error(
        "the configuration has [hosts]: `rackweave up --processes` starts its nodes on this machine, `rackweave node` one \
         of them"
    )]
    Hosts,
    #[error("{data} has a rack created for {made}; it cannot run in {asked}")]
    Made { data: PathBuf, made: &'static str, asked: &'static str },
    #[error("device {ssd}: close failed: {error}; its unflushed writes may be lost")]
    Close { ssd: SsdId, error: DeviceError },
}

impl UpError {
    /// Restarting cannot help: the node's drive or directory is not the expected one, and an operator must intervene.
    pub fn is_refusal(&self) -> bool {
        match self {
            UpError::Device { error, .. } => !matches!(error, OpenError::Io(_)),
            UpError::Fixed { .. }
            | UpError::Drive { .. }
            | UpError::DeviceMissing { .. }
            | UpError::DeviceInPlace { .. }
            | UpError::DeviceLost { .. }
            | UpError::StoreMissing { .. } => true,
            _ => false,
        }
    }
}

/// Runs a rack until SIGINT or SIGTERM; calls `ready` once it serves.
pub fn up(options: &Options, ready: impl FnOnce(&Facts) + 'static) -> Result<(), UpError> {
    // Before any thread can start.
    let signal = signals()?;
    exact_timers();
    let dir = DataDir::open(&options.data)?;
    let data = std::path::absolute(dir.path())?;
    let cfg = configure(&dir, options, refuse)?;
    store_is_there(&dir.file(STORE_FILE), (0..cfg.servers_max()).map(|i| device_path(&dir, i)))?;
    let (mut store, saved, rack) = store(&dir)?;
    same_as_made(&dir, &mut store, &cfg)?;
    let has_run = !saved.is_empty();
    let mut nodes = RackNodes::new(&cfg, saved, random_u64)?;
    match options.replace_ssd.first() {
        _ if has_run => all_there(&dir, &cfg, &nodes, &options.replace_ssd)?,
        Some(&server) => return Err(UpError::NothingToReplace { data: options.data.clone(), server }),
        None => {}
    }
    nodes.set_rack(rack);
    let layout = rackweave_rack::build::layout(&cfg);
    let devices = drives(&dir, &cfg, &nodes, rack)?;
    let servers = nodes.servers_known().max(cfg.servers);
    if let Some(&server) = options.absent.iter().find(|&&s| s >= servers) {
        return Err(UpError::NoSuchServer { option: "absent", server, servers });
    }
    let takers = RequestNodes { client: nodes.client(), admin: nodes.admin() };
    let mut facts = Facts { data: data.display().to_string(), ..Facts::of(&cfg) };
    let mut listeners = protocol::listen(&cfg, &options.listen, &mut facts)?;
    listeners.push(listen_control(&dir)?);
    let removed: Vec<u32> = (0..cfg.servers_max()).filter(|&i| nodes.server(i as usize).is_none()).collect();
    let mut engine = Engine::new(nodes, Vec::new(), StoreThread::start(store)?);
    engine.reserve(cfg.servers_max());
    devices.into_iter().for_each(|(server, ssd)| engine.place_device(server, ssd));
    for &server in options.absent.iter().chain(&removed) {
        if let Some(node) = layout.server(server) {
            engine.end_server(node, server as usize);
        }
    }
    let mut serve = EventLoop::new(engine, takers, None, facts, Syncer::new(true)?, signal, listeners)?;
    serve.limit_memory(&cfg.memory);
    let (shape, paths) = (shape(&cfg)?, (0..cfg.servers_max()).map(|i| device_path(&dir, i)).collect::<Vec<_>>());
    let (data, of) = (options.data.clone(), cfg.clone());
    serve.keep_policy_by(Box::new(move |p| keep_policy(&data, CONFIG_FILE, p).map_err(|e| e.to_string())));
    serve.reopen_by(Box::new(move |i| {
        let path = &paths[i as usize];
        let open = || -> Result<_, UpError> {
            let mut ssd = open_device(path, i, shape, &of, Some(rack))?;
            let table = drive_table(&mut ssd, &rackweave_rack::build::profile(&of)?.geometry);
            let table = table.map_err(|e| drive_error(path, e))?;
            Ok((ssd, table.map_or_else(DriveTable::default, |t| t.report())))
        };
        open().map_err(|e| e.to_string())
    }));
    serve.when_ready(cfg.min_copies as usize, Box::new(ready));
    serve.run()?;
    let failure = serve.take_store_failure();
    for (i, closed) in serve.close().into_iter().enumerate() {
        closed.map_err(|error| UpError::Close { ssd: SsdId(i as u32), error })?;
    }
    failure.map_or(Ok(()), |error| Err(UpError::StoreFailed(error)))
}

/// The two ways to run a rack, for messages.
pub const TOGETHER: &str = "one process";
/// See [`TOGETHER`].
pub const APART: &str = "a process for each node";

/// Refuses to run a directory or configuration of a rack with a process per node in one process.
fn refuse(data: &Path, cfg: &RackConfig) -> Result<(), UpError> {
    if cfg.hosts.is_some() {
        return Err(UpError::Hosts);
    }
    let only = "left out: nodes of one process send no packets (--processes)";
    let mut problems = Vec::new();
    let mut none =
        |key: &'static str, value: String| problems.push(Problem { key: key.into(), value, rule: only.into() });
    cfg.paths.iter().for_each(|n| none("paths", n.to_string()));
    if cfg.mtu != MTU_DEFAULT {
        none("mtu", cfg.mtu.to_string());
    }
    if !problems.is_empty() {
        return Err(UpError::Options(ConfigError::Rules(problems)));
    }
    if data.join(NodeName::META.to_string()).exists() {
        return Err(UpError::Made { data: data.into(), made: APART, asked: TOGETHER });
    }
    Ok(())
}

/// Stored entries of a metadata service.
type Saved = Vec<(Bytes, Bytes)>;

/// The metadata service's store, its entries, and the rack's identity.
pub fn store(dir: &DataDir) -> Result<(StoreFile, Saved, RackId), StoreError> {
    let mut store = StoreFile::open(&dir.file(STORE_FILE))?;
    let saved = store.load()?;
    let rack = store.rack_id(|| RackId(u128::from(random_u64()) << 64 | u128::from(random_u64())))?;
    Ok((store, saved, rack))
}

/// Drives with a rack's identity have run with a metadata service; without its store a new one would be another rack's.
pub fn store_is_there(store: &Path, drives: impl Iterator<Item = PathBuf>) -> Result<(), UpError> {
    if store.exists() {
        return Ok(());
    }
    for drive in drives.filter(|d| d.exists()) {
        let owner = OsFile::open(&drive).map_err(OpenError::Io).and_then(|f| Ok(FileSsd::owner(&f)?));
        if let Some(rack) = owner.map_err(|error| UpError::Device { path: drive.clone(), error })? {
            return Err(UpError::StoreMissing { path: store.into(), drive, rack });
        }
    }
    Ok(())
}

/// The configuration of this run. The first run stores it, which fixes the rack's geometry. `check` says whether this
/// driver can run it in this directory.
pub fn configure<E: From<UpError>>(
    dir: &DataDir,
    options: &Options,
    check: impl FnOnce(&Path, &RackConfig) -> Result<(), E>,
) -> Result<RackConfig, E> {
    let stored_path = dir.file(CONFIG_FILE);
    let stored = if stored_path.exists() { Some(read_config(&stored_path)?) } else { None };
    // A new rack's keys are completed below.
    let completes = options.keys && stored.is_none();
    let valid = |cfg: &RackConfig| if completes { with_some_keys(cfg).validate() } else { cfg.validate() };
    let mut given = None;
    let mut cfg = match (&options.config, &stored) {
        (Some(path), _) => {
            let (cfg, written) = read_unchecked(path)?;
            valid(&cfg).map_err(|error| UpError::Config { path: path.into(), error })?;
            given = Some((path, written));
            cfg
        }
        (None, Some(stored)) => stored.clone(),
        (None, None) => RackConfig::default(),
    };
    cfg.servers = options.servers.unwrap_or(cfg.servers);
    cfg.ssd.size = options.ssd_size.unwrap_or(cfg.ssd.size);
    valid(&cfg).map_err(UpError::Options)?;
    let incomplete = cfg.validate().is_err().then(|| std::mem::take(&mut cfg.kv));
    fill(dir, &mut cfg, stored.as_ref())?;
    cfg.kv = incomplete.unwrap_or(cfg.kv);
    let written = |key: &str| given.as_ref().is_some_and(|(_, written)| written.has(key));
    keep_keys(&mut cfg, stored.as_ref(), written, options.keys)?;
    cfg.validate().map_err(|error| match &given {
        Some((path, _)) if completes => UpError::Config { path: PathBuf::from(path), error },
        _ => UpError::Options(error),
    })?;
    policy::in_real_time(&cfg).map_err(UpError::Options)?;
    if let Some((path, _)) = given.as_ref().filter(|_| written("kv.replicas") && cfg.kv.replicas > 0 && !cfg.kv.is_on())
    {
        return Err(UpError::NoKeyChannels { path: PathBuf::from(path), replicas: cfg.kv.replicas }.into());
    }
    if let Some(stored) = &stored {
        same_shape(dir.path(), fixed::changed(stored, &cfg))?;
    }
    check(dir.path(), &cfg)?;
    if stored.as_ref() != Some(&cfg) {
        // What no rack can be built with must not fix the shape of the one that is created next.
        rackweave_rack::build::meta(&cfg, Vec::new()).map_err(UpError::from)?;
        rackweave_rack::build::server(&cfg, 0, 1).map_err(UpError::from)?;
        dir.write(CONFIG_FILE, cfg.to_toml().as_bytes()).map_err(UpError::from)?;
    }
    cfg.ssd.timing = options.timing.unwrap_or(cfg.ssd.timing);
    cfg.gc.victims = options.victims.unwrap_or(cfg.gc.victims);
    if let Some((path, written)) = given {
        for o in written.overridden(&cfg) {
            eprintln!("rackweave: {}: {o} by an option", path.display());
        }
    }
    Ok(cfg)
}

/// A new rack's configuration with something for what its `[kv]` leaves out, so that the rules judge what it has.
fn with_some_keys(cfg: &RackConfig) -> RackConfig {
    let mut with = cfg.clone();
    let (any, kv) = (with.kv != KvSection::default(), &mut with.kv);
    if any && kv.channels == 0 {
        kv.channels = 1;
    }
    if any && kv.replicas == 0 {
        kv.replicas = rackweave_rack::new::KEY_REPLICAS.min(cfg.servers);
    }
    with
}

/// A rack keeps the keys of the configuration that it was created with, unless others are written; a new one gets them if it is to.
fn keep_keys(
    cfg: &mut RackConfig,
    stored: Option<&RackConfig>,
    written: impl Fn(&str) -> bool,
    keys: bool,
) -> Result<(), UpError> {
    match stored {
        Some(stored) => {
            cfg.kv.channels = if written("kv.channels") { cfg.kv.channels } else { stored.kv.channels };
            // Without keys there are no further keyspaces: the error is about the keys.
            if !written("kv.own_channels") && cfg.kv.is_on() {
                cfg.kv.own_channels = stored.kv.own_channels;
            }
            cfg.kv.replicas = if written("kv.replicas") { cfg.kv.replicas } else { stored.kv.replicas };
            if keys && !cfg.kv.is_on() {
                eprintln!("rackweave: --keys: the rack was created without keys, and stays without");
            }
        }
        None if keys => rackweave_rack::new::give_keys(cfg)?,
        None => {}
    }
    Ok(())
}

/// Fills in the omitted keys that a new rack chooses and then keeps. A rack that stores none of them is of an earlier
/// version, which had no free slots and no further servers unless they were configured.
fn fill(dir: &DataDir, cfg: &mut RackConfig, stored: Option<&RackConfig>) -> Result<(), UpError> {
    if let Some(stored) = stored {
        cfg.ssd.spare = cfg.ssd.spare.or(Some(stored.spare()));
        cfg.servers_max = cfg.servers_max.or(stored.servers_max);
        return Ok(());
    }
    let apart = dir.file(&NodeName::META.to_string()).join(STORE_FILE);
    let store = Some(dir.file(STORE_FILE)).filter(|path| path.exists());
    fill_from_store(&store.unwrap_or(apart), cfg)
}

/// The same, where only the metadata service's store is known; without a store the rack is new.
pub fn fill_from_store(store: &Path, cfg: &mut RackConfig) -> Result<(), UpError> {
    if !store.exists() {
        rackweave_rack::new::choose(cfg);
        return Ok(());
    }
    let made = StoreFile::open(store)?.made()?.unwrap_or_default();
    let number = |key| fixed::value(&made, key).and_then(|v| v.parse::<u32>().ok());
    cfg.ssd.spare = cfg.ssd.spare.or(Some(number("ssd.spare").unwrap_or(0)));
    cfg.servers_max = cfg.servers_max.or(number("servers_max").filter(|n| *n != cfg.servers_max()));
    Ok(())
}

/// Changes every key of the stored configuration that belongs to a policy.
pub fn keep_policy(data: &Path, file: &str, policy: Policy) -> Result<(), UpError> {
    let cfg = RackConfig::clone(&read_config(&data.join(file))?);
    let cfg = super::policy::with(&cfg, policy);
    write_durably(data, file, cfg.to_toml().as_bytes())
        .map_err(|error| UpError::ConfigFile { path: data.join(file), error })
}

pub fn read_config(path: &Path) -> Result<RackConfig, UpError> {
    Ok(read_written(path)?.0)
}

/// Also returns the file's text.
pub fn read_written(path: &Path) -> Result<(RackConfig, Written), UpError> {
    let (cfg, written) = read_unchecked(path)?;
    cfg.validate().map_err(|error| UpError::Config { path: path.into(), error })?;
    Ok((cfg, written))
}
fn read_unchecked(path: &Path) -> Result<(RackConfig, Written), UpError> {
    let text = std::fs::read_to_string(path).map_err(|error| UpError::ConfigFile { path: path.into(), error })?;
    let (mut cfg, mut written) = Written::read(&text).map_err(|error| UpError::Config { path: path.into(), error })?;
    let dir = path.parent().unwrap_or(Path::new(""));
    let dir = std::path::absolute(if dir == Path::new("") { Path::new(".") } else { dir });
    cfg.paths_from(&dir.map_err(|error| UpError::ConfigFile { path: path.into(), error })?);
    written.means(&cfg);
    Ok((cfg, written))
}

/// The configuration that the rack was created with is stored with the metadata service's records, because the file may
/// have been edited.
pub fn same_as_made(dir: &DataDir, store: &mut StoreFile, cfg: &RackConfig) -> Result<(), UpError> {
    let made = store.made_with(&fixed::lines(cfg))?;
    same_shape(dir.path(), fixed::changed_since(&made, cfg))
}
fn same_shape(data: &Path, changed: Option<Changed>) -> Result<(), UpError> {
    let Some(Changed { key, stored, asked }) = changed else { return Ok(()) };
    Err(UpError::Fixed { data: data.into(), key, stored, asked })
}

/// The drive table; `None` for a drive that was never used.
fn drive_table(ssd: &mut FileSsd<OsFile>, g: &Geometry) -> Result<Option<Table>, RecoveryError> {
    let op = DeviceOp::ReadMeta { offset: 0, len: table::area_bytes(g) as u32 };
    let area = match ssd.execute(&op)? {
        DeviceData::Meta(area) => area,
        _ => Bytes::new(),
    };
    Ok(table::read(g, &area)?.map(|(found, _)| found))
}

/// Checks that the drive table matches the configuration.
fn check_table(ssd: &mut FileSsd<OsFile>, c: &ServerConfig) -> Result<Option<Table>, RecoveryError> {
    let Some(found) = drive_table(ssd, &c.ssd.profile.geometry)? else { return Ok(None) };
    found.check(ssd.drive_id(), &c.ssd.profile)?;
    found.check_shares(&c.shares())?;
    Ok(Some(found))
}

fn drive_error(path: &Path, e: RecoveryError) -> UpError {
    match e {
        RecoveryError::Table(error) => UpError::Drive { path: path.into(), error: error.into() },
        RecoveryError::Device(e) => UpError::Device { path: path.into(), error: OpenError::Io(io::Error::other(e)) },
    }
}

/// The drives of the servers that run here, checked against what the metadata service knows of them. A removed server
/// needs none.
fn drives(
    dir: &DataDir,
    cfg: &RackConfig,
    nodes: &RackNodes,
    rack: RackId,
) -> Result<Vec<(u32, FileSsd<OsFile>)>, UpError> {
    let (geometry, layout) = (rackweave_rack::build::profile(cfg)?.geometry, rackweave_rack::build::layout(cfg));
    let mut all = Vec::new();
    for (server, &node) in (0..).zip(layout.ids(NodeKind::Server)) {
        if nodes.server(server as usize).is_none() {
            continue;
        }
        let path = device_path(dir, server);
        for mut ssd in devices(dir, cfg, server..server + 1, Some(rack))? {
            let table = drive_table(&mut ssd, &geometry).map_err(|e| drive_error(&path, e))?;
            let known = table.map_or(Ok(()), |t| nodes.check_drive(node, ssd.drive_id(), &t.report()));
            known.map_err(|error| UpError::Drive { path: path.clone(), error })?;
            all.push((server, ssd));
        }
    }
    Ok(all)
}

/// Checks that a rack that has run finds every SSD: an empty one would be taken for a copy. Those in `replaced` must be
/// empty, and are filled from the other copies before they serve. A removed server has none, nor may one that was added and has
/// never run.
fn all_there(dir: &DataDir, cfg: &RackConfig, nodes: &RackNodes, replaced: &[u32]) -> Result<(), UpError> {
    let servers = nodes.servers_known().max(cfg.servers);
    replaceable(cfg, servers, replaced)?;
    for server in 0..servers {
        if nodes.server(server as usize).is_none() {
            match replaced.contains(&server) {
                true => return Err(rackweave_rack::build::BuildError::Removed { server }.into()),
                false => continue,
            }
        }
        let path = device_path(dir, server);
        match (has_device(&path)?, replaced.contains(&server)) {
            (false, false) if server < cfg.servers || nodes.has_drive(server) => {
                return Err(UpError::DeviceMissing { path, server });
            }
            (true, true) => return Err(UpError::DeviceInPlace { path, server }),
            _ => {}
        }
    }
    Ok(())
}

/// Whether the file holds a device. A truncated or new file holds none.
pub fn has_device(path: &Path) -> Result<bool, UpError> {
    let blank = || OsFile::open(path).and_then(|f| FileSsd::is_blank(&f));
    let found = if path.exists() { blank().map(|b| !b) } else { Ok(false) };
    found.map_err(|e| UpError::Device { path: path.into(), error: OpenError::Io(e) })
}

/// Checks that the servers exist, and that each set keeps a copy.
pub fn replaceable(cfg: &RackConfig, servers: u32, replaced: &[u32]) -> Result<(), UpError> {
    if replaced.len() >= cfg.replicas as usize {
        return Err(UpError::AllReplaced { replaced: replaced.len(), replicas: cfg.replicas });
    }
    match replaced.iter().find(|&&s| s >= servers) {
        Some(&server) => Err(UpError::NoSuchServer { option: "replace-ssd", server, servers }),
        None => Ok(()),
    }
}

pub fn device_path(dir: &DataDir, server: u32) -> PathBuf {
    dir.file(&device_name(server))
}

/// Name of a server's device file.
pub fn device_name(server: u32) -> String {
    format!("ssd-{server}.rwk")
}

/// Opens the devices of these servers; see [`open_device`].
pub fn devices(
    dir: &DataDir,
    cfg: &RackConfig,
    servers: std::ops::Range<u32>,
    rack: Option<RackId>,
) -> Result<Vec<FileSsd<OsFile>>, UpError> {
    let shape = shape(cfg)?;
    let open = |i: u32| {
        let path = device_path(dir, i);
        open_device(&path, i, shape, cfg, rack)
    };
    servers.map(open).collect()
}

/// If the rack's identity is known, a drive of no rack is assigned to it, and a drive of another rack is refused.
fn open_device(
    path: &Path,
    server: u32,
    shape: Shape,
    cfg: &RackConfig,
    rack: Option<RackId>,
) -> Result<FileSsd<OsFile>, UpError> {
    let fail = |error| UpError::Device { path: path.into(), error };
    let file = OsFile::open(path).map_err(|e| fail(OpenError::Io(e)))?;
    let blank = FileSsd::is_blank(&file).map_err(|e| fail(OpenError::Io(e)))?;
    // Read before opening changes the drive.
    let owner = FileSsd::owner(&file).map_err(|e| fail(OpenError::Io(e)))?;
    if let Some((found, wanted)) = owner.zip(rack).filter(|(found, wanted)| found != wanted) {
        return Err(fail(OpenError::Rack { found, wanted }));
    }
    let mut ssd = FileSsd::open(file, SsdId(server), shape).map_err(fail)?;
    ssd.name(DriveId(random_u64()));
    if let Some(rack) = rack {
        let adopted = ssd.adopt(rack).map_err(fail)?;
        if adopted && !blank {
            say_adopted(path, rack);
        }
    }
    check_table(&mut ssd, &rackweave_rack::build::server_config(cfg, server, 1)?).map_err(|e| drive_error(path, e))?;
    let flaws = cfg.ssd.flaws(SsdId(server)).unwrap_or(MediaFaults::none());
    ssd.fail_by(flaws.of_age(rackweave_rack::build::profile(cfg)?.endurance));
    Ok(ssd)
}

/// Reported once for each drive that had no identity yet.
pub fn say_adopted(path: &Path, rack: RackId) {
    eprintln!("{}: the drive had no rack identity; it now belongs to rack {rack}", path.display());
}

/// A new device for a server that may have lost its own. It has another name until the metadata service admits the
/// server, so that a refused server leaves nothing that looks like a device. Also returns the function that renames it.
pub fn device_on_trial(dir: &DataDir, cfg: &RackConfig, server: u32) -> Result<(FileSsd<OsFile>, Admitted), UpError> {
    let path = device_path(dir, server);
    let trial = path.with_extension("new");
    if trial.exists() {
        std::fs::remove_file(&trial)?;
    }
    let device = open_device(&trial, server, shape(cfg)?, cfg, None)?;
    let of_dir = std::fs::File::open(dir.path())?;
    let name = move |_| {
        std::fs::rename(&trial, &path)?;
        of_dir.sync_all()
    };
    Ok((device, Box::new(name)))
}

/// Opens the control socket in the data directory.
pub fn listen_control(dir: &DataDir) -> Result<(Listener, Protocol), UpError> {
    // A path that fits in a socket address, however long the data directory's path is.
    let (_open, short) = short_path(dir.path(), SOCKET)?;
    Ok((Listener::bind_unix(&dir.file(SOCKET), &short)?, Protocol::control()))
}

/// Becomes readable on the first SIGINT or SIGTERM.
pub fn signals() -> io::Result<OwnedFd> {
    let (read, write) = UnixStream::pair()?;
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
    }
    Ok(read.into())
}

/// Sets the timer slack to 1 ns: modelled flash answers within microseconds, and the default rounds sleeps up by fifty.
pub fn exact_timers() {
    // SAFETY: sets a number of this thread.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1usize, 0usize, 0usize, 0usize) };
}

/// Drawn once per run of a node.
pub fn random_u64() -> u64 {
    let mut b = [0u8; 8];
    // SAFETY: the kernel writes at most eight bytes.
    unsafe { libc::getrandom(b.as_mut_ptr().cast(), b.len(), 0) };
    u64::from_ne_bytes(b).max(1)
}

#[cfg(test)]
#[path = "up_tests.rs"]
mod tests;
