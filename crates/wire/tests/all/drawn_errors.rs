//! Errors of administration, as the other packets are drawn.

use rackweave_core::admin::{self, ServerError, SetError, Unfit, UnitsError, VolumeError};
use rackweave_core::{NodeId, SetId, Span, VssdId};

use super::Draw;

impl Draw {
    pub(super) fn error(&mut self) -> admin::Error {
        match self.below(8) {
            7 => self.units_error().into(),
            0 => admin::Error::NotStored { why: self.text() },
            1 => admin::Error::TimedOut { waited: Span(self.u64()) },
            2 => admin::Error::Busy { limit: self.u32() },
            3 => admin::Error::NotServed,
            4 => self.volume_error().into(),
            5 => self.set_error().into(),
            _ => self.server_error().into(),
        }
    }
    pub(super) fn volume_error(&mut self) -> VolumeError {
        match self.below(31) {
            30 => {
                let (size, promised, unreported, limit) = (self.u64(), self.u64(), self.u64(), self.u64());
                VolumeError::Unreported { size, promised, unreported, limit }
            }
            29 => VolumeError::Flattening { name: self.text() },
            28 => VolumeError::IsSnapshot { name: self.text() },
            20 => VolumeError::BadSnapshot { name: self.text() },
            21 => VolumeError::NoSnapshots { name: self.text() },
            22 => VolumeError::UnknownSnapshot { name: self.text() },
            23 => VolumeError::BeingMade { name: self.text() },
            24 => VolumeError::Generations { name: self.text(), limit: self.u32() },
            25 => VolumeError::HasSnapshots { name: self.text(), snapshots: self.list(3, Draw::text) },
            26 => VolumeError::HasClones { name: self.text(), clones: self.list(3, Draw::text) },
            27 => VolumeError::Attached { name: self.text(), gateway: self.u32() },
            15 => VolumeError::NoCloud,
            16 => VolumeError::Segment { segment: self.u64(), stripe: self.u32(), size: self.u64(), most: self.u32() },
            17 => VolumeError::LogCopies { log_copies: self.u32() as u8 },
            18 => {
                VolumeError::CloudRoom { size: self.u64(), needs: self.u64(), promised: self.u64(), limit: self.u64() }
            }
            19 => VolumeError::CloudFixed { name: self.text() },
            9 => VolumeError::OwnAndLevel { level: self.isolation(), unit: self.unit() },
            10 => VolumeError::OwnReplicas { replicas: self.u32(), least: self.u32(), most: self.u32() },
            11 => VolumeError::OwnSetAside {
                unit: self.unit(),
                count: self.u32(),
                replicas: self.u32(),
                set_aside: self.u32(),
            },
            12 => VolumeError::OwnRoom {
                unit: self.unit(),
                count: self.u32(),
                replicas: self.u32(),
                free: self.u32(),
                servers: self.u32(),
                clearing: self.u32(),
                fits: self.u32(),
            },
            13 => VolumeError::OwnSize { unit: self.unit(), count: self.u32(), size: self.u64(), holds: self.u64() },
            0 => VolumeError::Unknown { name: self.text() },
            1 => VolumeError::Duplicate { name: self.text() },
            2 => VolumeError::BadName { name: self.text() },
            3 => VolumeError::BadSize { size: self.u64() },
            4 => VolumeError::Shrink { size: self.u64(), current: self.u64() },
            5 => VolumeError::OverPromise { size: self.u64(), promised: self.u64(), limit: self.u64() },
            6 => VolumeError::InUse { name: self.text(), gateway: self.u32() },
            7 => VolumeError::NoLevel { level: self.isolation(), has: self.list(4, Draw::isolation).into() },
            _ => VolumeError::TooMany { limit: self.u32() },
        }
    }
    fn units_error(&mut self) -> UnitsError {
        let (name, unit, count) = (self.text(), self.unit(), self.u32());
        match self.below(7) {
            0 => UnitsError::None { name },
            1 => UnitsError::OtherUnit { name, unit },
            2 => UnitsError::Same { name, unit, count },
            3 => UnitsError::Changing { name },
            4 => UnitsError::Striped { name, count, sets: self.u32(), most: self.u32() },
            5 => UnitsError::TooSmall { name, unit, count, needs: self.u64(), holds: self.u64() },
            _ => UnitsError::NoRow { name, unit, count, server: self.u32(), row: self.u32() },
        }
    }
    fn set_error(&mut self) -> SetError {
        let (set, server) = (SetId(self.u32()), NodeId(self.u32()));
        match self.below(7) {
            0 => SetError::Unknown { set },
            1 => SetError::NotInSet { set, server },
            2 => SetError::NotLost { set, server },
            3 => SetError::Survives { set, server },
            4 => SetError::StillMissing { set, server },
            5 => SetError::NothingLeft { set },
            _ => SetError::NothingMissing { set },
        }
    }
    fn server_error(&mut self) -> ServerError {
        let (vssd, set, server) = (VssdId(self.u32()), SetId(self.u32()), NodeId(self.u32()));
        let (vssds, count) = (self.u32(), self.u32());
        use Unfit::*;
        match self.below(13) {
            0 => ServerError::UnknownVssd { vssd },
            1 => ServerError::Moving { vssd, set },
            2 => ServerError::UnknownServer { server },
            3 => {
                let why = *self.0.pick(&[Leaving, OtherRack, Down, DriveFailed, WornOut, HasCopy, NoSlot]);
                ServerError::Unfit { server, why }
            }
            4 => ServerError::NoTarget { vssd },
            5 => ServerError::NoSource { vssd, set },
            6 => ServerError::RackFull { servers: count },
            7 => ServerError::TooFewLeft { server, left: vssds, need: count },
            8 => ServerError::NoRoom { server, vssds, room: count },
            9 => ServerError::InUse { server, vssds },
            10 => ServerError::Erasing { server, vssds },
            11 => ServerError::NoIds { limit: count },
            _ => ServerError::EarlierUnfit { server, why: self.text() },
        }
    }
}
