//! Kinds of plans. A kind and a seed identify a plan.

use std::fmt;
use std::str::FromStr;

use crate::fault::directed;
use crate::fault::plan::Plan;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlanKind {
    #[default]
    OneRack,
    /// Racks, switches and the links between them also fail.
    TwoRacks,
    /// vSSDs move; servers are down for long, drained and added.
    Moves,
    /// The vSSDs of a drive collect as a channel group.
    Groups,
    /// Servers end with writes half done, and their clients too.
    HalfCrashes,
    /// Few blocks, much loss and short timeouts: writes change coordinator.
    FewBlocks,
    /// Servers reach only clients, which get no new views.
    Severed,
    /// Whole sets lose power.
    SetCuts,
    /// One copy of everything, full drives, many power cuts.
    SingleCopies,
    /// Clients choose the replica that reads.
    ChosenReplica,
    /// Two racks, each cut off from the other and from the metadata service.
    SeveredRacks,
    /// One rack is cut off, then the other loses power.
    LeftAlone,
    /// Two racks with duplicated and reordered messages.
    NoisyRacks,
    /// A drive is replaced and another damaged while the rack is stopped, and the third is slow.
    StandStill,
    /// All copies of each set but one are lost while the rack is stopped.
    LastCopies,
    /// Messages arrive late and duplicated across crashes of whole sets.
    LateMessages,
    /// Volumes of up to 8 TiB.
    Sparse,
    /// Volumes are created, grown and deleted.
    PassingVolumes,
    /// Parts of few blocks are written and trimmed.
    Ragged,
    /// The rack's files are edited between starts.
    Edits,
    /// Dies trade places all the time.
    Swaps,
    /// All of these, and nodes whose clocks restart.
    Wide,
}

/// No kind has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no kind of plan: {names}", names = PlanKind::ALL.map(PlanKind::name).join(", "))]
pub struct UnknownKind(String);

impl PlanKind {
    /// The general kinds; the others are directed at one situation.
    pub const GENERAL: [PlanKind; 4] = [PlanKind::OneRack, PlanKind::TwoRacks, PlanKind::Moves, PlanKind::Groups];
    pub const ALL: [PlanKind; 22] = [
        PlanKind::OneRack,
        PlanKind::TwoRacks,
        PlanKind::Moves,
        PlanKind::Groups,
        PlanKind::HalfCrashes,
        PlanKind::FewBlocks,
        PlanKind::Severed,
        PlanKind::SetCuts,
        PlanKind::SingleCopies,
        PlanKind::ChosenReplica,
        PlanKind::SeveredRacks,
        PlanKind::LeftAlone,
        PlanKind::NoisyRacks,
        PlanKind::StandStill,
        PlanKind::LastCopies,
        PlanKind::LateMessages,
        PlanKind::Sparse,
        PlanKind::PassingVolumes,
        PlanKind::Ragged,
        PlanKind::Edits,
        PlanKind::Swaps,
        PlanKind::Wide,
    ];

    pub fn name(self) -> &'static str {
        match self {
            PlanKind::OneRack => "one-rack",
            PlanKind::TwoRacks => "two-racks",
            PlanKind::Moves => "moves",
            PlanKind::Groups => "groups",
            PlanKind::HalfCrashes => "half-crashes",
            PlanKind::FewBlocks => "few-blocks",
            PlanKind::Severed => "severed",
            PlanKind::SetCuts => "set-cuts",
            PlanKind::SingleCopies => "single-copies",
            PlanKind::ChosenReplica => "chosen-replica",
            PlanKind::SeveredRacks => "severed-racks",
            PlanKind::LeftAlone => "left-alone",
            PlanKind::NoisyRacks => "noisy-racks",
            PlanKind::StandStill => "stand-still",
            PlanKind::LastCopies => "last-copies",
            PlanKind::LateMessages => "late-messages",
            PlanKind::Sparse => "sparse",
            PlanKind::PassingVolumes => "passing-volumes",
            PlanKind::Ragged => "ragged",
            PlanKind::Edits => "edits",
            PlanKind::Swaps => "swaps",
            PlanKind::Wide => "wide",
        }
    }

    /// The plan of a seed.
    pub fn draw(self, seed: u64) -> Plan {
        match self {
            PlanKind::OneRack => Plan::draw(seed),
            PlanKind::TwoRacks => Plan::draw_two_racks(seed),
            PlanKind::Moves => Plan::draw_moving(seed),
            PlanKind::Groups => Plan::draw_grouped(seed),
            PlanKind::HalfCrashes => directed::half_crashes(seed),
            PlanKind::FewBlocks => directed::few_blocks(seed),
            PlanKind::Severed => directed::severed(seed),
            PlanKind::SetCuts => directed::set_power_cuts(seed),
            PlanKind::SingleCopies => directed::single_copies(seed),
            PlanKind::ChosenReplica => directed::chosen_replica(seed),
            PlanKind::SeveredRacks => directed::severed_racks(seed),
            PlanKind::LeftAlone => directed::left_alone(seed),
            PlanKind::NoisyRacks => directed::noisy_racks(seed),
            PlanKind::StandStill => directed::stand_still(seed),
            PlanKind::LastCopies => directed::last_copies(seed),
            PlanKind::LateMessages => directed::late_messages(seed),
            PlanKind::Sparse => directed::sparse(seed),
            PlanKind::PassingVolumes => directed::passing_volumes(seed),
            PlanKind::Ragged => directed::ragged(seed),
            PlanKind::Edits => directed::edits(seed),
            PlanKind::Swaps => directed::swaps(seed),
            PlanKind::Wide => directed::wide(seed),
        }
    }

    /// The kind whose plan of its seed this is; `None` if it was edited or shrunk.
    pub fn of(plan: &Plan) -> Option<PlanKind> {
        let over = plan.params.transport.is_some();
        let draw = |kind: &PlanKind| {
            let drawn = kind.draw(plan.seed);
            if over { drawn.over_transport() } else { drawn }
        };
        PlanKind::ALL.into_iter().find(|kind| draw(kind) == *plan)
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
            assert_eq!(plan.seed, seed, "{kind}");
            // Two kinds may have a plan in common.
            assert_eq!(PlanKind::of(&plan).expect("has a name").draw(seed), plan, "{kind} {seed}");
            assert_eq!(kind.name().parse(), Ok(kind));
            plan.faults.pop();
            assert_eq!(PlanKind::of(&plan), None);
        }
        assert_eq!("two_racks".parse::<PlanKind>(), Err(UnknownKind("two_racks".into())));
    }
}
