//! Compiles the BPF programs with clang. Without clang or libbpf's headers the crate builds all the same, looks for them
//! again at every build, and loading says what is missing.

use std::path::{Path, PathBuf};
use std::process::Command;

const PROGRAMS: &[&str] = &["switch_tc", "switch_xdp"];
/// Looked up in `PATH`; the variable `CLANG` names another.
const COMPILERS: [&str; 2] = ["clang", "clang-14"];

fn main() {
    println!("cargo:rerun-if-changed=bpf");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=CLANG");
    println!("cargo:rustc-check-cfg=cfg(bpf_objects)");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    match compile(&out) {
        Ok(clang) => {
            println!("cargo:rerun-if-changed={}", clang.display());
            println!("cargo:rustc-cfg=bpf_objects");
        }
        Err(missing) => {
            println!("cargo:warning={missing}: the kernel's data planes are left out (scripts/deps test installs it)");
            // A path that never exists makes cargo run this script at every build. The tool's own path would not do: a
            // package manager installs files with times from long before the build.
            println!("cargo:rerun-if-changed={}", out.join("absent").display());
        }
    }
}

/// The compiler used, or what is missing.
fn compile(out: &Path) -> Result<PathBuf, &'static str> {
    let clang = match std::env::var_os("CLANG") {
        Some(named) => find(Path::new(&named)).unwrap_or_else(|| panic!("CLANG={named:?} is no file, nor in PATH")),
        None => COMPILERS.iter().find_map(|c| find(Path::new(c))).ok_or("no clang")?,
    };
    let multiarch = format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    for program in PROGRAMS {
        let to = out.join(program).with_extension("o");
        let output = Command::new(&clang)
            .args(["-O2", "-g", "-Wall", "-Wextra", "-Werror", "-target", "bpf", "-mcpu=v3"])
            .args(["-I", &multiarch, "-c", &format!("bpf/{program}.c"), "-o"])
            .arg(&to)
            .output()
            .unwrap_or_else(|e| panic!("{}: {e}", clang.display()));
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            if said.contains("file not found") {
                return Err("libbpf's headers are missing");
            }
            panic!("bpf/{program}.c does not compile:\n{said}");
        }
    }
    Ok(clang)
}

/// The file that running `command` starts.
fn find(command: &Path) -> Option<PathBuf> {
    if command.components().count() > 1 {
        return command.is_file().then(|| command.into());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(command)).find(|f| f.is_file())
}
