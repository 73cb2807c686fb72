//! The latency distribution of each policy as a small SVG: rarity (one in 10, 100, 1,000 … requests took longer) over
//! latency, both axes logarithmic, with separate panels for reads and writes.

use std::fmt::Write as _;

use rackweave_core::Span;

use crate::report::Report;
use crate::stats::Latencies;

const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 320.0;
/// Around a panel: room for labels.
const LEFT: f64 = 92.0;
const TOP: f64 = 40.0;
const BETWEEN: f64 = 110.0;
const BOTTOM: f64 = 60.0;
/// Colours that colour-blind readers can distinguish (Okabe and Ito).
const COLOURS: [&str; 6] = ["#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];
/// Points of a curve within this number of pixels of the last one drawn are left out.
const STEP_MIN: f64 = 0.7;
/// Points further apart than this are joined by a step.
const GAP: f64 = 3.0;
/// With at most this number of decades, twos and fives are labelled as well.
const FEW_DECADES: i32 = 2;

/// Both panels of `report`.
pub fn svg(report: &Report) -> String {
    let named: Vec<_> = report.policies.iter().map(|p| (p.policy, &p.read, &p.write)).collect();
    curves(&report.trace, &named)
}

/// Reads and writes of each, by its name.
pub fn curves(title: &str, named: &[(&str, &Latencies, &Latencies)]) -> String {
    let (w, h) = (LEFT + 2.0 * WIDTH + BETWEEN + 20.0, TOP + HEIGHT + BOTTOM);
    let mut s = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w}\" height=\"{h}\" viewBox=\"0 0 {w} {h}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (i, op) in ["reads", "writes"].into_iter().enumerate() {
        let all = named.iter().map(|&(name, read, write)| (name, if i == 0 { read } else { write }));
        let curves: Vec<_> = all.filter(|(_, l)| l.count() > 0).collect();
        panel(&mut s, LEFT + i as f64 * (WIDTH + BETWEEN), op, title, &curves);
    }
    s.push_str("</svg>\n");
    s
}

/// Positions of latencies and rarities inside a panel.
struct Axes {
    x0: f64,
    low: i32,
    high: i32,
    nines: i32,
}

impl Axes {
    fn of(x0: f64, curves: &[(&str, &Latencies)]) -> Axes {
        let decade = |s: Span| s.as_micros_f64().max(1e-3).log10();
        let low = curves.iter().map(|(_, l)| decade(l.quantile(0.0)).floor() as i32).min().unwrap_or(1);
        let high = curves.iter().map(|(_, l)| decade(l.max()).ceil() as i32).max().unwrap_or(3).max(low + 1);
        let most = curves.iter().map(|(_, l)| l.count()).max().unwrap_or(10);
        Axes { x0, low, high, nines: ((most as f64).log10().ceil() as i32).clamp(1, 9) }
    }
    fn x(&self, us: f64) -> f64 {
        let part = (us.max(1e-3).log10() - f64::from(self.low)) / f64::from(self.high - self.low);
        self.x0 + part.clamp(0.0, 1.0) * WIDTH
    }
    /// `longer` is the fraction of the requests that took longer.
    fn y(&self, longer: f64) -> f64 {
        let part = -longer.max(1e-12).log10() / f64::from(self.nines);
        TOP + HEIGHT - part.clamp(0.0, 1.0) * HEIGHT
    }
}

// Writing to a string cannot fail: the results of `write!` below carry nothing.

fn panel(s: &mut String, x0: f64, op: &str, trace: &str, curves: &[(&str, &Latencies)]) {
    let axes = Axes::of(x0, curves);
    let _ = writeln!(s, "<text x=\"{x0}\" y=\"{}\" font-size=\"14\">{}: {op}</text>", TOP - 14.0, escaped(trace));
    grid(s, &axes);
    if curves.is_empty() {
        let _ = writeln!(s, "<text x=\"{}\" y=\"{}\">none measured</text>", x0 + 20.0, TOP + 30.0);
    }
    for (i, (name, l)) in curves.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let _ = writeln!(
            s,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\" points=\"{}\"/>",
            points(&axes, l)
        );
        let y = TOP + 16.0 + 16.0 * i as f64;
        let _ = writeln!(s, "<text x=\"{}\" y=\"{y}\" fill=\"{colour}\">{name}</text>", x0 + 8.0);
    }
}

fn grid(s: &mut String, a: &Axes) {
    let (bottom, right) = (TOP + HEIGHT, a.x0 + WIDTH);
    let few = a.high - a.low <= FEW_DECADES;
    for (d, m) in (a.low..=a.high).flat_map(|d| [(d, 1u32), (d, 2), (d, 5)]).filter(|&(d, m)| d < a.high || m == 1) {
        let us = 10f64.powi(d) * f64::from(m);
        let (x, colour) = (a.x(us), if m == 1 { "#ccc" } else { "#eee" });
        let _ = writeln!(s, "<path d=\"M{x:.1} {TOP}V{bottom}\" stroke=\"{colour}\"/>");
        if m == 1 || few {
            let (y, label) = (bottom + 18.0, time_label(Span((us * 1e3).round() as u64)));
            let _ = writeln!(s, "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{label}</text>");
        }
    }
    for n in 0..=a.nines {
        let y = a.y(10f64.powi(-n));
        let _ = writeln!(s, "<path d=\"M{} {y:.1}H{right}\" stroke=\"#ddd\"/>", a.x0);
        let label = match n {
            0 => "0%".into(),
            1 => "90%".into(),
            2 => "99%".into(),
            n => format!("99.{}%", "9".repeat(n as usize - 2)),
        };
        let _ = writeln!(s, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>", a.x0 - 6.0, y + 4.0);
    }
    let middle = a.x0 + WIDTH / 2.0;
    let _ = writeln!(s, "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">latency</text>", bottom + 38.0);
    let (x, y) = (a.x0 - 72.0, TOP + HEIGHT / 2.0);
    let turned = format!("transform=\"rotate(-90 {x} {y})\"");
    let _ = writeln!(s, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\" {turned}>answered within</text>");
}

fn time_label(s: Span) -> String {
    match s.0 {
        n if n < 1_000 => format!("{n} ns"),
        n if n < 1_000_000 => format!("{} µs", n / 1_000),
        n if n < 1_000_000_000 => format!("{} ms", n / 1_000_000),
        n => format!("{} s", n / 1_000_000_000),
    }
}

fn points(a: &Axes, l: &Latencies) -> String {
    let mut out = String::new();
    let start = a.x(l.quantile(0.0).as_micros_f64());
    let (mut x, mut y) = (start, a.y(1.0));
    let _ = write!(out, "{x:.1},{y:.1}");
    for (latency, longer) in l.tail() {
        // The curve ends at the rarity of one request.
        let rarity = longer.max(1.0 / l.count() as f64);
        let (nx, ny) = (a.x(latency.as_micros_f64()), a.y(rarity));
        if (nx - x).abs() + (ny - y).abs() >= STEP_MIN || longer == 0.0 {
            if nx - x > GAP {
                // Without a sample between them, no slope.
                let _ = write!(out, " {nx:.1},{y:.1}");
            }
            let _ = write!(out, " {nx:.1},{ny:.1}");
            (x, y) = (nx, ny);
        }
    }
    out
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
#[path = "svg_tests.rs"]
mod tests;
