//! The built-in profiles, and refused ones.

use rackweave_flash::{Profile, ProfileError, Source};

const P_SSD: &str = include_str!("../../profiles/p-ssd.toml");

fn refused(from: &str, to: &str) -> ProfileError {
    assert!(P_SSD.contains(from), "{from}");
    Profile::parse(&P_SSD.replace(from, to)).expect_err(to)
}

#[test]
fn built_in_profiles_are_those_of_the_parameters() {
    assert_eq!(Profile::builtin_names(), ["p-ssd", "intel-dc", "optane", "femu"]);
    let p = Profile::builtin("p-ssd").expect("built in");
    assert_eq!(p.geometry.capacity(), 1 << 40);
    assert!(p.sources.contains(&("timing.read_ns", Source::C)));
    assert_eq!(Profile::builtin("floppy"), None);
}

#[test]
fn impossible_values_are_refused_by_name() {
    for (from, to, key) in [
        ("channels = { value = 16", "channels = { value = 0", "geometry.channels"),
        ("channels = { value = 16", "channels = { value = 257", "geometry.channels"),
        ("dies_per_channel = { value = 4", "dies_per_channel = { value = 0", "geometry.dies_per_channel"),
        ("planes_per_die = { value = 4", "planes_per_die = { value = -4", "geometry.planes_per_die"),
        ("blocks_per_plane = { value = 1024", "blocks_per_plane = { value = 0", "geometry.blocks_per_plane"),
        ("page_bytes = { value = 16384", "page_bytes = { value = 0", "geometry.page_bytes"),
        ("page_bytes = { value = 16384", "page_bytes = { value = 131072", "geometry.page_bytes"),
        ("program_ns = { value = 750_000", "program_ns = { value = 0", "timing.program_ns"),
        ("erase_ns = { value = 3_800_000", "erase_ns = { value = -1", "timing.erase_ns"),
        ("erase_ns = { value = 3_800_000", "erase_ns = { value = 3_800_000_000_000", "timing.erase_ns"),
        ("over_provisioning = { value = 0.07", "over_provisioning = { value = nan", "device.over_provisioning"),
        (
            "over_provisioning = { value = 0.01",
            "over_provisioning = { value = -0.01",
            "device.device_over_provisioning",
        ),
        ("queue_depth = { value = 256", "queue_depth = { value = 0", "device.queue_depth"),
        ("page_bytes = { value = 16384", "page_bytes = { value = 5000", "geometry.page_bytes"),
        ("pages_per_block = { value = 256", "pages_per_block = { value = -1", "geometry.pages_per_block"),
        ("blocks_per_plane = { value = 1024", "blocks_per_plane = { value = 1048576", "geometry"),
        ("read_ns = { value = 75_000", "read_ns = { value = 0", "timing.read_ns"),
        ("bus_bytes_per_s = { value = 333_000_000", "bus_bytes_per_s = { value = 7", "timing.bus_bytes_per_s"),
        ("over_provisioning = { value = 0.07", "over_provisioning = { value = 1.5", "device.over_provisioning"),
        ("suspend_ns = { value = 700_000", "suspend_ns = { value = -1", "erase_suspend.suspend_ns"),
        ("resume_ns = { value = 0", "resume_ns = { value = 20_000_000_000", "erase_suspend.resume_ns"),
        ("reads_max = { value = 256", "reads_max = { value = 0", "erase_suspend.reads_max"),
        ("suspend_ns = { value = 100_000", "suspend_ns = { value = -1", "program_suspend.suspend_ns"),
        ("endurance = { value = 10_000", "endurance = { value = 0", "device.endurance"),
    ] {
        match refused(from, to) {
            ProfileError::Value { key: k, .. } => assert_eq!(k, key),
            e => panic!("{to}: {e}"),
        }
    }
    for (from, to) in [("source = \"C\"", "source = \"X\""), ("read_ns", "reed_ns"), ("name = \"p-ssd\"", "")] {
        assert!(matches!(refused(from, to), ProfileError::Syntax { .. }), "{to}");
    }
}

#[test]
fn scaling_hits_the_nearest_capacity_below() {
    let p = Profile::builtin("p-ssd").expect("built in");
    for gib in [1, 2, 16, 64, 1024, 2048] {
        let g = p.scaled_to(gib << 30).expect("possible").geometry;
        assert_eq!((g.capacity(), g.channels), (gib << 30, 16), "{gib} GiB");
    }
    for mib in [64, 100, 300, 777] {
        let g = p.scaled_to(mib << 20).expect("possible").geometry;
        assert!(g.capacity() <= mib << 20 && g.capacity() > (mib << 20) * 7 / 8, "{mib} MiB");
        assert!(g.blocks_per_channel() >= 8);
    }
    assert!(matches!(p.scaled_to(1 << 20), Err(ProfileError::TooSmall { .. })));
}
