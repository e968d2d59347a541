//! The ring by itself.
#![allow(unsafe_code)] // entries of one's own are pushed unsafely

use std::time::{Duration, Instant};

use crate::common::SECTOR;
use floe_device::io_uring::{opcode, types};
use floe_device::{Owner, Pool, RegisterError, Ring};

fn nop(ring: &Ring, owner: Owner, token: u64) {
    // SAFETY: a no-operation points to nothing.
    unsafe { ring.push(owner, token, opcode::Nop::new().build()) }.unwrap();
}

fn tokens(ring: &Ring, owner: Owner) -> Vec<u64> {
    let mut events = Vec::new();
    ring.take(owner, &mut events);
    assert!(events.iter().all(|&(_, result, _)| result == 0));
    events.into_iter().map(|(token, ..)| token).collect()
}

#[test]
fn each_owner_takes_its_own_completions() {
    let ring = Ring::new(8).unwrap();
    let (left, right) = (ring.owner(), ring.owner());
    nop(&ring, left, 1);
    nop(&ring, right, (1 << 48) - 1);
    nop(&ring, left, 3);
    assert_eq!(ring.wait(None).unwrap(), 3);
    assert_eq!(tokens(&ring, right), [(1 << 48) - 1]);
    assert_eq!(tokens(&ring, left), [1, 3]);
    assert!(tokens(&ring, left).is_empty());
}

#[test]
fn no_completion_is_lost_when_both_queues_overflow() {
    let ring = Ring::new(1).unwrap();
    let owner = ring.owner();
    for token in 0..5000 {
        nop(&ring, owner, token);
    }
    let mut found = Vec::new();
    while found.len() < 5000 {
        assert!(ring.wait(Some(Duration::from_secs(60))).unwrap() > 0, "{} came", found.len());
        found.extend(tokens(&ring, owner));
    }
    found.sort_unstable();
    assert_eq!(found, (0..5000).collect::<Vec<_>>());
}

#[test]
fn completions_that_overflow_in_the_kernel_are_collected() {
    // Reads from an empty pipe stay in flight, and all end at once when the other end closes: more
    // than the completion queue of four holds.
    let ring = Ring::new(1).unwrap();
    let (owner, pool) = (ring.owner(), Pool::new(0));
    let (reader, writer) = std::io::pipe().unwrap();
    let buffer = pool.allocate(SECTOR).whole();
    let fd = types::Fd(std::os::fd::AsRawFd::as_raw_fd(&reader));
    for token in 0..500 {
        let entry = opcode::Read::new(fd, buffer.as_ptr(), SECTOR as u32).build();
        // SAFETY: buffer and pipe outlive the reads, which have all been taken when the test ends.
        unsafe { ring.push(owner, token, entry) }.unwrap();
    }
    assert_eq!(ring.wait(Some(Duration::ZERO)).unwrap(), 0);
    drop(writer);
    assert!(ring.wait(Some(Duration::from_secs(60))).unwrap() > 0);
    let mut found = tokens(&ring, owner);
    // The rest has ended too: it must come without sleeping for it.
    let deadline = Instant::now() + Duration::from_secs(60);
    while found.len() < 500 {
        assert!(Instant::now() < deadline, "{} came", found.len());
        ring.wait(Some(Duration::ZERO)).unwrap();
        found.extend(tokens(&ring, owner));
    }
    found.sort_unstable();
    assert_eq!(found, (0..500).collect::<Vec<_>>());
}

#[test]
fn waiting_ends_when_the_time_is_up() {
    let ring = Ring::new(8).unwrap();
    let began = Instant::now();
    assert_eq!(ring.wait(Some(Duration::from_millis(20))).unwrap(), 0);
    assert!(began.elapsed() >= Duration::from_millis(20));
    assert_eq!(ring.wait(Some(Duration::ZERO)).unwrap(), 0);
    assert_eq!(ring.wait_until(Some(Instant::now())).unwrap(), 0);
}

#[test]
fn waiting_does_not_sleep_while_events_are_not_taken() {
    let ring = Ring::new(8).unwrap();
    let owner = ring.owner();
    nop(&ring, owner, 7);
    assert_eq!(ring.wait(None).unwrap(), 1);
    assert_eq!(ring.wait(None).unwrap(), 1);
    assert_eq!(tokens(&ring, owner), [7]);
}

#[test]
fn an_arena_is_registered_once_and_its_slices_are_known() {
    let ring = Ring::new(8).unwrap();
    let (pool, other) = (Pool::new(1 << 16), Pool::new(1 << 16));
    let slice = pool.allocate(SECTOR).whole();
    assert_eq!(ring.fixed_buffer(&slice), None);
    ring.register_pool(&pool).unwrap();
    assert_eq!(ring.fixed_buffer(&slice), Some(0));
    assert_eq!(ring.fixed_buffer(&other.allocate(SECTOR).whole()), None);
    assert_eq!(ring.fixed_buffer(&pool.allocate(1 << 20).whole()), None);
    assert!(matches!(ring.register_pool(&other), Err(RegisterError::Already)));
}

#[test]
#[should_panic(expected = "48 bits")]
fn a_token_that_does_not_fit_panics() {
    let ring = Ring::new(8).unwrap();
    nop(&ring, ring.owner(), 1 << 48);
}

/// Has system call `number` fail with `errno` on this thread from now on.
fn forbid(number: libc::c_long, errno: i32) {
    let step = |code: u32, k: u32, jump_if_not: u8| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: jump_if_not,
        k,
    };
    let mut steps = [
        // the call's number comes first in `seccomp_data`
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, number as u32, 1),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | errno as u32, 0),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: takes numbers only.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: the program and its steps live until the call returns; the kernel copies them.
    let set =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn an_io_uring_that_is_refused_says_what_to_do() {
    for (errno, wanted) in [
        (libc::EPERM, ["kernel.io_uring_disabled", "seccomp"]),
        (libc::ENOSYS, ["CONFIG_IO_URING", "seccomp"]),
        (libc::ENOMEM, ["LimitMEMLOCK=", "ulimit -l"]),
    ] {
        let refused = std::thread::spawn(move || {
            forbid(libc::SYS_io_uring_setup, errno);
            Ring::new(8).map(drop).unwrap_err().to_string()
        });
        let line = refused.join().unwrap();
        assert!(wanted.iter().all(|words| line.contains(words)) && !line.contains('\n'), "{line}");
    }
}

#[test]
fn a_signal_ends_the_wait() {
    extern "C" fn nothing(_: libc::c_int) {}
    let handler = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: the handler does nothing, which is safe in a signal handler.
    unsafe { libc::signal(libc::SIGUSR1, handler) };
    // SAFETY: takes no argument and cannot fail.
    let this = unsafe { libc::pthread_self() };
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let sender = std::thread::spawn(move || {
        while stopped.recv_timeout(Duration::from_millis(20)).is_err() {
            // SAFETY: the thread is alive, since it joins this one.
            unsafe { libc::pthread_kill(this, libc::SIGUSR1) };
        }
    });
    assert_eq!(Ring::new(8).unwrap().wait(Some(Duration::from_secs(60))).unwrap(), 0);
    stop.send(()).unwrap();
    sender.join().unwrap();
}
