use rackweave_config::ConfigError;
use rackweave_flash::{Separation, Share, VictimPolicy};

use super::*;

fn problems(text: &str) -> Vec<(&'static str, String)> {
    match RackConfig::parse(text) {
        Err(ConfigError::Rules(p)) => p.into_iter().map(|p| (&*p.key.into_owned().leak(), p.value)).collect(),
        other => panic!("expected broken rules, got {other:?}"),
    }
}

#[test]
fn what_idle_means_is_checked_and_reaches_the_servers() {
    for (text, value) in [("idle_alpha = 0.0", "0"), ("idle_alpha = 1.5", "1.5"), ("idle_alpha = nan", "NaN")] {
        assert_eq!(problems(&format!("[gc]\n{text}\n")), [("gc.idle_alpha", value.to_string())]);
    }
    assert_eq!(problems("[gc]\nidle_over_ms = 0\n"), [("gc.idle_over_ms", "0".to_string())]);
    let cfg = RackConfig::parse("[gc]\nbackground = true\nidle_alpha = 1.0\nidle_over_ms = 7\n").unwrap();
    let gc = server_config(&cfg, 0, 1).unwrap().gc;
    assert_eq!((gc.background, gc.idle_alpha, gc.idle_over), (true, 1.0, Span::from_millis(7)));
}

#[test]
fn collection_that_yields_is_suspended_where_the_drive_can_be() {
    let told = |text: &str| {
        let ssd = super::ssd(&RackConfig::parse(text).unwrap(), 0).unwrap();
        (ssd.blocking, ssd.erase_suspend, ssd.program_suspend)
    };
    let block = "[ssd]\nblocking_unit = \"block\"\n";
    assert_eq!(told(&format!("{block}[gc]\nyields = false\n")), (rackweave_flash::BlockingUnit::Block, false, false));
    assert_eq!(problems(&format!("{block}[gc]\nyields = true\n"))[0].0, "gc.yields");
    for policy in rackweave_config::Policy::ALL {
        let text = format!("policy = \"{policy}\"\n");
        assert_eq!(told(&text), (rackweave_flash::BlockingUnit::Page, true, true), "{policy}");
    }
    let femu = "[ssd]\nprofile = \"femu\"\n[gc]\nyields = true\n";
    assert_eq!(told(femu), (rackweave_flash::BlockingUnit::Page, false, false), "it cannot suspend");
}

#[test]
fn the_flash_gets_its_configuration() {
    let told = |text| {
        let ssd = super::ssd(&RackConfig::parse(text).unwrap(), 0).unwrap();
        (ssd.victims, ssd.separation)
    };
    let both = "[gc]\nvictims = \"cost-benefit\"\nseparation = \"lifespans\"\n";
    assert_eq!(told(both), (VictimPolicy::CostBenefit, Separation::Lifespans));
    assert_eq!(told(""), (VictimPolicy::Greedy, Separation::Moved));
    let shape = |text| {
        let cfg = RackConfig::parse(text).unwrap();
        let server = server_config(&cfg, 0, 1).unwrap();
        (server.vssds[0].share, meta_bytes(&cfg).unwrap(), capacity_bytes(&cfg).unwrap())
    };
    let (channels, dies) = (shape(""), shape("[ssd]\nisolation = \"die\"\n"));
    assert_eq!((channels.0, dies.0), (Share::Channels(5), Share::Dies(21)));
    assert!(dies.1 > channels.1 && dies.2 > channels.2, "21 dies are more than 5 channels of 4");
    let shared = shape("[ssd]\nisolation = \"software\"\n");
    assert_eq!((shared.0, shared.2), (Share::Software { channels: 16, dies: 21, own: false }, dies.2));
    let many = shape("[ssd]\nisolation = \"software\"\nspare = 3\n").0;
    assert_eq!(
        many,
        Share::Software { channels: 8, dies: 10, own: false },
        "six, and channels have four dies: two groups"
    );
    let few = |isolation| {
        let text = format!("replicas = 4\nservers = 4\n[ssd]\nisolation = \"{isolation}\"\nprofile = \"optane\"\n");
        server_config(&RackConfig::parse(&text).unwrap(), 0, 1).map(|c| c.vssds[3].share)
    };
    assert_eq!((few("channel").unwrap(), few("die").unwrap()), (Share::Channels(2), Share::Dies(8)));
    let both = RackConfig::parse("[ssd]\nisolation = [\"channel\", \"die\"]\n").unwrap();
    assert_eq!(RackConfig::parse(&both.to_toml()).unwrap(), both);
    let server = server_config(&both, 1, 1).unwrap();
    let shares: Vec<Share> = server.vssds.iter().map(|v| v.share).collect();
    assert_eq!(shares, [[Share::Channels(2); 3], [Share::Dies(10); 3]].concat());
    // Each vSSD is a member of the set in its server's configuration, with that set's peers.
    let sets = plan::sets(&both);
    for v in &server.vssds {
        let members = &sets[v.set.0 as usize].members;
        assert!(members.iter().any(|m| m.0 == v.id) && v.peers.iter().all(|p| members.contains(p)), "{v:?}");
    }
    let meta = meta_config(&both).unwrap();
    meta.validate().unwrap();
    assert_eq!((meta.sets.len(), meta.levels[0].level, meta.levels[1].level), (8, Isolation::Channel, Isolation::Die));
    let sum = meta.levels.iter().map(|l| l.capacity_bytes).sum::<u64>();
    assert_eq!(sum, capacity_bytes(&both).unwrap());
    let unisolated = RackConfig::parse("[ssd]\nisolation = [\"software\", \"none\"]\n").unwrap();
    let server = server_config(&unisolated, 0, 1).unwrap();
    assert_eq!(server.vssds[0].share, Share::Software { channels: 8, dies: 10, own: false });
    assert_eq!(server.vssds[3].share, Share::None { channels: 8, dies: 10 });
    assert_eq!(problems("[ssd]\nisolation = \"none\"\n[gc]\nbackground = true\n")[0].0, "gc.background");
    let e = RackConfig::parse("[ssd]\nisolation = \"all\"\n").unwrap_err().to_string();
    assert!(e.contains("isolation = \"all\"") && e.contains("\"software\", \"none\", or a list"), "{e}");
    for twice in ["[]", "[\"die\", \"die\"]"] {
        assert_eq!(problems(&format!("[ssd]\nisolation = {twice}\n"))[0].0, "ssd.isolation");
    }
    let suspends = |text: &str| {
        let ssd = super::ssd(&RackConfig::parse(&format!("{text}[gc]\nyields = false\n")).unwrap(), 0);
        ssd.map(|s| [s.erase_suspend, s.program_suspend, s.host_program_suspend])
    };
    assert_eq!(suspends("").unwrap(), [false; 3]);
    for (i, what) in ["erase_suspend", "program_suspend", "host_program_suspend"].into_iter().enumerate() {
        let on = format!("[ssd]\n{what} = true\n");
        assert_eq!(suspends(&on).unwrap(), [0, 1, 2].map(|k| k == i));
        let e = suspends(&format!("{on}profile = \"femu\"\n")).unwrap_err().to_string();
        assert!(e.contains(&format!("ssd.{what}: profile femu")), "{e}");
        assert_eq!(problems(&format!("{on}blocking_unit = \"block\"\n"))[0].0, format!("ssd.{what}"));
    }
}

