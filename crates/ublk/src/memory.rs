//! Protection of a server against memory shortage.
//!
//! The kernel frees memory by writing pages to devices, including those that this process serves. A
//! server that waits for memory then waits for itself. Therefore the server's memory is locked, its
//! threads touch the memory they will need before they serve, and freed memory is kept for reuse.
//! Allocations that the kernel makes on the server's behalf do not wait for the write-out of pages.
//!
//! The kernel still allocates memory for each request that threads submit to a ring. It keeps a
//! reserve of which real-time threads may use half, while ordinary threads wait
//! (`ALLOC_MIN_RESERVE` in `mm/page_alloc.c`). Therefore serving threads are real-time threads of
//! the lowest priority.

use std::hint::black_box;
use std::{fs, io};

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, Rlimit, configure_io_flusher_behavior, getrlimit, setrlimit};

/// Bytes of stack and of heap that a thread touches before it serves.
const STACK_BYTES: usize = 256 << 10;
const HEAP_BYTES: usize = 4 << 20;
const HEAP_PIECE_BYTES: usize = 64 << 10;

/// File by which the out-of-memory killer learns which processes to spare, and the value that
/// spares a process.
const KILLER: &str = "/proc/self/oom_score_adj";
const SPARED: &str = "-1000";

/// Protects this process from a memory shortage that only its own devices could end. Call it before
/// threads are started, which inherit the protection. Returns one line for each protection that the
/// system refused.
pub fn protect_memory() -> Vec<String> {
    let protections: [(&str, io::Result<()>); 3] = [
        (
            "serving may wait for pages to be written",
            configure_io_flusher_behavior(true).map_err(io::Error::from),
        ),
        ("its memory is not locked", lock_memory()),
        ("it may be killed when memory is short", fs::write(KILLER, SPARED)),
    ];
    keep_freed_memory();
    let refused = protections.into_iter();
    refused.filter_map(|(what, done)| done.err().map(|error| format!("{what}: {error}"))).collect()
}

/// Locks the pages that the program uses now, and later pages when they are first touched. The
/// program does not touch all memory that it has reserved.
fn lock_memory() -> io::Result<()> {
    let unlimited = Rlimit { current: None, maximum: None };
    if getrlimit(Resource::Memlock) != unlimited {
        // Below a limit, later allocations would fail.
        setrlimit(Resource::Memlock, unlimited)?;
    }
    mlockall(MlockAllFlags::CURRENT)?;
    Ok(mlockall(MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT)?)
}

/// Makes the heap keep freed memory instead of returning it to the system.
fn keep_freed_memory() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: the calls change settings of the allocator, which locks itself.
        unsafe {
            libc::mallopt(libc::M_TRIM_THRESHOLD, i32::MAX);
            libc::mallopt(libc::M_MMAP_THRESHOLD, 32 << 20); // the most there is
        }
    }
}

/// Prepares the calling thread to serve while memory is short. The thread may use the kernel's
/// reserve, and has touched the stack and heap it will need.
///
/// # Errors
/// When the system denies access to the reserve. The thread can serve without it.
pub fn ready_thread() -> io::Result<()> {
    warm();
    // SAFETY: the call reads the parameter, and sets the policy of the calling thread.
    let set = unsafe {
        let priority = libc::sched_get_priority_min(libc::SCHED_RR);
        let parameter = libc::sched_param { sched_priority: priority };
        libc::sched_setscheduler(0, libc::SCHED_RR, &raw const parameter)
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn warm() {
    touch_stack();
    let pieces = HEAP_BYTES / HEAP_PIECE_BYTES;
    let heap: Vec<Vec<u8>> = (0..pieces).map(|_| vec![1; HEAP_PIECE_BYTES]).collect();
    drop(black_box(heap));
}

#[inline(never)]
fn touch_stack() {
    black_box(&mut [1_u8; STACK_BYTES]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(name: &str) -> u64 {
        let status = fs::read_to_string("/proc/self/status").expect("a status");
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
        line.trim_start_matches(':').split_whitespace().next().unwrap().parse().unwrap()
    }

    /// Runs in a thread of its own, because the state is per thread. Locked memory is per process.
    #[test]
    fn a_protected_process_is_locked_and_says_what_it_is_not() {
        let (refused, flusher) = std::thread::spawn(|| {
            let refused = protect_memory();
            let readied = ready_thread();
            // SAFETY: the call has no argument but the calling thread.
            let policy = unsafe { libc::sched_getscheduler(0) };
            assert_eq!(readied.is_ok(), policy == libc::SCHED_RR);
            let inherited = std::thread::spawn(rustix::process::is_io_flusher);
            (refused, inherited.join().expect("no panic"))
        })
        .join()
        .expect("no panic");
        let is_refused = |what: &str| refused.iter().any(|line| line.contains(what));
        assert_eq!(flusher.is_ok_and(|is_one| is_one), !is_refused("pages to be written"));
        assert_eq!(status("VmLck") > 1 << 10, !is_refused("not locked"), "{refused:?}");
        let killer = fs::read_to_string(KILLER).expect("a score");
        assert_eq!(killer.trim() == SPARED, !is_refused("be killed"), "{refused:?}");
        // What is taken but not touched is not locked.
        let before = status("VmLck");
        let taken: Vec<u8> = Vec::with_capacity(256 << 20);
        assert!(status("VmRSS") < before + (128 << 10));
        drop(black_box(taken));
    }
}
