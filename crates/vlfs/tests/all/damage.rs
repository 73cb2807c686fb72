//! An unreadable page costs its own contents, and nothing else.

use rackweave_core::Payload;
use rackweave_core::device::PageAddr;
use rackweave_flash::backend::Memory;
use rackweave_flash::manager::ManagerConfig;
use rackweave_flash::manager::api::BlockError;
use rackweave_vlfs::{FsError, Made, Owner, ROOT};

use crate::rig::{Disk2, Fs, SLOT, config, mount, mount_on, new, stamp};

/// Slots of each file.
const SLOTS: u64 = 5;

fn write(fs: &mut Fs, name: &str, fill: u8) -> Result<usize, FsError> {
    let f = match fs.lookup(ROOT, name.as_bytes()) {
        Ok(f) => f,
        Err(_) => fs.make(ROOT, name.as_bytes(), (Made::File, 0o644), Owner::default(), stamp(1))?,
    };
    fs.write(f, 0, &vec![fill; (SLOTS * SLOT) as usize], stamp(2))
}
fn slot(fs: &mut Fs, name: &str, slot: u64) -> Result<u8, FsError> {
    let f = fs.lookup(ROOT, name.as_bytes())?;
    let mut to = [0; SLOT as usize];
    fs.read(f, slot * SLOT, &mut to)?;
    Ok(to[0])
}
fn left(fs: Fs) -> Memory {
    let (d, done) = fs.unmount();
    done.expect("synced");
    (*d.close().expect("closed").disk).clone()
}
/// The disk, with the flash slot damaged that holds this slot of the file.
fn damaged(cfg: &ManagerConfig, disk: &Memory, name: &str, of_file: u64) -> Memory {
    let pages = (0..cfg.profile.geometry.blocks()).flat_map(|block| (0..8).map(move |page| PageAddr { block, page }));
    for (page, of_page) in pages.flat_map(|p| [(p, 0), (p, 1)]) {
        let mut bad = disk.clone();
        if !bad.damage(page, of_page, Payload::elided(SLOT as u32, 5)) {
            continue;
        }
        let Ok(mut fs) = mount(cfg, bad.clone()) else { continue };
        if let Err(e) = slot(&mut fs, name, of_file) {
            assert!(matches!(e, FsError::Block(BlockError::Corrupt { .. })), "{e}");
            return bad;
        }
    }
    panic!("no damage to one flash slot hits slot {of_file} of {name} and allows a mount");
}

#[test]
fn damaged_data_behind_the_checkpoint_cost_their_file() {
    let cfg = config(16);
    let mut fs = new(&cfg);
    for (i, name) in ["a", "b", "c"].into_iter().enumerate() {
        write(&mut fs, name, i as u8 + 1).expect("room");
        fs.sync().expect("synced");
    }
    assert_eq!(fs.stats().checkpoints, 1);
    let mut fs = mount(&cfg, damaged(&cfg, &left(fs), "a", 2)).expect("one damaged slot does not prevent a mount");
    fs.check().expect("sound");
    let slots = |fs: &mut Fs, name| (0..SLOTS).map(|s| slot(fs, name, s).ok()).collect::<Vec<_>>();
    assert_eq!(slots(&mut fs, "a"), [Some(1), Some(1), None, Some(1), Some(1)]);
    assert_eq!((slots(&mut fs, "b"), slots(&mut fs, "c")), (vec![Some(2); 5], vec![Some(3); 5]));
    write(&mut fs, "a", 9).expect("it can be written again");
    let mut fs = mount(&cfg, left(fs)).expect("sound");
    assert_eq!(slots(&mut fs, "a"), vec![Some(9); 5]);
}

