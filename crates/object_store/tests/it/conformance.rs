//! The tests that the crate `object_store` has for stores, on the caching one.

use std::path::Path;

use floe_object_store::{Builder, CachedStore};
use object_store::ObjectStore;
use object_store::integration as tests;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;

use crate::{cache, run};

/// Stores of all policies, with tasks and without.
fn each(make: impl Fn(&Path) -> Builder, test: impl AsyncFn(CachedStore)) {
    type Setting = fn(Builder) -> Builder;
    let settings: [Setting; 3] = [
        |builder| builder,
        |builder| builder.immutable().spawn(|task| drop(tokio::spawn(task))),
        |builder| builder.revalidate(std::time::Duration::ZERO),
    ];
    for setting in settings {
        let folder = tempfile::tempdir().unwrap();
        let store = setting(make(folder.path()).hybrid(cache(folder.path()))).build().unwrap();
        run(test(store));
    }
}

async fn all(store: &dyn ObjectStore) {
    tests::stream_get(store).await;
    tests::put_get_delete_list(store).await;
    tests::get_opts(store).await;
    tests::list_uses_directories_correctly(store).await;
    tests::list_with_delimiter(store).await;
    tests::rename_and_copy(store).await;
    tests::copy_if_not_exists(store).await;
    tests::copy_rename_nonexistent_object(store).await;
    tests::multipart_race_condition(store, true).await;
    tests::multipart_out_of_order(store).await;
    tests::list_with_offset_exclusivity(store).await;
    let missing = tests::get_nonexistent_object(store, None).await.unwrap_err();
    assert!(matches!(missing, object_store::Error::NotFound { .. }), "{missing}");
}

#[test]
fn a_cache_above_memory_is_an_object_store() {
    each(
        |_| CachedStore::builder(InMemory::new()),
        async |store| {
            all(&store).await;
            tests::put_get_attributes(&store).await;
            tests::put_opts(&store, true).await;
        },
    );
}

#[test]
fn a_cache_above_files_is_an_object_store() {
    each(
        |folder| {
            let root = folder.join("objects");
            std::fs::create_dir(&root).unwrap();
            let store = LocalFileSystem::new_with_prefix(root).unwrap();
            CachedStore::builder(store.with_automatic_cleanup(true))
        },
        async |store| {
            all(&store).await;
            tests::put_opts(&store, false).await;
        },
    );
}
