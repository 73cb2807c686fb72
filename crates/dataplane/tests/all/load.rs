//! What the verifier takes, and tables at their full size.

use rackweave_core::{Layout, NodeId, Span, Time};
use rackweave_dataplane::{LoadError, TcConfig, TcSwitch};
use rackweave_switch::{DataPlane, ROWS_MAX, Update};

use crate::control::announcement;
use crate::rig::{TC_REDIRECT, config, framed, load, skip};
use crate::support::read;

#[test]
fn tc_every_configuration_is_verified() {
    if skip("tc_every_configuration_is_verified") {
        return;
    }
    let all = [false, true];
    for (redirect, require_mac, manual_clock) in
        all.into_iter().flat_map(|r| all.into_iter().flat_map(move |m| all.into_iter().map(move |c| (r, m, c))))
    {
        let cfg = TcConfig { redirect, require_mac, manual_clock, rows_max: 16, ..TcConfig::new(Layout::SWITCH) };
        TcSwitch::load(cfg).unwrap_or_else(|e| panic!("{cfg:?}: {e}"));
    }
    for rows_max in [0, ROWS_MAX + 1] {
        let refused = TcSwitch::load(TcConfig { rows_max, ..config(1) });
        assert!(matches!(refused, Err(LoadError::RowsMax { .. })), "{refused:?}");
    }
}

fn filled(rows: u32) -> TcSwitch {
    let mut switch = load(TcConfig { bits_expire: Span::from_secs(3600), ..config(rows) });
    let all: Vec<_> = (1..=rows).map(|v| announcement(v, 2 + v % 4, &[(v % rows + 1, 3)])).collect();
    switch.apply(Time::ZERO, &Update::Full { generation: 1, rows: all }).unwrap();
    switch
}

/// ns of a read, the mean of many runs.
fn read_ns(switch: &mut TcSwitch, vssd: u32) -> u128 {
    let (action, _, time) = switch.test_run(&framed(&read(vssd, 0)), 20_000).unwrap();
    assert_eq!(action, TC_REDIRECT);
    time.as_nanos()
}

/// Rounds until the quickest of each are compared: others may be using the machine.
const ROUNDS: u32 = 100;

#[test]
fn tc_a_full_table_works_and_costs_no_more_to_look_up() {
    if skip("tc_a_full_table_works_and_costs_no_more_to_look_up") {
        return;
    }
    let (mut small, mut large) = (filled(16), filled(ROWS_MAX));
    let dump = DataPlane::dump(&large, Time::ZERO).unwrap();
    assert_eq!(dump.destination.len(), ROWS_MAX as usize);
    assert!(dump.destination.iter().all(|d| d.server == NodeId(2 + d.vssd.0 % 4)));
    let more = announcement(ROWS_MAX + 1, 2, &[]);
    let refused = large.apply(Time::ZERO, &Update::Full { generation: 2, rows: vec![more; ROWS_MAX as usize + 1] });
    assert!(refused.is_err());
    let (mut a, mut b) = (u128::MAX, u128::MAX);
    for _ in 0..ROUNDS {
        (a, b) = (a.min(read_ns(&mut small, 7)), b.min(read_ns(&mut large, 77_777)));
        if b * 10 <= a * 11 {
            return;
        }
    }
    panic!("a read takes {a} ns among 16 rows, {b} ns among {ROWS_MAX}");
}
