//! Images of Ceph, on a cluster that the tests start.

use std::collections::HashSet;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use floe_device::{Action, Device, Operation, Pool, RbdSource, RbdWatch, Ring, Role, Source, Spec};
use floe_testkit::{Ceph, wait_until};
use proptest::test_runner::{Config, TestRunner};

use crate::common::{SECTOR, finish, read, run, slice, thread, write};
use crate::devices::{SIZE, check, steps};

const WRITER: Role = Role::Backing { read_only: false };
const READER: Role = Role::Backing { read_only: true };

/// One for all tests that leave its processes alone.
fn cluster() -> Option<&'static Ceph> {
    static CLUSTER: OnceLock<Option<Ceph>> = OnceLock::new();
    CLUSTER.get_or_init(Ceph::start).as_ref()
}

fn prepare(text: &str, role: Role) -> Result<Source, String> {
    text.parse::<Spec>().expect(text).prepare(role).map_err(|error| error.to_string())
}

fn open(text: &str, ring: &Ring, pool: &Pool) -> Box<dyn Device> {
    prepare(text, WRITER).unwrap().open(ring, pool).unwrap()
}

#[test]
fn an_image_is_an_array_of_bytes() {
    let Some(ceph) = cluster() else { return };
    let (ring, pool) = thread();
    let device = std::cell::RefCell::new(open(&ceph.image("array", SIZE), &ring, &pool));
    let mut runner = TestRunner::new(Config::with_cases(24));
    let result = runner.run(&steps(), |steps| {
        let mut device = device.borrow_mut();
        let all = Action::Zero { len: SIZE, may_unmap: true, fast: false };
        run(&ring, &mut **device, 0, all).unwrap();
        check(&ring, &pool, &mut **device, &steps);
        Ok(())
    });
    result.unwrap();
}

