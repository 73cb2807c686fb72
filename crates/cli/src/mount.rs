//! `rackweave mount`: the file system of a virtual SSD, until it is unmounted.

use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use fuser::{Config, MountOption, Session, SessionACL, SessionUnmounter};
use rackweave_core::VssdId;
use rackweave_device::drive;
use rackweave_vlfs::{Disk, Owner, Stamp, Vlfs};

use crate::Failure;
use crate::args::Mount;
use crate::fuse::{Fuse, SharedFs};

/// Writes are durable after this at the latest, as on the kernel's own file systems.
const SYNC_EVERY: Duration = Duration::from_secs(5);

pub fn now() -> Stamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Stamp { s: since.as_secs() as i64, ns: since.subsec_nanos() }
}

pub fn lock(fs: &SharedFs) -> MutexGuard<'_, crate::fuse::Fs> {
    fs.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Serves the file system in the foreground until `DIR` is unmounted or a signal comes.
pub fn mount(a: &Mount) -> Result<(), Failure> {
    let (file, dir) = (&a.file.drive, &a.dir);
    if !file.exists() {
        return Err(format!("{}: there is no drive (rackweave vssd create creates one)", file.display()).into());
    }
    check_dir(dir)?;
    if !Path::new("/dev/fuse").exists() {
        return Err("/dev/fuse is missing: the kernel has no FUSE, or this container has no access to it".into());
    }
    let d = drive::open(file, &a.file.profile, a.file.drive_size.0)?;
    let vssd = VssdId(a.vssd);
    let blocks = match d.manager().blocks(vssd) {
        Ok((blocks, _)) => blocks,
        Err(e) => {
            d.close()?.close()?;
            return Err(e.into());
        }
    };
    let disk = Disk { vssd, blocks, page_bytes: d.manager().geometry().page_bytes };
    // SAFETY: neither call has conditions.
    let owner = unsafe { Owner { uid: libc::geteuid(), gid: libc::getegid() } };
    let fs = match Vlfs::mount(d, disk, owner, now()) {
        Ok(mut fs) => {
            fs.set_policy(a.gc_victims.into());
            Arc::new(Mutex::new(fs))
        }
        Err((d, e)) => {
            d.close()?.close()?;
            return Err(e.into());
        }
    };
    let served = serve(&fs, a, owner.uid == 0);
    let fs = Arc::try_unwrap(fs).map_err(|_| "the file system is still in use")?;
    let (d, synced) = fs.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).unmount();
    d.close()?.close()?;
    served?;
    Ok(synced?)
}

fn check_dir(dir: &Path) -> Result<(), Failure> {
    match std::fs::metadata(dir) {
        Ok(m) if m.is_dir() => Ok(()),
        Ok(_) => Err(format!("{}: not a directory", dir.display()).into()),
        Err(e) => Err(unusable(dir, &e)),
    }
}

/// Why nothing can be mounted there.
fn unusable(dir: &Path, e: &io::Error) -> Failure {
    let dir = dir.display();
    match e.raw_os_error() {
        Some(libc::ENOTCONN) => {
            format!(
                "{dir}: a file system is mounted here whose process has ended; unmount it with fusermount3 -u {dir}"
            )
        }
        _ => format!("{dir}: {e}"),
    }
    .into()
}

fn serve(fs: &SharedFs, a: &Mount, root: bool) -> Result<(), Failure> {
    let mut config = Config::default();
    let name = format!("{}#{}", a.file.drive.display(), a.vssd);
    config.mount_options = vec![
        MountOption::FSName(name),
        MountOption::Subtype("vlfs".into()),
        MountOption::DefaultPermissions,
        MountOption::NoAtime,
    ];
    // The kernel checks permissions; only root may give others access.
    config.acl = if root { SessionACL::All } else { SessionACL::Owner };
    // Before the mount: a signal in between would leave it mounted without a process that serves it.
    let mut signals = signal_hook::iterator::Signals::new([libc::SIGINT, libc::SIGTERM])?;
    let mut session = Session::new(Fuse(fs.clone()), &a.dir, &config).map_err(|e| {
        let how = if root || e.raw_os_error() == Some(libc::ENOTCONN) {
            ""
        } else {
            " (without root, fusermount3 is needed)"
        };
        format!("{}{how}", unusable(&a.dir, &e))
    })?;
    let (ended, end) = channel::<()>();
    let stop = signals.handle();
    let (unmounter, dir, of) = (session.unmount_callable(), a.dir.clone(), fs.clone());
    let watcher = std::thread::spawn(move || watch(&mut signals, unmounter, &dir, &of));
    let of = fs.clone();
    let syncer = std::thread::spawn(move || sync_now_and_then(&of, &end));
    let mut out = io::stdout();
    // The parent may have closed our output: the file system is served on.
    let _ = writeln!(out, "vssd{} of {} is mounted on {}", a.vssd, a.file.drive.display(), a.dir.display())
        .and_then(|()| writeln!(out, "ready (Ctrl-C or fusermount3 -u unmounts)"))
        .and_then(|()| out.flush());
    let served = session.run();
    drop(ended);
    stop.close();
    let _ = (watcher.join(), syncer.join());
    Ok(served?)
}

fn sync_now_and_then(fs: &SharedFs, end: &Receiver<()>) {
    while end.recv_timeout(SYNC_EVERY) == Err(RecvTimeoutError::Timeout) {
        let mut fs = lock(fs);
        // A failure is final, and reported to every later request.
        if fs.is_dirty() {
            let _ = fs.sync();
        }
    }
}

/// The first signal unmounts; where files are open, as soon as they are closed. A second one does not wait for that.
fn watch(signals: &mut signal_hook::iterator::Signals, mut unmounter: SessionUnmounter, dir: &Path, fs: &SharedFs) {
    let mut detached = false;
    for _ in signals.forever() {
        if detached {
            let synced = lock(fs).sync().is_ok();
            std::process::exit(if synced { 0 } else { 1 });
        }
        let Err(e) = unmounter.unmount() else { continue };
        let _ =
            writeln!(io::stderr(), "{}: {e}; unmounted when its files are closed, or by another signal", dir.display());
        let path = std::ffi::CString::new(dir.as_os_str().as_encoded_bytes()).expect("it was mounted by this name");
        // SAFETY: the path ends with a zero byte.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
        detached = true;
    }
}
