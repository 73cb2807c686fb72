//! Keys of a running rack, and forged datagrams in it, on real sockets.

use std::fs;
use std::io::{BufRead, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rackweave_core::Rng;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, date_time_ymd,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value;

use crate::harness::{Rack, pause, rackweave, text, wait_for};
use crate::nbd::pattern;

/// Longest write while keys change: below what a disk's client notices, above what a busy machine's scheduling takes.
const PAUSE_MAX: Duration = Duration::from_secs(2);

fn processes(s: &Value) -> &Vec<Value> {
    s["processes"].as_array().expect("processes")
}

fn network(s: &Value, name: &str) -> u64 {
    let counts = s["network"].as_array().expect("counts");
    counts.iter().find(|c| c[0] == name).map_or(0, |c| c[1].as_u64().expect("count"))
}

fn all_have_keys(s: &Value, ids: &[u64]) -> bool {
    processes(s)
        .iter()
        .all(|p| p["keys"].as_array().is_some_and(|k| k.iter().filter_map(Value::as_u64).eq(ids.iter().copied())))
}

fn signal(pid: i64, signal: i32) {
    assert!(pid > 1);
    // SAFETY: a signal to a child of our child.
    unsafe { libc::kill(pid as i32, signal) };
}

#[test]
fn the_clusters_key_changes_under_load_without_a_pause() {
    let r = Rack::with(&["--processes"]);
    r.volume("v", "16M");
    let mut c = r.connect("v");
    assert!(all_have_keys(&r.status(), &[1]));
    let data = r.data().display().to_string();
    let mut rotate = rackweave(&["keys", "rotate", "--data", &data]).stdout(Stdio::piped()).spawn().expect("spawns");
    let (mut n, mut longest) = (0u64, Duration::ZERO);
    let ended = loop {
        let began = Instant::now();
        c.write((n % 256) * 4096, &pattern(n % 256, n));
        assert!(c.read((n % 256) * 4096, 4096) == pattern(n % 256, n));
        longest = longest.max(began.elapsed());
        n += 1;
        if let Some(ended) = rotate.try_wait().expect("wait") {
            break ended;
        }
    };
    assert!(ended.success(), "{ended}");
    println!("{n} writes and reads meanwhile, the longest pair took {longest:?}");
    assert!(n > 100 && longest < PAUSE_MAX, "{n} writes, {longest:?}");
    let s = r.status();
    assert!(all_have_keys(&s, &[2]), "{s}");
    // No node was sent anything that it could not open.
    assert_eq!((network(&s, "drop_unknown_key"), network(&s, "drop_bad_tag")), (0, 0), "{s}");
    let file = fs::read_to_string(r.data().join("cluster.key")).expect("key file");
    assert!(file.lines().count() == 2 && file.contains("\n2 "), "the old key is gone from the file");

    // While one does not answer nothing changes; repeated, the rotation continues.
    let server =
        processes(&s).iter().find(|p| p["name"] == "server-1").expect("server-1")["pid"].as_i64().expect("pid");
    signal(server, libc::SIGSTOP);
    let e = r.fails(1, &["keys", "rotate"]);
    assert!(e.contains("server-1") && e.contains("repeat the command"), "{e}");
    signal(server, libc::SIGCONT);
    wait_for("server-1 answers", || processes(&r.status()).iter().all(|p| p["error"].is_null()));
    // Interrupted while both are in use, then repeated.
    let mut rotate = rackweave(&["keys", "rotate", "--data", &data]).stdout(Stdio::piped()).spawn().expect("spawns");
    wait_for("all send with the new key", || all_have_keys(&r.status(), &[3, 2]));
    rotate.kill().expect("ends");
    rotate.wait().expect("wait");
    assert!(all_have_keys(&r.status(), &[3, 2]));
    r.ok(&["keys", "rotate"]);
    assert!(all_have_keys(&r.status(), &[3]));
    // A restarted node has the new key.
    signal(server, libc::SIGKILL);
    wait_for("server-1 is started again", || all_have_keys(&r.status(), &[3]));
    c.write(0, &pattern(0, 9));
    c.flush();
}

/// Copies of the UDP datagrams that go to `to`, as they pass the loopback interface.
struct Tap(OwnedFd, SocketAddr);

impl Tap {
    fn new(to: SocketAddr) -> Option<Tap> {
        // SAFETY: a new descriptor, owned from here on.
        let fd = unsafe {
            let ip = (libc::ETH_P_IP as u16).to_be();
            let fd = libc::socket(libc::AF_PACKET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, i32::from(ip));
            (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))?
        };
        Some(Tap(fd, to))
    }
    fn next(&self) -> Option<Vec<u8>> {
        let mut b = vec![0u8; 1 << 17];
        loop {
            // SAFETY: the kernel writes at most as many bytes as there is room for.
            let n = unsafe { libc::recv(self.0.as_raw_fd(), b.as_mut_ptr().cast(), b.len(), libc::MSG_DONTWAIT) };
            if n < 28 {
                return None;
            }
            let SocketAddr::V4(to) = self.1 else { return None };
            if b[9] == 17 && b[16..20] == to.ip().octets() && b[22..24] == to.port().to_be_bytes() {
                return Some(b[28..n as usize].to_vec());
            }
        }
    }
}

