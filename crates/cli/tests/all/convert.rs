//! Racks created by version b1db240, in one process and in several, are converted (docs/cli.md, `rackweave convert`).

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::harness::{Rack, Temp, rackweave, text};
use crate::nbd::pattern;

/// The rack's data directory, `data` in the returned one: 3 servers of 16 MiB, profile `femu`; of the volume `v` every fourth of 256
/// blocks was written, 64 to 127 twice, and 200 to 239 trimmed.
fn made_by_b1db240(how: &str) -> Temp {
    let dir = Temp::new();
    let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/b1db240-{how}.tar.zst"));
    let packed = std::fs::File::open(packed).expect("in the tree");
    let tar = zstd::stream::decode_all(packed).expect("zstd");
    let mut child = Command::new("tar")
        .args(["-x", "-C"])
        .arg(&dir.0)
        .stdin(Stdio::piped())
        .spawn()
        .expect("tar is part of every system");
    child.stdin.take().expect("piped").write_all(&tar).expect("written");
    assert!(child.wait().expect("ended").success());
    dir
}

fn check(r: &Rack) {
    let mut c = r.connect("v");
    for b in 0..256 {
        let got = c.read(b * 4096, 4096);
        let version = if (64..128).contains(&b) { 2 } else { 1 };
        let written = b % 4 == 0 && !(200..240).contains(&b);
        let right = if written { got == pattern(b, version) } else { got.iter().all(|&x| x == 0) };
        assert!(right, "block {b}");
    }
}

fn is_brought_over(how: &str, extra: &[&str], drive: impl Fn(u32) -> String) {
    let dir = made_by_b1db240(how);
    let data = dir.path("data").display().to_string();
    let nbd = format!("unix:{}", dir.path("x.sock").display());
    let run = |args: &[&str], status: i32| {
        let o = rackweave(args).output().expect("runs");
        assert_eq!(o.status.code(), Some(status), "{args:?}: {}", text(&o.stderr));
        text(&o.stdout) + &text(&o.stderr)
    };
    let up = [&["up", "--timing", "none", "--data", &data, "--nbd", &nbd], extra].concat();
    let e = run(&up, 1);
    assert!(e.contains(".rwk") && e.contains("rackweave convert"), "{e}");
    for what in ["converted", "needs no conversion"] {
        let said = run(&["convert", &data], 0);
        assert_eq!(said.lines().count(), 3, "{said}");
        for server in 0..3 {
            assert!(said.contains(&format!("{}: {what}", drive(server))), "{said}");
        }
    }
    let mut r = Rack::sized_with(dir, "16M", extra);
    check(&r);
    let mut c = r.connect("v");
    c.write(255 * 4096, &pattern(255, 3));
    c.flush();
    c.trim(255 * 4096, 4096);
    c.flush();
    drop(c);
    r.stop();
    r.again();
    check(&r);
}

#[test]
fn a_rack_in_one_process_is_brought_over() {
    is_brought_over("single", &[], |i| format!("data/ssd-{i}.rwk"));
}

#[test]
fn a_rack_of_processes_is_brought_over() {
    is_brought_over("processes", &["--processes"], |i| format!("data/server-{i}/ssd-{i}.rwk"));
}
