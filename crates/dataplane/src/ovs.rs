//! NICE's rings by OpenFlow on Open vSwitch (NI10), with the user-space datapath.
//!
//! [`program`] writes flows and groups as text; [`OvsSwitch`] starts the daemons by hand in a namespace and hands it to
//! `ovs-ofctl` as one atomic bundle. Open vSwitch sees only addresses and ports of a packet: it rewrites Ethernet and
//! IPv4, not our header, and knows no vSSDs, no `gc_op` and no latency.
//!
//! Hosts must send whole checksums (`ethtool -K eth0 tx off`): the user-space datapath does not complete them.

use std::fmt::Write as _;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rackweave_core::NodeId;

use crate::frame::mac;
use crate::netns::{Namespace, Star, address};
use crate::ovs_dump::rings_in;
use crate::rings::{Reach, Ring, RingError};

const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
/// Longest start of a daemon, on a busy machine.
const START_MAX: Duration = Duration::from_secs(60);

fn mac_text(node: NodeId) -> String {
    mac(node).map(|b| format!("{b:02x}")).join(":")
}

/// Answers ARP for `target` with `owner`'s Ethernet address.
fn arp_flow(to: &mut String, target: &str, owner: NodeId) {
    let mac = mac_text(owner);
    let hex: String = mac.split(':').collect();
    let _ = writeln!(
        to,
        "flow add priority=20,arp,arp_op=1,arp_tpa={target},actions=move:NXM_OF_ETH_SRC[]->NXM_OF_ETH_DST[],\
         set_field:{mac}->eth_src,load:2->NXM_OF_ARP_OP[],move:NXM_NX_ARP_SHA[]->NXM_NX_ARP_THA[],\
         move:NXM_OF_ARP_TPA[]->NXM_NX_REG0[],move:NXM_OF_ARP_SPA[]->NXM_OF_ARP_TPA[],load:0x{hex}->NXM_NX_ARP_SHA[],\
         move:NXM_NX_REG0[]->NXM_OF_ARP_SPA[],in_port"
    );
}

/// Actions of a bucket to reach a node.
pub(crate) fn to_member(node: NodeId) -> String {
    format!("set_field:{}->ip_dst,set_field:{}->eth_dst,output:{}", address(node), mac_text(node), port_of(node))
}

/// Of a prefix: the longest counts.
pub(crate) fn priority(bits: u8) -> u32 {
    30 + u32::from(bits)
}

/// OpenFlow ports are numbered like their nodes: port 0 is none.
fn port_of(node: NodeId) -> u32 {
    node.0 + 1
}

/// A bundle for `ovs-ofctl bundle`: everything the bridge does, in place of what it did. Each ring is a group: type *all*, or
/// *select* by a hash of the sender's address, a client's share of NI7.
pub fn program(switch: NodeId, hosts: &[NodeId], rings: &[Ring]) -> Result<String, RingError> {
    let mut to = String::from("flow delete\ngroup delete\n");
    for &host in hosts {
        arp_flow(&mut to, &address(host).to_string(), host);
        let (ip, mac, port) = (address(host), mac_text(host), port_of(host));
        let _ = writeln!(to, "flow add priority=20,ip,nw_dst={ip},actions=set_field:{mac}->eth_dst,output:{port}");
    }
    for (i, ring) in rings.iter().enumerate() {
        ring.check()?;
        let (group, prefix) = (i + 1, format!("{}/{}", ring.prefix.address, ring.prefix.bits));
        let kind = match ring.reach {
            Reach::All => "all",
            Reach::Share => "select,selection_method=hash,fields(ip_src)",
        };
        let _ = write!(to, "group add group_id={group},type={kind}");
        for (bucket, &member) in ring.members.iter().enumerate() {
            let weight = if ring.reach == Reach::All { "" } else { "weight:100," };
            let _ = write!(to, ",bucket=bucket_id:{bucket},{weight}actions={}", to_member(member));
        }
        let _ = writeln!(to);
        arp_flow(&mut to, &prefix, switch);
        let _ =
            writeln!(to, "flow add priority={},udp,nw_dst={prefix},actions=group:{group}", priority(ring.prefix.bits));
    }
    Ok(to)
}

/// Open vSwitch's daemons in a namespace, a bridge over its ports. They end when this is dropped, or with the thread
/// that started them; a killed process leaves only its directory in the temporary one.
#[derive(Debug)]
pub struct OvsSwitch {
    directory: PathBuf,
    database: Option<Child>,
    /// `None` also after a start that failed: [`OvsSwitch::mend`] starts it again.
    daemon: Option<Child>,
    switch: NodeId,
    hosts: Vec<NodeId>,
}

impl OvsSwitch {
    /// Reason why Open vSwitch cannot run here, if there is one.
    pub fn unavailable() -> Option<String> {
        for tool in ["ovs-vswitchd", "ovsdb-server", "ovsdb-tool", "ovs-vsctl", "ovs-ofctl"] {
            if Command::new(tool).arg("--version").output().is_err() {
                return Some(format!("no {tool}"));
            }
        }
        (!Path::new(SCHEMA).exists()).then(|| format!("no {SCHEMA}"))
    }

    /// Starts it over all ports of `star`, whose hosts send whole checksums from now on.
    pub fn start(star: &Star) -> io::Result<OvsSwitch> {
        let directory = std::env::temp_dir().join(format!("rackweave-ovs.{}.{}", std::process::id(), unique()));
        std::fs::create_dir(&directory)?;
        let hosts = star.hosts.iter().map(|h| h.node).collect();
        let mut ovs = OvsSwitch { directory, database: None, daemon: None, switch: star.switch_node, hosts };
        star.offloads(false)?;
        ovs.start_in(&star.switch)?;
        Ok(ovs)
    }

