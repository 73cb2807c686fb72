//! Credit at one member (protocol rule 9): requested, granted, used and returned.

use rackweave_core::msg::io::WriteRequest;
use rackweave_core::msg::peer::{Credit, ScanEntry};
use rackweave_core::msg::{
    ALL_WITNESSES, Header, IoError, IoReply, IoRequest, Peer, Role, SectorRange, View, ViewState,
};
use rackweave_core::{BlockAddr, Incarnation, Payload, Time, Timestamp, VssdId};

use crate::single::{END, One, RECALL, V, acked, ask, block, given_back, invalidations, ts, view, write};

/// An invalidation that is resent in a new epoch has no credit, and must not take the slots granted to others.
#[test]
fn an_invalidation_without_credit_takes_no_slot_that_another_member_was_promised() {
    for role in [Role::Shadow, Role::Member] {
        let mut o = One::new(role);
        o.store.slots = 12;
        let ask = Peer::CreditRequest { slots_used: 0, pages_used: 0, want_pages: 0 };
        let granted = o.peer(1, ask);
        assert!(matches!(granted[..], [Peer::CreditGrant { credit }] if credit.slots == 12), "{granted:?}");
        let late = block(0, ts(3, 2), Timestamp::ZERO, false);
        assert!(o.inv(2, 1, late).is_empty(), "no answer, so it is resent");
        for b in 1..=12 {
            assert!(acked(&o.inv(1, u64::from(b) + 1, block(b, ts(3, 1), Timestamp::ZERO, false))));
        }
        assert_eq!(o.store.dirty.len(), 12);
        o.store.background();
        o.r.space_changed(o.now, &mut o.store, &mut o.fx);
        assert!(matches!(o.sent()[..], [Peer::CreditGrant { credit }] if credit.slots > 0), "the waiting one first");
        assert!(acked(&o.inv(2, 1, late)));
    }
}

#[test]
fn what_is_sent_again_in_a_new_epoch_uses_credit_of_that_epoch() {
    let mut o = One::new(Role::Member);
    let credit = |slots| Peer::CreditGrant { credit: Credit { slots, pages: 8, no_space: false } };
    for member in [1, 2] {
        o.peer(member, credit(8));
    }
    o.io(write(1));
    o.r.install(o.now, &view(5, Role::Member), Incarnation(50), &mut o.store, &mut o.fx);
    assert_eq!(invalidations(&o.sent()), 2, "resent without waiting for credit");
    for member in [1, 2] {
        o.peer_in(5, member, credit(1));
    }
    o.io(write(2));
    assert_eq!(o.r.unresolved(), 1, "the first write uses the one granted slot");
    for member in [1, 2] {
        o.peer_in(5, member, credit(2));
    }
    assert_eq!(o.r.unresolved(), 2);
}

#[test]
fn a_write_waits_for_pages_that_are_about_to_be_free() {
    let mut o = One::new(Role::Member);
    let credit = Credit { slots: 8, pages: 8, no_space: false };
    for member in [1, 2] {
        o.peer(member, Peer::CreditGrant { credit });
    }
    (o.store.pages, o.store.pages_coming) = (0, 1);
    assert!(o.io(write(1)).is_empty(), "no answer yet");
    assert_eq!(o.r.unresolved(), 0);
    (o.store.pages, o.store.pages_coming) = (1, 0);
    o.r.space_changed(o.now, &mut o.store, &mut o.fx);
    assert_eq!(invalidations(&o.sent()), 2);
    assert_eq!(o.io(write(2)), [IoReply::Failed(IoError::NoSpace)], "no page is free, and none will be");
}

#[test]
fn a_member_short_of_pages_recalls_unused_credit() {
    let mut o = One::new(Role::Member);
    o.store.pages = 8;
    let hoard = |o: &mut One| o.peer(1, ask(0));
    assert!(matches!(hoard(&mut o)[..], [Peer::CreditGrant { credit }] if credit.pages == 4));
    let recalled = o.peer(2, ask(6));
    assert!(matches!(recalled[..], [Peer::CreditGrant { credit }] if credit.no_space && credit.pages == 4));
    let granted = given_back(&mut o, 4, 1);
    assert!(
        matches!(granted[..], [Peer::CreditGrant { credit }] if !credit.no_space && credit.pages == 6),
        "{granted:?}"
    );
    // The member needs the pages that it kept, so now there is no space.
    o.peer(2, Peer::CreditRequest { slots_used: 0, pages_used: 0, want_pages: 8 });
    let refused = given_back(&mut o, 4, 1);
    assert!(matches!(refused[..], [Peer::CreditGrant { credit }] if credit.no_space), "{refused:?}");
}

