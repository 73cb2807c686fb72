//! `policy set` of a rack in several processes: the switch and the servers are told, and the files from which they start
//! again are changed.

use std::time::Duration;

use super::ask::Way;
use super::processes::NODES_FILE;
use crate::embedded::control::{Answer, AskError, Command};
use crate::embedded::up::{CONFIG_FILE, keep_policy};
use crate::hosts::NodeName;
use crate::policy::Policy;

/// Nodes that do not answer begin with it when they are started again.
pub(super) fn set(way: &Way, name: &str, timeout: Duration) -> Result<Answer, AskError> {
    let refused = |message: String| Ok(Answer::Error { message });
    let policy: Policy = match name.parse() {
        Ok(policy) => policy,
        Err(e) => return refused(format!("{e}")),
    };
    let Way::Data(data) = way else {
        return refused(
            "these nodes start from a configuration of their own: change it there, and start them again".into(),
        );
    };
    let switch = NodeName::Switch.to_string();
    let all = way.names();
    let concerned = all.iter().filter(|n| **n == switch || n.starts_with("server-"));
    let mut answers = Vec::new();
    for node in concerned {
        match way.ask_node(node, &Command::PolicySet { policy: name.into() }, timeout) {
            // The first that is asked is the switch: what it cannot do nobody does.
            Ok(Answer::Error { message }) => return refused(format!("{node}: {message}")),
            Ok(answer) => answers.push(answer),
            Err(AskError::NotRunning { .. }) => {}
            Err(e) => return Err(e),
        }
    }
    for file in [NODES_FILE, CONFIG_FILE] {
        if let Err(e) = keep_policy(data, file, policy) {
            return refused(format!("{policy} from now on, but not after the next start: {e}"));
        }
    }
    Ok(answers.pop().unwrap_or(Answer::Changed(Vec::new())))
}
