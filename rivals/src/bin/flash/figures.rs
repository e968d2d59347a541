//! The figures, each with its own caches in a folder of its own.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::load::{
    Stream, io_counter, median, percentile, processor_time, resident_bytes, shuffled, value, values,
};
use crate::roster::Named;
use crate::subjects::{Bench, Settings};
use crate::table::Results;

/// Subjects, sizes and place of one figure.
pub struct Plan<'a> {
    pub subjects: &'a [Named],
    pub folder: PathBuf,
    pub rounds: usize,
    pub objects: usize,
}

type Measure = fn(&Plan, &mut Results) -> Result<(), String>;

/// Every figure by name, with its line for people.
pub const FIGURES: [(&str, &str, Measure); 12] = [
    ("reads", "Reads from flash, paired: processor µs a read; wall µs", reads),
    ("inserts", "Insertions until all is on flash, paired: µs each", inserts),
    ("written", "Bytes written to the disk a byte of value", written),
    ("memory", "Memory that grows with objects of 1 KB on flash: bytes an object", memory),
    ("storm", "Found after inserting without waiting, flash ample: %", storm),
    ("restart", "Insert, close, open again", restart),
    ("recovery", "Insert 25 times as many, end without closing, open; close, open", recovery),
    ("removed", "Insert 5,000, remove all, close, open: found", removed),
    ("hits", "Hit ratio by Zipf 0.99, memory 1/10 of flash, half the keys fit: %", hits),
    ("warm", "Hits in memory without futures, paired: ns each", warm),
    ("idle", "Processor ms in 2 s without requests", idle),
    ("mixed", "Reads of 20 KB, 4 at a time, beside inserts of 800 MB/s: µs", mixed),
];

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;
/// Bytes inserted at most, in whole pages each, before the producer waits for the disk.
const BURST: usize = 16 * MIB;

/// Bytes of an object where each takes whole pages, with a page for headers of large ones.
fn padded(value_bytes: usize) -> usize {
    (value_bytes + 128).next_multiple_of(PAGE)
}

/// Room for objects in whole pages, and to spare.
fn ample(objects: usize, value_bytes: usize) -> usize {
    (objects * padded(value_bytes) * 5 / 4 + 128 * MIB).next_multiple_of(16 * MIB)
}

fn size_name(bytes: usize) -> String {
    match bytes {
        0..1000 => format!("{bytes} B"),
        1000..1_000_000 => format!("{} KB", bytes / 1000),
        _ => format!("{} MB", bytes / 1_000_000),
    }
}

/// Objects of a size, so that each size takes about as long.
fn scaled(objects: usize, value_bytes: usize) -> usize {
    (objects * 4 * PAGE / (padded(value_bytes) + 3 * PAGE)).max(1000)
}

impl Plan<'_> {
    fn settings(
        &self,
        subject: usize,
        memory: usize,
        flash: usize,
        value_bytes: usize,
    ) -> Settings {
        let folder = self.folder.join(subject.to_string());
        Settings { folder, memory, flash, value_bytes, words: Vec::new() }
    }

    fn open(
        &self,
        subject: usize,
        memory: usize,
        flash: usize,
        value_bytes: usize,
    ) -> Result<Box<dyn Bench>, String> {
        let named = &self.subjects[subject];
        named
            .open(self.settings(subject, memory, flash, value_bytes))
            .map_err(|error| format!("{}: {error}", named.name))
    }

    /// Does something with each subject, alone and in an empty folder.
    fn each(&self, mut run: impl FnMut(usize) -> Result<(), String>) -> Result<(), String> {
        for (index, named) in self.subjects.iter().enumerate() {
            eprintln!("  {}", named.name);
            run(index)?;
            let _ = std::fs::remove_dir_all(&self.folder);
        }
        Ok(())
    }

    /// Says so where a subject lost objects that should all be there.
    fn check(&self, subject: usize, found: usize, asked: usize) {
        if found * 100 < asked * 99 {
            let name = &self.subjects[subject].name;
            eprintln!("  {name} found {found} of {asked}, where all should be there");
        }
    }
}

