//! vLFS: headers and records; and a mount of a damaged drive.

use arbitrary::{Result, Unstructured};
use rackweave_core::VssdId;
use rackweave_flash::backend::Memory;
use rackweave_flash::manager::ManagerConfig;
use rackweave_flash::manager::driver::BlockingDrive;
use rackweave_vlfs::format::{Addr, HEADER, Header, Place, Record, records};
use rackweave_vlfs::{Attr, Disk, Made, NAME_MAX, Owner, ROOT, Stamp, Vlfs};

use super::stored::{Damage, config, damage, new_drive};
use crate::corrupt::corrupt;
use crate::cost::within;

/// Slots of a block.
const BLOCK_SLOTS: u32 = 32;

pub(super) fn format(input: &[u8]) {
    _ = formats(&mut Unstructured::new(input));
}

fn place(u: &mut Unstructured<'_>) -> Result<Place> {
    let at = Addr::new(u.arbitrary()?, u.int_in_range(0..=BLOCK_SLOTS)?);
    Ok(Place { epoch: u.int_in_range(1..=u64::MAX)?, sequence: u.arbitrary()?, at })
}

fn formats(u: &mut Unstructured<'_>) -> Result<()> {
    let h = Header {
        flags: u.arbitrary()?,
        place: place(u)?,
        slots: u.int_in_range(0..=40u32)?,
        data_slots: u.int_in_range(0..=8u32)?,
        record_bytes: u.int_in_range(0..=9000u32)?,
        record_crc: u.arbitrary()?,
        data_crc: u.arbitrary()?,
        next_inode: u.arbitrary()?,
        checkpoint: if u.arbitrary()? { Some(place(u)?) } else { None },
        durable: u.arbitrary()?,
    };
    let mut b = h.encode().to_vec();
    if let Ok(read) = Header::decode(&b, BLOCK_SLOTS) {
        assert_eq!(read, h);
    }
    corrupt(u, &mut b)?;
    if let Some(head) = b.get_mut(..HEADER) {
        head[12..16].fill(0);
        let crc = crc32c::crc32c(head);
        head[12..16].copy_from_slice(&crc.to_le_bytes());
    }
    if let Ok(read) = Header::decode(&b, BLOCK_SLOTS) {
        assert_eq!(Header::decode(&read.encode(), BLOCK_SLOTS), Ok(read));
        assert!(read.place.at.slot() + read.slots <= BLOCK_SLOTS);
    }
    let mut all = Vec::new();
    let mut b = Vec::new();
    for _ in 0..u.int_in_range(0..=8u8)? {
        let r = record(u)?;
        r.encode(&mut b);
        all.push(r);
    }
    assert_eq!(records(&b), Ok(all));
    corrupt(u, &mut b)?;
    // A record is at least 12 bytes, and at most 200 in memory.
    if let Ok(read) = within(64 * b.len() + 1024, || records(&b)) {
        let mut again = Vec::new();
        read.iter().for_each(|r| r.encode(&mut again));
        assert_eq!(records(&again), Ok(read));
    }
    Ok(())
}

fn record(u: &mut Unstructured<'_>) -> Result<Record> {
    let inode = u.arbitrary()?;
    let name = |u: &mut Unstructured<'_>| Ok(vec![u.arbitrary::<u8>()?; u.int_in_range(1..=NAME_MAX)?]);
    Ok(match u.int_in_range(0..=5u8)? {
        0 => {
            let stamp = |u: &mut Unstructured<'_>| Ok(Stamp { s: u.arbitrary()?, ns: u.arbitrary()? });
            let attr = Attr {
                size: u.arbitrary()?,
                mode: u.arbitrary()?,
                uid: u.arbitrary()?,
                gid: u.arbitrary()?,
                links: u.arbitrary()?,
                rdev: u.arbitrary()?,
                atime: stamp(u)?,
                mtime: stamp(u)?,
                ctime: stamp(u)?,
            };
            Record::Inode { inode, attr, target: vec![b't'; u.int_in_range(0..=300usize)?] }
        }
        1 => Record::Link { parent: u.arbitrary()?, inode, name: name(u)? },
        2 => Record::Unlink { parent: inode, name: name(u)? },
        3 => {
            let at = Addr::new(u.arbitrary()?, u.int_in_range(0..=1000u32)?);
            Record::Extent { inode, first: u.int_in_range(0..=1u64 << 40)?, count: u.int_in_range(1..=5000u32)?, at }
        }
        4 => {
            let from = u.int_in_range(0..=1u64 << 40)?;
            Record::Unmap { inode, from, to: from + u.int_in_range(0..=1000u64)? }
        }
        _ => Record::Free { inode },
    })
}

