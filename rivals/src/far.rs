//! [`Far`]: imposes latency and bandwidth on the requests to a store.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use tokio::time::{Instant, sleep, sleep_until};

/// Most bytes that arrive together.
const CHUNK: usize = 64 << 10;

/// A store whose requests for bytes take the time of a far one, and are counted. Clones share it.
#[derive(Debug, Clone)]
pub struct Far {
    store: Arc<dyn ObjectStore>,
    latency: Duration,
    /// Bytes a second of each request.
    bandwidth: u64,
    pub requests: Arc<AtomicU64>,
    pub bytes: Arc<AtomicU64>,
}

impl Far {
    pub fn new(store: Arc<dyn ObjectStore>, latency: Duration, bandwidth: u64) -> Self {
        Self { store, latency, bandwidth, requests: Arc::default(), bytes: Arc::default() }
    }
}

/// Cuts bytes into chunks.
fn chunks(mut bytes: Bytes) -> Vec<Bytes> {
    let mut chunks = Vec::with_capacity(bytes.len().div_ceil(CHUNK));
    while !bytes.is_empty() {
        chunks.push(bytes.split_to(bytes.len().min(CHUNK)));
    }
    chunks
}

impl fmt::Display for Far {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Far({})", self.store)
    }
}

#[async_trait]
impl ObjectStore for Far {
    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        sleep(self.latency).await;
        let result = self.store.get_opts(location, options).await?;
        let (meta, range) = (result.meta.clone(), result.range.clone());
        let attributes = result.attributes.clone();
        let (begun, bandwidth, bytes) = (Instant::now(), self.bandwidth, Arc::clone(&self.bytes));
        let mut sent = 0;
        let chunks = result.into_stream().map_ok(|bytes| stream::iter(chunks(bytes)).map(Ok));
        let body = chunks.try_flatten().and_then(move |chunk| {
            sent += chunk.len() as u64;
            bytes.fetch_add(chunk.len() as u64, Ordering::Relaxed);
            let time = Duration::from_secs_f64(sent as f64 / bandwidth as f64);
            async move {
                sleep_until(begun + time).await;
                Ok(chunk)
            }
        });
        let payload = GetResultPayload::Stream(body.boxed());
        Ok(GetResult { payload, meta, range, attributes, extensions: Default::default() })
    }

    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.store.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.store.put_multipart_opts(location, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.store.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.store.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.store.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.store.copy_opts(from, to, options).await
    }
}
