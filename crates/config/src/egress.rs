//! `switch.scheduling` and `[switch.egress]`: queues at the switch's ports (RB8).
//!
//! ```toml
//! [switch]
//! scheduling = "fq"
//! [switch.egress]
//! mbit_per_s = 1000
//! [[switch.egress.flows]]
//! from = "gateway-0"
//! weight = 2
//! ```

use std::collections::BTreeMap;

use rackweave_core::Layout;
use rackweave_sched::egress::{EgressConfig, FlowConfig, NetSched};
use serde::{Deserialize, Serialize};

use super::Problem;
use crate::switching::{DataPlaneKind, SwitchSection};
use rackweave_core::{NodeKind, NodeName};

/// A queue or a burst must hold the longest message with its headers: 64 KiB of data.
const KIB_MIN: u64 = 72;
/// The same of a rack with keys: a packet has at most 10 MiB (`BODY_MAX` in `wire`).
const KEYS_KIB_MIN: u64 = 10_248;
const KIB_MAX: u64 = 1 << 20;
/// A thousand small messages of a client, or 16 of the longest.
const QUEUE_KIB: u64 = 1_024;
const BURST_KIB: u64 = 128;
const MBIT_MAX: u64 = 1_000_000;
const WEIGHT_MAX: u32 = 1_000;

/// Network schedulers (RackBlox §4.5.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SchedulingKind {
    /// By class, highest first.
    #[default]
    Priority,
    /// A token bucket per flow.
    Tb,
    /// Fair queueing by weight.
    Fq,
}

impl SchedulingKind {
    pub fn name(self) -> &'static str {
        match self {
            SchedulingKind::Priority => "priority",
            SchedulingKind::Tb => "tb",
            SchedulingKind::Fq => "fq",
        }
    }
}

/// The rate of every port of the switch, and the length of its queues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EgressSection {
    pub mbit_per_s: u64,
    /// Capacity of a queue; what does not fit is dropped.
    #[serde(default = "queue_kib")]
    pub queue_kib: u64,
    /// `tb`: rate of each flow that is not named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_mbit_per_s: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_burst_kib: Option<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flows: Vec<FlowSection>,
}

fn queue_kib() -> u64 {
    QUEUE_KIB
}

impl EgressSection {
    /// Ports of this rate, with queues of the default length.
    pub fn of_rate(mbit_per_s: u64) -> EgressSection {
        let (flow_mbit_per_s, flow_burst_kib) = (None, None);
        EgressSection { mbit_per_s, queue_kib: QUEUE_KIB, flow_mbit_per_s, flow_burst_kib, flows: Vec::new() }
    }
}

/// All traffic that one node sends, through any port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowSection {
    pub from: String,
    /// `fq`: weight; 1 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// `tb`: rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mbit_per_s: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_kib: Option<u64>,
}

fn bytes_per_s(mbit: u64) -> u64 {
    mbit * 125_000
}

impl SwitchSection {
    /// Configuration of the switch's node; `None` if nothing queues there.
    pub fn egress_config(&self, layout: &Layout) -> Option<EgressConfig> {
        let e = self.egress.as_ref()?;
        let scheduling = match self.scheduling {
            SchedulingKind::Priority => NetSched::Priority,
            SchedulingKind::Tb => NetSched::TokenBucket,
            SchedulingKind::Fq => NetSched::FairQueue,
        };
        let flow = |weight: Option<u32>, mbit: Option<u64>, burst: Option<u64>| FlowConfig {
            weight: weight.unwrap_or(1),
            bytes_per_s: bytes_per_s(mbit.or(e.flow_mbit_per_s).unwrap_or(e.mbit_per_s)),
            burst: burst.or(e.flow_burst_kib).unwrap_or(BURST_KIB) << 10,
        };
        let named = |f: &FlowSection| {
            let name = f.from.parse::<NodeName>().ok()?;
            Some((layout.id(name)?.0, flow(f.weight, f.mbit_per_s, f.burst_kib)))
        };
        Some(EgressConfig {
            scheduling,
            bytes_per_s: bytes_per_s(e.mbit_per_s),
            queue_bytes: e.queue_kib << 10,
            flow: flow(None, None, None),
            flows: e.flows.iter().filter_map(named).collect::<BTreeMap<_, _>>(),
        })
    }

