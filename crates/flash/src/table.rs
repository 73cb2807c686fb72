//! The drive's durable table (protocol rule 30): what each of its virtual SSDs owns. It alone says at boot which dies,
//! which erase blocks and which part of the checkpoint area are whose; configuration is used once, to make it.
//!
//! Two copies lie at the head of the checkpoint area, [`copy_bytes`] each. A change is written into the older copy and
//! synced; then the other copy is brought up to date too, so that damage to one loses nothing. The whole copy with the
//! greater generation counts. `docs/format.md` draws the bytes.

use rackweave_core::msg::control::{DriveTable, SlotTable};
use rackweave_core::{DriveId, Incarnation, SetId, VssdId};

use crate::drive::copies::{self, In, Unread};
use crate::geometry::Geometry;
use crate::isolation::Isolation;
use crate::oob::{self, Owner};
use crate::profile::Profile;
use crate::ssd::Share;

const MAGIC: [u8; 8] = *b"RWTABLE\n";
/// Version of the table's format.
pub const VERSION: u16 = 1;
/// Version of a drive whose dies were swapped: the table has their homes too.
pub const VERSION_SWAPPED: u16 = 2;
/// The same with the wear of each die when the last swap began.
pub const VERSION_LEVELED: u16 = 3;
/// Version of a table with joined entries. The version that it would have without them is at [`VERSION_OF_REST_AT`].
pub const VERSION_JOINED: u16 = 4;
const VERSION_OF_REST_AT: usize = 80;
/// Most entries: indices are below it.
pub const ENTRIES_MAX: usize = 64;
/// Soft-planes that a die may be divided into: bounds the units of a table.
const SOFT_PLANES_MAX: u32 = 16;
/// Parts that the checkpoint area of an entry may consist of, on average.
const EXTENTS_PER_ENTRY: u32 = 4;
const HEAD: usize = 128;
const CRC_AT: usize = 20;
const ENTRY_HEAD: usize = 32;
const UNIT: usize = 4;
const EXTENT: usize = 16;
const GROUP_HEAD: usize = 4;
const STRIDE: u64 = 4096;
/// In place of a group's number: none.
const NO_GROUP: u8 = u8::MAX;

/// Parameters of the device's creation, so that an error can name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made {
    /// Name of the profile, filled up with zeroes.
    pub profile: [u8; 16],
    /// Bytes of flash it was scaled to.
    pub bytes: u64,
}

impl Made {
    /// Of a longer name the first 16 bytes are kept.
    pub fn new(profile: &str, bytes: u64) -> Made {
        let mut name = [0; 16];
        name.iter_mut().zip(profile.bytes()).for_each(|(to, b)| *to = b);
        Made { profile: name, bytes }
    }
    /// Of a drive of the page layer.
    pub fn of(p: &Profile) -> Made {
        Made::new(&p.name, p.geometry.capacity())
    }
}

impl std::fmt::Display for Made {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = self.profile.split(|&b| b == 0).next().unwrap_or_default();
        write!(f, "{} scaled to {} bytes", String::from_utf8_lossy(name), self.bytes)
    }
}

/// State of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EntryState {
    InUse = 1,
    Free = 2,
    /// Its vSSD was given back. Data of its generation is not read; it is being erased.
    Clearing = 3,
}

/// The layer that lays out the contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    Page = 1,
    Log = 2,
}

/// A die, or a soft-plane of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    pub die: u16,
    /// Below `soft_planes`.
    pub soft_plane: u8,
    /// Soft-planes that the die is divided into; 1: the unit is the whole die.
    pub soft_planes: u8,
}

impl Unit {
    pub fn die(die: u32) -> Unit {
        Unit::of(die, 1)
    }
    /// By its number of all the drive's, where dies have this number of soft-planes.
    pub(crate) fn of(number: u32, soft_planes: u32) -> Unit {
        let (die, soft_plane) = ((number / soft_planes) as u16, (number % soft_planes) as u8);
        Unit { die, soft_plane, soft_planes: soft_planes as u8 }
    }
    pub(crate) fn number(&self) -> u32 {
        u32::from(self.die) * u32::from(self.soft_planes) + u32::from(self.soft_plane)
    }
    /// Whether a block of the die is one of it.
    pub(crate) fn has(&self, die: u32, block: u32, blocks_per_die: u32) -> bool {
        let each = blocks_per_die / u32::from(self.soft_planes.max(1));
        u32::from(self.die) == die && block / each.max(1) == u32::from(self.soft_plane)
    }
    /// The drive has it, whole: with soft-planes of equal size.
    fn is_on(&self, g: &Geometry) -> bool {
        let divides = self.soft_planes > 0 && g.blocks_per_die().is_multiple_of(u32::from(self.soft_planes));
        u32::from(self.die) < g.dies().min(oob::DIE_MAX + 1) && divides && self.soft_plane < self.soft_planes
    }
}