/// A subject whose batches take turns with those of others. It is open throughout, or only in its
/// turns if its threads do not rest: they would take time from the others.
struct Seat<'a> {
    plan: &'a Plan<'a>,
    subject: usize,
    memory: usize,
    flash: usize,
    value_bytes: usize,
    bench: Option<Box<dyn Bench>>,
}

impl<'a> Seat<'a> {
    /// Opens a subject with objects from key 0 on.
    fn take(
        plan: &'a Plan<'a>,
        subject: usize,
        (memory, flash): (usize, usize),
        objects: usize,
        value_bytes: usize,
    ) -> Result<Self, String> {
        let named = &plan.subjects[subject];
        eprintln!("  filling {} with {}", named.name, size_name(value_bytes));
        let bench = plan.open(subject, memory, flash, value_bytes)?;
        fill(&*bench, 0, objects, value_bytes);
        let bench = if named.rests() {
            Some(bench)
        } else {
            bench.close();
            None
        };
        Ok(Self { plan, subject, memory, flash, value_bytes, bench })
    }

    fn turn<T>(&self, run: impl FnOnce(&dyn Bench) -> T) -> Result<T, String> {
        if let Some(bench) = &self.bench {
            return Ok(run(&**bench));
        }
        let bench = self.plan.open(self.subject, self.memory, self.flash, self.value_bytes)?;
        bench.read(&[0, 1, 2, 3], 4); // practice
        let result = run(&*bench);
        bench.close();
        Ok(result)
    }
}

/// Inserts objects in bursts that every subject can take, and waits for the disk after each.
fn fill(bench: &dyn Bench, first: usize, count: usize, value_bytes: usize) {
    let burst = (BURST / padded(value_bytes)).max(1);
    let end = first + count;
    for from in (first..end).step_by(burst) {
        bench.insert(values(from as u64, burst.min(end - from), value_bytes));
        bench.sync();
    }
}

/// The order of subjects in a round.
fn turns(subjects: usize, round: usize) -> impl Iterator<Item = usize> {
    (0..subjects).map(move |turn| (turn + round) % subjects)
}

fn reads(plan: &Plan, results: &mut Results) -> Result<(), String> {
    for value_bytes in [1000, 16_000] {
        let objects = scaled(plan.objects, value_bytes);
        // Memory holds a twentieth, and no object that comes next.
        let sizes = (objects * value_bytes / 20, ample(objects, value_bytes));
        let seats: Result<Vec<_>, _> = (0..plan.subjects.len())
            .map(|subject| Seat::take(plan, subject, sizes, objects, value_bytes))
            .collect();
        let seats = seats?;
        for depth in [1, 32] {
            eprintln!("  reading {}, depth {depth}", size_name(value_bytes));
            read_rounds(plan, results, &seats, depth)?;
        }
        seats.into_iter().filter_map(|seat| seat.bench).for_each(|bench| bench.close());
        let _ = std::fs::remove_dir_all(&plan.folder);
    }
    Ok(())
}

