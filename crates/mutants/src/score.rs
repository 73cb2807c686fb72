//! Mutants and the checks that caught them, and whether the score is sufficient.

use std::fmt;

use serde::Serialize;

use crate::registry::{Mutant, Verdict};
use crate::search::Search;
use crate::units::UnitTest;

/// Share of the mutants that are not equivalent which some check must notice, and which searches must.
const CAUGHT_MIN: f64 = 0.95;
const SEARCHED_MIN: f64 = 0.75;

#[derive(Debug, Serialize)]
pub struct Outcome {
    pub mutant: &'static Mutant,
    pub search: Search,
    pub unit: Option<UnitTest>,
    pub seconds: f64,
}

impl Outcome {
    fn caught(&self) -> bool {
        self.search.found.is_some() || self.unit.is_some()
    }
    fn caught_by(&self) -> String {
        let search = self.search.found.as_ref().map(|f| format!("{} {} ({})", f.kind, f.seed, f.check));
        let unit = self.unit.as_ref().map(|u| format!("{}: {} ({:?})", u.package, u.test, u.end));
        let all: Vec<String> = search.into_iter().chain(unit).collect();
        if !all.is_empty() {
            return all.join(", ");
        }
        match self.mutant.verdict {
            Verdict::Equivalent(_) => "nothing: equivalent".into(),
            Verdict::Open(_) => "nothing: open".into(),
            Verdict::Searched | Verdict::Tested => "NOTHING".into(),
        }
    }
}

#[derive(Debug, Serialize)]
pub struct Score {
    outcomes: Vec<Outcome>,
    equivalent: usize,
    caught: usize,
    by_search: usize,
}

impl Score {
    pub fn new(outcomes: Vec<Outcome>) -> Score {
        let real = || outcomes.iter().filter(|o| !matches!(o.mutant.verdict, Verdict::Equivalent(_)));
        let (caught, by_search) =
            (real().filter(|o| o.caught()).count(), real().filter(|o| o.search.found.is_some()).count());
        let equivalent = outcomes.len() - real().count();
        Score { equivalent, caught, by_search, outcomes }
    }

    fn share(&self, n: usize) -> f64 {
        let real = self.outcomes.len() - self.equivalent;
        if real == 0 { 1.0 } else { n as f64 / real as f64 }
    }

    /// Of all mutants the shares count. Of a part, each must be caught that is listed as caught; and no equivalent one is
    /// ever caught.
    pub fn passes(&self, complete: bool) -> bool {
        let wrong = |o: &&Outcome| match o.mutant.verdict {
            Verdict::Searched | Verdict::Tested => !o.caught() && !complete,
            Verdict::Equivalent(_) => o.caught(),
            Verdict::Open(_) => false,
        };
        let enough = self.share(self.caught) >= CAUGHT_MIN && self.share(self.by_search) >= SEARCHED_MIN;
        self.outcomes.iter().find(wrong).is_none() && (enough || !complete)
    }

    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("strings and numbers")
    }
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:44} {:8} {:>5} {:>9}  caught by", "mutant", "rule", "seeds", "reached")?;
        for o in &self.outcomes {
            let seeds = o.search.found.as_ref().map_or("-".into(), |f| f.seeds.to_string());
            writeln!(
                f,
                "{:44} {:8} {seeds:>5} {:>9}  {}",
                o.mutant.name,
                o.mutant.rule,
                o.search.reached,
                o.caught_by()
            )?;
        }
        write!(
            f,
            "{} mutants, {} equivalent; of the others {} caught ({:.1} %, at least {:.0}), {} by searches ({:.1} %, at least {:.0})",
            self.outcomes.len(),
            self.equivalent,
            self.caught,
            100.0 * self.share(self.caught),
            100.0 * CAUGHT_MIN,
            self.by_search,
            100.0 * self.share(self.by_search),
            100.0 * SEARCHED_MIN,
        )
    }
}

/// One mutant, as it is done.
pub fn progress(o: &Outcome) -> String {
    let seeds = o.search.found.as_ref().map_or(o.search.plans, |f| f.seeds);
    format!("{:44} {:6.1} s {seeds:>5} {}", o.mutant.name, o.seconds, o.caught_by())
}

/// One mutant of the list.
pub fn line(m: &Mutant) -> String {
    let (word, why) = match m.verdict {
        Verdict::Searched => ("; searched", ""),
        Verdict::Tested => ("; tested", ""),
        Verdict::Equivalent(why) => ("; equivalent: ", why),
        Verdict::Open(why) => ("; open: ", why),
    };
    format!("{:44} rule {:4} {}{word}{why}", m.name, m.rule, m.breaks)
}

/// The number of mutants of each outcome.
pub fn counts(mutants: &[&Mutant]) -> String {
    let of = |is: fn(&Verdict) -> bool| mutants.iter().filter(|m| is(&m.verdict)).count();
    let (searched, tested) = (of(|v| matches!(v, Verdict::Searched)), of(|v| matches!(v, Verdict::Tested)));
    let (equivalent, open) = (of(|v| matches!(v, Verdict::Equivalent(_))), of(|v| matches!(v, Verdict::Open(_))));
    format!("{} mutants: {searched} searched, {tested} tested, {equivalent} equivalent, {open} open", mutants.len())
}
