//! Clients that violate the protocol.

use std::io::{Read, Write};

use crate::harness::{Rack, wait_for};
use crate::nbd::{dial, pattern};
use rackweave_config::CONNECTIONS_MAX;

#[test]
fn garbage_ends_a_connection_and_nothing_else() {
    let r = Rack::start();
    r.volume("v", "16M");
    let mut good = r.connect("v");
    let mut x = 0x9e37_79b9_7f4a_7c15u64;
    for _ in 0..50 {
        let mut s = dial(&r.socket());
        let garbage: Vec<u8> = (0..2000)
            .map(|_| {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (x >> 33) as u8
            })
            .collect();
        let _ = s.write_all(&garbage);
        let mut all = Vec::new();
        let _ = s.read_to_end(&mut all);
        good.write(0, &pattern(0, 1));
    }
    // Garbage after a good handshake.
    let mut bad = r.connect("v");
    bad.stream.write_all(&[0xff; 4096]).expect("send");
    let mut rest = Vec::new();
    let _ = bad.stream.read_to_end(&mut rest);
    assert_eq!(good.read(0, 4096), pattern(0, 1));
}

#[test]
fn unaligned_and_out_of_range_commands_are_refused() {
    const EINVAL: u32 = 22;
    const ENOSPC: u32 = 28;
    let r = Rack::start();
    r.volume("v", "16M");
    let mut c = r.connect("v");
    assert_eq!(c.command(0, 0, 1, 512, &[], 0), Err(EINVAL));
    assert_eq!(c.command(0, 0, 0, 100, &[], 0), Err(EINVAL));
    assert_eq!(c.command(0, 0, 16 << 20, 512, &[], 0), Err(EINVAL));
    assert_eq!(c.command(1, 0, (16 << 20) - 512, 1024, &[7; 1024], 0), Err(ENOSPC));
    assert_eq!(c.command(99, 0, 0, 512, &[], 0), Err(EINVAL));
    assert_eq!(c.command(0, 0, u64::MAX - 511, 512, &[], 0), Err(EINVAL));
    c.write(0, &pattern(0, 1));
    assert_eq!(c.read(0, 4096), pattern(0, 1));
}

#[test]
fn half_open_clients_are_cut_off_and_delay_no_other() {
    let r = Rack::start();
    r.volume("v", "16M");
    let mut silent: Vec<_> = (0..20).map(|_| dial(&r.socket())).collect();
    silent[1].write_all(&[0, 0, 0, 3, b'I']).expect("send");
    let mut c = r.connect("v");
    c.write(0, &pattern(0, 1));
    for s in &mut silent {
        let mut all = Vec::new();
        s.read_to_end(&mut all).expect("cut off, not left waiting");
    }
    assert_eq!(c.read(0, 4096), pattern(0, 1), "who has finished the handshake may stay silent");
}

#[test]
fn connections_are_limited_and_come_free_again() {
    let r = Rack::start();
    r.volume("v", "16M");
    let mut c = r.connect("v");
    let mut many: Vec<_> = (0..CONNECTIONS_MAX + 8).map(|_| dial(&r.socket())).collect();
    let mut greeting = [0; 18];
    let refused = many.iter_mut().filter_map(|s| s.read_exact(&mut greeting).err()).count();
    assert!((9..20).contains(&refused), "{refused} refused");
    c.write(0, &pattern(0, 1));
    drop(many);
    wait_for("a place comes free", || dial(&r.socket()).read_exact(&mut greeting).is_ok());
    assert_eq!(r.connect("v").read(0, 4096), pattern(0, 1));
}