/// A part of the checkpoint area, in bytes from its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub at: u64,
    pub len: u64,
}

/// One vSSD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub index: u8,
    pub generation: u16,
    pub state: EntryState,
    pub kind: Kind,
    pub isolation: Isolation,
    /// Place of its channel group among [`Table::groups`].
    pub group: Option<u8>,
    /// Index of the entry whose vSSD has this one's units too ([`Table::run`]).
    pub joined: Option<u8>,
    pub vssd: VssdId,
    pub set: SetId,
    /// In the order in which its erase blocks are numbered.
    pub units: Vec<Unit>,
    pub extents: Vec<Extent>,
}

impl Entry {
    pub fn owner(&self) -> Owner {
        Owner { index: self.index, generation: self.generation }
    }
}

/// Channels that vSSDs share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub channels: u16,
    /// In the order in which they are given out.
    pub dies: Vec<u16>,
}

/// The drive's table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Grows by one with every write.
    pub generation: u64,
    pub drive: DriveId,
    pub made: Made,
    pub channels: u16,
    pub dies_per_channel: u16,
    pub blocks_per_die: u32,
    /// The greatest incarnation that the metadata service has given to a server with this drive; 0: none yet.
    pub incarnation: u64,
    /// By index.
    pub entries: Vec<Entry>,
    pub groups: Vec<Group>,
    /// Physical die on which each logical die belongs; empty while no dies of the drive were ever swapped. Where it is not, erase
    /// blocks may lie on other dies than their addresses name.
    pub homes: Vec<u16>,
    /// Erases of each physical die when the last swap began, from which on rates of wear count; empty where `homes` is.
    pub cleared: Vec<u64>,
}

/// Why a drive's table makes the drive unusable. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    #[error("neither copy of the drive's table is whole: the owners of its blocks are unknown. Replace the drive")]
    Damaged,
    #[error(
        "the drive has no table, but its erase block {block} holds data: it was made by an earlier version (run `rackweave \
         convert`), or the table was lost (replace the drive)"
    )]
    Missing { block: u32 },
    #[error(
        "the drive's table is of version {found}, this program reads versions {VERSION} to \
         {VERSION_JOINED}"
    )]
    Version { found: u16 },
    #[error("the table is of drive {found}, but lies on drive {wanted}: put each drive's own file in its place")]
    Drive { found: DriveId, wanted: DriveId },
    #[error("the drive was made as {found}; it cannot be used as {wanted}: set ssd.profile and ssd.size back")]
    Made { found: Made, wanted: Made },
    #[error(
        "the drive was made with room for {found} vSSDs, {wanted} are configured: set replicas, ssd.spare, \
         ssd.isolation, ssd.own_channels, ssd.own_dies, kv.channels and kv.own_channels back"
    )]
    Entries { found: usize, wanted: usize },
    #[error(
        "vSSD {index} of the drive was made with {found}, {wanted} are configured: set ssd.isolation, ssd.spare, \
         ssd.channels, ssd.own_channels, ssd.own_dies, kv.channels and kv.own_channels back"
    )]
    Share { index: u8, found: Share, wanted: Share },
    #[error("entry {index} of the drive's table is of a kind that this program does not know")]
    Unsupported { index: u8 },
    #[error(
        "vSSD {index} of the drive cannot have {units} units: those behind its own are of another vSSD or kind, or not adjacent"
    )]
    Apart { index: u8, units: u8 },
    #[error(
        "slot {slot} of the drive holds {vssd} with {found} units, but the metadata service records {wanted}: the drive or the \
         metadata service's store was restored from an older copy. Put back the two that belong together, or replace the drive"
    )]
    Units { slot: u8, vssd: VssdId, found: u8, wanted: u8 },
    #[error(
        "the record of the log vSSD at entry {index} of the drive's table is damaged, of another version, or of a log of another \
         kind: the owners of its blocks are unknown. Set kv.channels, kv.own_channels and cloud.channels back, or replace the \
         drive"
    )]
    Log { index: u8 },
    #[error(
        "slot {slot} of the drive holds {found}, but the metadata service records {wanted}: the drive or the metadata service's \
         store was restored from an older copy. Put back the two that belong together, or replace the drive"
    )]
    Vssd { slot: u8, found: VssdId, wanted: VssdId },
    #[error(
        "erase block {block} holds data of {found}, which is not its owner in the drive's table: the table or the drive was \
         restored from an older copy. Replace the drive"
    )]
    Foreign { block: u32, found: Owner },
}

