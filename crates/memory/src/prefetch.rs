//! Asking for memory before it is needed. Only a hint: any address will do.

/// Asks for the cache line at an address.
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

/// Asks for the cache line at an address, which is to be written.
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

/// Asks for the lines of a value at an address, or the first ones if it is large.
#[inline(always)]
pub(crate) fn span<T>(address: *const T) {
    for at in (0..size_of::<T>().min(4 * 64)).step_by(64) {
        line(address.cast::<u8>().wrapping_add(at));
    }
}
