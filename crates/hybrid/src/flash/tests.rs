//! Tests of flash access on real files, by each engine, with and without the page cache.

use std::collections::VecDeque;
use std::fs::OpenOptions;
use std::future::Future;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tempfile::TempDir;

use super::*;

const PAGE: usize = ALIGNMENT;

/// Wakes a parked thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread, for at most a minute.
fn block_on<F: Future + Unpin>(mut future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let begun = Instant::now();
    loop {
        if let Poll::Ready(output) = Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        thread::park_timeout(Duration::from_secs(60));
        assert!(begun.elapsed() < Duration::from_secs(60), "a wake-up was lost");
    }
}

fn poll_once(reading: &mut Reading, waker: &Waker) -> Poll<io::Result<Buffer>> {
    Pin::new(reading).poll(&mut Context::from_waker(waker))
}

/// The content of page `number` in its version `version`.
fn page(number: u64, version: u64) -> Vec<u8> {
    let word = |i: u64| (number << 32 ^ version << 16 ^ i).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (0..PAGE as u64 / 8).flat_map(|i| word(i).to_le_bytes()).collect()
}

fn check_pages(bytes: &[u8], offset: u64) {
    for (i, found) in bytes.chunks(PAGE).enumerate() {
        let number = offset / PAGE as u64 + i as u64;
        assert!(found == page(number, 0), "page {number} has other bytes than were written");
    }
}

/// A file of numbered pages.
struct Fixture {
    flash: FileFlash,
    path: PathBuf,
    pages: u64,
    _folder: TempDir,
}

impl Fixture {
    fn new(pages: u64, options: &FlashOptions) -> Fixture {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("flash");
        let options = FlashOptions { size: Some(pages * PAGE as u64), ..options.clone() };
        let flash = FileFlash::open(&path, &options).unwrap();
        let mut buffer = flash.buffers().take(PAGE);
        for number in 0..pages {
            buffer.copy_from_slice(&page(number, 0));
            flash.write(&buffer, number * PAGE as u64).unwrap();
        }
        flash.sync().unwrap();
        Fixture { flash, path, pages, _folder: folder }
    }

    /// A range of up to eight pages.
    fn range(&self, random: &mut SmallRng) -> (u64, usize) {
        let count = random.random_range(1..=self.pages.min(8));
        let first = random.random_range(0..=self.pages - count);
        (first * PAGE as u64, count as usize * PAGE)
    }
}

/// Runs a test with both engines, with and without the page cache.
fn each_way(test: impl Fn(FlashOptions)) {
    for (direct, io_uring) in [(true, true), (false, true), (true, false), (false, false)] {
        test(FlashOptions { direct, io_uring, ..FlashOptions::default() });
    }
}

#[test]
fn reads_agree_with_a_model() {
    each_way(|options| {
        let fixture = Fixture::new(64, &options);
        let mut versions = [0; 64];
        let mut random = SmallRng::seed_from_u64(7);
        let expected = |versions: &[u64; 64], offset: u64, len: usize| -> Vec<u8> {
            let first = offset / PAGE as u64;
            (0..(len / PAGE) as u64)
                .flat_map(|i| page(first + i, versions[(first + i) as usize]))
                .collect()
        };
        for round in 1..200 {
            let ranges: Vec<_> = (0..4).map(|_| fixture.range(&mut random)).collect();
            let together = fixture.flash.start_all(&ranges);
            let single = ranges.iter().map(|&(offset, len)| fixture.flash.start(offset, len));
            let readings: Vec<_> = together.into_iter().chain(single).collect();
            for (reading, &(offset, len)) in readings.into_iter().zip(ranges.iter().cycle()) {
                assert_eq!(*block_on(reading).unwrap(), *expected(&versions, offset, len));
                let mut buffer = fixture.flash.buffers().take(len);
                fixture.flash.read(&mut buffer, offset).unwrap();
                assert_eq!(*buffer, *expected(&versions, offset, len));
            }
            let (offset, len) = fixture.range(&mut random);
            let first = (offset / PAGE as u64) as usize;
            versions[first..first + len / PAGE].fill(round);
            let mut buffer = fixture.flash.buffers().take(len);
            buffer.copy_from_slice(&expected(&versions, offset, len));
            fixture.flash.write(&buffer, offset).unwrap();
        }
    });
}

