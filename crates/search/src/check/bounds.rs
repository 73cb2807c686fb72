//! Invariants checked during a simulation: bounds of servers and devices, the switch's tables, and permission to
//! collect.

use std::collections::{BTreeMap, BTreeSet};

use rackweave_core::node::Trace;
use rackweave_core::{Incarnation, NodeId, Span, Time, VssdId};

use rackweave_switch::{ReportedState, Switch};

use rackweave_rack::sim::Sim;
use rackweave_server::trace as server_trace;
use rackweave_switch::trace as switch_trace;

/// Events between two checks of counters and tables: a prime, so that no cycle of messages hides between two checks.
/// Trace points are checked at every event.
const LOOK_EVERY: u32 = 13;
/// Longer than any packet is in flight, and than servers take to announce their state.
const STALE_MAX: Span = Span::from_millis(300);

/// The longest command of a flash die, an erase that reads suspend again and again.
const COMMAND_MAX: Span = Span::from_millis(50);
/// The longest time that a grant for a swap of dies stands: to ask for the others', and a slice, by a slow clock.
const GRANT_MAX: Span = Span::from_millis(250);

/// Follows one simulation from its start.
#[derive(Debug)]
pub struct Bounds {
    /// Ratio of free blocks, per mille, below which a vSSD may collect without permission.
    hard_permille: u64,
    until_look: u32,
    /// vSSDs whose collection the switch accepted (or did not answer), and that have not reported its end since.
    accepted: BTreeMap<u64, (Incarnation, u64)>,
    /// By the rack of the switch.
    last_ops: BTreeMap<(u32, VssdId), (Incarnation, u64)>,
    /// The switch was down: until then it may receive earlier messages.
    stale_until: Time,
    traces: Vec<(NodeId, Trace)>,
    /// vSSDs of swaps whose commands are under way, and that have announced it; and since when others have not.
    announced: BTreeSet<VssdId>,
    silent: BTreeMap<VssdId, Time>,
    granted: BTreeMap<(VssdId, u64), Time>,
    /// The other members of a vSSD's set, as its switch had them when it last accepted a swap of it.
    beside: BTreeMap<VssdId, Vec<VssdId>>,
    /// By rack: the generation of its switch's rows after the last event.
    generations: Vec<u64>,
}

impl Bounds {
    pub fn new(sim: &mut Sim) -> Bounds {
        sim.engine_mut().tap();
        Bounds {
            hard_permille: u64::from(sim.config().gc.regular_percent) * 10,
            until_look: LOOK_EVERY,
            accepted: BTreeMap::new(),
            last_ops: BTreeMap::new(),
            stale_until: Time::ZERO,
            traces: Vec::new(),
            announced: BTreeSet::new(),
            silent: BTreeMap::new(),
            granted: BTreeMap::new(),
            beside: BTreeMap::new(),
            generations: vec![0; sim.engine().layout().racks() as usize],
        }
    }

    /// The switch of a rack ends: after a restart it knows nothing, however soon it starts.
    pub fn switch_ended(&mut self, rack: u32, now: Time) {
        self.last_ops.retain(|k, _| k.0 != rack);
        self.stale_until = now + STALE_MAX;
    }
    /// Rule 35: commands of a swap keep dies busy only while the switch hears so for each vSSD, and no grant stands for longer than
    /// it takes to ask, and a slice.
    fn look_at_swaps(&mut self, sim: &Sim) -> Result<(), String> {
        let now = sim.now();
        let servers = || (0..sim.config().servers_max()).filter_map(|i| sim.server(i));
        let works = swaps(sim);
        self.announced.retain(|v| works.contains_key(v));
        self.silent.retain(|v, _| works.get(v) == Some(&false));
        for (&vssd, &announced) in &works {
            if announced {
                self.announced.insert(vssd);
                continue;
            }
            // One that has come into a slice has not granted it: the command under way is the last.
            let since = *self.silent.entry(vssd).or_insert(now);
            if self.announced.contains(&vssd) || now.since(since) > COMMAND_MAX {
                return Err(format!("a swap keeps dies of {vssd} busy, and the switch does not hear of it"));
            }
        }
        self.look_at_sets(sim, &works)?;
        // A grant that was returned and given again between two looks is another one.
        let granted: Vec<(VssdId, u64)> = servers().flat_map(|s| s.swap_granted()).collect();
        self.granted.retain(|g, _| granted.contains(g));
        for grant in granted {
            let (vssd, since) = (grant.0, *self.granted.entry(grant).or_insert(now));
            if now.since(since) > GRANT_MAX {
                return Err(format!(
                    "{vssd} has had a grant for a swap since {}, {} ago",
                    Span(since.0),
                    now.since(since)
                ));
            }
        }
        Ok(())
    }
    /// Rule 35: of two whose switches had each in the set of the other when they accepted their swaps, one has a grant or works.
    fn look_at_sets(&self, sim: &Sim, works: &BTreeMap<VssdId, bool>) -> Result<(), String> {
        let servers = (0..sim.config().servers_max()).filter_map(|i| sim.server(i));
        let granted = servers.flat_map(|s| s.swap_granted()).map(|(v, _)| v);
        let busy: BTreeSet<VssdId> = works.iter().filter(|w| *w.1).map(|w| *w.0).chain(granted).collect();
        let beside = |v| self.beside.get(v).into_iter().flatten();
        let pairs = busy.iter().flat_map(|a| beside(a).map(move |b| (a, b)));
        match pairs.into_iter().find(|(a, b)| a != b && busy.contains(b) && beside(b).any(|v| v == *a)) {
            Some((a, b)) => Err(format!("two drives of a set have grants to swap at a time: under {a} and {b}")),
            None => Ok(()),
        }
    }
    /// Trace records of the last checked event.
    pub fn traces(&self) -> &[(NodeId, Trace)] {
        &self.traces
    }

