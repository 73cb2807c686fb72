//! Which configuration a run has.

use super::*;
use crate::net::Address;
use crate::protocol::RespAddress;

fn options(data: &Path) -> Options {
    Options {
        data: data.into(),
        listen: Addresses {
            nbd: Address::Unix("/nowhere".into()),
            resp: RespAddress { address: Address::Unix("/nowhere".into()), required: false },
            http: None,
        },
        config: None,
        keys: false,
        servers: None,
        ssd_size: None,
        timing: None,
        victims: None,
        gateways: None,
        netns: None,
        replace_ssd: Vec::new(),
        pcap: None,
        absent: Vec::new(),
    }
}

#[test]
fn a_racks_shape_is_fixed_and_its_timing_is_not() {
    let path = std::env::temp_dir().join(format!("rackweave-up-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    let dir = DataDir::open(&path).expect("directory");
    let victims = Some(VictimPolicy::CostBenefit);
    let first = Options { servers: Some(5), timing: Some(TimingConfig::None), victims, ..options(&path) };
    let cfg = configure(&dir, &first, refuse).expect("new");
    assert_eq!((cfg.servers, cfg.ssd.timing, cfg.gc.victims), (5, TimingConfig::None, VictimPolicy::CostBenefit));
    let cfg = configure(&dir, &options(&path), refuse).expect("stored");
    assert_eq!((cfg.servers, cfg.ssd.timing, cfg.gc.victims), (5, TimingConfig::Real, VictimPolicy::Greedy));
    let other = Options { servers: Some(4), ..options(&path) };
    let e = configure(&dir, &other, refuse).unwrap_err().to_string();
    assert!(e.contains("servers = 4") && e.contains("fixed at 5"), "{e}");
    // A rack keeps its keys, whatever a configuration omits.
    let (keys, file) = (path.join("keys"), path.join("given.toml"));
    let with = Options { keys: true, ..options(&keys) };
    let made = configure(&DataDir::open(&keys).expect("directory"), &with, refuse).expect("new").kv;
    assert!(made.is_on());
    let given = |text: &str| {
        std::fs::write(&file, text).expect("written");
        let given = Options { config: Some(file.clone()), ..options(&keys) };
        configure(&DataDir::open(&keys).expect("directory"), &given, refuse)
    };
    assert_eq!(given("[gc]\nvictims = \"greedy\"\n").expect("stored").kv, made);
    let e = given("[kv]\nchannels = 0\nreplicas = 0\n").unwrap_err().to_string();
    assert!(e.contains("kv.channels = 0") && e.contains("fixed at 2"), "{e}");
    let e = given("[kv]\nchannels = 2\nreplicas = 3\nown_channels = 1\n").unwrap_err().to_string();
    assert!(e.contains("kv.own_channels = 1") && e.contains("fixed at 2"), "{e}");
    let none = Options { config: Some(file.clone()), ..options(&path) };
    std::fs::write(&file, "servers = 5\n[kv]\nreplicas = 3\n").expect("written");
    let e = configure(&dir, &none, refuse).unwrap_err().to_string();
    assert!(e.contains("kv.replicas = 3: needs kv.channels"), "{e}");
    let bad = Options { servers: Some(0), ..options(&path) };
    assert!(matches!(configure(&dir, &bad, refuse), Err(UpError::Options(_))));
    drop(dir);
    std::fs::remove_dir_all(&path).expect("remove");
}

#[test]
fn keys_complete_a_new_racks_configuration_and_one_that_cannot_be_built_is_not_kept() {
    let path = std::env::temp_dir().join(format!("rackweave-up-keys-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("directory");
    let file = path.join("given.toml");
    let new = |name: &str, text: &str, options: &dyn Fn(Options) -> Options| {
        std::fs::write(&file, text).expect("written");
        let data = path.join(name);
        let options = options(Options { config: Some(file.clone()), ..self::options(&data) });
        configure(&DataDir::open(&data).expect("directory"), &options, refuse)
    };
    let keys = |o: Options| Options { keys: true, ..o };
    let made = new("a", "[kv]\nown_channels = 2\n", &keys).expect("completed").kv;
    assert_eq!((made.replicas, made.own_channels, made.is_on()), (3, 2, true));
    let made = new("b", "[kv]\nchannels = 3\n", &keys).expect("completed").kv;
    assert_eq!((made.replicas, made.channels), (3, 3));
    let why = |e: Result<RackConfig, UpError>| e.unwrap_err().to_string();
    let e = why(new("c", "servers = 0\n[kv]\nown_channels = 2\n", &keys));
    assert!(e.contains("given.toml") && e.contains("servers = 0"), "{e}");
    let e = why(new("c", "[kv]\nown_channels = 300\n", &keys));
    assert!(e.contains("given.toml") && e.contains("kv.own_channels = 300"), "{e}");
    let e = why(new("c", "[kv]\nmin_copies = 4\n", &keys));
    assert!(e.contains("kv.min_copies = 4: 1 to kv.replicas (3)"), "{e}");
    let e = why(new("c", "[kv]\nown_channels = 2\n", &|o| o));
    assert!(e.contains("kv.own_channels = 2") && e.contains("given.toml"), "{e}");

    let small = "[kv]\nchannels = 1\nreplicas = 3\n";
    let sized = |size: u64| move |o: Options| Options { ssd_size: Some(rackweave_config::Size(size)), ..o };
    let e = why(new("d", small, &sized(1 << 30)));
    assert!(e.contains("a store needs 12: raise ssd.size"), "{e}");
    new("d", small, &sized(16 << 30)).expect("the smaller one was not kept");
    std::fs::remove_dir_all(&path).expect("remove");
}
