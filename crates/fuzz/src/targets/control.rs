//! Lines of the control socket: commands and answers are read as they were written.

use arbitrary::{Result, Unstructured};
use rackweave_core::admin::{self, Isolation, OwnUnit, OwnUnits, SERVERS_MAX, VolumeCreate};
use rackweave_core::{SetId, VssdId};
use rackweave_runtime::control::{Answer, Command, Local};

use crate::corrupt::{corrupt, rest};

pub(super) fn run(input: &[u8]) {
    let mut u = Unstructured::new(input);
    let mut line = match u.int_in_range(0..=3u8).unwrap_or(0) {
        0 => rest(&mut u),
        1 => answer(&mut u).unwrap_or_default(),
        _ => match command(&mut u) {
            Ok(c) => {
                let line = serde_json::to_vec(&c).expect("a command has a JSON form");
                assert_eq!(serde_json::from_slice::<Command>(&line).expect("its own"), c);
                line
            }
            Err(_) => return,
        },
    };
    _ = corrupt(&mut u, &mut line);
    if let Ok(c) = serde_json::from_slice::<Command>(&line) {
        let again = serde_json::to_vec(&c).expect("a command has a JSON form");
        assert_eq!(serde_json::from_slice::<Command>(&again).expect("its own"), c);
    }
    if let Ok(a) = serde_json::from_slice::<Answer>(&line) {
        let again = serde_json::to_vec(&a).expect("an answer has a JSON form");
        let read = serde_json::from_slice::<Answer>(&again).expect("its own");
        assert_eq!(serde_json::to_vec(&read).expect("an answer has a JSON form"), again);
    }
}

fn own(u: &mut Unstructured<'_>) -> Result<Option<OwnUnits>> {
    let unit = *u.choose(&OwnUnit::ALL)?;
    Ok(if u.arbitrary()? { Some(OwnUnits { unit, count: u.arbitrary()?, replicas: u.arbitrary()? }) } else { None })
}

fn command(u: &mut Unstructured<'_>) -> Result<Command> {
    let mut name = || {
        u.choose(&["v", "", "vm 0", "\u{e4}\"\\\n", "a-very-long-name-that-no-volume-may-have"]).map(|n| n.to_string())
    };
    let (name, other) = (name()?, name()?);
    let server = |n: u8| admin::server(u32::from(n) % SERVERS_MAX).expect("one of them");
    let local = |l: Local| Ok(l.into());
    let boxed = name.clone().into_boxed_str();
    let op = match u.int_in_range(0..=15u8)? {
        0 => {
            let levels = [Isolation::None, Isolation::Software, Isolation::Die, Isolation::Channel];
            let isolation = u.arbitrary::<bool>()?.then(|| u.choose(&levels).copied()).transpose()?;
            admin::Op::VolumeCreate(VolumeCreate { name: boxed, size: u.arbitrary()?, isolation, own: own(u)? })
        }
        1 => admin::Op::VolumeLimit { name: boxed, iops: u.arbitrary()?, bytes_per_s: u.arbitrary()? },
        2 => admin::Op::VolumeGrow { name: boxed, size: u.arbitrary()? },
        3 => admin::Op::VolumeDelete { name: boxed, force: u.arbitrary()? },
        4 => admin::Op::VolumeInfo { name: boxed },
        5 => admin::Op::VolumeList,
        6 => {
            let without = vec![server(u.arbitrary()?); u.int_in_range(0..=3usize)?].into();
            admin::Op::SetRecover { set: SetId(u.arbitrary()?), without }
        }
        7 => return local(Local::Status),
        8 => admin::Op::VolumeClass { name: boxed, offline: u.arbitrary()? },
        9 => admin::Op::ServerDrain { server: server(u.arbitrary()?) },
        10 => {
            let to = u.arbitrary::<Option<u8>>()?.map(server);
            admin::Op::VssdMove { vssd: VssdId(u.arbitrary()?), to }
        }
        11 => return local(Local::LinkCut { a: name, b: other }),
        12 => return local(Local::PolicySet { policy: name }),
        13 => return local(Local::ServerKill { server: u.arbitrary()? }),
        14 => {
            let isolation = *u.choose(&[Isolation::Channel, Isolation::Die, Isolation::None])?;
            admin::Op::KeyspaceCreate { name: boxed, replicas: u.arbitrary()?, isolation, units: u.arbitrary()? }
        }
        _ => {
            let id: u8 = u.arbitrary()?;
            let text = format!(
                "{{\"op\":\"key_change\",\"change\":{{\"add\":{{\"id\":{id},\"key\":\"{}\"}}}}}}",
                "0a".repeat(32)
            );
            return Ok(serde_json::from_str(&text).expect("a command"));
        }
    };
    Ok(op.into())
}

fn answer(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let all: [&[u8]; 7] = [
        br#""done""#,
        br#"{"error":{"message":"no"}}"#,
        br#"{"volumes":[{"id":1,"name":"v","size":4096,"attach":1,"stripe_bytes":65536,"sets":[0,1]}]}"#,
        br#"{"changed":["a","b"]}"#,
        br#"{"volume":{"id":1,"name":"v","size":4096,"attach":1,"stripe_bytes":65536,"sets":[0],"iops":5}}"#,
        br#"{"servers":[]}"#,
        br#"{"keyspaces":[{"number":1,"name":"k","replicas":3,"min_copies":2,"isolation":"die","units":2,"value_max":9,"logs":4,"logs_of":4,"serving":64,"partitions":64,"log_set":7}]}"#,
    ];
    u.choose(&all).map(|b| b.to_vec())
}
