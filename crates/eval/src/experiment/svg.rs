//! A figure's rows as bars, the paper's numbers as strokes; rows of one unit share a scale.

use std::fmt::Write as _;

use super::{Figure, Row, number};

const ROW: f64 = 18.0;
const TOP: f64 = 44.0;
const LABELS: f64 = 330.0;
const BARS: f64 = 420.0;
const OURS: &str = "#0072b2";
const MISSED: &str = "#d55e00";

pub(super) fn svg(f: &Figure) -> String {
    let (w, h) = (LABELS + BARS + 150.0, TOP + ROW * f.rows.len() as f64 + 20.0);
    let mut s = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w}\" height=\"{h}\" viewBox=\"0 0 {w} {h}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    // Writing to a string cannot fail.
    let _ = writeln!(s, "<text x=\"10\" y=\"18\" font-size=\"14\">{}</text>", escaped(f.about));
    let _ = writeln!(s, "<text x=\"10\" y=\"36\">bar: measured; stroke: the paper's; a scale for each unit</text>");
    for (i, r) in f.rows.iter().enumerate() {
        row(&mut s, r, TOP + ROW * i as f64, scale(f, r.unit));
    }
    s.push_str("</svg>\n");
    s
}

/// The greatest number of a unit.
fn scale(f: &Figure, unit: &str) -> f64 {
    let numbers = f.rows.iter().filter(|r| r.unit == unit).flat_map(|r| [Some(r.measured), r.paper, r.bar]);
    numbers.flatten().filter(|n| n.is_finite()).fold(f64::MIN_POSITIVE, f64::max)
}

fn row(s: &mut String, r: &Row, y: f64, most: f64) {
    let x = |n: f64| LABELS + BARS * (n / most).clamp(0.0, 1.0);
    let text = y + 13.0;
    let _ = writeln!(s, "<text x=\"{}\" y=\"{text}\" text-anchor=\"end\">{}</text>", LABELS - 8.0, escaped(&r.name));
    let colour = if r.missed() { MISSED } else { OURS };
    let _ = writeln!(
        s,
        "<rect x=\"{LABELS}\" y=\"{}\" width=\"{:.1}\" height=\"{}\" fill=\"{colour}\"/>",
        y + 3.0,
        x(r.measured) - LABELS,
        ROW - 6.0
    );
    if let Some(p) = r.paper {
        let _ = writeln!(s, "<path d=\"M{:.1} {y}v{ROW}\" stroke=\"black\" stroke-width=\"2\"/>", x(p));
    }
    let said = format!("{} {}", number(r.measured), r.unit);
    let _ = writeln!(s, "<text x=\"{}\" y=\"{text}\">{}</text>", LABELS + BARS + 8.0, escaped(&said));
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
