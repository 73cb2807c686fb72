//! Streams without sockets: the test is both ends' driver.

use rackweave_core::Rng;
use rackweave_core::rng::seeds;

use super::*;

const PEER: NodeId = NodeId(3);
const SMALL: StreamLimits = StreamLimits { peer_bytes: 10_000, total_bytes: 15_000 };

/// An open stream to the peer.
fn open(now: Time, limits: StreamLimits) -> (Streams, ConnectionId) {
    let mut s = Streams::new(limits);
    s.open(now, PEER);
    let Some(Action::Connect(id, PEER)) = s.poll(now) else { panic!("nothing is connected") };
    s.connecting(id, true);
    s.connected(now, id);
    assert_eq!(s.take_changes(), [Change::Up(PEER)]);
    (s, id)
}

fn drain(s: &mut Streams, now: Time) -> Vec<Action> {
    std::iter::from_fn(|| s.poll(now)).collect()
}

/// Datagrams arrive in order, each once, whatever part of the output each write takes and each read returns.
#[test]
fn frames_survive_writes_and_reads_of_any_length() {
    for seed in seeds(0..20) {
        let (mut rng, now) = (Rng::new(seed), Time(1));
        let (mut from, id) = open(now, StreamLimits::default());
        let mut to = Streams::new(StreamLimits::default());
        let other = to.accepted(now).expect("room");
        let sent: Vec<Bytes> = (0..40u8).map(|i| vec![i; rng.below(3_000) as usize].into()).collect();
        let mut got = Vec::new();
        let mut pending = sent.iter().cloned();
        loop {
            let more = pending.next();
            let last = more.is_none();
            more.into_iter().for_each(|d| from.send(now, PEER, d));
            let wire: Vec<u8> = from.output(id).flat_map(|b| b.to_vec()).collect();
            if last && wire.is_empty() {
                break;
            }
            let n = rng.between(1, wire.len() as u64) as usize;
            from.wrote(now, id, n);
            for piece in wire[..n].chunks(rng.between(1, 2_000) as usize) {
                to.received(now, other, piece, |d| {
                    got.push(d.freeze());
                    Origin::Proven(NodeId(2))
                });
            }
        }
        assert_eq!((got, from.held_bytes()), (sent, 0), "seed {seed}");
        assert_eq!((to.take_changes(), to.counters.frames_received), (vec![Change::Up(NodeId(2))], 40));
    }
}

#[test]
fn queued_bytes_are_bounded_for_one_peer_and_for_all() {
    let now = Time(1);
    let (mut s, _) = open(now, StreamLimits { total_bytes: 1 << 20, ..SMALL });
    (0..100).for_each(|_| s.send(now, PEER, vec![0; 500].into()));
    assert!((9_500..=10_004).contains(&s.held_bytes()), "{}", s.held_bytes());
    // Of what is left for all, one takes no more than it leaves.
    let (mut s, id) = open(now, SMALL);
    (0..100).for_each(|_| s.send(now, PEER, vec![0; 500].into()));
    assert!((7_000..=8_004).contains(&s.held_bytes()), "{}", s.held_bytes());
    s.open(now, NodeId(4));
    let other = drain(&mut s, now).into_iter().find_map(|a| match a {
        Action::Connect(id, NodeId(4)) => Some(id),
        _ => None,
    });
    s.connected(now, other.expect("connects"));
    (0..100).for_each(|_| s.send(now, NodeId(4), vec![0; 500].into()));
    assert!((10_500..=15_004).contains(&s.held_bytes()), "{}", s.held_bytes());
    let refused = s.counters.frames_refused;
    s.wrote(now, id, 5_000);
    s.send(now, PEER, vec![0; 500].into());
    assert_eq!(s.counters.frames_refused, refused, "there is room again");
}

/// A connection that broke or was never made is reported once, and another can be opened.
#[test]
fn a_connection_that_ends_is_reported() {
    let now = Time(1);
    let (mut s, id) = open(now, SMALL);
    s.send(now, PEER, vec![0; 500].into());
    s.closed(id);
    s.closed(id);
    assert_eq!((s.take_changes(), s.held_bytes(), s.reaches(PEER)), (vec![Change::Down(PEER)], 0, false));
    assert!(drain(&mut s, now).contains(&Action::Close(id)));
    s.open(now, PEER);
    let Some(Action::Connect(id, PEER)) = s.poll(now) else { panic!("nothing is connected") };
    s.connecting(id, false);
    assert_eq!((s.take_changes(), s.counters.failed, s.len()), (vec![Change::Down(PEER)], 1, 0));
}