/// Bytes of a copy of the table of a drive of this geometry, for any vSSDs: a multiple of 4096.
pub fn copy_bytes(g: &Geometry) -> u64 {
    let entries = ENTRIES_MAX as u64;
    let (dies, word) = (u64::from(g.dies()), UNIT as u64);
    let units = dies * u64::from(SOFT_PLANES_MAX) * word;
    let extents = entries * u64::from(EXTENTS_PER_ENTRY) * EXTENT as u64;
    let groups = entries * (GROUP_HEAD as u64 + 2) + dies * 2;
    (HEAD as u64 + entries * ENTRY_HEAD as u64 + units + extents + groups).next_multiple_of(STRIDE)
}

/// Bytes at the head of the checkpoint area that both copies take.
pub fn area_bytes(g: &Geometry) -> u64 {
    2 * copy_bytes(g)
}

/// Where the copy with this generation lies.
pub fn copy_at(g: &Geometry, generation: u64) -> u64 {
    copies::place(generation, copy_bytes(g))
}

struct Out(Vec<u8>);
impl Out {
    fn put(&mut self, b: &[u8]) -> &mut Out {
        self.0.extend_from_slice(b);
        self
    }
    fn zeroes_to(&mut self, len: usize) -> &mut Out {
        self.0.resize(self.0.len().max(len), 0);
        self
    }
}

/// Bytes of a copy, without what follows it up to [`copy_bytes`].
pub fn encode(t: &Table) -> Vec<u8> {
    let mut o = Out(Vec::new());
    let rest = match (t.homes.is_empty(), t.cleared.is_empty()) {
        (true, _) => VERSION,
        (false, true) => VERSION_SWAPPED,
        (false, false) => VERSION_LEVELED,
    };
    let joined = t.entries.iter().any(|e| e.joined.is_some());
    let version = if joined { VERSION_JOINED } else { rest };
    o.put(&MAGIC).put(&version.to_le_bytes()).put(&(t.entries.len() as u16).to_le_bytes());
    o.put(&(t.groups.len() as u16).to_le_bytes()).zeroes_to(24);
    o.put(&t.generation.to_le_bytes()).put(&t.drive.0.to_le_bytes());
    o.put(&t.made.profile).put(&t.made.bytes.to_le_bytes());
    o.put(&t.channels.to_le_bytes()).put(&t.dies_per_channel.to_le_bytes()).put(&t.blocks_per_die.to_le_bytes());
    o.put(&t.incarnation.to_le_bytes());
    if joined {
        o.put(&rest.to_le_bytes());
    }
    o.zeroes_to(HEAD);
    for e in &t.entries {
        o.put(&[e.index, e.state as u8]).put(&e.generation.to_le_bytes());
        o.put(&[e.kind as u8, isolation_code(e.isolation), e.group.unwrap_or(NO_GROUP), e.joined.map_or(0, |i| i + 1)]);
        o.put(&e.vssd.0.to_le_bytes()).put(&e.set.0.to_le_bytes());
        o.put(&(e.units.len() as u32).to_le_bytes()).put(&(e.extents.len() as u32).to_le_bytes()).put(&[0; 8]);
        for u in &e.units {
            o.put(&u.die.to_le_bytes()).put(&[u.soft_plane, u.soft_planes]);
        }
        for x in &e.extents {
            o.put(&x.at.to_le_bytes()).put(&x.len.to_le_bytes());
        }
    }
    for g in &t.groups {
        o.put(&g.channels.to_le_bytes()).put(&(g.dies.len() as u16).to_le_bytes());
        g.dies.iter().for_each(|d| {
            o.put(&d.to_le_bytes());
        });
        let len = o.0.len().next_multiple_of(4);
        o.zeroes_to(len);
    }
    t.homes.iter().for_each(|d| {
        o.put(&d.to_le_bytes());
    });
    if rest == VERSION_LEVELED {
        t.cleared.iter().for_each(|n| {
            o.put(&n.to_le_bytes());
        });
    }
    let mut b = o.0;
    let len = b.len() as u32;
    b[16..20].copy_from_slice(&len.to_le_bytes());
    let c = crc32c::crc32c(&b);
    b[CRC_AT..CRC_AT + 4].copy_from_slice(&c.to_le_bytes());
    b
}

