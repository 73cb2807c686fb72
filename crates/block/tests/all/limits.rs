//! I/O limits of a volume.

use rackweave_core::msg::Control;
use rackweave_core::request::Outcome;
use rackweave_core::volume::{self, VolumeLimits};
use rackweave_core::{Payload, Span};

use crate::rack::{Rack, VOLUME};

/// A volume of 4 MiB with these limits, reported by the attach.
fn limited(iops: u64, bytes_per_s: u64) -> Rack {
    let mut r = Rack::new(2, 16, 4 << 20, 3, |c| c.deadline = Some(Span::from_secs(5)));
    r.info.limits = VolumeLimits { iops, bytes_per_s };
    r.attach().expect("attach");
    r
}

/// Reads and writes of `len` bytes answered in `ms` milliseconds, with `depth` always in flight.
fn answered(r: &mut Rack, ms: u64, depth: usize, len: u32) -> u64 {
    let (mut waiting, mut done, mut n) = (Vec::new(), 0, 0u64);
    for _ in 0..ms {
        while waiting.len() < depth {
            n += 1;
            let offset = n * 37 % 50 * 65_536;
            waiting.push(r.submit(match n % 2 {
                0 => volume::Op::Read { volume: VOLUME, offset, len },
                _ => volume::Op::Write { volume: VOLUME, offset, data: Payload::elided(len, n), fua: false },
            }));
        }
        r.run_for(Span::from_millis(1));
        waiting.retain(|id| match r.replies.remove(id) {
            Some(result) => {
                assert!(result.is_ok(), "{result:?}");
                done += 1;
                false
            }
            None => true,
        });
    }
    done
}

#[test]
fn no_more_than_its_limit_and_no_less() {
    for (iops, bytes_per_s, len, each_s) in
        [(500, 0, 4096, 500), (0, 20_480_000, 4096, 5000), (500, 20_480_000, 65_536, 312), (500, 20_480_000, 4096, 500)]
    {
        let mut r = limited(iops, bytes_per_s);
        let done = answered(&mut r, 4_000, 64, len);
        let most = each_s * 41 / 10 + 3;
        assert!((each_s * 4..=most).contains(&done), "{iops} IOPS, {bytes_per_s} B/s, {len} bytes each: {done}");
        // After a pause, the burst is at most a tenth of a second's worth.
        r.run_for(Span::from_secs(3));
        r.replies.clear();
        let after = answered(&mut r, 1_000, 64, len);
        assert!(after <= each_s * 11 / 10 + 2, "{after}");
    }
}

#[test]
fn limits_change_while_requests_wait() {
    let mut r = limited(100, 0);
    let slow = answered(&mut r, 1_000, 256, 4096);
    assert!(slow <= 111, "{slow}");
    // The 256 waiting requests are sent at once.
    r.tell(Control::VolumeLimited { volume: VOLUME, limits: VolumeLimits::NONE });
    r.run_for(Span::from_millis(20));
    assert_eq!(r.client().requests_waiting(), 0);
    let free = answered(&mut r, 1_000, 64, 4096);
    assert!(free > 10_000, "{free}");
    r.tell(Control::VolumeLimited { volume: VOLUME, limits: VolumeLimits { iops: 200, bytes_per_s: 0 } });
    let again = answered(&mut r, 2_000, 64, 4096);
    assert!((400..=485).contains(&again), "those in flight, and 200 a second: {again}");
}

#[test]
fn in_the_order_they_came_and_a_flush_does_not_wait() {
    let mut r = limited(10, 0);
    let write = |n: u64| volume::Op::Write { volume: VOLUME, offset: 0, data: Payload::elided(4096, n), fua: false };
    let all: Vec<u64> = (0..12).map(|n| r.submit(write(n))).collect();
    assert_eq!(r.run(volume::Op::Flush { volume: VOLUME }), Ok(volume::Reply::Done));
    assert!(r.client().requests_waiting() >= 9, "they still wait");
    for pair in all.windows(2) {
        r.wait(pair[0]).expect("written");
        assert!(!r.replies.contains_key(&pair[1]) || pair[1] <= all[1], "the later one waits longer");
    }
    r.wait(all[11]).expect("written");
    assert_eq!(r.read(0, 4096), Payload::elided(4096, 11), "the last write is the newest");
}

#[test]
fn trims_count_as_requests_and_zeroes_reach_what_they_must() {
    let mut r = limited(10, 1);
    r.write(0, 8192, 1).expect("a request above the limit goes when nothing is owed");
    let trim = volume::Op::Trim { volume: VOLUME, offset: 0, len: 4096, fua: false };
    // The write owes 8191 seconds.
    assert!(matches!(r.run(trim.clone()), Err(volume::Error::TimedOut { .. })));
    r.tell(Control::VolumeLimited { volume: VOLUME, limits: VolumeLimits { iops: 10, bytes_per_s: 0 } });
    r.run_for(Span::from_secs(1));
    let before = r.now();
    for _ in 0..12 {
        assert_eq!(r.run(trim.clone()), Ok(volume::Reply::Done));
    }
    assert!(r.now().since(before) >= Span::from_millis(900), "{:?}", r.now().since(before));
    assert_eq!(r.read(0, 4096), Payload::zero(4096));
}

#[test]
fn a_request_given_up_while_it_waits_takes_nothing_from_those_behind_it() {
    let mut r = limited(0, 4096);
    r.write(0, 65_536, 1).expect("written");
    let late: Vec<u64> =
        (0..8).map(|n| r.submit(volume::Op::Read { volume: VOLUME, offset: n * 4096, len: 4096 })).collect();
    r.run_for(Span::from_secs(6));
    for id in late {
        assert!(matches!(r.replies.remove(&id), Some(Outcome::Volume(Err(volume::Error::TimedOut { .. })))));
    }
    // The write owes fifteen seconds; the reads that were given up add none.
    r.run_for(Span::from_secs(10));
    assert_eq!(r.run(volume::Op::Read { volume: VOLUME, offset: 0, len: 4096 }).map(drop), Ok(()));
}
