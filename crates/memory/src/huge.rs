//! Large pages for large memory: a lookup in a large cache is three or four addresses all over it,
//! and with pages of 4 KiB each of them costs a walk through the page tables on top.

use std::ops::Range;

/// Bytes from which on it is worth asking.
const WORTHWHILE_BYTES: usize = 2 << 20;

/// Asks for large pages where the system leaves that to programs. Only a hint: it changes no
/// contents.
pub(crate) fn prefer<T>(memory: *mut T, bytes: usize) {
    if bytes >= WORTHWHILE_BYTES {
        system::prefer(memory.cast(), bytes);
    }
}

/// Gives the pages of some memory back to the system, but for those of what is `kept`, in order.
/// Returns how many bytes that were.
///
/// # Safety
/// The memory is the caller's, and none of its contents are needed but those of `kept`.
pub(crate) unsafe fn give_back(memory: Range<usize>, kept: &[Range<usize>]) -> usize {
    let first = kept.partition_point(|kept| kept.end <= memory.start);
    let (mut begin, mut given) = (memory.start, 0);
    let within = kept[first..].iter().take_while(|kept| kept.start < memory.end);
    for (kept_begin, kept_end) in
        within.map(|kept| (kept.start, kept.end)).chain([(memory.end, memory.end)])
    {
        if let Some(bytes) = kept_begin.checked_sub(begin).filter(|bytes| *bytes > 0) {
            let at = std::ptr::with_exposed_provenance_mut(begin);
            // SAFETY: the caller says so.
            given += unsafe { system::give_back(at, bytes) };
        }
        begin = kept_end;
    }
    given
}

#[cfg(all(target_os = "linux", not(miri)))]
mod system {
    use rustix::mm::{Advice, madvise};

    /// # Safety
    /// The contents of the memory are not needed any more.
    pub(super) unsafe fn give_back(memory: *mut u8, bytes: usize) -> usize {
        // SAFETY: the caller says so.
        unsafe { advise(memory, bytes, Advice::LinuxDontNeed) }
    }

    pub(super) fn prefer(memory: *mut u8, bytes: usize) {
        // SAFETY: this advice leaves contents as they are.
        unsafe { advise(memory, bytes, Advice::LinuxHugepage) };
    }

    /// Returns for how many bytes the advice was taken.
    ///
    /// # Safety
    /// The memory is the caller's, and may be treated as the advice says.
    unsafe fn advise(memory: *mut u8, bytes: usize, advice: Advice) -> usize {
        // Not from the auxiliary vector: valgrind hides a part of that from its programs.
        // SAFETY: reads a constant of the system's.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let begin = memory.addr().next_multiple_of(page);
        let end = (memory.addr() + bytes) / page * page;
        let Some(length) = end.checked_sub(begin).filter(|length| *length > 0) else { return 0 };
        // SAFETY: whole pages within memory of the caller's.
        let advised = unsafe { madvise(memory.with_addr(begin).cast(), length, advice) };
        if advised.is_ok() { length } else { 0 } // may be refused
    }
}

#[cfg(any(not(target_os = "linux"), miri))]
mod system {
    pub(super) fn prefer(_: *mut u8, _: usize) {}

    pub(super) unsafe fn give_back(_: *mut u8, _: usize) -> usize {
        0
    }
}
