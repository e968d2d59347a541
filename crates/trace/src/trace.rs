//! Opening a trace and streaming its requests.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::compress::decompressed;
use crate::decode::{Batch, Decode};
use crate::detect::{self, SAMPLE_BYTES};
use crate::error::{Error, ErrorKind};
use crate::format::Format;
use crate::request::{Kind, Request};
use crate::source::{Counted, Source, WINDOW_BYTES};

/// How to open a trace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// The format; recognised from content and name when not given.
    pub format: Option<Format>,
    /// Count and pass over bad records instead of stopping at the first.
    pub skip_bad: bool,
    /// Read a trace of page numbers as disk I/O: a line of an `arc` trace is then one read of `count` sectors of 512 bytes
    /// rather than `count` keys. Other formats of keys refuse; block traces are what they are anyway.
    pub as_blocks: bool,
}

/// A stream of requests, in constant memory.
///
/// An iterator: after an error it ends.
pub struct Trace {
    name: String,
    format: Format,
    kind: Kind,
    source: Source,
    decoder: Box<dyn Decode>,
    batch: Batch,
    /// Which run of the batch comes next, and how much of it is used.
    run: usize,
    step: u64,
    /// An error that waits for the requests before it.
    failed: Option<Error>,
    done: bool,
    progress: Progress,
}

impl Trace {
    /// Opens a trace file, compressed or not.
    ///
    /// # Errors
    /// When the file cannot be read, and when its format is neither given nor clear.
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self, Error> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let open = || -> io::Result<_> {
            let file = File::open(path)?;
            let metadata = file.metadata()?;
            if metadata.is_dir() {
                return Err(io::ErrorKind::IsADirectory.into());
            }
            Ok((file, metadata.len()))
        };
        let (file, total_bytes) = open().map_err(|source| ErrorKind::Open { path: name.clone(), source })?;
        Self::start(name, Box::new(file), Some(total_bytes), options)
    }

    /// Reads a trace from anything that can be read, such as standard input. `name` appears in errors, and helps
    /// to recognise the format as a file's name would.
    ///
    /// # Errors
    /// As [`Trace::open`].
    pub fn from_reader(
        name: &str,
        reader: impl Read + Send + 'static,
        options: &OpenOptions,
    ) -> Result<Self, Error> {
        Self::start(name.to_owned(), Box::new(reader), None, options)
    }

    fn start(
        name: String,
        reader: Box<dyn Read + Send>,
        total_bytes: Option<u64>,
        options: &OpenOptions,
    ) -> Result<Self, Error> {
        let progress = Progress { bytes_read: Arc::default(), total_bytes };
        let reader = Counted { reader, bytes_read: Arc::clone(&progress.bytes_read) };
        let read_error =
            |source, offset_bytes| Error::from(ErrorKind::Read { path: name.clone(), offset_bytes, source });
        let reader = decompressed(Box::new(reader)).map_err(|error| read_error(error, 0))?;
        let mut source = Source::new(reader);
        if let Err(error) = source.fill(SAMPLE_BYTES) {
            return Err(read_error(error, source.bytes().len() as u64));
        }
        let format = match options.format {
            Some(format) => format,
            None => detect::detect(&name, source.bytes(), source.ended())?,
        };
        let (decoder, kind) = format
            .decoder(options.as_blocks)
            .ok_or_else(|| ErrorKind::NotBlocks { path: name.clone(), format: format.name() })?;
        Ok(Self {
            name,
            format,
            kind,
            source,
            decoder,
            batch: Batch::new(options.skip_bad),
            run: 0,
            step: 0,
            failed: None,
            done: false,
            progress,
        })
    }

    /// The path or name it was opened with.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The format, recognised or given.
    pub fn format(&self) -> Format {
        self.format
    }

    /// How to read keys and sizes.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Bad records passed over so far.
    pub fn skipped(&self) -> u64 {
        self.batch.skipped
    }

    /// Bytes read so far from the file as it is, compressed or not.
    pub fn bytes_read(&self) -> u64 {
        self.progress.bytes_read()
    }

    /// The file's size as it is, compressed or not; `None` for a stream.
    pub fn total_bytes(&self) -> Option<u64> {
        self.progress.total_bytes()
    }

    /// A handle to watch the reading from elsewhere.
    pub fn progress(&self) -> Progress {
        self.progress.clone()
    }

    /// Decodes the next batch, if the current one is used up. False at the end.
    #[cold]
    fn refill(&mut self) -> bool {
        self.batch.runs.clear();
        (self.run, self.step) = (0, 0);
        while !self.done && self.batch.runs.is_empty() {
            let used = self.decoder.decode(self.source.bytes(), self.source.ended(), &mut self.batch);
            if let Some(bad) = self.batch.bad.take() {
                self.done = true;
                self.failed = Some(Error::from(ErrorKind::Malformed {
                    path: self.name.clone(),
                    unit: self.decoder.unit(),
                    record: bad.record,
                    offset_bytes: self.source.offset_bytes() + bad.at as u64,
                    expected: bad.flaw.expected(),
                    found: bad.flaw.found(),
                }));
            }
            self.source.consume(used);
            if used > 0 || self.done {
                continue;
            }
            if self.source.ended() {
                self.done = true;
            } else if let Err(source) = self.source.fill(WINDOW_BYTES) {
                self.done = true;
                let offset_bytes = self.source.offset_bytes() + self.source.bytes().len() as u64;
                let path = self.name.clone();
                self.failed = Some(Error::from(ErrorKind::Read { path, offset_bytes, source }));
            }
        }
        !self.batch.runs.is_empty()
    }
}

impl Iterator for Trace {
    type Item = Result<Request, Error>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.run == self.batch.runs.len() && !self.refill() {
            return self.failed.take().map(Err);
        }
        let run = &self.batch.runs[self.run];
        let mut request = run.first;
        request.key = request.key.wrapping_add(self.step);
        self.step += 1;
        if self.step >= run.count {
            self.run += 1;
            self.step = 0;
        }
        Some(Ok(request))
    }
}

impl std::iter::FusedIterator for Trace {}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace")
            .field("name", &self.name)
            .field("format", &self.format)
            .field("skipped", &self.batch.skipped)
            .finish_non_exhaustive()
    }
}

/// How far the reading of a trace has come; for progress bars.
#[derive(Debug, Clone)]
pub struct Progress {
    bytes_read: Arc<AtomicU64>,
    total_bytes: Option<u64>,
}

impl Progress {
    /// Bytes read so far from the file as it is, compressed or not.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Relaxed)
    }

    /// The file's size as it is, compressed or not; `None` for a stream.
    pub fn total_bytes(&self) -> Option<u64> {
        self.total_bytes
    }
}
