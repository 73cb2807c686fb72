//! The build notices newly installed tools, whatever their files' times: cargo builds a crate with this crate's build
//! script and nothing else.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

/// A stand-in for clang: fails without the header, otherwise writes an object.
const CLANG: &str = "#!/bin/sh
[ -e HEADER ] || { echo \"fatal error: 'bpf/bpf_helpers.h' file not found\" >&2; exit 1; }
while [ \"$1\" != -o ]; do shift; done
echo object >\"$2\"
";

struct Probe {
    root: PathBuf,
    tools: PathBuf,
}

fn in_path(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").expect("set");
    let found = std::env::split_paths(&path).map(|d| d.join(name)).find(|f| f.is_file());
    found.unwrap_or_else(|| panic!("{name} is in PATH: it has linked this test"))
}

/// Installs a file like a package manager, with an old modification time.
fn install(path: &Path, text: &str) {
    fs::write(path, text).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("ours");
    let packed = SystemTime::UNIX_EPOCH + Duration::from_secs(1_600_000_000);
    fs::File::options().write(true).open(path).and_then(|f| f.set_modified(packed)).expect("ours");
}

impl Probe {
    fn new() -> Probe {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("tools");
        let _ = fs::remove_dir_all(&root);
        let tools = root.join("tools");
        for dir in ["src", "bpf", "tools"] {
            fs::create_dir_all(root.join(dir)).expect("created");
        }
        let manifest =
            "[package]\nname = \"probe\"\nedition = \"2024\"\n[lints.rust]\nunexpected_cfgs = \"allow\"\n[workspace]\n";
        fs::write(root.join("Cargo.toml"), manifest).expect("written");
        fs::write(root.join("src/main.rs"), "fn main() { println!(\"{}\", cfg!(bpf_objects)) }").expect("written");
        fs::copy(here.join("build.rs"), root.join("build.rs")).expect("copied");
        // The linker, and no clang.
        for tool in ["cc", "ld", "sh"] {
            symlink(in_path(tool), tools.join(tool)).expect("linked");
        }
        Probe { root, tools }
    }

    /// Builds, and says whether the objects are there.
    fn has_objects(&self) -> bool {
        let cargo = PathBuf::from(env!("CARGO"));
        let rustc = cargo.with_file_name("rustc");
        let rustc = if rustc.is_file() { rustc } else { in_path("rustc") };
        let out = Command::new(cargo)
            .args(["run", "--offline", "--quiet", "--target-dir", "target"])
            .current_dir(&self.root)
            .env("PATH", &self.tools)
            .env("RUSTC", rustc)
            .env_remove("CLANG")
            .env_remove("RUSTFLAGS")
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .output()
            .expect("runs");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        out.stdout == b"true\n"
    }
}

#[test]
fn a_build_notices_that_its_tools_have_come() {
    let probe = Probe::new();
    let header = probe.root.join("bpf_helpers.h");
    assert!(!probe.has_objects(), "no clang");
    let clang = CLANG.replace("HEADER", &header.display().to_string());
    install(&probe.tools.join("clang-14"), &clang);
    assert!(!probe.has_objects(), "clang without libbpf's headers");
    install(&header, "");
    assert!(probe.has_objects(), "clang and headers have come");
    assert!(probe.has_objects(), "and stay");
    fs::remove_dir_all(&probe.root).expect("ours");
}

/// Another build script that runs tools would need the test above.
#[test]
fn no_other_build_script_runs_tools() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let scripts = fs::read_dir(crates).expect("readable").map(|d| d.expect("readable").path().join("build.rs"));
    let runs = |p: &PathBuf| fs::read_to_string(p).is_ok_and(|t| t.contains("Command::") || t.contains("\"PATH\""));
    let who: Vec<_> = scripts.filter(runs).filter_map(|p| p.parent()?.file_name().map(ToOwned::to_owned)).collect();
    assert_eq!(who, ["dataplane"]);
}
