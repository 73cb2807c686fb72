//! Prometheus text, and its HTTP server.

use bytes::Bytes;
use rackweave_gateway::metrics::{HttpSession, Kind, MetricError, Sample, render};
use rackweave_gateway::{Gateway, Reply, Request};

fn sample(name: &'static str, labels: &[(&'static str, &str)], value: f64) -> Sample {
    let kind = if name.ends_with("_total") { Kind::Counter } else { Kind::Gauge };
    let labels = labels.iter().map(|&(k, v)| (k, v.to_string())).collect();
    Sample { name, help: "Help of it.", kind, labels, value }
}

#[test]
fn text_is_what_prometheus_reads() {
    let samples = [
        sample("rackweave_requests_total", &[("kind", "read")], 12.0),
        sample("rackweave_requests_total", &[("kind", "write"), ("volume", "a\"b\\c\nd")], 1e15),
        sample("rackweave_free_ratio", &[], 0.25),
        sample("rackweave_odd", &[], f64::NAN),
    ];
    let want = "\
# HELP rackweave_requests_total Help of it.
# TYPE rackweave_requests_total counter
rackweave_requests_total{kind=\"read\"} 12
rackweave_requests_total{kind=\"write\",volume=\"a\\\"b\\\\c\\nd\"} 1000000000000000
# HELP rackweave_free_ratio Help of it.
# TYPE rackweave_free_ratio gauge
rackweave_free_ratio 0.25
# HELP rackweave_odd Help of it.
# TYPE rackweave_odd gauge
rackweave_odd NaN
";
    assert_eq!(render(&samples).unwrap(), want);
    assert_eq!(render(&[]).unwrap(), "");
}

#[test]
fn wrong_metrics_are_refused() {
    let one = |s: Sample| render(&[s]).unwrap_err();
    assert_eq!(one(sample("9x", &[], 0.0)), MetricError::Name { name: "9x" });
    assert_eq!(one(sample("a b", &[], 0.0)), MetricError::Name { name: "a b" });
    assert_eq!(one(sample("a", &[("b-c", "")], 0.0)), MetricError::Label { name: "a", label: "b-c" });
    assert_eq!(one(sample("a", &[("__x", "")], 0.0)), MetricError::Label { name: "a", label: "__x" });
    let bad = Sample { kind: Kind::Counter, ..sample("a", &[], 0.0) };
    assert_eq!(one(bad), MetricError::CounterName { name: "a" });
    let apart = [sample("a", &[], 0.0), sample("b", &[], 0.0), sample("a", &[], 0.0)];
    assert_eq!(render(&apart).unwrap_err(), MetricError::Scattered { name: "a" });
    let differing = [sample("a", &[], 0.0), Sample { help: "Other.", ..sample("a", &[], 0.0) }];
    assert_eq!(render(&differing).unwrap_err(), MetricError::Scattered { name: "a" });
}

fn get(request: &str) -> String {
    let mut s = HttpSession::default();
    s.input(Bytes::copy_from_slice(request.as_bytes()));
    if let Some(Request::Metrics) = s.poll_request() {
        assert!(s.poll_request().is_none(), "one request only");
        s.reply(Reply::Metrics("m 1\n".into()));
    }
    let out = s.output().flat_map(|b| b.to_vec()).collect();
    assert_eq!(s.wants_input(), s.output_len() == 0);
    s.written(usize::MAX);
    assert!(s.finished() != s.wants_input());
    String::from_utf8(out).unwrap()
}

#[test]
fn a_scrape() {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: 4\r\n\
                Connection: close\r\n\r\n";
    assert_eq!(get("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"), format!("{head}m 1\n"));
    assert_eq!(get("GET /metrics?a=b HTTP/1.0\r\n\r\n"), format!("{head}m 1\n"));
    assert_eq!(get("HEAD /metrics HTTP/1.1\r\n\r\n"), head);
}

#[test]
fn everything_else_is_refused() {
    let status = |r: &str| get(r).split("\r\n").next().unwrap().to_string();
    assert_eq!(status("GET / HTTP/1.1\r\n\r\n"), "HTTP/1.1 404 Not Found");
    assert_eq!(status("POST /metrics HTTP/1.1\r\n\r\n"), "HTTP/1.1 405 Method Not Allowed");
    assert_eq!(status("GET /metrics HTTP/2\r\n\r\n"), "HTTP/1.1 505 HTTP Version Not Supported");
    assert_eq!(status("hello\r\n\r\n"), "HTTP/1.1 400 Bad Request");
    assert_eq!(status(&"x".repeat(9000)), "HTTP/1.1 431 Request Header Fields Too Large");
    assert_eq!(status("GET /metrics HTTP/1.1\r\nHost"), "");
}
