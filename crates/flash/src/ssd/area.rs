//! The log area of a drive: channels set aside for logs that are made and deleted while the drive is used. All of it belongs to one
//! entry of the drive's table and to one flash manager, whose record says which dies each log has.
//!
//! A log has a *serial number*, which is its id in the manager's record and never used again, and a *name*, by which callers know
//! it like a log vSSD with channels of its own. Names are given anew after each start.

use rackweave_core::{Time, VssdId};

use super::logs::Phase;
use super::{AllocError, FlashDone, FlashOut, Ssd};
use crate::isolation::Isolation;
use crate::manager::Done;
use crate::manager::api::{AllocDiesError, AllocError as ManagerError, BlockError};
use crate::ssd::Share;

/// Bits of a manager's token below the number of its user.
const USER_BITS: u32 = 48;
/// The user of a log with channels of its own.
const SINGLE_USER: u16 = 1;
/// The first user of logs in the area.
const FIRST_USER: u16 = 2;
/// The user of what the drive itself asks for.
const OWN_USER: u64 = 0xffff << USER_BITS;

/// A log of the area.
#[derive(Clone, Copy, Debug)]
struct AreaLog {
    name: VssdId,
    serial: u32,
    /// In the upper 16 bits of its tokens: one manager answers all.
    user: u16,
    /// It is there, durably.
    made: bool,
}

/// Logs of the area that have names.
#[derive(Clone, Debug, Default)]
pub(super) struct AreaLogs(Vec<AreaLog>);

impl AreaLogs {
    fn of(&self, name: VssdId) -> Option<&AreaLog> {
        self.0.iter().find(|l| l.name == name)
    }
    /// The vSSD of a log, once it is made; `None`: no log has this name.
    pub(super) fn inner(&self, name: VssdId) -> Option<Option<VssdId>> {
        self.of(name).map(|l| l.made.then_some(VssdId(l.serial)))
    }
    fn add(&mut self, name: VssdId, serial: u32, made: bool) {
        // There are fewer logs than users.
        let user = (FIRST_USER..u16::MAX).find(|u| self.0.iter().all(|l| l.user != *u)).unwrap_or(u16::MAX);
        self.0.push(AreaLog { name, serial, user, made });
    }
    /// To whom the manager's answer belongs. Answers of a log come before the one that says that it is gone.
    pub(super) fn answered(&mut self, done: Done) -> Option<FlashDone> {
        let token = done.token()?;
        let failed = |e: &BlockError| if let BlockError::Device(e) = e { Some(*e) } else { None };
        match done {
            Done::VssdAllocated { token, result } if token & OWN_USER == OWN_USER => {
                let at = self.0.iter().position(|l| l.serial == token as u32)?;
                let vssd = self.0[at].name;
                let result = match result {
                    Ok(_) => Ok(()),
                    Err(ManagerError::Failed(e)) => Err(e),
                    Err(_) => return None,
                };
                self.0[at].made = result.is_ok();
                if result.is_err() {
                    self.0.remove(at);
                }
                Some(FlashDone::LogMade { vssd, result })
            }
            Done::VssdFreed { token, result } if token & OWN_USER == OWN_USER => {
                let serial = token as u32;
                if result.is_ok() {
                    self.0.retain(|l| l.serial != serial);
                }
                let result = match result {
                    Ok(()) => Ok(()),
                    Err(e) => Err(failed(&e)?),
                };
                Some(FlashDone::LogGone { serial, result })
            }
            done => {
                let user = (token >> USER_BITS) as u16;
                let log = self.0.iter().find(|l| l.user == user)?;
                Some(FlashDone::Log { vssd: log.name, done })
            }
        }
    }
}

