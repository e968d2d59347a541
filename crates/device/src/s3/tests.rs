//! Volumes on a store in memory: against a flat model with faults from a seed, with two servers,
//! and through a device.

mod faulty;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use floe_testkit::Random;
use futures_util::future::join_all;
use object_store::ObjectStoreExt;
use object_store::path::Path;

use self::faulty::{Counts, Faulty};
use super::bucket::{Bucket, Failure, Pace};
use super::engine::Engine;
use super::lease::Lease;
use super::name::{S3Error, S3Name};
use super::source::{S3Source, Times};
use super::volume::{Volume, random_name};
use crate::buffer::Pool;
use crate::device::{Action, Device, Operation};
use crate::ring::Ring;
use crate::source::PreparedDevice;

const SECTOR: u64 = 4096;
const OBJECT: u64 = 64 << 10;
/// Five objects and a half.
const SIZE: u64 = 5 * OBJECT + OBJECT / 2;

const PACE: Pace = Pace { first: Duration::from_millis(100), longest: Duration::from_millis(500) };

fn name(settings: &str) -> S3Name {
    let mut name = S3Name::parse("//bucket/vm").expect("it is a name");
    name.timeout = Some(Duration::from_secs(3));
    if settings == "new" {
        (name.size, name.object) = (Some(SIZE), Some(OBJECT));
    }
    name
}

/// Runs a future on a runtime whose clock stands still while there is something to do.
fn run<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(future)
}

async fn open(store: &Faulty, name: &S3Name, term: Duration) -> Result<Arc<Engine>, S3Error> {
    let limit = name.timeout.expect("it has one");
    let bucket = Bucket::new(Arc::new(store.clone()), name.to_string(), PACE, limit);
    let volume = Volume::open(&bucket, name, false).await?;
    let session = random_name().expect("there are random numbers");
    let lease = Lease::take(&bucket, name, volume.owner(), &session, term).await?;
    Ok(Arc::new(Engine::new(bucket, volume, Some(lease), session)))
}

async fn close(engine: Arc<Engine>) {
    let lease = engine.lease.as_ref().expect("it writes");
    lease.release(&engine.bucket).await;
}

const DAY: Duration = Duration::from_secs(86_400);

async fn bytes_of(engine: &Engine, offset: u64, bytes: u64) -> Result<Vec<u8>, Failure> {
    let mut all = vec![0xEE; bytes as usize];
    for (range, part) in engine.read(offset, bytes).await? {
        match part {
            Some(part) => all[range].copy_from_slice(&part),
            None => all[range].fill(0),
        }
    }
    Ok(all)
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Read,
    Write(u8),
    Zero,
    Discard,
}

/// The values that each sector may have; several after a write that failed.
struct Model(Vec<BTreeSet<u8>>);

impl Model {
    fn ended(
        &mut self,
        step: Step,
        sectors: std::ops::Range<u64>,
        result: &Result<Vec<u8>, Failure>,
    ) {
        for at in sectors.clone() {
            let values = &mut self.0[at as usize];
            match (step, result) {
                (Step::Read, Ok(bytes)) => {
                    let from = ((at - sectors.start) * SECTOR) as usize;
                    let sector = &bytes[from..from + SECTOR as usize];
                    assert!(sector.iter().all(|byte| *byte == sector[0]), "sector {at} is torn");
                    assert!(
                        values.contains(&sector[0]),
                        "sector {at}: {} of {values:?}",
                        sector[0]
                    );
                    *values = BTreeSet::from([sector[0]]);
                }
                (Step::Read, Err(_)) => {}
                (Step::Write(byte), Ok(_)) => *values = BTreeSet::from([byte]),
                (Step::Write(byte), Err(_)) => drop(values.insert(byte)),
                (Step::Zero, Ok(_)) => *values = BTreeSet::from([0]),
                (Step::Zero, Err(_)) | (Step::Discard, _) => drop(values.insert(0)),
            }
        }
    }
}

