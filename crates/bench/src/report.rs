//! Tables for people, JSON for programs.

use comfy_table::{ContentArrangement, Table, presets};
use serde_json::{Map, Value, json};

/// Result of an experiment.
#[derive(Debug, Default)]
pub struct Report {
    /// The experiment in one line, and the paper's result.
    pub title: String,
    pub paper: String,
    pub columns: Vec<String>,
    pub rows: Vec<Vec<Value>>,
    pub bars: Vec<Bar>,
    /// Remarks on the measurement.
    pub notes: Vec<String>,
}

/// A figure and its bar.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    pub name: String,
    pub value: f64,
    pub limit: f64,
    /// Whether the value must not be below the limit, or not above it.
    pub at_least: bool,
}

impl Bar {
    pub fn at_least(name: impl Into<String>, value: f64, limit: f64) -> Bar {
        Bar { name: name.into(), value, limit, at_least: true }
    }
    pub fn at_most(name: impl Into<String>, value: f64, limit: f64) -> Bar {
        Bar { name: name.into(), value, limit, at_least: false }
    }
    pub fn holds(&self) -> bool {
        if self.at_least { self.value >= self.limit } else { self.value <= self.limit }
    }
}

impl Report {
    pub fn new(title: impl Into<String>, paper: impl Into<String>, columns: &[&str]) -> Report {
        let columns = columns.iter().map(|c| (*c).to_string()).collect();
        Report { title: title.into(), paper: paper.into(), columns, ..Report::default() }
    }
    pub fn row(&mut self, values: impl IntoIterator<Item = Value>) {
        self.rows.push(values.into_iter().collect());
    }
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    pub fn to_json(&self) -> Value {
        let object = |r: &Vec<Value>| Value::Object(self.columns.iter().cloned().zip(r.iter().cloned()).collect());
        let bar = |b: &Bar| {
            let rule = if b.at_least { "at least" } else { "at most" };
            json!({"name": b.name, "value": b.value, "rule": rule, "limit": b.limit, "holds": b.holds()})
        };
        let mut all = Map::new();
        all.insert("experiment".into(), self.title.clone().into());
        all.insert("paper".into(), self.paper.clone().into());
        all.insert("rows".into(), self.rows.iter().map(object).collect());
        all.insert("bars".into(), self.bars.iter().map(bar).collect());
        all.insert("notes".into(), self.notes.clone().into());
        Value::Object(all)
    }

    pub fn print(&self) {
        println!("{}\n    paper: {}", self.title, self.paper);
        let mut table = Table::new();
        table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(&self.columns);
        for r in &self.rows {
            table.add_row(r.iter().map(cell));
        }
        println!("{table}");
        for b in &self.bars {
            let (rule, missed) = (if b.at_least { "≥" } else { "≤" }, if b.holds() { "" } else { "  MISSED" });
            println!("    {}: {} (bar {rule} {}){missed}", b.name, number(b.value), number(b.limit));
        }
        self.notes.iter().for_each(|n| println!("    {n}"));
        println!();
    }
}

fn number(x: f64) -> String {
    match x.abs() {
        a if a == 0.0 || a >= 1000.0 => format!("{x:.0}"),
        a if a >= 10.0 => format!("{x:.1}"),
        _ => format!("{x:.3}"),
    }
}

fn cell(v: &Value) -> String {
    match v {
        Value::String(s) => s.clone(),
        Value::Number(n) if n.is_f64() => number(n.as_f64().unwrap_or(0.0)),
        v => v.to_string(),
    }
}
