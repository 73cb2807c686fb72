//! A child process whose output is read line by line, and which is ended if it falls silent.

use std::io::{self, BufRead, BufReader};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How often a silent process is looked at.
const LOOK: Duration = Duration::from_secs(2);
/// A process that waits uses no processor: it may be silent this many times as long by the clock.
const WALL_FACTOR: u32 = 5;
/// Of the times in `/proc/PID/stat`: Linux reports them in hundredths of a second.
const TICK: Duration = Duration::from_millis(10);

/// How a process ended.
#[derive(Debug)]
pub enum Ended {
    Exit(ExitStatus),
    /// Printed nothing while it used too much processor time, or for too long.
    Silent,
    /// `on_line` had enough.
    Stopped,
}

/// Runs `command`; `on_line` sees each line of its standard output and says whether to go on. `silence` is processor time: how
/// busy the machine is with other things says nothing.
///
/// # Errors
/// The process could not be started or waited for.
pub fn lines(command: &mut Command, silence: Duration, mut on_line: impl FnMut(&str) -> bool) -> io::Result<Ended> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let out = BufReader::new(child.stdout.take().expect("piped"));
    let (tx, rx) = channel();
    std::thread::scope(|s| {
        s.spawn(move || out.lines().map_while(Result::ok).all(|line| tx.send(line).is_ok()));
        let pid = child.id();
        let (mut heard, mut used) = (Instant::now(), processor_time(pid));
        let ended = loop {
            match rx.recv_timeout(LOOK) {
                Ok(line) if on_line(&line) => (heard, used) = (Instant::now(), processor_time(pid)),
                Ok(_) => break Some(Ended::Stopped),
                Err(RecvTimeoutError::Timeout) => {
                    let busy = processor_time(pid).saturating_sub(used);
                    if busy > silence || heard.elapsed() > silence * WALL_FACTOR {
                        break Some(Ended::Silent);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => break None,
            }
        };
        if ended.is_some() {
            // It may have ended by itself meanwhile.
            let _ = child.kill();
        }
        let status = child.wait()?;
        Ok(ended.unwrap_or(Ended::Exit(status)))
    })
}

/// CPU time of a process, user and system; zero for one that is gone.
fn processor_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in parentheses, may contain anything; the times are fields 14 and 15.
    let fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let ticks = fields.split(' ').skip(11).take(2).filter_map(|f| f.parse::<u32>().ok()).sum();
    TICK * ticks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, silence: Duration) -> Ended {
        lines(Command::new("sh").args(["-c", script]), silence, |_| true).expect("there is a shell")
    }

    #[test]
    fn a_process_that_waits_is_not_one_that_does_not_end() {
        let ended = shell("sleep 3; echo here", Duration::from_secs(1));
        assert!(matches!(ended, Ended::Exit(s) if s.success()), "{ended:?}");
        assert!(matches!(shell("while :; do :; done", Duration::from_secs(1)), Ended::Silent));
    }
}
