//! `policy show|set`.

use rackweave_device::FileIo;

use super::{Answer, Describe, EventLoop, MetaStore, Nodes, Place};
use rackweave_config::policy::Policy;

/// Stores a policy for the next start.
pub type Keep = Box<dyn FnMut(Policy) -> Result<(), String>>;

impl<N: Nodes + Describe, F: FileIo, M: MetaStore> EventLoop<N, F, M> {
    /// A changed policy is stored by `keep`.
    pub fn keep_policy_by(&mut self, keep: Keep) {
        self.keep = Some(keep);
    }

    pub(super) fn show_policy(&mut self, place: Place) {
        let answer = match self.engine.nodes.policy() {
            Some(p) => Answer::Policy(p),
            None => Answer::Error { message: "no node of this process has a policy".into() },
        };
        self.answer(self.clock.now(), place, &answer);
    }

    pub(super) fn set_policy(&mut self, place: Place, name: &str) {
        let answer = match self.change_policy(name) {
            Ok(changes) => Answer::Changed(changes),
            Err(message) => Answer::Error { message },
        };
        self.answer(self.clock.now(), place, &answer);
    }

    fn change_policy(&mut self, name: &str) -> Result<Vec<String>, String> {
        let policy: Policy = name.parse().map_err(|e: rackweave_config::policy::UnknownPolicy| e.to_string())?;
        let changes = self.engine.set_policy(self.clock.now(), policy).map_err(|e| e.to_string())?;
        if let Some(keep) = &mut self.keep {
            keep(policy).map_err(|e| {
                format!(
                    "the policy is {policy} until the next start only, since the configuration was not written: {e}"
                )
            })?;
        }
        Ok(changes)
    }
}
