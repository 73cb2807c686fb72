//! Searches for power cuts that lose something on a drive of the flash manager:
//! `cargo run --release -p rackweave-flash --example cuts -- FIRST COUNT`. Says what happened, and the first seed that
//! found something wrong.

#[path = "../tests/all/cut_search.rs"]
mod cut_search;
#[path = "../tests/all/power_disk.rs"]
mod power_disk;
#[path = "../tests/all/power_drive.rs"]
mod power_drive;

fn main() -> Result<(), String> {
    let number =
        |i: usize, or| std::env::args().nth(i).map_or(Ok(or), |a| a.parse::<u64>().map_err(|e| format!("{a}: {e}")));
    let (first, count) = (number(1, 0)?, number(2, 2000)?);
    let cfg = cut_search::config();
    let mut seen = cut_search::Seen::default();
    for seed in first..first + count {
        let s = cut_search::run(&cfg, seed).map_err(|e| format!("seed {seed}: {e}"))?;
        seen.add(&s);
    }
    println!("{count} seeds: {seen:?}");
    Ok(())
}
