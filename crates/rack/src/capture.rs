//! Captures of a rack's packets for Wireshark (`--pcap`): `wire::pcap` into a file.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "a driver's part: it writes a file")]

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use rackweave_core::msg::Packet;
use rackweave_core::{Message, NodeId, Time};
use rackweave_device::private;
use rackweave_sim::Recorder;
use rackweave_wire::pcap;

use crate::networked::Datagram;

/// Size at which a capture ends: a forgotten one must not fill the disk.
pub const BYTES_MAX: u64 = 4 << 30;

/// The file cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {error}")]
pub struct CaptureError {
    pub path: PathBuf,
    pub error: io::Error,
}

/// A capture being written. A failure ends it; [`Capture::finish`] reports it.
#[derive(Debug)]
pub struct Capture {
    path: PathBuf,
    out: BufWriter<File>,
    bytes: u64,
    max: u64,
    record: Vec<u8>,
    failed: Option<io::Error>,
    pub counters: Counters,
}

counters! {
    /// Counts of a capture.
    pub struct Counters {
        /// Packets written.
        packets as _,
        /// Packets left out because the file was full or could not be written.
        left_out as "capture_left_out",
    }
}

impl Capture {
    /// Creates the file, replacing an existing one.
    pub fn create(path: &Path) -> Result<Capture, CaptureError> {
        Capture::bounded(path, BYTES_MAX)
    }

    fn bounded(path: &Path, max: u64) -> Result<Capture, CaptureError> {
        let failed = |error| CaptureError { path: path.into(), error };
        let mut out = BufWriter::new(private::create(path).map_err(failed)?);
        let head = pcap::file_header();
        out.write_all(&head).and_then(|()| out.flush()).map_err(failed)?;
        let (bytes, record) = (head.len() as u64, Vec::new());
        Ok(Capture { path: path.into(), out, bytes, max, record, failed: None, counters: Counters::default() })
    }

    /// A packet between simulated nodes.
    pub fn packet(&mut self, now: Time, p: &Packet) {
        self.record.clear();
        match pcap::record(now, p, &mut self.record) {
            Ok(()) => self.put(),
            Err(_) => self.counters.left_out += 1,
        }
    }

    /// A datagram of a live rack, now.
    pub fn datagram(&mut self, from: SocketAddr, to: SocketAddr, traffic_class: u8, payload: &[u8]) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(Time::ZERO, |d| Time(d.as_nanos() as u64));
        self.record.clear();
        pcap::datagram(now, from, to, traffic_class, payload, &mut self.record);
        self.put();
    }

    fn put(&mut self) {
        let len = self.record.len() as u64;
        if self.failed.is_some() || self.bytes + len > self.max {
            self.counters.left_out += 1;
            return;
        }
        match self.out.write_all(&self.record) {
            Ok(()) => (self.bytes, self.counters.packets) = (self.bytes + len, self.counters.packets + 1),
            Err(e) => (self.failed, self.counters.left_out) = (Some(e), self.counters.left_out + 1),
        }
    }

    /// Writes buffered packets, so that a reader sees whole ones.
    pub fn flush(&mut self) {
        if self.failed.is_none() {
            self.failed = self.out.flush().err();
        }
    }

    /// Completes the file, or reports why that failed.
    pub fn finish(mut self) -> Result<(), CaptureError> {
        self.flush();
        match self.failed.take() {
            Some(error) => Err(CaptureError { path: self.path, error }),
            None => Ok(()),
        }
    }
}

/// A capture of a simulation, shared with its engine.
#[derive(Clone, Debug)]
pub(crate) struct SharedCapture(Rc<RefCell<Option<Capture>>>);

impl SharedCapture {
    pub fn new(capture: Capture) -> SharedCapture {
        SharedCapture(Rc::new(RefCell::new(Some(capture))))
    }
    /// As [`Capture::finish`]; later packets are dropped.
    pub fn finish(&self) -> Result<(), CaptureError> {
        self.0.borrow_mut().take().map_or(Ok(()), Capture::finish)
    }
}

impl Recorder<Datagram> for SharedCapture {
    fn sent(&mut self, now: Time, d: &Datagram) {
        if let Some(c) = &mut *self.0.borrow_mut() {
            let at = |n: NodeId, port: u16| SocketAddr::from((Ipv4Addr::from_bits(n.ipv4()), port));
            let (from, to) = (at(d.from(), pcap::UDP_PORT + d.path().unwrap_or(0)), at(d.to(), pcap::UDP_PORT));
            for one in d.each() {
                c.record.clear();
                pcap::datagram(now, from, to, 0, one, &mut c.record);
                c.put();
            }
        }
    }
}

impl Recorder for SharedCapture {
    fn sent(&mut self, now: Time, packet: &Packet) {
        if let Some(c) = &mut *self.0.borrow_mut() {
            c.packet(now, packet);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_capture_ends_and_counts_what_it_leaves_out() {
        let path = std::env::temp_dir().join(format!("rackweave-capture-{}", std::process::id()));
        let mut c = Capture::bounded(&path, 24 + 2 * (16 + 14 + 20 + 8 + 100)).expect("a file");
        let at = SocketAddr::from(([127, 0, 0, 1], 4000));
        (0..5).for_each(|_| c.datagram(at, at, 0, &[7; 100]));
        assert_eq!((c.counters.packets, c.counters.left_out), (2, 3));
        c.finish().expect("written");
        assert_eq!(std::fs::metadata(&path).expect("there").len(), 24 + 2 * 158);
        std::fs::remove_file(&path).expect("removed");
        assert!(
            Capture::create(Path::new("/nowhere/x.pcap")).is_err_and(|e| e.to_string().contains("/nowhere/x.pcap"))
        );
    }
}
