//! Random reads and changes, at once and with faults, against a history of versions.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use floe_object_store::{CachedStore, FetchSize};
use futures_util::future::join_all;
use object_store::path::Path;
use object_store::{Error, GetOptions, GetRange, ObjectStore, ObjectStoreExt};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::faulty::{Fault, Faulty};
use crate::reads::content;
use crate::{cache, run};

/// A version of an object: its number and its length. `None` once the object is deleted.
type Version = Option<(u64, usize)>;

/// All versions that each object had, and the number of those before the last change that ended.
#[derive(Default)]
struct History {
    versions: RefCell<BTreeMap<Path, (Vec<Version>, usize)>>,
    next: Cell<u64>,
}

impl History {
    fn new_version(&self, len: usize) -> (u64, Bytes) {
        self.next.set(self.next.get() + 1);
        (self.next.get(), content(self.next.get(), len))
    }

    /// Notes that an object may be of a version from now on.
    fn may_be(&self, path: &Path, version: Version) {
        let mut versions = self.versions.borrow_mut();
        versions.entry(path.clone()).or_insert_with(|| (vec![None], 0)).0.push(version);
    }

    /// Notes that an object is of the last version from now on.
    fn is_last(&self, path: &Path) {
        let mut versions = self.versions.borrow_mut();
        let (all, before) = versions.get_mut(path).expect("it was changed");
        *before = all.len() - 1;
    }

    /// Returns the number of versions that an object is not of any more.
    fn before(&self, path: &Path) -> usize {
        self.versions.borrow().get(path).map_or(0, |(_, before)| *before)
    }

    /// Returns the versions that an object may have had since it had others before.
    fn since(&self, path: &Path, before: usize) -> Vec<Version> {
        let versions = self.versions.borrow();
        versions.get(path).map_or(vec![None], |(all, _)| all[before..].to_vec())
    }
}

/// A request by a caller, with the bytes that it is for in an object of some length.
fn cut(range: &Option<GetRange>, len: usize) -> Option<Range<usize>> {
    match range {
        None => Some(0..len),
        Some(range) => range.as_range(len as u64).ok().map(|r| r.start as usize..r.end as usize),
    }
}

/// The store's callers in one run.
struct Run {
    store: CachedStore,
    faulty: Faulty,
    history: History,
    has_faults: bool,
    changes_elsewhere: bool,
}

impl Run {
    async fn read(&self, seed: u64, path: &Path) {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut any = || {
            let start = random.random_range(0..120_000u64);
            start..start + random.random_range(1..50_000)
        };
        let (one, two) = (any(), any());
        let range = match random.random_range(0..5) {
            0 => None,
            1 => Some(GetRange::Offset(one.start)),
            2 => Some(GetRange::Suffix(one.end - one.start)),
            _ => Some(GetRange::Bounded(one.clone())),
        };
        let before = self.history.before(path);
        let is_pair = random.random_range(0..4) == 0;
        let read: Result<Vec<Bytes>, Error> = if is_pair {
            self.store.get_ranges(path, &[one.clone(), two.clone()]).await
        } else {
            let options = GetOptions::new().with_range(range.clone());
            match self.store.get_opts(path, options).await {
                Ok(result) => result.bytes().await.map(|bytes| vec![bytes]),
                Err(error) => Err(error),
            }
        };
        let possible = self.history.since(path, before);
        let wanted: Vec<Option<GetRange>> = match is_pair {
            true => vec![Some(GetRange::Bounded(one)), Some(GetRange::Bounded(two))],
            false => vec![range],
        };
        let is_version = |version: &Version| {
            let Some((number, len)) = version else {
                return matches!(read, Err(Error::NotFound { .. }));
            };
            let cuts: Option<Vec<_>> = wanted.iter().map(|range| cut(range, *len)).collect();
            match (&read, cuts) {
                (Ok(read), Some(cuts)) => {
                    let whole = content(*number, *len);
                    cuts.iter().zip(read).all(|(cut, read)| whole[cut.clone()] == read[..])
                }
                (Err(_), None) => true, // beyond the end
                _ => false,
            }
        };
        let is_fault = self.has_faults && matches!(read, Err(Error::Generic { .. }));
        assert!(
            is_fault || possible.iter().any(is_version),
            "{path} {wanted:?}: {:?} is of none of {possible:?}",
            read.as_ref().map(|read| read.iter().map(Bytes::len).collect::<Vec<_>>()),
        );
    }

