//! Bytes of durable records: integers are little-endian, in keys big-endian; bytes are a u32 length and the bytes; an
//! option is u8 0, or u8 1 and the value.

use bytes::{BufMut, Bytes};

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
    /// Without their length.
    pub fn raw(mut self, v: &[u8]) -> Writer {
        self.0.extend(v);
        self
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
        self.slice(max).map(Bytes::copy_from_slice)
    }
    /// As [`Reader::bytes`], without a copy.
    pub fn slice(&mut self, max: usize) -> Option<&'a [u8]> {
        let n = self.u32()? as usize;
        (n <= max).then_some(())?;
        self.take(n)
    }
    pub fn option<T>(&mut self, read: impl FnOnce(&mut Reader<'a>) -> Option<T>) -> Option<Option<T>> {
        match self.u8()? {
            0 => Some(None),
            1 => Some(Some(read(self)?)),
            _ => None,
        }
    }
}

/// A record of a store: its key and its value, in one allocation. A store may have millions of small ones in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRecord {
    /// Length of the key 2, the key, the value.
    bytes: Bytes,
}

/// Bytes of the key's length.
const LENGTH: usize = 2;

impl StoredRecord {
    /// # Panics
    /// The key is longer than 65,535 bytes: no store takes it.
    pub fn new(key: &[u8], value: &[u8]) -> StoredRecord {
        StoredRecord::write(&[key], value.len(), |w| w.raw(value))
    }
    /// Of a key in parts, and what `value` writes, at most about this many bytes.
    ///
    /// # Panics
    /// As [`StoredRecord::new`].
    pub fn write(key: &[&[u8]], value_bytes: usize, value: impl FnOnce(Writer) -> Writer) -> StoredRecord {
        let length: usize = key.iter().map(|part| part.len()).sum();
        let mut bytes = Vec::with_capacity(LENGTH + length + value_bytes);
        bytes.put_u16_le(u16::try_from(length).expect("a key that a store takes"));
        key.iter().for_each(|part| bytes.put_slice(part));
        let Writer(mut bytes) = value(Writer(bytes));
        bytes.shrink_to_fit();
        StoredRecord { bytes: bytes.into() }
    }
    fn value_at(&self) -> usize {
        LENGTH + usize::from(u16::from_le_bytes([self.bytes[0], self.bytes[1]]))
    }
    pub fn key(&self) -> &[u8] {
        &self.bytes[LENGTH..self.value_at()]
    }
    pub fn value(&self) -> &[u8] {
        &self.bytes[self.value_at()..]
    }
    /// Key and value, which keep the record in memory.
    pub fn parts(&self) -> (Bytes, Bytes) {
        let at = self.value_at();
        (self.bytes.slice(LENGTH..at), self.bytes.slice(at..))
    }
    /// A part of the record, which keeps all of it in memory.
    ///
    /// # Panics
    /// It is no part of it.
    pub fn part(&self, of_it: &[u8]) -> Bytes {
        self.bytes.slice_ref(of_it)
    }
}

/// The record of an empty key and an empty value.
impl Default for StoredRecord {
    fn default() -> StoredRecord {
        StoredRecord { bytes: Bytes::from_static(&[0; LENGTH]) }
    }
}

impl From<(Bytes, Bytes)> for StoredRecord {
    /// # Panics
    /// As [`StoredRecord::new`].
    fn from((key, value): (Bytes, Bytes)) -> StoredRecord {
        StoredRecord::new(&key, &value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_record_has_its_key_and_its_value() {
        let of = |r: &StoredRecord| (r.key().to_vec(), r.value().to_vec());
        let r = StoredRecord::write(&[b"a", b"", b"key"], 100, |w| w.u32(7).raw(b"value"));
        assert_eq!(of(&r), (b"akey".to_vec(), b"\x07\0\0\0value".to_vec()));
        assert_eq!(r, StoredRecord::new(b"akey", b"\x07\0\0\0value"));
        assert_eq!(r, StoredRecord::from(r.parts()));
        assert_eq!(r.part(&r.value()[4..]), Bytes::from_static(b"value"));
        assert_eq!(StoredRecord::default(), StoredRecord::new(b"", b""));
        let longest = StoredRecord::new(&[1; 65_535], &[2]);
        assert_eq!((longest.key().len(), longest.value()), (65_535, &[2][..]));
    }
}
