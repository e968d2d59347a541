//! A store in memory whose requests fail, or lose their answers, by a seed, and are counted.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use floe_testkit::Random;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// The requests that a store got.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) puts: u64,
    pub(super) gets: u64,
    pub(super) heads: u64,
    pub(super) deletes: u64,
    pub(super) lists: u64,
}

#[derive(Debug)]
struct State {
    random: Random,
    /// Of 100 requests, those that fail; half of them are carried out, and their answer is lost.
    percent: usize,
    counts: Counts,
}

/// A store with faults. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Faulty {
    inner: Arc<InMemory>,
    state: Arc<Mutex<State>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    Refused,
    AnswerLost,
}

impl Faulty {
    pub(super) fn new(seed: u64) -> Self {
        let state = State { random: Random(seed), percent: 0, counts: Counts::default() };
        Self { inner: Arc::default(), state: Arc::new(Mutex::new(state)) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test has panicked in it")
    }

    /// Sets how many of 100 requests fail.
    pub(super) fn set_percent(&self, percent: usize) {
        self.state().percent = percent;
    }

    /// Returns the requests since the last call.
    pub(super) fn take_counts(&self) -> Counts {
        std::mem::take(&mut self.state().counts)
    }

    /// Counts a request, waits for a while, and draws its fault.
    async fn begin(&self, count: impl FnOnce(&mut Counts)) -> Fault {
        let (delay, fault) = {
            let mut state = self.state();
            count(&mut state.counts);
            let percent = state.percent;
            let fault = match state.random.below(100) < percent {
                false => Fault::None,
                true if state.random.below(2) == 0 => Fault::Refused,
                true => Fault::AnswerLost,
            };
            (1 + state.random.below(20) as u64, fault)
        };
        tokio::time::sleep(Duration::from_millis(delay)).await;
        fault
    }
}

fn refused() -> Error {
    Error::Generic { store: "Faulty", source: "503 SlowDown".into() }
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faulty")
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
        let fault = self.begin(|counts| counts.puts += 1).await;
        if fault == Fault::Refused {
            return Err(refused());
        }
        let put = self.inner.put_opts(location, payload, options).await;
        if fault == Fault::AnswerLost { Err(refused()) } else { put }
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let is_head = options.head;
        let count = |counts: &mut Counts| match is_head {
            true => counts.heads += 1,
            false => counts.gets += 1,
        };
        match self.begin(count).await {
            Fault::None => self.inner.get_opts(location, options).await,
            _ => Err(refused()),
        }
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let this = self.clone();
        let delete = move |location: Result<Path>| {
            let this = this.clone();
            async move {
                let location = location?;
                let fault = this.begin(|counts| counts.deletes += 1).await;
                if fault == Fault::Refused {
                    return Err(refused());
                }
                let one = stream::iter([Ok(location.clone())]).boxed();
                let deleted = this.inner.delete_stream(one).next().await;
                if fault == Fault::AnswerLost {
                    return Err(refused());
                }
                deleted.unwrap_or(Ok(location))
            }
        };
        locations.then(delete).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.state().counts.lists += 1;
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
