use super::super::file::tests::{Syncs, contents, on_a_small_disk, put, scratch};
use super::*;
use crate::poll::{Interest, Poll, drain};
use rackweave_core::Span;
use rackweave_core::node::STORES_MAX;

/// The next event; also checks that the descriptor becomes readable.
fn next(s: &mut StoreThread) -> StoreEvent {
    let mut poll = Poll::new().expect("epoll");
    let fd = s.event_fd().expect("a thread has one");
    poll.add(fd, 1, Interest::READ).expect("added");
    let mut ready = Vec::new();
    loop {
        if let Some(e) = s.poll() {
            return e;
        }
        poll.wait(Some(Span::from_secs(60)), &mut ready).expect("waited");
        assert!(!ready.is_empty(), "no event within a minute");
        drain(fd);
    }
}

fn stored(s: &mut StoreThread) {
    let e = next(s);
    assert!(matches!(e, StoreEvent::Stored), "{e:?}");
}

#[test]
fn writes_are_begun_while_the_disk_hangs_and_become_durable_in_order_a_batch_at_a_time() {
    let (path, syncs) = (scratch("thread"), Syncs::default());
    let mut s = StoreThread::start(syncs.open(&path)).expect("started");
    let before = syncs.count();
    let hangs = syncs.gate.lock().expect("not poisoned");
    for i in 0..STORES_MAX {
        s.begin(put(&format!("{:02}", i % 50), &i.to_string()));
    }
    assert!(s.poll().is_none() && s.problem().is_none());
    s.since -= HANGS_AFTER;
    let problem = s.problem().expect("it hangs");
    assert!(problem.contains(path.to_str().expect("UTF-8")) && problem.contains("1024 writes wait"), "{problem}");
    drop(hangs);
    (0..STORES_MAX).for_each(|_| stored(&mut s));
    assert!(s.poll().is_none() && s.problem().is_none());
    let took = syncs.count() - before;
    drop(s);
    let last = |i: usize| (STORES_MAX - 1 - (STORES_MAX - 1 - i) % 50).to_string();
    let want: Vec<(String, String)> = (0..50).map(|i| (format!("{i:02}"), last(i))).collect();
    assert_eq!(contents(&path), want);
    assert!(took as usize <= 2 * (STORES_MAX / BATCH_MAX + 2), "{took} syncs");
    std::fs::remove_file(&path).expect("removed");
}

#[test]
fn a_store_that_is_closed_has_written_what_was_begun() {
    let (path, syncs) = (scratch("closed"), Syncs::default());
    let mut s = StoreThread::start(syncs.open(&path)).expect("started");
    let hangs = syncs.gate.lock().expect("not poisoned");
    (0..100).for_each(|i| s.begin(put(&format!("{i:02}"), "x")));
    let closing = std::thread::scope(|scope| {
        let closing = scope.spawn(move || drop(s));
        assert!(!closing.is_finished(), "it waits");
        drop(hangs);
        closing.join()
    });
    closing.expect("closed");
    assert_eq!(contents(&path).len(), 100);
    std::fs::remove_file(&path).expect("removed");
}

#[test]
fn after_a_failed_fsync_nothing_is_stored_any_more() {
    let (path, syncs) = (scratch("final"), Syncs::default());
    let mut s = StoreThread::start(syncs.open(&path)).expect("started");
    s.begin(put("a", "1"));
    stored(&mut s);
    syncs.fail(libc::EIO);
    s.begin(put("a", "2"));
    let e = next(&mut s);
    assert!(matches!(&e, StoreEvent::Failed(e) if e.to_string().contains("Input/output error")), "{e:?}");
    syncs.fail(0);
    let before = syncs.count();
    s.begin(put("b", "3"));
    drop(s);
    assert_eq!(syncs.count(), before);
    assert!(contents(&path).iter().all(|(k, _)| k == "a"));
    std::fs::remove_file(&path).expect("removed");
}

#[test]
fn a_full_disk_is_retried_and_what_waits_is_written_in_order() {
    let dir = std::env::temp_dir().join(format!("rackweave-thread-full-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("directory");
    let path = dir.join("meta.redb");
    let test = || {
        let file = StoreFile::open(&path).expect("opens");
        let mut s = StoreThread::retrying_each(file, Duration::from_millis(10)).expect("started");
        let rest = path.with_file_name("filler");
        let mut filler = std::fs::File::create(&rest).expect("filler");
        while io::Write::write_all(&mut filler, &[1; 4096]).is_ok() {}
        let (mut begun, mut done) = (0, 0);
        let why = loop {
            s.begin(put(&format!("{begun:04}"), &"x".repeat(20_000)));
            begun += 1;
            match next(&mut s) {
                StoreEvent::Stored => done += 1,
                StoreEvent::NoRoom(e) => break e.to_string(),
                StoreEvent::Failed(e) => panic!("a full disk is not final: {e}"),
            }
            assert!(begun < 10_000, "the disk is never full");
        };
        assert!(why.contains("No space left"), "{why}");
        (0..10).for_each(|i| s.begin(put("order", &i.to_string())));
        assert!(matches!(next(&mut s), StoreEvent::NoRoom(_)), "retried");
        drop(filler);
        std::fs::remove_file(&rest).expect("removed");
        while done < begun + 10 {
            match next(&mut s) {
                StoreEvent::Stored => done += 1,
                StoreEvent::NoRoom(_) => {}
                StoreEvent::Failed(e) => panic!("a full disk is not final: {e}"),
            }
        }
        drop(s);
        let all = contents(&path);
        assert_eq!(all.len(), begun + 1, "nothing is lost");
        assert_eq!(all[begun], ("order".into(), "9".into()));
    };
    if let Err(why) = on_a_small_disk(&dir, 4 << 20, test) {
        println!("SKIP a_full_disk_is_retried_and_what_waits_is_written_in_order: {why}");
    }
    std::fs::remove_dir(&dir).expect("the directory below is empty");
}
