//! Tests of the wire format.

mod drawn;
mod fuzz;
mod golden;
mod refused;
mod roundtrip;
