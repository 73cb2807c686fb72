//! libFuzzer over one target, which the environment variable FUZZ_TARGET names: `scripts/fuzz` builds and runs it.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use rackweave_fuzz::Target;

static TARGET: OnceLock<&'static Target> = OnceLock::new();

fn named() -> &'static Target {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    Target::find(&name).unwrap_or_else(|| panic!("FUZZ_TARGET={name:?} names no target"))
}

fuzz_target!(|data: &[u8]| {
    TARGET.get_or_init(named).check(data);
});
