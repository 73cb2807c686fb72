//! Packets drawn from a seed, or from the bytes of a fuzzer: every operation, body and variant, within the bounds of the format.

use std::sync::Arc;

use bytes::Bytes;
use rackweave_core::admin::{
    self, Explained, Isolation, MemberStatus, OwnChange, OwnRoom, OwnSpace, OwnUnit, OwnUnits, RackStatus, ServerInfo,
    ServerState, ServerStatus, ServerWear, SetStatus, SnapshotInfo, Unfit, VolumeCreate, VolumeUse, WearStatus,
};
use rackweave_core::msg::control::{
    DriveRefusal, DriveTable, ServerHello, SlotTable, VssdLoss, VssdPlace, VssdReport, VssdRoom, VssdWear,
};
use rackweave_core::msg::io::WriteRequest;
use rackweave_core::msg::peer::{Applied, BlockSum, ClientRecord, Credit, Inv, InvBlock, NackBlock, ScanEntry};
use rackweave_core::msg::{
    ALL_WITNESSES, Block, BlockRange, Body, Class, Control, GcField, GcOp, Header, IoError, IoReply, IoRequest,
    LiveVolumes, Member, Mutation, Op, Packet, Peer, RackMap, ReadLoad, Role, SectorRange, SetRoute, Table, TableError,
    View, ViewState, VssdRow,
};
use rackweave_core::volume::{Extent, Flattening, VolumeInfo, VolumeLimits};
use rackweave_core::{
    BlockAddr, DriveId, Epoch, Incarnation, NodeId, Payload, RackId, Rng, SetId, Span, SsdId, Time, Timestamp,
    VolumeId, VssdId,
};

#[path = "drawn_cloud.rs"]
mod cloud;
#[path = "drawn_errors.rs"]
mod errors;
#[path = "drawn_keys.rs"]
mod keys;

/// The source of choices.
enum Source {
    Seed(Rng),
    /// Zeroes follow the last byte, so that lists end.
    #[allow(dead_code, reason = "the fuzz targets draw so")]
    Bytes(std::vec::IntoIter<u8>),
}

impl Source {
    fn next_u64(&mut self) -> u64 {
        match self {
            Source::Seed(rng) => rng.next_u64(),
            Source::Bytes(b) => (0..8).fold(0, |n, i| n | u64::from(b.next().unwrap_or(0)) << (8 * i)),
        }
    }
    fn below(&mut self, n: u64) -> u64 {
        match self {
            Source::Seed(rng) => rng.below(n),
            Source::Bytes(b) if n <= 256 => u64::from(b.next().unwrap_or(0)) % n,
            Source::Bytes(_) => self.next_u64() % n,
        }
    }
    fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }
}

/// Draws values; integers are small, huge, or anything.
pub struct Draw(Source);

impl Draw {
    pub fn new(seed: u64) -> Draw {
        Draw(Source::Seed(Rng::new(seed)))
    }
    /// Draws from bytes.
    #[allow(dead_code, reason = "the fuzz targets draw so")]
    pub fn of(bytes: &[u8]) -> Draw {
        Draw(Source::Bytes(Vec::from(bytes).into_iter()))
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.0.below(n)
    }
    fn u64(&mut self) -> u64 {
        match self.below(4) {
            0 => self.below(4),
            1 => u64::MAX - self.below(4),
            _ => self.0.next_u64(),
        }
    }
    fn u32(&mut self) -> u32 {
        match self.below(4) {
            0 => self.below(4) as u32,
            1 => u32::MAX - self.below(4) as u32,
            _ => self.0.next_u64() as u32,
        }
    }
    fn bool(&mut self) -> bool {
        self.below(2) == 1
    }
    fn list<T>(&mut self, max: u64, mut of: impl FnMut(&mut Draw) -> T) -> Vec<T> {
        let n = self.below(max + 1);
        (0..n).map(|_| of(self)).collect()
    }
    fn text(&mut self) -> Box<str> {
        let n = self.below(12);
        (0..n).map(|_| *self.0.pick(&['a', 'Z', '0', '-', 'ä', '語', '\0', '\n'])).collect::<String>().into()
    }
    /// A server with an address.
    fn server(&mut self) -> NodeId {
        NodeId(self.below(0xff_ffff) as u32)
    }

