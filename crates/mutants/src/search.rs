//! A mutant under the fault search: the first plan that fails with it and passes without.

use std::process::Command;
use std::time::Duration;

use rackweave_search::fault::PlanKind;
use serde::Serialize;

use crate::child::{FAILED, PASSED, REACHED, plan_of};
use crate::process::{self, Ended};
use crate::registry::Mutant;

/// Processor time of a plan. It takes about a second; one that takes this long does not end.
const PLAN_MAX: Duration = Duration::from_secs(60);
/// The environment variable that names the mutant.
pub const VARIABLE: &str = "RACKWEAVE_MUTANT";

#[derive(Clone, Debug, Serialize)]
pub struct Found {
    pub kind: String,
    pub seed: u64,
    /// Seeds of its kind up to this one.
    pub seeds: u64,
    /// The check that failed, and what it said.
    pub check: String,
    pub said: String,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Search {
    pub found: Option<Found>,
    /// Plans that were run.
    pub plans: u64,
    /// How often the mutant's place was reached.
    pub reached: u64,
}

pub fn run(m: &Mutant, first_seed: u64, seeds: u64) -> Search {
    let mut search = Search::default();
    search.go_on(m, first_seed, seeds);
    search
}

impl Search {
    /// Continues up to `seeds` seeds of each kind.
    pub fn go_on(&mut self, m: &Mutant, first_seed: u64, seeds: u64) {
        let total = seeds * m.kinds.len() as u64;
        while self.plans < total {
            let at = self.plans;
            let broken = plans(Some(m.name), m.kinds, m.transport, first_seed, at, total - at);
            self.reached += broken.reached;
            self.plans += broken.passed;
            let Some((check, said)) = broken.failed else { continue };
            let (kind, seed) = plan_of(m.kinds, first_seed, self.plans);
            self.plans += 1;
            if plans(None, &[kind], m.transport, seed, 0, 1).failed.is_none() {
                let seeds = seed - first_seed + 1;
                let kind = format!("{kind}{}", if m.transport { " with the transport" } else { "" });
                self.found = Some(Found { kind, seed, seeds, check, said });
                break;
            }
        }
    }
}

#[derive(Default)]
struct Run {
    passed: u64,
    reached: u64,
    /// The check that failed, and what it said.
    failed: Option<(String, String)>,
}

/// Runs plans in a process of their own, up to the first that fails.
fn plans(mutant: Option<&str>, kinds: &[PlanKind], transport: bool, first_seed: u64, skip: u64, count: u64) -> Run {
    let kinds: Vec<&str> = kinds.iter().map(|k| k.name()).collect();
    let mut command = Command::new(std::env::current_exe().expect("started from a file"));
    command.arg("child").args(["--kinds", &kinds.join(",")]).args(["--first-seed", &first_seed.to_string()]);
    command.args(transport.then_some("--transport"));
    command.args(["--skip", &skip.to_string(), "--count", &count.to_string()]);
    command.env_remove(VARIABLE).envs(mutant.map(|m| (VARIABLE, m)));
    let mut run = Run::default();
    let ended = process::lines(&mut command, PLAN_MAX, |line| {
        run.passed += u64::from(line == PASSED);
        if let Some(failure) = line.strip_prefix(FAILED) {
            run.failed = Some(check_of(failure));
        }
        run.reached += line.strip_prefix(REACHED).and_then(|n| n.parse().ok()).unwrap_or(0);
        true
    });
    match ended {
        Ok(Ended::Exit(status)) if status.success() => {}
        Ok(Ended::Exit(status)) => run.failed = Some(("died".into(), status.to_string())),
        Ok(_) => {
            run.failed =
                Some(("hang".into(), format!("a plan did not end within {} s of processor time", PLAN_MAX.as_secs())))
        }
        Err(e) => panic!("cannot run myself: {e}"),
    }
    run
}

fn check_of(failure: &str) -> (String, String) {
    let v: serde_json::Value = serde_json::from_str(failure).unwrap_or_default();
    let text = |key: &str| v[key].as_str().unwrap_or_default().to_string();
    (text("check"), text("what"))
}
