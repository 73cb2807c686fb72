//! Node addresses: a table between ids and kind, number and rack.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::id::{NodeId, VssdId};

macro_rules! kinds {
    ($($(#[$m:meta])* $kind:ident = $first:literal),* $(,)?) => {
        /// Kinds of nodes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum NodeKind {
            $($(#[$m])* $kind),*
        }

        impl NodeKind {
            pub const ALL: &'static [NodeKind] = &[$(NodeKind::$kind),*];

            /// The name of the first node of this kind.
            fn first(self) -> &'static str {
                match self {
                    $(NodeKind::$kind => $first),*
                }
            }
        }
    };
}

// One line per kind, with the name of its first node: with or without a number.
kinds! {
    /// Client of a gateway or of a workload.
    Client = "gateway-0",
    Switch = "switch",
    Server = "server-0",
    Meta = "meta",
}

impl NodeKind {
    pub const COUNT: usize = NodeKind::ALL.len();
}

/// A node's name for users, and the name of its directory: `meta`, `server-3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeName {
    pub kind: NodeKind,
    /// Index among the nodes of its kind in all racks, from zero.
    pub index: u32,
}

impl NodeName {
    pub const META: NodeName = NodeName { kind: NodeKind::Meta, index: 0 };
    /// The switch of the first rack.
    pub const SWITCH: NodeName = NodeName { kind: NodeKind::Switch, index: 0 };

    pub const fn server(index: u32) -> NodeName {
        NodeName { kind: NodeKind::Server, index }
    }
    pub const fn gateway(index: u32) -> NodeName {
        NodeName { kind: NodeKind::Client, index }
    }
    /// The word of its kind, and its number if it has one.
    pub fn parts(self) -> (&'static str, Option<u32>) {
        let first = self.kind.first();
        match first.strip_suffix("-0") {
            Some(kind) => (kind, Some(self.index)),
            None => (first, (self.index > 0).then_some(self.index)),
        }
    }
    /// Its number if it is a server.
    pub fn as_server(self) -> Option<u32> {
        (self.kind == NodeKind::Server).then_some(self.index)
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, number) = self.parts();
        f.write_str(kind)?;
        number.map_or(Ok(()), |n| write!(f, "-{n}"))
    }
}

/// Inverse of `Display`.
impl FromStr for NodeName {
    type Err = ();

    fn from_str(text: &str) -> Result<NodeName, ()> {
        let of = |&kind: &NodeKind| {
            let first = kind.first();
            if text == first {
                return Some(NodeName { kind, index: 0 });
            }
            let stem = first.strip_suffix("-0");
            let index = text.strip_prefix(stem.unwrap_or(first))?.strip_prefix('-')?.parse().ok()?;
            (stem.is_some() || index > 0).then_some(NodeName { kind, index })
        };
        NodeKind::ALL.iter().find_map(of).ok_or(())
    }
}

/// A node of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub name: NodeName,
    /// Rack of a server or a switch; other nodes belong to none.
    pub rack: Option<u32>,
}

/// The nodes of all racks by address, and their addresses by name. Cheap to clone.
///
/// Ids are part of formats (packets, the metadata service's store, drives), so their order is fixed: metadata 0, the
/// first rack's switch 1, servers from 2, the other racks' switches, clients. All racks have the same number of
/// servers; the first rack has the first ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout(Arc<Table>);

#[derive(Debug, PartialEq, Eq)]
struct Table {
    places: Vec<Place>,
    /// By kind and index.
    ids: [Vec<NodeId>; NodeKind::COUNT],
}

/// The id of server 0; the others follow, in every layout.
const FIRST_SERVER: NodeId = NodeId(2);

impl Layout {
    pub const META: NodeId = NodeId(0);
    /// The switch of the first rack.
    pub const SWITCH: NodeId = NodeId(1);

    /// Layout of one rack.
    pub fn new(servers: u32, clients: u32) -> Layout {
        Layout::of_racks(1, servers, clients)
    }
    /// Layout of `racks` racks, at least one, with `servers` in total: a multiple of `racks`.
    pub fn of_racks(racks: u32, servers: u32, clients: u32) -> Layout {
        let mut t = Table { places: Vec::new(), ids: Default::default() };
        let in_rack = (servers / racks).max(1);
        t.add(NodeKind::Meta, None);
        t.add(NodeKind::Switch, Some(0));
        debug_assert_eq!(t.places.len(), FIRST_SERVER.0 as usize);
        (0..servers).for_each(|i| t.add(NodeKind::Server, Some(i / in_rack)));
        (1..racks).for_each(|rack| t.add(NodeKind::Switch, Some(rack)));
        (0..clients).for_each(|_| t.add(NodeKind::Client, None));
        Layout(Arc::new(t))
    }

    /// All nodes, by id.
    pub fn places(&self) -> &[Place] {
        &self.0.places
    }
    pub fn place(&self, n: NodeId) -> Option<Place> {
        self.0.places.get(n.0 as usize).copied()
    }
    pub fn name(&self, n: NodeId) -> Option<NodeName> {
        self.place(n).map(|p| p.name)
    }
    pub fn kind(&self, n: NodeId) -> Option<NodeKind> {
        self.place(n).map(|p| p.name.kind)
    }
    /// The rack of a server or a switch.
    pub fn rack(&self, n: NodeId) -> Option<u32> {
        self.place(n)?.rack
    }
    /// The number of a node of this kind; `None` for other kinds.
    pub fn index(&self, n: NodeId, kind: NodeKind) -> Option<u32> {
        self.name(n).filter(|name| name.kind == kind).map(|name| name.index)
    }
    /// The nodes of a kind, in order.
    pub fn ids(&self, kind: NodeKind) -> &[NodeId] {
        &self.0.ids[kind as usize]
    }
    pub fn id(&self, name: NodeName) -> Option<NodeId> {
        self.ids(name.kind).get(name.index as usize).copied()
    }

