//! The block map (FB5): which physical erase block each *logical* one is, a die and a number in it. vSSDs own logical dies. So
//! swaps of dies and rescues of failing blocks change this map alone, never the addresses that a layer keeps.

use crate::geometry::Geometry;

/// No erase block.
pub(crate) const NONE: u32 = u32::MAX;

/// A logical address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Logical {
    pub(crate) die: u32,
    pub(crate) number: u32,
}

/// Where a logical die lies.
#[derive(Clone, Copy, Debug)]
struct Home {
    /// Physical die that it belongs on.
    home: u32,
    /// While its blocks move home: where they come from.
    from: u32,
}

/// Addresses are numbered die by die.
#[derive(Debug)]
struct Lists {
    /// [`NONE`]: the address has no erase block.
    to: Box<[u32]>,
    /// Erase blocks that bear the address still and are not mapped. It is not given out before they are erased, durably.
    claims: Box<[u8]>,
}

#[derive(Debug)]
pub(crate) struct BlockMap {
    /// Addresses of each logical die.
    numbers: u32,
    /// Blocks of each physical die.
    blocks_per_die: u32,
    homes: Box<[Home]>,
    /// `None`: each address is that of the physical block with its number.
    lists: Option<Box<Lists>>,
}

impl BlockMap {
    /// Logical dies that lie where the physical ones of the same number do; no address has an erase block.
    pub(crate) fn empty(g: &Geometry, numbers: u32) -> BlockMap {
        let n = g.dies() as usize * numbers as usize;
        let lists = Lists { to: vec![NONE; n].into(), claims: vec![0; n].into() };
        BlockMap { numbers, lists: Some(Box::new(lists)), ..BlockMap::identity(g) }
    }
    /// Every physical block has the address of its die and its number there. Takes no memory for a block.
    pub(crate) fn identity(g: &Geometry) -> BlockMap {
        let homes = (0..g.dies()).map(|d| Home { home: d, from: d }).collect();
        BlockMap { numbers: g.blocks_per_die(), blocks_per_die: g.blocks_per_die(), homes, lists: None }
    }
    fn lists(&mut self) -> &mut Lists {
        let all = self.homes.len() as u32 * self.numbers;
        let identity = || Box::new(Lists { to: (0..all).collect(), claims: vec![0; all as usize].into() });
        self.lists.get_or_insert_with(identity)
    }
    fn index(&self, l: Logical) -> usize {
        (l.die * self.numbers + l.number) as usize
    }

    pub(crate) fn dies(&self) -> u32 {
        self.homes.len() as u32
    }
    /// Addresses of a die.
    pub(crate) fn numbers(&self) -> u32 {
        self.numbers
    }
    /// Physical die that the logical one belongs on.
    pub(crate) fn home(&self, die: u32) -> u32 {
        self.homes[die as usize].home
    }
    /// While blocks of the logical die move home: the physical die they come from; its home otherwise.
    pub(crate) fn from(&self, die: u32) -> u32 {
        self.homes[die as usize].from
    }
    pub(crate) fn set_home(&mut self, die: u32, home: u32) {
        self.homes[die as usize].home = home;
    }
    pub(crate) fn set_from(&mut self, die: u32, from: u32) {
        self.homes[die as usize].from = from;
    }
    pub(crate) fn homes(&self) -> impl Iterator<Item = u32> {
        self.homes.iter().map(|h| h.home)
    }
    /// Logical dies with home `x` have home `y` from now on, and the reverse.
    pub(crate) fn swap_homes(&mut self, x: u32, y: u32) {
        for h in &mut self.homes {
            h.home = match h.home {
                home if home == x => y,
                home if home == y => x,
                home => home,
            };
        }
    }