fn read_rounds(
    plan: &Plan,
    results: &mut Results,
    seats: &[Seat],
    depth: usize,
) -> Result<(), String> {
    let value_bytes = seats[0].value_bytes;
    let order = shuffled(scaled(plan.objects, value_bytes), depth as u64);
    let batch = (if depth == 1 { 600 } else { 3000 }).min(order.len() / 4);
    let mut cpu = vec![Vec::new(); seats.len()];
    let mut nanos = vec![Vec::new(); seats.len()];
    let mut wall = vec![Vec::new(); seats.len()];
    let (mut found, mut from_disk) = (vec![0; seats.len()], vec![0; seats.len()]);
    for round in 0..=plan.rounds {
        // Keys come again only after all others: they have left memory by then.
        let from = round * batch % order.len();
        let keys: Vec<_> = order.iter().cycle().skip(from).take(batch).copied().collect();
        for subject in turns(seats.len(), round) {
            let (used, elapsed, disk, reads) = seats[subject].turn(|bench| {
                let disk = io_counter("read_bytes");
                let (used, begun) = (processor_time(), Instant::now());
                let reads = bench.read(&keys, depth);
                let (used, elapsed) = (processor_time() - used, begun.elapsed());
                (used, elapsed, io_counter("read_bytes") - disk, reads)
            })?;
            assert_eq!(reads.wrong, 0, "{} gave a wrong value", plan.subjects[subject].name);
            if round == 0 {
                continue; // practice
            }
            from_disk[subject] += disk as usize;
            cpu[subject].push(used.as_secs_f64() * 1e6 / batch as f64);
            wall[subject].push(elapsed.as_secs_f64() * 1e6 / batch as f64);
            found[subject] += reads.found;
            nanos[subject].extend(reads.nanos.into_iter().map(|nanos| nanos as f64 / 1000.0));
        }
    }
    let asked = plan.rounds * batch;
    let name = format!("{}, depth {depth}", size_name(value_bytes));
    for subject in 0..seats.len() {
        plan.check(subject, found[subject], asked);
        results.set(format!("{name}: CPU"), subject, median(cpu[subject].iter().copied()));
        let wall = median(wall[subject].iter().copied());
        results.set(format!("{name}: wall"), subject, wall);
        if depth > 1 {
            let kib = from_disk[subject] as f64 / asked as f64 / 1024.0;
            results.set(format!("{name}: KiB read"), subject, kib);
        }
        for (percent, share) in [("p50", 0.5), ("p99", 0.99)] {
            let value = percentile(nanos[subject].iter().copied(), share);
            results.set(format!("{name}: {percent}"), subject, value);
        }
    }
    Ok(())
}

fn inserts(plan: &Plan, results: &mut Results) -> Result<(), String> {
    let memory = 4 * MIB;
    for value_bytes in [200, 1000, 16_000] {
        let batch = BURST / padded(value_bytes);
        // Each object that comes makes another one leave memory.
        let before = 2 * memory / value_bytes;
        let objects = before + batch * (plan.rounds + 1);
        let sizes = (memory, ample(objects, value_bytes));
        let seats: Result<Vec<_>, _> = (0..plan.subjects.len())
            .map(|subject| Seat::take(plan, subject, sizes, before, value_bytes))
            .collect();
        let seats = seats?;
        eprintln!("  inserting {}", size_name(value_bytes));
        let mut cpu = vec![Vec::new(); seats.len()];
        let mut wall = vec![Vec::new(); seats.len()];
        for round in 0..=plan.rounds {
            for subject in turns(seats.len(), round) {
                let values = values((before + round * batch) as u64, batch, value_bytes);
                let (used, elapsed) = seats[subject].turn(|bench| {
                    let (used, begun) = (processor_time(), Instant::now());
                    bench.insert(values);
                    bench.sync();
                    (processor_time() - used, begun.elapsed())
                })?;
                if round > 0 {
                    cpu[subject].push(used.as_secs_f64() * 1e6 / batch as f64);
                    wall[subject].push(elapsed.as_secs_f64() * 1e6 / batch as f64);
                }
            }
        }
        let keys: Vec<_> = shuffled(objects, 3).into_iter().take(2000).collect();
        for (subject, seat) in seats.into_iter().enumerate() {
            plan.check(subject, seat.turn(|bench| bench.read(&keys, 32).found)?, keys.len());
            if let Some(bench) = seat.bench {
                bench.close();
            }
            let name = size_name(value_bytes);
            results.set(format!("{name}: CPU"), subject, median(cpu[subject].iter().copied()));
            results.set(format!("{name}: wall"), subject, median(wall[subject].iter().copied()));
        }
        let _ = std::fs::remove_dir_all(&plan.folder);
    }
    Ok(())
}

fn written(plan: &Plan, results: &mut Results) -> Result<(), String> {
    for value_bytes in [200, 1000, 16_000] {
        let objects = scaled(plan.objects, value_bytes);
        plan.each(|subject| {
            let bench = plan.open(subject, 4 * MIB, ample(objects, value_bytes), value_bytes)?;
            let before = io_counter("write_bytes");
            fill(&*bench, 0, objects, value_bytes);
            bench.close(); // and with it what was in memory only
            let written = (io_counter("write_bytes") - before) as f64;
            results.set(size_name(value_bytes), subject, written / (objects * value_bytes) as f64);
            Ok(())
        })?;
    }
    Ok(())
}