const FILES: u8 = 4;
const SLOTS: usize = 4;
const SLOT: usize = 4096;

type Fs = Vlfs<BlockingDrive<Memory>>;

pub(super) fn mount(input: &[u8]) {
    _ = mounted(&mut Unstructured::new(input));
}

fn mounted(u: &mut Unstructured<'_>) -> Result<()> {
    let cfg = config(1, 40);
    let how = Damage::drawn(u)?;
    let (d, vssd) = new_drive(&cfg);
    let mut fs = mounted_on(&cfg, d, vssd).expect("new");
    // By file and slot, the last value of each; every value once.
    let mut last = [[0u8; SLOTS]; FILES as usize];
    let mut value = 0u8;
    for _ in 0..u.int_in_range(1..=40u8)? {
        let f = u.int_in_range(0..=FILES - 1)?;
        match u.int_in_range(0..=7u8)? {
            0 => _ = fs.sync(),
            1 => {
                if fs.unlink(ROOT, &[b'a' + f], stamp()).is_ok() {
                    last[usize::from(f)] = [0; SLOTS];
                }
            }
            _ => {
                value = value.wrapping_add(1).max(1);
                let slot = u.int_in_range(0..=SLOTS - 1)?;
                if write(&mut fs, f, slot, value) {
                    last[usize::from(f)][slot] = value;
                }
            }
        }
    }
    // The data that became durable last looks like a torn end if it is damaged, until data behind it proves that it was
    // durable: a file that is not checked.
    for f in [FILES, FILES] {
        if fs.sync().is_err() || !write(&mut fs, f, 0, 1) {
            return Ok(());
        }
    }
    let (d, done) = fs.unmount();
    done.expect("synced");
    let mut memory = d.close().expect("in order");
    damage(u, &mut memory, &cfg, how, seal)?;
    let Ok(d) = BlockingDrive::open(cfg.clone(), memory) else { return Ok(()) };
    let Some(mut fs) = mounted_on(&cfg, d, vssd) else { return Ok(()) };
    verify(&mut fs, &last, how);
    for f in 0..FILES {
        if write(&mut fs, f, 0, 255) {
            last[usize::from(f)][0] = 255;
        }
    }
    _ = fs.sync();
    verify(&mut fs, &last, how);
    Ok(())
}

fn mounted_on(cfg: &ManagerConfig, d: BlockingDrive<Memory>, vssd: VssdId) -> Option<Fs> {
    let blocks = d.manager().blocks(vssd).ok()?.0;
    let disk = Disk { vssd, blocks, page_bytes: cfg.profile.geometry.page_bytes };
    Vlfs::mount(d, disk, Owner::default(), stamp()).map_err(|(_, e)| assert!(!e.to_string().is_empty())).ok()
}

fn stamp() -> Stamp {
    Stamp { s: 1, ns: 2 }
}

fn write(fs: &mut Fs, f: u8, slot: usize, value: u8) -> bool {
    let name = [b'a' + f];
    let inode = match fs.lookup(ROOT, &name) {
        Ok(i) => i,
        Err(_) => match fs.make(ROOT, &name, (Made::File, 0o644), Owner::default(), stamp()) {
            Ok(i) => i,
            Err(_) => return false,
        },
    };
    fs.write(inode, (slot * SLOT) as u64, &[value; SLOT], stamp()).is_ok()
}

/// Every file reads as one value throughout, and unless it was forged as the last one.
fn verify(fs: &mut Fs, last: &[[u8; SLOTS]; FILES as usize], how: Damage) {
    if how != Damage::Forged {
        fs.check().expect("sound");
    }
    for f in 0..FILES {
        let Ok(inode) = fs.lookup(ROOT, &[b'a' + f]) else {
            let gone = last[usize::from(f)] == [0; SLOTS];
            assert!(gone || how != Damage::Flipped, "file {f} is gone, without an error");
            continue;
        };
        for (slot, &want) in last[usize::from(f)].iter().enumerate() {
            let mut b = [0; SLOT];
            if fs.read(inode, (slot * SLOT) as u64, &mut b).is_err() || how != Damage::Flipped {
                continue;
            }
            assert!(b.iter().all(|x| *x == want), "file {f}, slot {slot}: {} for {want}, without an error", b[0]);
        }
    }
}

/// A header's checksum.
fn seal(b: &mut [u8]) {
    if b.starts_with(b"RWVLFS") {
        b[12..16].fill(0);
        let crc = crc32c::crc32c(&b[..HEADER]);
        b[12..16].copy_from_slice(&crc.to_le_bytes());
    }
}
