//! Reports of the room that volumes take.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use rackweave_core::msg::control::ROOM_VOLUMES_MAX;
use rackweave_core::msg::{Body, Control, IoRequest};
use rackweave_core::{Span, VolumeId};

use super::rack::{Options, Rack, contents, vssd_of};

/// Two reports are full, and a third has the rest.
const VOLUMES: u32 = 2 * ROOM_VOLUMES_MAX + 50;
/// There are ids between the volumes.
const STEP: u32 = 3;

#[test]
fn reports_of_many_volumes_follow_each_other_without_a_gap() {
    let mut r = Rack::serving(Options::default());
    let reports = Rc::new(RefCell::new(Vec::new()));
    let (seen, vssd) = (reports.clone(), vssd_of(3, 0, 0).expect("it is there"));
    r.lose(move |p| {
        if let Body::Control(Control::Room(room)) = &p.body
            && room.vssd == vssd
        {
            seen.borrow_mut().push(room.clone());
        }
        false
    });
    let ids: Vec<VolumeId> = (1..=VOLUMES).map(|i| VolumeId(i * STEP)).collect();
    for (i, &volume) in ids.iter().enumerate() {
        let mut io = r.write_request(0, contents(i as u64), false);
        if let IoRequest::Write(w) = &mut io {
            w.range.volume = volume;
        }
        r.send(0, 0, io);
        if i % 64 == 0 {
            r.run(Span::from_millis(50));
        }
    }
    r.run(Span::from_secs(5));
    reports.borrow_mut().clear();
    r.run(Span::from_secs(7));

    let all = reports.take();
    let begin = all.iter().position(|room| room.from == VolumeId(0)).expect("a report begins anew");
    let round: Vec<_> = all[begin..].iter().take(3).collect();
    let ranges: Vec<(u32, u32)> = round.iter().map(|room| (room.from.0, room.until.0)).collect();
    let [second, third] = [1, 2].map(|n| (n * ROOM_VOLUMES_MAX + 1) * STEP);
    assert_eq!(ranges, [(0, second - 1), (second, third - 1), (third, u32::MAX)], "each id is in one of them");
    let held: BTreeMap<VolumeId, u64> = round.iter().flat_map(|room| room.volumes.iter().copied()).collect();
    assert_eq!(held, ids.into_iter().map(|v| (v, 1)).collect());
    assert_eq!(all[begin + 3].from, VolumeId(0));
}
