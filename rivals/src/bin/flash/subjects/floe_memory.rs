//! Floe's cache in memory alone, beside which hits in memory through the hybrid are measured.

use bytes::Bytes;
use floe_memory::Cache;

use super::{Settings, Subject};

pub struct FloeMemory(Cache<u64, Bytes>);

impl Subject for FloeMemory {
    async fn open(settings: &Settings) -> Result<Self, String> {
        let cache = Cache::builder()
            .weight_capacity(settings.memory as u64)
            .weigher(|_: &u64, value: &Bytes| value.len() as u32 + 64)
            .build();
        Ok(Self(cache))
    }

    fn insert(&self, key: u64, value: Bytes) {
        self.0.insert(key, value);
    }

    async fn get(&self, key: u64) -> Option<Bytes> {
        self.get_blocking(key)
    }

    fn get_blocking(&self, key: u64) -> Option<Bytes> {
        self.0.read(&key, Bytes::clone)
    }

    fn remove(&self, key: u64) {
        self.0.remove(&key);
    }

    async fn sync(&self) {}

    async fn close(self) {}
}
