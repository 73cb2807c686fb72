//! Fences of volumes that are created and deleted.

use std::sync::Arc;

use rackweave_core::msg::io::WriteRequest;
use rackweave_core::msg::peer::{Inv, ScanEntry};
use rackweave_core::msg::{
    BlockRange, FENCE_ALL, FENCE_REMOVED, IoError, IoReply, IoRequest, LiveVolumes, Mutation, Peer, Role, SectorRange,
};
use rackweave_core::{BLOCK, BlockAddr, Epoch, Incarnation, Payload, Rng, VolumeId};
use rackweave_replica::{FENCES_ASK, FENCES_MAX, FENCES_UNHEARD_MAX, Fences, Store, StoreDone};

use crate::single::{One, V, block, ts};

fn told(first_unused: u32, writers: &[(u32, u32)]) -> LiveVolumes {
    let writers = writers.iter().map(|&(v, attach)| (VolumeId(v), attach)).collect();
    LiveVolumes { first_unused: VolumeId(first_unused), writers }
}

fn write(volume: u32, sequence: u64) -> IoRequest {
    let range = SectorRange { volume: VolumeId(volume), first: 0, count: 8 };
    let mutation = Mutation { client: Incarnation(9), sequence, floor: sequence };
    let data = Payload::elided(BLOCK, sequence);
    IoRequest::Write(Box::new(WriteRequest { range, data, fua: false, attach: 1, mutation }))
}