/// Only a datagram of a node's present incarnation identifies a connection's other end: others may be recorded ones.
#[test]
fn a_replayed_datagram_names_no_sender() {
    let now = Time(1);
    let mut s = Streams::new(SMALL);
    let id = s.accepted(now).expect("room");
    let frame = [0, 0, 0, 1, 7];
    s.received(now, id, &frame, |_| Origin::Unproven(PEER));
    assert_eq!((s.take_changes(), s.peer(id), s.reaches(PEER)), (vec![], None, false));
    // The challenge goes there all the same.
    s.send(now, PEER, vec![0; 50].into());
    assert_eq!(s.held_bytes(), 54);
    s.received(now, id, &frame, |_| Origin::Proven(PEER));
    assert_eq!((s.take_changes(), s.peer(id)), (vec![Change::Up(PEER)], Some(PEER)));
    let stranger = s.accepted(now).expect("room");
    s.received(now, stranger, &frame, |_| Origin::Nobody);
    assert!(!s.contains(stranger) && s.contains(id));
}

#[test]
fn strangers_are_few_and_the_silent_and_stalled_are_closed() {
    let now = Time(1);
    let (mut s, stalled) = open(now, SMALL);
    s.send(now, PEER, vec![0; 500].into());
    let accepted = (0..80).filter_map(|_| s.accepted(now)).count();
    assert_eq!((accepted, s.counters.strangers), (STRANGERS_MAX, 16));
    assert_eq!(s.deadline(), now + STRANGER_WAIT.min(STALLED_AFTER));
    s.sweep(now + Span::from_millis(2_999));
    assert_eq!(s.len(), 65);
    s.sweep(now + Span::from_secs(3));
    assert!(s.is_empty() && !s.contains(stalled));
    assert_eq!((s.counters.strangers, s.counters.stalled), (80, 1));
    assert_eq!(s.take_changes(), [Change::Down(PEER)]);
}

/// Both ends connect at once, and the connection that was identified first breaks before the other is made.
#[test]
fn a_connection_that_is_made_late_is_used_if_the_peer_has_no_other() {
    let now = Time(1);
    let mut s = Streams::new(SMALL);
    s.open(now, PEER);
    let Some(Action::Connect(mine, PEER)) = s.poll(now) else { panic!("nothing is connected") };
    s.connecting(mine, true);
    let theirs = s.accepted(now).expect("room");
    let frame = [&frame_head(1)[..], &[7]].concat();
    s.received(now, theirs, &frame, |_| Origin::Proven(PEER));
    assert_eq!(s.take_changes(), [Change::Up(PEER)]);
    s.closed(theirs);
    assert_eq!(s.take_changes(), [Change::Down(PEER)]);
    s.connected(now, mine);
    assert_eq!(s.take_changes(), [Change::Up(PEER)]);
    s.send(now, PEER, vec![0; 10].into());
    assert_eq!((s.counters.frames_refused, s.output(mine).count()), (0, 2));
    s.closed(mine);
    assert_eq!(s.take_changes(), [Change::Down(PEER)]);
}

/// The peer's own connection brings it before this node's is made: the proof that it wants goes back there.
#[test]
fn a_claimed_connection_takes_frames_while_the_own_one_is_made() {
    let now = Time(1);
    let mut s = Streams::new(SMALL);
    s.open(now, PEER);
    let theirs = s.accepted(now).expect("room");
    s.received(now, theirs, &[&frame_head(1)[..], &[7]].concat(), |_| Origin::Unproven(PEER));
    s.send(now, PEER, vec![0; 10].into());
    assert_eq!((s.counters.frames_refused, s.output(theirs).count()), (0, 2));
}

/// Connections of both ends that are made, used, done and broken in any order, and what is known of them.
struct Search {
    s: Streams,
    rng: Rng,
    now: Time,
    made: Vec<ConnectionId>,
    /// Of those that other nodes made: the nodes whose present incarnation was read there.
    proven: BTreeMap<ConnectionId, Vec<NodeId>>,
    up: BTreeMap<NodeId, bool>,
}