    pub fn payload(&mut self) -> Payload {
        let sectors = if self.below(8) == 0 { self.below(137) } else { self.below(10) } as u32;
        match self.below(4) {
            0 => {
                let mut v = vec![0; (sectors * 512) as usize];
                v.chunks_exact_mut(8).for_each(|w| w.copy_from_slice(&self.0.next_u64().to_le_bytes()));
                Payload::Bytes(Bytes::from(v))
            }
            1 => Payload::Zero { sectors },
            2 => Payload::Elided { sectors, seed: self.u64() },
            _ => Payload::Mixed((0..sectors).map(|_| self.u64()).collect::<Arc<[u64]>>().into()),
        }
    }

    pub fn packet(&mut self) -> Packet {
        let (op, body) = self.body();
        let header = Header {
            op,
            vssd: VssdId(self.u32()),
            lat: self.u32(),
            class: *self.0.pick(&[Class::Gold, Class::Silver, Class::Copper]),
            original_vssd: VssdId(self.u32()),
            set: SetId(self.u32()),
            epoch: Epoch(self.u32()),
            incarnation: Incarnation(self.u64()),
            request: self.u64(),
        };
        Packet { src: NodeId(self.u32()), dst: NodeId(self.u32()), header, body }
    }

    fn body(&mut self) -> (Op, Body) {
        match self.below(13) {
            0 => (Op::CreateVssd, Body::Table(Table::Create(Box::new(self.row())))),
            1 => (Op::DelVssd, Body::Table(Table::Delete)),
            2 => (Op::GcOp, Body::Table(Table::Gc(self.gc()))),
            3 => {
                let io = self.io();
                let op = match io {
                    IoRequest::Read { .. } | IoRequest::Status { .. } if self.bool() => Op::Read,
                    _ => Op::Write,
                };
                (op, Body::Block(Block::Io(io)))
            }
            4 => (Op::Reply, Body::Block(Block::Reply(self.reply()))),
            5 => (Op::Reply, Body::Table(Table::Answer(self.table()))),
            6 | 7 => (Op::Peer, Body::Block(Block::Peer(self.peer()))),
            8 => (
                Op::Load,
                Body::Table(Table::Load(ReadLoad {
                    answered: self.u64(),
                    waiting: self.u32() >> 16,
                    erasing: self.bool(),
                    collecting: self.u32() as u16 >> 1,
                })),
            ),
            9 => (Op::Control, Body::Control(self.control())),
            10 | 11 => {
                let keys = self.keys();
                (keys.0.op(), Body::Keys(keys))
            }
            _ => {
                let cloud = self.cloud();
                (cloud.0.op(), Body::Cloud(cloud))
            }
        }
    }

    fn row(&mut self) -> VssdRow {
        VssdRow { server: self.server(), readable: self.bool(), peers: self.list(3, |d| (VssdId(d.u32()), d.server())) }
    }
    fn gc(&mut self) -> GcOp {
        use GcField::*;
        let field = *self
            .0
            .pick(&[Soft, Regular, Background, Accept, Delay, Finish, Heartbeat, Idle, Swap, Swapping, SwapBeside]);
        GcOp { field, sequence: self.u64() }
    }
    fn table(&mut self) -> Result<(), TableError> {
        match self.below(4) {
            0 => Ok(()),
            1 => Err(TableError::Full { rows: self.u32() }),
            2 => Err(TableError::TooManyPeers { peers: self.u32() }),
            _ => Err(TableError::ZeroId),
        }
    }

