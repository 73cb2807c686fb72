//! Another number of units for a volume that has its own.
//!
//! The record of each of its sets names the number that its vSSDs are to have. A copy that differs moves to a vSSD of that
//! number, as all moves go (protocol rule 24): the new vSSD is filled while the old one serves, and the old one is erased
//! after it has left the view. One copy of a set moves at a time, in the same drive if it has the units. Units that are free for
//! the others are reserved.

use rackweave_core::admin::{self, OwnUnit, UnitsError};
use rackweave_core::{Effects, Layout, NodeId, Time};

use crate::codec::{self, OwnRecord};
use crate::members::Place;
use crate::moves::Given;
use crate::node::Meta;
use crate::trace;
use crate::volumes;

impl Meta {
    pub(crate) fn change_units(
        &mut self,
        now: Time,
        name: &str,
        (unit, count): (OwnUnit, u32),
        fx: &mut Effects,
    ) -> Result<admin::Reply, admin::Error> {
        let (sets, units) = self.may_change_units(now, name, unit, count)?;
        for &i in &sets {
            let Some(own) = self.sets[i].own.as_mut() else { continue };
            own.record.units = units;
            let (record, set) = (own.record, self.sets[i].view.set);
            if !mutant!("meta.units.not-durable") {
                self.out.put(codec::own_key(set), Some(codec::encode_own(&record)));
            }
            fx.trace(trace::UNITS_CHANGED, u64::from(set.0), u64::from(units));
        }
        if self.begin_moves(now, fx) {
            (0..self.sets.len()).for_each(|i| self.look_again(now, i, fx));
        }
        Ok(admin::Reply::from(self.with_use(volumes::info(self.volumes.find(name)?))))
    }

    /// The volume's sets, and the units of each of their vSSDs.
    fn may_change_units(
        &self,
        now: Time,
        name: &str,
        unit: OwnUnit,
        count: u32,
    ) -> Result<(Vec<usize>, u8), admin::Error> {
        let v = self.volumes.find(name)?;
        let name = || Box::from(name);
        let own = self.own_sets(v.id).ok_or_else(|| UnitsError::None { name: name() })?;
        let (n, OwnRecord { unit: has, units: before, .. }) = (own.len() as u32, own[0].1);
        if has != unit || !has.joins() {
            return Err(UnitsError::OtherUnit { name: name(), unit: has }.into());
        }
        if n * u32::from(before) == count {
            return Err(UnitsError::Same { name: name(), unit, count }.into());
        }
        let sets: Vec<usize> = own.iter().map(|o| o.0).collect();
        let places = || sets.iter().flat_map(|&i| &self.sets[i].places);
        let moves = places().any(|p| p.replaces.is_some() || p.leaving);
        // A change that waits for units can be taken back.
        let back = places().any(|p| n * u32::from(p.units) == count);
        if moves || (places().any(|p| p.units != before) && !back) {
            return Err(UnitsError::Changing { name: name() }.into());
        }
        let most = n * u32::from(self.cfg.own_of(unit).slots);
        if count == 0 || !count.is_multiple_of(n) || count > most {
            return Err(UnitsError::Striped { name: name(), count, sets: n, most }.into());
        }
        let units = (count / n) as u8;
        let holds = self.limits_of_units((unit, units), v.sets.clone()).promise;
        let needs = v.size.max(self.with_use(volumes::info(v)).used);
        if needs > holds && !mutant!("meta.units.too-small") {
            return Err(UnitsError::TooSmall { name: name(), unit, count, needs, holds }.into());
        }
        self.ids_left(sets.iter().map(|&i| self.sets[i].places.len()).sum())?;
        self.rows_free(now, &sets, (unit, units)).map_err(|(server, row)| UnitsError::NoRow {
            name: name(),
            unit,
            count: u32::from(units),
            server,
            row,
        })?;
        Ok((sets, units))
    }

    /// Units that are free and wait for copies which are to get another number, of all sets but these: no other vSSD takes them.
    pub(crate) fn reserved(&self, now: Time, except: &[usize]) -> Given {
        let mut given = Given::default();
        for (i, s) in self.sets.iter().enumerate().filter(|(i, _)| !except.contains(i)) {
            let Some(OwnRecord { unit, units, .. }) = s.own.map(|o| o.record) else { continue };
            let replaced = |p: &Place| s.places.iter().any(|o| o.replaces.is_some_and(|r| r.vssd == p.vssd));
            for p in s.places.iter().filter(|p| p.units != units && !p.leaving && !replaced(p)) {
                let may = |n| n == p.node || self.cannot_take(now, n).is_none();
                self.give_row(i, p, (unit, units), &mut given, may);
            }
        }
        given
    }
    /// Gives the copy a row of free units on its server, or on another that has none of the set.
    fn give_row(
        &self,
        i: usize,
        p: &Place,
        (unit, units): (OwnUnit, u8),
        given: &mut Given,
        may: impl Fn(NodeId) -> bool,
    ) -> Option<NodeId> {
        let same_rack = |n: &NodeId| self.cfg.layout.rack(*n) == self.cfg.layout.rack(p.node);
        let has_copy = |n: &NodeId| self.sets[i].places.iter().any(|o| o.node == *n);
        let others = self.moves.nodes.keys().copied().filter(|n| same_rack(n) && !has_copy(n));
        let row = |n| {
            let free = given.left(n, self.free_in(n, self.cfg.own_slots(unit)));
            Some((n, *self.cfg.rows(unit, &free, units).first()?))
        };
        let (node, first) = std::iter::once(p.node).chain(others).filter(|n| may(*n)).find_map(row)?;
        given.take(node, first, units);
        Some(node)
    }

    /// Whether every copy of the sets can have this number of units now, beside those that it has. Otherwise the server of
    /// the first that cannot, and the longest row of free units there.
    fn rows_free(&self, now: Time, sets: &[usize], (unit, units): (OwnUnit, u8)) -> Result<(), (u32, u32)> {
        let mut given = self.reserved(now, sets);
        for &i in sets {
            let mut elsewhere = Vec::new();
            for p in self.sets[i].places.iter().filter(|p| p.units != units) {
                let may = |n| self.cannot_take(now, n).is_none() && !elsewhere.contains(&n);
                let Some(node) = self.give_row(i, p, (unit, units), &mut given, may) else {
                    let here = given.left(p.node, self.free_in(p.node, self.cfg.own_slots(unit)));
                    let longest = (1..=here.len() as u8).rev().find(|k| !self.cfg.rows(unit, &here, *k).is_empty());
                    return Err((Layout::server_number(p.node), u32::from(longest.unwrap_or(0))));
                };
                elsewhere.push(node);
            }
        }
        Ok(())
    }
}
