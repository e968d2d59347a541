//! Serving while the system is short of memory.
//!
//! The kernel frees memory by writing pages to devices, also to those that this process serves. A
//! server that waits for memory meanwhile waits for itself. So its memory is locked, threads touch
//! what they will need before they serve, freed memory is kept for the next use, and what the
//! kernel allocates on its behalf is not waited for with writes of pages.
//!
//! The kernel allocates for each of their requests to a ring all the same. It keeps a reserve for
//! which ordinary threads wait, and gives real-time threads half of it (`ALLOC_MIN_RESERVE` in
//! `mm/page_alloc.c`). So threads that serve are real-time threads, of the lowest priority.

use std::hint::black_box;
use std::{fs, io};

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, Rlimit, configure_io_flusher_behavior, getrlimit, setrlimit};

/// The stack and the heap that a thread has touched before it serves.
const STACK_BYTES: usize = 256 << 10;
const HEAP_BYTES: usize = 4 << 20;
const HEAP_PIECE_BYTES: usize = 64 << 10;

/// The file by which the system's killer of processes knows whom to spare, and the word for that.
const KILLER: &str = "/proc/self/oom_score_adj";
const SPARED: &str = "-1000";

/// Protects this process from a shortage of memory that its own devices could end. Threads inherit
/// that: it comes before they do. Returns the protections that the system refused, each as a line.
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

/// Locks the program now, and each page that it takes later when it is first touched: it does not
/// touch all it has.
fn lock_memory() -> io::Result<()> {
    let unlimited = Rlimit { current: None, maximum: None };
    if getrlimit(Resource::Memlock) != unlimited {
        // Below a limit, later allocations would fail.
        setrlimit(Resource::Memlock, unlimited)?;
    }
    mlockall(MlockAllFlags::CURRENT)?;
    Ok(mlockall(MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT)?)
}

/// Has the heap keep freed memory instead of giving it back to the system.
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

/// Readies this thread to serve while memory is short: it may take of the kernel's reserve, and has
/// touched the stack and the heap that it will need.
///
/// # Errors
/// When the system does not let it take of the reserve. It can serve all the same.
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

    /// In a thread, for the state is one of threads; locked memory is one of the process.
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