fn memory(plan: &Plan, results: &mut Results) -> Result<(), String> {
    let (step, value_bytes) = (plan.objects.min(48_000), 1000);
    plan.each(|subject| {
        let bench = plan.open(subject, 4 * MIB, ample(10 * step, value_bytes), value_bytes)?;
        // The first objects fill buffers, pools and the cache in memory. Tables double, so that
        // bytes an object depend on the number of objects: several numbers are looked at.
        fill(&*bench, 0, step, value_bytes);
        let (resident, counted) = (resident_bytes() as f64, bench.index_bytes());
        let (mut grown, mut own) = (Vec::new(), Vec::new());
        for done in 1..10 {
            fill(&*bench, done * step, step, value_bytes);
            if done < 4 {
                continue;
            }
            let more = (done * step) as f64;
            grown.push((resident_bytes() as f64 - resident) / more);
            if let (Some(before), Some(now)) = (counted, bench.index_bytes()) {
                own.push((now as f64 - before as f64) / more);
            }
        }
        for (name, values) in [("by /proc/self/statm", grown), ("by its own account", own)] {
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            results.set(format!("{name}: mean"), subject, mean);
            results.set(format!("{name}: most"), subject, percentile(values, 1.0));
        }
        bench.close();
        Ok(())
    })
}

fn storm(plan: &Plan, results: &mut Results) -> Result<(), String> {
    for value_bytes in [1000, 16_000] {
        let objects = scaled(plan.objects * 5 / 2, value_bytes);
        plan.each(|subject| {
            let bench = plan.open(subject, 4 * MIB, ample(objects, value_bytes), value_bytes)?;
            let values = values(0, objects, value_bytes);
            let begun = Instant::now();
            bench.insert(values);
            let elapsed = begun.elapsed().as_secs_f64();
            bench.sync();
            let keys: Vec<_> = (0..objects as u64).collect();
            let found = bench.read(&keys, 32).found as f64;
            bench.close();
            let name = size_name(value_bytes);
            results.set(format!("{name}: found"), subject, 100.0 * found / objects as f64);
            let rate = (objects * value_bytes) as f64 / elapsed / 1e6;
            results.set(format!("{name}: producer MB/s"), subject, rate);
            Ok(())
        })?;
    }
    Ok(())
}

/// Inserts objects of 1 KB, waits until they are on flash, and ends the process without closing the
/// cache. Runs in a process of its own.
pub fn fill_and_die(named: &Named, settings: Settings, objects: usize) -> Result<(), String> {
    let value_bytes = settings.value_bytes;
    let bench = named.open(settings)?;
    fill(&*bench, 0, objects, value_bytes);
    std::process::exit(0);
}

fn recovery(plan: &Plan, results: &mut Results) -> Result<(), String> {
    let (objects, value_bytes) = (plan.objects * 25, 1000);
    // Room for the index.
    let (memory, flash) = (4 * MIB + objects * 24, ample(objects, value_bytes));
    plan.each(|subject| {
        let named = &plan.subjects[subject];
        let flash = if named.packs() { objects * 1100 + 128 * MIB } else { flash };
        let settings = plan.settings(subject, memory, flash, value_bytes);
        fill_in_child(named, &settings, objects)?;
        for after in ["a crash", "closing"] {
            let (used, begun) = (processor_time(), Instant::now());
            let bench = plan.open(subject, memory, flash, value_bytes)?;
            let opened = begun.elapsed().as_secs_f64();
            let used = (processor_time() - used).as_secs_f64();
            bench.read(&[objects as u64 / 2], 1);
            let first = begun.elapsed().as_secs_f64();
            let keys: Vec<_> = shuffled(objects, 5).into_iter().take(20_000).collect();
            let found = bench.read(&keys, 32).found as f64;
            bench.close();
            let mut set = |what: &str, figure| {
                results.set(&format!("after {after}: {what}"), subject, figure);
            };
            set("open, s", opened);
            set("CPU s", used);
            set("first read, s", first);
            set("found, %", 100.0 * found / keys.len() as f64);
        }
        Ok(())
    })
}