#[test]
fn no_engine_exists_before_the_first_future() {
    let fixture = Fixture::new(1, &FlashOptions::default());
    assert!(fixture.flash.start_all(&[]).is_empty());
    assert!(fixture.flash.engine.get().is_none());
    assert_eq!(block_on(fixture.flash.start(0, 0)).unwrap().len(), 0);
    assert!(fixture.flash.engine.get().is_none());
}

#[test]
fn ranges_outside_of_the_file_are_refused() {
    each_way(|options| {
        let fixture = Fixture::new(4, &options);
        for (offset, len) in [(4 * PAGE as u64, PAGE), (0, 5 * PAGE), (u64::MAX - 4095, PAGE)] {
            let mut buffer = fixture.flash.buffers().take(len);
            let errors = [
                block_on(fixture.flash.start(offset, len)).unwrap_err(),
                fixture.flash.read(&mut buffer, offset).unwrap_err(),
                fixture.flash.write(&buffer, offset).unwrap_err(),
            ];
            assert!(errors.iter().all(|error| error.kind() == ErrorKind::InvalidInput));
        }
    });
}

/// Dropped reads must not write to memory that others have meanwhile. With no kept memory, each
/// buffer freed too early goes to the allocator, and from there to the canaries.
#[test]
fn dropped_futures_leave_memory_alone() {
    each_way(|options| {
        for kept_bytes in [0, 1 << 20] {
            let fixture = Fixture::new(256, &FlashOptions { kept_bytes, ..options.clone() });
            thread::scope(|scope| {
                for seed in 0..6 {
                    let fixture = &fixture;
                    scope.spawn(move || cancel_at_random(fixture, seed));
                }
            });
            let pool = fixture.flash.buffers().clone();
            drop(fixture);
            assert!(pool.kept_bytes() <= kept_bytes);
        }
    });
}

fn cancel_at_random(fixture: &Fixture, seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut canaries = VecDeque::new();
    let mut kept = Vec::new();
    for _ in 0..400 {
        let (offset, len) = fixture.range(&mut random);
        let mut reading = fixture.flash.start(offset, len);
        match random.random_range(0..5) {
            0 => drop(reading),
            1 => {
                let _ = poll_once(&mut reading, Waker::noop());
                drop(reading);
            }
            2 => kept.push((reading, offset)),
            3 => {
                let _ = poll_once(&mut reading, Waker::noop());
                thread::yield_now();
                drop(reading);
            }
            _ => check_pages(&block_on(reading).unwrap(), offset),
        }
        let mut canary = fixture.flash.buffers().take(len);
        canary.fill(0xC5);
        canaries.push_back(canary);
        if canaries.len() > 16 {
            let canary: Buffer = canaries.pop_front().unwrap();
            assert!(canary.iter().all(|&byte| byte == 0xC5), "a dropped read wrote here");
        }
        if kept.len() > 8 {
            for (reading, offset) in kept.drain(..) {
                if random.random() {
                    check_pages(&block_on(reading).unwrap(), offset);
                }
            }
        }
    }
}

#[test]
fn the_buffer_of_a_dropped_read_returns_to_the_pool() {
    each_way(|options| {
        let fixture = Fixture::new(16, &options);
        let pool = fixture.flash.buffers().clone();
        let before = pool.kept_bytes();
        drop(fixture.flash.start(0, 16 * PAGE));
        drop(fixture);
        // A read dropped before a thread took it had no buffer yet.
        let expected = if options.io_uring { 16 * PAGE } else { 0 };
        assert!(pool.kept_bytes() >= before + expected, "{options:?}");
    });
}