/// Contents of a copy.
pub type Copy = copies::Copy<Table>;

/// Reads the copy at the start of `b`.
pub fn decode(b: &[u8]) -> Copy {
    if b.iter().all(|&x| x == 0) {
        return Copy::Blank;
    }
    let Some(head) = b.get(..HEAD).filter(|h| h[..8] == MAGIC) else { return Copy::Damaged };
    let len = u32::from_le_bytes([head[16], head[17], head[18], head[19]]) as usize;
    let Some(body) = b.get(..len).filter(|b| b.len() >= HEAD) else { return Copy::Damaged };
    let sum = crc32c::crc32c_append(crc32c::crc32c(&body[..CRC_AT]), &[0; 4]);
    let whole = crc32c::crc32c_append(sum, &body[CRC_AT + 4..]).to_le_bytes() == body[CRC_AT..CRC_AT + 4];
    if !whole && !mutant!("flash.table.damaged-counts") {
        return Copy::Damaged;
    }
    let version = u16::from_le_bytes([head[8], head[9]]);
    if !(VERSION..=VERSION_JOINED).contains(&version) {
        return Copy::Version(version);
    }
    let rest = u16::from_le_bytes([head[VERSION_OF_REST_AT], head[VERSION_OF_REST_AT + 1]]);
    let rest = if version == VERSION_JOINED { rest } else { version };
    if !(VERSION..=VERSION_LEVELED).contains(&rest) {
        return Copy::Damaged;
    }
    let joins = |t: &Table| t.entries.iter().any(|e| e.joined.is_some());
    let table = decode_body(body, rest).filter(|t| joins(t) == (version == VERSION_JOINED));
    table.map_or(Copy::Damaged, |t| Copy::Whole(Box::new(t)))
}

fn decode_body(b: &[u8], version: u16) -> Option<Table> {
    let mut r = In(&b[10..]);
    let (entries, groups) = (r.u16()?, r.u16()?);
    r.take::<10>()?;
    let (generation, drive) = (r.u64()?, DriveId(r.u64()?));
    let made = Made { profile: r.take()?, bytes: r.u64()? };
    let (channels, dies_per_channel, blocks_per_die) = (r.u16()?, r.u16()?, r.u32()?);
    let incarnation = r.u64()?;
    let mut r = In(&b[HEAD..]);
    let entries = (0..entries).map(|_| entry(&mut r)).collect::<Option<Vec<Entry>>>()?;
    let groups = (0..groups).map(|_| group(&mut r)).collect::<Option<Vec<Group>>>()?;
    let dies = u32::from(channels) * u32::from(dies_per_channel);
    let homes = homes(&mut r, if version >= VERSION_SWAPPED { dies } else { 0 })?;
    let cleared = (0..if version == VERSION_LEVELED { dies } else { 0 }).map(|_| r.u64()).collect::<Option<_>>()?;
    let ordered = entries.is_sorted_by(|a, b| a.index < b.index);
    let known = |e: &Entry| usize::from(e.index) < ENTRIES_MAX && e.group.is_none_or(|g| usize::from(g) < groups.len());
    (ordered && entries.iter().all(known)).then_some(Table {
        generation,
        drive,
        made,
        channels,
        dies_per_channel,
        blocks_per_die,
        incarnation,
        entries,
        groups,
        homes,
        cleared,
    })
}
/// Every die is home to one.
fn homes(r: &mut In<'_>, dies: u32) -> Option<Vec<u16>> {
    let homes: Vec<u16> = (0..dies).map(|_| r.u16()).collect::<Option<_>>()?;
    let mut seen = vec![false; homes.len()];
    let free = |d: &u16| seen.get_mut(usize::from(*d)).is_some_and(|s| !std::mem::replace(s, true));
    homes.iter().all(free).then_some(homes)
}

