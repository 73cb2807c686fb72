//! Bytes of durable records: integers are little-endian, in keys big-endian; bytes are a u32 length and the bytes; an
//! option is u8 0, or u8 1 and the value.

use bytes::Bytes;

/// Builds a record's value.
#[derive(Debug, Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    pub fn u8(mut self, v: u8) -> Writer {
        self.0.push(v);
        self
    }
    pub fn u32(mut self, v: u32) -> Writer {
        self.0.extend(v.to_le_bytes());
        self
    }
    pub fn u64(mut self, v: u64) -> Writer {
        self.0.extend(v.to_le_bytes());
        self
    }
    pub fn bytes(self, v: &[u8]) -> Writer {
        let mut w = self.u32(v.len() as u32);
        w.0.extend(v);
        w
    }
    pub fn option<T>(self, v: Option<T>, write: impl FnOnce(Writer, T) -> Writer) -> Writer {
        match v {
            None => self.u8(0),
            Some(v) => write(self.u8(1), v),
        }
    }
    pub fn end(self) -> Bytes {
        self.0.into()
    }
}

/// Takes a record apart; `None` at its end, or where a number is not as written.
#[derive(Debug)]
pub struct Reader<'a> {
    pub rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(n)?;
        self.rest = rest;
        Some(head)
    }
    pub fn u8(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }
    pub fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }
    pub fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }
    pub fn big32(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }
    pub fn big64(&mut self) -> Option<u64> {
        Some(u64::from_be_bytes(self.take(8)?.try_into().ok()?))
    }
    pub fn bytes(&mut self, max: usize) -> Option<Bytes> {
        let n = self.u32()? as usize;
        (n <= max).then_some(())?;
        Some(Bytes::copy_from_slice(self.take(n)?))
    }
    pub fn option<T>(&mut self, read: impl FnOnce(&mut Reader<'a>) -> Option<T>) -> Option<Option<T>> {
        match self.u8()? {
            0 => Some(None),
            1 => Some(Some(read(self)?)),
            _ => None,
        }
    }
}
