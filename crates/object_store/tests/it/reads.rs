//! Requests that reads send, and what they return while objects change and requests fail.

use std::time::Duration;

use bytes::Bytes;
use floe_hybrid::Hybrid;
use floe_object_store::{Builder, CachedStore, FetchSize};
use futures_util::future::join_all;
use futures_util::{FutureExt, TryStreamExt};
use object_store::path::Path;
use object_store::{Error, GetOptions, ObjectStore, ObjectStoreExt};
use tempfile::TempDir;

use crate::faulty::{Fault, Faulty};
use crate::{cache, run};

/// Returns the bytes of a version of an object.
pub(crate) fn content(version: u64, len: usize) -> Bytes {
    let byte = |at: usize| (at as u64 * 31 + (at as u64 >> 8) * 7 + version * 101) as u8;
    (0..len).map(byte).collect()
}

/// A store without faults, and the caching one above it.
fn setup(set: impl FnOnce(Builder) -> Builder) -> (TempDir, Faulty, CachedStore) {
    let folder = tempfile::tempdir().unwrap();
    let faulty = Faulty::new(|_| Fault::None);
    let builder = CachedStore::builder(faulty.clone()).hybrid(cache(folder.path()));
    let store = set(builder.fetch(FetchSize::Exact)).build().unwrap();
    (folder, faulty, store)
}

fn ranges_of(faulty: &Faulty) -> Vec<Option<std::ops::Range<u64>>> {
    faulty.take_sent().into_iter().map(|sent| sent.range).collect()
}

const K: u64 = 1 << 10;

#[test]
fn a_miss_requests_its_units_once() {
    let (_folder, faulty, store) = setup(|builder| builder);
    let (path, bytes) = (Path::from("a/object"), content(1, 100_000));
    run(async {
        faulty.replace(&path, bytes.clone()).await;
        for _ in 0..3 {
            assert_eq!(store.get_range(&path, 5000..9000).await.unwrap(), bytes[5000..9000]);
        }
        assert_eq!(ranges_of(&faulty), [Some(4 * K..12 * K)]);
        // The bytes between two missing ranges are fewer than a request costs.
        let both = store.get_ranges(&path, &[0..10, 20_000..20_010]).await.unwrap();
        assert_eq!(both, [&bytes[0..10], &bytes[20_000..20_010]]);
        assert_eq!(ranges_of(&faulty), [Some(0..20 * K)]);
        // They were not asked for, and are not cached.
        assert_eq!(store.get_range(&path, 14_000..14_001).await.unwrap(), bytes[14_000..14_001]);
        assert_eq!(ranges_of(&faulty), [Some(12 * K..16 * K)]);
        let suffix = GetOptions::new().with_range(Some(object_store::GetRange::Suffix(10)));
        let suffix = store.get_opts(&path, suffix).await.unwrap().bytes().await.unwrap();
        assert_eq!(suffix, bytes[99_990..]);
        assert_eq!(ranges_of(&faulty), [Some(96 * K..100_000)]);
        let stats = store.stats();
        assert_eq!((stats.requests, stats.head_requests, stats.hits, stats.misses), (4, 0, 2, 4));
        assert!(stats.dollars > 0.0 && stats.dollars_per_million_reads().unwrap() < 0.40);
    });
}

#[test]
fn the_first_request_for_an_object_brings_metadata_and_bytes() {
    let (_folder, faulty, store) = setup(|builder| builder);
    let (path, bytes) = (Path::from("object"), content(1, 10_000));
    run(async {
        faulty.replace(&path, bytes.clone()).await;
        let result = store.get(&path).await.unwrap();
        assert_eq!((result.meta.size, result.range.clone()), (10_000, 0..10_000));
        assert_eq!(result.bytes().await.unwrap(), bytes);
        assert_eq!(store.head(&path).await.unwrap().size, 10_000);
        assert_eq!(store.get_range(&path, 7..9).await.unwrap(), bytes[7..9]);
        assert_eq!(ranges_of(&faulty), [Some(0..10_000)]);
        faulty.replace(&Path::from("empty"), Bytes::new()).await;
        for _ in 0..2 {
            let empty = store.get(&Path::from("empty")).await.unwrap();
            assert_eq!(empty.bytes().await.unwrap(), "");
        }
        assert!(store.get_range(&Path::from("empty"), 0..1).await.is_err());
    });
}

