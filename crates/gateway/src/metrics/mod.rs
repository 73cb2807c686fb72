//! Metrics in Prometheus' text format (version 0.0.4), and the HTTP that hands them out.

mod http;
mod text;

pub use http::{HttpSession, METRICS_PATH};
pub use text::{CONTENT_TYPE, Kind, MetricError, Sample, render};
