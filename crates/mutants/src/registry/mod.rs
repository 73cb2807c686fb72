//! Every mutant: which rule of the protocol it breaks, what then goes wrong, and where that must show.

mod block;
mod client;
mod cloud;
mod device;
mod flash;
mod host;
mod kv;
mod kv_replica;
mod meta;
mod replica;
mod server;
mod switch;
mod transport;

use rackweave_search::fault::PlanKind;
use serde::{Serialize, Serializer};

#[derive(Debug, Serialize)]
pub struct Mutant {
    /// `crate.subject.what`, as in the crate's source.
    pub name: &'static str,
    /// Number of the protocol's rule, or the subject's page.
    pub rule: &'static str,
    pub breaks: &'static str,
    #[serde(serialize_with = "names")]
    pub kinds: &'static [PlanKind],
    /// Plans are run with the transport between nodes.
    pub transport: bool,
    /// Crates whose unit tests are run.
    pub units: &'static [&'static str],
    pub verdict: Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", content = "why", rename_all = "snake_case")]
pub enum Verdict {
    /// A search catches it.
    Searched,
    /// A unit test catches it; no search does yet.
    Tested,
    /// Nothing can notice: what it changes has no effect, for this reason.
    Equivalent(&'static str),
    /// No check notices yet, for this reason.
    #[allow(dead_code, reason = "no mutant is open at present")]
    Open(&'static str),
}

fn names<S: Serializer>(kinds: &[PlanKind], s: S) -> Result<S::Ok, S::Error> {
    s.collect_seq(kinds.iter().map(|k| k.name()))
}

/// All, in order of the lists.
pub fn all() -> impl Iterator<Item = &'static Mutant> {
    let crates = [
        replica::MUTANTS,
        meta::MUTANTS,
        server::MUTANTS,
        flash::MUTANTS,
        switch::MUTANTS,
        client::MUTANTS,
        block::MUTANTS,
        device::MUTANTS,
        transport::MUTANTS,
        kv::MUTANTS,
        kv_replica::MUTANTS,
        cloud::MUTANTS,
        host::MUTANTS,
    ];
    crates.into_iter().flatten()
}

/// A mutant that a search catches.
const fn m(
    name: &'static str,
    rule: &'static str,
    kinds: &'static [PlanKind],
    units: &'static [&'static str],
    breaks: &'static str,
) -> Mutant {
    Mutant { name, rule, breaks, kinds, transport: false, units, verdict: Verdict::Searched }
}

/// The same of the network between nodes: plans are run with the transport.
const fn net(
    name: &'static str,
    rule: &'static str,
    kinds: &'static [PlanKind],
    units: &'static [&'static str],
    breaks: &'static str,
) -> Mutant {
    Mutant { transport: true, ..m(name, rule, kinds, units, breaks) }
}

impl Mutant {
    const fn tested(self) -> Mutant {
        Mutant { verdict: Verdict::Tested, ..self }
    }
    const fn equivalent(self, why: &'static str) -> Mutant {
        Mutant { verdict: Verdict::Equivalent(why), ..self }
    }
    #[allow(dead_code, reason = "no mutant is open at present")]
    const fn open(self, why: &'static str) -> Mutant {
        Mutant { verdict: Verdict::Open(why), ..self }
    }
}

/// Plans that most mutants are searched with.
mod plans {
    use rackweave_search::fault::PlanKind::{self, *};

    pub const ONE: &[PlanKind] = &[OneRack];
    pub const FEW: &[PlanKind] = &[OneRack, FewBlocks];
    pub const CUTS: &[PlanKind] = &[OneRack, SetCuts];
    pub const CRASHES: &[PlanKind] = &[OneRack, HalfCrashes];
    pub const LEASES: &[PlanKind] = &[OneRack, Severed];
    pub const SINGLE: &[PlanKind] = &[OneRack, SingleCopies];
    pub const MOVES: &[PlanKind] = &[Moves];
    pub const RACKS: &[PlanKind] = &[TwoRacks];
    pub const GROUPS: &[PlanKind] = &[Groups];
    pub const CHOSEN: &[PlanKind] = &[OneRack, ChosenReplica];
    pub const ALONE: &[PlanKind] = &[OneRack, SetCuts, LeftAlone];
    pub const EDITS: &[PlanKind] = &[Edits];
    pub const SWAPS: &[PlanKind] = &[Swaps];
    pub const LATE: &[PlanKind] = &[LateMessages];
    pub const PASSING: &[PlanKind] = &[PassingVolumes];
    pub const NOISY: &[PlanKind] = &[NoisyRacks];
    pub const LEFT: &[PlanKind] = &[TwoRacks, LeftAlone];
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::all;

    /// Names marked in the sources of the crates, with the crate.
    fn marked() -> BTreeMap<String, String> {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("lies among the crates").to_path_buf();
        let mut out = BTreeMap::new();
        for dir in fs::read_dir(&crates).expect("the crates") {
            let dir = dir.expect("readable").path();
            let package = dir.file_name().expect("has one").to_string_lossy().into_owned();
            if package != "mutants" {
                let mut files = Vec::new();
                rust_files(&dir.join("src"), &mut files);
                for f in files {
                    let text = fs::read_to_string(&f).expect("readable");
                    let names = text.split("mutant!(\"").skip(1).filter_map(|rest| rest.split('"').next());
                    out.extend(names.map(|n| (n.to_string(), package.clone())));
                }
            }
        }
        out
    }

    fn rust_files(dir: &Path, out: &mut Vec<PathBuf>) {
        for e in fs::read_dir(dir).into_iter().flatten() {
            let path = e.expect("readable").path();
            if path.is_dir() {
                rust_files(&path, out);
            } else if path.extension().is_some_and(|x| x == "rs") {
                out.push(path);
            }
        }
    }

    #[test]
    fn the_list_and_the_source_have_the_same_mutants() {
        let marked = marked();
        let listed: BTreeSet<&str> = all().map(|m| m.name).collect();
        assert_eq!(listed.len(), all().count(), "a name is listed twice");
        let source: BTreeSet<&str> = marked.keys().map(String::as_str).collect();
        assert_eq!(source.difference(&listed).collect::<Vec<_>>(), [&""; 0], "marked and not listed");
        assert_eq!(listed.difference(&source).collect::<Vec<_>>(), [&""; 0], "listed and not marked");
        for (name, package) in &marked {
            assert_eq!(name.split('.').next(), Some(package.as_str()), "{name}: names begin with their crate");
            assert_eq!(name.split('.').count(), 3, "{name}: crate.subject.what");
        }
        for m in all() {
            assert!(!m.kinds.is_empty() || !m.units.is_empty(), "{}: nothing can catch it", m.name);
        }
    }

    /// Release binaries have no rule that can be broken. Looks at those that were built.
    #[test]
    fn no_release_binary_contains_a_name() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
        let binary = target.join("release/rackweave");
        let Ok(bytes) = fs::read(&binary) else {
            println!("SKIP no_release_binary_contains_a_name: {} was not built", binary.display());
            return;
        };
        let text = String::from_utf8_lossy(&bytes);
        let contains = |what: &str| text.contains(what);
        assert!(contains("rackweave"), "this is another file");
        for m in all() {
            assert!(!contains(m.name), "{} is in {}", m.name, binary.display());
        }
    }
}
