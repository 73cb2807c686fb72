//! What removed snapshots hold that nobody needs is given back; the test answers for the replica sets.

use std::collections::BTreeMap;

use rackweave_cloud::map::{self, STRIPES};
use rackweave_cloud::msg::Packet as CloudPacket;
use rackweave_core::admin;
use rackweave_core::msg::cloud::Message;
use rackweave_core::msg::{FENCE_ALL, FENCE_REMOVED, Header, IoError, IoReply, IoRequest, Packet};
use rackweave_core::volume::Extent;
use rackweave_core::{BLOCK, Epoch, Incarnation, Payload, SECTORS_PER_BLOCK, Span, VolumeId};

use super::harness::LEASE;
use super::snapshots::Disks;
use super::volumes::{answer, asked};

/// Blocks of a stripe.
const STRIPE: u32 = 16;
/// Longer than a sweep waits after a start or a deletion.
const REST: Span = Span::from_secs(5);

/// Sets that have what is put here, and the maps of generations; all stripes are of segment `n % 4`.
#[derive(Default)]
struct Sets {
    /// By generation: its stripes, and those that its map has there.
    held: BTreeMap<VolumeId, Vec<u32>>,
    /// The first block of a generation's map, if it has one: the owners of its stripes.
    maps: BTreeMap<VolumeId, Vec<VolumeId>>,
    /// In the words of a test.
    log: Vec<String>,
    refuses_fences: bool,
    /// No member can read maps.
    unreadable: bool,
}

fn extents(held: &[u32], first: u32, count: u32) -> IoReply {
    let mapped = |b: u32| held.contains(&(b / STRIPE));
    let mut all: Vec<Extent> = Vec::new();
    for b in first..first + count.min(4096) {
        match all.last_mut().filter(|e| e.mapped == mapped(b)) {
            Some(e) => e.len += u64::from(BLOCK),
            None => all.push(Extent { len: u64::from(BLOCK), mapped: mapped(b) }),
        }
    }
    IoReply::Extents(all.into())
}

impl Sets {
    fn reply(&mut self, io: &IoRequest) -> IoReply {
        match io {
            IoRequest::Fence { volume, attach } => {
                let what = if *attach == FENCE_ALL { "dropped" } else { "fenced" };
                assert!(*attach >= FENCE_REMOVED);
                if self.refuses_fences {
                    return IoReply::Failed(IoError::NotServing);
                }
                self.log.push(format!("{volume} {what}"));
                IoReply::Done
            }
            IoRequest::Status { range, snapshot: None } => {
                extents(self.held.get(&range.volume).map_or(&[], |h| &h[..]), range.first, range.count)
            }
            IoRequest::Read { range, snapshot: None } => {
                if self.unreadable {
                    return IoReply::Failed(IoError::Corrupt);
                }
                let block = (range.first / u64::from(SECTORS_PER_BLOCK)) as u32 & !(1 << 31);
                match self.maps.get(&range.volume).filter(|_| block == 0) {
                    Some(owners) => IoReply::Data(map::write(owners)),
                    None => IoReply::Data(Payload::Zero { sectors: SECTORS_PER_BLOCK }),
                }
            }
            IoRequest::Zero { range, attach, .. } => {
                assert_eq!(*attach, FENCE_REMOVED);
                let stripes = range.first / STRIPE..(range.first + range.count) / STRIPE;
                self.log.push(format!("{} frees {stripes:?}", range.volume));
                if let Some(held) = self.held.get_mut(&range.volume) {
                    held.retain(|s| !stripes.contains(s));
                }
                IoReply::Done
            }
            other => panic!("not of a sweep: {other:?}"),
        }
    }
    fn run(&mut self, d: &mut Disks, span: Span) {
        let end = d.r.now + span;
        while d.r.now < end {
            d.run(LEASE / 5);
            loop {
                let all: Vec<(Header, IoRequest)> = asked(&mut d.r);
                if all.is_empty() {
                    break;
                }
                for (header, io) in all {
                    let reply = self.reply(&io);
                    answer(&mut d.r, header, reply);
                }
            }
        }
    }
    fn heard(&mut self) -> Vec<String> {
        let mut log = std::mem::take(&mut self.log);
        // Several are under way at once, and some are sent again.
        log.sort();
        log.dedup();
        log
    }
}