    /// Physical block at the address; [`NONE`].
    pub(crate) fn at(&self, l: Logical) -> u32 {
        self.place(l.die * self.numbers + l.number)
    }
    /// Physical block of the address with this number of all.
    #[inline]
    pub(crate) fn place(&self, address: u32) -> u32 {
        self.lists.as_ref().map_or(address, |l| l.to[address as usize])
    }
    /// Physical die of the block at the address with this number of all, which is of this logical die.
    #[inline]
    pub(crate) fn die_of(&self, die: u32, address: impl FnOnce() -> u32) -> u32 {
        self.lists.as_ref().map_or(die, |l| l.to[address() as usize] / self.blocks_per_die)
    }
    /// Nothing has ever changed: every place is its address.
    #[inline]
    pub(crate) fn is_identity(&self) -> bool {
        self.lists.is_none()
    }
    /// The address with this number of all addresses.
    pub(crate) fn address(&self, address: u32) -> Logical {
        Logical { die: address / self.numbers, number: address % self.numbers }
    }
    /// Addresses that have an erase block, and it, in order.
    pub(crate) fn mapped(&self) -> impl Iterator<Item = (Logical, u32)> {
        let all = (0..self.dies() * self.numbers).map(|a| (self.address(a), self.place(a)));
        all.filter(|(_, block)| *block != NONE)
    }
    /// Erase blocks of a logical die.
    pub(crate) fn of_die(&self, die: u32) -> impl Iterator<Item = u32> {
        let first = die * self.numbers;
        (first..first + self.numbers).map(|a| self.place(a)).filter(|b| *b != NONE)
    }
    pub(crate) fn map(&mut self, l: Logical, block: u32) {
        let i = self.index(l);
        self.lists().to[i] = block;
    }
    /// Takes the address out of the map; returns where it was, or [`NONE`].
    pub(crate) fn unmap(&mut self, l: Logical) -> u32 {
        let i = self.index(l);
        std::mem::replace(&mut self.lists().to[i], NONE)
    }

    /// Erase blocks, not mapped, that bear the address still.
    pub(crate) fn claims(&self, l: Logical) -> u8 {
        self.lists.as_ref().map_or(0, |lists| lists.claims[self.index(l)])
    }
    /// Whether there is such an address, and one more block may bear it.
    pub(crate) fn claimable(&self, l: Logical) -> bool {
        l.die < self.dies() && l.number < self.numbers && self.claims(l) < u8::MAX
    }
    /// One more bears it.
    pub(crate) fn claim(&mut self, l: Logical) {
        let i = self.index(l);
        self.lists().claims[i] += 1;
    }
    /// One is erased, durably. Returns how many are left.
    pub(crate) fn unclaim(&mut self, l: Logical) -> u8 {
        let i = self.index(l);
        let claims = &mut self.lists().claims[i];
        *claims -= 1;
        *claims
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> usize {
        let lists = self.lists.as_ref().map_or(0, |l| size_of_val(&*l.to) + l.claims.len());
        size_of_val(&*self.homes) + lists
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry(channels: u16, blocks_per_plane: u32) -> Geometry {
        let (dies_per_channel, planes_per_die) = (1, 1);
        Geometry { channels, dies_per_channel, planes_per_die, blocks_per_plane, pages_per_block: 1, page_bytes: 4096 }
    }

    #[test]
    fn an_identity_becomes_lists_with_its_first_change() {
        let mut m = BlockMap::identity(&geometry(3, 4));
        assert!(m.is_identity() && m.mapped().count() == 12);
        assert_eq!((m.at(Logical { die: 2, number: 1 }), m.claims(Logical { die: 2, number: 1 })), (9, 0));
        m.swap_homes(0, 2);
        assert_eq!((m.homes().collect::<Vec<_>>(), m.is_identity()), (vec![2, 1, 0], true));
        let (a, b) = (Logical { die: 0, number: 3 }, Logical { die: 2, number: 0 });
        m.map(a, 8);
        m.map(b, 3);
        let places: Vec<u32> = (0..12).map(|n| m.place(n)).collect();
        assert_eq!(places, [0, 1, 2, 8, 4, 5, 6, 7, 3, 9, 10, 11]);
        assert_eq!([(0, 2), (0, 3), (2, 8), (2, 9)].map(|(die, n)| m.die_of(die, || n)), [0, 2, 0, 2]);
        assert_eq!((m.of_die(0).collect::<Vec<_>>(), m.address(8)), (vec![0, 1, 2, 8], b));
    }

    #[test]
    fn an_empty_map_has_no_block_and_counts_claims() {
        let mut m = BlockMap::empty(&geometry(2, 5), 3);
        let l = Logical { die: 1, number: 2 };
        assert!(m.mapped().next().is_none() && m.at(l) == NONE);
        m.map(l, 7);
        m.claim(l);
        m.claim(l);
        assert_eq!((m.at(l), m.claims(l), m.unclaim(l), m.unmap(l), m.at(l)), (7, 2, 1, 7, NONE));
        assert!(m.claimable(l) && !m.claimable(Logical { die: 2, number: 0 }));
        assert!(!m.claimable(Logical { die: 0, number: 3 }));
    }
}