impl Search {
    fn new(seed: u64) -> Search {
        let (rng, s) = (Rng::new(seed), Streams::new(SMALL));
        Search { s, rng, now: Time(1), made: Vec::new(), proven: BTreeMap::new(), up: BTreeMap::new() }
    }
    fn accept(&mut self) {
        let crowd = if self.rng.chance(0.1) { self.rng.below(80) } else { 1 };
        for _ in 0..crowd {
            let Some(id) = self.s.accepted(self.now) else { continue };
            self.made.push(id);
            self.proven.insert(id, Vec::new());
        }
    }
    fn read(&mut self, id: ConnectionId, peer: NodeId) {
        let of = self.s.peer(id).unwrap_or(peer);
        let proven = self.rng.chance(0.7);
        let frame = [&frame_head(1)[..], &[7]].concat();
        self.s.received(self.now, id, &frame, |_| if proven { Origin::Proven(of) } else { Origin::Unproven(of) });
        if let Some(all) = self.proven.get_mut(&id).filter(|_| proven) {
            all.push(of);
        }
    }
    /// The socket takes all of the output, or a part.
    fn write(&mut self, id: ConnectionId) {
        let all = self.s.output(id).map(Bytes::len).sum::<usize>();
        let n = if self.rng.chance(0.5) { all } else { self.rng.below(all as u64 + 1) as usize };
        self.s.wrote(self.now, id, n);
    }
    fn anything(&mut self) {
        let peer = NodeId(3 + self.rng.below(2) as u32);
        let any = self.made.get(self.rng.below(self.made.len().max(1) as u64) as usize).copied();
        match (self.rng.below(11), any) {
            (0, _) => self.s.open(self.now, peer),
            (1, _) => self.accept(),
            (2, _) => {
                // The endpoint uses datagrams.
                self.up.insert(peer, false);
                self.s.done(self.now, peer);
            }
            (3, _) => self.s.abort(peer),
            (4, Some(id)) => self.s.connected(self.now, id),
            (5, Some(id)) => self.read(id, peer),
            (6, Some(id)) => self.s.closed(id),
            (7 | 8, _) => {
                let bytes = *self.rng.pick(&[10, 500, 3_000]);
                (0..self.rng.below(6)).for_each(|_| self.s.send(self.now, peer, vec![0; bytes].into()));
            }
            (9, Some(id)) => self.write(id),
            (10, _) => {
                self.now += Span::from_millis(self.rng.between(1, 2_000));
                self.s.sweep(self.now);
            }
            _ => {}
        }
    }
    fn carry_out(&mut self, met: &mut BTreeMap<String, u32>) {
        while let Some(action) = self.s.poll(self.now) {
            match action {
                Action::Connect(id, _) => {
                    self.made.push(id);
                    self.s.connecting(id, self.rng.chance(0.9));
                }
                Action::Write(id) => self.write(id),
                Action::Shutdown(_) | Action::Close(_) => {}
            }
        }
        for change in self.s.take_changes() {
            *met.entry(format!("{change:?}")).or_insert(0) += 1;
            match change {
                Change::Up(peer) => self.up.insert(peer, true),
                Change::Down(peer) => self.up.insert(peer, false),
            };
        }
    }
    fn check(&self) -> Result<(), String> {
        if let Some((peer, _)) = self.up.iter().find(|(peer, up)| **up && !self.s.reaches(**peer)) {
            return Err(format!("{peer} has no connection"));
        }
        let named =
            |(id, proven): &(&ConnectionId, &Vec<NodeId>)| self.s.peer(**id).is_some_and(|p| !proven.contains(&p));
        if let Some((id, _)) = self.proven.iter().find(named) {
            return Err(format!("{id:?} has a peer that proved nothing"));
        }
        let strangers = self.proven.iter().filter(|(id, proven)| self.s.contains(**id) && proven.is_empty()).count();
        let (held, most) = (self.s.held_bytes(), self.s.held_bytes_max());
        if strangers > STRANGERS_MAX {
            return Err(format!("{strangers} strangers"));
        }
        // A frame's head is not counted before it is queued.
        if held > SMALL.total_bytes + FRAME_HEAD_BYTES || most > SMALL.peer_bytes + FRAME_HEAD_BYTES {
            return Err(format!("{held} bytes wait to be written, {most} of them to one peer"));
        }
        Ok(())
    }
}

/// The peer of a connection has proved that it is there; strangers and bytes that wait are within their bounds.
#[test]
fn a_peer_whose_stream_is_up_has_a_connection() {
    let mut met = BTreeMap::new();
    let of = seeds(0..300);
    for seed in of.clone() {
        let mut search = Search::new(seed);
        for _ in 0..200 {
            search.anything();
            search.carry_out(&mut met);
            search.check().unwrap_or_else(|e| panic!("seed {seed}: {e}: {:?}", search.s));
        }
    }
    assert!(of != (0..300) || met.len() == 4, "{met:?}");
}

/// A stream that is no longer used is shut down once its output is written, and closed if the other end never does.
#[test]
fn a_stream_that_is_done_ends_after_its_output() {
    let now = Time(1);
    let (mut s, id) = open(now, SMALL);
    s.send(now, PEER, vec![0; 500].into());
    s.done(now, PEER);
    assert!(drain(&mut s, now).iter().all(|a| *a == Action::Write(id)));
    s.wrote(now, id, 504);
    assert_eq!(drain(&mut s, now), [Action::Shutdown(id)]);
    assert!(s.contains(id) && !s.reaches(PEER) && s.take_changes().is_empty());
    s.sweep(now + CLOSE_WAIT);
    assert_eq!(drain(&mut s, now), [Action::Close(id)]);
}
