//! Requests for the metrics page. The answer does not depend on how the stream is cut.

use arbitrary::Unstructured;
use bytes::Bytes;
use rackweave_gateway::metrics::HttpSession;
use rackweave_gateway::{Gateway, Reply, Request};

use crate::corrupt::{corrupt, pieces, rest};

const PAGE: &str = "x 1\n";

pub(super) fn run(input: &[u8]) {
    let mut u = Unstructured::new(input);
    let mut request = match u.arbitrary::<u8>().unwrap_or(0) % 4 {
        0 => rest(&mut u),
        1 => b"GET /metrics HTTP/1.1\r\nHost: rack\r\n\r\n".to_vec(),
        2 => b"GET / HTTP/1.0\r\n\r\n".to_vec(),
        _ => b"POST /metrics HTTP/1.1\r\nContent-Length: 4\r\n\r\nabcd".to_vec(),
    };
    _ = corrupt(&mut u, &mut request);
    let whole = talk(&[&request]);
    let cut = talk(&pieces(&mut u, &request));
    assert!(whole.is_empty() || whole.starts_with(b"HTTP/1.1 "));
    assert_eq!(whole, cut);
}

fn talk(parts: &[&[u8]]) -> Vec<u8> {
    let mut s = HttpSession::default();
    for part in parts {
        s.input(Bytes::copy_from_slice(part));
        if let Some(Request::Metrics) = s.poll_request() {
            s.reply(Reply::Metrics(PAGE.into()));
        }
        if s.output_len() > 0 {
            break;
        }
    }
    s.output().flat_map(|b| b.to_vec()).collect()
}
