//! foyer with its disk. Words after the name change its settings.

use bytes::Bytes;
use foyer::{
    BlockEngineConfig, DeviceBuilder, EvictionConfig, FsDeviceBuilder, HybridCache,
    HybridCacheBuilder, HybridCachePolicy, HybridCacheProperties, IoEngineConfig, LfuConfig,
    LruConfig, PsyncIoEngineConfig, RecoverMode, S3FifoConfig, UringIoEngineConfig,
};

use super::{Settings, Subject};

pub struct Foyer(HybridCache<u64, Bytes>);

impl Subject for Foyer {
    async fn open(settings: &Settings) -> Result<Self, String> {
        let text = |error: foyer::Error| format!("foyer: {error}");
        // Blocks leave as a whole: they are small beside a small device. A value fits a block.
        let block = (settings.flash / 64).clamp(256 << 10, 16 << 20);
        let block = block.max((2 * settings.value_bytes).next_power_of_two());
        let device = FsDeviceBuilder::new(&settings.folder)
            .with_capacity(settings.flash)
            .with_direct(settings.word("direct") != Some("no"))
            .build()
            .map_err(text)?;
        let engine: Box<dyn IoEngineConfig> = match settings.word("engine") {
            None | Some("psync") => Box::new(PsyncIoEngineConfig::new()),
            Some("uring") => Box::new(
                UringIoEngineConfig::new()
                    .with_threads(settings.number("threads", 1)?)
                    .with_io_depth(settings.number("depth", 64)?),
            ),
            Some(other) => return Err(format!("foyer has no engine {other}")),
        };
        let policy = match settings.word("write") {
            None | Some("insertion") => HybridCachePolicy::WriteOnInsertion,
            Some("eviction") => HybridCachePolicy::WriteOnEviction,
            Some(other) => return Err(format!("foyer does not write on {other}")),
        };
        let eviction: EvictionConfig = match settings.word("memory") {
            Some("lru") => LruConfig::default().into(),
            Some("lfu") => LfuConfig::default().into(),
            None | Some("s3fifo") => S3FifoConfig::default().into(),
            Some(other) => return Err(format!("foyer has no policy {other}")),
        };
        let buffer = settings.number("buffer", 64 << 20)?;
        let blocks = BlockEngineConfig::<u64, Bytes, HybridCacheProperties>::new(device)
            .with_block_size(settings.number("block", block)?)
            .with_flushers(settings.number("flushers", 1)?)
            .with_reclaimers(settings.number("reclaimers", 1)?)
            .with_buffer_pool_size(buffer)
            .with_submit_queue_size_threshold(settings.number("queue", 2 * buffer)?)
            .with_tombstone_log(settings.word("tombstones") == Some("yes"));
        let cache = HybridCacheBuilder::new()
            .with_policy(policy)
            .with_flush_on_close(settings.word("flush") != Some("no"))
            .memory(settings.memory)
            .with_shards(settings.number("shards", 8)?)
            .with_eviction_config(eviction)
            .with_weighter(|_: &u64, value: &Bytes| size_of::<u64>() + value.len())
            .storage()
            .with_io_engine_config(engine)
            .with_engine_config(blocks)
            .with_recover_mode(RecoverMode::Quiet)
            .build()
            .await
            .map_err(text)?;
        Ok(Self(cache))
    }

    fn insert(&self, key: u64, value: Bytes) {
        self.0.insert(key, value);
    }

    async fn get(&self, key: u64) -> Option<Bytes> {
        self.0.get(&key).await.ok().flatten().map(|entry| entry.value().clone())
    }

    fn remove(&self, key: u64) {
        self.0.remove(&key);
    }

    async fn sync(&self) {
        self.0.storage().wait().await;
    }

    async fn close(self) {
        self.0.close().await.expect("foyer closes");
    }
}
