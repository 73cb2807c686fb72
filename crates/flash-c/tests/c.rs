//! A C program, compiled with the system's compiler, uses the header and the static library.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The newest static library of this crate among what was built with this test.
fn library() -> PathBuf {
    let exe = std::env::current_exe().expect("a test");
    let deps = exe.parent().expect("in a directory");
    let files = std::fs::read_dir(deps).expect("readable").map(|f| f.expect("readable").path());
    let ours = |p: &PathBuf| {
        let name = p.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        name.starts_with("librackweave_vssd") && name.ends_with(".a")
    };
    let time = |p: &PathBuf| p.metadata().and_then(|m| m.modified()).expect("a file");
    files.filter(ours).max_by_key(time).expect("the static library is built with the test")
}

fn run(command: &mut Command) {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(out.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn a_c_program_keeps_a_log() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("vssd-c");
    _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("a directory");
    let (program, drive) = (dir.join("vssd"), dir.join("drive.rwk"));
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-I"]).arg(here.join("include"));
    cc.arg(here.join("tests/vssd.c")).arg(library()).args(["-lpthread", "-ldl", "-lm", "-o"]).arg(&program);
    run(&mut cc);
    run(Command::new(&program).arg(&drive));
    run(Command::new(&program).arg(&drive).arg("again"));
    let foreign = dir.join("foreign");
    std::fs::write(&foreign, [7; 8192]).expect("a file");
    let other = Command::new(&program).arg(&foreign).output().expect("runs");
    let text = String::from_utf8_lossy(&other.stderr);
    assert!(
        !other.status.success() && text.contains(": 3 ") && text.contains("the file is not a Rackweave device"),
        "{text}"
    );
    std::fs::remove_dir_all(&dir).expect("ours");
}

/// Every error has the number of the header.
#[test]
fn errors_are_numbered_as_in_the_header() {
    use rackweave_core::VssdId;
    use rackweave_flash::manager::api::{Block, BlockError};
    use rackweave_vssd::Error;
    let header = include_str!("../include/rackweave_vssd.h");
    let block = Block { vssd: VssdId(1), index: 2 };
    let some = [
        ("NULL", Error::Null),
        ("SIZE", Error::Size { size: usize::MAX }),
        ("DEAD_VSSD", BlockError::DeadVssd { vssd: VssdId(1) }.into()),
        ("FOREIGN_BLOCK", BlockError::ForeignBlock { vssd: VssdId(1), block }.into()),
        ("SEALED", BlockError::Sealed { block, written: 0 }.into()),
        ("BUSY", BlockError::Busy { block, requests: 1 }.into()),
        ("QUEUE_FULL", BlockError::QueueFull { die: 0, depth: 1 }.into()),
        ("WORN_OUT", BlockError::WornOut { vssd: VssdId(1), die: 0 }.into()),
        ("CORRUPT", BlockError::Corrupt { block, page: 0 }.into()),
        ("NOT_READY", BlockError::NotReady.into()),
    ];
    for (name, e) in some {
        let line = format!("FBX_E_{name} = {},", e.code());
        assert!(header.contains(&line), "{line}");
    }
}
