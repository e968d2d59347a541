//! Buffers that one thread lends to others.

use std::sync::mpsc::{Receiver, Sender, channel};

use crate::common::SECTOR;
use floe_device::{Action, Device, FileDevice, FileOptions, Lent, Operation, Pool, Ring};

/// A thread that keeps what it is sent until told to let one go, oldest first.
fn keeper(lent: Receiver<Option<Lent>>, attach: bool, gone: Sender<()>) {
    let (mut kept, mut attached) =
        (std::collections::VecDeque::new(), std::collections::VecDeque::new());
    for lent in lent {
        match lent {
            Some(lent) if attach => attached.push_back(lent.attach()),
            Some(lent) => kept.push_back(lent),
            None => {
                drop((kept.pop_front(), attached.pop_front()));
                gone.send(()).unwrap();
            }
        }
    }
}

#[test]
fn memory_returns_only_with_the_last_loan_whether_attached_or_not() {
    for attach in [false, true] {
        let pool = Pool::new(SECTOR);
        let (to, lent) = channel();
        let (tell, gone) = channel();
        let keeper = std::thread::spawn(move || keeper(lent, attach, tell));
        let let_go = || {
            to.send(None).unwrap();
            gone.recv().unwrap();
        };
        let buffer = pool.allocate(100);
        to.send(Some(buffer.lend())).unwrap();
        to.send(Some(buffer.lend())).unwrap();
        drop(buffer);
        assert_eq!((pool.stats().on_loan, pool.stats().arena_used_bytes), (1, SECTOR));
        let_go();
        pool.allocate(SECTOR);
        assert_eq!((pool.stats().on_loan, pool.stats().fallbacks), (1, 1), "one loan is left");
        let_go();
        pool.allocate(SECTOR);
        let stats = pool.stats();
        assert_eq!((stats.on_loan, stats.fallbacks, stats.arena_used_bytes), (0, 1, 0));

        // Returned first, dropped second: nothing waits.
        let buffer = pool.allocate(SECTOR);
        to.send(Some(buffer.lend())).unwrap();
        let_go();
        drop(buffer);
        assert_eq!((pool.stats().on_loan, pool.stats().arena_used_bytes), (0, 0));
        drop(to);
        keeper.join().unwrap();
    }
}

#[test]
fn what_came_from_the_heap_is_lent_too() {
    let pool = Pool::new(0);
    let buffer = pool.allocate(SECTOR);
    let lent = buffer.lend();
    drop(buffer);
    assert_eq!((pool.stats().on_loan, pool.stats().fallback_bytes), (1, SECTOR));
    std::thread::spawn(move || lent.attach().whole().copy_from(&[1; SECTOR])).join().unwrap();
    pool.allocate(1);
    assert_eq!((pool.stats().on_loan, pool.stats().fallback_bytes), (0, 0));
}

#[test]
fn a_loan_outlives_its_home_thread() {
    let home = std::thread::spawn(|| {
        let pool = Pool::family(2, 1 << 20).remove(1).pool();
        let buffer = pool.allocate(SECTOR);
        buffer.whole().copy_from(&[7; SECTOR]);
        (buffer.lend(), Pool::new(0).allocate(10).lend())
    });
    let (lent, from_heap) = home.join().unwrap();
    let onward = lent.attach().lend();
    let buffer = onward.attach();
    assert_eq!(buffer.slice(5..SECTOR).to_vec(), [7; SECTOR - 5]);
    let heap = from_heap.attach();
    heap.whole().copy_from(b"0123456789");
    assert_eq!(heap.slice(3..5).to_vec(), b"34");
}