fn fill_in_child(named: &Named, settings: &Settings, objects: usize) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let subject = [&[named.name.clone()], &named.words[..]].concat().join("/");
    let numbers = [settings.memory, settings.flash, settings.value_bytes, objects];
    let status = std::process::Command::new(program)
        .args(["--subjects", &subject, "--dir"])
        .arg(&settings.folder)
        .arg("--fill")
        .args(numbers.map(|number| number.to_string()))
        .status()
        .map_err(|error| error.to_string())?;
    if status.success() { Ok(()) } else { Err(format!("{subject}: filling ended with {status}")) }
}

fn restart(plan: &Plan, results: &mut Results) -> Result<(), String> {
    let (objects, value_bytes) = (plan.objects * 5 / 2, 1000);
    plan.each(|subject| {
        let flash = ample(objects, value_bytes);
        let bench = plan.open(subject, 4 * MIB, flash, value_bytes)?;
        fill(&*bench, 0, objects, value_bytes);
        let begun = Instant::now();
        bench.close();
        results.set("close, ms", subject, begun.elapsed().as_secs_f64() * 1e3);
        let (used, begun) = (processor_time(), Instant::now());
        let bench = plan.open(subject, 4 * MIB, flash, value_bytes)?;
        let million = 1e6 / objects as f64;
        let opened = begun.elapsed().as_secs_f64();
        results.set("open, ms", subject, opened * 1e3);
        results.set("open, s a million objects", subject, opened * million);
        let used = (processor_time() - used).as_secs_f64();
        results.set("open, CPU s a million objects", subject, used * million);
        bench.read(&[objects as u64 / 2], 1);
        results.set(
            "first read, ms after open began",
            subject,
            begun.elapsed().as_secs_f64() * 1e3,
        );
        let keys: Vec<_> = (0..objects as u64).collect();
        let found = bench.read(&keys, 32).found as f64;
        results.set("found, %", subject, 100.0 * found / objects as f64);
        bench.close();
        Ok(())
    })
}

fn removed(plan: &Plan, results: &mut Results) -> Result<(), String> {
    let (objects, value_bytes) = (5000, 1000);
    plan.each(|subject| {
        let flash = ample(objects, value_bytes);
        let bench = plan.open(subject, 4 * MIB, flash, value_bytes)?;
        fill(&*bench, 0, objects, value_bytes);
        let keys: Vec<_> = (0..objects as u64).collect();
        results.set("before", subject, bench.read(&keys, 32).found as f64);
        bench.remove(&keys);
        bench.sync();
        results.set("after removal", subject, bench.read(&keys, 32).found as f64);
        bench.close();
        let bench = plan.open(subject, 4 * MIB, flash, value_bytes)?;
        results.set("after opening again", subject, bench.read(&keys, 32).found as f64);
        bench.close();
        Ok(())
    })
}

fn hits(plan: &Plan, results: &mut Results) -> Result<(), String> {
    let sizes = [(100, 16, 10), (1000, 64, 5), (16_000, 128, 2), (1_000_000, 256, 1)];
    for (value_bytes, mib, share) in sizes {
        let flash = mib * MIB;
        let keys = 2 * flash / value_bytes;
        let requests = match value_bytes {
            1_000_000 => plan.objects / 16,
            _ => plan.objects * share,
        };
        let pause = (BURST / padded(value_bytes)).max(1);
        let stream = Stream::new(keys, requests, value_bytes, pause);
        eprintln!("  {} requests for {keys} objects of {}", requests, size_name(value_bytes));
        plan.each(|subject| {
            let bench = plan.open(subject, flash / 10, flash, value_bytes)?;
            results.set(size_name(value_bytes), subject, 100.0 * bench.hits(&stream));
            bench.close();
            Ok(())
        })?;
    }
    Ok(())
}

