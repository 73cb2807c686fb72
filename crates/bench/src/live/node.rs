//! The loop of one node, as `rackweave node` runs it: the node until it is quiet, the network, a wait.

use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;

use rackweave_core::{NodeId, Span, Time};
use rackweave_device::OsFile;
use rackweave_net::incarnation::{Drawn, Incarnations};
use rackweave_net::net::{Links, Net};
use rackweave_runtime::clock::Clock;
use rackweave_runtime::engine::Engine;
use rackweave_runtime::poll::{Interest, Poll};
use rackweave_runtime::store::NoStore;
use rackweave_runtime::{Local, Network};
use rackweave_transport::Keys;

use super::requests::{Client, End, Measured};
use super::tcp::Tcp;

pub type EndEngine = Engine<End, OsFile, NoStore>;

/// The carrier of an end's packets.
pub trait Carrier {
    /// Whether the loop polls by receiving; otherwise it polls with epoll.
    const LOOKS: bool;
    fn fd(&self) -> RawFd;
    fn deadline(&self) -> Time;
    /// Receives packets; false if none had arrived.
    fn receive(&mut self, now: Time, engine: &mut EndEngine) -> io::Result<bool>;
    fn send(&mut self, now: Time, engine: &mut EndEngine) -> io::Result<()>;
    /// Whether the other end has ended.
    fn over(&self) -> bool {
        false
    }
}

impl Carrier for Net {
    const LOOKS: bool = true;
    fn fd(&self) -> RawFd {
        self.datagrams()
    }
    fn deadline(&self) -> Time {
        Network::deadline(self)
    }
    fn receive(&mut self, now: Time, engine: &mut EndEngine) -> io::Result<bool> {
        Network::receive(self, now, engine)
    }
    fn send(&mut self, now: Time, engine: &mut EndEngine) -> io::Result<()> {
        Network::send(self, now, engine)
    }
}

impl Carrier for Tcp {
    const LOOKS: bool = false;
    fn fd(&self) -> RawFd {
        Tcp::fd(self)
    }
    fn deadline(&self) -> Time {
        Time::MAX
    }
    fn receive(&mut self, _: Time, engine: &mut EndEngine) -> io::Result<bool> {
        self.read(|p| engine.deliver(p)).map(|()| true)
    }
    fn send(&mut self, _: Time, engine: &mut EndEngine) -> io::Result<()> {
        engine.take_outbound().try_for_each(|p| self.put(&p))?;
        self.write()
    }
    fn over(&self) -> bool {
        self.closed
    }
}

/// Runs an end until `done` returns true.
fn run<C: Carrier>(
    end: End,
    carrier: &mut C,
    mut turn: impl FnMut(&mut End) -> io::Result<bool>,
) -> io::Result<EndEngine> {
    let mut engine: EndEngine = Engine::new(end, Vec::new(), NoStore);
    let mut poll = Poll::new()?;
    poll.look_first();
    poll.add(carrier.fd(), 0, Interest::READ)?;
    let (mut clock, mut ready) = (Clock::of_one_node(), Vec::new());
    let mut now = clock.read();
    loop {
        let quiet = engine.run(now);
        now = clock.read();
        carrier.send(now, &mut engine)?;
        if carrier.over() || turn(&mut engine.nodes)? {
            return Ok(engine);
        }
        let planned = if quiet { carrier.deadline().since(now).min(Span::from_secs(1)) } else { Span::ZERO };
        if C::LOOKS {
            poll.wait_looking(Some(planned), &mut ready, || carrier.receive(clock.read_after(planned), &mut engine))?;
        } else {
            poll.wait(Some(planned), &mut ready)?;
        }
        now = clock.read_after(planned);
        if ready.iter().any(|r| r.read) {
            carrier.receive(now, &mut engine)?;
        }
    }
}

/// Serves until the other end or this process ends.
pub fn serve(carrier: &mut impl Carrier) -> io::Result<()> {
    run(End::Server(Default::default()), carrier, |_| Ok(false)).map(drop)
}

/// Drives the load to its end. `begin` is called when the measured part begins.
pub fn drive(client: Client, carrier: &mut impl Carrier, mut begin: impl FnMut()) -> io::Result<Measured> {
    let done = run(End::Client(Box::new(client)), carrier, |end| {
        let End::Client(c) = end else { return Ok(true) };
        if std::mem::take(&mut c.begun) {
            begin();
        }
        Ok(c.load.over())
    })?;
    match done.nodes {
        End::Client(c) if c.load.over() => Ok(c.load.measured()),
        _ => Err(io::ErrorKind::ConnectionAborted.into()),
    }
}

/// The rack's own transport at one end, on a network of this MTU.
pub fn transport(node: NodeId, server: SocketAddr, client: SocketAddr, keys: Keys, mtu: u16) -> io::Result<Net> {
    let unused = SocketAddr::new(server.ip(), 1);
    let incarnation = Drawn::default().above(0)?;
    let addresses = vec![unused, unused, server, client];
    let links = Links { mtu, ..Links::default() };
    Net::speaking(rackweave_transport::VERSION, links, node, addresses, keys, incarnation, incarnation)
        .map_err(io::Error::other)
}