#[test]
fn all_that_wait_share_a_request() {
    for spawns in [false, true] {
        let (_folder, faulty, store) = setup(|builder| match spawns {
            true => builder.spawn(|task| drop(tokio::spawn(task))),
            false => builder,
        });
        let (path, bytes) = (Path::from("object"), content(1, 100_000));
        run(async {
            faulty.replace(&path, bytes.clone()).await;
            let reads = (0..10).map(|_| store.get_range(&path, 0..50_000));
            for read in join_all(reads).await {
                assert_eq!(read.unwrap(), bytes[..50_000]);
            }
            assert_eq!(ranges_of(&faulty), [Some(0..52 * K)]);
            // One that is cancelled leaves the request to the others.
            let mut cancelled = Box::pin(store.get_range(&path, 60_000..90_000));
            assert!((&mut cancelled).now_or_never().is_none());
            let other = store.get_range(&path, 70_000..80_000);
            let late = async {
                tokio::time::sleep(Duration::from_millis(1)).await;
                drop(cancelled);
            };
            let (other, ()) = futures_util::future::join(other, late).await;
            assert_eq!(other.unwrap(), bytes[70_000..80_000]);
            assert_eq!(ranges_of(&faulty), [Some(56 * K..88 * K)]);
            assert_eq!(store.stats().in_flight_bytes, 0);
        });
    }
}

#[test]
fn a_task_carries_the_request_on_after_a_read() {
    let folder = tempfile::tempdir().unwrap();
    let faulty = Faulty::new(|_| Fault::None);
    let store = CachedStore::builder(faulty.clone())
        .hybrid(cache(folder.path()))
        .fetch(FetchSize::Fixed(1 << 20))
        .spawn(|task| drop(tokio::spawn(task)))
        .build()
        .unwrap();
    let (path, bytes) = (Path::from("object"), content(1, 1_200_000));
    run(async {
        faulty.replace(&path, bytes.clone()).await;
        assert_eq!(store.get_range(&path, 10..20).await.unwrap(), bytes[10..20]);
        assert!(store.stats().in_flight_bytes > 0, "the read waited for the end of the request");
        while store.stats().in_flight_bytes > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(store.get_range(&path, 0..1 << 20).await.unwrap(), bytes[..1 << 20]);
        assert_eq!(ranges_of(&faulty), [Some(0..1 << 20)]);
    });
}

#[test]
fn replaced_objects_are_noticed_in_time() {
    let (_folder, faulty, store) = setup(|builder| builder.revalidate(Duration::from_millis(40)));
    let path = Path::from("object");
    run(async {
        faulty.replace(&path, content(1, 1000)).await;
        assert_eq!(store.get(&path).await.unwrap().bytes().await.unwrap(), content(1, 1000));
        faulty.replace(&path, content(2, 1000)).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(store.get(&path).await.unwrap().bytes().await.unwrap(), content(2, 1000));
        // A caller that asks for changes learns of them at once.
        let tag = store.head(&path).await.unwrap().e_tag;
        faulty.replace(&path, content(3, 1000)).await;
        let options = GetOptions::new().with_if_none_match(tag.clone());
        let changed = store.get_opts(&path, options).await.unwrap();
        assert_eq!(changed.bytes().await.unwrap(), content(3, 1000));
        // So does one that knows the new version.
        faulty.replace(&path, content(4, 1000)).await;
        let tag = faulty.head(&path).await.unwrap().e_tag;
        let options = GetOptions::new().with_if_match(tag);
        let new = store.get_opts(&path, options).await.unwrap();
        assert_eq!(new.bytes().await.unwrap(), content(4, 1000));
        // A longer range than the known version has.
        faulty.replace(&path, content(5, 2000)).await;
        let longer = store.get_range(&path, 1500..1600).await.unwrap();
        assert_eq!(longer, content(5, 2000)[1500..1600]);
    });
}

#[test]
fn a_list_tells_of_replaced_objects() {
    let (_folder, faulty, store) = setup(|builder| builder.revalidate(Duration::from_secs(3600)));
    let path = Path::from("folder/object");
    run(async {
        faulty.replace(&path, content(1, 1000)).await;
        store.get(&path).await.unwrap().bytes().await.unwrap();
        faulty.replace(&path, content(2, 1000)).await;
        let listed: Vec<_> = store.list(None).try_collect().await.unwrap();
        assert_eq!(listed.len(), 1);
        assert_eq!(store.get(&path).await.unwrap().bytes().await.unwrap(), content(2, 1000));
    });
}

#[test]
fn a_read_in_the_middle_of_a_replacement_begins_anew() {
    let (_folder, faulty, store) = setup(|builder| builder);
    let path = Path::from("object");
    run(async {
        faulty.replace(&path, content(1, 200_000)).await;
        store.get_range(&path, 0..100_000).await.unwrap();
        faulty.replace(&path, content(2, 200_000)).await;
        // The first half is cached, of the old version.
        let read = store.get_range(&path, 0..200_000).await.unwrap();
        assert_eq!(read, content(2, 200_000));
        assert_eq!(store.stats().replaced, 1);
    });
}