async fn step(
    engine: &Arc<Engine>,
    step: Step,
    sectors: &std::ops::Range<u64>,
) -> Result<Vec<u8>, Failure> {
    let (offset, bytes) = (sectors.start * SECTOR, (sectors.end - sectors.start) * SECTOR);
    match step {
        Step::Read => bytes_of(engine, offset, bytes).await,
        Step::Write(byte) => {
            engine.write(offset, Bytes::from(vec![byte; bytes as usize])).await.map(|()| Vec::new())
        }
        Step::Zero => engine.clear(offset, bytes, false).await.map(|()| Vec::new()),
        Step::Discard => engine.clear(offset, bytes, true).await.map(|()| Vec::new()),
    }
}

/// Goes through a history of operations, faults and restarts.
async fn history(seed: u64) -> u64 {
    let mut random = Random(seed);
    let store = Faulty::new(random.next());
    let mut engine = open(&store, &name("new"), DAY).await.expect("it is new");
    let mut model = Model(vec![BTreeSet::from([0]); (SIZE / SECTOR) as usize]);
    let mut failed = 0;
    for _ in 0..60 {
        store.set_percent([0, 20, 50, 97][random.below(4)]);
        // Operations at the same time are on sectors of their own, often of one object.
        let mut from = random.below(model.0.len()) as u64;
        let mut steps = Vec::new();
        for _ in 0..=random.below(5) {
            let most = if random.below(4) == 0 { 40 } else { 4 };
            let to = (from + 1 + random.below(most) as u64).min(model.0.len() as u64);
            let kind = match random.below(8) {
                0..=3 => Step::Write(random.below(4) as u8),
                4..=5 => Step::Read,
                6 => Step::Zero,
                _ => Step::Discard,
            };
            steps.push((kind, from..to));
            from = to + random.below(3) as u64;
            if from >= model.0.len() as u64 {
                break;
            }
        }
        let results = join_all(steps.iter().map(|(kind, at)| step(&engine, *kind, at))).await;
        for ((kind, sectors), result) in steps.into_iter().zip(&results) {
            if let Err(failure) = result {
                assert!(!failure.reason.contains("another server"), "{}", failure.reason);
                assert!(failure.reason.contains("503 SlowDown"), "{}", failure.reason);
                failed += 1;
            }
            model.ended(kind, sectors, result);
        }
        if random.below(12) == 0 {
            store.set_percent(0);
            close(engine).await;
            engine = open(&store, &name(""), DAY).await.expect("it is there");
        }
    }
    store.set_percent(0);
    let all = 0..model.0.len() as u64;
    let result = step(&engine, Step::Read, &all).await;
    assert!(result.is_ok(), "{result:?}");
    model.ended(Step::Read, all, &result);
    failed
}

#[test]
fn a_volume_with_faults_is_a_flat_one() {
    let histories = std::env::var("FLOE_HISTORIES").map_or(60, |it| it.parse().expect("a number"));
    let seed = std::env::var("FLOE_SEED").map_or(4711, |it| it.parse().expect("a number"));
    let mut failed = 0;
    for seed in seed..seed + histories {
        println!("FLOE_SEED={seed}"); // of the failure, if it is the last one
        failed += run(history(seed));
    }
    assert!(failed > 0, "no operation has failed");
}

#[test]
fn a_server_that_lost_its_lease_unnoticed_cannot_overwrite() {
    run(async {
        let store = Faulty::new(1);
        let first = open(&store, &name("new"), DAY).await.expect("it is new");
        first.write(0, vec![1; SECTOR as usize].into()).await.expect("it is written");
        // The first stands still for longer than the term.
        let second = open(&store, &name(""), Duration::from_secs(1)).await.expect("it takes over");
        second.write(SECTOR, vec![2; SECTOR as usize].into()).await.expect("it is written");
        let refused = first.write(2 * SECTOR, vec![3; SECTOR as usize].into()).await.unwrap_err();
        let wanted =
            "another server writes to s3://bucket/vm (vm/data/0000000000000000 has changed)";
        assert!(refused.reason.starts_with(wanted), "{}", refused.reason);
        assert!(first.read(0, SECTOR).await.is_err() && first.clear(0, SIZE, true).await.is_err());
        let found = bytes_of(&second, 0, 3 * SECTOR).await.expect("it is read");
        assert_eq!([0, 1, 2].map(|at| found[at * SECTOR as usize]), [1, 2, 0]);
    });
}

