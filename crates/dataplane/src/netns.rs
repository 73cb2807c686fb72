//! Network namespaces: hosts around a switch on one machine.
//!
//! The namespaces have no names: they end with this process, however it ends, as do their interfaces and programs.
//! Interfaces are made with `ip`; needs root.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rackweave_core::NodeId;

use crate::frame::mac;
use crate::interface;
use crate::kernel::{Hook, KernelFault, KernelSwitch, Port, PortPlace};

/// A network namespace, as long as this lives.
#[derive(Debug)]
pub struct Namespace {
    fd: OwnedFd,
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Puts the calling thread into the namespace behind `fd`: a plain system call, allowed between fork and exec.
pub fn enter(fd: RawFd) -> io::Result<()> {
    // SAFETY: changes the namespace of this thread only.
    check(unsafe { libc::setns(fd, libc::CLONE_NEWNET) })
}

impl Namespace {
    pub fn new() -> io::Result<Namespace> {
        let made = std::thread::spawn(|| {
            // SAFETY: changes the network namespace of this thread only.
            check(unsafe { libc::unshare(libc::CLONE_NEWNET) })?;
            File::open("/proc/thread-self/ns/net")
        });
        let namespace = Namespace { fd: made.join().expect("does not panic")?.into() };
        namespace.sh("ip link set lo up")?;
        Ok(namespace)
    }

    /// An existing one, by the argument of `nsenter --net=`.
    pub fn open(path: &Path) -> io::Result<Namespace> {
        Ok(Namespace { fd: File::open(path)?.into() })
    }

    /// Runs `f` on a thread of this namespace. Sockets made there stay in it.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> io::Result<T> {
        std::thread::scope(|s| {
            let thread = s.spawn(|| {
                // SAFETY: the descriptor is open; changes the namespace of this thread only.
                check(unsafe { libc::setns(self.fd.as_raw_fd(), libc::CLONE_NEWNET) })?;
                Ok(f())
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// A program that will run in this namespace, which must outlive its start.
    pub fn command(&self, program: &str) -> Command {
        let fd = self.fd.as_raw_fd();
        let mut command = Command::new(program);
        // SAFETY: setns is a plain system call, allowed between fork and exec.
        unsafe { command.pre_exec(move || enter(fd)) };
        command
    }

    /// Runs a shell's line here; its error output is the error.
    pub fn sh(&self, line: &str) -> io::Result<()> {
        let output = self.command("sh").args(["-c", line]).output()?;
        if output.status.success() {
            return Ok(());
        }
        Err(io::Error::other(format!("{line}: {}", String::from_utf8_lossy(&output.stderr).trim())))
    }

    /// A counter of `/proc/net/snmp`, for instance `Udp` `InCsumErrors`.
    pub fn snmp(&self, protocol: &str, counter: &str) -> io::Result<u64> {
        let text = self.run(|| std::fs::read_to_string("/proc/thread-self/net/snmp"))??;
        let mut lines = text.lines().filter_map(|l| l.strip_prefix(protocol)?.strip_prefix(": "));
        let value = lines.next().zip(lines.next()).and_then(|(names, values)| {
            names.split(' ').zip(values.split(' ')).find(|(n, _)| *n == counter)?.1.parse().ok()
        });
        value.ok_or_else(|| io::Error::other(format!("no {protocol} {counter} in /proc/net/snmp")))
    }

    /// For [`enter`] between fork and exec.
    pub fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Its name for `ip`, while this process lives.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.fd.as_raw_fd())
    }
}

/// A host: a namespace with one interface, `eth0`, and the node's address.
#[derive(Debug)]
pub struct Host {
    pub node: NodeId,
    pub net: Namespace,
}

/// Hosts around a switch's namespace; a host of node 7 is behind the switch's interface `p7`.
#[derive(Debug)]
pub struct Star {
    pub switch_node: NodeId,
    pub switch: Namespace,
    pub hosts: Vec<Host>,
}

/// Nodes that have an address: the hosts share one /24.
pub const NODES_MAX: u32 = 254;

/// 10.0.0.x of a node.
///
/// # Panics
/// If the node's number is [`NODES_MAX`] or more.
pub fn address(node: NodeId) -> std::net::Ipv4Addr {
    assert!(node.0 < NODES_MAX, "{node} has no address in 10.0.0.0/24");
    std::net::Ipv4Addr::from(node.ipv4())
}

fn mac_text(node: NodeId) -> String {
    mac(node).map(|b| format!("{b:02x}")).join(":")
}

impl Star {
    pub fn new(switch_node: NodeId, nodes: &[NodeId]) -> io::Result<Star> {
        let switch = Namespace::new()?;
        switch.sh(&format!("ip address add {}/32 dev lo", address(switch_node)))?;
        let mut star = Star { switch_node, switch, hosts: Vec::new() };
        for &node in nodes {
            star.connect(node)?;
        }
        Ok(star)
    }

    fn connect(&mut self, node: NodeId) -> io::Result<()> {
        let net = Namespace::new()?;
        let port = format!("p{}", node.0);
        self.switch.sh(&format!(
            "ip link add {port} address {} type veth peer name eth0 address {} netns {} && ip link set {port} up",
            mac_text(self.switch_node),
            mac_text(node),
            net.path()
        ))?;
        net.sh(&format!("ip address add {}/24 dev eth0 && ip link set eth0 up", address(node)))?;
        self.hosts.push(Host { node, net });
        Ok(())
    }

    /// # Panics
    /// If the host does not exist.
    pub fn host(&self, node: NodeId) -> &Host {
        self.hosts.iter().find(|h| h.node == node).unwrap_or_else(|| panic!("no host of {node}"))
    }

    /// Checksum offloads (and with them segmentation) of both ends of every link.
    pub fn offloads(&self, on: bool) -> io::Result<()> {
        let state = if on { "on" } else { "off" };
        for host in &self.hosts {
            host.net.sh(&format!("ethtool -K eth0 tx {state} rx {state}"))?;
            self.switch.sh(&format!("ethtool -K p{} tx {state} rx {state}", host.node.0))?;
        }
        Ok(())
    }

    /// Attaches the data plane to all ports.
    pub fn attach(&self, to: &mut KernelSwitch, place: PortPlace) -> Result<(), KernelFault> {
        for host in &self.hosts {
            let name = format!("p{}", host.node.0);
            let ifindex = self.switch.run(|| interface::index(&name))?.unwrap_or(0);
            to.set_port(host.node, Port { ifindex, mac: mac(host.node), place })?;
            self.switch.run(|| to.attach(&name))??;
            if to.hook() == Hook::Xdp {
                // Without it the far end takes nothing that was redirected before there was a packet buffer.
                host.net.sh("ethtool -K eth0 gro on")?;
            }
            if place == PortPlace::Queue {
                host.net.run(|| to.attach_behind_queue("eth0"))??;
            }
        }
        // An ARP request for the switch's own address gets that of its ports; nothing is sent there.
        to.set_port(self.switch_node, Port { ifindex: 0, mac: mac(self.switch_node), place })
    }
}
