//! [`Bridge`]: hands a store of `object_store` 0.14 to DataFusion 55, which has the trait of 0.13.
//!
//! Queries read and list, so the other calls are left out.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use datafusion::object_store::path::Path;
use datafusion::object_store::{
    CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result,
};
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};
use object_store as new;

/// A store of the newer trait as one of the older.
#[derive(Debug, Clone)]
pub struct Bridge(pub Arc<dyn new::ObjectStore>);

impl fmt::Display for Bridge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

fn newer(location: &Path) -> new::path::Path {
    new::path::Path::parse(location.as_ref()).expect("both versions have the same paths")
}

fn older(location: &new::path::Path) -> Path {
    Path::parse(location.as_ref()).expect("both versions have the same paths")
}

fn older_meta(meta: new::ObjectMeta) -> ObjectMeta {
    let new::ObjectMeta { location, last_modified, size, e_tag, version } = meta;
    ObjectMeta { location: older(&location), last_modified, size, e_tag, version }
}

/// Keeps the kinds that callers tell apart.
fn older_error(error: new::Error) -> Error {
    match error {
        new::Error::NotFound { path, source } => Error::NotFound { path, source },
        new::Error::Precondition { path, source } => Error::Precondition { path, source },
        new::Error::NotModified { path, source } => Error::NotModified { path, source },
        new::Error::PermissionDenied { path, source } => Error::PermissionDenied { path, source },
        other => Error::Generic { store: "Bridge", source: other.into() },
    }
}

fn newer_range(range: GetRange) -> new::GetRange {
    match range {
        GetRange::Bounded(range) => new::GetRange::Bounded(range),
        GetRange::Offset(start) => new::GetRange::Offset(start),
        GetRange::Suffix(bytes) => new::GetRange::Suffix(bytes),
    }
}

fn left_out(operation: &str) -> Error {
    Error::NotImplemented { operation: operation.into(), implementer: "Bridge".into() }
}

#[async_trait]
impl ObjectStore for Bridge {
    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let mut newer_options = new::GetOptions::new();
        newer_options.if_match = options.if_match;
        newer_options.if_none_match = options.if_none_match;
        newer_options.if_modified_since = options.if_modified_since;
        newer_options.if_unmodified_since = options.if_unmodified_since;
        newer_options.range = options.range.map(newer_range);
        newer_options.version = options.version;
        newer_options.head = options.head;
        let result = self.0.get_opts(&newer(location), newer_options).await;
        let result = result.map_err(older_error)?;
        let (meta, range) = (older_meta(result.meta.clone()), result.range.clone());
        let body = result.into_stream().map_err(older_error).boxed();
        let payload = GetResultPayload::Stream(body);
        Ok(GetResult { payload, meta, range, attributes: Default::default() })
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.0.get_ranges(&newer(location), ranges).await.map_err(older_error)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let listed = self.0.list(prefix.map(newer).as_ref());
        listed.map_ok(older_meta).map_err(older_error).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let listed = self.0.list_with_delimiter(prefix.map(newer).as_ref()).await;
        let listed = listed.map_err(older_error)?;
        Ok(ListResult {
            common_prefixes: listed.common_prefixes.iter().map(older).collect(),
            objects: listed.objects.into_iter().map(older_meta).collect(),
        })
    }

    async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> Result<PutResult> {
        Err(left_out("put"))
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Err(left_out("put_multipart"))
    }

    fn delete_stream(
        &self,
        _: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        stream::once(async { Err(left_out("delete")) }).boxed()
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(left_out("copy"))
    }
}