#[test]
fn a_member_that_does_not_answer_keeps_its_credit() {
    let mut o = One::new(Role::Member);
    o.store.pages = 8;
    o.peer(1, ask(0));
    let mut recalls = 0;
    loop {
        let sent = o.peer(2, ask(6));
        assert_eq!(sent.len(), 1);
        if matches!(sent[..], [Peer::CreditGrant { credit }] if credit.pages == 4 && credit.no_space) && recalls < 4 {
            recalls += 1;
            assert!(o.peer(2, ask(6)).is_empty(), "no second recall before its interval");
            o.now = Time(o.now.0 + 5_000_000);
        } else {
            break;
        }
    }
    assert_eq!(recalls, 4);
}

#[test]
fn a_write_waits_for_pages_that_another_member_may_give_back() {
    let mut o = One::new(Role::Member);
    for member in [1, 2] {
        o.peer(member, Peer::CreditGrant { credit: Credit { slots: 8, pages: 8, no_space: false } });
    }
    o.store.pages = 2;
    o.peer(1, ask(1));
    let IoRequest::Write(w) = write(1) else { unreachable!() };
    let range = SectorRange { count: 16, ..w.range };
    let two = IoRequest::Write(Box::new(WriteRequest { range, data: Payload::elided(8192, 1), ..*w }));
    assert!(o.io(two).is_empty(), "no answer yet");
    assert_eq!(invalidations(&given_back(&mut o, 1, 0)), 2);
    assert_eq!(o.io(write(5)), [IoReply::Failed(IoError::NoSpace)], "no member has a page");
}

#[test]
fn recalled_credit_is_returned_except_for_waiting_writes() {
    let mut o = One::new(Role::Member);
    let recall = |o: &mut One, pages| {
        let header = Header { request: RECALL, ..o.header(4, 1) };
        o.peer_as(header, 1, Peer::CreditGrant { credit: Credit { slots: 8, pages, no_space: true } })
    };
    o.peer(1, Peer::CreditGrant { credit: Credit { slots: 8, pages: 8, no_space: false } });
    let told = |used| [Peer::CreditRequest { slots_used: 0, pages_used: used, want_pages: 0 }];
    // Member 2 has granted nothing, so the write waits, and needs a page of member 1.
    o.io(write(1));
    assert_eq!(recall(&mut o, 8), told(7));
    assert_eq!(recall(&mut o, 8), told(7), "reported again, returned once");
    o.peer(2, Peer::CreditGrant { credit: Credit { slots: 8, pages: 8, no_space: false } });
    assert_eq!(o.r.unresolved(), 1, "the credit that it kept suffices");
}

#[test]
fn a_recovery_needs_pages_only_of_members_that_lack_the_block() {
    let mut o = One::new(Role::Member);
    let recovering =
        View { state: ViewState::Recovering { leader: VssdId(1), witnesses: ALL_WITNESSES }, ..view(5, Role::Member) };
    o.r.install(o.now, &recovering, Incarnation(50), &mut o.store, &mut o.fx);
    let chunk = BlockAddr::new(V, 0);
    let numbered = |o: &One, from, request| Header { request, ..o.header(5, from) };
    for member in [1, 2] {
        let header = numbered(&o, member, BlockAddr::default().pack());
        let digests = [(BlockAddr::default(), u64::from(member))].into();
        o.peer_as(header, member, Peer::Digests { entries: digests, next: None });
    }
    // Both others have the block, member 1 the newer version; neither has a free page.
    for member in [1, 2] {
        let entry = ScanEntry { addr: chunk, count: 1, version: ts(6 - u64::from(member), 1), mapped: true };
        o.peer_in(5, member, Peer::Scan { from: BlockAddr::default(), until: END, entries: [entry].into() });
        let credit = Credit { slots: 1, pages: 0, no_space: false };
        o.peer_in(5, member, Peer::CreditGrant { credit });
    }
    let header = numbered(&o, 1, u64::MAX);
    let copy = Peer::Block { addr: chunk, version: ts(5, 1), data: Some(Payload::elided(4096, 7)) };
    assert_eq!(invalidations(&o.peer_as(header, 1, copy)), 2);
}
