//! Identities, versions, conditions and views, which messages carry too.

pub use rackweave_core::msg::keys::{
    CLIENTS_PAGE_MAX, Change, Commit, Condition, Decision, Ending, Epochs, Finished, FinishedPuts, KEY_MAX, Member,
    PAGE_MAX, Partition, Put, PutId, REPLICAS_MAX, Role, Standing, Timestamp, Undecided, VALUE_MAX, Verdict, Version,
    View, page,
};
