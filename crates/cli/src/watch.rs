//! `status --watch`: what happened between two looks at a rack.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rackweave_net::ask::{self, Target};
use rackweave_runtime::control::{Answer, AskError, Command, Local, Server, Status, Vssd};
use serde_json::{Value, json};

use crate::{Failure, show};

/// A rack that does not say how it is by then hangs.
const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// Activity of a vSSD in one interval.
pub struct VssdSpan {
    pub server: u32,
    pub vssd: Vssd,
    pub redirected_per_s: f64,
    /// Victim blocks.
    pub collected: u64,
}

/// Activity of a rack in one interval.
pub struct Span {
    /// Since the rack's start, at the second look.
    pub at_s: f64,
    pub interval_s: f64,
    pub reads_per_s: f64,
    pub read_p99_us: f64,
    pub writes_per_s: f64,
    pub write_p99_us: f64,
    pub redirected_per_s: f64,
    /// Requests for collection, by the switch's answer.
    pub granted: u64,
    pub delayed: u64,
    pub regular: u64,
    pub background: u64,
    /// Processes that did not answer both looks, or were started again between them. What others count is a sum with theirs, so nothing
    /// is counted then: rates and counts are zero here, and `null` in JSON.
    pub uncounted: Vec<String>,
    /// Servers whose heartbeats do not arrive.
    pub away: Vec<u32>,
    pub links_cut: Vec<String>,
    /// Refused or dropped packets and requests, by reason.
    pub refused: Vec<(String, u64)>,
    pub vssds: Vec<VssdSpan>,
}

/// Prints a line every `every` seconds until SIGINT, or until the rack ends.
pub fn watch(way: &Target, every: f64, json: bool) -> Result<(), Failure> {
    let mut interrupts = interrupts()?;
    interrupts.set_read_timeout(Some(Duration::from_secs_f64(every)))?;
    let (mut before, mut at) = (look(way)?, Instant::now());
    loop {
        match interrupts.read(&mut [0]) {
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            ended => return Ok(ended.map(drop)?),
        }
        let now = match look(way) {
            Ok(now) => now,
            Err(AskError::NotRunning { .. } | AskError::Io { .. }) => {
                writeln!(io::stderr(), "rackweave: the rack has ended")?;
                return Ok(());
            }
            Err(e) => return Err(e.into()),
        };
        let interval = at.elapsed();
        at = Instant::now();
        let span = Span::between(&before, &now, interval);
        let text = if json { span.json().to_string() } else { show::span(&span) };
        let mut out = io::stdout().lock();
        writeln!(out, "{text}")?;
        out.flush()?;
        before = now;
    }
}

/// Becomes readable with the first SIGINT or SIGTERM.
fn interrupts() -> io::Result<UnixStream> {
    let (read, write) = UnixStream::pair()?;
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
    }
    Ok(read)
}

fn look(way: &Target) -> Result<Status, AskError> {
    match ask::ask(way, &Command::Local(Local::Status), ANSWER_WAIT)? {
        Answer::Status(s) => Ok(*s),
        // It answers questions about its state with its state, or not at all.
        _ => Ok(Status::default()),
    }
}

fn count(all: &[(String, u64)], name: &str) -> u64 {
    all.iter().find(|c| c.0 == name).map_or(0, |c| c.1)
}

/// Counters that say that something was not done, or not listened to.
fn is_refusal(name: &str) -> bool {
    ["drop_", "refused_"].iter().any(|p| name.starts_with(p))
        || ["gc_stale", "gc_foreign", "rows_stale", "rows_refused"].contains(&name)
}

/// Processes that answered one look and not the other, or not with the same run.
fn uncounted(a: &Status, b: &Status) -> Vec<String> {
    let answered = |s: &Status| -> BTreeMap<String, (u32, f64)> {
        s.processes.iter().filter(|p| p.error.is_none()).map(|p| (p.name.clone(), (p.pid, p.uptime_s))).collect()
    };
    let (a, b) = (answered(a), answered(b));
    let goes_on = |name: &&String| match (a.get(*name), b.get(*name)) {
        (Some((pid, before)), Some((same, now))) => pid == same && before <= now,
        _ => false,
    };
    let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    names.into_iter().filter(|name| !goes_on(name)).cloned().collect()
}