/// As an entry has it.
fn isolation_code(isolation: Isolation) -> u8 {
    match isolation {
        Isolation::Channel => 1,
        Isolation::Die => 2,
        Isolation::Software => 3,
        Isolation::None => 4,
    }
}

fn entry(r: &mut In<'_>) -> Option<Entry> {
    let (index, state, generation) = (r.u8()?, r.u8()?, r.u16()?);
    let (kind, isolation, group, joined) = (r.u8()?, r.u8()?, r.u8()?, r.u8()?);
    let (vssd, set) = (VssdId(r.u32()?), SetId(r.u32()?));
    let (units, extents) = (r.u32()?, r.u32()?);
    r.u64()?;
    let unit = |r: &mut In<'_>| Some(Unit { die: r.u16()?, soft_plane: r.u8()?, soft_planes: r.u8()? });
    let extent = |r: &mut In<'_>| Some(Extent { at: r.u64()?, len: r.u64()? });
    Some(Entry {
        index,
        generation,
        state: match state {
            1 => EntryState::InUse,
            2 => EntryState::Free,
            3 => EntryState::Clearing,
            _ => return None,
        },
        kind: match kind {
            1 => Kind::Page,
            2 => Kind::Log,
            _ => return None,
        },
        isolation: Isolation::ALL.into_iter().find(|i| isolation_code(*i) == isolation)?,
        group: (group != NO_GROUP).then_some(group),
        joined: joined.checked_sub(1),
        vssd,
        set,
        units: (0..units).map(|_| unit(r)).collect::<Option<_>>()?,
        extents: (0..extents).map(|_| extent(r)).collect::<Option<_>>()?,
    })
}

fn group(r: &mut In<'_>) -> Option<Group> {
    let (channels, dies) = (r.u16()?, r.u16()?);
    let group = Group { channels, dies: (0..dies).map(|_| r.u16()).collect::<Option<_>>()? };
    if !dies.is_multiple_of(2) {
        r.u16()?;
    }
    Some(group)
}

