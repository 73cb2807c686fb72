//! The program as `make mutants` starts it.
#![allow(clippy::disallowed_types, reason = "starts a process")]

use std::process::{Command, Output};

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rackweave-mutants")).args(args).output().expect("starts")
}

#[test]
fn lists_the_mutants_whose_names_contain_a_part() {
    let out = run(&["--list", "--only", "replica.fence"]);
    let text = String::from_utf8(out.stdout).expect("text");
    let mut lines: Vec<&str> = text.lines().collect();
    let summary = lines.pop().unwrap_or_default();
    assert!(out.status.success() && lines.len() > 1, "{text}");
    assert!(lines.iter().all(|l| l.contains("replica.fence")), "{text}");
    assert!(summary.starts_with(&format!("{} mutants: ", lines.len())), "{text}");
}

#[test]
fn a_name_that_no_mutant_has_is_an_error() {
    let out = run(&["--only", "no.such.rule"]);
    assert_eq!(out.status.code(), Some(2));
}
