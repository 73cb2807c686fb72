//! How values are written and read. A type's two directions are generated from one line, so they cannot differ.

use std::sync::Arc;

use bytes::Bytes;
use rackweave_core::{
    BlockAddr, DriveId, Epoch, Incarnation, NodeId, Payload, RackId, SetId, Span, SsdId, Summed, Time, Timestamp,
    VolumeId, VssdId,
};

use crate::error::{DecodeError, EncodeError};
use crate::limits::TEXT_MAX;

/// Appends to a packet. Remembers the first bound that was broken.
pub(crate) struct Writer<'a> {
    to: &'a mut Vec<u8>,
    error: Option<EncodeError>,
    elided: bool,
    /// Whether contents are left out, and those that were, with where they belong.
    apart: bool,
    left_out: Option<(usize, Bytes)>,
}

/// The written bytes.
pub(crate) struct Written {
    pub error: Option<EncodeError>,
    /// Whether contents without bytes were written.
    pub elided: bool,
    /// Contents that belong behind what was written.
    pub data: Bytes,
}

impl<'a> Writer<'a> {
    pub fn new(to: &'a mut Vec<u8>) -> Writer<'a> {
        Writer { to, error: None, elided: false, apart: false, left_out: None }
    }
    /// Leaves the bytes of contents out, if nothing follows them.
    pub fn apart(to: &'a mut Vec<u8>) -> Writer<'a> {
        Writer { apart: true, ..Writer::new(to) }
    }
    pub fn finish(self) -> Written {
        let mut data = Bytes::new();
        if let Some((at, bytes)) = self.left_out {
            if at == self.to.len() {
                data = bytes;
            } else {
                self.to.splice(at..at, bytes);
            }
        }
        Written { error: self.error, elided: self.elided, data }
    }
    pub fn contents(&mut self, v: &Bytes) {
        if self.apart && self.left_out.is_none() {
            self.left_out = Some((self.to.len(), v.clone()));
        } else {
            self.bytes(v);
        }
    }
    pub fn u8(&mut self, v: u8) {
        self.to.push(v);
    }
    pub fn bytes(&mut self, v: &[u8]) {
        self.to.extend_from_slice(v);
    }
    pub fn fail(&mut self, e: EncodeError) {
        self.error.get_or_insert(e);
    }
    pub fn mark_elided(&mut self) {
        self.elided = true;
    }
    /// A list's length; false if it is over the limit, and then nothing of it is written.
    pub fn count(&mut self, what: &'static str, count: usize, limit: u32) -> bool {
        let fits = count <= limit as usize;
        if fits {
            (count as u32).put(self);
        } else {
            self.fail(EncodeError::TooMany { what, count, limit });
        }
        fits
    }
}

/// Takes a packet apart. Every read is checked against what is left.
pub(crate) struct Reader<'a> {
    from: &'a [u8],
    shared: Option<&'a Bytes>,
    /// Contents that follow `from`, not yet taken, and the CRC32C of each 4 KiB of them if known.
    apart: Option<(&'a Bytes, Vec<u32>)>,
    at: usize,
    elided: bool,
}

impl<'a> Reader<'a> {
    pub fn new(from: &'a [u8]) -> Reader<'a> {
        Reader { from, shared: None, apart: None, at: 0, elided: false }
    }
    pub fn shared(from: &'a Bytes) -> Reader<'a> {
        Reader { shared: Some(from), ..Reader::new(from) }
    }
    /// `data` follows `from`: the contents that the packet ends with.
    pub fn apart(from: &'a Bytes, data: &'a Bytes, crcs: Vec<u32>) -> Reader<'a> {
        Reader { apart: Some((data, crcs)).filter(|(d, _)| !d.is_empty()), ..Reader::shared(from) }
    }
    /// Bytes that follow, not in `all`.
    pub fn bytes_apart(&self) -> usize {
        self.apart.as_ref().map_or(0, |(d, _)| d.len())
    }
    pub fn offset(&self) -> usize {
        self.at
    }
    pub fn left(&self) -> usize {
        self.from.len() - self.at
    }
    /// The next byte, which stays.
    pub fn peek(&self) -> Option<u8> {
        self.from.get(self.at).copied()
    }
    /// The whole packet.
    pub fn all(&self) -> &'a [u8] {
        self.from
    }
    pub fn mark_elided(&mut self) {
        self.elided = true;
    }
    pub fn slice(&mut self, need: usize) -> Result<&'a [u8], DecodeError> {
        if need > self.left() {
            return Err(DecodeError::Truncated { offset: self.at, need, left: self.left() });
        }
        let slice = &self.from[self.at..self.at + need];
        self.at += need;
        Ok(slice)
    }
    /// As `slice`, to be kept: shares the packet's memory if it can.
    pub fn contents(&mut self, need: usize) -> Result<Payload, DecodeError> {
        let left = self.left();
        if let Some((data, crcs)) = self.apart.take_if(|(d, _)| left == 0 && d.len() == need) {
            return Ok(Summed::new(data.clone(), crcs).map_or_else(Payload::Bytes, Payload::Summed));
        }
        Ok(Payload::Bytes(self.shared_bytes(need)?))
    }
    /// Bytes to be kept: shares the packet's memory if it can.
    pub fn shared_bytes(&mut self, need: usize) -> Result<Bytes, DecodeError> {
        let start = self.at;
        let slice = self.slice(need)?;
        Ok(self.shared.map_or_else(|| Bytes::copy_from_slice(slice), |all| all.slice(start..start + need)))
    }
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let mut array = [0; N];
        array.copy_from_slice(self.slice(N)?);
        Ok(array)
    }
    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(self.array::<1>()?[0])
    }
    /// Bytes that this version does not use.
    pub fn zeros(&mut self, count: usize) -> Result<(), DecodeError> {
        let offset = self.at;
        match self.slice(count)?.iter().enumerate().find(|&(_, &value)| value != 0) {
            Some((i, &value)) => Err(DecodeError::Reserved { offset: offset + i, value }),
            None => Ok(()),
        }
    }
    /// Nothing may follow, and the header's flag must match whether there are contents without bytes.
    pub fn end(&self, elided: bool) -> Result<(), DecodeError> {
        let left = self.left() + self.bytes_apart();
        if left != 0 {
            return Err(DecodeError::Trailing { offset: self.at, left });
        }
        if self.elided != elided {
            return Err(DecodeError::BadFlags { flags: u8::from(elided) });
        }
        Ok(())
    }
    /// A list's length, believed only if that many of its shortest elements can be in what is left.
    pub fn count(&mut self, what: &'static str, limit: u32, bytes_min: usize) -> Result<usize, DecodeError> {
        let offset = self.at;
        let count = u32::get(self)?;
        if count > limit {
            return Err(DecodeError::TooMany { what, count, limit, offset });
        }
        if count as usize * bytes_min > self.left() {
            return Err(DecodeError::CountBeyondInput { what, count, left: self.left(), offset });
        }
        Ok(count as usize)
    }
}

