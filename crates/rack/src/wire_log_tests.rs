use rackweave_core::msg::{Block, Body, Header, IoError, IoReply};
use rackweave_core::{Incarnation, VssdId};

use super::*;

const SERVER: NodeId = NodeId(2);
const CLIENT: NodeId = NodeId(7);
/// The client's incarnation, and those of the server.
const RECEIVER: u64 = 1;
const OLDER: u64 = 10;
const NEWER: u64 = 20;

fn answer(request: u64) -> Packet {
    let vssd = VssdId(0);
    let header = Header { incarnation: Incarnation(2), request, ..Header::addressed(Op::Reply, vssd) };
    Packet { src: SERVER, dst: CLIENT, header, body: Body::Block(Block::Reply(IoReply::Failed(IoError::NotServing))) }
}

/// Answers 1, 2 and 3 are of the server's older incarnation; of the newer one are 1, which is repeated, and 4.
fn sent() -> Log {
    let mut log = Log::new(false, vec![NodeId(0)]);
    log.begins(CLIENT, RECEIVER);
    log.begins(SERVER, OLDER);
    (1..=3).for_each(|n| log.sent(OLDER, n, &answer(n)));
    log.begins(SERVER, NEWER);
    log.sent(NEWER, 11, &answer(1));
    log.sent(NEWER, 14, &answer(4));
    log
}

fn after(requests: &[u64]) -> Option<String> {
    let mut log = sent();
    requests.iter().for_each(|n| log.delivered(CLIENT, RECEIVER, &answer(*n)));
    log.violation().map(str::to_owned)
}

/// Seed 4000035 of swaps: an answer to a repeated request had the same bytes before and after its server's restart.
#[test]
fn an_answer_that_a_restarted_server_repeats_may_have_come_before_its_restart() {
    assert_eq!(after(&[1, 2, 3]), None);
    assert_eq!(after(&[1, 2, 4, 1]), None);
}

#[test]
fn nothing_of_an_older_incarnation_comes_after_one_that_only_the_newer_sent() {
    for order in [&[4, 2][..], &[2, 4, 3], &[4, 1, 2], &[1, 4, 2]] {
        let found = after(order);
        assert!(
            found.as_ref().is_some_and(|v| v.contains("of incarnation 10, after one of 20")),
            "{order:?}: {found:?}"
        );
    }
}