    /// To be called after every event.
    ///
    /// # Errors
    /// The violated invariant.
    pub fn event(&mut self, sim: &mut Sim) -> Result<(), String> {
        self.traces.clear();
        std::mem::swap(&mut self.traces, sim.engine_mut().tapped());
        let unasked =
            |p| matches!(p, server_trace::GC_UNACKNOWLEDGED | server_trace::GC_FORCED | server_trace::GC_WHILE_IDLE);
        let unasked = self.traces.iter().any(|t| unasked(t.1.point));
        for &(node, t) in &self.traces {
            match t.point {
                // An announcement that was on its way makes another row, for which the next `gc_op` is the first.
                switch_trace::ROW_DELETED => {
                    let here = |rack| sim.engine().layout().switch(rack) == node;
                    let of = |v: VssdId, last: Incarnation| u64::from(v.0) == t.a && last.0 <= t.b;
                    self.last_ops.retain(|&(rack, v), &mut (last, _)| !(here(rack) && of(v, last)));
                }
                // A train may change rows after the request: which the switch had at its time is not known then.
                switch_trace::GC_ACCEPTED if !self.rows_changed(sim, VssdId(t.a as u32).rack()) => {
                    accepted(sim, VssdId(t.a as u32))?;
                }
                switch_trace::SWAP_ACCEPTED => {
                    let vssd = VssdId(t.a as u32);
                    let known = !self.rows_changed(sim, vssd.rack());
                    if known {
                        accepted(sim, vssd)?;
                        swaps_alone(sim, vssd, &self.beside)?;
                    }
                    self.beside.insert(vssd, if known { peers(sim, vssd) } else { Vec::new() });
                }
                // After an unanswered regular request the ratio may have risen again (rule 20). The remaining free
                // blocks may all be open blocks of the collector, while programs wait for one.
                server_trace::GC_START
                    if t.b >= self.hard_permille && !self.accepted.contains_key(&t.a) && !unasked =>
                {
                    return Err(format!(
                        "vssd{} collects, {} per mille free, and the switch has not accepted",
                        t.a, t.b
                    ));
                }
                // Below the hard threshold it announces instead of requesting, and may continue as if accepted.
                server_trace::GC_START if t.b < self.hard_permille => {
                    self.accepted.insert(t.a, last_op(sim, t.a));
                }
                _ => {}
            }
            match t.point {
                switch_trace::GC_ACCEPTED
                | switch_trace::GC_REGULAR
                | server_trace::GC_UNACKNOWLEDGED
                | server_trace::GC_FORCED => {
                    self.accepted.insert(t.a, last_op(sim, t.a));
                }
                _ => {}
            }
        }
        for (rack, generation) in (0..).zip(&mut self.generations) {
            *generation = sim.switch(rack).map_or(0, Switch::generation);
        }
        self.until_look -= 1;
        if self.until_look == 0 {
            self.until_look = LOOK_EVERY;
            self.look(sim)?;
        }
        Ok(())
    }
    /// This event changed rows of the rack's switch.
    fn rows_changed(&self, sim: &Sim, rack: u32) -> bool {
        let before = self.generations.get(rack as usize);
        sim.switch(rack).is_some_and(|s| before != Some(&s.generation()))
    }

    fn look(&mut self, sim: &Sim) -> Result<(), String> {
        for i in 0..sim.config().servers_max() {
            if let Some(s) = sim.server(i) {
                s.check().map_err(|e| e.to_string())?;
            }
        }
        self.look_at_swaps(sim)?;
        let layout = sim.engine().layout();
        (0..layout.racks()).try_for_each(|rack| self.look_at_switch(sim, rack))
    }

