//! Measures the processor time of a read, compared with a bare ring and `pread`.
//!
//! `cargo test --release -p floe-hybrid -- --ignored --nocapture processor_time_of_a_read`

use std::hint::black_box;
use std::sync::Mutex;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};
use std::{future::Future, pin::Pin};

use io_uring::{IoUring, opcode, types};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::*;

const FILE_BYTES: u64 = 256 << 20;
const ROUNDS: usize = 15;

/// Returns the processor time of all threads of the process so far.
fn processor_time() -> Duration {
    // SAFETY: the structure is plain numbers, and written during the call only.
    let usage = unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        assert_eq!(libc::getrusage(libc::RUSAGE_SELF, &mut usage), 0);
        usage
    };
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// One of several futures of a thread.
struct Slot {
    number: usize,
    ready: Arc<Mutex<Vec<usize>>>,
    thread: Thread,
}

impl Wake for Slot {
    fn wake(self: Arc<Self>) {
        self.ready.lock().unwrap().push(self.number);
        self.thread.unpark();
    }
}

fn by_futures(
    flash: &FileFlash,
    depth: usize,
    reads: usize,
    mut offset: impl FnMut() -> u64,
    len: usize,
) {
    let ready = Arc::new(Mutex::new((0..depth).collect::<Vec<_>>()));
    let slot = |number| Slot { number, ready: Arc::clone(&ready), thread: thread::current() };
    let wakers: Vec<Waker> = (0..depth).map(|number| Waker::from(Arc::new(slot(number)))).collect();
    let mut readings: Vec<Option<Reading>> = (0..depth).map(|_| None).collect();
    let (mut begun, mut ended) = (0, 0);
    let mut woken = Vec::new();
    while ended < reads {
        std::mem::swap(&mut woken, &mut ready.lock().unwrap());
        if woken.is_empty() {
            thread::park();
        }
        for number in woken.drain(..) {
            let reading = &mut readings[number];
            loop {
                if let Some(future) = reading {
                    match Pin::new(future).poll(&mut Context::from_waker(&wakers[number])) {
                        Poll::Pending => break,
                        Poll::Ready(buffer) => drop(black_box(buffer.unwrap())),
                    }
                    ended += 1;
                }
                *reading = (begun < reads).then(|| flash.start(offset(), len));
                begun += 1;
                if reading.is_none() {
                    break;
                }
            }
        }
    }
}

fn by_bare_ring(
    ring: &mut IoUring,
    flash: &FileFlash,
    depth: usize,
    reads: usize,
    mut offset: impl FnMut() -> u64,
    len: usize,
) {
    let memory: Vec<Buffer> = (0..depth).map(|_| flash.buffers().take(len)).collect();
    let mut free: Vec<usize> = (0..depth).collect();
    let (mut begun, mut ended) = (0, 0);
    while ended < reads {
        while begun < reads
            && let Some(slot) = free.pop()
        {
            let file = types::Fd(flash.target.fd());
            let entry =
                opcode::Read::new(file, memory[slot].address(0), len as u32).offset(offset());
            // SAFETY: memory and file outlive the loop, which waits for all entries.
            unsafe { ring.submission().push(&entry.build().user_data(slot as u64)).unwrap() };
            begun += 1;
        }
        ring.submit_and_wait(1).unwrap();
        for entry in ring.completion() {
            assert_eq!(entry.result(), len as i32);
            free.push(entry.user_data() as usize);
            ended += 1;
        }
    }
}

#[test]
#[ignore = "a measurement"]
fn processor_time_of_a_read() {
    let folder =
        tempfile::tempdir_in(std::env::var_os("FLOE_BENCH_DIR").unwrap_or("/tmp".into())).unwrap();
    let options = FlashOptions { size: Some(FILE_BYTES), ..FlashOptions::default() };
    let open = |name, io_uring| {
        let options = FlashOptions { io_uring, ..options.clone() };
        let flash = FileFlash::open(&folder.path().join(name), &options).unwrap();
        let mut chunk = flash.buffers().take(1 << 20);
        chunk.fill(7);
        for at in (0..FILE_BYTES).step_by(1 << 20) {
            flash.write(&chunk, at).unwrap();
        }
        flash.sync().unwrap();
        flash
    };
    let (flash, threaded) = (open("ring", true), open("threads", false));
    assert!(flash.is_direct());
    let mut bare =
        IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(64).unwrap();
    let mut random = SmallRng::seed_from_u64(1);
    for (len, depth, reads) in
        [(4096, 1, 1000), (4096, 32, 8000), (16384, 1, 1000), (16384, 32, 8000)]
    {
        let names = ["pread", "bare ring", "futures", "futures, threads"];
        let mut costs = [const { Vec::<(f64, f64)>::new() }; 4];
        for _ in 0..ROUNDS {
            for (kind, costs) in costs.iter_mut().enumerate() {
                let mut offset = || random.random_range(0..(FILE_BYTES / 16384)) * 16384;
                let (begun, before) = (Instant::now(), processor_time());
                match kind {
                    0 if depth > 1 => continue,
                    0 => {
                        let mut buffer = flash.buffers().take(len);
                        (0..reads).for_each(|_| flash.read(&mut buffer, offset()).unwrap());
                    }
                    1 => by_bare_ring(&mut bare, &flash, depth, reads, offset, len),
                    2 => by_futures(&flash, depth, reads, offset, len),
                    _ => by_futures(&threaded, depth, reads, offset, len),
                }
                let each = |time: Duration| time.as_secs_f64() * 1e6 / reads as f64;
                costs.push((each(processor_time() - before), each(begun.elapsed())));
            }
        }
        for (name, mut costs) in names.iter().zip(costs) {
            costs.sort_by(|one, other| one.0.total_cmp(&other.0));
            if let (Some(least), Some(median)) = (costs.first(), costs.get(costs.len() / 2)) {
                println!(
                    "{len:5} B, depth {depth:2}: {name:16} {:5.1} µs processor (least {:5.1}), \
                     {:6.1} µs wall",
                    median.0, least.0, median.1
                );
            }
        }
    }
    let before = processor_time();
    thread::sleep(Duration::from_secs(2));
    println!("idle for 2 s: {:?} processor", processor_time() - before);
}