/// The disk's generations, the current one first, after these snapshots.
fn chain(d: &mut Disks, sets: &mut Sets, snapshots: &[&str]) -> Vec<VolumeId> {
    for s in snapshots {
        d.admin(admin::Op::SnapshotCreate { snapshot: format!("disk@{s}").into() }).expect("begun");
        sets.run(d, LEASE * 3);
    }
    let disk = d.disk("disk");
    d.r.meta.cloud_role().expect("a role").backing(disk).expect("it").0.chain().collect()
}
fn remove(d: &mut Disks, snapshot: &str) {
    d.admin(admin::Op::SnapshotRemove { snapshot: format!("disk@{snapshot}").into() }).expect("removed");
}
/// A block of a map: stripes 0, 4, 8 … of segment 0 and their owners.
fn owners(of: &[(usize, VolumeId)], others: VolumeId) -> Vec<VolumeId> {
    let mut all = vec![others; STRIPES as usize];
    of.iter().for_each(|(place, owner)| all[*place] = *owner);
    all
}

#[test]
fn what_no_end_needs_of_a_removed_snapshot_is_freed_once_nobody_can_read_it() {
    let (mut d, mut sets) = (Disks::attached(), Sets::default());
    let g = chain(&mut d, &mut sets, &["a", "b"]);
    let (first, second, current) = (g[2], g[1], g[0]);
    // Stripes 0, 4 and 8 are segment 0's first; the second generation has replaced 4 and 8, and the current one 0.
    sets.held.insert(first, vec![0, 4, 8]);
    sets.maps.insert(second, owners(&[(1, second), (2, second)], first));
    sets.maps.insert(current, owners(&[(0, current), (1, second), (2, second)], first));
    sets.run(&mut d, REST);
    assert_eq!(sets.heard(), [""; 0], "nothing is removed");
    remove(&mut d, "a");
    sets.refuses_fences = true;
    sets.run(&mut d, REST);
    assert_eq!(sets.heard(), [""; 0], "a reader of the snapshot is not refused yet");
    sets.refuses_fences = false;
    sets.run(&mut d, REST);
    assert_eq!(sets.heard(), [format!("{first} fenced"), format!("{first} frees 4..5"), format!("{first} frees 8..9")]);
    sets.run(&mut d, REST);
    assert_eq!(sets.heard(), [""; 0], "all is swept");

    // Without the second snapshot its map still says what the disk had then; its own contents have no end before the current one.
    sets.held.insert(first, vec![0, 4, 8]);
    sets.held.insert(second, vec![4, 8]);
    remove(&mut d, "b");
    sets.run(&mut d, REST);
    assert_eq!(sets.heard(), [format!("{second} fenced")], "the first one was swept by the same map");
    let g = chain(&mut d, &mut sets, &["c"]);
    assert_eq!(g[1], current, "frozen now");
    sets.held.insert(second, vec![4, 8]);
    sets.run(&mut d, REST);
    let swept = [format!("{first} frees 0..1"), format!("{first} frees 4..5"), format!("{first} frees 8..9")];
    assert_eq!(sets.heard(), swept, "the second generation's stripes are needed");
}

/// A disk that was rolled back and its later snapshots have the removed snapshot's contents in common.
#[test]
fn what_one_of_several_ends_needs_stays() {
    let (mut d, mut sets) = (Disks::attached(), Sets::default());
    let g = chain(&mut d, &mut sets, &["a", "b"]);
    let (first, second) = (g[2], g[1]);
    let (volume, attach) = d.attach("disk");
    d.admin(admin::Op::VolumeRelease { volume, attach }).expect("released");
    d.admin(admin::Op::VolumeRollback { snapshot: "disk@a".into() }).expect("rolled back");
    d.attach("disk");
    sets.run(&mut d, LEASE * 3);
    let g = chain(&mut d, &mut sets, &["c"]);
    assert_eq!(g[2], first);
    sets.run(&mut d, REST);
    sets.heard();
    sets.held.insert(first, vec![0, 4, 8]);
    sets.maps.insert(second, owners(&[(0, second), (1, second)], first));
    sets.maps.insert(g[1], owners(&[(1, g[1]), (2, g[1])], first));
    remove(&mut d, "a");
    sets.run(&mut d, REST);
    assert_eq!(sets.heard(), [format!("{first} fenced"), format!("{first} frees 4..5")]);
}