/// Every thread lends to the next, which checks what it was lent and writes over it; a buffer that
/// its home gave out again too early is then written by two.
#[test]
fn threads_lend_each_other_without_mixing_up_their_bytes() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 4000;
    let (mut to, mut from) = (Vec::new(), Vec::new());
    for _ in 0..THREADS {
        let (sender, receiver) = channel::<(u8, Lent)>();
        to.push(sender);
        from.push(receiver);
    }
    to.rotate_left(1);
    let threads = Pool::family(THREADS, 16 * SECTOR).into_iter().zip(to).zip(from).enumerate();
    let threads: Vec<_> = threads
        .map(|(number, ((seed, to), from))| {
            std::thread::spawn(move || {
                let pool = seed.pool();
                let mut held = std::collections::VecDeque::new();
                let mut work = |(mark, lent): (u8, Lent)| {
                    let buffer = lent.attach();
                    let len = buffer.len();
                    assert_eq!(buffer.whole().to_vec(), vec![mark; len], "lent to thread {number}");
                    let own = mark ^ 0x80;
                    buffer.whole().copy_from(&vec![own; len]);
                    held.push_back((own, buffer));
                    if held.len() > 6 {
                        let (own, buffer) = held.pop_front().unwrap();
                        assert_eq!(buffer.whole().to_vec(), vec![own; buffer.len()]);
                    }
                };
                for round in 0..ROUNDS {
                    let mark = (round % 100) as u8;
                    let len = SECTOR << (round % 3);
                    let buffer = pool.allocate(len);
                    buffer.whole().copy_from(&vec![mark; len]);
                    let kept = (round % 5 == 0).then(|| buffer.clone());
                    to.send((mark, buffer.lend())).unwrap();
                    drop(buffer);
                    from.try_iter().for_each(&mut work);
                    drop(kept);
                }
                drop(to);
                from.iter().for_each(&mut work);
                drop(held);
                pool.stats().fallbacks
            })
        })
        .collect();
    let fallbacks: u64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert!(fallbacks < (THREADS * ROUNDS) as u64, "the arenas were used");
}

#[test]
fn one_registration_covers_the_family() {
    let (ring, directory) = (Ring::new(8).unwrap(), tempfile::tempdir().unwrap());
    let mut seeds = Pool::family(3, 1 << 16);
    let (theirs, own) = (seeds.remove(2), seeds.remove(1).pool());
    if let Err(error) = ring.register_pool(&own) {
        panic!("{error}");
    }
    let (give, lent) = channel();
    let (give_back, returned) = channel();
    let thread = std::thread::spawn(move || {
        let pool = theirs.pool();
        let buffer = pool.allocate(2 * SECTOR);
        give.send((buffer.lend(), pool.allocate(1 << 20).lend())).unwrap();
        let () = returned.recv().unwrap();
        buffer.slice(0..SECTOR).to_vec()
    });
    let (buffer, from_heap): (Lent, Lent) = lent.recv().unwrap();
    let buffer = buffer.attach();
    assert_eq!(ring.fixed_buffer(&buffer.whole()), Some(2));
    assert_eq!(ring.fixed_buffer(&own.allocate(1 << 16).whole()), Some(1));
    assert_eq!(ring.fixed_buffer(&from_heap.attach().whole()), None);

    // The kernel agrees about the number.
    let path = directory.path().join("disk");
    std::fs::write(&path, [5; 4 * SECTOR]).unwrap();
    let options = FileOptions { direct: true, ..FileOptions::default() };
    let mut device = FileDevice::open(&ring, &own, path, options).unwrap();
    device.submit(Operation { token: 1, offset: 0, action: Action::Read(buffer.slice(0..SECTOR)) });
    crate::common::finish(&ring, &mut device, 1).remove(0).result.unwrap();
    drop(buffer);
    give_back.send(()).unwrap();
    assert_eq!(thread.join().unwrap(), [5; SECTOR]);
}

#[test]
fn a_slice_shared_as_a_buffer_is_the_same_memory_and_keeps_it() {
    let pool = Pool::new(4 * SECTOR);
    let buffer = pool.allocate(4 * SECTOR);
    buffer.whole().fill_zero();
    let shared = buffer.slice(SECTOR..3 * SECTOR).share();
    assert_eq!(shared.len(), 2 * SECTOR);
    shared.slice(SECTOR..SECTOR + 3).copy_from(b"abc");
    assert_eq!(buffer.slice(2 * SECTOR..2 * SECTOR + 3).to_vec(), b"abc");
    let again = shared.slice(SECTOR..2 * SECTOR).share();
    drop((buffer, shared));
    assert_eq!((pool.stats().on_loan, pool.stats().arena_used_bytes), (1, 4 * SECTOR));
    let other = pool.allocate(SECTOR);
    other.whole().fill_zero();
    assert_eq!(pool.stats().fallbacks, 1, "the memory is not anybody else's yet");
    assert_eq!(again.slice(0..3).to_vec(), b"abc");
    drop(again);
    pool.allocate(4 * SECTOR);
    assert_eq!(
        (pool.stats().on_loan, pool.stats().fallbacks, pool.stats().arena_used_bytes),
        (0, 1, 0)
    );
}

#[test]
#[should_panic(expected = "starts where a page does")]
fn a_slice_in_the_middle_of_a_page_is_no_buffer() {
    let _ = Pool::new(SECTOR).allocate(SECTOR).slice(512..SECTOR).share();
}
