//! The end of the process, at once.

/// Ends the process with an exit code, without running anything more: no destructors, no handlers,
/// none of what other libraries do at the end. What the kernel has been given stays.
pub fn end_process(code: u8) -> ! {
    // SAFETY: it may be called at any time by any thread, and returns to none.
    unsafe { libc::_exit(code.into()) }
}

/// Returns the release of the running kernel, such as `6.1.0-13-amd64`.
pub fn kernel_release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}
