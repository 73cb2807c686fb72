use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Problem;
use crate::hosts::HostsSection;

/// The control channel between hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ControlSection {
    /// TCP port of node 0, the metadata service. Node `i` listens on this port plus `i`.
    pub port: u16,
    /// A directory made by `rackweave keys add`; relative to the configuration's directory.
    pub certificates: PathBuf,
}

impl ControlSection {
    pub(crate) fn check(&self, hosts: Option<&HostsSection>, out: &mut Vec<Problem>) {
        let nodes = hosts.map_or(0, |h| h.names().count());
        let mut problem = |rule: String| {
            out.push(Problem { key: "control.port".into(), value: self.port.to_string(), rule });
        };
        if hosts.is_none() {
            problem("only with [hosts]: the control channel connects hosts".into());
        } else if self.port == 0 || usize::from(self.port) + nodes > 65_536 {
            problem(format!("1 to {}: each of {nodes} nodes takes one port from it on", 65_536 - nodes));
        }
        for (name, text) in hosts.iter().flat_map(|h| h.names().filter_map(|n| Some((n, h.text(n)?)))) {
            let taken = text.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
            if taken.is_some_and(|port| (usize::from(self.port)..usize::from(self.port) + nodes).contains(&port.into()))
            {
                problem(format!("{nodes} free ports from it on; {name} is at {text}"));
            }
        }
    }
}