#[test]
fn a_stream_has_one_version_or_fails() {
    let folder = tempfile::tempdir().unwrap();
    let mut faulty = Faulty::new(|_| Fault::None);
    faulty.chunk = 1 << 20;
    let store = CachedStore::builder(faulty.clone()).hybrid(cache(folder.path()));
    let store = store.build().unwrap();
    let path = Path::from("object");
    const LEN: usize = 60 << 20;
    run(async {
        faulty.replace(&path, vec![1; LEN].into()).await;
        let whole = store.get(&path).await.unwrap().bytes().await.unwrap();
        assert_eq!(whole.len(), LEN);
        faulty.replace(&path, vec![2; LEN].into()).await;
        let fresh = GetOptions::new().with_if_none_match(Some("none"));
        let mut stream = store.get_opts(&path, fresh).await.unwrap().into_stream();
        assert_eq!(stream.try_next().await.unwrap().unwrap()[0], 2);
        faulty.replace(&path, vec![3; LEN].into()).await;
        let rest: Result<Vec<Bytes>, _> = stream.try_collect().await;
        assert!(matches!(rest, Err(Error::Precondition { .. })), "{:?}", rest.map(|_| ()));
    });
}

#[test]
fn faults_are_errors_and_leave_nothing_behind() {
    let faults = [Fault::Fails, Fault::Cut, Fault::Short, Fault::Long, Fault::OtherRange];
    for fault in faults {
        let folder = tempfile::tempdir().unwrap();
        let mut requests = 0;
        let faulty = Faulty::new(move |_| {
            requests += 1;
            if requests == 2 { fault } else { Fault::None }
        });
        let store = CachedStore::builder(faulty.clone()).hybrid(cache(folder.path()));
        let store = store.fetch(FetchSize::Exact).build().unwrap();
        let (path, bytes) = (Path::from("object"), content(1, 200_000));
        run(async {
            faulty.replace(&path, bytes.clone()).await;
            store.get_range(&path, 0..1).await.unwrap();
            let error = store.get_range(&path, 9000..200_000).await.unwrap_err();
            let text = error.to_string();
            let expected = match fault {
                Fault::Fails | Fault::Cut => "503 SlowDown",
                Fault::OtherRange => "object: the store sent bytes 8191..199999 instead of 8192..",
                _ => "object: the store sent",
            };
            assert!(text.contains(expected), "{fault:?}: {text}");
            let again = store.get_range(&path, 9000..200_000).await.unwrap();
            assert_eq!(again, bytes[9000..], "{fault:?}");
        });
    }
}

#[test]
fn objects_without_tags_are_told_apart_by_time() {
    let folder = tempfile::tempdir().unwrap();
    let mut faulty = Faulty::new(|_| Fault::None);
    faulty.has_no_tags = true;
    let store = CachedStore::builder(faulty.clone()).hybrid(cache(folder.path()));
    let store = store.revalidate(Duration::ZERO).build().unwrap();
    let path = Path::from("object");
    run(async {
        for version in 0..5 {
            store.put(&path, content(version, 1000).into()).await.unwrap();
            let read = store.get(&path).await.unwrap().bytes().await.unwrap();
            assert_eq!(read, content(version, 1000));
        }
        faulty.replace(&path, content(9, 1000)).await;
        assert_eq!(store.get(&path).await.unwrap().bytes().await.unwrap(), content(9, 1000));
        assert_eq!(store.stats().unversioned, 6);
    });
}

#[test]
fn immutable_objects_are_found_after_a_restart_without_a_request() {
    let folder = tempfile::tempdir().unwrap();
    let faulty = Faulty::new(|_| Fault::None);
    let (path, bytes) = (Path::from("object"), content(1, 100_000));
    let attributes = [(object_store::Attribute::ContentType, "text/html")];
    for restart in 0..2 {
        let cache = cache(folder.path());
        let store = CachedStore::builder(faulty.clone()).hybrid(cache.clone()).immutable();
        let store = store.build().unwrap();
        run(async {
            if restart == 0 {
                let attributes = object_store::Attributes::from_iter(attributes.clone());
                store.put_opts(&path, bytes.clone().into(), attributes.into()).await.unwrap();
            }
            let result = store.get(&path).await.unwrap();
            assert_eq!(result.attributes.len(), 1);
            assert_eq!(result.bytes().await.unwrap(), bytes);
            assert_eq!(ranges_of(&faulty).len(), 1 - restart);
            if restart == 1 {
                store.delete(&path).await.unwrap();
                assert!(matches!(store.head(&path).await, Err(Error::NotFound { .. })));
            }
        });
        cache.close().unwrap();
    }
}

