//! No option and no key is overridden silently: it takes effect, or the command names it.

use std::path::Path;

use crate::harness::{Temp, rackweave, text};

/// The command must fail with `status`; returns its error.
fn refused(status: i32, args: &[&str]) -> String {
    let out = rackweave(args).output().expect("runs");
    assert_eq!(out.status.code(), Some(status), "{args:?}: {}{}", text(&out.stdout), text(&out.stderr));
    text(&out.stderr)
}

fn replay(config: &str, options: &[&str]) -> String {
    let dir = Temp::new();
    let file = dir.path("rack.toml");
    std::fs::write(&file, config).expect("written");
    let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../replay/data/tpcc-head.trace");
    let (trace, file) = (trace.display().to_string(), file.display().to_string());
    refused(1, &[&["replay", &trace, "--config", &file], options].concat())
}

#[test]
fn a_replay_refuses_keys_that_it_or_a_policy_would_set() {
    let of_policies = [
        ("policy = \"baseline\"", "policy", "rackblox"),
        ("[gc]\npolicy = \"coordinated\"", "gc.policy", "baseline"),
        ("[switch]\nredirect = \"gc\"", "switch.redirect", "baseline"),
        ("[sched]\ncoordinated = true", "sched.coordinated", "baseline"),
        ("[ssd]\ntiming = \"none\"", "ssd.timing", "baseline"),
    ];
    for (config, key, by) in of_policies {
        let said = replay(config, &[]);
        assert!(said.contains(&format!("{key} = ")) && said.contains(&format!("by policy {by}")), "{config}: {said}");
    }
    for (config, key) in [
        ("[client]\ntimeout_ms = 100", "client.timeout_ms"),
        ("[client]\nwindow = 7", "client.window"),
        ("[client]\nkeep_kib = 7", "client.keep_kib"),
        ("[ssd]\nverify = true", "ssd.verify"),
    ] {
        let said = replay(config, &[]);
        assert!(said.contains(&format!("{key} = ")) && said.contains("by every replay"), "{config}: {said}");
    }
    for (config, key) in [
        ("mtu = 9000", "mtu"),
        ("paths = 3", "paths"),
        ("[nbd]\ntls = \"off\"", "nbd.tls"),
        ("[memory]\nbudget_mib = 600", "memory.budget_mib"),
    ] {
        let said = replay(config, &[]);
        assert!(said.contains(key) && said.contains("no such thing"), "{config}: {said}");
    }
}

#[test]
fn a_rack_does_not_run_on_drives_of_evaluations() {
    for (config, value) in
        [("policy = \"ideal\"", "policy = ideal"), ("[ssd]\ntiming = \"ideal-gc\"", "ssd.timing = ideal-gc")]
    {
        for mode in [&[][..], &["--processes"], &["--timing", "none"]] {
            let dir = Temp::new();
            let (file, data) = (dir.path("given.toml").display().to_string(), dir.path("data").display().to_string());
            std::fs::write(&file, config).expect("written");
            let said = refused(1, &[&["up", "--data", &data, "--config", &file][..], mode].concat());
            assert!(said.contains(&format!("{value}: for evaluations")), "{mode:?}: {said}");
        }
    }
}

#[test]
fn a_replay_refuses_keys_that_its_options_contradict_in_either_order() {
    for (config, option, value, key) in [
        ("servers = 5", "--servers", "6", "servers"),
        ("[ssd]\nsize = \"4G\"", "--ssd-size", "2G", "ssd.size"),
        ("[ssd]\nblocking_unit = \"block\"\n[gc]\nyields = false", "--blocking-unit", "page", "ssd.blocking_unit"),
        ("[gc]\nvictims = \"greedy\"", "--gc-victims", "cost-benefit", "gc.victims"),
    ] {
        for policy in ["baseline", "ideal,rackblox"] {
            let said = replay(config, &[option, value, "--policy", policy]);
            assert!(said.contains(&format!("{key} = ")) && said.contains(&format!("by {option}")), "{said}");
        }
    }
    // A configuration's size is that of the devices: far too small for a volume, and not silently changed.
    let said = replay("[ssd]\nsize = \"16M\"", &["--policy", "baseline"]);
    assert!(!said.contains("is written"), "{said}");
}