    fn look_at_switch(&mut self, sim: &Sim, rack: u32) -> Result<(), String> {
        let Some(switch) = sim.switch(rack) else {
            self.switch_ended(rack, sim.now());
            return Ok(());
        };
        switch.check().map_err(|e| format!("switch: {e}"))?;
        let settled = sim.now() > self.stale_until;
        for (vssd, (incarnation, last), collects) in
            (0..sim.config().servers_max()).filter_map(|i| sim.server(i)).flat_map(|s| s.gc_confirmed())
        {
            // Between two exchanges the rack's switch and the server agree: lost messages are repeated, late ones
            // ignored. A switch that has started takes a replayed one for the last, until the server announces its state.
            let here = vssd.rack() == rack;
            let replayed = |t: &ReportedState| !settled && t.sequence < last;
            let contradicts = |t: &ReportedState| {
                let same = here && t.vssd == vssd && t.heard && t.incarnation == incarnation && !replayed(t);
                same && t.collecting != collects
            };
            if let Some(t) = switch.reported().find(contradicts) {
                return Err(format!(
                    "{vssd} collects: {collects}, and no exchange is under way, but the switch has {t:?}"
                ));
            }
        }
        for t in switch.reported() {
            let name = u64::from(t.vssd.0);
            let since = self.accepted.get(&name).is_some_and(|&at| (t.incarnation, t.sequence) > at);
            if settled && t.vssd.rack() == rack && since && t.heard && !t.collecting {
                self.accepted.remove(&name);
            }
            let (vssd, incarnation, sequence) = (t.vssd, t.incarnation, t.sequence);
            if sequence == 0 {
                continue;
            }
            let last = self.last_ops.entry((rack, vssd)).or_insert((incarnation, sequence));
            if (incarnation, sequence) < *last {
                let (was, is) = (last.1, sequence);
                return Err(format!(
                    "switch: {vssd} went back from gc_op {was} to {is} of the same incarnation or an older one"
                ));
            }
            *last = (incarnation, sequence);
        }
        Ok(())
    }
}

/// Incarnation and sequence of the last operation that the switch accepted for the vSSD.
fn last_op(sim: &Sim, vssd: u64) -> (Incarnation, u64) {
    let switch = sim.switch(VssdId(vssd as u32).rack());
    let found = switch.and_then(|s| s.reported().find(|t| u64::from(t.vssd.0) == vssd));
    found.map_or((Incarnation(0), 0), |t| (t.incarnation, t.sequence))
}

/// Protocol rules 15 and 17: another readable replica is idle, and known to be.
fn accepted(sim: &Sim, vssd: VssdId) -> Result<(), String> {
    let Some(switch) = sim.switch(vssd.rack()) else { return Ok(()) };
    let dump = switch.dump();
    let Some(row) = dump.replica.iter().find(|r| r.vssd == vssd) else { return Ok(()) };
    let idle = |v: VssdId| dump.destination.iter().any(|d| d.vssd == v && d.readable && d.heard && !d.collecting);
    if row.peers.iter().any(|p| p.vssd != vssd && idle(p.vssd)) {
        return Ok(());
    }
    Err(format!(
        "{}: {vssd} may collect softly though no other replica is idle: {row:?}",
        sim.engine().layout().switch_of(vssd)
    ))
}

/// The other members of a vSSD's set, as its rack's switch has it.
fn peers(sim: &Sim, vssd: VssdId) -> Vec<VssdId> {
    let rows = sim.switch(vssd.rack()).map(|s| s.dump().replica);
    let row = rows.into_iter().flatten().find(|r| r.vssd == vssd);
    row.into_iter().flat_map(|r| r.peers).map(|p| p.vssd).collect()
}

/// vSSDs of swaps whose commands are under way, and whether each has announced it.
fn swaps(sim: &Sim) -> BTreeMap<VssdId, bool> {
    (0..sim.config().servers_max()).filter_map(|i| sim.server(i)).flat_map(|s| s.swap_announced()).collect()
}

/// Protocol rule 35: of a set, as the switch that accepts a swap has it, no other drive swaps; in the other rack, none whose own switch
/// had this one in the set when it accepted that one's swap: views change.
fn swaps_alone(sim: &Sim, vssd: VssdId, beside: &BTreeMap<VssdId, Vec<VssdId>>) -> Result<(), String> {
    let Some(switch) = sim.switch(vssd.rack()) else { return Ok(()) };
    let dump = switch.dump();
    let Some(row) = dump.replica.iter().find(|r| r.vssd == vssd) else { return Ok(()) };
    let others = swaps(sim);
    let servers = || (0..sim.config().servers_max()).filter_map(|i| sim.server(i));
    let granted: BTreeSet<VssdId> = servers().flat_map(|s| s.swap_granted()).map(|(v, _)| v).collect();
    let busy = |v: VssdId| others.get(&v) == Some(&true) || granted.contains(&v);
    let names = |v: VssdId| beside.get(&v).is_some_and(|peers| peers.contains(&vssd));
    let swaps = |v: VssdId| v != vssd && busy(v) && (v.rack() == vssd.rack() || names(v));
    match row.peers.iter().find(|p| swaps(p.vssd)) {
        Some(p) => Err(format!("two drives of a set swap at a time: under {vssd} and {}", p.vssd)),
        None => Ok(()),
    }
}
