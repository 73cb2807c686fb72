//! Cloud disks: DiffForward. A volume's bursts go to logs spread over all servers, its steady traffic to the proxies of its
//! segments.

pub mod burst;
