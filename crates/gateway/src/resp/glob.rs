//! Redis's patterns of keys: `*`, `?`, `[a-z]`, `[^a]`, `\` before a character that means itself.

use std::ops::RangeInclusive;

/// Longest pattern: twice the longest key, each of whose bytes may have a `\\` before it, and a class.
pub const PATTERN_MAX: usize = 4096;

#[derive(Clone, Debug)]
enum Element {
    Star,
    /// One byte of these.
    Byte([u64; 4]),
}

/// A pattern, read once for many texts.
#[derive(Clone, Debug)]
pub struct Glob(Vec<Element>);

impl Glob {
    pub fn new(mut pattern: &[u8]) -> Glob {
        let mut all = Vec::new();
        while let [first, rest @ ..] = pattern {
            let mut set = [0; 4];
            let len = match (first, rest) {
                (b'*', _) => {
                    all.push(Element::Star);
                    pattern = rest;
                    continue;
                }
                (b'?', _) => {
                    set = [u64::MAX; 4];
                    1
                }
                (b'\\', [c, ..]) => {
                    add(&mut set, *c..=*c);
                    2
                }
                (b'[', _) => 1 + class(rest, &mut set),
                (c, _) => {
                    add(&mut set, *c..=*c);
                    1
                }
            };
            all.push(Element::Byte(set));
            pattern = &pattern[len..];
        }
        Glob(all)
    }
    /// Whether the whole text matches. Takes time in proportion to the square of the text's length at most.
    pub fn matches(&self, text: &[u8]) -> bool {
        let (mut p, mut t) = (0, 0);
        // Behind the last star, and where the text that it does not take begins.
        let mut star = None;
        while t < text.len() {
            match self.0.get(p) {
                Some(Element::Star) => {
                    p += 1;
                    star = Some((p, t));
                    continue;
                }
                Some(Element::Byte(set)) if has(set, text[t]) => {
                    (p, t) = (p + 1, t + 1);
                    continue;
                }
                _ => {}
            }
            let Some((behind, from)) = star else { return false };
            (p, t) = (behind, from + 1);
            star = Some((behind, t));
        }
        self.0[p..].iter().all(|e| matches!(e, Element::Star))
    }
}

fn add(set: &mut [u64; 4], bytes: RangeInclusive<u8>) {
    bytes.for_each(|b| set[usize::from(b >> 6)] |= 1 << (b & 63));
}
fn has(set: &[u64; 4], b: u8) -> bool {
    set[usize::from(b >> 6)] & 1 << (b & 63) != 0
}

/// A class behind its bracket; its length. One that is not closed ends with the pattern.
fn class(all: &[u8], set: &mut [u64; 4]) -> usize {
    let inverted = all.first() == Some(&b'^');
    let mut at = usize::from(inverted);
    loop {
        match &all[at..] {
            [] => break,
            [b'\\', c, ..] => {
                add(set, *c..=*c);
                at += 2;
            }
            [b']', ..] => {
                at += 1;
                break;
            }
            [a, b'-', b, ..] => {
                add(set, *a.min(b)..=*a.max(b));
                at += 3;
            }
            [c, ..] => {
                add(set, *c..=*c);
                at += 1;
            }
        }
    }
    if inverted {
        set.iter_mut().for_each(|s| *s = !*s);
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_in_redis() {
        for (pattern, text, wanted) in [
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("h?llo", "hello", true),
            ("h*llo", "heeeello", true),
            ("h*llo*", "hllo", true),
            ("h[ae]llo", "hallo", true),
            ("h[ae]llo", "hillo", false),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            (r"h\*llo", "h*llo", true),
            (r"h\*llo", "hxllo", false),
            (r"[\]]", "]", true),
            ("[abc", "c", true),
            ("a*b*c", "a1b2b3c", true),
            ("a*b*c", "a1b2b3", false),
            ("user:*", "user:1", true),
        ] {
            assert_eq!(Glob::new(pattern.as_bytes()).matches(text.as_bytes()), wanted, "{pattern} {text}");
        }
        // A pattern that backtracks over every star would not return.
        assert!(!Glob::new("a*".repeat(200).as_bytes()).matches("a".repeat(150).as_bytes()));
        assert!(!Glob::new(format!("{}b", "*a".repeat(2000)).as_bytes()).matches("a".repeat(1019).as_bytes()));
    }
}