    fn sectors(&mut self) -> SectorRange {
        SectorRange { volume: VolumeId(self.u32()), first: self.u64(), count: self.u32() }
    }
    fn blocks(&mut self) -> BlockRange {
        BlockRange { volume: VolumeId(self.u32()), first: self.u32(), count: self.u32() }
    }
    fn mutation(&mut self) -> Mutation {
        Mutation { client: Incarnation(self.u64()), sequence: self.u64(), floor: self.u64() }
    }
    fn io(&mut self) -> IoRequest {
        match self.below(6) {
            0 => IoRequest::Read { range: self.sectors(), snapshot: self.bool().then(|| VolumeId(self.u32())) },
            1 => IoRequest::Write(Box::new(WriteRequest {
                range: self.sectors(),
                data: self.payload(),
                fua: self.bool(),
                attach: self.u32(),
                mutation: self.mutation(),
            })),
            2 => IoRequest::Zero {
                range: self.blocks(),
                fua: self.bool(),
                attach: self.u32(),
                mutation: self.mutation(),
            },
            3 => IoRequest::Flush { volume: VolumeId(self.u32()) },
            4 => IoRequest::Fence { volume: VolumeId(self.u32()), attach: self.u32() },
            _ => IoRequest::Status { range: self.blocks(), snapshot: self.bool().then(|| VolumeId(self.u32())) },
        }
    }
    fn reply(&mut self) -> IoReply {
        match self.below(9) {
            0 => IoReply::Data(self.payload()),
            1 => IoReply::Done,
            2 => IoReply::Extents(self.extents().into()),
            3 => IoReply::Failed(IoError::NotServing),
            4 => IoReply::Failed(IoError::NoSpace),
            5 => IoReply::Failed(IoError::Fenced { attach: self.u32() }),
            6 => IoReply::Failed(IoError::Corrupt),
            7 => IoReply::Failed(IoError::Device),
            _ => IoReply::Failed(IoError::Malformed),
        }
    }
    fn extents(&mut self) -> Vec<Extent> {
        self.list(5, |d| Extent { len: d.u64(), mapped: d.bool() })
    }

