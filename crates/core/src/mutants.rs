//! Mutants: rules broken on purpose, one per process, to show that a check notices. [`mutant!`](crate::mutant) marks
//! the place; `crates/mutants` lists and runs them. Without `--cfg mutants` the macro is the constant `false`, and no
//! binary contains a name.

/// Whether the named rule is the one to break. Names have the form `crate.subject.what`.
#[cfg(not(mutants))]
#[macro_export]
macro_rules! mutant {
    ($name:literal) => {
        $crate::mutants::NEVER
    };
}

/// Whether the named rule is the one to break. Names have the form `crate.subject.what`.
#[cfg(mutants)]
#[macro_export]
macro_rules! mutant {
    ($name:literal) => {
        $crate::mutants::is_chosen($name)
    };
}

/// Value of [`mutant!`](crate::mutant) in a build without mutants.
#[cfg(not(mutants))]
pub const NEVER: bool = false;

#[cfg(mutants)]
mod chosen {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Environment variable that names the mutant of this process.
    pub const VARIABLE: &str = "RACKWEAVE_MUTANT";

    static CHOSEN: OnceLock<Option<String>> = OnceLock::new();
    static REACHED: AtomicU64 = AtomicU64::new(0);

    pub fn is_chosen(name: &str) -> bool {
        let chosen = CHOSEN.get_or_init(|| std::env::var(VARIABLE).ok()).as_deref() == Some(name);
        if chosen {
            REACHED.fetch_add(1, Ordering::Relaxed);
        }
        chosen
    }

    /// Number of times the chosen mutant's place was reached.
    pub fn reached() -> u64 {
        REACHED.load(Ordering::Relaxed)
    }
}

#[cfg(mutants)]
pub use chosen::{VARIABLE, is_chosen, reached};