#[test]
fn many_operations_of_two_threads_are_under_way_at_once() {
    let Some(ceph) = cluster() else { return };
    const EACH: u64 = 64;
    let source = prepare(&ceph.image("threads", 2 * EACH * SECTOR as u64), WRITER).unwrap();
    let work = |number: u64| {
        let (ring, pool) = thread();
        let mut device = source.open(&ring, &pool).unwrap();
        let sectors = || (0..EACH).map(|at| (2 * at + number) * SECTOR as u64);
        for offset in sectors() {
            let from = slice(&pool, &[(offset / SECTOR as u64) as u8; SECTOR]);
            let action = Action::Write { from, durable: true };
            device.submit(Operation { token: offset, offset, action });
        }
        let done = finish(&ring, &mut *device, EACH as usize);
        assert!(done.iter().all(|completion| completion.result.is_ok()), "{done:?}");
        let targets: Vec<_> = sectors().map(|_| pool.allocate(SECTOR).whole()).collect();
        for (offset, into) in sectors().zip(&targets) {
            let action = Action::Read(into.clone());
            device.submit(Operation { token: offset, offset, action });
        }
        let done = finish(&ring, &mut *device, EACH as usize);
        assert!(done.iter().all(|completion| completion.result.is_ok()), "{done:?}");
        for (offset, into) in sectors().zip(&targets) {
            assert_eq!(into.to_vec(), [(offset / SECTOR as u64) as u8; SECTOR]);
        }
    };
    std::thread::scope(|scope| {
        let threads = [0, 1].map(|number| scope.spawn(move || work(number)));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn an_image_has_one_writer_and_any_number_of_readers() {
    let Some(ceph) = cluster() else { return };
    let text = ceph.image("locked", 1 << 20);
    let first = prepare(&text, WRITER).unwrap();
    let refused = prepare(&text, WRITER).unwrap_err();
    assert!(refused.contains("rbd/locked is in use by another client"), "{refused}");
    let readers = [(); 2].map(|()| prepare(&text, READER).unwrap());
    assert_eq!(readers[0].identity(), first.identity());
    drop(first);
    prepare(&text, WRITER).unwrap();
}

#[test]
fn a_fenced_owner_writes_no_more_and_another_takes_the_lock() {
    let Some(ceph) = Ceph::start() else { return };
    let text = format!("{},id=floe", ceph.image("fenced", 1 << 20));
    let spec: Spec = text.parse().unwrap();
    let watch = RbdWatch::open(spec.image().expect("it is an image")).unwrap();
    assert_eq!(watch.owner().unwrap(), None);
    let (ring, pool) = thread();
    let first = prepare(&text, WRITER).unwrap();
    let mut late = first.open(&ring, &pool).unwrap();
    write(&ring, &pool, &mut *late, 0, &[1; SECTOR]).unwrap();
    let owner = watch.owner().unwrap().expect("it is locked");
    assert_eq!(first.image().unwrap().owner().unwrap(), Some(owner.clone()));
    assert!(watch.may_live(&owner).unwrap());
    prepare(&text, WRITER).unwrap_err();
    for _ in 0..2 {
        // Twice, as a standby does that was interrupted.
        watch.fence(&owner).unwrap();
        watch.break_lock(&owner).unwrap();
    }
    let second = prepare(&text, WRITER).unwrap();
    assert_ne!(watch.owner().unwrap().as_ref(), Some(&owner));
    let mut device = second.open(&ring, &pool).unwrap();
    write(&ring, &pool, &mut *device, 0, &[2; SECTOR]).unwrap();
    let refused = write(&ring, &pool, &mut *late, 0, &[3; SECTOR]).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(108), "{refused}"); // ESHUTDOWN
    assert!(!watch.may_live(&owner).unwrap());
    let late = first.image().unwrap().set_note("test", "late").unwrap_err();
    assert_eq!(late.raw_os_error(), Some(108), "{late}");
    assert_eq!(read(&ring, &pool, &mut *device, 0, SECTOR).unwrap(), [2; SECTOR]);
}

#[test]
fn many_images_share_connections_and_none_that_was_fenced() {
    let Some(ceph) = Ceph::start() else { return };
    const CONNECTIONS: usize = 8;
    let names: Vec<_> = (0..3 * CONNECTIONS).map(|at| format!("many-{at}")).collect();
    let texts: Vec<_> = names.iter().map(|name| ceph.image(name, 1 << 20)).collect();
    let owners = |images: &[Source]| {
        let owner = |image: &Source| image.image().unwrap().owner().unwrap().expect("it is locked");
        images.iter().map(owner).collect::<HashSet<_>>()
    };
    let (own, further) = texts.split_at(CONNECTIONS);
    let mut images: Vec<_> = own.iter().map(|text| prepare(text, WRITER).unwrap()).collect();
    assert_eq!(owners(&images).len(), CONNECTIONS, "the first ones do not share");
    let (more, last) = further.split_at(CONNECTIONS);
    images.extend(more.iter().map(|text| prepare(text, WRITER).unwrap()));
    assert_eq!(owners(&images).len(), CONNECTIONS);

    let fenced = images[0].image().unwrap().owner().unwrap().expect("it is locked");
    let spec: Spec = texts[0].parse().unwrap();
    RbdWatch::open(spec.image().expect("it is an image")).unwrap().fence(&fenced).unwrap();
    let (ring, pool) = thread();
    let mut writes = |image: &Source| {
        let mut device = image.open(&ring, &pool).unwrap();
        write(&ring, &pool, &mut *device, 0, &[1; SECTOR]).is_ok()
    };
    assert!(!writes(&images[0]));
    assert_eq!(images.iter().filter(|image| !writes(image)).count(), 2, "those that share it");
    let last: Vec<_> = last.iter().map(|text| prepare(text, WRITER).unwrap()).collect();
    assert!(last.iter().all(&mut writes));
    assert!(!owners(&last).contains(&fenced));
}

#[test]
fn a_note_is_there_for_whoever_looks_at_the_image() {
    let Some(ceph) = cluster() else { return };
    let text = ceph.image("noted", 1 << 20);
    let spec: Spec = text.parse().unwrap();
    let watch = RbdWatch::open(spec.image().expect("it is an image")).unwrap();
    assert_eq!(watch.note("test").unwrap(), None);
    let source = prepare(&text, WRITER).unwrap();
    for value in ["one", "", "the third"] {
        source.image().unwrap().set_note("test", value).unwrap();
        assert_eq!(watch.note("test").unwrap().as_deref(), Some(value));
        assert_eq!(source.image().unwrap().note("test").unwrap().as_deref(), Some(value));
    }
}

#[test]
fn an_image_is_a_cache_of_its_own_size_and_is_locked() {
    let Some(ceph) = cluster() else { return };
    let text = ceph.image("cache", 1 << 20);
    assert_eq!(text.parse::<Spec>().unwrap().size_found(), Some(1 << 20));
    let refused = prepare(&text, Role::Cache { size: 2 << 20 }).unwrap_err();
    assert!(refused.contains("has 1048576 bytes, not the 2097152"), "{refused}");
    let _cache = prepare(&text, Role::Cache { size: 1 << 20 }).unwrap();
    assert!(prepare(&text, WRITER).unwrap_err().contains("is in use by another client"));
}

#[test]
fn images_take_turns_as_a_stripe() {
    let Some(ceph) = cluster() else { return };
    const MEMBER: u64 = 6 * SECTOR as u64;
    for name in ["stripe-a", "stripe-b"] {
        ceph.image(name, MEMBER);
    }
    let conf = ceph.conf();
    let text = format!(
        "stripe:rbd:rbd/stripe-a+rbd:rbd/stripe-b,chunk=8KiB,id=floe,conf={}",
        conf.display()
    );
    assert_eq!(text.parse::<Spec>().unwrap().size_found(), Some(2 * MEMBER));
    let (ring, pool) = thread();
    let bytes: Vec<u8> = (0..2 * MEMBER).map(|at| (at / 4096) as u8).collect();
    let mut device = open(&text, &ring, &pool);
    write(&ring, &pool, &mut *device, 0, &bytes).unwrap();
    run(&ring, &mut *device, 0, Action::Flush).unwrap();
    assert_eq!(read(&ring, &pool, &mut *device, 0, bytes.len()).unwrap(), bytes);
    drop(device);
    let mut second = open(&ceph.spec("stripe-b"), &ring, &pool);
    assert_eq!(read(&ring, &pool, &mut *second, 0, SECTOR).unwrap(), [2; SECTOR]);
}

#[test]
fn a_user_with_rights_on_the_pool_alone_does() {
    let Some(ceph) = cluster() else { return };
    let text = format!("{},id=floe", ceph.image("limited", 1 << 20));
    let (ring, pool) = thread();
    let mut device = open(&text, &ring, &pool);
    write(&ring, &pool, &mut *device, 4096, &[7; 8192]).unwrap();
    assert_eq!(read(&ring, &pool, &mut *device, 4096, 8192).unwrap(), [7; 8192]);
}

#[test]
fn a_snapshot_is_read_as_it_was_and_never_written() {
    let Some(ceph) = cluster() else { return };
    let text = ceph.image("snapped", 1 << 20);
    let (ring, pool) = thread();
    let mut device = open(&text, &ring, &pool);
    write(&ring, &pool, &mut *device, 0, &[1; SECTOR]).unwrap();
    ceph.rbd(&["snap", "create", "rbd/snapped@then"]);
    write(&ring, &pool, &mut *device, 0, &[2; SECTOR]).unwrap();
    let snapshot = ceph.spec("snapped@then");
    let refused = prepare(&snapshot, WRITER).unwrap_err();
    assert!(refused.contains("serve it read-only"), "{refused}");
    let source = prepare(&snapshot, READER).unwrap();
    let mut old = source.open(&ring, &pool).unwrap();
    assert_eq!(read(&ring, &pool, &mut *old, 0, SECTOR).unwrap(), [1; SECTOR]);
    assert_eq!(read(&ring, &pool, &mut *device, 0, SECTOR).unwrap(), [2; SECTOR]);
    let image = prepare(&text, READER).unwrap();
    assert_ne!(source.identity(), image.identity());
}

#[test]
fn a_resize_by_another_client_is_found() {
    let Some(ceph) = cluster() else { return };
    let source = prepare(&ceph.image("grows", 1 << 20), WRITER).unwrap();
    let (ring, pool) = thread();
    let mut device = source.open(&ring, &pool).unwrap();
    ceph.rbd(&["resize", "--no-progress", "--size", "2M", "rbd/grows"]);
    assert_eq!(source.refresh().unwrap(), 2 << 20);
    assert!(write(&ring, &pool, &mut *device, 1 << 20, &[3; SECTOR]).is_err());
    device.set_size(2 << 20).unwrap();
    write(&ring, &pool, &mut *device, 1 << 20, &[3; SECTOR]).unwrap();
    assert_eq!(read(&ring, &pool, &mut *device, 1 << 20, SECTOR).unwrap(), [3; SECTOR]);
}

#[test]
fn a_change_by_another_client_is_told() {
    let Some(ceph) = cluster() else { return };
    let source = prepare(&ceph.image("told", 1 << 20), WRITER).unwrap();
    let (told, news) = std::sync::mpsc::channel();
    let image = source.image().expect("it is one");
    image.on_change(move || {
        let _ = told.send(()); // the test may have ended
    });
    ceph.rbd(&["resize", "--no-progress", "--size", "2M", "rbd/told"]);
    wait_until("the new size is told", || {
        news.recv_timeout(Duration::from_secs(60)).expect("it is told");
        source.refresh().unwrap() == 2 << 20
    });
    while news.try_recv().is_ok() {}
    ceph.rbd(&["snap", "create", "--no-progress", "rbd/told@now"]);
    news.recv_timeout(Duration::from_secs(60)).expect("it is told");
}

#[test]
fn a_small_discard_is_not_forgotten() {
    let Some(ceph) = cluster() else { return };
    let (ring, pool) = thread();
    let mut device = open(&ceph.image("discards", 1 << 20), &ring, &pool);
    write(&ring, &pool, &mut *device, 0, &[1; 4 * SECTOR]).unwrap();
    let action = Action::Discard { len: SECTOR as u64 };
    run(&ring, &mut *device, SECTOR as u64, action).unwrap();
    let found = read(&ring, &pool, &mut *device, 0, 4 * SECTOR).unwrap();
    assert_eq!(found, [[1; SECTOR], [0; SECTOR], [1; SECTOR], [1; SECTOR]].concat());
}

#[test]
fn a_full_cluster_refuses_what_makes_an_image_larger_and_says_why() {
    let Some(ceph) = Ceph::start() else { return };
    let (ring, pool) = thread();
    let source = prepare(&ceph.image("full", 64 << 20), WRITER).unwrap();
    let mut device = source.open(&ring, &pool).unwrap();
    let filled = 1 << 20;
    write(&ring, &pool, &mut *device, 0, &vec![1; filled]).unwrap();
    ceph.set_full(true);
    let (mut end, mut refused) = (filled as u64, None);
    wait_until("the cluster is full", || {
        refused = write(&ring, &pool, &mut *device, end, &[2; SECTOR]).err();
        end += SECTOR as u64;
        refused.is_some()
    });
    assert_eq!(refused.unwrap().kind(), std::io::ErrorKind::StorageFull);
    assert_eq!(read(&ring, &pool, &mut *device, 0, SECTOR).unwrap(), [1; SECTOR]);
    write(&ring, &pool, &mut *device, 0, &[3; SECTOR]).unwrap();
    ceph.set_full(false);
    wait_until("there is room", || write(&ring, &pool, &mut *device, end, &[4; SECTOR]).is_ok());
    assert_eq!(read(&ring, &pool, &mut *device, end, SECTOR).unwrap(), [4; SECTOR]);
}

#[test]
fn mistakes_are_named() {
    let Some(ceph) = cluster() else { return };
    ceph.rbd(&["create", "--size", "1M", "--image-feature", "layering", "rbd/plain"]);
    ceph.rbd(&["create", "--size", "0", "rbd/empty"]);
    let conf = ceph.conf();
    let conf = conf.display();
    let cases = [
        (ceph.spec("plain"), "rbd feature enable rbd/plain exclusive-lock"),
        (ceph.spec("empty"), "image rbd/empty has 0 bytes"),
        (ceph.spec("missing"), "cannot open image rbd/missing: No such file"),
        (format!("rbd:nopool/image,conf={conf}"), "cannot open pool nopool for image nopool/image"),
        (format!("rbd:rbd/a,conf={conf},id=nobody"), "check the user (id=USER), its key"),
        ("rbd:rbd/a,conf=/nowhere.conf".to_owned(), "read Ceph's configuration /nowhere.conf"),
    ];
    for (text, message) in cases {
        let refused = prepare(&text, WRITER).unwrap_err();
        assert!(refused.contains(message) && !refused.contains('\n'), "{text}: {refused}");
    }
}

#[test]
fn operations_outlast_a_cluster_that_pauses() {
    let Some(ceph) = Ceph::start() else { return };
    let (ring, pool) = thread();
    let mut device = open(&ceph.image("paused", 1 << 20), &ring, &pool);
    write(&ring, &pool, &mut *device, 0, &[1; SECTOR]).unwrap();
    ceph.pause();
    let from = slice(&pool, &[2; SECTOR]);
    let action = Action::Write { from, durable: false };
    device.submit(Operation { token: 1, offset: 0, action });
    ring.wait(Some(Duration::from_millis(300))).unwrap();
    let mut done = Vec::new();
    device.poll(&mut done);
    assert!(done.is_empty(), "{done:?}");
    ceph.go_on();
    let done = finish(&ring, &mut *device, 1);
    assert!(done[0].result.is_ok(), "{done:?}");
    assert_eq!(read(&ring, &pool, &mut *device, 0, SECTOR).unwrap(), [2; SECTOR]);
}

#[test]
fn operations_fail_when_the_cluster_has_not_answered_for_long() {
    let Some(ceph) = Ceph::start() else { return };
    let (ring, pool) = thread();
    let text = format!("{},timeout=200ms", ceph.image("late", 1 << 20));
    let mut device = open(&text, &ring, &pool);
    write(&ring, &pool, &mut *device, 0, &[1; SECTOR]).unwrap();
    ceph.pause();
    let late = write(&ring, &pool, &mut *device, 0, &[2; SECTOR]).unwrap_err();
    assert_eq!(late.kind(), std::io::ErrorKind::TimedOut);
    assert!(late.to_string().contains("rbd/late has not answered for 200ms"), "{late}");
    assert!(read(&ring, &pool, &mut *device, SECTOR as u64, SECTOR).is_err());
    // The next write overtakes neither of them, however often it has to be tried.
    ceph.go_on();
    wait_until("a write arrives", || write(&ring, &pool, &mut *device, 0, &[3; SECTOR]).is_ok());
    assert_eq!(read(&ring, &pool, &mut *device, 0, SECTOR).unwrap(), [3; SECTOR]);
}

#[test]
fn an_image_by_a_shared_connection_is_not_waited_for_without_a_bound() {
    let Some(ceph) = Ceph::start() else { return };
    let texts: Vec<_> = (0..9).map(|at| ceph.image(&format!("shared-{at}"), 1 << 20)).collect();
    let (last, others) = texts.split_last().expect("there are images");
    let others: Vec<_> = others.iter().map(|text| prepare(text, WRITER).unwrap()).collect();
    let spec: Spec = last.parse().unwrap();
    let image = spec.image().expect("it is an image");
    ceph.pause();
    let late = RbdSource::prepare_within(Duration::from_millis(300), image, false).unwrap_err();
    let said = "image rbd/shared-8 is still not open after 300ms: the cluster does not answer";
    assert!(late.to_string().starts_with(said), "{late}");
    ceph.go_on();
    // It opens, is closed again, and has no owner then.
    wait_until("it can be opened", || prepare(last, WRITER).is_ok());
    drop(others);
}

#[test]
fn a_timeout_holds_for_operations_under_way_and_later_ones() {
    let Some(ceph) = Ceph::start() else { return };
    let (ring, pool) = thread();
    let mut device = open(&ceph.image("bounded", 1 << 20), &ring, &pool);
    write(&ring, &pool, &mut *device, 0, &[1; SECTOR]).unwrap();
    ceph.pause();
    let action = Action::Write { from: slice(&pool, &[2; SECTOR]), durable: false };
    device.submit(Operation { token: 1, offset: 0, action });
    device.set_timeout(Duration::from_millis(200));
    device.set_timeout(Duration::from_secs(3600)); // it is no shorter
    let done = finish(&ring, &mut *device, 1);
    let late = done[0].result.as_ref().unwrap_err();
    assert!(late.to_string().contains("rbd/bounded has not answered for 200ms"), "{late}");
    assert!(read(&ring, &pool, &mut *device, 0, SECTOR).is_err());
    ceph.go_on();
}

#[test]
fn a_cluster_that_is_gone_does_not_keep_a_device_from_ending() {
    let Some(ceph) = Ceph::start() else { return };
    let (ring, pool) = thread();
    let mut device = open(&ceph.image("gone", 1 << 20), &ring, &pool);
    ceph.pause();
    let action = Action::Write { from: slice(&pool, &[2; SECTOR]), durable: false };
    device.submit(Operation { token: 1, offset: 0, action });
    let begun = Instant::now();
    drop(device);
    assert!(begun.elapsed() < Duration::from_secs(120), "it waits for the cluster");
    ceph.go_on();
}