/// The result of a write by the volume's first writer: accepted without an answer yet, or refused.
fn tried(o: &mut One, volume: u32, sequence: u64) -> Result<(), IoError> {
    match o.io(write(volume, sequence))[..] {
        [] => Ok(()),
        [IoReply::Failed(e)] => Err(e),
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn an_unannounced_volume_is_written_and_a_deleted_one_is_not() {
    let mut o = One::new(Role::Member);
    o.r.learn_volumes(&mut o.store, &told(8, &[(3, 0), (5, 1), (6, 2)]));
    assert_eq!(tried(&mut o, 8, 1), Ok(()), "made since");
    assert_eq!(tried(&mut o, 3, 2), Ok(()), "the volume's first writer");
    assert_eq!(tried(&mut o, 5, 3), Ok(()));
    assert_eq!(tried(&mut o, 6, 4), Err(IoError::Fenced { attach: 2 }));
    assert_eq!(tried(&mut o, 4, 5), Err(IoError::Fenced { attach: FENCE_ALL }), "deleted in an earlier incarnation");
    // A list from before volume 7 was created arrives late.
    o.r.learn_volumes(&mut o.store, &told(7, &[(4, 1), (5, 1)]));
    assert_eq!(tried(&mut o, 8, 6), Ok(()));
    assert_eq!(tried(&mut o, 4, 7), Err(IoError::Fenced { attach: FENCE_ALL }), "not in the first list");
    assert_eq!(tried(&mut o, 6, 8), Err(IoError::Fenced { attach: FENCE_ALL }), "not in the second list");
    o.r.learn_volumes(&mut o.store, &told(9, &[(3, 0), (5, 1)]));
    assert_eq!(tried(&mut o, 8, 9), Err(IoError::Fenced { attach: FENCE_ALL }), "deleted before a list named it");
}

#[test]
fn a_shadow_learns_of_its_members_which_volumes_are_gone() {
    let mut o = One::new(Role::Shadow);
    o.r.learn_volumes(&mut o.store, &told(5, &[(2, 1), (3, 1), (4, 1)]));
    for (member, volumes) in
        [(1, told(8, &[(2, 1), (3, 4), (6, 0), (9, 3)])), (2, told(7, &[(2, 1), (3, 2), (4, 1), (6, 2)]))]
    {
        let from = rackweave_core::VssdId(1 + member);
        o.peer(member, Peer::Clients { records: [].into(), volumes, from });
    }
    assert_eq!(o.r.volumes(), told(8, &[(2, 1), (3, 4), (6, 2), (9, 3)]));
}

#[test]
fn fences_of_deleted_volumes_do_not_pile_up() {
    let mut o = One::new(Role::Member);
    let (mut requested, mut most) = (0, 0);
    for v in 1..=100_000 {
        let inv = |attach| {
            let mutation = Mutation { client: Incarnation(9), sequence: u64::from(v), floor: u64::from(v) };
            let (blocks, data) = ([block(0, ts(3, 1), ts(0, 0), false)].into(), Payload::elided(BLOCK, 1));
            Peer::Inv(Arc::new(Inv { volume: VolumeId(v), blocks, data, mutation, attach, fua: false }))
        };
        assert!(matches!(o.peer(1, inv(1))[..], [Peer::Ack { .. }]));
        let (volume, version) = (VolumeId(v), ts(3, 1));
        o.peer(1, Peer::Val { volume, blocks: [(0, version)].into() });
        assert!(matches!(o.peer(1, Peer::Fence { volume, attach: FENCE_ALL })[..], [Peer::FenceAck { .. }]));
        if o.r.wants_volumes() {
            o.r.learn_volumes(&mut o.store, &told(v + 1, &[]));
            assert!(!o.r.wants_volumes());
            requested += 1;
        }
        o.store.background();
        if v % 97 == 0 {
            most = most.max(o.r.volumes().writers.len());
        }
    }
    assert!((1..=FENCES_ASK).contains(&most), "{most} fences");
    assert_eq!(requested, 100_000 / FENCES_ASK);
    for v in (1..99_000).step_by(1_009) {
        assert_eq!(tried(&mut o, v, 200_000), Err(IoError::Fenced { attach: FENCE_ALL }), "volume {v}");
    }
}

#[test]
fn writers_beyond_the_table_of_volumes_wait_until_they_are_announced() {
    let mut f = Fences::default();
    let last = FENCES_UNHEARD_MAX as u32;
    assert!((0..last).all(|v| f.raise(VolumeId(10 + v), 1)));
    assert!(!f.raise(VolumeId(10 + last), 1) && f.of(VolumeId(10 + last)) == 0);
    assert!(f.raise(VolumeId(10), 7), "a volume that it knows");
    assert!(f.is_outdated());
    assert!(f.learn(&told(11 + last, &[(10, 7), (10 + last, 0)])));
    assert!(!f.is_outdated() && f.raise(VolumeId(10 + last), 1) && f.raise(VolumeId(11 + last), 1));
    let too_many: Vec<(u32, u32)> = (0..FENCES_MAX as u32).map(|v| (12 + last + v, 1)).collect();
    let before = f.known();
    assert_eq!(before.writers.len(), 3);
    assert!(!f.learn(&told(11 + last, &too_many)), "above the bound of volumes");
    assert_eq!(f.known(), before);
}

/// Volumes are created, attached and deleted at random. Lists of any time arrive at any later time, in any order, also
/// twice.
#[test]
fn whatever_is_heard_in_whatever_order_no_writer_is_wronged() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        // The generation of every volume ever created.
        let mut truth: Vec<u32> = vec![FENCE_ALL];
        let mut said: Vec<LiveVolumes> = Vec::new();
        let mut replicas = [Fences::default(), Fences::default()];
        for step in 0..200 {
            let v = rng.below(truth.len() as u64) as usize;
            match rng.below(8) {
                0 | 1 => truth.push(0),
                2 => truth[v] = FENCE_ALL,
                3 if truth[v] < FENCE_ALL => truth[v] += 1,
                4 => {
                    let live = truth.iter().enumerate().filter(|(_, a)| **a < FENCE_ALL);
                    let live: Vec<(u32, u32)> = live.map(|(v, a)| (v as u32, *a)).collect();
                    said.push(told(truth.len() as u32, &live));
                }
                5 => drop(replicas[rng.below(2) as usize].raise(VolumeId(v as u32), truth[v])),
                6 => {
                    let from = replicas[0].known();
                    assert!(replicas[1].learn(&from));
                }
                _ => {
                    let n = said.len() as u64;
                    if let Some(one) = said.get(rng.below(n.max(1)) as usize) {
                        assert!(replicas[rng.below(2) as usize].learn(one));
                        let gone = |v: u32| v < one.first_unused.0 && one.writers.iter().all(|w| w.0.0 != v);
                        assert!((1..truth.len() as u32).all(|v| !gone(v) || truth[v as usize] == FENCE_ALL));
                    }
                }
            }
            for (v, newest) in truth.iter().enumerate() {
                let worst = replicas.iter().map(|r| r.of(VolumeId(v as u32))).max();
                assert!(worst <= Some(*newest), "seed {seed}, step {step}: vol{v} at {worst:?}, not {newest}");
            }
            assert!(replicas.iter().all(|r| r.of(VolumeId(truth.len() as u32)) == 0), "not made yet");
        }
        for one in &said {
            assert!(replicas.iter_mut().all(|r| r.learn(one)));
        }
        if let Some(last) = said.last() {
            let gone = |v: u32| v < last.first_unused.0 && last.writers.iter().all(|w| w.0.0 != v);
            let fenced = |v: u32| replicas.iter().all(|r| r.of(VolumeId(v)) == FENCE_ALL);
            assert!((1..truth.len() as u32).all(|v| !gone(v) || fenced(v)), "seed {seed}");
        }
    }
}