    pub fn nodes(&self) -> u32 {
        self.0.places.len() as u32
    }
    pub fn racks(&self) -> u32 {
        self.ids(NodeKind::Switch).len() as u32
    }
    /// Number of servers in all racks.
    pub fn servers(&self) -> u32 {
        self.ids(NodeKind::Server).len() as u32
    }
    pub fn clients(&self) -> u32 {
        self.ids(NodeKind::Client).len() as u32
    }
    /// # Panics
    /// If there is no such rack.
    pub fn switch(&self, rack: u32) -> NodeId {
        self.ids(NodeKind::Switch)[rack as usize]
    }
    pub fn switches(&self) -> impl Iterator<Item = NodeId> + use<> {
        let layout = self.clone();
        (0..layout.racks()).map(move |rack| layout.switch(rack))
    }
    /// The server of this number, if there is one.
    pub fn server(&self, number: u32) -> Option<NodeId> {
        self.id(NodeName::server(number))
    }
    /// # Panics
    /// If there is no such client.
    pub fn client(&self, i: u32) -> NodeId {
        self.ids(NodeKind::Client)[i as usize]
    }
    /// The switch of the node's rack; the first one's of a node that belongs to no rack.
    pub fn switch_near(&self, n: NodeId) -> NodeId {
        self.rack(n).map_or(Layout::SWITCH, |rack| self.switch(rack))
    }
    /// The switch through which `vssd` is reached, by the rack in its id. An id without a known rack, as a packet may
    /// contain, maps to the first switch, which does not know it either.
    pub fn switch_of(&self, vssd: VssdId) -> NodeId {
        self.ids(NodeKind::Switch).get(vssd.rack() as usize).copied().unwrap_or(Layout::SWITCH)
    }
    /// The number of a server for users and in files, in every layout: from 0, as in `server-0` and `ssd-0.rwk`.
    pub fn server_number(server: NodeId) -> u32 {
        server.0.saturating_sub(FIRST_SERVER.0)
    }
    /// The server with this number, in every layout.
    pub fn numbered_server(number: u32) -> NodeId {
        NodeId(FIRST_SERVER.0 + number)
    }
}

impl Table {
    fn add(&mut self, kind: NodeKind, rack: Option<u32>) {
        let ids = &mut self.ids[kind as usize];
        self.places.push(Place { name: NodeName { kind, index: ids.len() as u32 }, rack });
        ids.push(NodeId(self.places.len() as u32 - 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(l: &Layout) -> Vec<String> {
        l.places().iter().map(|p| p.name.to_string()).collect()
    }

    #[test]
    fn one_rack_has_the_ids_it_always_had_and_two_share_none() {
        let one = Layout::new(4, 2);
        let rack = ["meta", "switch", "server-0", "server-1", "server-2", "server-3"];
        assert_eq!(names(&one), [&rack[..], &["gateway-0", "gateway-1"]].concat());
        let two = Layout::of_racks(2, 4, 2);
        assert_eq!(names(&two), [&rack[..], &["switch-1", "gateway-0", "gateway-1"]].concat());
        let racks: Vec<Option<u32>> = two.places().iter().map(|p| p.rack).collect();
        assert_eq!(racks, [None, Some(0), Some(0), Some(0), Some(1), Some(1), Some(1), None, None]);
        assert_eq!(two.ids(NodeKind::Switch), [NodeId(1), NodeId(6)]);
        assert_eq!(two.switch_of(VssdId(1 << 24 | 17)), NodeId(6));
        assert_eq!(two.switch_of(VssdId(9 << 24 | 17)), Layout::SWITCH);
        assert_eq!([3, 4, 7].map(|n| two.switch_near(NodeId(n))), [NodeId(1), NodeId(6), NodeId(1)]);
        assert_eq!((two.nodes(), two.racks(), two.servers(), two.clients()), (9, 2, 4, 2));
    }

    #[test]
    fn ids_names_and_numbers_say_the_same() {
        let l = Layout::of_racks(3, 6, 4);
        for i in 0..l.nodes() {
            let (n, name) = (NodeId(i), l.places()[i as usize].name);
            assert_eq!((l.id(name), l.name(n), l.index(n, name.kind)), (Some(n), Some(name), Some(name.index)));
            assert_eq!(name.to_string().parse(), Ok(name));
        }
        let beyond = NodeId(l.nodes());
        assert_eq!((l.kind(beyond), l.rack(beyond), l.server(5)), (None, None, Some(NodeId(7))));
        assert_eq!([6, u32::MAX].map(|number| l.server(number)), [None; 2], "no number ends a process");
        for (i, &n) in (0..).zip(l.ids(NodeKind::Server)) {
            assert_eq!((Layout::server_number(n), Layout::numbered_server(i)), (i, n));
        }
    }

    #[test]
    fn what_names_no_node_is_refused() {
        for text in ["", "metal", "meta-0", "switch-0", "server", "server-", "server-x", "gateway1", "client-0"] {
            assert_eq!(text.parse::<NodeName>(), Err(()), "{text}");
        }
    }
}