#[test]
fn datagrams_of_unknown_senders_are_dropped_and_counted_by_reason() {
    let r = Rack::with(&["--processes"]);
    r.volume("v", "16M");
    let mut c = r.connect("v");
    let s = r.status();
    let address = |name: &str| -> SocketAddr {
        let p = processes(&s).iter().find(|p| p["name"] == name).unwrap_or_else(|| panic!("no {name}"));
        p["address"].as_str().expect("address").parse().expect("address")
    };
    let targets: Vec<SocketAddr> = ["meta", "switch", "server-0", "gateway-0"].map(address).to_vec();
    let Some(tap) = Tap::new(targets[2]) else {
        println!("SKIP datagrams_of_unknown_senders_are_dropped_and_counted_by_reason: no packet socket without root");
        return;
    };
    let mut good = Vec::new();
    wait_for("datagrams to server-0 are seen", || {
        (0..20).for_each(|b| c.write(b * 65_536, &pattern(b, 1)));
        good.extend(std::iter::from_fn(|| tap.next()));
        good.len() > 100
    });
    let before = r.status();
    let from = UdpSocket::bind((targets[0].ip(), 0)).expect("bind");
    let mut rng = Rng::new(11);
    for round in 0..2000 {
        let mut d = rng.pick(&good).clone();
        match round % 6 {
            0 => d = (0..rng.below(2000)).map(|_| rng.next_u64() as u8).collect(),
            1 => d.truncate(rng.below(d.len() as u64) as usize),
            2 => {
                let at = rng.below(d.len() as u64) as usize;
                d[at] ^= 1 << rng.below(8);
            }
            3 => d.resize(65_507, 0xa5),
            4 => {
                // Another key, and another version.
                let short = d[0] >= 16;
                d[if short { 20 } else { 48 }] = 77;
                if rng.chance(0.5) {
                    d[if short { 44 } else { 80 }] = 9;
                }
            }
            _ => {}
        }
        // Also to wrong destinations.
        let _ = from.send_to(&d, *rng.pick(&targets));
        if round % 50 == 0 {
            c.write(0, &pattern(0, round));
            assert!(c.read(0, 4096) == pattern(0, round));
        }
    }
    // A kernel may have dropped some; what reached a process is counted.
    let reasons =
        ["drop_malformed", "drop_version", "drop_unknown_key", "drop_bad_tag", "drop_replay", "drop_not_for_us"];
    wait_for("every reason is counted", || {
        let s = r.status();
        reasons.iter().all(|name| network(&s, name) > network(&before, name))
    });
    for b in 1..20 {
        assert!(c.read(b * 65_536, 4096) == pattern(b, 1), "block {b}");
    }
    let now = r.status();
    for p in processes(&before) {
        let same = processes(&now).iter().any(|q| q["name"] == p["name"] && q["pid"] == p["pid"]);
        assert!(same, "{} did not live through it", p["name"]);
    }
    for name in reasons {
        println!("{name}: {}", network(&now, name));
    }
}

