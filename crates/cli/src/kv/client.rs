//! A client of a rack's RESP address, which waits for each answer.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A rack that does not answer by then has lost its majority, or hangs.
const ANSWER_WAIT: Duration = Duration::from_secs(30);
/// Longest line of an answer, and longest value: a rack's are shorter.
const LINE_MAX: u64 = 64 << 10;
const VALUE_MAX: usize = 16 << 20;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{address}: {error}")]
    Io { address: String, error: io::Error },
    /// The rack's own words.
    #[error("{0}")]
    Refused(String),
    #[error("--keyspace {name}: {why}")]
    Keyspace { name: String, why: String },
    #[error("{address}: this is no answer of a rack: {text:?}")]
    Answer { address: String, text: String },
}

/// An answer. Lists of answers occur in answers to SCAN and MGET.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Null,
    Text(Vec<u8>),
    Number(i64),
    List(Vec<Value>),
    Error(String),
}

trait Stream: Read + Write + Send {}
impl Stream for TcpStream {}
impl Stream for UnixStream {}

/// A keyspace of a rack.
#[derive(Clone, Copy)]
pub struct At<'a> {
    /// `redis://HOST:PORT` or `unix:PATH`, as `status` has it.
    pub uri: &'a str,
    /// Its name or number; `None`: the first.
    pub keyspace: Option<&'a str>,
}

pub struct Client {
    address: String,
    stream: BufReader<Box<dyn Stream>>,
}

impl Client {
    pub fn connect(at: At<'_>) -> Result<Client, Error> {
        let uri = at.uri;
        let failed = |error| Error::Io { address: uri.into(), error };
        let stream: Box<dyn Stream> = match uri.strip_prefix("unix:") {
            Some(path) => {
                let s = UnixStream::connect(path).map_err(failed)?;
                s.set_read_timeout(Some(ANSWER_WAIT)).map_err(failed)?;
                Box::new(s)
            }
            None => {
                let s = TcpStream::connect(uri.strip_prefix("redis://").unwrap_or(uri)).map_err(failed)?;
                s.set_nodelay(true).and_then(|()| s.set_read_timeout(Some(ANSWER_WAIT))).map_err(failed)?;
                Box::new(s)
            }
        };
        let mut client = Client { address: uri.into(), stream: BufReader::new(stream) };
        if let Some(name) = at.keyspace {
            let refused = |e| if let Error::Refused(why) = e { Error::Keyspace { name: name.into(), why } } else { e };
            client.call(&[b"SELECT", name.as_bytes()]).map_err(refused)?;
        }
        Ok(client)
    }
    #[cfg(test)]
    pub fn over(stream: UnixStream) -> Client {
        Client { address: "test".into(), stream: BufReader::new(Box::new(stream)) }
    }
    /// Carries out one command; an error of the rack is an error.
    pub fn call(&mut self, args: &[&[u8]]) -> Result<Value, Error> {
        self.send(args)?;
        self.answer()
    }
    pub fn send(&mut self, args: &[&[u8]]) -> Result<(), Error> {
        let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
        for a in args {
            bytes.extend(format!("${}\r\n", a.len()).bytes());
            bytes.extend_from_slice(a);
            bytes.extend(b"\r\n");
        }
        self.stream.get_mut().write_all(&bytes).map_err(|error| self.failed(error))
    }
    /// The answer to the oldest command without one.
    pub fn answer(&mut self) -> Result<Value, Error> {
        match self.value()? {
            Value::Error(why) => Err(Error::Refused(why)),
            v => Ok(v),
        }
    }

    fn failed(&self, error: io::Error) -> Error {
        Error::Io { address: self.address.clone(), error }
    }
    fn nonsense(&self, text: &[u8]) -> Error {
        Error::Answer { address: self.address.clone(), text: String::from_utf8_lossy(text).into() }
    }
    fn value(&mut self) -> Result<Value, Error> {
        let mut line = Vec::new();
        let read = (&mut self.stream).take(LINE_MAX).read_until(b'\n', &mut line);
        if read.map_err(|e| self.failed(e))? == 0 {
            return Err(self.failed(io::ErrorKind::UnexpectedEof.into()));
        }
        let Some(([kind], text)) = line.strip_suffix(b"\r\n").and_then(|l| l.split_first_chunk()) else {
            return Err(self.nonsense(&line));
        };
        let number = || std::str::from_utf8(text).ok().and_then(|t| t.parse::<i64>().ok());
        let text = || String::from_utf8_lossy(text).into_owned();
        match (kind, number()) {
            (b'+', _) => Ok(Value::Text(text().into_bytes())),
            (b'-', _) => Ok(Value::Error(text())),
            (b':', Some(n)) => Ok(Value::Number(n)),
            (b'$' | b'*', Some(-1)) => Ok(Value::Null),
            (b'$', Some(n)) if (0..=VALUE_MAX as i64).contains(&n) => {
                let mut value = vec![0; n as usize + 2];
                self.stream.read_exact(&mut value).map_err(|e| self.failed(e))?;
                value.truncate(n as usize);
                Ok(Value::Text(value))
            }
            (b'*', Some(n)) if (0..=VALUE_MAX as i64).contains(&n) => {
                (0..n).map(|_| self.value()).collect::<Result<_, _>>().map(Value::List)
            }
            _ => Err(self.nonsense(&line)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(bytes: &[u8]) -> Result<Value, Error> {
        let (ours, mut theirs) = UnixStream::pair().expect("pair");
        theirs.write_all(bytes).expect("written");
        drop(theirs);
        Client::over(ours).answer()
    }

    #[test]
    fn answers_of_every_kind_are_read() {
        let text = |t: &str| Value::Text(t.into());
        assert_eq!(answered(b"+OK\r\n").expect("sound"), text("OK"));
        assert_eq!(answered(b":-7\r\n").expect("sound"), Value::Number(-7));
        assert_eq!(answered(b"$-1\r\n").expect("sound"), Value::Null);
        assert_eq!(answered(b"$4\r\na\r\nb\r\n").expect("sound"), text("a\r\nb"));
        let page = Value::List(vec![text("7"), Value::List(vec![text("k")])]);
        assert_eq!(answered(b"*2\r\n$1\r\n7\r\n*1\r\n$1\r\nk\r\n").expect("sound"), page);
        assert!(matches!(answered(b"-OOM no space left\r\n"), Err(Error::Refused(why)) if why == "OOM no space left"));
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        for bytes in [&b"HTTP/1.1 400\r\n"[..], b"$999999999999\r\n", b"*x\r\n", b"\r\n", b"+OK\n"] {
            assert!(matches!(answered(bytes), Err(Error::Answer { .. })), "{bytes:?}");
        }
        for bytes in [&b""[..], b"$5\r\nab"] {
            assert!(matches!(answered(bytes), Err(Error::Io { .. })), "{bytes:?}");
        }
    }
}