    pub(crate) fn check_egress(&self, servers: u32, keys: bool, between_hosts: bool, out: &mut Vec<Problem>) {
        let mut wrong = |key: String, value: String, rule: String| {
            out.push(Problem { key: key.into(), value, rule });
        };
        let scheduling = self.scheduling.name();
        let Some(e) = &self.egress else {
            if self.scheduling != SchedulingKind::Priority {
                let rule = "only with switch.egress.mbit_per_s: ports without a rate have no queue";
                wrong("switch.scheduling".into(), format!("{scheduling:?}"), rule.into());
            }
            return;
        };
        if self.data_plane != DataPlaneKind::Process {
            let rule = "only with switch.data_plane = \"process\": behind programs in the kernel packets wait in the interface's \
                        own queue"
                .to_string();
            wrong("switch.egress".into(), format!("with {}", self.data_plane), rule);
        } else if between_hosts {
            let rule =
                "not with [hosts]: the hosts' datagrams pass the switch's process one by one, or bypass it".to_string();
            wrong("switch.egress".into(), format!("{} Mbit/s", e.mbit_per_s), rule);
        }
        self.check_egress_numbers(e, keys, &mut wrong);
        check_flows(e, servers, &mut wrong);
    }

    fn check_egress_numbers(&self, e: &EgressSection, keys: bool, wrong: &mut impl FnMut(String, String, String)) {
        let scheduling = self.scheduling.name();
        let mut mbit = |key: String, mbit: Option<u64>| {
            if let Some(n) = mbit.filter(|n| !(1..=MBIT_MAX).contains(n)) {
                wrong(key, n.to_string(), format!("1 to {MBIT_MAX}"));
            }
        };
        mbit("switch.egress.mbit_per_s".into(), Some(e.mbit_per_s));
        mbit("switch.egress.flow_mbit_per_s".into(), e.flow_mbit_per_s);
        for (i, f) in e.flows.iter().enumerate() {
            mbit(format!("switch.egress.flows[{i}].mbit_per_s"), f.mbit_per_s);
        }
        let (least, longest) = if keys { (KEYS_KIB_MIN, "with keys 10 MiB") } else { (KIB_MIN, "64 KiB") };
        let mut kib = |key: String, kib: Option<u64>| {
            if let Some(n) = kib.filter(|n| !(least..=KIB_MAX).contains(n)) {
                let rule = format!("{least} to {KIB_MAX}: the longest message has {longest} of data and its headers");
                wrong(key, n.to_string(), rule);
            }
        };
        kib("switch.egress.queue_kib".into(), Some(e.queue_kib));
        let burst = e.flow_burst_kib.or((self.scheduling == SchedulingKind::Tb).then_some(BURST_KIB));
        kib("switch.egress.flow_burst_kib".into(), burst);
        for (i, f) in e.flows.iter().enumerate() {
            kib(format!("switch.egress.flows[{i}].burst_kib"), f.burst_kib);
        }
        if self.scheduling == SchedulingKind::Tb && e.flow_mbit_per_s.is_none() {
            let rule = "required with switch.scheduling = \"tb\": the rate of each flow".to_string();
            wrong("switch.egress.flow_mbit_per_s".into(), "none".into(), rule);
        }
        let mut only = |key: String, with: SchedulingKind, value: Option<String>| {
            if let Some(value) = value.filter(|_| self.scheduling != with) {
                wrong(key, value, format!("only with switch.scheduling = {:?}, not {scheduling:?}", with.name()));
            }
        };
        let text = |n: Option<u64>| n.map(|n| n.to_string());
        only("switch.egress.flow_mbit_per_s".into(), SchedulingKind::Tb, text(e.flow_mbit_per_s));
        only("switch.egress.flow_burst_kib".into(), SchedulingKind::Tb, text(e.flow_burst_kib));
        for (i, f) in e.flows.iter().enumerate() {
            let key = |part: &str| format!("switch.egress.flows[{i}].{part}");
            only(key("weight"), SchedulingKind::Fq, f.weight.map(|w| w.to_string()));
            only(key("mbit_per_s"), SchedulingKind::Tb, text(f.mbit_per_s));
            only(key("burst_kib"), SchedulingKind::Tb, text(f.burst_kib));
        }
    }
}