/// Until servers have ended the epoch in which they wrote the generation, they may answer reads from it.
#[test]
fn a_sweep_waits_for_the_epoch_after_the_fork() {
    let (mut d, mut sets) = (Disks::attached(), Sets::default());
    let g = chain(&mut d, &mut sets, &["a"]);
    let (first, second) = (g[1], g[0]);
    sets.held.insert(first, vec![0]);
    sets.maps.insert(second, owners(&[(0, second)], first));
    remove(&mut d, "a");
    d.drain = false;
    d.admin(admin::Op::SnapshotCreate { snapshot: "disk@b".into() }).expect("begun");
    sets.run(&mut d, REST);
    (d.drain, d.unsealed) = (true, true);
    sets.run(&mut d, REST);
    assert_eq!(chain(&mut d, &mut sets, &[])[1], second, "it is made");
    assert_eq!(sets.heard(), [format!("{first} fenced")]);
    d.unsealed = false;
    d.restart();
    sets.run(&mut d, REST);
    assert_eq!(sets.heard(), [format!("{first} fenced"), format!("{first} frees 0..1")]);
}

/// A deleted disk's proxies may answer until they have heard of it, and sets that have not dropped a removed snapshot let it be read.
#[test]
fn a_sweep_waits_for_what_is_dropped_and_begins_again_after_a_restart() {
    let (mut d, mut sets) = (Disks::attached(), Sets::default());
    let g = chain(&mut d, &mut sets, &["a", "b", "c"]);
    let (first, second) = (g[3], g[2]);
    d.admin(admin::Op::VolumeClone { snapshot: "disk@c".into(), name: "clone".into() }).expect("made");
    sets.run(&mut d, REST);
    sets.heard();
    sets.held.insert(first, vec![0]);
    sets.maps.insert(second, owners(&[(0, second)], first));
    d.admin(admin::Op::VolumeDelete { name: "clone".into(), force: true }).expect("deleted");
    remove(&mut d, "a");
    sets.refuses_fences = true;
    sets.run(&mut d, REST);
    assert_eq!(sets.heard(), [""; 0]);
    d.restart();
    sets.run(&mut d, REST);
    assert_eq!(sets.heard(), [""; 0]);
    sets.refuses_fences = false;
    sets.run(&mut d, REST);
    let heard = std::mem::take(&mut sets.log);
    let at = |what: &str| heard.iter().position(|h| h.ends_with(what)).unwrap_or_else(|| panic!("{what}: {heard:?}"));
    assert!(at("dropped") < at("frees 0..1") && at("fenced") < at("frees 0..1"), "{heard:?}");
    // A new process does not know what was swept.
    sets.held.insert(first, vec![0]);
    d.restart();
    sets.run(&mut d, REST * 2);
    assert_eq!(sets.heard(), [format!("{first} fenced"), format!("{first} frees 0..1")]);
}

/// The map cannot be read for a while; the generation is swept later, and others meanwhile.
#[test]
fn a_sweep_that_fails_is_tried_again() {
    let (mut d, mut sets) = (Disks::attached(), Sets::default());
    let g = chain(&mut d, &mut sets, &["a", "b"]);
    let (first, second) = (g[2], g[1]);
    sets.held.insert(first, vec![0]);
    sets.maps.insert(second, owners(&[(0, second)], first));
    sets.unreadable = true;
    remove(&mut d, "a");
    sets.run(&mut d, REST);
    assert_eq!(sets.heard(), [format!("{first} fenced")]);
    sets.unreadable = false;
    sets.run(&mut d, Span::from_secs(50));
    assert_eq!(sets.heard(), [""; 0]);
    sets.run(&mut d, Span::from_secs(20));
    assert_eq!(sets.heard(), [format!("{first} frees 0..1")]);
}

/// A set hears of the deletion before the earlier fence, and refuses that for ever.
#[test]
fn a_fence_that_comes_after_the_last_one_is_done() {
    let (mut d, mut sets) = (Disks::attached(), Sets::default());
    chain(&mut d, &mut sets, &["a"]);
    sets.run(&mut d, REST);
    remove(&mut d, "a");
    let fence = |d: &mut Disks| {
        let end = d.r.now + REST;
        while d.r.now < end {
            d.run(LEASE / 5);
            let removed = |io: &IoRequest| matches!(io, IoRequest::Fence { attach: FENCE_REMOVED, .. });
            let found = asked(&mut d.r).into_iter().find(|(_, io)| removed(io));
            if found.is_some() {
                return found;
            }
        }
        None
    };
    let (header, _) = fence(&mut d).expect("who reads it is to be refused");
    answer(&mut d.r, header, IoReply::Failed(IoError::Fenced { attach: FENCE_ALL }));
    assert_eq!(fence(&mut d), None, "it is not repeated");
}

