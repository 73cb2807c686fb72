//! Replicated blocks: [`io`](super::io) between a client and the replicas of a set, [`peer`](super::peer) among these replicas.

use super::{Body, IoError, IoReply, IoRequest, Peer, ServiceMessage};

#[derive(Clone, Debug, PartialEq)]
pub enum Block {
    Io(IoRequest),
    Reply(IoReply),
    Peer(Peer),
}

impl ServiceMessage for Block {
    fn bytes(&self) -> u32 {
        match self {
            Block::Io(IoRequest::Write(w)) => w.data.len(),
            Block::Reply(IoReply::Data(d)) => d.len(),
            Block::Peer(Peer::Inv(i)) => i.data.len() + 20 * i.blocks.len() as u32,
            Block::Peer(Peer::Block { data: Some(d), .. }) => d.len(),
            Block::Peer(Peer::Digests { entries, .. }) => 16 * entries.len() as u32,
            Block::Peer(Peer::Scan { entries, .. }) => 21 * entries.len() as u32,
            _ => 0,
        }
    }
    fn answers_read(&self) -> bool {
        matches!(self, Block::Reply(IoReply::Data(_) | IoReply::Extents(_)))
    }
    fn writes(&self) -> bool {
        matches!(self, Block::Io(IoRequest::Write(_)))
    }
    fn refuses(&self) -> bool {
        matches!(self, Block::Reply(IoReply::Failed(_)))
    }
    fn replicates(&self) -> bool {
        matches!(self, Block::Peer(Peer::Inv(_) | Peer::InvRange { .. }))
    }
    /// A validation is sent after the client was answered.
    fn may_wait(&self) -> bool {
        matches!(self, Block::Peer(Peer::Val { .. }))
    }
    /// Reads change nothing, so another replica may serve them, or this one later.
    fn refusal(&self) -> Option<Body> {
        let data = matches!(self, Block::Reply(IoReply::Data(_)));
        data.then_some(Body::Block(Block::Reply(IoReply::Failed(IoError::NotServing))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_answers_of_reads_count() {
        let answers = |reply| Block::Reply(reply).answers_read();
        assert!(answers(IoReply::Extents(Vec::new().into())) && !answers(IoReply::Done));
    }
}
