//! The nodes of a rack as the engine runs them: one of each, in one process.

use bytes::Bytes;
use rackweave_block::VolumeClient;
use rackweave_core::msg::Role;
use rackweave_core::{BLOCK, Effects, Event, Layout, Node, NodeId, Time};
use rackweave_flash::{Profile, Ssd};
use rackweave_meta::Meta;
use rackweave_server::Server;
use rackweave_switch::Switch;

use super::control::Vssd;
use super::engine::Nodes;
use super::status::Describe;
use crate::build::{self, BuildError};
use crate::config::RackConfig;
use crate::file::Shape;

/// Metadata service, switch, servers, and the volume client that all gateway sessions share.
pub struct RackNodes {
    layout: Layout,
    meta: Meta,
    switch: Switch,
    servers: Vec<Server>,
    client: VolumeClient,
}

impl RackNodes {
    /// Nodes of a new life: `saved` is what the metadata service stored, `nonce` draws a number never drawn before.
    pub fn new(
        cfg: &RackConfig,
        saved: Vec<(Bytes, Bytes)>,
        mut nonce: impl FnMut() -> u64,
    ) -> Result<RackNodes, BuildError> {
        Ok(RackNodes {
            layout: Layout { servers: cfg.servers, clients: 1 },
            meta: build::meta(cfg, saved)?,
            switch: build::switch(cfg),
            servers: (0..cfg.servers).map(|i| build::server(cfg, i, nonce())).collect::<Result<_, _>>()?,
            client: build::client(cfg, 0, nonce()),
        })
    }

    pub fn server(&self, i: usize) -> Option<&Server> {
        self.servers.get(i)
    }
}

impl Nodes for RackNodes {
    fn handle(&mut self, node: NodeId, now: Time, event: Event, fx: &mut Effects) {
        match node {
            Layout::META => self.meta.handle(now, event, fx),
            Layout::SWITCH => self.switch.handle(now, event, fx),
            n => match self.servers.get_mut(n.0 as usize - 2) {
                Some(server) => server.handle(now, event, fx),
                None => self.client.handle(now, event, fx),
            },
        }
    }

    fn count(&self) -> u32 {
        self.layout.nodes()
    }
}

impl Describe for RackNodes {
    fn vssds(&self, server: NodeId, now: Time) -> Vec<Vssd> {
        let Some(s) = (server.0 as usize).checked_sub(2).and_then(|i| self.servers.get(i)) else { return Vec::new() };
        let report = s.status(now);
        let role = |r| match r {
            Some(Role::Member) => "member",
            Some(Role::Shadow) => "shadow",
            None => "none",
        };
        report
            .vssds
            .iter()
            .map(|v| Vssd {
                id: v.vssd.0,
                set: v.set.0,
                role: role(v.role).into(),
                serving: v.serving,
                epoch: v.epoch.0,
                gc: v.gc.name().into(),
                gc_runs: v.gc_runs,
                gc_episodes: v.gc_episodes,
                erases: v.erases,
                free_ratio: v.free_ratio,
                mapped_bytes: v.mapped_bytes,
                exported_bytes: v.exported_bytes,
                cache_used: v.cache_used,
                cache_slots: v.cache_capacity,
                waf: v.waf,
                redirected_reads: v.redirected_reads,
                failed: report.failed,
            })
            .collect()
    }
}

/// The shape of the rack's device files.
pub fn shape(cfg: &RackConfig) -> Result<Shape, BuildError> {
    let profile: Profile = build::profile(cfg)?;
    let g = profile.geometry;
    Ok(Shape {
        blocks: g.blocks(),
        pages_per_block: g.pages_per_block,
        page_bytes: g.page_bytes,
        meta_bytes: Ssd::meta_bytes(&g).next_multiple_of(u64::from(BLOCK)),
    })
}
