//! An operator's commands, line by line.

use bytes::Bytes;
use rackweave_core::Rng;
use rackweave_gateway::control::{LINE_MAX, LineTooLong, Session};
use rackweave_gateway::{Gateway, Reply, Request};

fn next(s: &mut Session) -> Option<Result<Bytes, LineTooLong>> {
    s.poll_request().map(|r| match r {
        Request::Command(line) => line,
        other => panic!("no command: {other:?}"),
    })
}

#[test]
fn commands_are_given_out_one_at_a_time() {
    let mut s = Session::default();
    s.input(Bytes::from_static(b"one\n\nthr"));
    assert!(s.wants_input() && s.input_due());
    assert_eq!(next(&mut s), Some(Ok("one".into())));
    assert!(!s.wants_input() && !s.input_due());
    assert_eq!(next(&mut s), None, "the first command has no answer yet");
    s.reply(Reply::Metrics("of somebody else".into()));
    assert_eq!((next(&mut s), s.output_len()), (None, 0));
    s.reply(Reply::Command("1\n".into()));
    assert_eq!(next(&mut s), Some(Ok("".into())));
    s.reply(Reply::Command("2\n".into()));
    assert_eq!(next(&mut s), None, "the third command is incomplete");
    s.reply(Reply::Command("nobody asked\n".into()));
    assert_eq!((s.output().map(|b| b.len()).sum::<usize>(), s.held()), (4, 4 + 3));
    s.input_eof();
    assert!(!s.wants_input() && !s.finished());
    s.written(4);
    assert!(s.finished());
}

#[test]
fn a_client_that_takes_no_answers_gets_no_more() {
    let mut s = Session::default();
    s.input(vec![b'\n'; 1000].into());
    let mut given = 0;
    while next(&mut s).is_some() {
        given += 1;
        s.reply(Reply::Command(vec![b'x'; 1 << 10].into()));
    }
    assert_eq!(given, 64);
    assert!(!s.wants_input());
    s.written(1);
    assert!(s.wants_input() && next(&mut s).is_some());
}

/// Any bytes in any pieces: whole lines come out unchanged, and an incomplete line takes bounded memory.
#[test]
fn no_cuts_change_the_lines() {
    let mut too_long = 0;
    for seed in 0..2_000 {
        let mut rng = Rng::new(seed);
        let mut s = Session::default();
        let (mut said, mut lines) = (Vec::new(), Vec::new());
        for _ in 0..rng.below(20) {
            let len = if rng.chance(0.003) { LINE_MAX + 1 } else { rng.below(100) as usize };
            let part: Vec<u8> = (0..len).map(|i| if i % 16 == 15 { b'\n' } else { rng.next_u64() as u8 }).collect();
            let part = if len > LINE_MAX { vec![b' '; len] } else { part };
            said.extend_from_slice(&part);
            s.input(part.into());
            while let Some(line) = next(&mut s) {
                match line {
                    Ok(line) => {
                        lines.extend_from_slice(&line);
                        lines.push(b'\n');
                    }
                    Err(LineTooLong) => {
                        lines.extend_from_slice(&said[lines.len()..]);
                        too_long += 1;
                    }
                }
                s.reply(Reply::Command("answer\n".into()));
            }
            assert!(s.held() - s.output_len() <= LINE_MAX, "seed {seed}");
        }
        assert!(said.starts_with(&lines), "seed {seed}");
        assert!(!said[lines.len()..].contains(&b'\n'), "seed {seed}: every whole line comes out");
    }
    assert!(too_long > 10, "{too_long}");
}
