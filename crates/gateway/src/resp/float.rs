//! INCRBYFLOAT's sums. Redis adds in 80-bit floats and prints 17 decimals, so that 0.1 + 0.2 is 0.3. Here sums are exact
//! to 17 decimals where they fit into 128 bits, and 64-bit floats beyond.

const DECIMALS: i32 = 17;
const NOT_FLOAT: &str = "value is not a valid float";

/// The sum of two numbers, in the shortest decimal form without an exponent.
pub fn sum(a: &[u8], b: &[u8]) -> Result<String, &'static str> {
    let (x, y) = (parse(a)?, parse(b)?);
    if !(x + y).is_finite() {
        return Err("increment would produce NaN or Infinity");
    }
    let exact = fixed(a).zip(fixed(b)).and_then(|(a, b)| a.checked_add(b));
    Ok(exact.map_or_else(|| format!("{}", x + y), shown))
}

fn parse(text: &[u8]) -> Result<f64, &'static str> {
    let text = std::str::from_utf8(text).map_err(|_| NOT_FLOAT)?;
    text.parse().ok().filter(|x: &f64| !x.is_nan()).ok_or(NOT_FLOAT)
}

/// The number × 10¹⁷; digits beyond are cut off. `None`: it is too large, or not in decimal.
fn fixed(text: &[u8]) -> Option<i128> {
    let text = std::str::from_utf8(text).ok()?;
    let (digits, exponent) = match text.split_once(['e', 'E']) {
        Some((digits, e)) => (digits, e.parse::<i32>().ok().filter(|e| e.abs() < 1000)?),
        None => (text, 0),
    };
    let negative = digits.starts_with('-');
    let digits = digits.trim_start_matches(['-', '+']);
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    let mut value = 0i128;
    let keep = DECIMALS + exponent;
    let all = whole.bytes().chain(part.bytes());
    let last = i32::try_from(whole.len()).ok()? + keep;
    for (_, d) in (0..last).zip(all.chain(std::iter::repeat(b'0'))) {
        let d = (d as char).to_digit(10)?;
        value = value.checked_mul(10)?.checked_add(i128::from(d))?;
    }
    Some(if negative { -value } else { value })
}

fn shown(n: i128) -> String {
    let scale = 10i128.pow(DECIMALS as u32);
    let (whole, part) = (n.unsigned_abs() / scale.unsigned_abs(), n.unsigned_abs() % scale.unsigned_abs());
    let text = format!("{}{whole}.{part:017}", if n < 0 { "-" } else { "" });
    text.trim_end_matches('0').trim_end_matches('.').into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums() {
        for (a, b, wanted) in [
            ("0.1", "0.2", "0.3"),
            ("10.50", "0.1", "10.6"),
            ("10.6", "-5", "5.6"),
            ("5.0e3", "2.0e2", "5200"),
            ("0", "-1.5", "-1.5"),
            ("3", "1.000000000000000005", "4"),
            ("-0.5", "0.5", "0"),
            ("1e-17", "0", "0.00000000000000001"),
            ("1e25", "1", "10000000000000000000000000"),
            ("99999999999999999999", "1", "100000000000000000000"),
        ] {
            assert_eq!(sum(a.as_bytes(), b.as_bytes()).as_deref(), Ok(wanted), "{a} + {b}");
        }
        for (a, b) in [("x", "1"), ("1", ""), ("nan", "1"), ("1 ", "1"), ("1", "1,5")] {
            assert_eq!(sum(a.as_bytes(), b.as_bytes()), Err(NOT_FLOAT), "{a} + {b}");
        }
        for (a, b) in [("1", "inf"), ("1e308", "1e308"), ("inf", "-inf")] {
            assert!(sum(a.as_bytes(), b.as_bytes()).is_err(), "{a} + {b}");
        }
    }
}
