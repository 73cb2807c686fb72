//! NICE's cluster: bytes that cross links, answers under contention, choices of the switch, the same figures for a seed.

use rackweave_core::{Rng, Span};
use rackweave_eval::nice::client::{Load, Op};
use rackweave_eval::nice::cluster::{Cluster, Setup};
use rackweave_eval::nice::net::{BARE_BYTES, Carrier, Division, framed};
use rackweave_eval::nice::{Access, Replication, Scheme};
use rackweave_kv_replica::types::Partition;

const ALL: [Scheme; 12] = [
    Scheme::Noob(Access::Rog, Replication::PrimaryBackup),
    Scheme::Noob(Access::Rog, Replication::TwoPhase),
    Scheme::Noob(Access::Rog, Replication::Quorum),
    Scheme::Noob(Access::Rag, Replication::PrimaryBackup),
    Scheme::Noob(Access::Rag, Replication::TwoPhase),
    Scheme::Noob(Access::Rag, Replication::Quorum),
    Scheme::Noob(Access::Rac, Replication::PrimaryBackup),
    Scheme::Noob(Access::Rac, Replication::TwoPhase),
    Scheme::Noob(Access::Rac, Replication::Quorum),
    Scheme::Proxy,
    Scheme::NICE,
    Scheme::RACKWEAVE,
];

fn load(count: u64, puts: f64, keys: u64) -> Load {
    let next = move |rng: &mut Rng| {
        let key = rng.below(keys);
        if rng.chance(puts) { Op::Put { key, bytes: 3_000 } } else { Op::Get { key } }
    };
    Load { threads: 4, count, think: Span::ZERO, next: Box::new(next) }
}

#[test]
fn every_scheme_answers_everything_and_the_same_for_a_seed() {
    for scheme in ALL {
        let run = |seed| {
            let mut c = Cluster::new(Setup { clients: 3, ..Setup::new(scheme, seed) });
            c.fill(5, 3_000);
            let done = c.run((0..3).map(|_| load(60, 0.4, 5)).collect());
            (done, c.link_bytes())
        };
        let first = run(7);
        assert_eq!(first.0.iter().map(Vec::len).collect::<Vec<_>>(), [60; 3], "{}", scheme.name());
        assert!(first == run(7), "{}: the same seed", scheme.name());
        assert!(first != run(8), "{}: another seed", scheme.name());
    }
}

#[test]
fn a_multicast_put_crosses_each_link_of_its_tree_once() {
    let bytes = 140_000;
    let mut c = Cluster::new(Setup::new(Scheme::NICE, 1));
    c.fill(1, bytes);
    let before = c.link_bytes();
    let put = Box::new(move |_: &mut Rng| Op::Put { key: 0, bytes });
    c.run(vec![Load { threads: 1, count: 1, think: Span::ZERO, next: put }]);
    c.engine.run_until(c.now() + Span::from_millis(10));
    // The message: its header and key of 24 bytes.
    let tree = 4 * framed(Carrier::Datagrams, bytes + 32 + 24);
    // From each replica to the client: an acknowledgement for eight chunks, on two links.
    let chunks: u64 = (bytes + 32 + 24).div_ceil(1_400);
    let acks = 3 * 2 * chunks.div_ceil(8) * BARE_BYTES;
    let rest = c.link_bytes() - before - tree - acks;
    // Two acknowledgements of each secondary, the timestamp to both, the answer: each a small frame and its acknowledgement.
    let small = 2 * (framed(Carrier::Tcp, 32) + BARE_BYTES);
    let timestamp = 3 * framed(Carrier::Datagrams, 32) + 4 * BARE_BYTES;
    assert_eq!(rest, 5 * small + timestamp);
}

#[test]
fn a_get_waits_for_a_put_of_its_key() {
    // Gets of a key that is put all the time take longer than those of another key.
    let mean = |get: u64| {
        let mut c = Cluster::new(Setup { clients: 2, ..Setup::new(Scheme::NICE, 1) });
        c.fill(2, 4);
        let of = |op| Load { threads: 1, count: 50, think: Span::ZERO, next: Box::new(move |_: &mut Rng| op) };
        let done = c.run(vec![of(Op::Put { key: 0, bytes: 4 }), of(Op::Get { key: get })]);
        done[1].iter().map(|d| d.us()).sum::<f64>() / 50.0
    };
    assert!(mean(0) > 1.2 * mean(1), "{} and {}", mean(0), mean(1));
}

#[test]
fn the_switch_divides_gets() {
    let c = Cluster::new(Setup { clients: 10, ..Setup::new(Scheme::NICE, 1) });
    let p = Partition(0);
    let mut switch = c.switch.borrow_mut();
    let home = switch.replicas(p).to_vec();
    let chosen: Vec<usize> = c
        .clients
        .iter()
        .map(|client| {
            let to = switch.choose(p, *client);
            home.iter().position(|h| *h == to).expect("a replica")
        })
        .collect();
    assert_eq!(chosen, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2], "prefixes of four clients");
    switch.division = Division::Weights(vec![1.0, 0.0, 3.0]);
    let mut counts = [0; 3];
    for _ in 0..4_000 {
        let to = switch.choose(p, c.clients[0]);
        counts[home.iter().position(|h| *h == to).expect("a replica")] += 1;
    }
    assert!(counts[1] == 0 && (900..1_100).contains(&counts[0]), "{counts:?}");
}