impl Ssd {
    /// Gives the log area the first run of free channels that is long enough; after all page vSSDs. A drive has at most one.
    pub fn alloc_log_area(&mut self, id: VssdId, channels: u16) -> Result<(), AllocError> {
        self.may_add(id, Share::Log { channels }.dies(self.geometry()))?;
        if self.area().is_some() {
            return Err(AllocError::Duplicate { vssd: id });
        }
        self.alloc_log(id, channels, true)
    }
    /// Its place among the log vSSDs.
    fn area(&self) -> Option<usize> {
        self.logs.iter().position(|l| l.divided.is_some())
    }
    /// Serial numbers of the logs in the log area, without those that are being deleted; none before the drive is recovered. A log
    /// that is being made may be named before it is durable, which is answered by [`FlashDone::LogMade`].
    pub fn area_logs(&self) -> Vec<u32> {
        let ready = self.area().map(|i| &self.logs[i]).filter(|l| l.phase == Phase::Divided);
        ready.map_or(Vec::new(), |l| l.manager.vssds().map(|v| v.id.0).collect())
    }
    /// Whether the log of this serial number has any block.
    pub fn area_log_used(&self, serial: u32) -> bool {
        let area = self.area().map(|i| &self.logs[i].manager);
        area.is_some_and(|m| !matches!(m.next_block(VssdId(serial), 0), Ok(None)))
    }
    /// Channels or dies that a new log in the log area can have. Those of a log that is being deleted are not free yet.
    pub fn area_free(&self, isolation: Isolation) -> u32 {
        let isolated = matches!(isolation, Isolation::Channel | Isolation::Die);
        let ready = self.area().map(|i| &self.logs[i]).filter(|l| isolated && l.phase == Phase::Divided);
        ready.map_or(0, |l| l.manager.available(isolation))
    }
    /// Makes a log with this serial number in the log area, of channels or dies; answered by [`FlashDone::LogMade`]. If its units
    /// were another log's, that one's blocks are erased first.
    ///
    /// # Errors
    /// Nothing was changed.
    pub fn create_log(
        &mut self,
        now: Time,
        (serial, name): (u32, VssdId),
        (isolation, units): (Isolation, u32),
        out: &mut FlashOut,
    ) -> Result<(), AllocDiesError> {
        let none = AllocDiesError::NoUnits { isolation, asked: units, free: 0 };
        let i = self.area().ok_or(none)?;
        if self.logs[i].phase != Phase::Divided {
            return Err(AllocDiesError::NotReady);
        }
        if self.is_log(name) {
            return Err(AllocDiesError::Exists { vssd: name });
        }
        let l = &mut self.logs[i];
        let token = OWN_USER | u64::from(serial);
        l.manager.alloc_dies(now, (VssdId(serial), isolation, units), token, &mut l.out)?;
        l.divided.as_mut().expect("the area").add(name, serial, false);
        self.log_out(i, now, out);
        Ok(())
    }
    /// Gives the log of this serial number, which the drive has ([`Ssd::area_logs`]), its name. One that has a name keeps it.
    ///
    /// # Panics
    /// The drive has no such log.
    pub fn name_log(&mut self, serial: u32, name: VssdId) {
        assert!(self.area_logs().contains(&serial), "log {serial} is not on {}", self.cfg.id);
        let logs = self.area().and_then(|i| self.logs[i].divided.as_mut()).expect("it has a log");
        if !logs.0.iter().any(|l| l.serial == serial) {
            logs.add(name, serial, true);
        }
    }
    /// Deletes the log of this serial number, which the drive has ([`Ssd::area_logs`]): its data is gone, and its units can be had
    /// again, when that is answered by [`FlashDone::LogGone`].
    ///
    /// # Errors
    /// Nothing was changed: the log is in use, and a retry helps; the drive has failed, or has no such log.
    pub fn delete_log(&mut self, now: Time, serial: u32, out: &mut FlashOut) -> Result<(), BlockError> {
        let i = self.area().ok_or(BlockError::UnknownVssd { vssd: VssdId(serial) })?;
        let l = &mut self.logs[i];
        l.manager.dealloc_vssd(now, VssdId(serial), OWN_USER | u64::from(serial), &mut l.out)?;
        self.log_out(i, now, out);
        Ok(())
    }
    /// Number in the upper 16 bits of the tokens of this log's user. Answers for logs in the log area are passed on by it.
    ///
    /// # Panics
    /// The drive has no such log vSSD.
    pub fn log_user(&self, vssd: VssdId) -> u16 {
        let in_area = self.logs.iter().find_map(|l| l.divided.as_ref()?.of(vssd));
        match in_area {
            Some(l) => l.user,
            None if self.is_log(vssd) => SINGLE_USER,
            None => panic!("{vssd} is no log vSSD of {}", self.cfg.id),
        }
    }
}
