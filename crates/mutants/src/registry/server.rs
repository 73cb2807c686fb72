//! Mutants of what a server is made of, beside its replicas: collection and flash.

use super::plans::*;
use super::{Mutant, m};

#[rustfmt::skip]
pub const MUTANTS: &[Mutant] = &[
    m("server.gc.tell-once", "16", ONE, &["server"], "Tells the switch once that it collects unasked, and takes it to be known."),
    m("flash.gc.erase-early", "FB5", SINGLE, &["flash"], "Erases a victim before what was moved out of it is durable."),
    m("flash.manager.erase-early", "FB5", SINGLE, &["flash"], "Erases a block that nobody needs before that is durable."),
];