#[test]
fn a_server_notices_what_another_has_written() {
    run(async {
        for by_read in [true, false] {
            let store = Faulty::new(1);
            let first = open(&store, &name("new"), DAY).await.expect("it is new");
            let second = open(&store, &name(""), Duration::from_secs(1)).await.expect("it comes");
            let ones = Bytes::from(vec![1; SECTOR as usize]);
            second.write(0, ones.clone()).await.expect("it is written");
            first.write(SECTOR, ones.clone()).await.expect("it knew nothing of the object");
            let noticed = match by_read {
                true => second.read(0, SECTOR).await.map(drop),
                false => second.write(0, ones).await,
            };
            assert!(noticed.unwrap_err().reason.contains("another server"));
        }
    });
}

#[test]
fn writes_of_one_object_share_a_put() {
    run(async {
        let store = Faulty::new(1);
        let engine = open(&store, &name("new"), DAY).await.expect("it is new");
        store.take_counts();
        let some = |number: u64| (number * SECTOR, Bytes::from(vec![7; SECTOR as usize]));
        let write = |number| {
            let (offset, bytes) = some(number);
            engine.write(offset, bytes)
        };
        join_all((0..OBJECT / SECTOR - 1).map(write)).await;
        let one = Counts { puts: 1, gets: 1, ..Counts::default() };
        assert_eq!(store.take_counts(), one, "they wait for the first one's read");
        write(0).await.expect("it is written");
        assert_eq!(
            store.take_counts(),
            Counts { puts: 1, ..Counts::default() },
            "it knows the rest"
        );
        let whole = Bytes::from(vec![9; OBJECT as usize]);
        engine.write(OBJECT, whole.clone()).await.expect("it is written");
        assert_eq!(store.take_counts(), Counts { puts: 1, heads: 1, ..Counts::default() });
        engine.write(OBJECT, whole).await.expect("it is written");
        assert_eq!(store.take_counts(), Counts { puts: 1, ..Counts::default() });
        engine.write(2 * OBJECT, vec![0; SECTOR as usize].into()).await.expect("it is zero");
        engine.read(2 * OBJECT, SECTOR).await.expect("it is known to be absent");
        assert_eq!(store.take_counts(), Counts { gets: 1, ..Counts::default() });
        engine.clear(0, SIZE, true).await.expect("it is discarded");
        let counts = Counts { deletes: 2, lists: 1, ..Counts::default() };
        assert_eq!(store.take_counts(), counts, "objects that are not there need nothing");
    });
}

#[test]
fn a_volume_is_created_once_and_keeps_its_sizes() {
    run(async {
        let store = Faulty::new(1);
        let missing = open(&store, &name(""), DAY).await.unwrap_err().to_string();
        let wanted = "there is no volume at s3://bucket/vm; give the size of a new one: \
                      s3://bucket/vm,size=1TiB";
        assert_eq!(missing, wanted);
        close(open(&store, &name("new"), DAY).await.expect("it is new")).await;
        let size = S3Name { size: Some(1 << 20), ..name("") };
        let refused = open(&store, &size, DAY).await.unwrap_err().to_string();
        assert!(
            refused.starts_with("s3://bucket/vm has 360448 bytes, not the 1048576 asked"),
            "{refused}"
        );
        let object = S3Name { object: Some(1 << 20), ..name("") };
        let refused = open(&store, &object, DAY).await.unwrap_err().to_string();
        assert!(
            refused.starts_with("s3://bucket/vm has objects of 65536 bytes, not of 1048576"),
            "{refused}"
        );
        let engine = open(&store, &name(""), DAY).await.expect("it is there");
        engine.write(0, vec![1; 4096].into()).await.expect("it is written");
        close(engine).await;
        store.delete(&Path::from("vm/volume")).await.expect("it is removed");
        let refused = open(&store, &name("new"), DAY).await.unwrap_err();
        assert!(matches!(refused, S3Error::Leftover(_)), "{refused}");
    });
}

