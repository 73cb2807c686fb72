//! What a power cut leaves of a log is a prefix of it.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{History, Side};

/// The change that left this value, if the value tells changes apart.
fn certain(h: &History, value: Option<&Bytes>) -> Option<u64> {
    value.filter(|v| v.len() >= 8).and_then(|v| h.find(0, Some(v))).map(|i| h.changes[i].token)
}

impl Side {
    /// No power cut took a change and left a later one, of whichever keys.
    pub(super) fn in_order(&self, found: &BTreeMap<Vec<u8>, Option<Bytes>>) -> Result<(), String> {
        let kept = self.keys.iter().filter_map(|(key, h)| certain(h, found[key].as_ref())).max().unwrap_or(0);
        for (key, h) in &self.keys {
            let earlier = h.changes.iter().rposition(|c| !c.void && c.token <= kept).unwrap_or(0);
            if h.find(earlier, found[key].as_ref()).is_none() {
                let (key, token) = (String::from_utf8_lossy(key), h.changes[earlier].token);
                return Err(format!("change {token}, of {key}, is lost, and change {kept} is kept"));
            }
        }
        Ok(())
    }
}
