use rackweave_config::racks::RacksSection;
use rackweave_config::switching::{DataPlaneKind, RingSection};
use rackweave_config::{ConfigError, RackConfig};
use rackweave_core::SetId;

use super::*;
use crate::{build, plan};

fn two(servers: u32, far: Option<u32>) -> RackConfig {
    RackConfig { servers, racks: RacksSection { count: 2, far_replicas: far }, ..RackConfig::default() }
}

#[test]
fn two_replicas_lie_at_home_and_one_elsewhere_and_every_server_holds_as_many() {
    for (servers, far) in [(4, 1), (6, 1), (6, 2), (10, 1)] {
        let cfg = two(servers, Some(far));
        cfg.validate().expect("sound");
        let layout = build::layout(&cfg);
        let (sets, mut held) = (plan::sets(&cfg), vec![0; servers as usize]);
        assert_eq!(sets.len() as u32, servers);
        for (k, s) in (0..).zip(&sets) {
            let at_home = s.members.iter().filter(|m| layout.rack(m.1) == Some(s.home)).count() as u32;
            assert_eq!((s.set, s.members.len() as u32, at_home), (SetId(k), 3, 3 - far), "of {servers}");
            for (i, &(vssd, server)) in s.members.iter().enumerate() {
                assert_eq!(Some(vssd.rack()), layout.rack(server));
                assert!(s.members[..i].iter().all(|m| m.1 != server), "set {k}: {server} twice");
                held[Layout::server_number(server) as usize] += 1;
            }
        }
        assert!(held.iter().all(|&n| n == 3), "{held:?}");
        for i in 0..servers {
            let c = build::server_config(&cfg, i, 1).expect("sound");
            assert_eq!(c.vssds.len(), 3, "server {i}");
            for v in &c.vssds {
                assert!(sets[v.set.0 as usize].members.contains(&(v.id, c.node)), "{} of {}", v.id, v.set);
            }
        }
    }
}

#[test]
fn what_cannot_be_two_racks_is_refused_with_value_and_rule() {
    let refused = |cfg: RackConfig, parts: &[&str]| {
        let Err(ConfigError::Rules(problems)) = cfg.validate() else { panic!("accepted: {cfg:?}") };
        let text = problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        parts.iter().for_each(|p| assert!(text.contains(p), "{p}: {text}"));
    };
    refused(two(5, None), &["servers = 5", "a multiple of racks.count"]);
    refused(RackConfig { replicas: 4, ..two(4, None) }, &["servers = 4", "at least 3 in each rack"]);
    refused(two(4, Some(3)), &["racks.far_replicas = 3", "below replicas (3)"]);
    refused(two(4, Some(0)), &["racks.far_replicas = 0", "at least 1"]);
    let one = RacksSection { count: 1, far_replicas: Some(1) };
    refused(
        RackConfig { racks: one, ..RackConfig::default() },
        &["racks.far_replicas = 1", "only with racks.count = 2"],
    );
    let mut far_reads = RackConfig::default();
    far_reads.switch.far_reads = Some(false);
    refused(far_reads, &["switch.far_reads = false", "only with racks.count = 2"]);
    let three = RacksSection { count: 3, far_replicas: None };
    refused(RackConfig { racks: three, ..RackConfig::default() }, &["racks.count = 3", "1 to 2"]);
    let mut in_kernel = two(4, None);
    in_kernel.switch.data_plane = DataPlaneKind::Tc;
    refused(in_kernel, &["switch.data_plane = tc", "only with [hosts]"]);
    let mut ring = two(4, None);
    ring.switch.rings.push(RingSection { prefix: "10.11.0.0/24".into(), ..RingSection::default() });
    refused(ring, &["switch.rings = 1 rings", "none with racks.count = 2"]);
    let text = "servers = 6\n[racks]\ncount = 2\nswitches = 2\n";
    assert!(matches!(RackConfig::parse(text), Err(ConfigError::Syntax(e)) if e.contains("switches")));
    let cfg = RackConfig::parse("servers = 6\n[racks]\ncount = 2\n").expect("sound");
    assert_eq!(cfg.racks.far(), 1);
}
