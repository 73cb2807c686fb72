//! Measures how long the event loop is blocked while 100 volumes are created, over a store in DIRECTORY: `cargo run
//! --release -p rackweave-runtime --example volume_storm -- DIRECTORY`.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "a driver: it measures")]

use std::time::{Duration, Instant};

use rackweave_config::{RackConfig, Size, TimingConfig};
use rackweave_core::request::{Request, RequestId};
use rackweave_core::{SsdId, admin};
use rackweave_device::{FileSsd, MemFile};
use rackweave_runtime::clock::Clock;
use rackweave_runtime::engine::{ADMIN, Engine};
use rackweave_runtime::store::{StoreFile, StoreThread};
use rackweave_runtime::{RackNodes, shape};

const VOLUMES: u64 = 100;

fn main() {
    let dir = std::env::args().nth(1).map_or_else(std::env::temp_dir, Into::into);
    for at_once in [1, VOLUMES] {
        let path = dir.join(format!("volume-storm-{}.redb", std::process::id()));
        let store = StoreThread::start(StoreFile::open(&path).expect("opens")).expect("started");
        let mut cfg = RackConfig { servers: 3, ..RackConfig::default() };
        (cfg.ssd.size, cfg.ssd.timing, cfg.cache_slots) = (Size::mib(256), TimingConfig::None, 512);
        let shape = shape(&cfg).expect("sound");
        let devices = (0..3).map(|i| FileSsd::open(MemFile::default(), SsdId(i), shape).expect("new")).collect();
        let mut nonce = 0;
        let nodes = RackNodes::new(&cfg, Vec::new(), || {
            nonce += 1;
            nonce
        });
        let mut engine = Engine::new(nodes.expect("sound"), devices, store);
        let mut clock = Clock::default();
        let (mut turns, mut replies, mut asked, mut done) = (Vec::new(), Vec::new(), 0, 0);
        let warm = Instant::now();
        let mut began = None;
        while done < VOLUMES {
            if warm.elapsed() > Duration::from_secs(1) {
                began.get_or_insert_with(Instant::now);
                while asked < VOLUMES && asked - done < at_once {
                    asked += 1;
                    let create = admin::Op::create(format!("v{asked}"), 1 << 20);
                    engine.submit(ADMIN, Request::new(RequestId(asked), create));
                }
            }
            let turn = Instant::now();
            engine.run(clock.read());
            if began.is_some() {
                turns.push(turn.elapsed());
            }
            engine.take_replies(&mut replies);
            done += replies.drain(..).inspect(|r| assert!(r.result.is_ok(), "{:?}", r.result)).count() as u64;
        }
        let took = began.expect("began").elapsed();
        let longest = turns.iter().max().expect("some");
        let still: Duration = turns.iter().filter(|t| **t > Duration::from_micros(100)).sum();
        println!("{at_once} at a time: longest turn {longest:?}, in turns over 100 µs {still:?}, all in {took:?}");
        std::fs::remove_file(&path).expect("removed");
    }
}