    fn file(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }
    fn tool(&self, net: &Namespace, program: &str, args: &[&str]) -> Command {
        let mut command = net.command(program);
        for variable in ["OVS_RUNDIR", "OVS_DBDIR", "OVS_LOGDIR", "OVS_SYSCONFDIR"] {
            command.env(variable, &self.directory);
        }
        command.args(args);
        // SAFETY: prctl is a plain system call. The process ends with the thread that started it.
        unsafe {
            command.pre_exec(|| {
                if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) == 0 {
                    Ok(())
                } else {
                    Err(io::Error::last_os_error())
                }
            })
        };
        command
    }
    fn run(&self, net: &Namespace, program: &str, args: &[&str]) -> io::Result<String> {
        let output = self.tool(net, program, args).output()?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(io::Error::other(format!("{program} {}: {}", args.join(" "), said.trim())))
    }
    fn spawn(&self, net: &Namespace, program: &str, args: &[&str], ready: &str) -> io::Result<Child> {
        let mut command = self.tool(net, program, args);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let (ready, end) = (self.directory.join(ready), Instant::now() + START_MAX);
        // One that was killed leaves it behind.
        let _ = std::fs::remove_file(&ready);
        let mut child = command.spawn()?;
        while !ready.exists() {
            if Instant::now() > end || child.try_wait()?.is_some() {
                let _ = child.kill();
                let _ = child.wait();
                return Err(io::Error::other(format!("{program} did not come up")));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(child)
    }
    fn start_switch(&mut self, net: &Namespace) -> io::Result<()> {
        let (database, control) =
            (format!("unix:{}", self.file("db.sock")), format!("--unixctl={}", self.file("vs.ctl")));
        self.daemon = None;
        self.daemon = Some(self.spawn(net, "ovs-vswitchd", &[&database, &control], "vs.ctl")?);
        Ok(())
    }

    fn start_in(&mut self, net: &Namespace) -> io::Result<()> {
        let (db, socket) = (self.file("conf.db"), self.file("db.sock"));
        self.run(net, "ovsdb-tool", &["create", &db, SCHEMA])?;
        let (remote, control) = (format!("--remote=punix:{socket}"), format!("--unixctl={}", self.file("db.ctl")));
        self.database = Some(self.spawn(net, "ovsdb-server", &[&db, &remote, &control], "db.sock")?);
        let db = format!("--db=unix:{socket}");
        self.run(net, "ovs-vsctl", &[&db, "--no-wait", "init"])?;
        self.start_switch(net)?;
        let mut args: Vec<String> =
            [&db, "--timeout=15", "add-br", "br0", "--", "set", "bridge", "br0"].map(String::from).into();
        args.extend(["datapath_type=netdev", "protocols=OpenFlow13,OpenFlow15", "fail_mode=secure"].map(String::from));
        for host in &self.hosts {
            let (name, port) = (format!("p{}", host.0), port_of(*host));
            args.extend(["--", "add-port", "br0", &name, "--", "set", "interface", &name].map(String::from));
            args.push(format!("ofport_request={port}"));
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        self.run(net, "ovs-vsctl", &args)?;
        Ok(())
    }

    fn bridge(&self) -> String {
        format!("unix:{}", self.file("br0.mgmt"))
    }

    /// Replaces the bridge's whole program atomically.
    pub fn set_rings(&self, net: &Namespace, rings: &[Ring]) -> io::Result<()> {
        let bundle = program(self.switch, &self.hosts, rings).map_err(io::Error::other)?;
        let file = self.file("bundle");
        std::fs::write(&file, bundle)?;
        self.run(net, "ovs-ofctl", &["-O", "OpenFlow15", "bundle", &self.bridge(), &file])?;
        Ok(())
    }

    /// The rings that the bridge has, by prefix: read back from its groups and flows.
    ///
    /// # Errors
    /// It does not answer, or does something else than rings ([`DumpError`]).
    pub fn rings(&self, net: &Namespace) -> io::Result<Vec<Ring>> {
        let groups = self.run(net, "ovs-ofctl", &["-O", "OpenFlow15", "dump-groups", &self.bridge()])?;
        let flows = self.run(net, "ovs-ofctl", &["-O", "OpenFlow15", "--no-stats", "dump-flows", &self.bridge()])?;
        rings_in(&groups, &flows).map_err(io::Error::other)
    }

    /// Installs these rings, sorted by prefix: restarts a daemon that ended, and writes the rings that differ. True if anything
    /// was changed.
    pub fn mend(&mut self, net: &Namespace, rings: &[Ring]) -> io::Result<bool> {
        let ended = |c: &mut Child| c.try_wait().is_ok_and(|ended| ended.is_some());
        if self.daemon.as_mut().is_none_or(ended) {
            self.start_switch(net)?;
            let end = Instant::now() + START_MAX;
            // It makes its bridge anew from its data base.
            loop {
                match self.set_rings(net, rings) {
                    Err(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(20)),
                    done => return done.map(|()| true),
                }
            }
        }
        if self.rings(net).is_ok_and(|has| has == rings) {
            return Ok(false);
        }
        self.set_rings(net, rings)?;
        Ok(true)
    }

    /// The daemon that switches.
    pub fn process(&self) -> Option<u32> {
        self.daemon.as_ref().map(Child::id)
    }
}

fn unique() -> u32 {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

impl Drop for OvsSwitch {
    fn drop(&mut self) {
        for child in self.daemon.iter_mut().chain(&mut self.database) {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
