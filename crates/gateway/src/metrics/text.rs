//! Prometheus text.

use std::fmt::Write;

/// `Content-Type` of [`render`]'s result.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows, from zero at the start of the process.
    Counter,
    Gauge,
}

/// One number of one metric. Samples of a metric stand together and agree in help and kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Unit last; a counter's ends in `_total`.
    pub name: &'static str,
    pub help: &'static str,
    pub kind: Kind,
    pub labels: Vec<(&'static str, String)>,
    pub value: f64,
}

/// Why samples cannot be rendered: a mistake in the program that made them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MetricError {
    #[error("{name:?} is not a metric name")]
    Name { name: &'static str },
    #[error("counter {name} does not end in _total")]
    CounterName { name: &'static str },
    #[error("{label:?} of {name} is not a label name")]
    Label { name: &'static str, label: &'static str },
    #[error("samples of {name} are not consecutive, or differ in help or kind")]
    Scattered { name: &'static str },
}

fn name_ok(name: &str, colon: bool) -> bool {
    let first = name.bytes().next().is_some_and(|c| c.is_ascii_alphabetic() || c == b'_');
    first && name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_' || (colon && c == b':'))
}

/// The samples as Prometheus reads them.
pub fn render(samples: &[Sample]) -> Result<String, MetricError> {
    let mut out = String::with_capacity(samples.len() * 80);
    let mut seen: Vec<&'static str> = Vec::new();
    for (i, s) in samples.iter().enumerate() {
        let head = i.checked_sub(1).map(|p| &samples[p]).filter(|p| p.name == s.name);
        match head {
            Some(p) if p.help == s.help && p.kind == s.kind => {}
            Some(_) => return Err(MetricError::Scattered { name: s.name }),
            None => {
                check_name(s)?;
                if seen.contains(&s.name) {
                    return Err(MetricError::Scattered { name: s.name });
                }
                seen.push(s.name);
                let kind = match s.kind {
                    Kind::Counter => "counter",
                    Kind::Gauge => "gauge",
                };
                let help = s.help.replace('\\', "\\\\").replace('\n', "\\n");
                let _ = writeln!(out, "# HELP {} {help}\n# TYPE {} {kind}", s.name, s.name);
            }
        }
        render_sample(&mut out, s)?;
    }
    Ok(out)
}

fn check_name(s: &Sample) -> Result<(), MetricError> {
    if !name_ok(s.name, true) {
        return Err(MetricError::Name { name: s.name });
    }
    if s.kind == Kind::Counter && !s.name.ends_with("_total") {
        return Err(MetricError::CounterName { name: s.name });
    }
    Ok(())
}

fn render_sample(out: &mut String, s: &Sample) -> Result<(), MetricError> {
    out.push_str(s.name);
    for (i, (label, value)) in s.labels.iter().enumerate() {
        if !name_ok(label, false) || label.starts_with("__") {
            return Err(MetricError::Label { name: s.name, label });
        }
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let _ = write!(out, "{}{label}=\"{value}\"", if i == 0 { '{' } else { ',' });
    }
    if !s.labels.is_empty() {
        out.push('}');
    }
    let _ = match s.value {
        v if v.is_nan() => writeln!(out, " NaN"),
        v if v.is_infinite() => writeln!(out, " {}Inf", if v > 0.0 { '+' } else { '-' }),
        v => writeln!(out, " {v}"),
    };
    Ok(())
}