#[test]
fn the_waker_of_the_last_poll_is_woken() {
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let counts = [(); 2].map(|()| Arc::new(Count(AtomicUsize::new(0))));
    let [first, second] = counts.each_ref().map(|count| Waker::from(Arc::clone(count)));
    let request = Request::new(0, PAGE);
    let mut reading = Reading::pending(Arc::clone(&request));
    for waker in [&first, &second, &second] {
        assert!(poll_once(&mut reading, waker).is_pending());
    }
    let mut wakers = Vec::from_iter(request.complete(Ok(Buffers::new(0).take(PAGE))));
    request::wake_all(&mut wakers);
    assert_eq!(counts.each_ref().map(|count| count.0.load(Ordering::SeqCst)), [0, 1]);
    assert!(request.complete(Err(ErrorKind::Other.into())).is_none(), "the first result counts");
    assert!(matches!(poll_once(&mut reading, &first), Poll::Ready(Ok(_))));
    drop(reading);
    assert!(request.is_abandoned());
    // Neither waker is kept by the request.
    drop((first, second));
    assert!(counts.iter().all(|count| Arc::strong_count(count) == 1));
}

#[test]
fn a_read_polled_on_one_thread_wakes_the_next_one() {
    each_way(|options| {
        let fixture = Fixture::new(64, &options);
        let (sender, receiver) = mpsc::channel::<(Reading, u64)>();
        let other = thread::spawn(move || {
            for (reading, offset) in receiver {
                check_pages(&block_on(reading).unwrap(), offset);
            }
        });
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut random = SmallRng::seed_from_u64(3);
        for _ in 0..500 {
            let (offset, len) = fixture.range(&mut random);
            let mut reading = fixture.flash.start(offset, len);
            match poll_once(&mut reading, &waker) {
                Poll::Ready(result) => check_pages(&result.unwrap(), offset),
                Poll::Pending => sender.send((reading, offset)).unwrap(),
            }
        }
        drop(sender);
        other.join().unwrap();
    });
}

#[test]
fn thousands_of_reads_may_be_in_flight() {
    each_way(|options| {
        let fixture = Fixture::new(128, &options);
        thread::scope(|scope| {
            for seed in 0..4 {
                let fixture = &fixture;
                scope.spawn(move || {
                    let mut random = SmallRng::seed_from_u64(seed);
                    let ranges: Vec<_> = (0..1500)
                        .map(|_| (random.random_range(0..fixture.pages) * PAGE as u64, PAGE))
                        .collect();
                    let (alone, together) = ranges.split_at(500);
                    let mut readings = fixture.flash.start_all(together);
                    readings.extend(alone.iter().map(|&(at, len)| fixture.flash.start(at, len)));
                    for (reading, (offset, _)) in
                        readings.into_iter().zip(together.iter().chain(alone))
                    {
                        check_pages(&block_on(reading).unwrap(), *offset);
                    }
                });
            }
        });
    });
}

#[test]
fn each_read_of_a_shortened_file_fails() {
    each_way(|options| {
        let fixture = Fixture::new(16, &options);
        block_on(fixture.flash.start(0, 16 * PAGE)).unwrap();
        let file = OpenOptions::new().write(true).open(&fixture.path).unwrap();
        file.set_len(4 * PAGE as u64 + 512).unwrap();
        for first in [3u64, 4, 5, 15] {
            let offset = first * PAGE as u64;
            for reading in fixture.flash.start_all(&[(offset, PAGE); 3]) {
                match first {
                    3 => check_pages(&block_on(reading).unwrap(), offset),
                    _ => {
                        let error = block_on(reading).unwrap_err();
                        assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "page {first}: {error}");
                    }
                }
            }
            let mut buffer = fixture.flash.buffers().take(PAGE);
            let read = fixture.flash.read(&mut buffer, offset).map_err(|error| error.kind());
            let expected = if first == 3 { Ok(()) } else { Err(ErrorKind::UnexpectedEof) };
            assert_eq!(read, expected, "page {first}");
            let written = fixture.flash.write(&buffer, offset).map_err(|error| error.kind());
            assert_eq!(written, expected, "page {first}");
        }
        assert_eq!(file.metadata().unwrap().len(), 4 * PAGE as u64 + 512);
        let error = block_on(fixture.flash.start(0, 8 * PAGE)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    });
}

