//! Volumes against a complete model: created, grown, deleted, attached by two clients, each request sometimes repeated
//! late, while the service crashes and restarts. Everything is drawn from the seed.

use std::collections::{BTreeMap, BTreeSet};

use rackweave_core::admin;
use rackweave_core::msg::{Block, Body, Control, IoReply, IoRequest};
use rackweave_core::rng::seeds;
use rackweave_core::volume::VolumeInfo;
use rackweave_core::{Incarnation, Rng, Span, VolumeId};

use super::harness::{GIB, Rack, config};
use super::volumes::{answer, asked};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

#[derive(Clone, Debug)]
enum Request {
    Admin(admin::Op),
    Attach { client: u32, name: &'static str },
}

type Answer = Result<admin::Reply, admin::Error>;

#[derive(Default)]
struct Model {
    live: BTreeMap<&'static str, VolumeInfo>,
    /// All volumes that ever existed.
    ids: BTreeSet<VolumeId>,
    deleted: BTreeSet<VolumeId>,
}

impl Model {
    /// Answers that are permitted.
    fn judge(&mut self, request: &Request, answer: &Answer) -> Result<(), String> {
        let before = self.live.clone();
        let wrong = || Err(format!("{request:?}: {answer:?}, of {before:?}"));
        let name_of = |n: &str| NAMES.into_iter().find(|x| *x == n).expect("one of them");
        let promised = |but: &str| self.live.values().filter(|v| &*v.name != but).map(|v| v.size).sum::<u64>();
        match (request, answer) {
            (
                Request::Admin(admin::Op::VolumeCreate(admin::VolumeCreate { name, size, .. })),
                Ok(admin::Reply::Volume(v)),
            ) => {
                let fresh = !self.live.contains_key(&**name) && self.ids.insert(v.id);
                if !fresh || v.size != *size || v.attach != 0 || promised("") + size > 8 * GIB {
                    return wrong();
                }
                self.live.insert(name_of(name), *v.clone());
            }
            (Request::Admin(admin::Op::VolumeGrow { name, size }), Ok(admin::Reply::Volume(v))) => {
                let had = self.live.get(&**name).filter(|had| had.id == v.id && had.size <= *size);
                if had.is_none() || v.size != *size || promised(name) + size > 8 * GIB {
                    return wrong();
                }
                self.live.insert(name_of(name), *v.clone());
            }
            (Request::Admin(admin::Op::VolumeDelete { name, .. }), Ok(admin::Reply::Done)) => {
                let Some(v) = self.live.remove(&**name) else { return wrong() };
                self.deleted.insert(v.id);
            }
            (Request::Attach { name, .. }, Ok(admin::Reply::Volume(v))) => {
                if self.live.get(name).is_none_or(|had| had.id != v.id || v.attach <= had.attach) {
                    return wrong();
                }
                self.live.insert(name, *v.clone());
            }
            (_, Err(admin::Error::Volume(admin::VolumeError::Unknown { name })))
                if !self.live.contains_key(&**name) => {}
            (_, Err(admin::Error::Volume(admin::VolumeError::Duplicate { name })))
                if self.live.contains_key(&**name) => {}
            (_, Err(admin::Error::Volume(admin::VolumeError::OverPromise { size, promised, limit })))
                if promised + size > *limit => {}
            (_, Err(admin::Error::Volume(admin::VolumeError::Shrink { size, current }))) if size < current => {}
            (_, Err(admin::Error::Volume(admin::VolumeError::InUse { name, .. })))
                if self.live.get(&**name).is_some_and(|v| v.attach > 0) => {}
            _ => return wrong(),
        }
        Ok(())
    }
}

fn draw(rng: &mut Rng) -> Request {
    let name = *rng.pick(&NAMES);
    let size = rng.between(1, 12) * (GIB / 2);
    match rng.below(8) {
        0..=2 => Request::Admin(admin::Op::create(name, size)),
        3 => Request::Admin(admin::Op::VolumeGrow { name: name.into(), size }),
        4 => Request::Admin(admin::Op::VolumeDelete { name: name.into(), force: rng.chance(0.5) }),
        _ => Request::Attach { client: rng.below(2) as u32, name },
    }
}

fn ask(r: &mut Rack, number: u64, request: &Request) -> Answer {
    r.heard.retain(|p| matches!(p.body, Body::Block(Block::Io(_))));
    match request.clone() {
        Request::Admin(op) => r.admin_unanswered(number, op),
        Request::Attach { client, name } => {
            let node = r.cfg.layout.client(client);
            r.control(node, Incarnation(70 + u64::from(client)), number, Control::Attach { name: name.into() });
        }
    }
    let mine = r.heard.iter().filter(|p| p.header.request == number);
    let mut answers = mine.filter_map(|p| match &p.body {
        Body::Control(Control::AdminReply(a)) => Some(a.clone().map(|d| *d).map_err(|e| *e)),
        Body::Control(Control::Attached(a)) => Some(a.clone().map(admin::Reply::Volume).map_err(|e| (*e).into())),
        _ => None,
    });
    answers.next().expect("an answer")
}

fn run(seed: u64) -> Result<usize, String> {
    let mut rng = Rng::new(seed);
    let mut r = Rack::new(config());
    r.start_all();
    let mut model = Model::default();
    let mut asked_before: Vec<(u64, Request, Answer)> = Vec::new();
    for number in 1..300 {
        let request = draw(&mut rng);
        let answer = ask(&mut r, number, &request);
        model.judge(&request, &answer)?;
        asked_before.push((number, request, answer));
        if rng.chance(0.3) {
            repeat(&mut r, &mut rng, &mut model, &mut asked_before)?;
        }
        fences(&mut r, &mut rng, &model)?;
        if rng.chance(0.03) {
            r.restart_meta();
            // Answers to administration are in memory only; attaches are stored.
            asked_before.retain(|(_, request, _)| matches!(request, Request::Attach { .. }));
        }
        let Ok(admin::Reply::Volumes(list)) = r.admin(1_000_000 + number, admin::Op::VolumeList) else {
            return Err("no list".into());
        };
        let plain = |v: &VolumeInfo| (v.id, v.name.clone(), v.size);
        if !list.iter().map(plain).eq(model.live.values().map(plain)) {
            return Err(format!("{list:?} is not {:?}", model.live));
        }
    }
    Ok(model.ids.len())
}

/// An earlier request arrives again, late: it gets the same answer and changes nothing.
fn repeat(r: &mut Rack, rng: &mut Rng, model: &mut Model, before: &mut [(u64, Request, Answer)]) -> Result<(), String> {
    let from = before.len().saturating_sub(6);
    let recent = &mut before[from..];
    let k = rng.below(recent.len().max(1) as u64) as usize;
    let Some((number, request, first)) = recent.get_mut(k) else { return Ok(()) };
    let again = ask(r, *number, request);
    let first = std::mem::replace(first, again.clone());
    let same = match (&first, &again) {
        // A request that was refused for a missing volume, or whose volume has gone since, is handled as new.
        (Err(_), _) if matches!(request, Request::Attach { .. }) => return model.judge(request, &again),
        // A recreated volume does not know it.
        (Ok(admin::Reply::Volume(a)), Ok(admin::Reply::Volume(b))) if a.id != b.id => {
            return model.judge(request, &again);
        }
        (Ok(admin::Reply::Volume(a)), Ok(admin::Reply::Volume(b))) => a.attach == b.attach,
        (Ok(_), Err(admin::Error::Volume(admin::VolumeError::Unknown { .. }))) => {
            matches!(request, Request::Attach { .. })
        }
        (a, b) => a == b,
    };
    if same { Ok(()) } else { Err(format!("{request:?} again: {again:?} after {first:?}")) }
}

/// Every set gets a final fence of a deleted volume, and never one of a live volume.
fn fences(r: &mut Rack, rng: &mut Rng, model: &Model) -> Result<(), String> {
    for (header, io) in asked(r) {
        let IoRequest::Fence { volume, attach } = io else { return Err(format!("asked for {io:?}")) };
        if attach != u32::MAX || !model.deleted.contains(&volume) {
            return Err(format!("{volume:?} is fenced at {attach}"));
        }
        if rng.chance(0.7) {
            answer(r, header, IoReply::Done);
        }
    }
    if rng.chance(0.2) {
        r.run(Span::from_millis(300));
    }
    Ok(())
}

#[test]
fn volumes_and_their_writers_are_kept() {
    let of = seeds(0..30);
    let volumes: usize = of.clone().map(|seed| run(seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"))).sum();
    assert!(of != (0..30) || volumes > 200, "{volumes} volumes");
}