impl Table {
    /// For the metadata service.
    pub fn report(&self) -> DriveTable {
        let slot = |e: &Entry| SlotTable {
            vssd: e.vssd,
            set: e.set,
            generation: e.generation,
            in_use: e.state == EntryState::InUse,
        };
        // Where its dies lie is the drive's own affair.
        let (homes, cleared) = Default::default();
        let mut bare = Table { generation: 0, drive: DriveId::NONE, incarnation: 0, homes, cleared, ..self.clone() };
        for e in &mut bare.entries {
            (e.generation, e.state, e.joined) = (0, EntryState::Free, None);
            (e.vssd, e.set) = (VssdId(0), SetId(0));
        }
        DriveTable {
            generation: self.generation,
            digest: crc32c::crc32c(&encode(&bare)).max(1),
            known: Incarnation(self.incarnation),
            // A log vSSD is the server's own.
            slots: self.entries.iter().filter(|e| e.kind == Kind::Page).map(slot).collect(),
        }
    }
    /// Of a drive without vSSDs.
    pub fn new(drive: DriveId, p: &Profile) -> Table {
        let g = &p.geometry;
        Table {
            generation: 0,
            drive,
            made: Made::of(p),
            channels: g.channels,
            dies_per_channel: g.dies_per_channel,
            blocks_per_die: g.blocks_per_die(),
            incarnation: 0,
            entries: Vec::new(),
            groups: Vec::new(),
            homes: Vec::new(),
            cleared: Vec::new(),
        }
    }
    /// The entry's share of the drive; `None`: not expressible as a [`Share`].
    pub fn share(&self, e: &Entry) -> Option<Share> {
        let dies = e.units.len() as u32;
        if e.extents.len() != 1 {
            return None;
        }
        if let Some(u) = e.units.iter().find(|u| u.soft_planes != 1) {
            let one = dies == 1 && e.kind == Kind::Page && e.group.is_none() && e.isolation == Isolation::Software;
            return one.then_some(Share::SoftPlane { of: u.soft_planes });
        }
        if e.kind == Kind::Log {
            let channels = dies / u32::from(self.dies_per_channel.max(1));
            return (e.isolation == Isolation::Channel).then_some(Share::Log { channels: channels as u16 });
        }
        let group = || self.groups.get(usize::from(e.group?));
        Some(match e.isolation {
            Isolation::Channel => Share::Channels((dies / u32::from(self.dies_per_channel.max(1))) as u16),
            Isolation::Die => Share::Dies(dies),
            // The entry itself names the group's channels, for own units as for shared sets.
            Isolation::Software => Share::Software { channels: group()?.channels, dies, own: false },
            Isolation::None => Share::None { channels: group()?.channels, dies },
        })
    }
    /// Whether the table is of a drive like this one, and lies on it.
    ///
    /// # Errors
    /// Differences from the configuration.
    pub fn check(&self, drive: DriveId, p: &Profile) -> Result<(), TableError> {
        if self.drive != drive && !mutant!("flash.table.any-drive") {
            return Err(TableError::Drive { found: self.drive, wanted: drive });
        }
        let (g, wanted) = (&p.geometry, Made::of(p));
        let shape = (self.channels, self.dies_per_channel, self.blocks_per_die);
        let same = self.made == wanted && shape == (g.channels, g.dies_per_channel, g.blocks_per_die());
        if !same && !mutant!("flash.table.any-shape") {
            return Err(TableError::Made { found: self.made, wanted });
        }
        let outside = |e: &&Entry| !e.units.iter().all(|u| u.is_on(g));
        match self.entries.iter().find(outside) {
            Some(e) => Err(TableError::Unsupported { index: e.index }),
            None => self.check_joined(),
        }
    }
    /// Compares the configuration with the parameters of the drive's creation.
    ///
    /// # Errors
    /// The first entry that differs.
    pub fn check_shares(&self, wanted: &[Share]) -> Result<(), TableError> {
        if self.entries.len() != wanted.len() {
            return Err(TableError::Entries { found: self.entries.len(), wanted: wanted.len() });
        }
        for (i, (e, &wanted)) in self.entries.iter().zip(wanted).enumerate() {
            let found = self.share(e).filter(|_| usize::from(e.index) == i);
            let found = found.ok_or(TableError::Unsupported { index: e.index })?;
            if found != wanted.as_written() && !mutant!("flash.table.any-share") {
                return Err(TableError::Share { index: e.index, found, wanted });
            }
        }
        Ok(())
    }
}

/// Which of the copies in this area is not of the table's generation, or not whole. If neither is, the first is named.
pub fn stale_copy(g: &Geometry, area: &[u8], t: &Table) -> Option<u64> {
    let len = copy_bytes(g) as usize;
    let holds = |n: u64| {
        let copy = area.get(n as usize * len..).map_or(Copy::Blank, |b| decode(&b[..b.len().min(len)]));
        matches!(copy, Copy::Whole(found) if found.generation == t.generation)
    };
    (0..2).find(|&n| !holds(n))
}

/// The table in the first [`area_bytes`] of a checkpoint area, of which `area` may have less: nothing was written behind. As
/// [`choose`].
///
/// # Errors
/// There was one, and it cannot be read.
pub fn read(g: &Geometry, area: &[u8]) -> Result<Option<(Table, bool)>, TableError> {
    let len = copy_bytes(g) as usize;
    let copy = |n: usize| area.get(n * len..).map_or(Copy::Blank, |b| decode(&b[..b.len().min(len)]));
    choose([copy(0), copy(1)])
}

/// The table that two copies say; `None`: both are blank. Also whether both say it.
///
/// # Errors
/// There was one, and it cannot be read.
pub fn choose(copies: [Copy; 2]) -> Result<Option<(Table, bool)>, TableError> {
    // If the first write of all was torn nothing was ever programmed, or recovery finds it.
    copies::newest(copies, |t| t.generation).map_err(|e| match e {
        Unread::Version(found) => TableError::Version { found },
        Unread::Damaged => TableError::Damaged,
    })
}