/// A disk with snapshots `a` and `b`, and a clone of `b`, which has overwritten what there is of `a`: that generation.
fn cloned() -> (Disks, Sets, VolumeId) {
    let (mut d, mut sets) = (Disks::attached(), Sets::default());
    let g = chain(&mut d, &mut sets, &["a", "b"]);
    let (first, second) = (g[2], g[1]);
    d.admin(admin::Op::VolumeClone { snapshot: "disk@b".into(), name: "clone".into() }).expect("made");
    sets.run(&mut d, REST);
    sets.heard();
    sets.held.insert(first, vec![0]);
    sets.maps.insert(second, owners(&[(0, second)], first));
    (d, sets, first)
}

/// A server that has not heard of the deletion serves the disk until its lease ends.
#[test]
fn after_a_deletion_a_sweep_waits_for_leases_to_end() {
    let (mut d, mut sets, first) = cloned();
    d.admin(admin::Op::VolumeDelete { name: "clone".into(), force: true }).expect("deleted");
    remove(&mut d, "a");
    sets.run(&mut d, Span::from_millis(1_500));
    let heard = sets.heard();
    assert!(!heard.is_empty() && heard.iter().all(|h| h.ends_with("dropped")), "{heard:?}");
    sets.run(&mut d, REST);
    assert_eq!(sets.heard(), [format!("{first} fenced"), format!("{first} frees 0..1")]);
}

/// It may have been away when the others were told.
#[test]
fn a_server_that_registers_is_told_which_snapshots_are_removed() {
    let (mut d, mut sets) = (Disks::attached(), Sets::default());
    let g = chain(&mut d, &mut sets, &["a", "b"]);
    let (first, second) = (g[2], g[1]);
    remove(&mut d, "a");
    d.settle();
    d.r.hello(0);
    d.settle();
    let told = &d.r.servers[0].volumes.writers;
    let fence = |generation| told.iter().find(|(v, _)| *v == generation).map(|(_, attach)| *attach);
    assert_eq!(fence(first), Some(FENCE_REMOVED));
    assert!(fence(second).is_some_and(|attach| attach < FENCE_REMOVED), "{told:?}");
}

/// Whether a server gets a lease that serves this disk in its newest epoch, if it exists.
fn leased(d: &mut Disks, disk: VolumeId) -> bool {
    let newest = d.r.meta.cloud_role().and_then(|r| r.epoch(disk)).unwrap_or(Epoch(9));
    let (incarnation, sent, views) = (Incarnation(1), d.r.now, vec![(disk, newest, 0)]);
    d.settle();
    d.say(0, VolumeId(0), Epoch(0), Message::Heartbeat { incarnation, sent, views });
    let body = |p: &Packet| CloudPacket::of_message(p.clone()).map(|p| p.body);
    let leased = d.r.to_disks.iter().filter_map(body).any(|b| matches!(b, Message::Lease { .. }));
    d.settle();
    leased
}

/// Who serves a deleted disk could read for it what is given back.
#[test]
fn a_server_gets_no_lease_before_it_has_heard_of_a_deletion() {
    let (mut d, mut sets) = (Disks::attached(), Sets::default());
    let disk = d.disk("disk");
    assert!(leased(&mut d, disk));
    d.admin(admin::Op::VolumeDelete { name: "disk".into(), force: true }).expect("deleted");
    sets.run(&mut d, LEASE);
    assert!(!leased(&mut d, disk));
}

/// Until a deletion is durable, the disk's servers get leases, and its proxies may read for it.
#[test]
fn a_sweep_waits_for_the_leases_since_a_deletion_was_durable() {
    let (mut d, mut sets, first) = cloned();
    d.r.hold_store = true;
    d.unanswered(admin::Op::VolumeDelete { name: "clone".into(), force: true });
    d.unanswered(admin::Op::SnapshotRemove { snapshot: "disk@a".into() });
    sets.run(&mut d, REST);
    d.r.hold_store = false;
    d.r.confirm();
    sets.run(&mut d, REST / 2);
    let frees = |heard: &[String]| heard.contains(&format!("{first} frees 0..1"));
    assert!(!frees(&sets.heard()));
    sets.run(&mut d, REST);
    assert!(frees(&sets.heard()));
}
