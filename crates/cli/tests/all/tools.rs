//! Real NBD clients, where they are installed. (tests/real has the long runs.)

use std::process::{Command, Stdio};

use crate::harness::{Rack, Temp, text};

/// The tool, or a line that reports what was skipped without it.
fn tool(test: &str, name: &str) -> Option<Command> {
    let found = ["/usr/bin", "/usr/local/bin", "/bin"].iter().map(|d| format!("{d}/{name}"));
    match found.into_iter().find(|p| std::path::Path::new(p).exists()) {
        Some(p) => {
            let mut c = Command::new(p);
            c.stdin(Stdio::null());
            Some(c)
        }
        None => {
            println!("SKIP {test}: {name} is not installed");
            None
        }
    }
}

fn ok(mut c: Command) -> String {
    let o = c.output().expect("runs");
    assert!(o.status.success(), "{c:?}: {}{}", text(&o.stdout), text(&o.stderr));
    text(&o.stdout)
}

fn image(dir: &Temp, name: &str) -> (std::path::PathBuf, Vec<u8>) {
    let mut x = 7u64;
    let mut data: Vec<u8> = (0..6 << 20)
        .map(|_| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (x >> 33) as u8
        })
        .collect();
    data[1 << 20..3 << 20].fill(0);
    let path = dir.path(name);
    std::fs::write(&path, &data).expect("write");
    (path, data)
}

#[test]
fn nbdinfo_sees_the_exports() {
    let Some(mut c) = tool("nbdinfo_sees_the_exports", "nbdinfo") else { return };
    let r = Rack::start();
    r.volume("vm0", "64M");
    c.arg(r.uri("vm0"));
    let info = ok(c);
    for word in ["export-size: 67108864", "base:allocation", "can_multi_conn: true", "can_fua: true"] {
        assert!(info.contains(word), "{word}: {info}");
    }
}

#[test]
fn nbdcopy_brings_an_image_in_and_out() {
    let test = "nbdcopy_brings_an_image_in_and_out";
    let (Some(mut inward), Some(mut outward)) = (tool(test, "nbdcopy"), tool(test, "nbdcopy")) else { return };
    let r = Rack::start();
    r.volume("vm0", "6M");
    let (path, data) = image(&r.dir, "in.img");
    inward.args([path.display().to_string(), r.uri("vm0")]);
    ok(inward);
    let out = r.dir.path("out.img");
    outward.args([r.uri("vm0"), out.display().to_string()]);
    ok(outward);
    assert!(std::fs::read(out).expect("read") == data);
}

#[test]
fn qemu_img_brings_an_image_in_and_out() {
    let test = "qemu_img_brings_an_image_in_and_out";
    let (Some(mut inward), Some(mut outward)) = (tool(test, "qemu-img"), tool(test, "qemu-img")) else { return };
    let r = Rack::start();
    r.volume("vm0", "6M");
    let (path, data) = image(&r.dir, "in.img");
    inward.args(["convert", "-n", "-f", "raw", "-O", "raw"]).arg(path).arg(r.uri("vm0"));
    ok(inward);
    let out = r.dir.path("out.img");
    outward.args(["convert", "-f", "raw", "-O", "raw"]).arg(r.uri("vm0")).arg(&out);
    ok(outward);
    assert!(std::fs::read(out).expect("read") == data);
}

#[test]
fn fio_verifies_what_it_wrote() {
    let Some(mut c) = tool("fio_verifies_what_it_wrote", "fio") else { return };
    let r = Rack::start();
    r.volume("vm0", "32M");
    c.current_dir(&r.dir.0);
    c.args([
        "--name=j",
        "--ioengine=nbd",
        "--rw=randwrite",
        "--bs=4k",
        "--iodepth=32",
        "--size=16M",
        "--verify=crc32c",
    ]);
    c.args(["--verify_fatal=1", "--randseed=7"]).arg(format!("--uri={}", r.uri("vm0")));
    ok(c);
}

#[test]
fn nbdsh_writes_reads_and_queries() {
    let Some(mut c) = tool("nbdsh_writes_reads_and_queries", "nbdsh") else { return };
    let r = Rack::start();
    r.volume("vm0", "16M");
    c.env("PATH", "/usr/bin:/bin");
    c.args([
        "-u",
        &r.uri("vm0"),
        "-c",
        "h.pwrite(b'x'*1024, 512); h.flush(); assert h.pread(2048, 0) == b'\\0'*512 + b'x'*1024 + b'\\0'*512",
    ]);
    c.args(["-c", "h.trim(4096, 0); h.zero(4096, 8192); assert h.pread(512, 512) == b'\\0'*512"]);
    ok(c);
}
