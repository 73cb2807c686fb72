//! `[resp]`: gateways and their Redis clients.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RespSection {
    /// FLUSHALL deletes every key of the rack; otherwise it is refused.
    pub flushall: bool,
}

impl RespSection {
    pub(super) fn is_default(&self) -> bool {
        *self == RespSection::default()
    }
}