#[test]
fn reads_survive_the_thread_that_began_them() {
    each_way(|options| {
        let fixture = Fixture::new(2048, &options);
        for round in 0..10 {
            #[cfg(target_os = "linux")]
            if !options.direct {
                // From the page cache, they would end before the thread does.
                let file = std::fs::File::open(&fixture.path).unwrap();
                rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            }
            let (sender, receiver) = mpsc::channel();
            thread::scope(|scope| {
                for seed in 0..4 {
                    let (sender, fixture) = (sender.clone(), &fixture);
                    scope.spawn(move || {
                        let mut random = SmallRng::seed_from_u64(round << 8 | seed);
                        for _ in 0..100 {
                            let (offset, len) = fixture.range(&mut random);
                            sender.send((fixture.flash.start(offset, len), offset)).unwrap();
                        }
                    });
                }
            });
            drop(sender);
            for (reading, offset) in receiver {
                check_pages(&block_on(reading).unwrap(), offset);
            }
        }
    });
}

#[test]
fn closing_waits_for_the_reads_in_flight() {
    each_way(|options| {
        let fixture = Fixture::new(256, &options);
        let mut random = SmallRng::seed_from_u64(5);
        let ranges: Vec<_> = (0..2000).map(|_| fixture.range(&mut random)).collect();
        let readings = fixture.flash.start_all(&ranges);
        let Fixture { flash, path, _folder, .. } = fixture;
        drop(flash);
        // The last first: each check gives the others time.
        for (mut reading, (offset, _)) in readings.into_iter().zip(ranges).rev() {
            match poll_once(&mut reading, Waker::noop()) {
                Poll::Ready(result) => check_pages(&result.unwrap(), offset),
                Poll::Pending => panic!("a read was forgotten"),
            }
        }
        let begun = Instant::now();
        FileFlash::open(&path, &options).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(1), "the lock was released at the end");
    });
}

#[test]
fn a_waker_may_drop_the_last_handle() {
    struct Last(Mutex<Option<Arc<FileFlash>>>, Thread, AtomicBool);
    impl Wake for Last {
        fn wake(self: Arc<Self>) {
            drop(self.0.lock().unwrap().take());
            self.2.store(true, Ordering::SeqCst);
            self.1.unpark();
        }
    }
    each_way(|options| {
        let fixture = Fixture::new(64, &options);
        let Fixture { flash, path, _folder, .. } = fixture;
        let flash = Arc::new(flash);
        let mut readings = flash.start_all(&[(0, 8 * PAGE); 50]);
        let last = Last(Mutex::new(Some(flash)), thread::current(), AtomicBool::new(false));
        let last = Arc::new(last);
        let waker = Waker::from(Arc::clone(&last));
        let mut waiting = false;
        for reading in readings.iter_mut().rev() {
            waiting |= poll_once(reading, &waker).is_pending();
        }
        let begun = Instant::now();
        while waiting && !last.2.load(Ordering::SeqCst) {
            thread::park_timeout(Duration::from_secs(10));
            assert!(begun.elapsed() < Duration::from_secs(60), "a drop waits for itself");
        }
        drop(last.0.lock().unwrap().take());
        FileFlash::open(&path, &options).unwrap();
    });
}

#[test]
fn a_waker_that_panics_harms_no_other_read() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            std::panic::resume_unwind(Box::new("of a waker"));
        }
    }
    each_way(|options| {
        let fixture = Fixture::new(64, &options);
        let waker = Waker::from(Arc::new(Panics));
        for _ in 0..20 {
            let mut readings = fixture.flash.start_all(&[(0, 8 * PAGE); 10]);
            for reading in &mut readings {
                let _ = poll_once(reading, &waker);
            }
            check_pages(&block_on(fixture.flash.start(PAGE as u64, PAGE)).unwrap(), PAGE as u64);
        }
    });
}

#[cfg(unix)]
#[test]
fn a_forked_child_reads_without_the_ring() {
    each_way(|options| {
        let fixture = Fixture::new(64, &options);
        let pending = fixture.flash.start_all(&[(0, 8 * PAGE); 100]);
        // SAFETY: the child uses this file's code and the allocator only, and ends by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
                for mut reading in pending {
                    match poll_once(&mut reading, Waker::noop()) {
                        Poll::Ready(result) => assert!(result.is_err()),
                        Poll::Pending => panic!("nothing completes it"),
                    }
                }
                let mut reading = fixture.flash.start(PAGE as u64, PAGE);
                match poll_once(&mut reading, Waker::noop()) {
                    Poll::Ready(result) => check_pages(&result.unwrap(), PAGE as u64),
                    Poll::Pending => panic!("a child reads at once"),
                }
                drop(fixture.flash);
            }));
            // SAFETY: it may be called at any time, and returns to none.
            unsafe { libc::_exit(i32::from(result.is_err())) };
        }
        assert!(child > 0);
        let mut status = 0;
        // SAFETY: the status is written during the call only.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child ended well");
        for reading in pending {
            check_pages(&block_on(reading).unwrap(), 0);
        }
        check_pages(&block_on(fixture.flash.start(0, PAGE)).unwrap(), 0);
        assert!(matches!(Target::open(&fixture.path, None, true), Err(OpenError::InUse { .. })));
    });
}