impl Span {
    /// Of a rack in one process, counters of a switch or server that was started again begin at zero: what they counted since then
    /// is shown.
    pub fn between(a: &Status, b: &Status, interval: Duration) -> Span {
        let interval_s = interval.as_secs_f64();
        let uncounted = uncounted(a, b);
        let counts = uncounted.is_empty();
        let grown = |a: u64, b: u64| match counts {
            true => b.checked_sub(a).unwrap_or(b),
            false => 0,
        };
        let per_s = |n: u64| n as f64 / interval_s;
        let counters = |s: &Status| s.switch.as_ref().map(|w| w.counters.clone()).unwrap_or_default();
        let (switch_a, switch_b) = (counters(a), counters(b));
        let of_switch = |name: &str| grown(count(&switch_a, name), count(&switch_b, name));
        let io = |kind: &str| {
            let of = |s: &Status| s.latency.iter().find(|l| l.kind == kind).cloned().unwrap_or_default();
            (per_s(grown(of(a).count, of(b).count)), of(b).last_p99_us)
        };
        let ((reads_per_s, read_p99_us), (writes_per_s, write_p99_us)) = (io("read"), io("write"));
        let by_server = |s: &Status| -> Vec<(String, u64)> {
            let named = |s: &Server| {
                s.refused.iter().map(|r| (format!("refused_{} by server-{}", r.0, s.server), r.1)).collect::<Vec<_>>()
            };
            s.servers.iter().flat_map(named).collect()
        };
        let (servers_a, servers_b) = (by_server(a), by_server(b));
        let refused = [(&servers_a, &servers_b), (&switch_a, &switch_b), (&a.network, &b.network)]
            .into_iter()
            .flat_map(|(a, b)| {
                let of =
                    |(name, n): &(String, u64)| Some((name.clone(), grown(count(a, name), *n))).filter(|r| r.1 > 0);
                b.iter().filter(|c| is_refusal(&c.0)).filter_map(of).collect::<Vec<_>>()
            });
        let vssds = b.servers.iter().flat_map(|s| s.vssds.iter().map(|v| (s.server, v))).map(|(server, v)| {
            let old = a.servers.iter().flat_map(|s| &s.vssds).find(|o| o.id == v.id).cloned().unwrap_or_default();
            VssdSpan {
                server,
                redirected_per_s: per_s(grown(old.redirected_reads, v.redirected_reads)),
                collected: grown(old.gc_runs, v.gc_runs),
                vssd: v.clone(),
            }
        });
        Span {
            at_s: b.rack.uptime_s,
            interval_s,
            reads_per_s,
            read_p99_us,
            writes_per_s,
            write_p99_us,
            redirected_per_s: per_s(of_switch("redirects")),
            granted: of_switch("gc_accepted"),
            delayed: of_switch("gc_delayed"),
            regular: of_switch("gc_regular"),
            background: of_switch("gc_background"),
            uncounted,
            away: b.servers.iter().filter(|s| !s.alive).map(|s| s.server).collect(),
            links_cut: b.rack.links_cut.clone(),
            refused: refused.collect(),
            vssds: vssds.collect(),
        }
    }

