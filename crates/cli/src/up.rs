//! `rackweave up` and `rackweave node`.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use rackweave_config::TimingConfig;
use rackweave_config::switching::DataPlaneKind;
use rackweave_core::{NodeKind, NodeName};
use rackweave_device::convert::Outcome;
use rackweave_net::node::{self, NodeOptions};
use rackweave_net::processes;
use rackweave_runtime::Options;
use rackweave_runtime::net::Address;
use rackweave_runtime::protocol::{Addresses, RespAddress};
use rackweave_runtime::status::Facts;

use crate::Failure;
use crate::args::{DataPlane, Node, Timing, Up};

/// Where clients connect without an option.
const NBD_DEFAULT: &str = "127.0.0.1:10809";
const NBD_SOCKET: &str = "nbd.sock";
const RESP_DEFAULT: &str = "127.0.0.1:6379";
const RESP_SOCKET: &str = "resp.sock";

fn default_address(data: &Path, netns: bool, tcp: &str, socket: &str) -> Result<Address, Failure> {
    Ok(if netns { Address::Unix(std::path::absolute(data)?.join(socket)) } else { tcp.parse()? })
}
fn resp_address(given: Option<&Address>, default: Address) -> RespAddress {
    RespAddress { address: given.cloned().unwrap_or(default), required: given.is_some() }
}

/// `rackweave convert`
pub fn convert(dir: &Path) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let mut drives = 0;
    rackweave_runtime::convert_all(dir, |path, outcome| {
        drives += 1;
        let what = match outcome {
            Outcome::Converted => "converted",
            Outcome::Already => "needs no conversion",
        };
        let _ = writeln!(out, "{}: {what}", path.display());
    })?;
    if drives == 0 {
        return Err(format!("{} has no drives", dir.display()).into());
    }
    Ok(())
}

pub fn up(data: &Path, a: &Up) -> Result<(), Failure> {
    let nbd = default_address(data, a.netns, NBD_DEFAULT, NBD_SOCKET)?;
    let resp = default_address(data, a.netns, RESP_DEFAULT, RESP_SOCKET)?;
    let listen = Addresses {
        nbd: a.nbd.clone().unwrap_or(nbd),
        resp: resp_address(a.resp.as_ref(), resp),
        http: a.http.clone(),
    };
    if a.pcap.is_some() && !a.processes && !a.netns {
        return Err("--pcap needs --processes or --netns: a rack in one process sends no datagrams".into());
    }
    if let Some(n) = a.gateways.filter(|_| !a.processes && !a.netns) {
        return Err(
            format!("--gateways {n} needs --processes or --netns: a rack in one process has one gateway").into()
        );
    }
    let options = Options {
        data: data.into(),
        listen,
        config: a.config.clone(),
        keys: a.keys,
        servers: a.servers,
        ssd_size: a.ssd_size,
        timing: a.timing.map(|t| match t {
            Timing::Real => TimingConfig::Real,
            Timing::None => TimingConfig::None,
        }),
        victims: a.gc_victims.map(Into::into),
        netns: a.netns.then(|| kind(a.data_plane)),
        gateways: a.gateways,
        replace_ssd: a.replace_ssd.clone(),
        pcap: a.pcap.clone(),
        absent: a.absent.clone(),
    };
    let json = a.json;
    let ready = move |facts: &Facts| {
        let mut out = std::io::stdout().lock();
        // Whoever started us may have closed our output: the rack runs on.
        let _ = if json {
            let Facts { data, nbd, resp, http, driver, .. } = facts;
            let all = serde_json::json!({ "data": data, "nbd": nbd, "resp": resp, "http": http, "driver": driver });
            writeln!(out, "{all}")
        } else {
            print(&mut out, facts)
        };
        let _ = out.flush();
    };
    if a.processes || a.netns {
        processes::up(&std::env::current_exe()?, &options, ready)?;
    } else {
        rackweave_runtime::up(&options, ready)?;
    }
    Ok(())
}

pub fn node(data: &Path, a: &Node) -> Result<ExitCode, Failure> {
    let (config, name) = match a {
        Node::Meta(c) => (c, NodeName::META),
        Node::Switch { config, id, .. } => (config, NodeName { kind: NodeKind::Switch, index: *id }),
        Node::Server { config, id, .. } => (config, NodeName::server(*id)),
        Node::Gateway { config, id, .. } => (config, NodeName::gateway(*id)),
    };
    let listen = match a {
        Node::Gateway { nbd, resp, http, .. } => {
            let resp = resp_address(resp.as_ref(), RESP_DEFAULT.parse()?);
            Some(Addresses { nbd: nbd.clone(), resp, http: http.clone() })
        }
        _ => None,
    };
    let data_plane = match a {
        Node::Switch { data_plane, .. } => data_plane.map(kind),
        _ => None,
    };
    let (supervised, config, pcap) = (config.supervised, config.config.clone(), config.pcap.clone());
    let replace_ssd = matches!(a, Node::Server { replace_ssd: true, .. });
    let options = NodeOptions { data: data.into(), config, name, data_plane, listen, pcap, replace_ssd, supervised };
    let run = node::run(&options, move |facts| {
        if supervised {
            return;
        }
        let mut out = std::io::stdout().lock();
        let (name, address) = facts.node.clone().unwrap_or_default();
        let _ = writeln!(out, "{name} on {address}");
        let _ = print(&mut out, facts).and_then(|()| out.flush());
    });
    match run {
        Err(e) if e.is_refusal() => {
            let _ = writeln!(std::io::stderr(), "rackweave: {e}");
            Ok(ExitCode::from(node::REFUSED as u8))
        }
        done => done.map(|()| ExitCode::SUCCESS).map_err(Into::into),
    }
}

fn kind(d: DataPlane) -> DataPlaneKind {
    match d {
        DataPlane::Process => DataPlaneKind::Process,
        DataPlane::Tc => DataPlaneKind::Tc,
        DataPlane::Xdp => DataPlaneKind::Xdp,
    }
}

fn print(out: &mut impl Write, facts: &rackweave_runtime::status::Facts) -> std::io::Result<()> {
    for uri in &facts.nbd {
        let example = match uri.split_once("///?") {
            Some((scheme, query)) => format!("{scheme}///VOLUME?{query}"),
            None => format!("{uri}/VOLUME"),
        };
        writeln!(out, "NBD      {example}")?;
    }
    for uri in &facts.resp {
        writeln!(out, "RESP     {uri}")?;
    }
    if let Some(http) = &facts.http {
        writeln!(out, "metrics  {http}")?;
    }
    writeln!(out, "data     {}", facts.data)?;
    writeln!(out, "driver   {}; timing {}", facts.driver, facts.timing)?;
    if facts.node.is_some() {
        return writeln!(out, "ready (Ctrl-C stops)");
    }
    writeln!(out, "ready (rackweave volume create NAME --size SIZE creates a volume; Ctrl-C stops)")
}
