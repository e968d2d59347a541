//! The tests of the crate `object_store` for stores, and random changes and reads, on the caching
//! store above a real server.

use std::path::Path as File;
use std::sync::Arc;
use std::time::Duration;

use floe_hybrid::Hybrid;
use floe_object_store::{Builder, CachedStore};
use object_store::path::Path;
use object_store::{
    Error, GetOptions, GetRange, ObjectStore, ObjectStoreExt, integration as tests,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::content;

fn builder(server: &Arc<dyn ObjectStore>, folder: &File) -> Builder {
    let cache = Hybrid::builder().memory(64 << 20).flash(folder.join("cache"), 256 << 20);
    CachedStore::builder(Arc::clone(server))
        .hybrid(cache.open().expect("the folder takes a file"))
        .spawn(|task| drop(tokio::spawn(task)))
}

/// Checks a store above an empty bucket.
///
/// # Panics
/// When a check fails, or the bucket has objects.
pub async fn check(server: &Arc<dyn ObjectStore>, folder: &File) {
    let scratch = || tempfile::tempdir_in(folder).expect("a folder");
    {
        let folder = scratch();
        let store = builder(server, folder.path()).build().expect("possible settings");
        tests::stream_get(&store).await;
        tests::put_get_delete_list(&store).await;
        tests::get_opts(&store).await;
        tests::list_with_delimiter(&store).await;
        tests::rename_and_copy(&store).await;
        tests::put_opts(&store, true).await;
        println!("six tests of the crate `object_store` pass");
    }
    for seed in 0..5 {
        let folder = scratch();
        let store = builder(server, folder.path()).revalidate(Duration::ZERO);
        changes(server, &store.build().expect("possible settings"), seed).await;
        println!("seed {seed}: 200 changes and reads agree with the server");
    }
}

/// Changes objects by either way, and compares each read with what was put last.
async fn changes(server: &Arc<dyn ObjectStore>, store: &CachedStore, seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let paths = ["a", "b/c", "b/d"].map(|name| Path::from(format!("floe-check/{name}")));
    let mut put: [Option<Vec<u8>>; 3] = [None, None, None];
    for path in &paths {
        drop(server.delete(path).await);
    }
    for _ in 0..200 {
        let at = random.random_range(0..paths.len());
        let path = &paths[at];
        match random.random_range(0..10) {
            0..3 => {
                let start = random.random_range(0..1 << 40);
                let len = random.random_range(1..3 << 20);
                let bytes = content(path, start..start + len);
                match random.random_range(0..2) {
                    0 => store.put(path, bytes.clone().into()).await,
                    _ => server.put(path, bytes.clone().into()).await,
                }
                .expect("the bucket takes objects");
                put[at] = Some(bytes);
            }
            3 => {
                store.delete(path).await.expect("the bucket deletes objects");
                put[at] = None;
            }
            _ => {
                let start = random.random_range(0..1 << 20u64);
                let range = match random.random_range(0..3) {
                    0 => GetRange::Suffix(start + 1),
                    1 => GetRange::Offset(start),
                    _ => GetRange::Bounded(start..start + random.random_range(1..1 << 20)),
                };
                let options = GetOptions::new().with_range(Some(range.clone()));
                let read = match store.get_opts(path, options).await {
                    Ok(result) => result.bytes().await,
                    Err(error) => Err(error),
                };
                match (read, &put[at]) {
                    (Err(Error::NotFound { .. }), None) => {}
                    (read, Some(bytes)) => match (read, range.as_range(bytes.len() as u64)) {
                        (Ok(read), Ok(range)) => {
                            assert!(read == bytes[range.start as usize..range.end as usize]);
                        }
                        (Err(_), Err(_)) => {} // beyond the end
                        (read, expected) => panic!("{path}: {read:?} in place of {expected:?}"),
                    },
                    (read, None) => panic!("{path}: {read:?} of an object that is not there"),
                }
            }
        }
    }
}
