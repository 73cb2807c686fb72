//! `rackweave eval`.

use crate::harness::{Temp, rackweave, text};

#[test]
fn a_figure_is_printed_and_written() {
    let dir = Temp::new();
    let (json, svg) = (dir.path("f.json"), dir.path("f.svg"));
    let args = ["eval", "fb-fig14", "--quick", "--seed", "3", "--json", &json.display().to_string(), "--svg"];
    let o = rackweave(&args).arg(&svg).output().expect("runs");
    assert!(o.status.success(), "{}", text(&o.stderr));
    let table = text(&o.stdout);
    assert!(table.contains("1 die killers: no swap") && table.contains("seed 3"), "{table}");
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).expect("written")).expect("JSON");
    assert_eq!((&json["experiment"], &json["seed"]), (&"fb-fig14".into(), &3.into()));
    assert!(std::fs::read_to_string(&svg).expect("written").starts_with("<svg"));
}

#[test]
fn experiments_are_listed_and_unknown_ones_refused() {
    let list = text(&rackweave(&["eval", "--list"]).output().expect("runs").stdout);
    let o = rackweave(&["eval", "fb-fig99"]).output().expect("runs");
    let said = text(&o.stderr);
    assert_eq!(o.status.code(), Some(1));
    assert!(said.contains("\"fb-fig99\""), "{said}");
    for line in list.lines() {
        let id = line.split(' ').next().unwrap_or_default();
        let of_a_paper = ["df-", "fb-", "ni-", "pn-", "rb-"].iter().any(|paper| id.starts_with(paper));
        assert!(of_a_paper && said.contains(id), "{line}: {said}");
    }
    for (live, needs) in [("pn-fig4 ", "--features rpc"), ("pn-fig7 ", "two idle cores"), ("pn-fig14c ", "valgrind")] {
        assert!(list.lines().any(|l| l.starts_with(live) && l.contains(needs)), "{live}: {list}");
    }
}

#[test]
fn recorded_delays_are_taken_from_a_file_and_bad_ones_refused() {
    let dir = Temp::new();
    let (good, bad, json) = (dir.path("good"), dir.path("bad"), dir.path("f.json"));
    std::fs::write(&good, "150\n".repeat(40)).expect("written");
    std::fs::write(&bad, "150\n0.5\n").expect("written");
    let o = rackweave(&["eval", "rb-predict", "--trace"]).arg(&good).arg("--json").arg(&json).output().expect("runs");
    assert!(o.status.success(), "{}", text(&o.stderr));
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).expect("written")).expect("JSON");
    assert_eq!((&json["config"]["packets"], &json["config"]["delays"]), (&40.into(), &"good".into()));
    assert_eq!(json["rows"][0]["measured"], 100.0);
    for (experiment, file, why) in [
        ("rb-predict", &bad, "line 2: \"0.5\""),
        ("rb-predict", &dir.path("none"), "none"),
        ("fb-fig14", &good, "fb-fig14"),
    ] {
        let o = rackweave(&["eval", experiment, "--trace"]).arg(file).output().expect("runs");
        let said = text(&o.stderr);
        assert!(o.status.code() == Some(1) && said.contains(why), "{said}");
    }
}

#[test]
fn a_live_figure_names_what_it_lacks() {
    if cfg!(feature = "rpc") {
        println!("SKIP a_live_figure_names_what_it_lacks: the RPC is built in");
        return;
    }
    let o = rackweave(&["eval", "pn-fig14a", "--quick"]).output().expect("runs");
    assert!(o.status.code() == Some(1) && text(&o.stderr).contains("--features rpc"), "{}", text(&o.stderr));
}

#[test]
fn a_live_figure_is_measured_between_two_processes() {
    let o = rackweave(&["eval", "pn-fig7", "--quick"]).output().expect("runs");
    // Its bar may be missed on a busy machine.
    let (table, said) = (text(&o.stdout), text(&o.stderr));
    assert!(table.contains("4 KiB, rackweave ÷ TCP") && table.contains("64 KiB, kernel TCP"), "{table}{said}");
}
