//! Puts the header beside the static library.

use std::path::Path;

fn main() {
    let header = "include/rackweave_vssd.h";
    println!("cargo::rerun-if-changed={header}");
    println!("cargo::rerun-if-changed=build.rs");
    // OUT_DIR is <target>/<profile>/build/<package>/out.
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    let beside = Path::new(&out).ancestors().nth(3).expect("a profile's directory");
    std::fs::copy(header, beside.join("rackweave_vssd.h")).expect("the header can be copied");
}
