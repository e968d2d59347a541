//! Values, streams of requests, and what the process has used.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngCore, SeedableRng};
use rand_distr::{Distribution, Zipf};

const THETA: f64 = 0.99;

/// A value that begins with its key; the rest does not compress.
pub fn value(key: u64, bytes: usize) -> Bytes {
    let mut value = vec![0; bytes];
    SmallRng::seed_from_u64(key).fill_bytes(&mut value);
    value[..8].copy_from_slice(&key.to_le_bytes());
    value.into()
}

/// Whether a value was made for a key.
pub fn is_of(key: u64, value: &[u8]) -> bool {
    value.starts_with(&key.to_le_bytes())
}

/// Values for keys from `first` on.
pub fn values(first: u64, count: usize, bytes: usize) -> Vec<(u64, Bytes)> {
    (first..first + count as u64).map(|key| (key, value(key, bytes))).collect()
}

/// Keys below `keys` in random order.
pub fn shuffled(keys: usize, seed: u64) -> Vec<u64> {
    let mut order: Vec<u64> = (0..keys as u64).collect();
    order.shuffle(&mut SmallRng::seed_from_u64(seed));
    order
}

/// Requests by Zipf's law, the same for every subject.
pub struct Stream {
    pub keys: Arc<Vec<u64>>,
    pub value_bytes: usize,
    /// Requests between two waits for the disk.
    pub pause: usize,
}

impl Stream {
    pub fn new(keys: usize, requests: usize, value_bytes: usize, pause: usize) -> Self {
        let law = Zipf::new(keys as f64, THETA).expect("there are keys, and theta is positive");
        let names = shuffled(keys, 7);
        let mut rng = SmallRng::seed_from_u64(11);
        let draw = |_| names[(law.sample(&mut rng) as usize).clamp(1, keys) - 1];
        Self { keys: Arc::new((0..requests).map(draw).collect()), value_bytes, pause }
    }
}

/// Processor time of all threads of this process, those of the kernel's rings included.
pub fn processor_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
}

/// A counter of `/proc/self/io`, as `write_bytes`.
pub fn io_counter(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    line.and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// Bytes of this process in memory, after the allocator has given back what it can.
pub fn resident_bytes() -> u64 {
    #[cfg(target_env = "gnu")]
    {
        unsafe extern "C" {
            fn malloc_trim(pad: usize) -> i32;
        }
        // SAFETY: the C library's function, which any thread may call at any time.
        unsafe { malloc_trim(0) };
    }
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}

pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    percentile(values, 0.5)
}

/// The value at a share of the sorted values; NaN if there are none.
pub fn percentile(values: impl IntoIterator<Item = f64>, share: f64) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let last = values.len().wrapping_sub(1);
    values.get((share * last as f64).round() as usize).copied().unwrap_or(f64::NAN)
}
