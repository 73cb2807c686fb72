//! Tables of what each vSSD and each volume does.

use rackweave_runtime::control::{OwnVssds, Requests, Server, Volume};

use super::{table, trimmed};

/// Numbers in runs, as `0-3 8`.
fn runs(all: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &n in all {
        match runs.last_mut().filter(|(_, last)| last.checked_add(1) == Some(n)) {
            Some((_, last)) => *last = n,
            None => runs.push((n, n)),
        }
    }
    let run = |(a, b): &(u32, u32)| if a == b { a.to_string() } else { format!("{a}-{b}") };
    runs.iter().map(run).collect::<Vec<_>>().join(" ")
}

/// Their number, P50, P99 and P99.9.
fn requests(r: &Requests) -> [String; 4] {
    let us = |x: f64| if r.count == 0 { String::new() } else { format!("{x:.0}") };
    [r.count.to_string(), us(r.p50_us), us(r.p99_us), us(r.p999_us)]
}

/// A row per vSSD: owner, units, answers, wear.
pub fn vssds(all: &[Server]) -> String {
    let head = [
        "vssd",
        "server",
        "volume",
        "isolation",
        "channels",
        "dies",
        "reads",
        "p50 us",
        "p99",
        "p99.9",
        "writes",
        "p50 us",
        "p99",
        "p99.9",
        "erases a block",
        "most",
        "recovered in",
    ];
    let mut t = table(&head, &[0, 1, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]);
    for (server, v) in all.iter().flat_map(|s| s.vssds.iter().map(move |v| (s.server, v))) {
        let shared = || v.store.as_ref().map_or("shared", |s| &s.contents).to_owned();
        let whose = v.volume.clone().unwrap_or_else(shared);
        let place =
            [v.id.to_string(), server.to_string(), whose, v.isolation.clone(), runs(&v.channels), runs(&v.dies)];
        let wear = [format!("{:.2}", v.wear_mean), v.wear_max.to_string(), format!("{:.1} ms", v.recovery_ms)];
        t.add_row(place.into_iter().chain(requests(&v.reads)).chain(requests(&v.writes)).chain(wear));
    }
    trimmed(&t)
}

/// What the clients of each volume saw; empty if there were none.
pub fn clients(all: &[Volume]) -> String {
    let mut t = table(&["volume", "requests", "count", "p50 us", "p99", "p99.9", "max"], &[2, 3, 4, 5, 6]);
    for (name, c) in all.iter().filter_map(|v| Some((&v.name, v.clients.as_deref()?))) {
        for (kind, r) in [("read", c.reads), ("write", c.writes), ("flush", c.flushes), ("trim", c.trims)] {
            if r.count > 0 {
                let most = format!("{:.0}", r.max_us);
                t.add_row([name.clone(), kind.into()].into_iter().chain(requests(&r)).chain([most]));
            }
        }
    }
    if t.row_count() == 0 { String::new() } else { trimmed(&t) }
}

/// Each volume's own vSSDs together; empty if no volume has any.
pub fn own(all: &[Volume]) -> String {
    let head = [
        "volume",
        "own vssds",
        "serving",
        "collecting",
        "reads",
        "writes",
        "waf",
        "erases",
        "erases a block",
        "most",
        "recovered in",
    ];
    let mut t = table(&head, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    for (name, o) in all.iter().filter_map(|v| Some((&v.name, v.own_vssds.as_deref()?))) {
        let OwnVssds {
            vssds, serving, collecting, reads, writes, waf, erases, wear_mean, wear_max, recovery_ms, ..
        } = o;
        let counts = [vssds, serving, collecting, reads, writes].map(u64::to_string);
        let flash = [format!("{waf:.2}"), erases.to_string(), format!("{wear_mean:.2}"), wear_max.to_string()];
        t.add_row([name.clone()].into_iter().chain(counts).chain(flash).chain([format!("{recovery_ms:.1} ms")]));
    }
    if t.row_count() == 0 { String::new() } else { trimmed(&t) }
}

#[cfg(test)]
mod tests {
    use rackweave_runtime::control::{Clients, Vssd};

    use super::*;

    #[test]
    fn units_are_shown_in_runs() {
        assert_eq!(runs(&[]), "");
        assert_eq!(runs(&[0, 1, 2, 3, 8, 10, 11]), "0-3 8 10-11");
    }

    #[test]
    fn only_what_there_is_is_shown() {
        let volume = Volume { name: "db".into(), ..Volume::default() };
        assert_eq!((clients(std::slice::from_ref(&volume)), own(std::slice::from_ref(&volume))), Default::default());
        let reads =
            Requests { count: 3, p50_us: 80.0, p99_us: 90.0, p999_us: 95.0, max_us: 96.0, ..Requests::default() };
        let seen = Clients { reads, ..Clients::default() };
        let all = [Volume { clients: Some(Box::new(seen)), own_vssds: Some(Box::default()), ..volume }];
        assert!(
            clients(&all).lines().nth(1).is_some_and(|l| l.split_whitespace().eq("db read 3 80 90 95 96".split(' ')))
        );
        assert_eq!(clients(&all).lines().count(), 2, "no line for kinds without requests");
        assert!(own(&all).contains("db"));
        let vssds_of = |volume: Option<&str>| {
            let vssd = Vssd { volume: volume.map(Into::into), channels: vec![4, 5], reads, ..Vssd::default() };
            vssds(&[Server { vssds: vec![vssd], ..Server::default() }])
        };
        assert!(vssds_of(Some("db")).contains(" db ") && vssds_of(None).contains("shared"));
        assert!(vssds_of(None).contains("4-5"));
    }
}
