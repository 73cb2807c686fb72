//! Pages of a drive under the flash manager that belong to another one (protocol rule 30).

use rackweave_core::device::{Backend, DeviceData, DeviceOp, PageAddr, SlotRecord};
use rackweave_flash::backend::Memory;
use rackweave_flash::isolation::Isolation;
use rackweave_flash::manager::api::{Block, BlockError, VirtualSsds};
use rackweave_flash::manager::driver::{BlockingDrive, OpenError};
use rackweave_flash::manager::record::RecordError;
use rackweave_flash::manager::{BootError, ManagerConfig};
use rackweave_flash::wear::Swap;

use crate::api::{PAGE, small};

/// A drive with a vSSD and one page of sevens, and where the page is.
fn made() -> (BlockingDrive<Memory>, Block, PageAddr) {
    let cfg = small();
    let blocks = cfg.profile.geometry.blocks();
    let mut d = BlockingDrive::open(cfg.clone(), Memory::new(cfg.profile.geometry)).expect("a new drive");
    let v = d.alloc_vssd(Isolation::Die, 0, 1).expect("room");
    let b = d.alloc_block(v).expect("free");
    d.write_data(v, b, &[7; PAGE as usize]).expect("new");
    let mut written = |block: &u32| {
        let found = d.backend_mut().execute(&DeviceOp::ReadOob { block: *block });
        matches!(found, Ok(DeviceData::Oob { pages, .. }) if pages > 0)
    };
    let block = (0..blocks).find(|b| written(b)).expect("it was written");
    (d, b, PageAddr { block, page: 0 })
}
/// The page is as it was, of another owner.
fn disown(disk: &mut Memory, page: PageAddr) {
    let Ok(DeviceData::Page(slots)) = disk.execute(&DeviceOp::ReadPage { page }) else { panic!("a page") };
    for (i, slot) in (0..).zip(slots.iter()) {
        assert!(disk.misdirect(page, i, SlotRecord { owner: 0x0001_0002, ..slot.record }));
    }
}
fn read(d: &mut BlockingDrive<Memory>, b: Block) -> Result<Vec<u8>, BlockError> {
    let mut to = vec![0; PAGE as usize];
    let at = u64::from(b.index) * d.block_size(b.vssd).expect("live");
    d.read_data(b.vssd, at, &mut to).map(|()| to)
}

#[test]
fn a_page_of_another_owner_is_not_read() {
    let (mut d, b, page) = made();
    assert_eq!(read(&mut d, b), Ok(vec![7; PAGE as usize]));
    disown(d.backend_mut(), page);
    assert_eq!(read(&mut d, b), Err(BlockError::Corrupt { block: b, page: 0 }));
}

#[test]
fn a_page_of_another_owner_is_not_copied_into_a_block_of_this_one() {
    let (mut d, b, page) = made();
    disown(d.backend_mut(), page);
    let (now, manager, out) = d.parts();
    let die = page.block / small().profile.geometry.blocks_per_die();
    assert!(manager.swap_dies(now, &Swap { dies: vec![(die, (die + 1) % 8)] }, out));
    d.settle();
    assert!(!d.manager().swapping());
    // Without the check of what is read: the page has other contents now.
    let disk = d.close().expect("no failure");
    let mut d = BlockingDrive::open(ManagerConfig { verify: false, ..small() }, disk).expect("sound");
    assert_eq!(read(&mut d, b), Ok(vec![0; PAGE as usize]));
}

#[test]
fn a_drive_with_pages_and_without_a_record_is_refused_and_nothing_is_erased() {
    let (d, _, page) = made();
    let mut disk = d.close().expect("no failure");
    disk.meta_mut().fill(0);
    let before = disk.clone();
    let e = BlockingDrive::open(small(), disk).expect_err("no record");
    assert!(
        matches!(e, OpenError::Boot(BootError::Record(RecordError::Missing { block })) if block == page.block),
        "{e}"
    );
    assert!(e.to_string().contains(&format!("erase block {} has pages", page.block)), "{e}");
    // A record that is put back finds everything.
    let mut disk = before;
    let (d, b, _) = made();
    let mut whole = d.close().expect("no failure");
    disk.meta_mut().copy_from_slice(whole.meta_mut());
    let mut d = BlockingDrive::open(small(), disk).expect("sound");
    assert_eq!(read(&mut d, b), Ok(vec![7; PAGE as usize]));
}