/// The number of the store's runs of a volume.
fn held(o: &One, volume: u32) -> usize {
    let of = |b| BlockAddr::new(VolumeId(volume), b);
    let mut runs = Vec::new();
    o.store.scan((of(0), of(u32::MAX)), usize::MAX, &mut runs);
    runs.len()
}

#[test]
fn a_deleted_volume_is_forgotten_and_what_comes_late_is_acknowledged_and_ignored() {
    let mut o = One::new(Role::Member);
    o.r.learn_volumes(&mut o.store, &told(8, &[(V.0, 1), (7, 1)]));
    for b in 0..4 {
        assert!(matches!(o.inv(1, 1 + u64::from(b), block(b, ts(4, 1), ts(0, 0), false))[..], [Peer::Ack { .. }]));
        o.peer(1, Peer::Val { volume: V, blocks: [(b, ts(4, 1))].into() });
    }
    let other = BlockAddr::new(VolumeId(7), 0);
    o.store.put(other, ts(4, 1), Payload::elided(BLOCK, 1));
    assert_eq!(held(&o, V.0), 4);
    assert!(matches!(o.peer(1, Peer::Fence { volume: V, attach: FENCE_ALL })[..], [Peer::FenceAck { .. }]));
    assert_eq!((held(&o, V.0), held(&o, 7)), (0, 1));
    // A resent write and a trim are acknowledged, so that their coordinators do not wait.
    assert!(matches!(o.inv(1, 9, block(2, ts(5, 1), ts(4, 1), false))[..], [Peer::Ack { .. }]));
    let range = BlockRange { volume: V, first: 0, count: 9 };
    let mutation = Mutation { client: Incarnation(9), sequence: 10, floor: 0 };
    let trim = Peer::InvRange { range, version: ts(6, 1), mutation, attach: 1, fua: false };
    assert!(matches!(o.peer(1, trim)[..], [Peer::Ack { .. }]));
    assert_eq!(held(&o, V.0), 0);
}

/// Its unmapped blocks must not be returned as zeroes.
#[test]
fn a_deleted_volume_is_neither_read_nor_flushed_nor_compared() {
    let mut o = One::new(Role::Member);
    let range = BlockRange { volume: V, first: 0, count: 8 };
    let reads = || {
        [
            IoRequest::read(SectorRange { volume: V, first: 0, count: 8 }),
            IoRequest::status(range),
            IoRequest::Flush { volume: V },
        ]
    };
    o.r.learn_volumes(&mut o.store, &told(8, &[(V.0, 1)]));
    o.store.put(BlockAddr::new(V, 0), ts(4, 1), Payload::elided(BLOCK, 1));
    for io in reads() {
        assert!(!matches!(o.io(io)[..], [IoReply::Failed(_)]), "it lives");
    }
    o.peer(1, Peer::Fence { volume: V, attach: FENCE_ALL });
    o.sent();
    for io in reads() {
        assert_eq!(o.io(io), [IoReply::Failed(IoError::Fenced { attach: FENCE_ALL })]);
    }
    // The comparing member does not know of the deletion: the answer is that nothing differs, and no block is sent.
    let sent = o.peer(1, Peer::SumsRequest { range, digest: 7 });
    assert!(matches!(&sent[..], [Peer::Sums { same: true, .. }]), "{sent:?}");
    assert_eq!(o.peer(1, Peer::BlockFetch { addr: BlockAddr::new(V, 0) }), [], "it will learn of the deletion");
}