#[test]
fn damaged_data_stay_where_they_are_and_cleaning_goes_on() {
    let cfg = config(24);
    let mut fs = new(&cfg);
    let most = fs.space().slots / SLOTS * 8 / 10;
    let name = |i: u64| format!("f{i:03}");
    for i in 0..most {
        write(&mut fs, &name(i), i as u8).expect("room");
    }
    let mut fs = mount(&cfg, damaged(&cfg, &left(fs), "f007", 1)).expect("one damaged slot does not prevent a mount");
    let whole = |fs: &mut Fs, i: u64| (0..SLOTS).all(|s| slot(fs, &name(i), s) == Ok(i as u8));
    // Rewriting every other file makes all blocks be cleaned.
    for round in 0..40 {
        for i in (0..most).filter(|i| *i % 2 == 0) {
            write(&mut fs, &name(i), i as u8).unwrap_or_else(|e| panic!("round {round}, file {i}: {e}"));
        }
        fs.sync().expect("synced");
    }
    assert!(fs.stats().moved_slots > 100, "{:?}", fs.stats());
    let rot = slot(&mut fs, "f007", 1);
    assert!(matches!(rot, Err(FsError::Block(BlockError::Corrupt { .. }))), "{rot:?}");
    assert!([0, 2, 3, 4].into_iter().all(|s| slot(&mut fs, "f007", s) == Ok(7)));
    assert!((0..most).filter(|i| *i != 7).all(|i| whole(&mut fs, i)));
    // The same after a restart.
    let mut fs = mount(&cfg, left(fs)).expect("sound");
    assert!((0..most).filter(|i| *i != 7).all(|i| whole(&mut fs, i)));
    for i in (0..most).filter(|i| *i % 2 == 0) {
        write(&mut fs, &name(i), i as u8).expect("room");
    }
    // An overwrite removes the damage.
    write(&mut fs, "f007", 7).expect("room");
    for _ in 0..10 {
        (0..most).for_each(|i| assert_eq!(write(&mut fs, &name(i), i as u8), Ok((SLOTS * SLOT) as usize)));
    }
    assert!((0..most).all(|i| whole(&mut fs, i)));
    fs.check().expect("sound");
}

/// Reads that fail for a while only delay cleaning.
#[test]
fn what_cannot_be_read_for_a_while_is_cleaned_afterwards() {
    let cfg = config(24);
    let mut fs = new(&cfg);
    let most = fs.space().slots / SLOTS * 8 / 10;
    let name = |i: u64| format!("f{i:03}");
    for i in 0..most {
        write(&mut fs, &name(i), i as u8).expect("room");
    }
    let space = fs.space();
    let disk = Disk2::on(left(fs));
    let reads_fail = disk.reads_fail.clone();
    let mut fs = mount_on(&cfg, disk).expect("sound");
    let mut turned_away = 0;
    for round in 0..40 {
        reads_fail.set(round % 4 == 1);
        for i in (0..most).filter(|i| *i % 2 == 0) {
            match write(&mut fs, &name(i), i as u8) {
                Ok(_) => {}
                Err(FsError::Block(BlockError::Device(_))) if reads_fail.get() => turned_away += 1,
                Err(e) => panic!("round {round}, file {i}: {e}"),
            }
        }
        fs.sync().expect("synced");
    }
    assert!(turned_away > 0 && fs.stats().moved_slots > 100, "{turned_away}, {:?}", fs.stats());
    assert_eq!(fs.space(), space);
    assert!((0..most).all(|i| (0..SLOTS).all(|s| slot(&mut fs, &name(i), s) == Ok(i as u8))));
    fs.check().expect("sound");
}

/// Names take space in every checkpoint, although no file has data.
#[test]
fn a_file_system_full_of_names_gives_them_back() {
    let cfg = config(16);
    let mut fs = new(&cfg);
    let target = vec![b't'; 4000];
    let name = |i: u32| format!("link{i}").into_bytes();
    for round in 0..3 {
        let mut made = 0;
        let full = loop {
            let what = Made::Symlink(&target);
            match fs.make(ROOT, &name(made), (what, 0o777), Owner::default(), stamp(1)) {
                Ok(_) => made += 1,
                Err(e) => break e,
            }
            if made % 50 == 0 {
                fs.sync().expect("synced");
            }
            assert!(made < 2000, "they do not fit");
        };
        assert!(matches!(full, FsError::NoSpace { .. }), "round {round}: {full}");
        assert!(made > 60, "round {round}: full after {made}");
        fs.sync().expect("synced");
        fs = mount(&cfg, left(fs)).expect("sound");
        for i in 0..made {
            fs.unlink(ROOT, &name(i), stamp(1)).unwrap_or_else(|e| panic!("round {round}, {i} of {made}: {e}"));
        }
        fs.sync().expect("synced");
        assert_eq!(fs.space().inodes, 1);
    }
    fs.check().expect("sound");
}
