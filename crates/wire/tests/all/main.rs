//! Tests of the wire format.

mod allocated;
mod drawn;
mod fuzz;
mod golden;
mod pcap;
mod refused;
mod roundtrip;
