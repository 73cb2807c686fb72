//! Edits while a rack is stopped (protocol rule 30): keys of its configuration, drives, the metadata service's store,
//! and the required reaction of a start.

use rackweave_config::fixed::Changed;
use rackweave_config::racks::RacksSection;
use rackweave_config::{Isolation, Levels, RackConfig, Size};
use rackweave_core::Rng;
use rackweave_core::msg::control::DriveRefusal;
use rackweave_flash::Profile;
use rackweave_flash::table::TableError;
use rackweave_rack::build::{self, BuildError};
use rackweave_server::DriveProblem;
use serde::{Deserialize, Serialize};

use super::plan::Params;

/// An edit, undone at the end of the following start.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Edit {
    /// Keys that fix the layout of drives and sets.
    Servers {
        servers: u32,
    },
    Replicas {
        replicas: u32,
    },
    Racks {
        racks: u32,
    },
    Spare {
        spare: u32,
    },
    Isolation {
        level: Isolation,
    },
    /// Adds a second level before or after the existing one.
    Levels {
        level: Isolation,
        first: bool,
    },
    Size {
        mib: u64,
    },
    Channels {
        channels: u16,
    },
    /// Index of a built-in profile.
    Profile {
        profile: usize,
    },
    /// Keys that may change.
    MinCopies {
        copies: u32,
    },
    Lease {
        ms: u64,
    },
    CacheSlots {
        slots: u64,
    },
    Checkpoints {
        blocks: u32,
    },
    Unverified,
    /// Two drives are swapped.
    Swapped {
        a: u32,
        b: u32,
    },
    /// A copy of one drive replaces another.
    Doubled {
        from: u32,
        to: u32,
    },
    /// The contents of two drives are swapped, their ids are not.
    MixedUp {
        a: u32,
        b: u32,
    },
    /// A drive of another rack with the same configuration.
    Foreign {
        server: u32,
    },
    /// A drive as it was at an earlier edit.
    OlderDrive {
        server: u32,
    },
    /// The store as it was then.
    OlderStore,
    /// Bytes of one or both copies of a drive table change.
    Table {
        server: u32,
        both: bool,
    },
}

