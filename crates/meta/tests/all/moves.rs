//! vSSDs that move: the ids of the new ones.

use rackweave_core::admin::{self, ServerError};
use rackweave_core::{DriveId, Layout, VssdId};
use rackweave_meta::{codec, ids};

use super::harness::{LEASE, Rack, Scripted, config};

#[test]
fn the_last_id_of_a_vssd_is_used_and_none_after_it() {
    let mut cfg = config();
    (cfg.layout, cfg.servers) = (Layout::new(4, 2), 4);
    let mut r = Rack::new(cfg);
    let (node, first) = (r.cfg.layout.server(3).expect("a server"), r.servers[0].clone());
    r.servers.push(Scripted { node, vssd: ids::first(0, 3, 0), drive: DriveId(0x200), ..first });
    r.saved.insert(codec::next_vssd_key(), codec::encode_next_vssd(ids::LAST_MADE));
    r.restart_meta();
    r.start_all();
    r.run(LEASE);
    let moved =
        |r: &mut Rack, request, i: usize| r.admin(request, admin::Op::VssdMove { vssd: r.servers[i].vssd, to: None });
    assert_eq!(moved(&mut r, 1, 0), Ok(admin::Reply::Done));
    let made = |r: &Rack| r.meta.places().filter(|(_, p)| p.node == node).map(|(_, p)| p.vssd).collect::<Vec<_>>();
    assert_eq!(made(&r), [VssdId(0x00fe_ffff)], "of this rack; those after it stand for partitions of keys");
    let spent = ServerError::NoIds { limit: 0x00fe_0000 };
    for restarted in [false, true] {
        if restarted {
            r.restart_meta();
            r.start_all();
            r.run(LEASE);
        }
        let e = moved(&mut r, 2, 1).expect_err("every id is used");
        assert_eq!(e, spent.clone().into(), "{e}");
        let e = r.admin(3, admin::Op::ServerDrain { server: r.servers[1].node }).expect_err("nothing can leave it");
        assert_eq!(e, spent.clone().into(), "{e}");
    }
    assert_eq!(made(&r).len(), 1);
}
