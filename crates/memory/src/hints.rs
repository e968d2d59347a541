//! Hints to the operating system and the processor about memory.
//!
//! A lookup in a large cache touches three or four addresses all over it. With pages of 4 KiB each
//! of them also costs a walk through the page tables, which large pages avoid.

use std::ops::Range;

/// Size of memory, in bytes, from which asking for large pages is worthwhile.
pub(crate) const WORTHWHILE_BYTES: usize = 2 << 20;

/// Asks for large pages where the system leaves that choice to programs. This is only a hint and
/// changes no contents.
pub(crate) fn prefer<T>(memory: *mut T, bytes: usize) {
    if bytes >= WORTHWHILE_BYTES {
        system::prefer(memory.cast(), bytes);
    }
}

/// Gives the pages of a memory range back to the system, except those that overlap the sorted
/// ranges `kept`. Returns the number of bytes given back.
///
/// # Safety
/// The caller must own the memory and need none of its contents but those of `kept`.
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
            given += unsafe { system::give_back(at, bytes) }.len();
        }
        begin = kept_end;
    }
    given
}

/// Gives the whole pages within a memory range back to the system, and returns their addresses.
///
/// # Safety
/// The caller must own the memory and need none of its contents.
pub(crate) unsafe fn give_back_all(memory: Range<usize>) -> Range<usize> {
    let at = std::ptr::with_exposed_provenance_mut(memory.start);
    // SAFETY: the caller says so.
    unsafe { system::give_back(at, memory.len()) }
}

/// Asks for large pages again, or for none any more: where pages have been given back, the system
/// would otherwise join those in use with them to large ones.
pub(crate) fn prefer_large(memory: Range<usize>, is_large: bool) {
    let at = std::ptr::with_exposed_provenance_mut(memory.start);
    if is_large {
        system::prefer(at, memory.len());
    } else {
        system::keep_small(at, memory.len());
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
mod system {
    use std::ffi::c_int;
    use std::ops::Range;

    /// Gives whole pages back to the system, and returns their addresses.
    ///
    /// # Safety
    /// The contents of the memory must not be needed any more.
    pub(super) unsafe fn give_back(memory: *mut u8, bytes: usize) -> Range<usize> {
        // SAFETY: the caller says so.
        unsafe { advise(memory, bytes, libc::MADV_DONTNEED) }
    }

    pub(super) fn prefer(memory: *mut u8, bytes: usize) {
        // SAFETY: this advice leaves contents as they are.
        unsafe { advise(memory, bytes, libc::MADV_HUGEPAGE) };
    }

    pub(super) fn keep_small(memory: *mut u8, bytes: usize) {
        // SAFETY: as above.
        unsafe { advise(memory, bytes, libc::MADV_NOHUGEPAGE) };
    }

    /// Calls `madvise` for the whole pages of a memory range, and returns the addresses for which
    /// it succeeded.
    ///
    /// # Safety
    /// The caller must own the memory and allow what the advice does to its contents.
    unsafe fn advise(memory: *mut u8, bytes: usize, advice: c_int) -> Range<usize> {
        // Not from the auxiliary vector: valgrind hides a part of that from its programs.
        // SAFETY: reads a constant of the system's.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let begin = memory.addr().next_multiple_of(page);
        let end = (memory.addr() + bytes) / page * page;
        let Some(length) = end.checked_sub(begin).filter(|length| *length > 0) else { return 0..0 };
        // SAFETY: whole pages within memory of the caller's.
        let advised = unsafe { libc::madvise(memory.with_addr(begin).cast(), length, advice) };
        if advised == 0 { begin..end } else { 0..0 } // may be refused
    }
}

#[cfg(any(not(target_os = "linux"), miri))]
mod system {
    pub(super) fn prefer(_: *mut u8, _: usize) {}

    pub(super) fn keep_small(_: *mut u8, _: usize) {}

    pub(super) unsafe fn give_back(_: *mut u8, _: usize) -> std::ops::Range<usize> {
        0..0
    }
}

/// Prefetches the cache line at an address.
#[inline(always)]
pub(crate) fn line<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86_64, and a prefetch of any address has no effect one could observe.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a prefetch of any address has no effect one could observe.
    unsafe {
        std::arch::asm!(
            "prfm pldl1keep, [{0}]",
            in(reg) address,
            options(nostack, readonly, preserves_flags),
        );
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}

/// Prefetches the cache line at an address for writing.
#[inline(always)]
pub(crate) fn line_to_write<T>(address: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch of any address has no effect one could observe; where the processor has no
    // such one, this does nothing.
    unsafe {
        std::arch::asm!(
            "prefetchw byte ptr [{0}]",
            in(reg) address,
            options(nostack, readonly, preserves_flags),
        );
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: a prefetch of any address has no effect one could observe.
    unsafe {
        std::arch::asm!(
            "prfm pstl1keep, [{0}]",
            in(reg) address,
            options(nostack, readonly, preserves_flags),
        );
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = address;
}

/// Prefetches the cache lines of a value, or the first ones if the value is large.
#[inline(always)]
pub(crate) fn span<T>(address: *const T) {
    for at in (0..size_of::<T>().min(4 * 64)).step_by(64) {
        line(address.cast::<u8>().wrapping_add(at));
    }
}
