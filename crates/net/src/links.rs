//! `link cut|mend` of a rack with a process per node. One end of a link drops its packets: always the same one of a
//! pair, whatever the order of the names. Cut links are recorded in the data directory, for ends that are restarted.

use std::io;
use std::path::Path;
use std::time::Duration;

use super::ask::Target;
use rackweave_runtime::control::{Answer, AskError, Command, Local};
use rackweave_runtime::datadir::write_durably;

/// One line per link: the end that drops, and the other.
const FILE: &str = "links.cut";

/// Mends all links at the start of a rack. A file that cannot be removed shows in `status`, as do the links that it
/// cuts.
pub(super) fn mend_all(data: &Path) {
    let _ = std::fs::remove_file(data.join(FILE));
}

fn read(data: &Path) -> io::Result<Vec<(String, String)>> {
    let text = match std::fs::read_to_string(data.join(FILE)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text?,
    };
    let pair = |line: &str| line.split_once(' ').map(|(a, b)| (a.to_string(), b.to_string()));
    Ok(text.lines().filter_map(pair).collect())
}

/// Nodes whose packets this one drops when it starts.
pub(super) fn cut_at(data: &Path, name: &str) -> io::Result<Vec<String>> {
    Ok(read(data)?.into_iter().filter(|(end, _)| end == name).map(|(_, other)| other).collect())
}

/// All cut links as in `status`: both names, in the order of the nodes' ids.
pub(super) fn listed(data: &Path, all: &[String]) -> Vec<String> {
    let place = |n: &String| all.iter().position(|a| a == n);
    let named = |(a, b): (String, String)| if place(&a) <= place(&b) { format!("{a} {b}") } else { format!("{b} {a}") };
    read(data).unwrap_or_default().into_iter().map(named).collect()
}

/// The end that drops, and the other. A switch never drops, because it may be in the kernel; otherwise the first end in
/// `all` does.
fn ends(all: &[String], a: &str, b: &str) -> Result<(String, String), String> {
    let place = |name: &str| {
        let found = all.iter().position(|n| n == name);
        found.ok_or_else(|| format!("there is no node {name}; the rack's nodes: {}", all.join(", ")))
    };
    let (x, y) = (place(a)?, place(b)?);
    let (first, second) = (x.min(y), x.max(y));
    let is_switch = |i: usize| super::policy::is_switch(&all[i]);
    if is_switch(first) && is_switch(second) {
        return Err(format!(
            "{a} {b}: with a process per node only a link of a server, a gateway or the metadata service can be cut"
        ));
    }
    let (end, other) = if is_switch(first) { (second, first) } else { (first, second) };
    Ok((all[end].clone(), all[other].clone()))
}

/// The node does not run, or ended during the query.
fn has_ended(e: &AskError) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    match e {
        AskError::NotRunning { .. } => true,
        AskError::Io { error, .. } => matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof),
        _ => false,
    }
}

pub(super) fn change(
    way: &Target,
    all: &[String],
    (a, b): (&str, &str),
    cut: bool,
    timeout: Duration,
) -> Result<Answer, AskError> {
    let (end, other) = match ends(all, a, b) {
        Ok(link) => link,
        Err(message) => return Ok(Answer::Error { message }),
    };
    let command = match cut {
        true => Command::Local(Local::LinkCut { a: end.clone(), b: other.clone() }),
        false => Command::Local(Local::LinkMend { a: end.clone(), b: other.clone() }),
    };
    let answer = way.ask_node(&end, &command, timeout);
    let Target::Data(data) = way else { return answer };
    let failed = |error| AskError::Io { data: data.clone(), error };
    let mut kept = read(data).map_err(failed)?;
    let link = (end, other);
    let was = kept.contains(&link);
    let answer = match answer {
        // Mended before the node is started again.
        Err(e) if was && !cut && has_ended(&e) => Answer::Done,
        answer => answer?,
    };
    if answer == Answer::Done && was != cut {
        kept.retain(|l| *l != link);
        if cut {
            kept.push(link);
        }
        let text: String = kept.iter().map(|(end, other)| format!("{end} {other}\n")).collect();
        write_durably(data, FILE, text.as_bytes()).map_err(failed)?;
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_has_the_same_end_in_whatever_order_it_is_named() {
        let all = ["meta", "switch", "server-0", "server-1", "gateway-0"].map(String::from);
        for (a, b, end) in [
            ("server-0", "server-1", "server-0"),
            ("switch", "server-1", "server-1"),
            ("switch", "meta", "meta"),
            ("gateway-0", "server-1", "server-1"),
        ] {
            assert_eq!(ends(&all, a, b).expect("known").0, end);
            assert_eq!(ends(&all, a, b), ends(&all, b, a));
        }
        let two_racks = ["meta", "switch", "server-0", "server-1", "switch-1", "gateway-0"].map(String::from);
        assert_eq!(ends(&two_racks, "switch-1", "server-1").expect("known").0, "server-1");
        assert!(ends(&two_racks, "switch", "switch-1").unwrap_err().contains("only a link of a server"));
        let e = ends(&all, "server-0", "server-9").unwrap_err();
        assert!(e.contains("no node server-9") && e.contains("gateway-0"), "{e}");
    }
}