    fn addr(&mut self) -> BlockAddr {
        BlockAddr::new(VolumeId(self.u32()), self.u32())
    }
    fn version(&mut self) -> Timestamp {
        Timestamp(self.u64())
    }
    fn credit(&mut self) -> Credit {
        Credit { slots: self.u64(), pages: self.u64(), no_space: self.bool() }
    }
    fn inv(&mut self) -> Inv {
        Inv {
            volume: VolumeId(self.u32()),
            blocks: self
                .list(17, |d| InvBlock { block: d.u32(), version: d.version(), base: d.version(), rmw: d.bool() })
                .into(),
            data: self.payload(),
            mutation: self.mutation(),
            attach: self.u32(),
            fua: self.bool(),
        }
    }
    fn peer(&mut self) -> Peer {
        match self.below(26) {
            25 => Peer::BlockLost { addr: self.addr(), version: self.version() },
            26 => Peer::MarkLost { addr: self.addr(), version: self.version() },
            27 => Peer::LostMarked { addr: self.addr(), version: self.version() },
            21 => Peer::SumsRequest { range: self.blocks(), digest: self.u64() },
            22 => Peer::Sums {
                range: self.blocks(),
                same: self.bool(),
                sums: self.list(6, |d| BlockSum { block: d.u32(), version: d.version(), crc: d.u32() }).into(),
            },
            23 => Peer::HealRequest { addr: self.addr(), version: self.version(), crc: self.u32() },
            24 => Peer::ReplayRequest { addr: self.addr(), version: self.version() },
            0 => Peer::Inv(Arc::new(self.inv())),
            1 => Peer::InvRange {
                range: self.blocks(),
                version: self.version(),
                mutation: self.mutation(),
                attach: self.u32(),
                fua: self.bool(),
            },
            2 => Peer::Ack { credit: self.credit() },
            3 => Peer::Nack {
                blocks: self.list(17, |d| NackBlock { block: d.u32(), version: d.version(), same: d.bool() }).into(),
                credit: self.credit(),
            },
            4 => Peer::Val { volume: VolumeId(self.u32()), blocks: self.list(17, |d| (d.u32(), d.version())).into() },
            5 => Peer::ValRange { range: self.blocks(), version: self.version() },
            6 => Peer::CreditRequest { slots_used: self.u64(), pages_used: self.u64(), want_pages: self.u32() },
            7 => Peer::CreditGrant { credit: self.credit() },
            8 => Peer::Flush,
            9 => Peer::FlushAck { ok: self.bool() },
            10 => Peer::Fence { volume: VolumeId(self.u32()), attach: self.u32() },
            11 => Peer::FenceAck { attach: self.u32() },
            12 => Peer::StaleEpoch,
            13 => Peer::DigestRequest { from: self.addr(), limit: self.u32() },
            14 => Peer::Digests {
                entries: self.list(9, |d| (d.addr(), d.u64())).into(),
                next: self.bool().then(|| self.addr()),
            },
            15 => Peer::ScanRequest { from: self.addr(), until: self.addr() },
            16 => Peer::Scan { from: self.addr(), until: self.addr(), entries: self.list(9, Draw::run).into() },
            17 => Peer::BlockFetch { addr: self.addr() },
            18 => Peer::Block { addr: self.addr(), version: self.version(), data: self.bool().then(|| self.payload()) },
            19 => Peer::ClientsRequest,
            _ => Peer::Clients {
                records: self.list(4, Draw::client).into(),
                volumes: self.live_volumes(),
                from: VssdId(self.u32()),
            },
        }
    }
    fn run(&mut self) -> ScanEntry {
        ScanEntry { addr: self.addr(), count: self.u32(), version: self.version(), mapped: self.bool() }
    }
    fn live_volumes(&mut self) -> LiveVolumes {
        let first_unused = VolumeId(if self.bool() { self.u32() } else { 0 });
        let least = u32::from(first_unused == VolumeId(0));
        let attach = |d: &mut Draw| if d.bool() { least } else { d.u32().max(least) };
        LiveVolumes { first_unused, writers: self.list(4, |d| (VolumeId(d.u32()), attach(d))).into() }
    }
    fn applied(&mut self) -> Applied {
        Applied { sequence: self.u64(), first: self.u32(), blocks: self.u64() }
    }
    fn client(&mut self) -> ClientRecord {
        ClientRecord { client: Incarnation(self.u64()), floor: self.u64(), applied: self.list(6, Draw::applied).into() }
    }

