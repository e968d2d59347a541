//! Runs that do not depend on each other, on all cores.

/// Maps a list on all cores, keeping its order.
///
/// # Panics
/// When `work` does.
pub fn on_all_cores<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = std::sync::atomic::AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(items.len());
    let worker = || {
        let mut done = Vec::new();
        loop {
            // Relaxed: the counter only hands out numbers; results travel by the join.
            let at = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let Some(item) = items.get(at) else { return done };
            done.push((at, work(item)));
        }
    };
    let mut done: Vec<(usize, R)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().expect("a simulation does not panic"))
            .collect()
    });
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}
