//! A client of a rack's NBD server, which waits for each answer: one request at a time.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rackweave_gateway::nbd::wire::{self, chunk, cmd, info, opt, rep};
use rackweave_runtime::control;

/// A rack that does not answer by then has lost its majority, or hangs.
const ANSWER_WAIT: Duration = Duration::from_secs(60);
/// Longest data of an answer to an option.
const OPTION_MAX: u32 = 64 << 10;
/// Most replies to an option, and bytes of an answer about allocation.
const REPLIES_MAX: usize = 64;
const ALLOCATION_MAX: usize = 1 << 20;

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

fn word(b: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}
fn long(b: &[u8], at: usize) -> u64 {
    u64::from(word(b, at)) << 32 | u64::from(word(b, at + 4))
}
/// A part of the answer about allocation.
fn part(b: &[u8]) -> (u64, bool) {
    (word(b, 0).into(), word(b, 4) & wire::STATE_ZERO != 0)
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
    /// Requests an option. Replies before the acknowledgement: kinds and data.
    fn option(&mut self, option: u32, data: &[u8]) -> Result<Vec<(u32, Vec<u8>)>, Error> {
        let mut m = [wire::OPT_MAGIC.to_be_bytes().as_slice(), &option.to_be_bytes()].concat();
        m.extend((data.len() as u32).to_be_bytes());
        m.extend(data);
        let sent = self.stream.write_all(&m);
        self.io(sent)?;
        let mut replies = Vec::new();
        loop {
            let head = number::<20>(&mut *self.stream);
            let head = self.io(head)?;
            let (kind, len) = (word(&head, 12), word(&head, 16));
            if head[..8] != wire::OPT_REPLY_MAGIC.to_be_bytes() || len > OPTION_MAX {
                return Err(self.bad(format!("{head:x?}")));
            }
            let mut data = vec![0; len as usize];
            let read = self.stream.read_exact(&mut data);
            self.io(read)?;
            match kind {
                rep::ACK => return Ok(replies),
                _ if kind >> 31 == 1 => {
                    let (name, why) = (self.name.clone(), String::from_utf8_lossy(&data).into_owned());
                    return Err(Error::Refused { address: self.address.clone(), name, why });
                }
                _ if replies.len() < REPLIES_MAX => replies.push((kind, data)),
                _ => return Err(self.bad(format!("over {REPLIES_MAX} replies to option {option}"))),
            }
        }
    }
    /// Agrees on structured replies, `base:allocation` and the export.
    fn go(&mut self) -> Result<(), Error> {
        self.option(opt::STRUCTURED_REPLY, &[])?;
        let counted = |bytes: &[u8]| [(bytes.len() as u32).to_be_bytes().as_slice(), bytes].concat();
        let name = counted(self.name.as_bytes());
        let query = [&name, 1u32.to_be_bytes().as_slice(), &counted(wire::BASE_ALLOCATION)].concat();
        let context = self.option(opt::SET_META_CONTEXT, &query)?;
        if !context.iter().any(|(kind, _)| *kind == rep::META_CONTEXT) {
            return Err(self.bad("no metadata context".into()));
        }
        let replies = self.option(opt::GO, &[&name, 0u16.to_be_bytes().as_slice()].concat())?;
        let export = |(kind, data): &(u32, Vec<u8>)| {
            let is = *kind == rep::INFO && data.len() >= 10 && data[..2] == info::EXPORT.to_be_bytes();
            is.then(|| long(data, 2))
        };
        self.size = replies.iter().find_map(export).ok_or_else(|| self.bad("no export".into()))?;
        Ok(())
    }
    fn send(&mut self, kind: u16, offset: u64, len: u32, data: &[u8]) -> Result<(), Error> {
        self.cookie += 1;
        let mut m = wire::REQUEST_MAGIC.to_be_bytes().to_vec();
        m.extend(0u16.to_be_bytes());
        m.extend(kind.to_be_bytes());
        m.extend(self.cookie.to_be_bytes());
        m.extend(offset.to_be_bytes());
        m.extend(len.to_be_bytes());
        let sent = self.stream.write_all(&m).and_then(|()| self.stream.write_all(data));
        self.io(sent)
    }
    /// A request that has a simple reply.
    fn request(&mut self, (kind, what): (u16, &'static str), offset: u64, len: u32, data: &[u8]) -> Result<(), Error> {
        self.send(kind, offset, len, data)?;
        let head = number::<16>(&mut *self.stream);
        let head = self.io(head)?;
        if head[..4] != wire::SIMPLE_REPLY_MAGIC.to_be_bytes() || head[8..] != self.cookie.to_be_bytes() {
            return Err(self.bad(format!("{head:x?}")));
        }
        match word(&head, 4) {
            0 => Ok(()),
            errno => Err(Error::Failed { name: self.name.clone(), what, offset, errno }),
        }
    }
    /// Kind and data of a structured reply, of at most `most` bytes. A rack's servers send one chunk.
    fn chunk(&mut self, what: &'static str, offset: u64, most: usize) -> Result<(u16, Vec<u8>), Error> {
        let head = number::<20>(&mut *self.stream);
        let head = self.io(head)?;
        let (flags, kind) = (u16::from_be_bytes([head[4], head[5]]), u16::from_be_bytes([head[6], head[7]]));
        let whole = head[..4] == wire::STRUCTURED_REPLY_MAGIC.to_be_bytes() && flags == chunk::FLAG_DONE;
        let len = word(&head, 16) as usize;
        if !whole || head[8..16] != self.cookie.to_be_bytes() || len > most.max(OPTION_MAX as usize) {
            return Err(self.bad(format!("{head:x?}")));
        }
        let mut data = vec![0; len];
        let read = self.stream.read_exact(&mut data);
        self.io(read)?;
        match kind {
            chunk::ERROR if len >= 4 => {
                let errno = word(&data, 0);
                Err(Error::Failed { name: self.name.clone(), what, offset, errno })
            }
            _ => Ok((kind, data)),
        }
    }
    pub fn read(&mut self, offset: u64, data: &mut [u8]) -> Result<(), Error> {
        self.send(cmd::READ, offset, data.len() as u32, &[])?;
        match self.chunk("reading", offset, data.len() + 8)? {
            (chunk::OFFSET_DATA, found) if found.len() == data.len() + 8 && long(&found, 0) == offset => {
                data.copy_from_slice(&found[8..]);
            }
            (chunk::OFFSET_HOLE, found)
                if found.len() == 12 && long(&found, 0) == offset && word(&found, 8) as usize == data.len() =>
            {
                data.fill(0);
            }
            (kind, found) => return Err(self.bad(format!("chunk {kind} with {} bytes", found.len()))),
        }
        Ok(())
    }
    /// What is zero of these bytes, without reading it: lengths of parts from `offset` on, and whether they are holes. They may end
    /// before the requested bytes.
    pub fn allocation(&mut self, offset: u64, len: u32) -> Result<Vec<(u64, bool)>, Error> {
        self.send(cmd::BLOCK_STATUS, offset, len, &[])?;
        let (kind, data) = self.chunk("looking for holes", offset, ALLOCATION_MAX)?;
        let of_context = data.len() % 8 == 4 && word(&data, 0) == wire::BASE_ALLOCATION_ID;
        let parts: Vec<(u64, bool)> = data.get(4..).unwrap_or_default().chunks_exact(8).map(part).collect();
        let total: u64 = parts.iter().map(|p| p.0).sum();
        let fits = parts.iter().all(|p| p.0 > 0) && (1..=u64::from(len)).contains(&total);
        let sound = kind == chunk::BLOCK_STATUS && of_context && fits;
        if sound { Ok(parts) } else { Err(self.bad(format!("chunk {kind} with {} bytes", data.len()))) }
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
