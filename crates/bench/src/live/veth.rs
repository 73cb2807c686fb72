//! Two network namespaces and a veth pair between them, removed when it is dropped.

use std::io;
use std::process::{Command, id};

use super::ends::Site;

#[derive(Debug)]
pub struct Veth {
    names: [String; 2],
    mtu: u16,
}

fn ip(words: &str) -> io::Result<()> {
    let out = Command::new("ip").args(words.split(' ')).output()?;
    if out.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("ip {words}: {}", String::from_utf8_lossy(&out.stderr).trim())))
}

impl Veth {
    /// Whose packets have so many bytes at the most.
    ///
    /// # Errors
    /// Without root, or without namespaces.
    pub fn new(mtu: u16) -> io::Result<Veth> {
        let names = ["a", "b"].map(|end| format!("rwbench-{}{end}", id()));
        let veth = Veth { names, mtu };
        for n in &veth.names {
            ip(&format!("netns add {n}"))?;
        }
        let [a, b] = &veth.names;
        ip(&format!("-n {a} link add rwb0 type veth peer name rwb1 netns {b}"))?;
        for (n, device, address) in [(a, "rwb0", "10.99.0.1"), (b, "rwb1", "10.99.0.2")] {
            ip(&format!("-n {n} addr add {address}/24 dev {device}"))?;
            ip(&format!("-n {n} link set {device} mtu {mtu} up"))?;
        }
        Ok(veth)
    }
    pub fn site(&self) -> Site {
        let [a, b] = self.names.clone();
        Site { server: [10, 99, 0, 1].into(), client: [10, 99, 0, 2].into(), mtu: self.mtu, namespaces: Some((a, b)) }
    }
}

impl Drop for Veth {
    fn drop(&mut self) {
        for n in &self.names {
            // It may not exist, if making it failed.
            let _ = ip(&format!("netns del {n}"));
        }
    }
}
