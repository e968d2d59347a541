//! A store in memory whose requests are slow and fail by a plan, and that counts them.

use std::fmt;
use std::future::pending;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// The fault of a request for bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// The request fails.
    Fails,
    /// The connection is cut in the middle of the body.
    Cut,
    /// The body ends early, without an error.
    Short,
    /// The body has a byte too many.
    Long,
    /// The answer is for other bytes than those that were asked for.
    OtherRange,
    /// There is no answer.
    Silent,
    /// The body stops in the middle, and the connection stays.
    Stalls,
}

/// A request that was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) location: Path,
    /// The bytes of the answer; none if it was for metadata or failed.
    pub(crate) range: Option<Range<u64>>,
}

pub(crate) type Plan = Box<dyn FnMut(&Path) -> Fault + Send>;

/// A store with faults. Clones share it.
#[derive(Clone)]
pub(crate) struct Faulty {
    pub(crate) inner: Arc<InMemory>,
    pub(crate) sent: Arc<Mutex<Vec<Sent>>>,
    plan: Arc<Mutex<Plan>>,
    /// ETags are left out of metadata.
    pub(crate) has_no_tags: bool,
    /// Puts are carried out, but their answers are lost.
    pub(crate) loses_puts: bool,
    /// Time of a request, and of each chunk of its body.
    delay: Duration,
    pub(crate) chunk: usize,
}

impl Faulty {
    pub(crate) fn new(plan: impl FnMut(&Path) -> Fault + Send + 'static) -> Self {
        Self {
            inner: Arc::default(),
            sent: Arc::default(),
            plan: Arc::new(Mutex::new(Box::new(plan))),
            has_no_tags: false,
            loses_puts: false,
            delay: Duration::from_millis(1),
            chunk: 20_000,
        }
    }

    /// Returns the requests since the last call.
    pub(crate) fn take_sent(&self) -> Vec<Sent> {
        std::mem::take(&mut self.sent.lock().unwrap())
    }

    /// Replaces an object behind the cache's back.
    pub(crate) async fn replace(&self, location: &Path, bytes: Bytes) {
        self.inner.put_opts(location, bytes.into(), PutOptions::default()).await.unwrap();
    }

    fn fault() -> Error {
        Error::Generic { store: "Faulty", source: "503 SlowDown".into() }
    }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty").finish_non_exhaustive()
    }
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Faulty")
    }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        tokio::time::sleep(self.delay).await;
        let put = self.inner.put_opts(location, payload, options).await;
        tokio::time::sleep(self.delay).await;
        if self.loses_puts { Err(Self::fault()) } else { put }
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let fault = (self.plan.lock().unwrap())(location);
        let is_head = options.head;
        tokio::time::sleep(self.delay).await;
        let answer = match fault {
            Fault::Fails => Err(Self::fault()),
            Fault::Silent => pending().await,
            _ => self.inner.get_opts(location, options).await,
        };
        let range = answer.as_ref().ok().filter(|_| !is_head).map(|answer| answer.range.clone());
        self.sent.lock().unwrap().push(Sent { location: location.clone(), range });
        let mut answer = answer?;
        if self.has_no_tags {
            answer.meta.e_tag = None;
        }
        let (meta, attributes) = (answer.meta.clone(), answer.attributes.clone());
        let mut range = answer.range.clone();
        let mut bytes = answer.bytes().await?;
        match fault {
            Fault::Short => bytes.truncate(bytes.len() - bytes.len().min(1)),
            Fault::Long => bytes = [&bytes[..], &[0]].concat().into(),
            Fault::OtherRange if range.start > 0 => range = range.start - 1..range.end - 1,
            _ => {}
        }
        let mut chunks: Vec<Result<Bytes>> = Vec::new();
        while !bytes.is_empty() {
            chunks.push(Ok(bytes.split_to(bytes.len().min(self.chunk))));
        }
        if fault == Fault::Cut {
            chunks.truncate(chunks.len() / 2);
            chunks.push(Err(Self::fault()));
        }
        let delay = self.delay;
        let stalls_at = (fault == Fault::Stalls).then_some(chunks.len() / 2);
        let body = stream::iter(chunks).enumerate().then(move |(at, chunk)| async move {
            tokio::time::sleep(delay).await;
            if stalls_at == Some(at) { pending().await } else { chunk }
        });
        Ok(GetResult {
            payload: GetResultPayload::Stream(body.boxed()),
            meta,
            range,
            attributes,
            extensions: Default::default(),
        })
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
