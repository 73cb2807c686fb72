//! Links without sockets: the test is the network between them.

use bytes::{Bytes, BytesMut};
use rackweave_core::msg::{Block, Header, IoError, IoReply, Op};
use rackweave_core::rng::seeds;
use rackweave_core::{Incarnation, Payload, Rng, SetId, VssdId};

use super::*;

const CLIENT: NodeId = NodeId(9);

fn answer(request: u64, reply: IoReply) -> Packet {
    let vssd = VssdId(20);
    let header = Header { set: SetId(3), incarnation: Incarnation(5), request, ..Header::addressed(Op::Reply, vssd) };
    Packet { src: NodeId(2), dst: CLIENT, header, body: Body::Block(Block::Reply(reply)) }
}

#[test]
fn a_client_hears_of_each_read_whose_answer_finds_no_room() {
    let mut link = Link::new(Config::default(), StreamLimits::default(), NodeId(2), 1, Keys::none(), 1).expect("valid");
    let data = || IoReply::Data(Payload::Bytes(Bytes::from(vec![7; 64 << 10])));
    let now = Time(1);
    (0..400).for_each(|n| link.send(now, answer(n, data()), n));
    link.flush(now);
    let mut refused = Vec::new();
    while let Some(news) = link.poll(now) {
        match news {
            News::Instead(p, token) => {
                assert_eq!(p.body, Body::Block(Block::Reply(IoReply::Failed(IoError::NotServing))));
                assert_eq!((p.dst, p.header.op), (CLIENT, Op::Reply));
                assert_eq!(p.header.request, token);
                refused.push(token);
                link.send(now, p, 1_000);
            }
            other => panic!("{other:?}"),
        }
    }
    assert!((81..88).contains(&refused.len()), "a queue of 20 MiB holds fewer than 320 answers: {refused:?}");
}

const SERVER: NodeId = NodeId(2);
/// Longest answer here, with its headers.
const ANSWER_MAX: usize = 66_000;

/// An answer and its outcome.
#[derive(Debug)]
struct Answer {
    reply: IoReply,
    sent: Time,
    /// Its refusal was sent instead.
    refused: bool,
    heard: u32,
    unsent: Option<Time>,
}

/// A server that answers a client, over a network that carries nothing for a while now and then. A refusal's token is that of the
/// answer.
struct Answers {
    server: Link,
    client: Link,
    rng: Rng,
    now: Time,
    silent: bool,
    all: Vec<Answer>,
}

impl Answers {
    fn new(seed: u64) -> Answers {
        let mut rng = Rng::new(seed);
        let cfg = Config {
            message_bytes_max: ANSWER_MAX,
            queue_bytes_max: ANSWER_MAX * rng.between(2, 8) as usize,
            queue_bytes_total: ANSWER_MAX * rng.between(2, 8) as usize,
            reassembly_bytes_max: ANSWER_MAX * 8,
            reassembly_bytes_total: ANSWER_MAX * 8,
            ..Config::default()
        };
        let link = |node| Link::new(cfg.clone(), StreamLimits::default(), node, 1, Keys::none(), seed).expect("valid");
        Answers {
            server: link(SERVER),
            client: link(CLIENT),
            rng,
            now: Time(1_000_000),
            silent: false,
            all: Vec::new(),
        }
    }
    fn answer(&mut self) {
        let token = self.all.len() as u64;
        let reply = match self.rng.below(4) {
            0 => IoReply::Done,
            _ => {
                let bytes = *self.rng.pick(&[512, 4096, 65_536]);
                IoReply::Data(Payload::Bytes(Bytes::from(vec![token as u8; bytes])))
            }
        };
        self.all.push(Answer { reply: reply.clone(), sent: self.now, refused: false, heard: 0, unsent: None });
        self.server.send(self.now, answer(token, reply), token);
    }
    fn turn(&mut self) -> Result<(), String> {
        self.now += Span(self.rng.between(10_000, 300_000));
        self.server.flush(self.now);
        self.client.flush(self.now);
        self.carry();
        self.server_news()?;
        self.client_news()
    }
    fn carry(&mut self) {
        let (now, passes) = (self.now, !self.silent);
        carry(now, passes, &mut self.server, &mut self.client);
        carry(now, passes, &mut self.client, &mut self.server);
    }
    fn server_news(&mut self) -> Result<(), String> {
        while let Some(news) = self.server.poll(self.now) {
            match news {
                News::Instead(p, token) => {
                    let a = &mut self.all[token as usize];
                    if a.refused || p.body.refusal().is_some() || p.header.request != token {
                        return Err(format!("{token} is refused by {p:?}"));
                    }
                    a.refused = true;
                    self.server.send(self.now, p, token);
                }
                News::Unsent(token) => {
                    let a = &mut self.all[token as usize];
                    let data = matches!(a.reply, IoReply::Data(_));
                    if data && !a.refused && self.now.since(a.sent) < DEADLINE {
                        return Err(format!("the client hears nothing of {token}, for which there was no room"));
                    }
                    a.unsent = Some(self.now);
                }
                other => return Err(format!("{other:?}")),
            }
        }
        Ok(())
    }
    fn client_news(&mut self) -> Result<(), String> {
        while let Some(news) = self.client.poll(self.now) {
            let News::Packet(p) = news else { return Err(format!("{news:?}")) };
            let a = &mut self.all[p.header.request as usize];
            let refusal = Body::Block(Block::Reply(IoReply::Failed(IoError::NotServing)));
            let right =
                if a.refused { p.body == refusal } else { p.body == Body::Block(Block::Reply(a.reply.clone())) };
            a.heard += 1;
            if !right || a.heard > 1 {
                return Err(format!("the client hears {p:?}, the {}th time", a.heard));
            }
        }
        Ok(())
    }
}

fn carry(now: Time, passes: bool, from: &mut Link, to: &mut Link) {
    while let Some((t, _)) = from.poll_transmit(now) {
        let mut bytes = BytesMut::from(&t.bytes[..]);
        let segment = t.segment.unwrap_or(bytes.len());
        if passes {
            to.receive(now, Train { bytes: &mut bytes, segment, at: now, marked: false }, |_| {});
        }
    }
}

fn answers(seed: u64) -> Result<usize, String> {
    let mut s = Answers::new(seed);
    for _ in 0..30 {
        s.silent = s.rng.chance(0.5);
        for _ in 0..s.rng.below(12) {
            s.answer();
            if s.rng.chance(0.3) {
                s.turn()?;
            }
        }
        for _ in 0..s.rng.below(40) {
            s.turn()?;
        }
    }
    s.silent = false;
    while s.now.since(s.all.last().map_or(Time::ZERO, |a| a.sent)) < DEADLINE * 3 {
        s.turn()?;
    }
    match s.all.iter().position(|a| a.heard == 0 && a.unsent.is_none()) {
        Some(n) => Err(format!("nobody hears of {n}: {:?}", s.server.endpoint().counters())),
        None => Ok(s.all.iter().filter(|a| a.refused).count()),
    }
}

#[test]
fn each_answer_is_heard_of_once_or_reported_as_unsent() {
    let of = seeds(0..40);
    let refused: usize = of.clone().map(|seed| answers(seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"))).sum();
    assert!(of != (0..40) || refused > 100, "{refused} were refused");
}
