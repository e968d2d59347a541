//! A sandbox forbids `membarrier(2)` after a cache was built and used: alone in its process, which
//! cannot leave the sandbox.
#![cfg(all(target_os = "linux", not(miri)))]
#![allow(unsafe_code)] // a sandbox is made by system calls

mod common;

use std::process::Command;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use common::Tally;
use floe_memory::{Cache, hits_are_fenceless};

const CHILD: &str = "FLOE_TEST_SANDBOXED";
const CAPACITY: u64 = 1000;

/// Makes `membarrier(2)` fail with EPERM, for this thread and those that it starts.
fn forbid_membarrier() {
    let statement = |code, k| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let load_number = statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0);
    let is_membarrier = libc::sock_filter {
        jf: 1,
        ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_membarrier as u32)
    };
    let refuse =
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
    let allow = statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW);
    let mut filter = [load_number, is_membarrier, refuse, allow];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program outlives the call, which copies it.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program),
            0
        );
        assert_eq!(libc::syscall(libc::SYS_membarrier, 0, 0, 0), -1, "the filter is in force");
    }
}

/// In a process of its own: the filter stays, and readers fence in all caches from then on.
#[test]
fn a_cache_goes_on_when_a_sandbox_forbids_the_barrier_that_it_was_built_with() {
    if std::env::var_os(CHILD).is_some() {
        return sandboxed();
    }
    let this = std::env::current_exe().expect("the test runs from a file");
    let name = "a_cache_goes_on_when_a_sandbox_forbids_the_barrier_that_it_was_built_with";
    let output = Command::new(this).args([name, "--exact", "--nocapture"]).env(CHILD, "1").output();
    let output = output.expect("a test can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn sandboxed() {
    if !hits_are_fenceless() {
        return eprintln!("SKIPPED: there is no membarrier(2) here");
    }
    let tally = Tally::new();
    let cache = Cache::builder().capacity(CAPACITY as usize).shards(4).build();
    (0..CAPACITY).for_each(|key| cache.insert(key, tally.value(key)));
    cache.freeze(0.5);
    let (used, over) = (Barrier::new(2), Barrier::new(2));
    std::thread::scope(|scope| {
        // A thread that has used the cache, holds a guard, and sleeps until the end.
        scope.spawn(|| {
            let guard = cache.get(&7);
            used.wait();
            over.wait();
            assert!(guard.is_none_or(|value| value.of(7) < CAPACITY));
        });
        used.wait();
        forbid_membarrier();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let batch: Vec<_> = (0..CAPACITY).collect();
                    while !stop.load(SeqCst) {
                        for key in 0..2 * CAPACITY {
                            _ = cache.get(&key).map(|value| value.of(key));
                        }
                        cache.get_many(&batch, |at, value| _ = value.of(at as u64));
                    }
                });
            }
            for key in 0..20 * CAPACITY {
                let key = key % (3 * CAPACITY);
                cache.insert(key, tally.value(key));
                if key.is_multiple_of(5) {
                    drop(cache.remove(&(key / 2)));
                }
                if key == CAPACITY {
                    cache.thaw();
                    cache.freeze(0.3);
                }
                // What is in, what may wait in four shards, and what guards keep.
                assert!(
                    tally.alive() <= CAPACITY + 4 * 4 * 32,
                    "{} values are alive",
                    tally.alive()
                );
            }
            stop.store(true, SeqCst);
        });
        assert!(!hits_are_fenceless());
        over.wait();
    });
    cache.clear();
    cache.reclaim();
    assert_eq!(tally.alive(), 0, "all is freed");
}