    async fn change(&self, seed: u64, path: &Path) {
        let mut random = SmallRng::seed_from_u64(seed);
        let len = match random.random_range(0..8) {
            0 => 0,
            1 => random.random_range(1..5000),
            _ => random.random_range(1..150_000),
        };
        if random.random_range(0..5) == 0 {
            self.history.may_be(path, None);
            self.store.delete(path).await.unwrap();
        } else {
            let (number, bytes) = self.history.new_version(len);
            self.history.may_be(path, Some((number, len)));
            match self.changes_elsewhere && random.random_range(0..2) == 0 {
                true => self.faulty.replace(path, bytes).await,
                false => drop(self.store.put(path, bytes.into()).await.unwrap()),
            }
        }
        self.history.is_last(path);
    }
}

fn check(seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let has_faults = random.random_range(0..2) == 0;
    let mut plan = SmallRng::seed_from_u64(seed ^ 1);
    let faulty = Faulty::new(move |_| match plan.random_range(0..30) {
        _ if !has_faults => Fault::None,
        0 => Fault::Fails,
        1 => Fault::Cut,
        2 => Fault::Short,
        3 => Fault::Long,
        4 => Fault::OtherRange,
        _ => Fault::None,
    });
    let folder = tempfile::tempdir().unwrap();
    let builder = CachedStore::builder(faulty.clone()).hybrid(cache(folder.path()));
    let builder = builder.fetch(match random.random_range(0..4) {
        0 => FetchSize::Exact,
        1 => FetchSize::Fixed(64 << 10),
        _ => FetchSize::Adaptive,
    });
    // Changes elsewhere are seen at once only if each read asks.
    let changes_elsewhere = random.random_range(0..2) == 0;
    let builder = builder.revalidate(match changes_elsewhere {
        true => Duration::ZERO,
        false => Duration::from_secs(3600),
    });
    let builder = match random.random_range(0..2) {
        0 => builder.spawn(|task| drop(tokio::spawn(task))),
        _ => builder,
    };
    let store = builder.build().unwrap();
    let run_state =
        Rc::new(Run { store, faulty, history: History::default(), has_faults, changes_elsewhere });
    let paths = [Path::from("a/1"), Path::from("a/2"), Path::from("b/1")];
    run(async {
        tokio::time::pause();
        for _ in 0..25 {
            let at_once = random.random_range(1..6);
            // Changes of one object at once would have no order.
            let mut changed = Vec::new();
            let calls = (0..at_once).map(|_| {
                let path = &paths[random.random_range(0..paths.len())];
                let is_change = random.random_range(0..3) == 0 && !changed.contains(path);
                if is_change {
                    changed.push(path.clone());
                }
                let (seed, delay) = (random.random(), random.random_range(0..20));
                let run = Rc::clone(&run_state);
                async move {
                    tokio::time::sleep(Duration::from_millis(delay)).await;
                    match is_change {
                        true => run.change(seed, path).await,
                        false => run.read(seed, path).await,
                    }
                }
            });
            join_all(calls.collect::<Vec<_>>()).await;
        }
    });
}

/// Set `FLOE_SEED` to run one seed alone, or `FLOE_RUNS` to run more.
#[test]
fn reads_return_one_version_of_their_time() {
    let number = |name| std::env::var(name).ok().map(|text: String| text.parse().unwrap());
    let seeds = match number("FLOE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("FLOE_RUNS").unwrap_or(25),
    };
    for seed in seeds {
        let failed = std::panic::catch_unwind(|| check(seed));
        if let Err(failure) = failed {
            eprintln!("seed {seed}: repeat with FLOE_SEED={seed}");
            std::panic::resume_unwind(failure);
        }
    }
}