#[test]
fn the_control_channel_is_for_hosts_of_the_cluster() {
    let mut rack = Hosts::start();
    let ask = |config: &str, args: &[&str]| {
        let o = rackweave(&[args, &["--config", config]].concat()).output().expect("runs");
        (o.status.success(), text(&o.stdout), text(&o.stderr))
    };
    let own = rack.own();
    let ours = rack.config("rack.toml", &own);
    wait_for("all processes answer", || {
        let (ok, out, _) = ask(&ours, &["status", "--json"]);
        let s: Value = serde_json::from_str(&out).unwrap_or_default();
        ok && s["processes"].as_array().is_some_and(|all| all.iter().all(|p| p["error"].is_null()))
            && s["sets"].as_array().is_some_and(|s| s.len() == 3)
    });
    // A host that runs no node may send commands too.
    let admin = rack.config("admin.toml", "keys/admin");
    let (ok, out, err) = ask(&admin, &["volume", "create", "v", "--size", "16M"]);
    assert!(ok, "{out}{err}");
    assert!(ask(&admin, &["volume", "list"]).1.contains('v'));
    let (ok, out, err) = ask(&admin, &["keys", "rotate"]);
    assert!(ok && out.contains("key 2"), "{out}{err}");

    // Another cluster's host is refused here, and refuses us; both report it.
    let foreign = rack.config("foreign.toml", &format!("foreign/{}", rack.host));
    let (ok, _, err) = ask(&foreign, &["volume", "list"]);
    assert!(!ok && err.contains("another authority"), "{err}");
    // It presents our certificate and trusts another authority: the client refuses.
    rack.copy("keys/admin", "keys/doubting", &["host.pem", "host-key.pem"]);
    rack.copy(&format!("foreign/{}", rack.host), "keys/doubting", &["ca.pem"]);
    let (ok, _, err) = ask(&rack.config("doubting.toml", "keys/doubting"), &["volume", "list"]);
    assert!(!ok && err.contains("its certificate is issued by another authority"), "{err}");
    // A key that others can read is refused.
    let open = rack.path("keys/doubting/host-key.pem");
    fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o640)).expect("chmod");
    let (ok, _, err) = ask(&rack.config("doubting.toml", "keys/doubting"), &["volume", "list"]);
    assert!(!ok && err.contains("host-key.pem: its mode is 640"), "{err}");
    // Our host, with an expired certificate.
    rack.issue_expired("keys/late", "late");
    let (ok, _, err) = ask(&rack.config("late.toml", "keys/late"), &["volume", "list"]);
    assert!(!ok && err.contains("it refuses this host's certificate: expired"), "{err}");
    // It trusts us and presents a certificate that is not ours.
    fs::copy(rack.path("keys/ca.pem"), rack.path("foreign").join(&rack.host).join("ca.pem")).expect("copy");
    let (ok, _, err) = ask(&foreign, &["volume", "list"]);
    assert!(!ok && err.contains(&format!("meta at {}", rack.host)), "{err}");
    // No certificate, no TLS, nothing at all.
    let at: SocketAddr = format!("{}:{CONTROL}", rack.host).parse().expect("address");
    let said = rack.ask_without_certificate(at);
    assert!(!said.contains(&b'{'), "a client without a certificate was told {}", text(&said));
    let mut junk = std::net::TcpStream::connect(at).expect("connect");
    junk.write_all(b"{\"op\":\"volume_list\"}\n").expect("send");
    junk.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    let mut said = Vec::new();
    let closed = std::io::Read::read_to_end(&mut junk, &mut said).map_err(|e| e.kind());
    assert!(closed != Err(std::io::ErrorKind::WouldBlock), "a client in the clear is left waiting");
    assert!(!said.contains(&b'{'), "and it is told nothing: {}", text(&said));
    let _half_open: Vec<_> = (0..20).map(|_| std::net::TcpStream::connect(at).expect("connect")).collect();
    wait_for("refusals are counted", || {
        let s: Value = serde_json::from_str(&ask(&admin, &["status", "--json"]).1).unwrap_or_default();
        s["network"].is_array()
            && network(&s, "tls_unknown_issuer") > 0
            && network(&s, "tls_protocol") > 0
            && network(&s, "tls_expired") > 0
            && network(&s, "tls_no_certificate") > 0
            && network(&s, "tls_refused_by_peer") > 0
    });
    // An unusable configuration is reported.
    let (ok, _, err) = ask(&rack.config("none.toml", "keys/nobody"), &["status"]);
    assert!(!ok && err.contains("control.certificates") && err.contains("nobody"), "{err}");
    // The nodes first present another host's certificate, then an expired one: changed files are reloaded within a
    // second.
    let seen = |what: &str, words: &str| {
        wait_for(what, || {
            let (ok, _, err) = ask(&admin, &["volume", "list"]);
            !ok && err.contains(words)
        });
    };
    rack.copy("keys/elsewhere", &own, &["host.pem", "host-key.pem"]);
    seen("another host's certificate is refused", "not valid for name");
    rack.issue_expired("keys/ended", &rack.host);
    rack.copy("keys/ended", &own, &["host.pem", "host-key.pem"]);
    seen("a certificate that has ended is refused", "certificate expired");
    rack.stop();
}

/// The control channel of the first node, and where the nodes take packets.
const CONTROL: u16 = 7500;
const PORT: u16 = 7400;

/// A rack whose processes this test starts itself, each on a port of a loopback address that nothing else uses (ports
/// of 127.0.0.1 may be taken by any program), with keys of `rackweave keys`.
struct Hosts {
    dir: crate::harness::Temp,
    host: String,
    nodes: Vec<std::process::Child>,
}

