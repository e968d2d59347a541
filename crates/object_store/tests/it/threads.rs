//! Reads and changes on several threads, each with a runtime of its own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use floe_object_store::CachedStore;
use futures_util::FutureExt;
use futures_util::future::join_all;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{Error, ObjectStoreExt};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::reads::content;
use crate::{cache, run};

const LEN: usize = 60_000;

/// Each object has bytes of one version only, whose number its first 8 bytes are.
fn version(number: u64) -> Vec<u8> {
    let mut bytes = content(number, LEN).to_vec();
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

#[test]
fn threads_share_requests_and_see_versions_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let store = CachedStore::builder(InMemory::new()).hybrid(cache(folder.path()));
    let store = store.revalidate(Duration::from_secs(3600)).build().unwrap();
    let paths = [Path::from("a/0"), Path::from("a/1"), Path::from("b/0")];
    // The last version that was put for certain.
    let put = [const { AtomicU64::new(0) }; 3];
    run(async {
        for path in &paths {
            store.put(path, version(0).into()).await.unwrap();
        }
    });
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (store, paths, put) = (&store, &paths, &put);
            scope.spawn(move || {
                let mut random = SmallRng::seed_from_u64(thread);
                run(async {
                    for _ in 0..150 {
                        let at = random.random_range(0..3usize);
                        let oldest = put[at].load(Ordering::SeqCst);
                        // Each thread changes one object, the last one only reads.
                        if at as u64 == thread && random.random_range(0..4) == 0 {
                            store.put(&paths[at], version(oldest + 1).into()).await.unwrap();
                            put[at].store(oldest + 1, Ordering::SeqCst);
                        } else if random.random_range(0..40) == 0 {
                            store.evict(&Path::from("a")).unwrap();
                        } else {
                            let mut cancelled = Box::pin(store.get_range(&paths[at], 0..100));
                            (&mut cancelled).now_or_never();
                            let reads = join_all((0..3).map(|_| store.get(&paths[at]))).await;
                            drop(cancelled);
                            for read in reads {
                                check(read.unwrap().bytes().await, oldest);
                            }
                        }
                    }
                });
            });
        }
    });
    assert_eq!(store.stats().in_flight_bytes, 0);
}

fn check(read: Result<bytes::Bytes, Error>, oldest: u64) {
    let read = read.unwrap();
    let number = u64::from_le_bytes(read[..8].try_into().unwrap());
    assert!(number >= oldest, "version {number} after {oldest}");
    assert!(read == version(number), "bytes of several versions");
}
