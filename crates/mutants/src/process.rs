//! A child process whose output is read line by line, and which is ended if it falls silent.

use std::io::{self, BufRead, BufReader};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// How a process ended.
#[derive(Debug)]
pub enum Ended {
    Exit(ExitStatus),
    /// Printed nothing for too long.
    Silent,
    /// `on_line` had enough.
    Stopped,
}

/// Runs `command`; `on_line` sees each line of its standard output and says whether to go on.
///
/// # Errors
/// The process could not be started or waited for.
pub fn lines(command: &mut Command, silence: Duration, mut on_line: impl FnMut(&str) -> bool) -> io::Result<Ended> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let out = BufReader::new(child.stdout.take().expect("piped"));
    let (tx, rx) = channel();
    std::thread::scope(|s| {
        s.spawn(move || out.lines().map_while(Result::ok).all(|line| tx.send(line).is_ok()));
        let ended = loop {
            match rx.recv_timeout(silence) {
                Ok(line) if on_line(&line) => {}
                Ok(_) => break Some(Ended::Stopped),
                Err(RecvTimeoutError::Timeout) => break Some(Ended::Silent),
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
