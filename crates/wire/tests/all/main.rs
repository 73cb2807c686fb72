//! Tests of the wire format.

mod allocated;
mod cloud;
mod drawn;
mod fuzz;
mod golden;
mod keys;
mod pcap;
mod refused;
mod roundtrip;
