//! Memory traffic of receiving 64 KiB: into blocks with CRCs in the receive step (PN3), or as a whole message that is
//! then copied into blocks, whose CRCs are computed afterwards.

use std::io::{self, BufRead, BufReader};
use std::process::{Command, Stdio};

use bytes::{Bytes, BytesMut};
use clap::ValueEnum;
use rackweave_core::msg::{Class, Op};
use rackweave_core::{BLOCK, NodeId, Time};
use rackweave_transport::{Algorithm, Config, Endpoint, Event, Keys, SendOptions, Train};

use rackweave_eval::transport::message;

const MESSAGE: usize = 65_536;
/// Most bytes that a socket takes at once.
const TRAIN: usize = 65_507;
const FROM: NodeId = NodeId(2);
const TO: NodeId = NodeId(3);

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Receive {
    /// Only the sender's part, which is subtracted.
    Not,
    InOneStep,
    CopyThenCrc,
}

/// Receives `count` messages in datagrams of this length; the sender's part is the same for all variants.
pub fn receive(way: Receive, datagram: usize, count: u64) {
    // A window that needs no acknowledgements; trains as for GSO and GRO.
    let algorithm = Algorithm::Fixed { window: 16 << 20 };
    let cfg = Config { algorithm, train_bytes_max: TRAIN, datagram_bytes_max: datagram, ..Config::default() };
    let end = |n| Endpoint::new(cfg.clone(), n, 1, Keys::none(), 1).expect("a configuration");
    let (mut from, mut to, now) = (end(FROM), end(TO), Time(1));
    let data = Bytes::from(vec![7; MESSAGE]);
    let mut kept = 0u32;
    for n in 0..count {
        let m = message(Op::Peer, Class::Silver, FROM, n, 40, data.clone());
        from.send(now, TO, m, SendOptions { deadline: Time::MAX, token: n }).expect("room");
        while let Some(t) = from.poll_transmit(now) {
            let mut bytes = BytesMut::from(&t.bytes[..]);
            let segment = t.segment.unwrap_or(bytes.len());
            if way != Receive::Not {
                to.receive_train(now, Train { bytes: &mut bytes, segment, at: now, marked: false });
            }
        }
        while to.poll_transmit(now).is_some() {}
        while let Some(event) = to.poll_event() {
            let Event::Delivered(d) = event else { continue };
            kept ^= match way {
                Receive::CopyThenCrc => copy_then_crc(&d.message.data),
                _ => d.crcs.iter().fold(1, |a, c| a ^ c),
            };
        }
    }
    println!("{kept}");
}

fn copy_then_crc(data: &[u8]) -> u32 {
    data.chunks(BLOCK as usize).map(|b| std::hint::black_box(b.to_vec())).fold(0, |a, b| a ^ crc32c::crc32c(&b))
}

/// Bytes of all loads and stores of a process that receives `count` messages.
pub fn counted(way: Receive, datagram: usize, count: u64) -> io::Result<u64> {
    let way = way.to_possible_value().map(|v| v.get_name().to_string()).unwrap_or_default();
    let mut child = Command::new("valgrind")
        .args(["--tool=lackey", "--trace-mem=yes", "--log-fd=1"])
        .arg(std::env::current_exe()?)
        .args(["end", "receive", &way, &datagram.to_string(), &count.to_string()])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| io::Error::other(format!("valgrind: {e}")))?;
    let out = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let mut bytes = 0;
    for line in BufReader::with_capacity(1 << 20, out).lines() {
        let line = line?;
        let size = || line.rsplit(',').next().and_then(|s| s.parse::<u64>().ok()).unwrap_or(0);
        // Loads, stores, and modifications, which are both.
        bytes += match line.get(..3) {
            Some(" L " | " S ") => size(),
            Some(" M ") => 2 * size(),
            _ => 0,
        };
    }
    match child.wait()?.success() {
        true => Ok(bytes),
        false => Err(io::Error::other("valgrind ended with an error")),
    }
}
