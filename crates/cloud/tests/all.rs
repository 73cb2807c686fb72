//! Cloud disks: their data structures against models.

mod structures;