/// What it shares with others may have been given back, and reads as zeroes then; others do not read that.
#[test]
fn who_reads_a_removed_snapshot_is_refused_and_those_who_share_its_contents_are_not() {
    let mut o = One::new(Role::Member);
    o.r.learn_volumes(&mut o.store, &told(8, &[(V.0, 1), (6, 1)]));
    o.store.put(BlockAddr::new(V, 0), ts(4, 1), Payload::elided(BLOCK, 1));
    let reads = |snapshot: Option<u32>| {
        let snapshot = snapshot.map(VolumeId);
        let status = IoRequest::Status { range: BlockRange { volume: V, first: 0, count: 8 }, snapshot };
        [IoRequest::Read { range: SectorRange { volume: V, first: 0, count: 8 }, snapshot }, status]
    };
    let refused = [IoReply::Failed(IoError::Fenced { attach: FENCE_ALL })];
    for io in reads(Some(6)).into_iter().chain(reads(None)) {
        assert!(!matches!(o.io(io)[..], [IoReply::Failed(_)]));
    }
    // Read while the fence comes.
    o.store.slow = 1;
    let [read, _] = reads(Some(6));
    assert_eq!(o.io(read), []);
    o.peer(1, Peer::Fence { volume: VolumeId(6), attach: FENCE_REMOVED });
    o.sent();
    for done in std::mem::take(&mut o.store.done) {
        o.r.handle_store(o.now, done, &mut o.store, &mut o.fx);
    }
    assert_eq!(o.replies(), refused);
    o.store.slow = 0;
    for io in reads(Some(6)) {
        assert_eq!(o.io(io), refused);
    }
    for io in reads(Some(V.0)).into_iter().chain(reads(None)) {
        assert!(!matches!(o.io(io)[..], [IoReply::Failed(_)]));
    }
}

/// Its block goes while the device reads it.
#[test]
fn a_volume_deleted_during_a_read_is_not_shown() {
    let mut o = One::new(Role::Member);
    o.r.learn_volumes(&mut o.store, &told(8, &[(V.0, 1)]));
    o.store.put(BlockAddr::new(V, 0), ts(4, 1), Payload::elided(BLOCK, 1));
    o.store.slow = 1;
    assert_eq!(o.io(IoRequest::read(SectorRange { volume: V, first: 0, count: 8 })), []);
    o.peer(1, Peer::Fence { volume: V, attach: FENCE_ALL });
    o.sent();
    for mut done in std::mem::take(&mut o.store.done) {
        if let StoreDone::Read { result, .. } = &mut done {
            *result = Ok(Payload::zero(BLOCK));
        }
        o.r.handle_store(o.now, done, &mut o.store, &mut o.fx);
    }
    assert_eq!(o.replies(), [IoReply::Failed(IoError::Fenced { attach: FENCE_ALL })]);
}

/// The shadow was down when the volume was deleted, and its source does not know of the deletion yet.
#[test]
fn a_shadow_forgets_volumes_that_are_gone_and_copies_nothing_of_them() {
    let mut o = One::new(Role::Shadow);
    let old = rackweave_core::Timestamp::new(Epoch(3), 5, 1);
    for volume in [V.0, 7] {
        o.store.put(BlockAddr::new(VolumeId(volume), 0), old, Payload::elided(BLOCK, 1));
    }
    for member in [1, 2] {
        let from = rackweave_core::VssdId(1 + member);
        let volumes = told(8, if member == 1 { &[(7, 1)] } else { &[(V.0, 1), (7, 1)] });
        o.peer(member, Peer::Clients { records: [].into(), volumes, from });
    }
    assert_eq!((held(&o, V.0), held(&o, 7)), (0, 1));
    let from = BlockAddr::default();
    let until = BlockAddr::unpack(u64::MAX);
    let header = rackweave_core::msg::Header { request: from.pack(), ..o.header(4, 1) };
    let requested = o.peer_as(header, 1, Peer::Digests { entries: [(from, 1)].into(), next: None });
    assert_eq!(requested, [Peer::ScanRequest { from, until }]);
    let run =
        |volume, block, count, mapped| ScanEntry { addr: BlockAddr::new(volume, block), count, version: old, mapped };
    let entries =
        [run(V, 0, 1, true), run(V, 9, 900, false), run(VolumeId(7), 1, 1, true), run(VolumeId(7), 9, 900, false)];
    let requested = o.peer(1, Peer::Scan { from, until, entries: entries.into() });
    assert_eq!(requested, [Peer::BlockFetch { addr: BlockAddr::new(VolumeId(7), 1) }]);
    assert_eq!((held(&o, V.0), held(&o, 7)), (0, 2), "a block that the source lacks is removed, a range zeroed");
}