/// A value with one encoding.
pub(crate) trait Wire: Sized {
    fn put(&self, w: &mut Writer<'_>);
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError>;
}

/// A value that begins with a byte of these.
pub(crate) trait Kinds {
    const KINDS: &'static [u8];
}

/// A value of which lists are sent.
pub(crate) trait Element: Wire {
    const WHAT: &'static str;
    /// Most in one list.
    const LIMIT: u32;
    /// Bytes of the shortest.
    const BYTES_MIN: usize;
}

macro_rules! wire_integers {
    ($($t:ty),*) => {$(
        impl Wire for $t {
            fn put(&self, w: &mut Writer<'_>) {
                w.bytes(&self.to_be_bytes());
            }
            fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
                Ok(<$t>::from_be_bytes(r.array()?))
            }
        }
    )*};
}
wire_integers!(u16, u32, u64, u128);

macro_rules! wire_newtypes {
    ($($t:ident),*) => {$(
        impl Wire for $t {
            fn put(&self, w: &mut Writer<'_>) {
                self.0.put(w);
            }
            fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
                Ok($t(Wire::get(r)?))
            }
        }
    )*};
}
wire_newtypes!(DriveId, RackId, NodeId, SsdId, VssdId, SetId, VolumeId, Epoch, Incarnation, Timestamp, Time, Span);

/// `wire_struct!(Type { fields in the order of the wire })`
macro_rules! wire_struct {
    ($t:ty { $($f:ident),* $(,)? }) => {
        impl $crate::codec::Wire for $t {
            fn put(&self, w: &mut $crate::codec::Writer<'_>) {
                $($crate::codec::Wire::put(&self.$f, w);)*
            }
            fn get(r: &mut $crate::codec::Reader<'_>) -> Result<Self, $crate::error::DecodeError> {
                $(let $f = $crate::codec::Wire::get(r)?;)*
                Ok(Self { $($f),* })
            }
        }
    };
}
pub(crate) use wire_struct;

