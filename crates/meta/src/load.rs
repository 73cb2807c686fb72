//! The state of a service that starts, from its stored records.

use bytes::Bytes;

use crate::MetaError;
use crate::codec::{self, Record};
use crate::members::{self, Server};
use crate::node::Meta;
use crate::own::FIRST_OWN;
use crate::volumes::Volumes;

impl Meta {
    /// # Errors
    /// A record is malformed, or not of this rack.
    pub(crate) fn load(&mut self, saved: Vec<(Bytes, Bytes)>) -> Result<(), MetaError> {
        let (mut records, mut places) = (Vec::new(), Vec::new());
        let (mut views, mut holders, mut evidence) = (Vec::new(), Vec::new(), Vec::new());
        for (key, value) in saved {
            match codec::decode(&key, &value)? {
                Record::Wear(r) => self.rounds.resume(r),
                Record::NextVssd(n) => self.moves.next_vssd = n,
                Record::Sets(ids) => self.own.ids = ids,
                Record::Own(set, _) if self.by_set.contains_key(&set) => return Err(MetaError::DuplicateSet { set }),
                Record::Own(set, own) => drop(self.push_own(set, own)),
                Record::Places(set, all) => places.push((set, all)),
                Record::Node(node, state) => drop(self.moves.nodes.insert(node, state)),
                Record::Rack(r) => self.rack = r,
                Record::Drive(node, r) => drop(self.drives.insert(node, r)),
                Record::Server(node, r) => {
                    let (incarnation, drive, losses) = (r.incarnation, r.drive, r.losses.clone());
                    self.servers.known.insert(node, Server { incarnation, drive, losses, ..Server::default() });
                    self.records.insert(node, r);
                }
                Record::Set(view) => views.push(view),
                Record::Holders(set, members) => holders.push((set, members)),
                Record::Evidence(set, all) => evidence.push((set, all)),
                Record::Volume(v) => records.push(v),
            }
        }
        let last = self.sets.iter().filter(|s| s.own.is_some()).map(|s| s.view.set.0.saturating_add(1)).max();
        self.own.ids.next = self.own.ids.next.max(FIRST_OWN).max(last.unwrap_or(0));
        let index = |set| self.by_set.get(&set).copied().ok_or(MetaError::UnknownSet { set });
        for v in &records {
            // A volume that is being deleted may have outlived sets of its own.
            let needed = if v.deleting && !mutant!("meta.own.gone-unknown") { &v.to_clear } else { &v.sets };
            needed.iter().try_for_each(|s| index(*s).map(drop))?;
        }
        for (set, all) in places {
            self.sets[index(set)?].places = all;
        }
        for view in views {
            let i = index(view.set)?;
            for m in &view.members {
                if !self.sets[i].places.iter().any(|p| p.vssd == m.vssd && p.node == m.server) {
                    return Err(MetaError::Moved { set: view.set, vssd: m.vssd });
                }
            }
            self.sets[i].holders = members::without_shadows(&view);
            self.sets[i].view = view;
        }
        for (set, members) in holders {
            self.sets[index(set)?].holders = members;
        }
        for (set, all) in evidence {
            self.sets[index(set)?].evidence = all;
        }
        records.sort_by_key(|v| v.id);
        for v in records.iter().filter(|v| v.deleting) {
            self.set_jobs.clear(v.id, &v.to_clear);
        }
        self.volumes = Volumes::new(records);
        Ok(())
    }
}
