//! Reads beside requests that fail or stall, and after changes whose answers were lost.

use std::time::Duration;

use bytes::Bytes;
use floe_object_store::{CachedStore, FetchSize};
use futures_util::future::join_all;
use object_store::ObjectStoreExt;
use object_store::path::Path;
use tempfile::TempDir;
use tokio::time::timeout;

use crate::faulty::{Fault, Faulty};
use crate::reads::content;
use crate::{cache, run};

const FAULTS: [Fault; 5] = [Fault::Fails, Fault::Cut, Fault::Short, Fault::Long, Fault::OtherRange];

/// More virtual time than any request takes that ends.
const LONG: Duration = Duration::from_secs(10);

/// A store with a fault at a request, counted from 1, and the caching one above it.
fn setup(fault: Fault, at: u32, spawns: bool) -> (TempDir, Faulty, CachedStore) {
    let folder = tempfile::tempdir().unwrap();
    let mut requests = 0;
    let faulty = Faulty::new(move |_| {
        requests += 1;
        if requests == at { fault } else { Fault::None }
    });
    let builder = CachedStore::builder(faulty.clone()).hybrid(cache(folder.path()));
    let builder = builder.fetch(FetchSize::Exact);
    let builder = match spawns {
        true => builder.spawn(|task| drop(tokio::spawn(task))),
        false => builder,
    };
    (folder, faulty, builder.build().unwrap())
}

fn object() -> (Path, Bytes) {
    (Path::from("object"), content(1, 200_000))
}

#[test]
fn a_fault_reaches_all_that_wait_and_the_next_read_asks_again() {
    for (fault, spawns) in FAULTS.into_iter().flat_map(|fault| [(fault, false), (fault, true)]) {
        let (_folder, faulty, store) = setup(fault, 2, spawns);
        let (path, bytes) = object();
        run(async {
            faulty.replace(&path, bytes.clone()).await;
            store.get_range(&path, 0..1).await.unwrap();
            let reads = (0..10).map(|_| store.get_range(&path, 9000..200_000));
            for read in join_all(reads).await {
                assert!(read.is_err(), "{fault:?}");
            }
            assert_eq!(faulty.take_sent().len(), 2, "{fault:?}");
            let again = store.get_range(&path, 9000..200_000).await.unwrap();
            assert_eq!(again, bytes[9000..], "{fault:?}");
            assert_eq!(faulty.take_sent().len(), 1, "{fault:?}");
            assert_eq!(store.stats().in_flight_bytes, 0, "{fault:?}");
        });
    }
}

#[test]
fn the_first_request_for_an_object_may_fail() {
    for fault in FAULTS {
        let (_folder, faulty, store) = setup(fault, 1, false);
        let (path, bytes) = object();
        run(async {
            faulty.replace(&path, bytes.clone()).await;
            if let Ok(read) = store.get_range(&path, 9000..200_000).await {
                assert_eq!(read, bytes[9000..], "{fault:?}");
            }
            assert_eq!(store.head(&path).await.unwrap().size, 200_000, "{fault:?}");
            let again = store.get_range(&path, 9000..200_000).await.unwrap();
            assert_eq!(again, bytes[9000..], "{fault:?}");
        });
    }
}

#[test]
fn other_reads_go_on_beside_a_request_that_stalls() {
    for fault in [Fault::Silent, Fault::Stalls] {
        let (_folder, faulty, store) = setup(fault, 2, false);
        let (path, bytes) = object();
        let (other, others) = (Path::from("other"), content(2, 1000));
        run(async {
            tokio::time::pause();
            faulty.replace(&path, bytes.clone()).await;
            faulty.replace(&other, others.clone()).await;
            store.get_range(&path, 0..1).await.unwrap();
            let mut stalled = Box::pin(store.get_range(&path, 9000..200_000));
            assert!(timeout(LONG, &mut stalled).await.is_err(), "{fault:?}");
            assert!(store.stats().in_flight_bytes > 0);
            // A hit, bytes beside those of the request, and another object.
            assert_eq!(store.get_range(&path, 0..1).await.unwrap(), bytes[..1]);
            assert_eq!(store.get_range(&path, 5000..5001).await.unwrap(), bytes[5000..5001]);
            assert_eq!(store.get_range(&other, 0..1000).await.unwrap(), others);
            // Bytes that arrived before the stall are cached. One that wants others waits, too.
            let second = timeout(LONG, store.get_range(&path, 10_000..10_001)).await;
            assert_eq!(second.is_ok(), fault == Fault::Stalls);
            let third = store.get_range(&path, 199_000..200_000);
            assert!(timeout(LONG, third).await.is_err(), "{fault:?}");
            drop(stalled);
            assert_eq!(store.stats().in_flight_bytes, 0, "{fault:?}");
            let again = store.get_range(&path, 9000..200_000).await.unwrap();
            assert_eq!(again, bytes[9000..], "{fault:?}");
        });
    }
}

#[test]
fn what_arrives_before_a_stall_is_read() {
    let (_folder, faulty, store) = setup(Fault::Stalls, 2, true);
    let (path, bytes) = object();
    run(async {
        tokio::time::pause();
        faulty.replace(&path, bytes.clone()).await;
        store.get_range(&path, 0..1).await.unwrap();
        let stalled = store.get_range(&path, 9000..200_000);
        assert!(timeout(LONG, stalled).await.is_err());
        let first = store.get_range(&path, 10_000..20_000).await.unwrap();
        assert_eq!(first, bytes[10_000..20_000]);
        assert_eq!(faulty.take_sent().len(), 2);
    });
}

#[test]
fn a_put_whose_answer_is_lost_is_read_as_the_store_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut faulty = Faulty::new(|_| Fault::None);
    faulty.loses_puts = true;
    let store = CachedStore::builder(faulty.clone()).hybrid(cache(folder.path()));
    let store = store.revalidate(Duration::from_secs(3600)).build().unwrap();
    let (path, bytes) = object();
    run(async {
        faulty.replace(&path, bytes.clone()).await;
        assert_eq!(store.get_range(&path, 0..9000).await.unwrap(), bytes[..9000]);
        let new = content(2, 200_000);
        assert!(store.put(&path, new.clone().into()).await.is_err());
        assert_eq!(store.get_range(&path, 0..9000).await.unwrap(), new[..9000]);
    });
}