fn warm(plan: &Plan, results: &mut Results) -> Result<(), String> {
    let (objects, value_bytes) = (5_000, 1000);
    let sizes = (64 * MIB, ample(objects, value_bytes));
    let seats: Result<Vec<_>, _> = (0..plan.subjects.len())
        .map(|subject| Seat::take(plan, subject, sizes, objects, value_bytes))
        .collect();
    let seats = seats?;
    let order = shuffled(objects, 9);
    let keys: Vec<_> = order.iter().cycle().take(200_000).copied().collect();
    let mut nanos = vec![Vec::new(); seats.len()];
    for round in 0..=5 * plan.rounds {
        for subject in turns(seats.len(), round) {
            let (elapsed, found) = seats[subject].turn(|bench| {
                let begun = processor_time();
                let found = bench.read_blocking(&keys);
                (processor_time() - begun, found)
            })?;
            plan.check(subject, found, keys.len());
            if round > 0 {
                nanos[subject].push(elapsed.as_secs_f64() * 1e9 / keys.len() as f64);
            }
        }
    }
    for (subject, nanos) in nanos.into_iter().enumerate() {
        results.set("1 KB: CPU", subject, median(nanos));
    }
    seats.into_iter().filter_map(|seat| seat.bench).for_each(|bench| bench.close());
    Ok(())
}

fn idle(plan: &Plan, results: &mut Results) -> Result<(), String> {
    plan.each(|subject| {
        let bench = plan.open(subject, 4 * MIB, ample(1000, 1000), 1000)?;
        fill(&*bench, 0, 1000, 1000);
        std::thread::sleep(Duration::from_millis(200));
        let used = processor_time();
        std::thread::sleep(Duration::from_secs(2));
        results.set("ms", subject, (processor_time() - used).as_secs_f64() * 1e3);
        bench.close();
        Ok(())
    })
}

fn mixed(plan: &Plan, results: &mut Results) -> Result<(), String> {
    let (value_bytes, objects, rate, length) = (20_000, 4000, 800e6, Duration::from_secs(1));
    let inserted = (rate * length.as_secs_f64()) as usize / value_bytes;
    let offered = (inserted * value_bytes) as f64;
    let mut rows: Vec<(&str, Vec<Vec<f64>>)> =
        ["inserted, MB/s", "of it written, %", "p50", "p99", "p99.9"]
            .map(|name| (name, vec![Vec::new(); plan.subjects.len()]))
            .into();
    for _ in 0..plan.rounds.min(3) {
        plan.each(|subject| {
            // All inserts fit beside the objects that are read: none of these leaves.
            let flash = ample(objects + inserted, value_bytes);
            let bench = plan.open(subject, 16 * MIB, flash, value_bytes)?;
            fill(&*bench, 0, objects, value_bytes);
            let (stop, keys) = (AtomicBool::new(false), shuffled(objects, 5));
            let before = io_counter("write_bytes");
            let (reads, elapsed) = std::thread::scope(|scope| {
                let reader = scope.spawn(|| bench.read_until(&keys, 4, &stop));
                let begun = Instant::now();
                if plan.subjects[subject].is_floor() {
                    std::thread::sleep(length);
                } else {
                    let value = value(u64::MAX, value_bytes);
                    bench.insert_paced(objects as u64, &value, rate, length);
                }
                let elapsed = begun.elapsed().as_secs_f64();
                stop.store(true, Ordering::Relaxed);
                (reader.join().expect("no reader panics"), elapsed)
            });
            bench.sync();
            plan.check(subject, reads.found, reads.nanos.len());
            let micros = || reads.nanos.iter().map(|&nanos| nanos as f64 / 1000.0);
            let (mut speed, mut share) = (f64::NAN, f64::NAN);
            if !plan.subjects[subject].is_floor() {
                speed = offered / elapsed / 1e6;
                share = 100.0 * (io_counter("write_bytes") - before) as f64 / offered;
            }
            let values = [speed, share].into_iter();
            let values = values.chain([0.5, 0.99, 0.999].map(|at| percentile(micros(), at)));
            for (row, value) in rows.iter_mut().zip(values) {
                row.1[subject].push(value);
            }
            bench.close();
            Ok(())
        })?;
    }
    for (name, subjects) in rows {
        for (subject, values) in subjects.into_iter().enumerate() {
            results.set(name, subject, median(values));
        }
    }
    Ok(())
}
