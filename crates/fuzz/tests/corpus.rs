//! Every target over its corpus in the tree and over mutants of it; and that no parser goes without a target.
#![allow(clippy::disallowed_types, reason = "tests read files")]

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use rackweave_core::Rng;
use rackweave_fuzz::{TARGETS, Target, mutate};

/// Bytes of all inputs in the tree.
const CORPUS_BYTES_MAX: usize = 2 << 20;
/// Inputs of one target that are tried beside its corpus; all targets take less than a minute on two cores.
const MUTANTS: u64 = 2_000;

fn corpus_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// The inputs of a target, in the order of their names.
fn corpus(name: &str) -> Vec<(String, Vec<u8>)> {
    let Ok(entries) = std::fs::read_dir(corpus_dir().join(name)) else { return Vec::new() };
    let paths: BTreeSet<PathBuf> = entries.map(|e| e.expect("an entry").path()).collect();
    let file = |p: PathBuf| (p.display().to_string(), std::fs::read(p).expect("a file"));
    paths.into_iter().map(file).collect()
}

/// Tries an input; an oracle that fails names it, and the input is kept.
fn check(t: &Target, name: &str, input: &[u8]) -> Result<(), String> {
    let Err(panic) = catch_unwind(AssertUnwindSafe(|| t.check(input))) else { return Ok(()) };
    let what = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let kept = dir.join(format!("{}-{:08x}", t.name, crc32c::crc32c(input)));
    std::fs::write(&kept, input).expect("room for an input");
    Err(format!("{}, {name}: {}\n  the input is in {}", t.name, what.unwrap_or("panics"), kept.display()))
}

/// Runs the targets on two threads.
fn for_all(f: impl Fn(&Target) -> Result<(), String> + Sync) {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut failed = Vec::new();
        while let Some(t) = TARGETS.get(next.fetch_add(1, Ordering::Relaxed)) {
            failed.extend(f(t).err());
        }
        failed
    };
    let failed = std::thread::scope(|s| {
        let other = s.spawn(work);
        let mut failed = work();
        failed.extend(other.join().expect("panics are caught"));
        failed
    });
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn the_corpus_passes() {
    for_all(|t| corpus(t.name).iter().try_for_each(|(name, input)| check(t, name, input)));
}

#[test]
fn mutants_of_the_corpus_pass() {
    for_all(|t| {
        let corpus: Vec<Vec<u8>> = corpus(t.name).into_iter().map(|(_, b)| b).collect();
        let mut rng = Rng::new(u64::from(crc32c::crc32c(t.name.as_bytes())));
        (0..MUTANTS / t.cost).try_for_each(|n| check(t, &format!("mutant {n}"), &mutate::next(&corpus, &mut rng)))
    });
}

#[test]
fn the_corpus_is_small_and_every_target_has_one() {
    let names: BTreeSet<String> = TARGETS.iter().map(|t| t.name.to_string()).collect();
    assert_eq!(names.len(), TARGETS.len(), "a name twice");
    let dirs = std::fs::read_dir(corpus_dir()).expect("the corpus");
    let dirs: BTreeSet<String> = dirs.map(|d| d.expect("an entry").file_name().to_string_lossy().into()).collect();
    assert_eq!(dirs, names, "directories of the corpus, and targets");
    let sizes = TARGETS.iter().map(|t| (t.name, corpus(t.name).iter().map(|(_, b)| b.len()).sum::<usize>()));
    let sizes: Vec<(&str, usize)> = sizes.collect();
    assert!(sizes.iter().all(|s| s.1 > 0), "{sizes:?}");
    assert!(sizes.iter().map(|s| s.1).sum::<usize>() < CORPUS_BYTES_MAX, "{sizes:?}");
}

/// Rows of the table in docs/fuzzing.md: parser's source, target.
fn documented() -> Vec<(String, String)> {
    let doc = include_str!("../../../docs/fuzzing.md");
    let rows = doc.lines().filter_map(|l| {
        let cells: Vec<&str> = l.split('|').map(str::trim).collect();
        let code = |c: &str| c.strip_prefix('`').and_then(|c| c.strip_suffix('`')).map(String::from);
        Some((code(cells.get(2)?)?, code(cells.get(3)?)?))
    });
    rows.collect()
}

#[test]
fn every_parser_in_the_documents_has_its_target() {
    let rows = documented();
    let named: BTreeSet<&str> = rows.iter().map(|r| r.1.as_str()).collect();
    let targets: BTreeSet<&str> = TARGETS.iter().map(|t| t.name).collect();
    assert_eq!(named, targets, "targets in docs/fuzzing.md, and in the program");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (source, target) in &rows {
        assert!(root.join(source).exists(), "{source} (target {target}) is not there");
    }
}

/// Public functions that take foreign bytes or text are in files that the table names: a new parser is noticed.
#[test]
fn every_source_that_parses_is_in_the_documents() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let named: BTreeSet<String> = documented().into_iter().map(|r| r.0).collect();
    let mut missing = Vec::new();
    let mut dirs = vec![root.join("crates")];
    while let Some(dir) = dirs.pop() {
        for e in std::fs::read_dir(dir).expect("the sources") {
            let path = e.expect("an entry").path();
            if path.is_dir() && !["tests", "fuzz", "bench", "target"].iter().any(|d| path.ends_with(d)) {
                dirs.push(path);
            } else if path.extension().is_some_and(|x| x == "rs") {
                let text = std::fs::read_to_string(&path).expect("a source");
                let name = path.strip_prefix(&root).expect("below it").display().to_string();
                let covered = named.iter().any(|n| name == *n || name.starts_with(&format!("{n}/")));
                if text.lines().any(parses) && !covered && !name.ends_with("_tests.rs") {
                    missing.push(name);
                }
            }
        }
    }
    assert!(missing.is_empty(), "not in docs/fuzzing.md: {missing:?}");
}

/// A line that declares a function from bytes or text to a value.
fn parses(line: &str) -> bool {
    let Some(rest) = line.trim_start().strip_prefix("pub") else { return false };
    let Some((_, f)) = rest.split_once("fn ") else { return false };
    let name = f.split(['(', '<']).next().unwrap_or_default();
    let verb = ["decode", "parse", "from_bytes"].iter().any(|v| name == *v || name.starts_with(&format!("{v}_")));
    verb && (f.contains("&[u8]") || f.contains("&Bytes") || f.contains("&str") || f.contains("; "))
}
