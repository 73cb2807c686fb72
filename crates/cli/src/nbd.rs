//! A client of a rack's NBD server, which waits for each answer: simple replies, one request at a time.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rackweave_gateway::nbd::wire::{self, cmd, info, opt, rep};
use rackweave_runtime::control;

/// A rack that does not answer by then has lost its majority, or hangs.
const ANSWER_WAIT: Duration = Duration::from_secs(60);
/// Longest data of an answer to an option.
const OPTION_MAX: u32 = 64 << 10;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("NBD server {address}: {error}")]
    Io { address: String, error: io::Error },
    #[error("NBD server {address} refuses export {name:?}: {why}")]
    Refused { address: String, name: String, why: String },
    #[error("NBD server {address}: {what} is no answer of a rack")]
    Answer { address: String, what: String },
    #[error("{what} at byte {offset} of export {name:?} failed with error number {errno}")]
    Failed { name: String, what: &'static str, offset: u64, errno: u32 },
}

trait Stream: Read + Write {}
impl Stream for TcpStream {}
impl Stream for UnixStream {}

pub struct Client {
    address: String,
    name: String,
    /// Bytes of the export.
    pub size: u64,
    stream: Box<dyn Stream>,
    cookie: u64,
}

fn connect(uri: &str) -> io::Result<Box<dyn Stream>> {
    if let Some((_, path)) = uri.split_once("?socket=") {
        let path = Path::new(path);
        let (dir, file) = (path.parent().unwrap_or(Path::new("/")), path.file_name().unwrap_or_default());
        let (_dir, short) = control::short_path(dir, &file.to_string_lossy())?;
        let s = UnixStream::connect(short)?;
        s.set_read_timeout(Some(ANSWER_WAIT))?;
        return Ok(Box::new(s));
    }
    let s = TcpStream::connect(uri.strip_prefix("nbd://").unwrap_or(uri))?;
    s.set_nodelay(true)?;
    s.set_read_timeout(Some(ANSWER_WAIT))?;
    Ok(Box::new(s))
}

fn number<const N: usize>(s: &mut dyn Stream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    s.read_exact(&mut bytes)?;
    Ok(bytes)
}

impl Client {
    /// `uri`: as `status` has it. The gateway becomes the volume's writer; a snapshot has none.
    pub fn open(uri: &str, name: &str) -> Result<Client, Error> {
        let failed = |error| Error::Io { address: uri.into(), error };
        let stream = connect(uri).map_err(failed)?;
        let mut c = Client { address: uri.into(), name: name.into(), size: 0, stream, cookie: 0 };
        c.greet()?;
        c.go()?;
        Ok(c)
    }
    fn io<T>(&self, r: io::Result<T>) -> Result<T, Error> {
        r.map_err(|error| Error::Io { address: self.address.clone(), error })
    }
    fn bad(&self, what: String) -> Error {
        Error::Answer { address: self.address.clone(), what }
    }
    fn greet(&mut self) -> Result<(), Error> {
        let greeting = number::<18>(&mut *self.stream);
        let greeting = self.io(greeting)?;
        let magic = [wire::INIT_MAGIC.to_be_bytes(), wire::OPT_MAGIC.to_be_bytes()].concat();
        if greeting[..16] != magic {
            return Err(self.bad(format!("the greeting {greeting:x?}")));
        }
        let flags = u32::from(wire::FLAG_FIXED_NEWSTYLE | wire::FLAG_NO_ZEROES);
        let sent = self.stream.write_all(&flags.to_be_bytes());
        self.io(sent)
    }
    fn go(&mut self) -> Result<(), Error> {
        let name = self.name.clone();
        let mut m = [wire::OPT_MAGIC.to_be_bytes().as_slice(), &opt::GO.to_be_bytes()].concat();
        m.extend((4 + name.len() as u32 + 2).to_be_bytes());
        m.extend((name.len() as u32).to_be_bytes());
        m.extend(name.as_bytes());
        m.extend(0u16.to_be_bytes());
        let sent = self.stream.write_all(&m);
        self.io(sent)?;
        let mut export = false;
        loop {
            let head = number::<20>(&mut *self.stream);
            let head = self.io(head)?;
            let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
            let (kind, len) = (word(12), word(16));
            if head[..8] != wire::OPT_REPLY_MAGIC.to_be_bytes() || len > OPTION_MAX {
                return Err(self.bad(format!("{head:x?}")));
            }
            let mut data = vec![0; len as usize];
            let read = self.stream.read_exact(&mut data);
            self.io(read)?;
            match kind {
                rep::ACK if export => return Ok(()),
                rep::INFO if data.len() >= 10 && data[..2] == info::EXPORT.to_be_bytes() => {
                    let mut size = [0; 8];
                    size.copy_from_slice(&data[2..10]);
                    (self.size, export) = (u64::from_be_bytes(size), true);
                }
                rep::INFO => {}
                _ if kind >> 31 == 1 => {
                    let why = String::from_utf8_lossy(&data).into_owned();
                    return Err(Error::Refused { address: self.address.clone(), name, why });
                }
                _ => return Err(self.bad(format!("option reply {kind}"))),
            }
        }
    }
    fn request(&mut self, (kind, what): (u16, &'static str), offset: u64, len: u32, data: &[u8]) -> Result<(), Error> {
        self.cookie += 1;
        let mut m = wire::REQUEST_MAGIC.to_be_bytes().to_vec();
        m.extend(0u16.to_be_bytes());
        m.extend(kind.to_be_bytes());
        m.extend(self.cookie.to_be_bytes());
        m.extend(offset.to_be_bytes());
        m.extend(len.to_be_bytes());
        let sent = self.stream.write_all(&m).and_then(|()| self.stream.write_all(data));
        self.io(sent)?;
        let head = number::<16>(&mut *self.stream);
        let head = self.io(head)?;
        if head[..4] != wire::SIMPLE_REPLY_MAGIC.to_be_bytes() || head[8..] != self.cookie.to_be_bytes() {
            return Err(self.bad(format!("{head:x?}")));
        }
        match u32::from_be_bytes([head[4], head[5], head[6], head[7]]) {
            0 => Ok(()),
            errno => Err(Error::Failed { name: self.name.clone(), what, offset, errno }),
        }
    }
    pub fn read(&mut self, offset: u64, data: &mut [u8]) -> Result<(), Error> {
        self.request((cmd::READ, "reading"), offset, data.len() as u32, &[])?;
        let read = self.stream.read_exact(data);
        self.io(read)
    }
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.request((cmd::WRITE, "writing"), offset, data.len() as u32, data)
    }
    pub fn flush(&mut self) -> Result<(), Error> {
        self.request((cmd::FLUSH, "flushing"), 0, 0, &[])
    }
    /// Ends the session; the server sends no answer.
    pub fn close(mut self) -> Result<(), Error> {
        let mut m = wire::REQUEST_MAGIC.to_be_bytes().to_vec();
        m.extend(0u16.to_be_bytes());
        m.extend(cmd::DISC.to_be_bytes());
        m.resize(28, 0);
        let sent = self.stream.write_all(&m);
        self.io(sent)
    }
}
