//! Redis's patterns of keys: `*`, `?`, `[a-z]`, `[^a]`, `\` before a character that means itself.

/// Whether the whole text matches. Takes time in proportion to the product of both lengths at most.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // Behind the last star, and where the text that it does not take begins.
    let mut star = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                p += 1;
                star = Some((p, t));
                continue;
            }
            Some(_) => {
                let (one, len) = element(&pattern[p..], text[t]);
                if one {
                    (p, t) = (p + len, t + 1);
                    continue;
                }
            }
            None => {}
        }
        let Some((behind, from)) = star else { return false };
        (p, t) = (behind, from + 1);
        star = Some((behind, t));
    }
    pattern[p..].iter().all(|b| *b == b'*')
}

/// Whether a pattern's first element, which is no star, matches the byte; and its length.
fn element(pattern: &[u8], byte: u8) -> (bool, usize) {
    match pattern {
        [b'?', ..] => (true, 1),
        [b'\\', c, ..] => (*c == byte, 2),
        [b'[', rest @ ..] => {
            let (found, len) = class(rest, byte);
            (found, len + 1)
        }
        [c, ..] => (*c == byte, 1),
        [] => (false, 0),
    }
}

/// A class behind its bracket. One that is not closed ends with the pattern.
fn class(all: &[u8], byte: u8) -> (bool, usize) {
    let inverted = all.first() == Some(&b'^');
    let mut at = usize::from(inverted);
    let mut found = false;
    loop {
        match &all[at..] {
            [] => break,
            [b'\\', c, ..] => {
                found |= *c == byte;
                at += 2;
            }
            [b']', ..] => {
                at += 1;
                break;
            }
            [a, b'-', b, ..] => {
                found |= (*a.min(b)..=*a.max(b)).contains(&byte);
                at += 3;
            }
            [c, ..] => {
                found |= *c == byte;
                at += 1;
            }
        }
    }
    (found != inverted, at)
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
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), wanted, "{pattern} {text}");
        }
        // A pattern that backtracks over every star would not return.
        assert!(!matches("a*".repeat(200).as_bytes(), "a".repeat(150).as_bytes()));
        assert!(!matches(format!("{}b", "a*".repeat(100)).as_bytes(), "a".repeat(1000).as_bytes()));
    }
}