#[test]
fn pinned_bytes_outlast_eviction() {
    let (_folder, faulty, store) = setup(|builder| builder);
    let (path, other) = (Path::from("tables/a"), Path::from("tables2/a"));
    run(async {
        faulty.replace(&path, content(1, 100_000)).await;
        faulty.replace(&other, content(2, 1000)).await;
        store.prefetch(&other, &[0..u64::MAX]).await.unwrap();
        let pin = store.pin(&path, &[0..10, 50_000..60_000]).await.unwrap();
        assert_eq!((pin.meta().size, pin.bytes()), (100_000, 16 * K));
        assert_eq!(store.stats().pinned_bytes, 16 * K);
        faulty.take_sent();
        assert!(store.evict(&Path::from("tables")).unwrap() > 0);
        let read = store.get_range(&other, 0..1000).await.unwrap();
        assert_eq!((read, ranges_of(&faulty).len()), (content(2, 1000), 0));
        let read = store.get_range(&path, 50_000..60_000).await.unwrap();
        assert_eq!(read, content(1, 100_000)[50_000..60_000]);
        // Metadata is not pinned.
        assert_eq!(ranges_of(&faulty).len(), 1);
        drop(pin);
        assert_eq!(store.stats().pinned_bytes, 0);
    });
}

#[test]
fn settings_that_cannot_be_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let faulty = Faulty::new(|_| Fault::None);
    let none = CachedStore::builder(faulty.clone()).build().unwrap_err();
    assert_eq!(none.to_string(), "a caching store needs a cache: call `hybrid`");
    let small = Hybrid::builder().memory(4 << 20).flash(folder.path().join("small"), 32 << 20);
    let small = CachedStore::builder(faulty.clone()).hybrid(small.open().unwrap());
    let small = small.build().unwrap_err().to_string();
    assert!(small.starts_with("the cache has segments of 262144 bytes"), "{small}");
    let odd = CachedStore::builder(faulty).hybrid(cache(folder.path()));
    let odd = odd.fetch(FetchSize::Fixed(5000)).build().unwrap_err();
    assert_eq!(
        odd.to_string(),
        "fetches have a power of two from 4096 to 16777216 bytes, not 5000"
    );
}

#[test]
fn reads_fetch_ahead_within_the_limit_of_bytes_under_way() {
    let folder = tempfile::tempdir().unwrap();
    let mut requests = 0;
    let faulty = Faulty::new(move |_| {
        requests += 1;
        // What is fetched ahead stays under way.
        if requests == 1 { Fault::None } else { Fault::Silent }
    });
    const LIMIT: u64 = 4 << 20;
    let store = CachedStore::builder(faulty.clone())
        .hybrid(cache(folder.path()))
        .fetch(FetchSize::FixedAhead(1 << 20))
        .parallel(u32::MAX)
        .in_flight_bytes(LIMIT)
        .spawn(|task| drop(tokio::spawn(task)))
        .build()
        .unwrap();
    let (path, bytes) = (Path::from("object"), content(1, 20 << 20));
    run(async {
        faulty.replace(&path, bytes.clone()).await;
        for at in 0..8u64 {
            let range = at * 128 * K..(at + 1) * 128 * K;
            let read = store.get_range(&path, range.clone()).await.unwrap();
            assert_eq!(read, bytes[range.start as usize..range.end as usize]);
        }
        let under_way = store.stats().in_flight_bytes;
        assert!((1..=LIMIT).contains(&under_way), "{under_way} bytes are under way");
    });
}

#[test]
fn objects_that_the_filter_leaves_out_are_always_read_from_the_store() {
    let (_folder, faulty, store) =
        setup(|builder| builder.immutable().filter(|location| location.extension() == Some("sst")));
    run(async {
        for (path, is_cached) in [("db/1.sst", true), ("db/gc/manifest.boundary", false)] {
            let path = Path::from(path);
            for version in 1..3 {
                let bytes = content(version, 10_000 + version as usize);
                faulty.replace(&path, bytes.clone()).await;
                let seen = if is_cached { content(1, 10_001) } else { bytes };
                let len = seen.len() as u64;
                assert_eq!(store.get_range(&path, 5..2000).await.unwrap(), seen[5..2000]);
                let ranges = store.get_ranges(&path, &[7..9, 4000..5000]).await.unwrap();
                assert_eq!(ranges, [&seen[7..9], &seen[4000..5000]]);
                assert_eq!(store.head(&path).await.unwrap().size, len);
                assert_eq!(store.get(&path).await.unwrap().bytes().await.unwrap(), seen);
            }
            let prefetched = store.prefetch(&path, &[0..10]).await;
            let pinned = store.pin(&path, &[0..10]).await;
            match is_cached {
                true => assert!(prefetched.is_ok() && pinned.is_ok()),
                false => {
                    assert!(matches!(prefetched, Err(Error::NotSupported { .. })));
                    assert!(matches!(pinned, Err(Error::NotSupported { .. })));
                }
            }
        }
        // Of each version: two reads of ranges, one of the whole, and one of metadata.
        assert_eq!(store.stats().bypassed, 8);
    });
}