    fn reports(&mut self) -> Vec<VssdReport> {
        self.list(5, |d| {
            let (vssd, set, epoch) = (VssdId(d.u32()), SetId(d.u32()), Epoch(d.u32()));
            let (complete, failed) = (d.bool(), d.bool());
            let read_only = !failed && d.bool();
            let no_room = !failed && !read_only && d.bool();
            VssdReport { vssd, set, epoch, complete, failed, read_only, no_room }
        })
    }
    fn role(&mut self) -> Role {
        if self.bool() { Role::Member } else { Role::Shadow }
    }
    fn view(&mut self) -> View {
        let epoch = Epoch(self.u32());
        let (state, recovered) = match self.bool() {
            true => (ViewState::Normal, Epoch(self.u32() % epoch.0.max(1))),
            false => {
                let witnesses = if self.bool() { ALL_WITNESSES } else { self.below(8) };
                (ViewState::Recovering { leader: VssdId(self.u32()), witnesses }, epoch)
            }
        };
        View {
            set: SetId(self.u32()),
            epoch,
            state,
            recovered,
            members: self.list(4, |d| Member {
                vssd: VssdId(d.u32()),
                server: NodeId(d.u32()),
                incarnation: Incarnation(d.u64()),
                role: d.role(),
            }),
        }
    }
    fn map(&mut self) -> Box<RackMap> {
        let sets = self.list(5, |d| SetRoute {
            set: SetId(d.u32()),
            epoch: Epoch(d.u32()),
            members: d.list(4, |d| VssdId(d.u32())),
        });
        Box::new(RackMap { generation: self.u64(), sets })
    }
    fn drive_refusal(&mut self) -> DriveRefusal {
        match self.below(5) {
            0 => DriveRefusal::StoreOlder { drive: Incarnation(self.u64()), store: Incarnation(self.u64()) },
            1 => DriveRefusal::OtherDrive { found: DriveId(self.u64()), wanted: DriveId(self.u64()) },
            2 => DriveRefusal::DriveOlder { found: self.u64(), wanted: self.u64() },
            3 => DriveRefusal::Layout,
            _ => DriveRefusal::Unknown { vssd: VssdId(self.u32()) },
        }
    }
    #[expect(clippy::too_many_lines, reason = "a list of values")]
    fn control(&mut self) -> Control {
        match self.below(30) {
            29 => Control::DriveRefused { nonce: self.u64(), why: Box::new(self.drive_refusal()) },
            25 => Control::RackRequest { nonce: self.u64() },
            26 => Control::RackIs { nonce: self.u64(), rack: RackId(u128::from(self.u64()) << 64 | 7) },
            22 => Control::Silent {
                set: SetId(self.u32()),
                epoch: Epoch(self.u32()),
                silent: self.list(4, |d| VssdId(d.u32())),
            },
            23 => Control::Reached { set: SetId(self.u32()), epoch: Epoch(self.u32()) },
            24 => Control::WornOut { vssds: self.list(4, |d| VssdId(d.u32())) },
            0 => Control::PlainHello { nonce: self.u64(), vssds: self.reports() },
            27 => Control::ServerHello(Box::new(ServerHello {
                nonce: self.u64(),
                drive: DriveId(self.u64()),
                empty: self.bool(),
                losses: self.list(4, |d| VssdLoss { slot: d.below(256) as u8, records: d.u32(), digest: d.u64() }),
                table: DriveTable {
                    generation: self.u64(),
                    digest: self.u32(),
                    known: Incarnation(self.u64()),
                    slots: self.list(9, |d| SlotTable {
                        vssd: VssdId(d.u32()),
                        set: SetId(d.u32()),
                        generation: d.below(65_536) as u16,
                        in_use: d.bool(),
                    }),
                },
                vssds: self.reports(),
            })),
            1 => Control::ServerWelcome {
                nonce: self.u64(),
                incarnation: Incarnation(self.u64()),
                volumes: self.live_volumes(),
            },
            2 => Control::Heartbeat { sequence: self.u64(), vssds: self.reports() },
            3 => Control::Lease { sequence: self.u64(), span: Span(self.u64()), views: self.list(3, Draw::view) },
            4 => Control::NewView(Box::new(self.view())),
            5 => Control::Recovered { set: SetId(self.u32()), epoch: Epoch(self.u32()) },
            6 => Control::EpochRequest { set: SetId(self.u32()), epoch: Epoch(self.u32()) },
            7 => Control::ClientHello { nonce: self.u64() },
            8 => Control::ClientWelcome { nonce: self.u64(), incarnation: Incarnation(self.u64()), map: self.map() },
            9 => Control::MapRequest { generation: self.u64() },
            10 => Control::Map(self.map()),
            11 => Control::Attach { name: self.text() },
            12 => Control::Attached(if self.bool() {
                Ok(Box::new(self.volume()))
            } else {
                Err(Box::new(self.volume_error()))
            }),
            13 => Control::Admin(Box::new(self.admin())),
            14 => {
                Control::AdminReply(if self.bool() { Ok(Box::new(self.data())) } else { Err(Box::new(self.error())) })
            }
            15 => Control::EmptyPlainHello { nonce: self.u64(), vssds: self.reports() },
            16 => Control::ServerRefused { nonce: self.u64() },
            17 => Control::VolumeLimited { volume: VolumeId(self.u32()), limits: self.limits() },
            19 => Control::Vssds {
                plan: self.u64(),
                incarnation: Incarnation(self.u64()),
                vssds: self.list(9, |d| VssdPlace {
                    vssd: VssdId(d.u32()),
                    set: SetId(d.u32()),
                    slot: d.below(128) as u8,
                    units: 1 + d.below(255) as u8,
                }),
            },
            28 => Control::Room(Box::new(VssdRoom {
                vssd: VssdId(self.u32()),
                capacity: self.u64(),
                used: self.u64(),
                from: VolumeId(self.u32()),
                until: VolumeId(self.u32()),
                volumes: self.list(4, |d| (VolumeId(d.u32()), d.u64())).into(),
            })),
            20 => Control::Wear {
                blocks: self.u64(),
                erases: self.u64(),
                vssds: self.list(9, |d| VssdWear { vssd: VssdId(d.u32()), erases: d.u64() }),
            },
            18 => Control::VssdsDone { plan: self.u64(), lost: self.u64() },
            _ => Control::VolumeChanged { volume: VolumeId(self.u32()), size: self.u64() },
        }
    }
    fn admin(&mut self) -> admin::Op {
        match self.below(28) {
            27 => admin::Op::VolumeUnits { name: self.text(), unit: self.unit(), count: self.u32() },
            25 => admin::Op::VolumeUse { name: self.text() },
            19 => admin::Op::SnapshotCreate { snapshot: self.text() },
            20 => admin::Op::SnapshotRemove { snapshot: self.text() },
            21 => admin::Op::SnapshotList { volume: self.bool().then(|| self.text()) },
            22 => admin::Op::VolumeClone { snapshot: self.text(), name: self.text() },
            23 => admin::Op::VolumeRename { name: self.text(), to: self.text() },
            24 => admin::Op::VolumeRollback { snapshot: self.text() },
            26 => admin::Op::VolumeFlatten { name: self.text() },
            11 => admin::Op::VolumeExplain {
                size: self.u64(),
                isolation: self.bool().then(|| self.isolation()),
                own: self.bool().then(|| self.own()),
            },
            9 => admin::Op::ServerEnded { server: NodeId(self.u32()), incarnation: Incarnation(self.u64()) },
            16 => admin::Op::VssdMove {
                vssd: VssdId(self.u32()),
                to: if self.bool() { Some(NodeId(self.u32())) } else { None },
            },
            12 => admin::Op::Servers,
            13 => admin::Op::ServerAdd,
            14 => admin::Op::ServerDrain { server: NodeId(self.u32()) },
            15 => admin::Op::ServerRemove { server: NodeId(self.u32()) },
            0 => admin::Op::VolumeCreate(VolumeCreate {
                name: self.text(),
                size: self.u64(),
                isolation: self.bool().then(|| self.isolation()),
                own: self.bool().then(|| self.own()),
            }),
            1 => admin::Op::VolumeGrow { name: self.text(), size: self.u64() },
            2 => admin::Op::VolumeDelete { name: self.text(), force: self.bool() },
            3 => admin::Op::VolumeInfo { name: self.text() },
            4 => admin::Op::VolumeList,
            5 => admin::Op::SetRecover { set: SetId(self.u32()), without: self.list(3, |d| NodeId(d.u32())).into() },
            6 => admin::Op::VolumeHold { name: self.text(), attach: self.u32() },
            7 => admin::Op::VolumeRelease { volume: VolumeId(self.u32()), attach: self.u32() },
            10 => admin::Op::VolumeLimit {
                name: self.text(),
                iops: self.bool().then(|| self.u64()),
                bytes_per_s: self.bool().then(|| self.u64()),
            },
            8 => admin::Op::VolumeClass { name: self.text(), offline: self.bool() },
            18 => admin::Op::CloudCreate {
                name: self.text(),
                size: self.u64(),
                segment: self.u64(),
                log_copies: self.u32() as u8,
            },
            _ => admin::Op::RackStatus,
        }
    }
    fn own(&mut self) -> OwnUnits {
        OwnUnits { unit: self.unit(), count: self.u32(), replicas: self.bool().then(|| self.u32()) }
    }
    fn unit(&mut self) -> OwnUnit {
        *self.0.pick(&OwnUnit::ALL)
    }
    fn isolation(&mut self) -> Isolation {
        *self.0.pick(&[Isolation::None, Isolation::Software, Isolation::Die, Isolation::Channel])
    }
    fn limits(&mut self) -> VolumeLimits {
        let draw = |d: &mut Self| if d.bool() { d.u64() } else { 0 };
        VolumeLimits { iops: draw(self), bytes_per_s: draw(self) }
    }
    fn volume(&mut self) -> VolumeInfo {
        VolumeInfo {
            id: VolumeId(self.u32()),
            name: self.text(),
            size: self.u64(),
            attach: self.u32(),
            sets: self.list(6, |d| SetId(d.u32())),
            stripe_blocks: self.u32() >> 9, // the highest bits are flags
            class: if self.bool() { Class::Copper } else { Class::Silver },
            limits: self.limits(),
            used: if self.bool() { self.u64().max(1) } else { 0 },
            own: self.bool().then(|| self.own()),
            cloud: self.bool().then(|| self.shape()),
            frozen: self.bool().then(|| Box::new(self.frozen())),
            snapshots: self.list(2, Draw::snapshot),
            own_change: self.bool().then(|| OwnChange { copies: self.u32(), of: self.u32() }),
            flattening: self.bool().then(|| Flattening { segments: self.u32(), of: self.u32() }),
        }
    }
    fn snapshot(&mut self) -> SnapshotInfo {
        let (name, size, made, used) = (self.text(), self.u64(), self.bool(), self.u64());
        SnapshotInfo { name, size, made, used, clones: self.list(3, Draw::text) }
    }
    fn data(&mut self) -> admin::Reply {
        match self.below(8) {
            7 => admin::Reply::Use(self.list(3, |d| VolumeUse { name: d.text(), own: d.u64(), shared: d.u64() })),
            6 => admin::Reply::Snapshots(self.list(3, Draw::snapshot)),
            5 => admin::Reply::Explained(Box::new(Explained {
                refused: self.bool().then(|| self.volume_error().into()),
                servers: self.list(3, |d| OwnRoom {
                    node: NodeId(d.u32()),
                    channels: d.u32(),
                    dies: d.u32(),
                    software_dies: d.u32(),
                    soft_planes: d.u32(),
                    clearing: d.u32(),
                    unfit: d.bool().then_some(Unfit::Down),
                }),
            })),
            4 => admin::Reply::Servers(self.list(4, |d| ServerInfo {
                node: NodeId(d.u32()),
                state: [ServerState::In, ServerState::Draining, ServerState::Removed][d.below(3) as usize],
                alive: d.bool(),
                vssds: d.u32(),
                coming: d.u32(),
                leaving: d.u32(),
                free: d.u32(),
                homeless: d.u32(),
            })),
            0 => admin::Reply::Done,
            1 => self.volume().into(),
            2 => admin::Reply::Volumes(self.list(3, Draw::volume)),
            _ => admin::Reply::Rack(Box::new(self.rack())),
        }
    }
    fn rack(&mut self) -> RackStatus {
        RackStatus {
            servers: self.list(3, |d| ServerStatus {
                node: NodeId(d.u32()),
                alive: d.bool(),
                last_heartbeat: Time(d.u64()),
                ssds: d.list(3, |d| SsdId(d.u32())),
            }),
            sets: self.list(3, |d| SetStatus {
                set: SetId(d.u32()),
                epoch: Epoch(d.u32()),
                members: d.list(3, |d| MemberStatus { vssd: VssdId(d.u32()), server: NodeId(d.u32()), role: d.role() }),
                waits_for: d.list(2, |d| NodeId(d.u32())),
            }),
            promise_limit: self.u64(),
            promised: self.u64(),
            capacity: self.u64(),
            used: self.u64(),
            room: self.u64(),
            own: OwnSpace { promised: self.u64(), capacity: self.u64(), used: self.u64(), room: self.u64() },
            wear: WearStatus {
                balanced: self.bool(),
                milli_lambda: self.u32(),
                swaps: self.u64(),
                given_up: self.u64(),
                servers: self.list(3, |d| ServerWear { node: NodeId(d.u32()), milli_erases: d.u64() }),
            },
        }
    }
}