/// Why a node did not start, or a drive was not used.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error(transparent)]
    Start(#[from] BuildError),
    #[error(transparent)]
    Drive(#[from] DriveProblem),
    #[error("{0}")]
    Fixed(Changed),
}

/// Required reaction of a start to a drive.
#[derive(Clone, Copy)]
pub enum Wanted {
    /// It is used as if nothing had been edited.
    Taken,
    /// It is refused, with a reason that names the edit.
    Refused(fn(&DriveProblem) -> bool),
}

const OTHER_DRIVE: Wanted = Wanted::Refused(|p| matches!(p, DriveProblem::Refused(DriveRefusal::OtherDrive { .. })));
const LAYOUT: Wanted = Wanted::Refused(|p| {
    use TableError::{Entries, Made, Share};
    matches!(p, DriveProblem::Table(Made { .. } | Entries { .. } | Share { .. }))
});

impl Edit {
    /// Draws an edit for a rack with these parameters, and whether only the servers' configuration has it.
    pub fn draw(p: &Params, rng: &mut Rng) -> (Edit, bool) {
        use Isolation::{Channel, Die, None, Software};
        let servers = u64::from(p.servers);
        let a = rng.below(servers) as u32;
        let b = (a + 1 + rng.below(servers - 1) as u32) % p.servers;
        let kept = if p.grouped { Software } else { Channel };
        let level = *rng.pick(&[Channel, Die, Software, None].map(|l| if l == kept { Die } else { l }));
        let servers_only = rng.chance(0.5);
        let edit = match rng.below(28) {
            0 => Edit::Servers { servers: if rng.chance(0.5) { p.servers + 1 } else { p.servers - 1 } },
            1 => Edit::Replicas { replicas: if rng.chance(0.5) { p.copies + 1 } else { p.copies - 1 } },
            2 => Edit::Racks { racks: 2 },
            3 => Edit::Spare { spare: p.spare + 1 },
            4..7 => Edit::Isolation { level },
            7 => Edit::Levels { level, first: rng.chance(0.5) },
            8 => Edit::Size { mib: p.ssd_mib * 2 },
            9 => Edit::Channels { channels: *rng.pick(&[1, 3, 4, 8]) },
            10..12 => Edit::Profile { profile: rng.below(Profile::builtin_names().len() as u64) as usize },
            12 => Edit::MinCopies { copies: p.copies },
            13 => Edit::Lease { ms: rng.between(30, 300) },
            14 => Edit::CacheSlots { slots: rng.between(288, 1_200) },
            15 => Edit::Checkpoints { blocks: rng.between(1, 40) as u32 },
            // Contents without bytes are then written without a checksum, which never happens to a client's.
            16 if p.bytes => Edit::Unverified,
            16 => Edit::MinCopies { copies: p.copies },
            17..19 => Edit::Swapped { a, b },
            19 => Edit::Doubled { from: a, to: b },
            20 => Edit::MixedUp { a, b },
            21 => Edit::Foreign { server: a },
            22..24 => Edit::OlderDrive { server: a },
            24..26 => Edit::OlderStore,
            _ => Edit::Table { server: a, both: rng.chance(0.5) },
        };
        // The numbers of all nodes follow from these, so they cannot differ between hosts.
        (edit, servers_only && !matches!(edit, Edit::Servers { .. } | Edit::Racks { .. }))
    }

    /// The edited configuration, if the edit concerns keys.
    pub fn config(&self, kept: &RackConfig) -> Option<RackConfig> {
        let mut c = kept.clone();
        match *self {
            Edit::Servers { servers } => c.servers = servers,
            Edit::Replicas { replicas } => (c.replicas, c.min_copies) = (replicas, c.min_copies.min(replicas)),
            Edit::Racks { racks } => c.racks = RacksSection { count: racks, far_replicas: None },
            Edit::Spare { spare } => c.ssd.spare = Some(spare),
            Edit::Isolation { level } => c.ssd.isolation = Levels::One(level),
            Edit::Levels { level, first } => {
                let mut levels = vec![kept.ssd.isolation.all()[0], level];
                if first {
                    levels.reverse();
                }
                c.ssd.isolation = Levels::Several(levels);
            }
            Edit::Size { mib } => c.ssd.size = Size::mib(mib),
            Edit::Channels { channels } => c.ssd.channels = Some(channels),
            Edit::Profile { profile } => {
                let names = Profile::builtin_names();
                c.ssd.profile.clone_from(&names[profile % names.len()]);
            }
            Edit::MinCopies { copies } => c.min_copies = copies,
            Edit::Lease { ms } => c.lease.span_ms = ms,
            Edit::CacheSlots { slots } => c.cache_slots = slots,
            Edit::Checkpoints { blocks } => c.ssd.checkpoint_blocks = blocks,
            Edit::Unverified => c.ssd.verify = false,
            _ => return None,
        }
        Some(c)
    }

    /// Whether the edit changes the layout of drives or sets.
    pub fn is_of_layout(&self, kept: &RackConfig) -> bool {
        let Some(edited) = self.config(kept) else { return false };
        let made = |c: &RackConfig| {
            let profile = build::profile(c).ok()?;
            let sets = (c.servers, c.replicas, c.slots(), c.racks.count);
            Some((profile.geometry, c.ssd.profile.clone(), c.ssd.isolation.all().to_vec(), sets))
        };
        made(&edited) != made(kept)
    }

    /// Required reaction of a start to the server's drive, unless no node starts at all.
    pub fn wanted(&self, kept: &RackConfig, server: u32) -> Wanted {
        use TableError::{Damaged, Drive};
        let of = |hit: bool, wanted| if hit { wanted } else { Wanted::Taken };
        match *self {
            Edit::Swapped { a, b } => of(server == a || server == b, OTHER_DRIVE),
            Edit::Doubled { to, .. } => of(server == to, OTHER_DRIVE),
            // Drivers recognize it by its rack's id before the metadata service sees it. Its incarnations are another
            // service's.
            Edit::Foreign { server: s } => {
                use DriveRefusal::{OtherDrive, StoreOlder};
                let named =
                    |p: &DriveProblem| matches!(p, DriveProblem::Refused(OtherDrive { .. } | StoreOlder { .. }));
                of(server == s, Wanted::Refused(named))
            }
            Edit::MixedUp { a, b } => {
                let other = Wanted::Refused(|p| matches!(p, DriveProblem::Table(Drive { .. })));
                of(server == a || server == b, other)
            }
            Edit::OlderDrive { server: s } => {
                let older = |p: &DriveProblem| matches!(p, DriveProblem::Refused(DriveRefusal::DriveOlder { .. }));
                of(server == s, Wanted::Refused(older))
            }
            Edit::OlderStore => {
                Wanted::Refused(|p| matches!(p, DriveProblem::Refused(DriveRefusal::StoreOlder { .. })))
            }
            Edit::Table { server: s, both: true } => {
                of(server == s, Wanted::Refused(|p| matches!(p, DriveProblem::Table(Damaged))))
            }
            Edit::Table { both: false, .. } => Wanted::Taken,
            _ if self.is_of_layout(kept) => LAYOUT,
            _ => Wanted::Taken,
        }
    }
}
