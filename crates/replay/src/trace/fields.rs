//! Fields of one text line, each fetched by name so that an error can name it.

use super::error::{Fault, FieldError};

/// The fields of one line, in order.
pub(super) struct Fields<'a> {
    rest: Option<&'a [u8]>,
    separator: Separator,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Separator {
    Comma,
    /// Any run of spaces and tabs.
    Blank,
}

impl<'a> Fields<'a> {
    pub fn new(line: &'a [u8], separator: Separator) -> Fields<'a> {
        let line = line.trim_ascii();
        Fields { rest: (!line.is_empty()).then_some(line), separator }
    }

    /// The next field, if there is one.
    pub fn next(&mut self) -> Option<&'a [u8]> {
        let rest = self.rest?;
        let blank = |c: &u8| c.is_ascii_whitespace();
        let cut = match self.separator {
            Separator::Comma => rest.iter().position(|&c| c == b','),
            Separator::Blank => rest.iter().position(blank),
        };
        let (field, after) = match cut {
            Some(i) => (&rest[..i], Some(&rest[i + 1..])),
            None => (rest, None),
        };
        self.rest = match self.separator {
            Separator::Comma => after,
            Separator::Blank => after.map(<[u8]>::trim_ascii_start).filter(|r| !r.is_empty()),
        };
        Some(field.trim_ascii())
    }

    /// The next field, which must be there and not be empty.
    pub fn text(&mut self, field: &'static str) -> Result<&'a [u8], FieldError> {
        self.next().filter(|v| !v.is_empty()).ok_or_else(|| FieldError::new(field, b"", Fault::Missing))
    }

    /// The next field as an unsigned decimal number.
    pub fn number(&mut self, field: &'static str) -> Result<u64, FieldError> {
        let text = self.text(field)?;
        number(text).ok_or_else(|| FieldError::new(field, text, Fault::NotANumber))
    }

    /// A number that must not be zero.
    pub fn positive(&mut self, field: &'static str) -> Result<u64, FieldError> {
        match self.number(field)? {
            0 => Err(FieldError::new(field, b"0", Fault::Zero)),
            n => Ok(n),
        }
    }

    /// `number × unit`, which must fit.
    pub fn scaled(&mut self, field: &'static str, unit: u64) -> Result<u64, FieldError> {
        scale(field, self.number(field)?, unit)
    }

    /// A number that fits 32 bits.
    pub fn number32(&mut self, field: &'static str) -> Result<u32, FieldError> {
        let n = self.number(field)?;
        u32::try_from(n).map_err(|_| FieldError::new(field, n.to_string().as_bytes(), Fault::TooLarge))
    }

    /// Checks that nothing follows.
    pub fn end(&mut self) -> Result<(), FieldError> {
        match self.next() {
            None => Ok(()),
            Some(v) => Err(FieldError::new("end of line", v, Fault::Surplus)),
        }
    }
}

/// `n × unit`, if it fits.
pub(super) fn scale(field: &'static str, n: u64, unit: u64) -> Result<u64, FieldError> {
    n.checked_mul(unit).ok_or_else(|| FieldError::new(field, n.to_string().as_bytes(), Fault::TooLarge))
}

/// `offset + len` must be representable.
pub(super) fn check_end(field: &'static str, offset: u64, len: u64) -> Result<(), FieldError> {
    match offset.checked_add(len) {
        Some(_) => Ok(()),
        None => Err(FieldError::new(field, len.to_string().as_bytes(), Fault::TooLarge)),
    }
}

/// Decimal digits only: no sign, no spaces.
pub(super) fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |n, &c| {
        if !c.is_ascii_digit() {
            return None;
        }
        n.checked_mul(10)?.checked_add(u64::from(c - b'0'))
    })
}