#[test]
fn a_drive_has_the_configured_channels_or_its_profiles() {
    let with = |channels| {
        let mut cfg = RackConfig { servers: 3, replicas: 2, ..RackConfig::default() };
        cfg.ssd.channels = channels;
        profile(&cfg).map(|p| p.geometry.channels)
    };
    assert_eq!((with(None).expect("p-ssd"), with(Some(2)).expect("p-ssd")), (16, 2));
    for (channels, said) in [(0, "ssd.channels = 0: 1 to the 16"), (17, "17: 1 to the 16"), (1, "2 channel-isolated")] {
        let e = with(Some(channels)).unwrap_err().to_string();
        assert!(e.contains(said), "{channels}: {e}");
    }
}

#[test]
fn channels_for_later_keyspaces_are_set_aside_and_hold_a_store() {
    let with_first = |channels: u32, kv: &str, size: &str| {
        let text = format!("[ssd]\nsize = \"{size}\"\n[kv]\nchannels = {channels}\nreplicas = 3\n{kv}\n");
        server_config(&RackConfig::parse(&text).expect("right"), 3, 1)
    };
    let with = |kv: &str, size: &str| with_first(2, kv, size);
    let (none, some) = (with("", "16G").expect("built"), with("own_channels = 4", "16G").expect("built"));
    assert_eq!((none.log_area, none.vssds[0].share), (None, Share::Channels(4)));
    assert_eq!((some.log_area, some.vssds[0].share), (Some((ids::log_area(0, 3), 4)), Share::Channels(3)));
    assert_eq!(some.vssds.iter().filter(|v| v.is_log()).count(), 1, "the area is no slot");
    for c in [none, some] {
        let shares = c.shares();
        let server = Server::new(c).expect("there is room");
        assert_eq!(server.ssd().table().check_shares(&shares), Ok(()), "as a start compares it");
    }
    let e = with_first(8, "own_channels = 1", "512M").map(drop).expect_err("too small").to_string();
    assert!(e.contains("kv.own_channels = 1: the log"), "{e}");
    let e = with("own_channels = 13", "16G").map(drop).expect_err("nothing is left").to_string();
    assert!(e.contains("kv.own_channels"), "{e}");
}

#[test]
fn the_switch_has_the_rings_of_the_configuration() {
    let rings = r#"
        version = 1
        servers = 3
        [[switch.rings]]
        prefix = "10.11.0.0/24"
        members = ["server-0", "server-2"]
        quorum = 1
    "#;
    let cfg = RackConfig::parse(rings).expect("right");
    assert_eq!(switch(&cfg, 0).dump().rings.len(), 1);
}