impl Hosts {
    fn start() -> Hosts {
        let dir = crate::harness::Temp::new();
        // `up --processes` uses odd numbers after the 127.
        let [_, a, b, c] = std::process::id().to_be_bytes();
        let host = format!("127.{}.{b}.{c}", 2 + 2 * (a & 63));
        let keys = |args: &[&str]| {
            let o = rackweave(args).current_dir(&dir.0).output().expect("runs");
            assert!(o.status.success(), "{args:?}: {}", text(&o.stderr));
        };
        for cluster in ["keys", "foreign"] {
            keys(&["keys", "init", cluster]);
            keys(&["keys", "add", cluster, &host, "localhost"]);
        }
        keys(&["keys", "add", "keys", "admin", "--days", "1"]);
        keys(&["keys", "add", "keys", "elsewhere"]);
        let mut rack = Hosts { dir, host, nodes: Vec::new() };
        let own = rack.own();
        let config = rack.config("rack.toml", &own);
        let socket = format!("unix:{}", rack.path("nbd.sock").display());
        let servers = ["0", "1", "2"].map(|id| vec!["server", "--id", id]);
        for what in [vec!["meta"], vec!["switch"]].into_iter().chain(servers).chain([vec!["gateway", "--nbd", &socket]])
        {
            let data = rack.path("data").display().to_string();
            let args = [&["node"], &what[..], &["--config", &config, "--data", &data]].concat();
            rack.nodes.push(rackweave(&args).stdout(Stdio::null()).spawn().expect("spawns"));
        }
        rack
    }
    /// Directory of its host's certificate.
    fn own(&self) -> String {
        format!("keys/{}", self.host)
    }
    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path(name)
    }
    fn copy(&self, from: &str, to: &str, files: &[&str]) {
        fs::create_dir_all(self.path(to)).expect("directory");
        for f in files {
            fs::copy(self.path(from).join(f), self.path(to).join(f)).expect("copy");
        }
    }
    /// A host's directory with an expired certificate of our authority.
    fn issue_expired(&self, dir: &str, name: &str) {
        let authority = CertificateDer::from_pem_file(self.path("keys/ca.pem")).expect("the authority");
        let named = b"rackweave cluster 0123456789abcdef".len();
        let at = authority.windows(named).position(|w| w.starts_with(b"rackweave cluster ")).expect("its name");
        let mut ca = CertificateParams::default();
        ca.distinguished_name.push(DnType::CommonName, text(&authority[at..at + named]));
        ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let key = fs::read_to_string(self.path("keys/ca-key.pem")).expect("its key");
        let issuer = Issuer::from_params(&ca, KeyPair::from_pem(&key).expect("a key"));
        let mut p = CertificateParams::new([name.to_string()]).expect("a name");
        p.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        p.not_after = date_time_ymd(2020, 2, 1);
        let own = KeyPair::generate().expect("a key");
        let certificate = p.signed_by(&own, &issuer).expect("signs");
        self.copy("keys/admin", dir, &["ca.pem", "host-key.pem"]);
        fs::write(self.path(dir).join("host.pem"), certificate.pem()).expect("write");
        fs::write(self.path(dir).join("host-key.pem"), own.serialize_pem()).expect("write");
    }
    /// A node's answer to a client that trusts our authority and has no certificate.
    fn ask_without_certificate(&self, at: SocketAddr) -> Vec<u8> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.path("keys/ca.pem")).expect("the authority")).expect("a root");
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("TLS");
        let config = config.with_root_certificates(roots).with_no_client_auth();
        let conn = ClientConnection::new(config.into(), self.host.clone().try_into().expect("a name")).expect("begins");
        let tcp = std::net::TcpStream::connect(at).expect("connect");
        tcp.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        let (mut stream, mut said) = (StreamOwned::new(conn, tcp), Vec::new());
        // The refusal may come before or after this is sent.
        let _ = stream.write_all(b"{\"op\":\"volume_list\"}\n").and_then(|()| stream.flush());
        let _ = std::io::BufReader::new(stream).read_until(b'\n', &mut said);
        said
    }
    /// A configuration with these certificates.
    fn config(&self, name: &str, certificates: &str) -> String {
        let p = |n: u16| format!("\"{}:{}\"", self.host, PORT + n);
        let text = format!(
            "servers = 3\n[ssd]\nsize = \"256M\"\ntiming = \"none\"\n[control]\nport = {}\ncertificates = \"{certificates}\"\n\
             [hosts]\nmeta = {}\nswitch = {}\nservers = [{}, {}, {}]\ngateways = [{}]\nkey_file = \"keys/cluster.key\"\n",
            CONTROL,
            p(0),
            p(1),
            p(2),
            p(3),
            p(4),
            p(5)
        );
        fs::create_dir_all(self.path("data")).expect("directory");
        fs::write(self.path(name), text).expect("write");
        self.path(name).display().to_string()
    }
    fn stop(&mut self) {
        for n in &self.nodes {
            signal(i64::from(n.id()), libc::SIGTERM);
        }
        for n in &mut self.nodes {
            wait_for("a node stops", || n.try_wait().expect("wait").is_some());
        }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for n in &mut self.nodes {
            let _ = n.kill();
            let _ = n.wait();
        }
        pause();
    }
}