#[cfg(unix)]
#[test]
fn closing_releases_the_lock_though_a_child_holds_the_file() {
    let fixture = Fixture::new(1, &FlashOptions::default());
    // SAFETY: the child only sleeps.
    let child = unsafe { libc::fork() };
    if child == 0 {
        loop {
            thread::sleep(Duration::from_secs(60));
        }
    }
    let Fixture { flash, path, _folder, .. } = fixture;
    drop(flash);
    let again = FileFlash::open(&path, &FlashOptions::default());
    // SAFETY: the child has not been waited for, so that its number is its own.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    again.unwrap();
}

#[test]
fn opening_creates_locks_and_checks() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("flash");
    let sized = |size| FlashOptions { size: Some(size), ..FlashOptions::default() };
    let message = |options: &FlashOptions| FileFlash::open(&path, options).unwrap_err().to_string();

    assert!(message(&FlashOptions::default()).ends_with("give a size to create it"));
    assert!(message(&sized(5000)).ends_with("5000 bytes is not a positive multiple of 4096"));
    let full = message(&sized(1 << 62));
    assert!(full.contains("more than its file system has free"), "{full}");
    assert!(!path.exists(), "nothing is left behind");

    let flash = FileFlash::open(&path, &sized(1 << 20)).unwrap();
    assert_eq!(flash.size_bytes(), 1 << 20);
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::fs::MetadataExt;
        let data = std::fs::metadata(&path).unwrap();
        assert_eq!((data.mode() & 0o777, data.len()), (0o600, 1 << 20));
        assert!(data.blocks() * 512 >= 1 << 20, "its space is reserved");
    }
    assert!(message(&FlashOptions::default()).contains("is in use"));
    drop(flash);
    assert!(message(&sized(1 << 21)).contains("has 1048576 bytes, not the 2097152 asked for"));
    assert_eq!(FileFlash::open(&path, &FlashOptions::default()).unwrap().size_bytes(), 1 << 20);
    std::fs::write(&path, []).unwrap();
    assert!(message(&FlashOptions::default()).contains("a size of 0 bytes"));
    assert_eq!(FileFlash::open(&path, &sized(8192)).unwrap().size_bytes(), 8192);

    let folders = FileFlash::open(folder.path(), &sized(8192)).unwrap_err();
    assert!(matches!(folders, OpenError::NotAFile { .. }));
    let missing = FileFlash::open(&folder.path().join("a/b"), &sized(8192)).unwrap_err();
    assert!(missing.to_string().contains("does not exist"), "{missing}");
}

#[test]
fn a_simulated_flash_reads_at_once() {
    #[derive(Debug)]
    struct Simulated(Buffers);
    impl Flash for Simulated {
        fn size_bytes(&self) -> u64 {
            1 << 20
        }
        fn buffers(&self) -> &Buffers {
            &self.0
        }
        fn read(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
            into.fill((offset / PAGE as u64) as u8);
            Ok(())
        }
        fn write(&self, _: &[u8], _: u64) -> io::Result<()> {
            Ok(())
        }
        fn write_cached(&self, from: &[u8], offset: u64) -> io::Result<()> {
            self.write(from, offset)
        }

        fn sync(&self) -> io::Result<()> {
            Ok(())
        }
    }
    let flash: Arc<dyn Flash> = Arc::new(Simulated(Buffers::new(0)));
    for mut reading in flash.start_all(&[(3 * PAGE as u64, PAGE); 2]) {
        let Poll::Ready(Ok(buffer)) = poll_once(&mut reading, Waker::noop()) else {
            panic!("it has ended");
        };
        assert_eq!(*buffer, [3; PAGE]);
    }
}