/// Checks that each flow names a node of the rack, once, with a valid weight.
fn check_flows(e: &EgressSection, servers: u32, wrong: &mut impl FnMut(String, String, String)) {
    for (i, f) in e.flows.iter().enumerate() {
        let key = |part: &str| format!("switch.egress.flows[{i}].{part}");
        let known = f.from.parse::<NodeName>().is_ok_and(|name| match name.kind {
            NodeKind::Server => name.index < servers,
            kind => kind != NodeKind::Switch,
        });
        if !known || e.flows[..i].iter().any(|other| other.from == f.from) {
            wrong(key("from"), format!("{:?}", f.from), "meta, server-N of the rack or gateway-N, each once".into());
        }
        if let Some(w) = f.weight.filter(|w| !(1..=WEIGHT_MAX).contains(w)) {
            wrong(key("weight"), w.to_string(), format!("1 to {WEIGHT_MAX}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ConfigError, RackConfig};

    fn problems(text: &str) -> Vec<String> {
        match RackConfig::parse(text) {
            Ok(_) => Vec::new(),
            Err(ConfigError::Rules(all)) => all.iter().map(ToString::to_string).collect(),
            Err(other) => panic!("{text}: {other}"),
        }
    }

    #[test]
    fn ports_and_flows_are_as_configured() {
        let text = "[switch]\nscheduling = \"tb\"\n[switch.egress]\nmbit_per_s = 800\nflow_mbit_per_s = 8\n\
                    [[switch.egress.flows]]\nfrom = \"gateway-1\"\nmbit_per_s = 16\nburst_kib = 72\n";
        let cfg = RackConfig::parse(text).expect("sound");
        let layout = Layout::new(cfg.servers, 2);
        let egress = cfg.switch.egress_config(&layout).expect("configured");
        let flow = FlowConfig { weight: 1, bytes_per_s: 1_000_000, burst: 128 << 10 };
        let named = FlowConfig { bytes_per_s: 2_000_000, burst: 72 << 10, ..flow };
        assert_eq!((egress.bytes_per_s, egress.queue_bytes, egress.flow), (100_000_000, 1 << 20, flow));
        assert_eq!(egress.flows, [(layout.client(1).0, named)].into());
        let again = RackConfig::parse(&cfg.to_toml()).expect("its own text");
        assert_eq!(again, cfg);
        assert_eq!(RackConfig::default().switch.egress_config(&layout), None);
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        let with = |scheduling: &str, rest: &str| {
            problems(&format!("[switch]\nscheduling = \"{scheduling}\"\n[switch.egress]\n{rest}\n"))
        };
        let keys = |rest: &str| problems(&format!("{rest}\n[kv]\nchannels = 2\nreplicas = 3\n"));
        let found = keys("[switch.egress]\nmbit_per_s = 10");
        assert!(found[0].contains("switch.egress.queue_kib = 1024: 10248 to 1048576: the longest"), "{found:?}");
        let tb =
            "[switch]\nscheduling = \"tb\"\n[switch.egress]\nmbit_per_s = 10\nflow_mbit_per_s = 1\nqueue_kib = 10248\n";
        let found = keys(tb);
        assert!(found.len() == 1 && found[0].contains("switch.egress.flow_burst_kib = 128: 10248 to"), "{found:?}");
        assert_eq!(keys(&format!("{tb}flow_burst_kib = 10248\n")), Vec::<String>::new());
        for (scheduling, rest, key) in [
            ("fq", "mbit_per_s = 0", "switch.egress.mbit_per_s = 0: 1 to"),
            ("fq", "mbit_per_s = 1000001", "switch.egress.mbit_per_s = 1000001: 1 to"),
            ("fq", "mbit_per_s = 10\nqueue_kib = 0", "switch.egress.queue_kib = 0: 72 to"),
            ("priority", "mbit_per_s = 10\nqueue_kib = 71", "switch.egress.queue_kib = 71: 72 to"),
            ("tb", "mbit_per_s = 10", "switch.egress.flow_mbit_per_s = none: required with switch.scheduling = \"tb\""),
            ("tb", "mbit_per_s = 10\nflow_mbit_per_s = 0", "switch.egress.flow_mbit_per_s = 0: 1 to"),
            ("tb", "mbit_per_s = 10\nflow_mbit_per_s = 1\nflow_burst_kib = 64", "flow_burst_kib = 64: 72 to"),
            ("fq", "mbit_per_s = 10\nflow_mbit_per_s = 1", "switch.egress.flow_mbit_per_s = 1: only with"),
            ("fq", "mbit_per_s = 10\nflow_burst_kib = 100", "switch.egress.flow_burst_kib = 100: only with"),
            ("fq", "mbit_per_s = 10\nflows = [{ from = \"server-4\" }]", "flows[0].from = \"server-4\": meta"),
            ("fq", "mbit_per_s = 10\nflows = [{ from = \"switch\" }]", "flows[0].from = \"switch\": meta"),
            ("fq", "mbit_per_s = 10\nflows = [{ from = \"meta\" }, { from = \"meta\" }]", "flows[1].from = \"meta\""),
            ("fq", "mbit_per_s = 10\nflows = [{ from = \"meta\", weight = 0 }]", "flows[0].weight = 0: 1 to 1000"),
            (
                "tb",
                "mbit_per_s = 10\nflow_mbit_per_s = 1\nflows = [{ from = \"meta\", weight = 2 }]",
                "weight = 2: only",
            ),
            ("priority", "mbit_per_s = 10\nflows = [{ from = \"meta\", mbit_per_s = 2 }]", "mbit_per_s = 2: only"),
            ("priority", "mbit_per_s = 10\nflows = [{ from = \"meta\", burst_kib = 99 }]", "burst_kib = 99: only"),
        ] {
            let found = with(scheduling, rest);
            assert!(found.len() == 1 && found[0].contains(key), "{scheduling}, {rest}: {found:?}");
        }
        for scheduling in ["tb", "fq"] {
            let found = problems(&format!("[switch]\nscheduling = \"{scheduling}\"\n"));
            assert!(found[0].contains("switch.scheduling") && found[0].contains("mbit_per_s"), "{found:?}");
        }
        for plane in ["tc", "xdp"] {
            let text = format!("[switch]\ndata_plane = \"{plane}\"\n[switch.egress]\nmbit_per_s = 10\n");
            let found = problems(&text).join("; ");
            assert!(found.contains(&format!("switch.egress = with {plane}: only with switch.data_plane")), "{found}");
        }
        let hosts = "[hosts]\nmeta = \"127.0.0.1:7400\"\nswitch = \"127.0.0.1:7401\"\n\
                     servers = [\"127.0.0.1:7402\", \"127.0.0.1:7403\", \"127.0.0.1:7404\", \"127.0.0.1:7405\"]\n\
                     gateways = [\"127.0.0.1:7406\"]\n[switch.egress]\nmbit_per_s = 10\n";
        let found = problems(hosts).join("; ");
        assert!(found.contains("switch.egress = 10 Mbit/s: not with [hosts]"), "{found}");
    }
}
