//! A mutant under the unit tests of the crates that it names.

use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde::Serialize;

use crate::process::{self, Ended};
use crate::registry::Mutant;
use crate::search::VARIABLE;

/// CPU time after which a test that has printed no result counts as one that does not end.
const TEST_MAX: Duration = Duration::from_secs(120);

/// A test program.
#[derive(Debug)]
pub struct Binary {
    /// As mutants name it: the package without the prefix that all of ours have.
    name: String,
    path: PathBuf,
    /// Where its package lies: tests find their files from there.
    directory: PathBuf,
    /// Names of its tests.
    tests: Vec<String>,
}

impl Binary {
    pub fn name(&self) -> &str {
        &self.name
    }
    pub fn has(&self, test: &str) -> bool {
        self.tests.iter().any(|t| t == test)
    }
}

/// Which tests of a program run.
#[derive(Clone, Copy, Debug)]
pub enum Selection<'a> {
    All,
    One(&'a str),
    /// A search, with `count` seeds from `first` on.
    Seeds {
        test: &'a str,
        first: u64,
        count: u64,
    },
}

#[derive(Clone, Debug, Serialize)]
pub struct UnitTest {
    pub package: String,
    /// The test that failed or died, or the last one to pass.
    pub test: String,
    pub end: TestEnd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TestEnd {
    Failed,
    Died,
    Hang,
}

/// Those whose tests some mutant of the list names.
pub fn packages(mutants: &[&Mutant]) -> Vec<&'static str> {
    let mut all: Vec<&str> = mutants.iter().flat_map(|m| m.units.iter().copied()).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Finds the packages' test programs, and builds what `make test` has not built.
///
/// # Errors
/// The build failed.
pub fn build(packages: &[&str]) -> io::Result<Vec<Binary>> {
    if packages.is_empty() {
        return Ok(Vec::new());
    }
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // Of the whole workspace: with fewer packages dependencies would have other features, and be built anew.
    cargo.args(["test", "--workspace", "--tests", "--no-run", "--message-format", "json-render-diagnostics"]);
    let out = cargo.stderr(std::process::Stdio::inherit()).output()?;
    if !out.status.success() {
        return Err(io::Error::other(format!("cargo test --no-run: {}", out.status)));
    }
    let text = String::from_utf8_lossy(&out.stdout);
    Ok(text.lines().filter_map(|line| binary_of(&serde_json::from_str(line).ok()?, packages)).collect())
}

/// The test program that a line of cargo's messages names, if it is one of the packages'.
fn binary_of(message: &serde_json::Value, packages: &[&str]) -> Option<Binary> {
    let path = message["executable"].as_str().filter(|_| message["profile"]["test"] == true)?;
    let directory = PathBuf::from(message["manifest_path"].as_str()?).parent()?.to_path_buf();
    let package = directory.file_name()?.to_str()?;
    let name = packages.iter().find(|p| **p == package)?.to_string();
    let listed = Command::new(path).args(["--list", "--format", "terse"]).output().ok()?;
    let listed = String::from_utf8_lossy(&listed.stdout);
    let tests = listed.lines().filter_map(|l| l.strip_suffix(": test")).map(Into::into).collect();
    Some(Binary { name, path: path.into(), directory, tests })
}

/// The first test that fails with the mutant and passes without.
pub fn run(m: &Mutant, binaries: &[Binary]) -> Option<UnitTest> {
    let named = |b: &&Binary| m.units.contains(&b.name.as_str());
    binaries.iter().filter(named).find_map(|b| {
        let (test, end) = failing(b, Some(m.name), &Selection::All)?;
        // Which test it was that never ended is not known for sure: then all must pass.
        let only = if end == TestEnd::Failed { Selection::One(&test) } else { Selection::All };
        if failing(b, None, &only).is_some() {
            // Tests after it were not run.
            eprintln!("{}: {test} fails without a mutant, too", b.name);
            return None;
        }
        Some(UnitTest { package: b.name.clone(), test, end })
    })
}

/// The first test of these that does not pass.
pub fn failing(b: &Binary, mutant: Option<&str>, which: &Selection<'_>) -> Option<(String, TestEnd)> {
    let mut command = Command::new(&b.path);
    command.current_dir(&b.directory).args(["--test-threads", "1"]);
    match *which {
        Selection::One(test) | Selection::Seeds { test, .. } => command.args([test, "--exact"]),
        // Of the rack's tests, those that this program does not run itself.
        Selection::All if b.name == "search" => command.args(["--skip", "search::"]),
        Selection::All => &mut command,
    };
    if let Selection::Seeds { first, count, .. } = *which {
        command.env("RACKWEAVE_FIRST_SEED", first.to_string()).env("RACKWEAVE_SEEDS", count.to_string());
    }
    command.env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1").env("RUST_BACKTRACE", "0");
    command.env_remove(VARIABLE).envs(mutant.map(|m| (VARIABLE, m)));
    let (mut running, mut failed) = (String::new(), false);
    let ended = process::lines(&mut command, TEST_MAX, |line| {
        let Some((name, result)) = line.strip_prefix("test ").and_then(|l| l.split_once(" ... ")) else { return true };
        running = name.into();
        failed = result.ends_with("FAILED");
        !failed
    });
    match ended {
        Ok(Ended::Exit(status)) if status.success() => None,
        Ok(Ended::Silent) => Some((running, TestEnd::Hang)),
        Ok(_) if failed => Some((running, TestEnd::Failed)),
        Ok(_) => Some((running, TestEnd::Died)),
        Err(e) => panic!("{}: {e}", b.path.display()),
    }
}
