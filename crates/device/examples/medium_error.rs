//! Measures how exactly a slowed-down device keeps its medium's times.
//!
//! For each medium, at depth 1 and 32, random 4 KiB reads of a memory device: the latency the model
//! asked for, the latency the caller saw, how late completions came, and the CPU time that waiting
//! burnt. For the media that are bandwidth budgets the throughput says more than the latency, so it
//! is printed beside it.
//!
//! `cargo run --release -p floe-device --example medium_error [SECONDS_PER_LINE]`

use std::error::Error;
use std::time::{Duration, Instant};

use floe_device::medium::{Direction, Model};
use floe_device::{Action, Device, Medium, MediumDevice, MemoryDevice, Operation, Pool, Ring};

const BYTES: u64 = 4096;
const SEED: u64 = 1;

fn main() -> Result<(), Box<dyn Error>> {
    let seconds: f64 = std::env::args().nth(1).map_or(Ok(1.0), |text| text.parse())?;
    let ring = Ring::new(64)?;
    let pool = Pool::new(1 << 20);
    println!(
        "{:<9} {:>5} {:>10} {:>10} {:>10} {:>10} {:>9} {:>9} {:>9} {:>9} {:>6} {:>6}",
        "medium",
        "depth",
        "asked p50",
        "got p50",
        "asked p99",
        "got p99",
        "late p50",
        "late p99",
        "asked/s",
        "got/s",
        "spun",
        "CPU"
    );
    for medium in Medium::all() {
        for depth in [1, 32] {
            line(&ring, &pool, &medium, depth, seconds)?;
        }
    }
    println!("latencies in microseconds; spun and CPU in percent of the elapsed time");
    Ok(())
}

fn line(
    ring: &Ring,
    pool: &Pool,
    medium: &Medium,
    depth: u64,
    seconds: f64,
) -> Result<(), Box<dyn Error>> {
    let mut device = MediumDevice::new(MemoryDevice::new(1 << 20), medium.clone(), SEED);
    let mut begun = vec![Instant::now(); depth as usize];
    let mut latencies = Vec::new();
    let mut done = Vec::new();
    let slice = pool.allocate(BYTES as usize).whole();
    let read = |device: &mut MediumDevice<MemoryDevice>, token| {
        device.submit(Operation {
            token,
            offset: token % 256 * BYTES,
            action: Action::Read(slice.clone()),
        });
        Instant::now()
    };
    let (start, cpu) = (Instant::now(), cpu_time());
    for token in 0..depth {
        begun[token as usize] = read(&mut device, token);
    }
    while start.elapsed() < Duration::from_secs_f64(seconds) {
        ring.wait_until(device.next_due())?;
        device.poll(&mut done);
        for completion in done.drain(..) {
            completion.result?;
            let token = completion.token;
            latencies.push(begun[token as usize].elapsed().as_nanos() as u64);
            begun[token as usize] = read(&mut device, token);
        }
    }
    let (elapsed, cpu) = (start.elapsed().as_secs_f64(), cpu_time() - cpu);
    let (mut asked, asked_rate) = ideal(medium, depth, seconds);
    let got_rate = latencies.len() as f64 / elapsed;
    let late = device.timing_error();
    let us = |ns: u64| format!("{:.1}", ns as f64 / 1e3);
    println!(
        "{:<9} {:>5} {:>10} {:>10} {:>10} {:>10} {:>9} {:>9} {:>9.0} {:>9.0} {:>6.1} {:>6.1}",
        medium.name,
        depth,
        us(quantile(&mut asked, 0.5)),
        us(quantile(&mut latencies, 0.5)),
        us(quantile(&mut asked, 0.99)),
        us(quantile(&mut latencies, 0.99)),
        us(late.p50.as_nanos() as u64),
        us(late.p99.as_nanos() as u64),
        asked_rate,
        got_rate,
        device.spun().as_secs_f64() / elapsed * 100.0,
        cpu.as_secs_f64() / elapsed * 100.0,
    );
    Ok(())
}

/// Latencies and rate of the same closed loop in simulated time, where nobody is ever late.
fn ideal(medium: &Medium, depth: u64, seconds: f64) -> (Vec<u64>, f64) {
    let mut model = Model::new(medium.clone(), SEED);
    let mut latencies = Vec::new();
    let mut due: std::collections::BTreeSet<(u64, u64)> =
        (0..depth).map(|token| (0, token)).collect();
    while let Some((now_ns, token)) = due.pop_first() {
        if now_ns as f64 > seconds * 1e9 {
            break;
        }
        let due_ns = model.start(now_ns, Direction::Read, BYTES);
        latencies.push(due_ns - now_ns);
        due.insert((due_ns, token));
    }
    // What was begun but not done does not count, as in the measured run.
    let rate = (latencies.len() as u64 - depth) as f64 / seconds;
    (latencies, rate)
}

fn quantile(values: &mut [u64], share: f64) -> u64 {
    values.sort_unstable();
    values.get((values.len() as f64 * share) as usize).copied().unwrap_or(0)
}

/// CPU time of this thread.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns = stat.split_whitespace().next().and_then(|text| text.parse().ok()).unwrap_or(0);
    Duration::from_nanos(ns)
}