    fn json(&self) -> Value {
        let counted = |n: Value| if self.uncounted.is_empty() { n } else { Value::Null };
        let vssd = |v: &VssdSpan| {
            json!({
                "vssd": v.vssd.id, "server": v.server, "set": v.vssd.set, "serving": v.vssd.serving, "gc": v.vssd.gc,
                "free_ratio": v.vssd.free_ratio, "queued": v.vssd.queued,
                "redirected_per_s": counted(v.redirected_per_s.into()), "collected": counted(v.collected.into()),
            })
        };
        json!({
            "at_s": self.at_s, "interval_s": self.interval_s,
            "reads_per_s": counted(self.reads_per_s.into()), "read_p99_us": counted(self.read_p99_us.into()),
            "writes_per_s": counted(self.writes_per_s.into()), "write_p99_us": counted(self.write_p99_us.into()),
            "redirected_per_s": counted(self.redirected_per_s.into()),
            "granted": counted(self.granted.into()), "delayed": counted(self.delayed.into()),
            "regular": counted(self.regular.into()), "background": counted(self.background.into()),
            "uncounted": self.uncounted, "away": self.away, "links_cut": self.links_cut,
            "refused": counted(json!(self.refused)), "vssds": self.vssds.iter().map(vssd).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rackweave_runtime::control::{Latency, Process, SwitchState};

    fn status(uptime_s: f64, reads: u64, switch: &[(&str, u64)], runs: u64) -> Status {
        let counters = switch.iter().map(|(n, c)| ((*n).into(), *c)).collect();
        let mut s = Status {
            latency: vec![Latency { kind: "read".into(), count: reads, last_p99_us: 77.0, ..Latency::default() }],
            switch: Some(SwitchState { counters, ..SwitchState::default() }),
            servers: vec![Server {
                server: 3,
                vssds: vec![Vssd { id: 9, gc_runs: runs, redirected_reads: 2 * runs, ..Vssd::default() }],
                ..Server::default()
            }],
            ..Status::default()
        };
        s.rack.uptime_s = uptime_s;
        s
    }

    #[test]
    fn what_happened_is_the_difference_of_two_looks() {
        let a = status(10.0, 1_000, &[("redirects", 5), ("gc_accepted", 1), ("gc_stale", 3)], 4);
        let b = status(12.0, 3_000, &[("redirects", 25), ("gc_accepted", 3), ("gc_delayed", 1), ("gc_stale", 4)], 7);
        let s = Span::between(&a, &b, Duration::from_secs(2));
        assert_eq!((s.reads_per_s, s.read_p99_us, s.writes_per_s), (1_000.0, 77.0, 0.0));
        assert_eq!((s.redirected_per_s, s.granted, s.delayed, s.regular), (10.0, 2, 1, 0));
        assert_eq!((s.vssds[0].collected, s.vssds[0].redirected_per_s), (3, 3.0));
        assert_eq!(s.refused, [("gc_stale".to_string(), 1)]);
        assert_eq!(s.away, [3], "it says nothing of heartbeats");
        let text = show::span(&s);
        assert!(
            text.contains("1000 reads/s") && text.contains("server 3 away") && text.contains("1 gc stale"),
            "{text}"
        );
        assert_eq!(s.json()["vssds"][0]["vssd"], 9);
        // Of a switch that was started again.
        assert_eq!(Span::between(&b, &a, Duration::from_secs(2)).granted, 1);
    }

    /// The counters of the process that does not answer are missing from the sum, and come back with all that they ever counted.
    #[test]
    fn nothing_is_counted_while_a_process_does_not_answer() {
        let of = |uptime_s: f64, n: u64, second: Option<u32>| {
            let mut s = status(uptime_s, n, &[("redirects", n), ("drop_no_row", n)], n);
            let process = |name: &str, pid: Option<u32>| Process {
                name: name.into(),
                pid: pid.unwrap_or_default(),
                error: pid.is_none().then(|| "it does not run".into()),
                ..Process::default()
            };
            s.processes = vec![process("switch", Some(7)), process("switch-1", second)];
            s
        };
        let looks = [
            of(1.0, 900, Some(8)),
            of(2.0, 500, None),
            of(3.0, 510, None),
            of(4.0, 920, Some(8)),
            of(5.0, 930, Some(9)),
        ];
        let spans: Vec<Span> = looks.windows(2).map(|w| Span::between(&w[0], &w[1], Duration::from_secs(1))).collect();
        assert_eq!(spans.iter().map(|s| s.redirected_per_s).collect::<Vec<_>>(), [0.0, 10.0, 0.0, 0.0]);
        assert_eq!(spans.iter().map(|s| s.uncounted.len()).collect::<Vec<_>>(), [1, 0, 1, 1]);
        assert!(spans[2].refused.is_empty() && spans[2].vssds[0].collected == 0 && spans[2].reads_per_s == 0.0);
        let json: Vec<Value> = spans.iter().map(Span::json).collect();
        assert_eq!((&json[1]["redirected_per_s"], &json[1]["vssds"][0]["collected"]), (&json!(10.0), &json!(10)));
        assert!(json[2]["redirected_per_s"].is_null() && json[2]["refused"].is_null(), "{}", json[2]);
        assert!(json[2]["vssds"][0]["collected"].is_null() && json[2]["vssds"][0]["vssd"] == 9, "{}", json[2]);
        let text = show::span(&spans[2]);
        assert!(
            text.starts_with("4.0 s: nothing counted: switch-1 did not answer both times, or was started again"),
            "{text}"
        );
    }
}
