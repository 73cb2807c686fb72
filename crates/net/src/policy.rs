//! `policy set|show` of a rack with a process per node. Switch and servers are queried individually, and the files from
//! which they start are changed. A hung node delays none of the others and is named.

use std::time::Duration;

use super::ask::{STATUS_WAIT, Target, reason};
use super::processes::NODES_FILE;
use rackweave_config::policy::Policy;
use rackweave_core::{NodeKind, NodeName};
use rackweave_runtime::control::{Answer, AskError, Command, Local, PolicyState};
use rackweave_runtime::up::{CONFIG_FILE, keep_policy};

/// A node that has not changed its policy within this time hangs.
const NODE_WAIT: Duration = Duration::from_secs(5);

/// Nodes that have a policy, switches first: a switch in the kernel may refuse a policy, and then no node changes.
fn concerned(way: &Target) -> Vec<String> {
    let (switches, others): (Vec<String>, Vec<String>) = way.names().into_iter().partition(|n| is_switch(n));
    switches.into_iter().chain(others.into_iter().filter(|n| n.starts_with("server-"))).collect()
}

pub(super) fn is_switch(name: &str) -> bool {
    name.parse().is_ok_and(|n: NodeName| n.kind == NodeKind::Switch)
}

/// The error if no node answered: none runs, or a running one is hung.
fn nobody(way: &Target, hung: Option<AskError>) -> AskError {
    hung.unwrap_or_else(|| AskError::NotRunning { data: way.place().into() })
}

/// Nodes that do not run get the policy when they are started.
pub(super) fn set(way: &Target, name: &str, timeout: Duration) -> Result<Answer, AskError> {
    let refused = |message: String| Ok(Answer::Error { message });
    let policy: Policy = match name.parse() {
        Ok(policy) => policy,
        Err(e) => return refused(format!("{e}")),
    };
    let Target::Data(data) = way else {
        return refused("these nodes start from their own configuration: change it there, and restart them".into());
    };
    let (mut changed, mut without, mut hung) = (None, Vec::new(), None);
    for node in concerned(way) {
        match way.ask_node(&node, &Command::Local(Local::PolicySet { policy: name.into() }), timeout.min(NODE_WAIT)) {
            Ok(Answer::Error { message }) if is_switch(&node) => {
                return refused(format!("{node}: {message}"));
            }
            Ok(Answer::Changed(keys)) => changed = Some(keys),
            Ok(Answer::Error { message }) => without.push(format!("{node} ({message})")),
            Ok(_) => without.push(format!("{node} (its answer does not match the command)")),
            Err(AskError::NotRunning { .. }) => {}
            Err(e) => {
                without.push(format!("{node} ({})", reason(&e)));
                hung = Some(e);
            }
        }
    }
    let Some(changed) = changed else { return Err(nobody(way, hung)) };
    for file in [NODES_FILE, CONFIG_FILE] {
        if let Err(e) = keep_policy(data, file, policy) {
            return refused(format!(
                "the policy is {policy} until the next start only, since the configuration was not written: {e}"
            ));
        }
    }
    if without.is_empty() {
        return Ok(Answer::Changed(changed));
    }
    refused(format!(
        "the policy is {policy}, but not at {}: repeat the command when it answers (rackweave policy show lists the policy \
         of each node)",
        without.join(", ")
    ))
}

/// The common policy; names nodes that differ or do not answer.
pub(super) fn show(way: &Target, timeout: Duration) -> Result<Answer, AskError> {
    let (mut answers, mut silent, mut hung) = (Vec::new(), Vec::new(), None);
    for node in concerned(way) {
        match way.ask_node(&node, &Command::Local(Local::PolicyShow), timeout.min(STATUS_WAIT)) {
            Ok(Answer::Policy(state)) => answers.push((node, state)),
            Ok(Answer::Error { message }) => silent.push(format!("{node}: {message}")),
            Ok(_) => silent.push(format!("{node}: its answer does not match the command")),
            Err(e) => {
                silent.push(format!("{node} does not answer: {}", reason(&e)));
                if !matches!(e, AskError::NotRunning { .. }) {
                    hung = Some(e);
                }
            }
        }
    }
    if answers.is_empty() {
        return Err(nobody(way, hung));
    }
    let mut all = together(answers);
    all.otherwise.extend(silent);
    Ok(Answer::Policy(all))
}

/// Merges the answers: what all nodes report appears once, the rest with node names. The policy is the first node's.
fn together(answers: Vec<(String, PolicyState)>) -> PolicyState {
    let policy = answers.first().map(|(_, state)| state.policy.clone()).unwrap_or_default();
    let mut otherwise: Vec<String> = Vec::new();
    for (node, state) in &answers {
        if state.policy != policy {
            otherwise.push(format!("{node}: policy = {:?}", state.policy));
        }
        for line in &state.otherwise {
            let all_say = answers.iter().all(|(_, s)| s.otherwise.contains(line));
            let line = if all_say || line.starts_with(&format!("{node}: ")) {
                line.clone()
            } else {
                format!("{node}: {line}")
            };
            if !otherwise.contains(&line) {
                otherwise.push(line);
            }
        }
    }
    PolicyState { policy, otherwise }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_goes_by_something_else_is_named() {
        let state = |policy: &str, otherwise: &[&str]| PolicyState {
            policy: policy.into(),
            otherwise: otherwise.iter().map(ToString::to_string).collect(),
        };
        let of = |all: &[(&str, PolicyState)]| together(all.iter().map(|(n, s)| (n.to_string(), s.clone())).collect());
        let same = state("baseline", &["gc.policy = \"coordinated\""]);
        assert_eq!(of(&[("switch", same.clone()), ("server-0", same.clone())]), same);
        let older = state("rackblox", &["server-1: sched.coordinated = true"]);
        assert_eq!(
            of(&[("switch", same), ("server-1", older)]),
            state(
                "baseline",
                &[
                    "switch: gc.policy = \"coordinated\"",
                    "server-1: policy = \"rackblox\"",
                    "server-1: sched.coordinated = true"
                ]
            )
        );
    }
}
