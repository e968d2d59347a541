//! Large pages for large memory: a lookup in a large cache is three or four addresses all over it, and with pages of
//! 4 KiB each of them costs a walk through the page tables on top.

/// Bytes from which on it is worth asking.
const WORTHWHILE_BYTES: usize = 2 << 20;

/// Asks for large pages where the system leaves that to programs. Only a hint: it changes no contents.
pub(crate) fn prefer<T>(memory: *mut T, bytes: usize) {
    if bytes >= WORTHWHILE_BYTES {
        system::prefer(memory.cast(), bytes);
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
mod system {
    use rustix::mm::{Advice, madvise};

    pub(super) fn prefer(memory: *mut u8, bytes: usize) {
        let page = rustix::param::page_size();
        let begin = memory.addr().next_multiple_of(page);
        let end = (memory.addr() + bytes) / page * page;
        if let Some(length) = end.checked_sub(begin).filter(|length| *length > 0) {
            // SAFETY: whole pages within memory of the caller's, whose contents this advice leaves as they are.
            let _ = unsafe { madvise(memory.with_addr(begin).cast(), length, Advice::LinuxHugepage) }; // may be refused
        }
    }
}

#[cfg(any(not(target_os = "linux"), miri))]
mod system {
    pub(super) fn prefer(_: *mut u8, _: usize) {}
}