/// `wire_enum!(Type, "what", { kind byte => Variant { fields } or Variant(value) or Variant })`
macro_rules! wire_enum {
    ($t:ty, $what:literal, { $($kind:literal => $v:ident $({ $($f:ident),* $(,)? })? $(($x:ident))?),* $(,)? }) => {
        impl $crate::codec::Wire for $t {
            fn put(&self, w: &mut $crate::codec::Writer<'_>) {
                match self {
                    $(Self::$v $({ $($f),* })? $(($x))? => {
                        w.u8($kind);
                        $($($crate::codec::Wire::put($f, w);)*)?
                        $($crate::codec::Wire::put($x, w);)?
                    })*
                }
            }
            fn get(r: &mut $crate::codec::Reader<'_>) -> Result<Self, $crate::error::DecodeError> {
                let offset = r.offset();
                match r.u8()? {
                    $($kind => {
                        $($(let $f = $crate::codec::Wire::get(r)?;)*)?
                        $(let $x = $crate::codec::Wire::get(r)?;)?
                        Ok(Self::$v $({ $($f),* })? $(($x))?)
                    })*
                    kind => Err($crate::error::DecodeError::UnknownKind { what: $what, kind, offset }),
                }
            }
        }
        impl $crate::codec::Kinds for $t {
            const KINDS: &'static [u8] = &[$($kind),*];
        }
    };
}
pub(crate) use wire_enum;

/// `wire_groups!(Type, "what", [Variant(Enum)], { as for wire_enum })`: the enums' kinds and those of the type's own variants
/// share the first byte, so no two are the same.
macro_rules! wire_groups {
    (
        $t:ty, $what:literal, [$($group:ident($inner:ty)),* $(,)?],
        { $($kind:literal => $v:ident $({ $($f:ident),* $(,)? })?),* $(,)? }
    ) => {
        impl $crate::codec::Wire for $t {
            fn put(&self, w: &mut $crate::codec::Writer<'_>) {
                match self {
                    $(Self::$group(inner) => $crate::codec::Wire::put(inner, w),)*
                    $(Self::$v $({ $($f),* })? => {
                        w.u8($kind);
                        $($($crate::codec::Wire::put($f, w);)*)?
                    })*
                }
            }
            fn get(r: &mut $crate::codec::Reader<'_>) -> Result<Self, $crate::error::DecodeError> {
                match r.peek() {
                    $(Some(kind) if <$inner as $crate::codec::Kinds>::KINDS.contains(&kind) => {
                        return Ok(Self::$group($crate::codec::Wire::get(r)?));
                    })*
                    _ => {}
                }
                let offset = r.offset();
                match r.u8()? {
                    $($kind => {
                        $($(let $f = $crate::codec::Wire::get(r)?;)*)?
                        Ok(Self::$v $({ $($f),* })?)
                    })*
                    kind => Err($crate::error::DecodeError::UnknownKind { what: $what, kind, offset }),
                }
            }
        }
        const _: () = $crate::codec::assert_distinct(
            &[$(<$inner as $crate::codec::Kinds>::KINDS,)* &[$($kind),*]],
        );
    };
}
pub(crate) use wire_groups;

/// No kind is in two of the lists.
pub(crate) const fn assert_distinct(lists: &[&[u8]]) {
    let mut seen = [false; 256];
    let mut i = 0;
    while i < lists.len() {
        let mut k = 0;
        while k < lists[i].len() {
            assert!(!seen[lists[i][k] as usize], "a kind stands for two variants");
            seen[lists[i][k] as usize] = true;
            k += 1;
        }
        i += 1;
    }
}

/// `wire_list!(Element, "elements", limit, bytes of the shortest)`
macro_rules! wire_list {
    ($t:ty, $what:literal, $limit:expr, $min:literal) => {
        impl $crate::codec::Element for $t {
            const WHAT: &'static str = $what;
            const LIMIT: u32 = $limit;
            const BYTES_MIN: usize = $min;
        }
    };
}
pub(crate) use wire_list;

impl Wire for u8 {
    fn put(&self, w: &mut Writer<'_>) {
        w.u8(*self);
    }
    fn get(r: &mut Reader<'_>) -> Result<u8, DecodeError> {
        r.u8()
    }
}
impl Wire for bool {
    fn put(&self, w: &mut Writer<'_>) {
        w.u8(u8::from(*self));
    }
    fn get(r: &mut Reader<'_>) -> Result<bool, DecodeError> {
        let offset = r.offset();
        match r.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(DecodeError::BadBool { value, offset }),
        }
    }
}

