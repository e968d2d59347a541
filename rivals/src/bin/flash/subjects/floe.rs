//! Floe's cache in memory and on flash.

use bytes::Bytes;
use floe_hybrid::Hybrid;

use super::{Settings, Subject};

pub struct Floe(Hybrid<u64, Bytes>);

impl Subject for Floe {
    async fn open(settings: &Settings) -> Result<Self, String> {
        let mut builder = Hybrid::builder()
            .memory(settings.number("memory", settings.memory)? as u64)
            .flash(settings.folder.join("floe"), settings.flash as u64);
        // Room in the index from the start is not what the figures on its growth are to show.
        if settings.word("hint") == Some("yes") {
            builder = builder.object_bytes(settings.value_bytes as u64 + 8);
        }
        Ok(Self(builder.open().map_err(|error| format!("floe: {error}"))?))
    }

    fn insert(&self, key: u64, value: Bytes) {
        self.0.insert(key, value);
    }

    async fn get(&self, key: u64) -> Option<Bytes> {
        self.0.get(&key).await
    }

    fn get_blocking(&self, key: u64) -> Option<Bytes> {
        self.0.get_blocking(&key)
    }

    fn remove(&self, key: u64) {
        self.0.remove(&key);
    }

    async fn sync(&self) {
        let cache = self.0.clone();
        let synced = tokio::task::spawn_blocking(move || cache.sync());
        synced.await.expect("sync does not panic").expect("the disk writes");
    }

    async fn close(self) {
        self.0.close().expect("the disk writes");
    }

    fn index_bytes(&self) -> Option<usize> {
        Some(self.0.stats().flash.index_bytes as usize)
    }
}