/// A ring, a pool and a device.
struct Thread {
    ring: Ring,
    pool: Pool,
    device: Box<dyn Device>,
}

impl Thread {
    fn new(source: &S3Source) -> Thread {
        let (ring, pool) = (Ring::new(64).expect("there is io_uring"), Pool::new(1 << 20));
        let device = source.open(&ring, &pool).expect("it opens");
        Thread { ring, pool, device }
    }

    fn run(&mut self, offset: u64, action: Action) -> std::io::Result<()> {
        self.device.submit(Operation { token: 1, offset, action });
        let mut done = Vec::new();
        while done.is_empty() {
            match self.device.next_due() {
                Some(due) => drop(self.ring.wait_until(Some(due)).expect("it waits")),
                None => drop(self.ring.wait(Some(Duration::from_secs(60))).expect("it waits")),
            }
            self.device.poll(&mut done);
        }
        done.remove(0).result
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
        let from = self.pool.allocate(bytes.len()).whole();
        from.copy_from(bytes);
        self.run(offset, Action::Write { from, durable: true })
    }

    fn read(&mut self, offset: u64, len: usize) -> Vec<u8> {
        let into = self.pool.allocate(len).whole();
        self.run(offset, Action::Read(into.clone())).expect("it is read");
        into.to_vec()
    }
}

#[test]
fn a_device_reads_what_it_wrote_and_its_volume_has_one_writer() {
    let store = Faulty::new(1);
    let times = Times { pace: PACE, term: Duration::from_millis(400) };
    let prepare = |settings, read_only| {
        S3Source::prepare_on(Arc::new(store.clone()), &name(settings), read_only, times)
    };
    let source = prepare("new", false).expect("it is new");
    assert_eq!(
        (source.size_bytes(), PreparedDevice::name(&source)),
        (SIZE, "s3://bucket/vm".to_owned())
    );
    let mut thread = Thread::new(&source);
    let bytes = floe_testkit::pattern(5, 3 * SECTOR as usize);
    thread.write(OBJECT - SECTOR, &bytes).expect("it is written");
    assert_eq!(thread.read(OBJECT - SECTOR, bytes.len()), bytes);
    let zero = |fast| Action::Zero { len: SECTOR, may_unmap: true, fast };
    let slow = thread.run(OBJECT, zero(true)).unwrap_err();
    assert_eq!(slow.kind(), std::io::ErrorKind::Unsupported);
    thread.run(OBJECT, zero(false)).expect("it is zeroed");
    thread.run(0, Action::Flush).expect("it is flushed");
    thread.run(0, Action::Discard { len: OBJECT }).expect("it is discarded");
    assert_eq!(thread.read(OBJECT - SECTOR, 2 * SECTOR as usize), vec![0; 2 * SECTOR as usize]);

    let refused = prepare("", false).unwrap_err().to_string();
    assert!(refused.starts_with("s3://bucket/vm is in use by another server, "), "{refused}");
    let reader = prepare("", true).expect("a reader needs no lease");
    assert_eq!(reader.identity(), source.identity());
    let mut reading = Thread::new(&reader);
    assert_eq!(reading.read(OBJECT + SECTOR, SECTOR as usize), bytes[2 * SECTOR as usize..]);
    let refused = reading.write(0, &bytes).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
    drop((thread, source));
    drop(prepare("", false).expect("the lease was given back"));
}
