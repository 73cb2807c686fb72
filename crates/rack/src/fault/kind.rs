//! What kind of rack the plan of a seed is drawn for. PlanKind and seed name a plan.

use std::fmt;
use std::str::FromStr;

use crate::fault::plan::Plan;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlanKind {
    #[default]
    OneRack,
    /// Racks, switches and the links between them fail, too.
    TwoRacks,
    /// vSSDs move, servers are lost for long, drained and added.
    Moves,
    /// The vSSDs of a drive collect as a channel group.
    Groups,
}

/// No kind has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no kind of plan: one-rack, two-racks, moves or groups")]
pub struct UnknownKind(String);

impl PlanKind {
    pub const ALL: [PlanKind; 4] = [PlanKind::OneRack, PlanKind::TwoRacks, PlanKind::Moves, PlanKind::Groups];

    pub fn name(self) -> &'static str {
        match self {
            PlanKind::OneRack => "one-rack",
            PlanKind::TwoRacks => "two-racks",
            PlanKind::Moves => "moves",
            PlanKind::Groups => "groups",
        }
    }

    /// The plan of a seed.
    pub fn draw(self, seed: u64) -> Plan {
        match self {
            PlanKind::OneRack => Plan::draw(seed),
            PlanKind::TwoRacks => Plan::draw_two_racks(seed),
            PlanKind::Moves => Plan::draw_moving(seed),
            PlanKind::Groups => Plan::draw_grouped(seed),
        }
    }

    /// The kind whose plan of its seed this is; none if it was edited, or made smaller.
    pub fn of(plan: &Plan) -> Option<PlanKind> {
        let p = &plan.params;
        let kind = match (p.racks > 1, p.spare > 0, p.grouped) {
            (true, _, _) => PlanKind::TwoRacks,
            (_, true, _) => PlanKind::Moves,
            (_, _, true) => PlanKind::Groups,
            _ => PlanKind::OneRack,
        };
        (kind.draw(plan.seed) == *plan).then_some(kind)
    }
}

impl fmt::Display for PlanKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for PlanKind {
    type Err = UnknownKind;
    fn from_str(s: &str) -> Result<PlanKind, UnknownKind> {
        PlanKind::ALL.into_iter().find(|k| k.name() == s).ok_or_else(|| UnknownKind(s.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_and_kind_name_a_plan_and_one_that_was_changed_has_no_such_name() {
        for (kind, seed) in PlanKind::ALL.into_iter().flat_map(|k| (0..20).map(move |s| (k, s))) {
            let mut plan = kind.draw(seed);
            assert_eq!(PlanKind::of(&plan), Some(kind), "seed {seed}");
            assert_eq!(kind.name().parse(), Ok(kind));
            plan.faults.pop();
            assert_eq!(PlanKind::of(&plan), None);
        }
        assert_eq!("two_racks".parse::<PlanKind>(), Err(UnknownKind("two_racks".into())));
    }
}
