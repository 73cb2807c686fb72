//! Small durable records that lie in two copies: the drive's [table](crate::table), and the flash manager's record. A write goes
//! to the copy of the older generation, so that a power cut leaves the other one whole.

/// Contents of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Copy<T> {
    /// Never written.
    Blank,
    Damaged,
    Version(u16),
    Whole(Box<T>),
}

/// Why no copy counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// A program that knows this version has written one: the other one may be older.
    Version(u16),
    Damaged,
}

/// The newer of two copies, and whether both are of its generation. `None`: both are blank, or the first write of all was torn.
pub(crate) fn newest<T>(copies: [Copy<T>; 2], generation: impl Fn(&T) -> u64) -> Result<Option<(T, bool)>, Unread> {
    match copies {
        [Copy::Version(found), _] | [_, Copy::Version(found)] => Err(Unread::Version(found)),
        [Copy::Whole(a), Copy::Whole(b)] => {
            let (of_a, of_b) = (generation(&a), generation(&b));
            let first = (of_a >= of_b) != mutant!("flash.table.older-copy");
            Ok(Some((if first { *a } else { *b }, of_a == of_b)))
        }
        [Copy::Whole(t), _] | [_, Copy::Whole(t)] => Ok(Some((*t, false))),
        [Copy::Blank, _] | [_, Copy::Blank] => Ok(None),
        [Copy::Damaged, Copy::Damaged] if mutant!("flash.table.damaged-is-blank") => Ok(None),
        [Copy::Damaged, Copy::Damaged] => Err(Unread::Damaged),
    }
}
/// Where the copy of this generation lies, of copies that take `len` bytes each.
pub(crate) fn place(generation: u64, len: u64) -> u64 {
    generation % if mutant!("flash.table.in-place") { 1 } else { 2 } * len
}

/// Reads on in a copy.
pub(crate) struct In<'a>(pub(crate) &'a [u8]);

impl In<'_> {
    pub(crate) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }
    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|b| b[0])
    }
    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }
    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }
    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}
