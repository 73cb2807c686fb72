//! Compiles the BPF programs with clang. Without clang the crate builds all the same, and loading says what is missing.

use std::path::Path;
use std::process::Command;

const PROGRAMS: &[&str] = &["switch_tc", "switch_xdp"];
const COMPILERS: [&str; 3] = ["clang", "clang-14", "/usr/bin/clang-14"];

fn main() {
    println!("cargo:rerun-if-changed=bpf");
    println!("cargo:rerun-if-env-changed=CLANG");
    println!("cargo:rustc-check-cfg=cfg(bpf_objects)");
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    let named = std::env::var("CLANG").ok();
    let candidates = named.as_deref().into_iter().chain(COMPILERS);
    let Some(clang) = candidates.into_iter().find(|c| Command::new(c).arg("--version").output().is_ok()) else {
        println!("cargo:warning=no clang: the kernel's data planes are left out (scripts/deps test installs it)");
        // A path that does not exist makes cargo look again every time.
        println!("cargo:rerun-if-changed=/usr/bin/clang-14");
        return;
    };
    let multiarch = format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    for program in PROGRAMS {
        let to = Path::new(&out).join(program).with_extension("o");
        let output = Command::new(clang)
            .args(["-O2", "-g", "-Wall", "-Wextra", "-Werror", "-target", "bpf", "-mcpu=v3"])
            .args(["-I", &multiarch, "-c", &format!("bpf/{program}.c"), "-o"])
            .arg(&to)
            .output()
            .expect("clang answered before");
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            if said.contains("file not found") {
                println!("cargo:warning=libbpf's headers are missing: the kernel's data planes are left out");
                println!("cargo:rerun-if-changed=/usr/include/bpf/bpf_helpers.h");
                return;
            }
            panic!("bpf/{program}.c does not compile:\n{said}");
        }
    }
    println!("cargo:rustc-cfg=bpf_objects");
}
