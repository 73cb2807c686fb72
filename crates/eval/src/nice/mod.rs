//! NICE's cluster (NICE §6) in virtual time: its baselines "NOOB", NICE as published, and the nodes of Rackweave.
//!
//! All schemes have the same hosts, links, drives, clients, placement and costs; only processes and their messages differ. The
//! parameters are in [`params`], with their sources. Reading order: [`envelope`] (messages), [`net`] (frames, links, rings),
//! [`host`] (core, drive), [`server`] (baselines and NICE), [`access`] (gateways and clients of those), [`ours`] (the nodes of
//! `rackweave-kv-replica`), [`client`] (the load), [`cluster`] (all of it).

pub mod access;
pub mod client;
pub mod cluster;
pub mod envelope;
pub mod host;
pub mod net;
pub mod ours;
pub mod params;
pub mod server;

/// How a client's request reaches a replica (NICE §2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Replica-oblivious gateway: any server, which forwards.
    Rog,
    /// Replica-aware gateway.
    Rag,
    /// Replica-aware client.
    Rac,
}

/// How a put reaches all replicas, and when it is answered (NICE §2.1, §3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replication {
    /// The primary copies, and alone answers gets.
    PrimaryBackup,
    /// Two-phase commit; every replica answers gets.
    TwoPhase,
    /// A majority has forced the put; gets ask a majority.
    Quorum,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    Noob(Access, Replication),
    /// Quorum replication by a replica-aware proxy, through which all data goes.
    Proxy,
    /// NICE as published: rings, multicast puts, NICE-2PC. `any`: the client returns when as many replicas have forced the put.
    Nice {
        any: Option<usize>,
    },
    /// The nodes and the client of this project, as they are: puts go to each member, gets to one that the client chooses.
    Rackweave {
        any: Option<usize>,
    },
}

impl Scheme {
    pub const NICE: Scheme = Scheme::Nice { any: None };
    pub const RACKWEAVE: Scheme = Scheme::Rackweave { any: None };

    pub fn name(self) -> String {
        let access = |a| match a {
            Access::Rog => "ROG",
            Access::Rag => "RAG",
            Access::Rac => "RAC",
        };
        let replication = |r| match r {
            Replication::PrimaryBackup => "primary-backup",
            Replication::TwoPhase => "2PC",
            Replication::Quorum => "quorum",
        };
        let any = |name: &str, any: Option<usize>| any.map_or(name.into(), |k| format!("{name}, any {k}"));
        match self {
            Scheme::Noob(a, r) => format!("{} {}", access(a), replication(r)),
            Scheme::Proxy => "proxy".into(),
            Scheme::Nice { any: k } => any("NICE", k),
            Scheme::Rackweave { any: k } => any("rackweave", k),
        }
    }
}