impl Wire for () {
    fn put(&self, _: &mut Writer<'_>) {}
    fn get(_: &mut Reader<'_>) -> Result<(), DecodeError> {
        Ok(())
    }
}

wire_struct!(BlockAddr { volume, block });

impl<A: Wire, B: Wire> Wire for (A, B) {
    fn put(&self, w: &mut Writer<'_>) {
        self.0.put(w);
        self.1.put(w);
    }
    fn get(r: &mut Reader<'_>) -> Result<(A, B), DecodeError> {
        Ok((A::get(r)?, B::get(r)?))
    }
}

impl<A: Wire, B: Wire, C: Wire> Wire for (A, B, C) {
    fn put(&self, w: &mut Writer<'_>) {
        self.0.put(w);
        self.1.put(w);
        self.2.put(w);
    }
    fn get(r: &mut Reader<'_>) -> Result<(A, B, C), DecodeError> {
        Ok((A::get(r)?, B::get(r)?, C::get(r)?))
    }
}

impl<T: Wire> Wire for Box<T> {
    fn put(&self, w: &mut Writer<'_>) {
        T::put(self, w);
    }
    fn get(r: &mut Reader<'_>) -> Result<Box<T>, DecodeError> {
        Ok(Box::new(T::get(r)?))
    }
}

impl<T: Wire> Wire for Arc<T> {
    fn put(&self, w: &mut Writer<'_>) {
        T::put(self, w);
    }
    fn get(r: &mut Reader<'_>) -> Result<Arc<T>, DecodeError> {
        Ok(Arc::new(T::get(r)?))
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, w: &mut Writer<'_>) {
        self.is_some().put(w);
        if let Some(v) = self {
            v.put(w);
        }
    }
    fn get(r: &mut Reader<'_>) -> Result<Option<T>, DecodeError> {
        Ok(if bool::get(r)? { Some(T::get(r)?) } else { None })
    }
}

/// One byte, 1 for success; then the value or the error.
impl<T: Wire, E: Wire> Wire for Result<T, E> {
    fn put(&self, w: &mut Writer<'_>) {
        self.is_ok().put(w);
        match self {
            Ok(v) => v.put(w),
            Err(e) => e.put(w),
        }
    }
    fn get(r: &mut Reader<'_>) -> Result<Result<T, E>, DecodeError> {
        Ok(if bool::get(r)? { Ok(T::get(r)?) } else { Err(E::get(r)?) })
    }
}

/// Count as four bytes, then the elements.
impl<T: Element> Wire for Vec<T> {
    fn put(&self, w: &mut Writer<'_>) {
        put_list(self, w);
    }
    fn get(r: &mut Reader<'_>) -> Result<Vec<T>, DecodeError> {
        let count = r.count(T::WHAT, T::LIMIT, T::BYTES_MIN)?;
        let mut list = Vec::with_capacity(count);
        for _ in 0..count {
            list.push(T::get(r)?);
        }
        Ok(list)
    }
}

impl<T: Element> Wire for Arc<[T]> {
    fn put(&self, w: &mut Writer<'_>) {
        put_list(self, w);
    }
    fn get(r: &mut Reader<'_>) -> Result<Arc<[T]>, DecodeError> {
        Ok(Vec::get(r)?.into())
    }
}

impl<T: Element> Wire for Box<[T]> {
    fn put(&self, w: &mut Writer<'_>) {
        put_list(self, w);
    }
    fn get(r: &mut Reader<'_>) -> Result<Box<[T]>, DecodeError> {
        Ok(Vec::get(r)?.into_boxed_slice())
    }
}

fn put_list<T: Element>(list: &[T], w: &mut Writer<'_>) {
    if w.count(T::WHAT, list.len(), T::LIMIT) {
        list.iter().for_each(|v| v.put(w));
    }
}

/// Count of bytes as four bytes, then UTF-8.
impl Wire for Box<str> {
    fn put(&self, w: &mut Writer<'_>) {
        if w.count("bytes of text", self.len(), TEXT_MAX) {
            w.bytes(self.as_bytes());
        }
    }
    fn get(r: &mut Reader<'_>) -> Result<Box<str>, DecodeError> {
        let len = r.count("bytes of text", TEXT_MAX, 1)?;
        let offset = r.offset();
        match std::str::from_utf8(r.slice(len)?) {
            Ok(text) => Ok(text.into()),
            Err(e) => Err(DecodeError::BadText { len, valid: e.valid_up_to(), offset }),
        }
    }
}