#[test]
fn options_that_would_do_nothing_are_refused() {
    let data = |rest: &[&str]| refused(1, &[rest, &["--data", "/d"]].concat());
    for command in [
        &["version"][..],
        &["sim", "--seed", "1"],
        &["eval", "--list"],
        &["replay", "t"],
        &["vssd", "list"],
        &["kv", "info", "--drive", "/f"],
        &["kv", "info", "--config", "f"],
        &["mount", "1", "/m"],
        &["keys", "init", "/k"],
        &["status", "--config", "f"],
        &["volume", "list", "--config", "f"],
        &["server", "list", "--config", "f"],
        &["policy", "show", "--config", "f"],
        &["link", "cut", "a", "b", "--config", "f"],
        &["keys", "rotate", "--config", "f"],
    ] {
        let said = data(command);
        assert!(said.contains("--data /d: "), "{command:?}: {said}");
    }
    for (command, named) in [
        (&["eval", "--list", "--quick"][..], "--quick"),
        (&["eval", "--all", "--trace", "f"], "--trace"),
        (&["eval", "--all", "fb-table5"], "--all"),
        (&["eval", "--list", "--seed", "1"], "--seed"),
        (&["replay", "t", "--rate", "5", "--speed", "2"], "--speed"),
        (&["up", "--netns", "--absent", "1"], "--absent"),
        (&["up", "--processes", "--absent", "1"], "--absent"),
        (&["up", "--processes", "--gateways", "65"], "--gateways"),
        (&["up", "--data-plane", "tc"], "--netns"),
        (&["sim", "--plan", "p", "--kind", "moves"], "--kind"),
        (&["status", "--every", "2"], "--watch"),
    ] {
        let said = refused(2, command);
        assert!(said.contains(named), "{command:?}: {said}");
    }
    for command in [
        &["volume", "create", "v", "--size", "-1"][..],
        &["volume", "create", "v", "--size", "4K", "--channels", "-1"],
        &["volume", "set", "v", "--iops", "-1"],
        &["set", "recover", "-1"],
    ] {
        let said = refused(2, command);
        assert!(said.contains("invalid value '-1'"), "{command:?}: {said}");
    }
    for command in [&["eval", "fb-table5", "--json", "/"][..], &["replay", "t", "--svg", "/"]] {
        let said = refused(1, command);
        assert!(said.starts_with("rackweave: /: "), "it is refused before the run: {said}");
    }
    let said = refused(1, &["kv", "--vssd", "2", "info"]);
    assert!(said.contains("--vssd: only with --drive"), "{said}");
    let said = refused(1, &["kv", "--config", "f", "--drive", "g", "info"]);
    assert!(said.contains("--config: not together with --drive"), "{said}");
    let dir = Temp::new();
    let said = refused(1, &["up", "--pcap", "/p", "--data", &dir.path("data").display().to_string()]);
    assert!(said.contains("--pcap needs --processes"), "{said}");
    let said = refused(1, &["up", "--gateways", "2", "--data", &dir.path("data").display().to_string()]);
    assert!(said.contains("--gateways 2 needs --processes or --netns"), "{said}");
}

#[test]
fn a_start_says_which_options_win_and_refuses_what_one_process_has_no_use_for() {
    let dir = Temp::new();
    let (data, file) = (dir.path("data").display().to_string(), dir.path("rack.toml"));
    let up = |config: &str, options: &[&str]| {
        std::fs::write(&file, config).expect("written");
        let file = file.display().to_string();
        refused(1, &[&["up", "--data", &data, "--config", &file], options].concat())
    };
    for (config, key) in [("paths = 3", "paths = 3"), ("mtu = 9000", "mtu = 9000")] {
        let said = up(config, &[]);
        assert!(said.contains(key) && said.contains("--processes"), "{said}");
    }
    let config = "servers = 4\n[ssd]\ntiming = \"real\"\nsize = \"128M\"\n[gc]\nvictims = \"greedy\"\n";
    // There is no such server: it ends after reporting everything.
    let options =
        ["--servers", "5", "--ssd-size", "256M", "--timing", "none", "--gc-victims", "cost-benefit", "--absent", "9"];
    let said = up(config, &options);
    for key in ["servers = 4", "ssd.size = \"128M\"", "ssd.timing = \"real\"", "gc.victims = \"greedy\""] {
        assert!(said.contains(&format!("{key} has no effect: the value is ")), "{key}: {said}");
    }
    assert_eq!(said.lines().count(), 5, "{said}");
}
