//! Sizes with units.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A number of bytes, written in TOML as an integer or with a binary suffix: `"64M"`, `"16G"`, `"2T"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl Size {
    pub const fn gib(n: u64) -> Size {
        Size(n << 30)
    }
    pub const fn mib(n: u64) -> Size {
        Size(n << 20)
    }
    /// # Errors
    /// The text is not a number of bytes, or exceeds 2⁶⁴ − 1.
    pub fn parse(text: &str) -> Result<Size, SizeError> {
        let bad = || SizeError { text: text.into() };
        let t = text.trim();
        let digits = t.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let shift = match t[digits.len()..].to_ascii_uppercase().as_str() {
            "" | "B" => 0,
            "K" | "KIB" => 10,
            "M" | "MIB" => 20,
            "G" | "GIB" => 30,
            "T" | "TIB" => 40,
            _ => return Err(bad()),
        };
        let n: u64 = digits.parse().map_err(|_| bad())?;
        n.checked_mul(1 << shift).map(Size).ok_or_else(bad)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a size: a whole number of bytes, or a whole number followed by K, M, G or T")]
pub struct SizeError {
    pub text: Box<str>,
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, suffix) in [(40, "T"), (30, "G"), (20, "M"), (10, "K")] {
            if self.0 != 0 && self.0.is_multiple_of(1 << shift) {
                return write!(f, "{}{suffix}", self.0 >> shift);
            }
        }
        write!(f, "{}", self.0)
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Size, D::Error> {
        struct V;
        impl de::Visitor<'_> for V {
            type Value = Size;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a number of bytes or a string such as \"16G\"")
            }
            fn visit_u64<E: de::Error>(self, v: u64) -> Result<Size, E> {
                Ok(Size(v))
            }
            fn visit_i64<E: de::Error>(self, v: i64) -> Result<Size, E> {
                u64::try_from(v).map(Size).map_err(|_| E::custom(format!("{v} is negative; a size is 0 or more bytes")))
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<Size, E> {
                Size::parse(v).map_err(E::custom)
            }
        }
        d.deserialize_any(V)
    }
}
