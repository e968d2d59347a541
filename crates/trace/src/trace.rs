//! Opens traces and streams their requests.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::decode::{Batch, Decode, SAMPLE_BYTES};
use crate::detect;
use crate::error::{Error, ErrorKind};
use crate::filter::Filter;
use crate::format::{Columns, Format};
use crate::generate::{Generated, GeneratorSpec};
use crate::request::{Request, TraceKind};
use crate::window::{Counted, WINDOW_BYTES, Window, decompressed};

/// Path that stands for standard input.
pub(crate) const STANDARD_INPUT: &str = "-";

/// The options for opening a trace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Format of the trace; `None` recognises it from content and name.
    pub format: Option<Format>,
    /// Counts and skips bad records instead of stopping at the first.
    pub skip_bad: bool,
    /// Reads a trace of page numbers as disk I/O: a line of an `arc` trace is then one read of
    /// `count` sectors of 512 bytes rather than `count` keys. Other formats of keys refuse it;
    /// block traces ignore it.
    pub as_blocks: bool,
    /// Roles of the columns of a `csv` trace, where their names are not enough; implies that
    /// format.
    pub columns: Option<Columns>,
    /// Filter of the requests; `None` keeps all.
    pub filter: Option<Filter>,
}

/// The source of a trace's requests.
enum Origin {
    File { window: Window, decoder: Box<dyn Decode> },
    Generator(Generated),
}

/// A stream of requests from a file or a generator, in constant memory.
///
/// As an iterator it ends after an error.
pub struct Trace {
    name: String,
    format: Format,
    kind: TraceKind,
    origin: Origin,
    batch: Batch,
    /// Index of the next run in the batch; `step` counts its requests already returned.
    run: usize,
    step: u64,
    /// Error to return after the requests decoded before it.
    failed: Option<Error>,
    done: bool,
    filter: Option<Filter>,
    progress: Progress,
}

impl Trace {
    /// Opens a trace as named by a user: a file, `-` for standard input, or a generator such as
    /// `zipf:keys=1000000,theta=0.9`.
    ///
    /// A file takes precedence over a generator of the same name.
    /// [`generators_table`](crate::generators_table) lists the generators.
    ///
    /// # Errors
    /// As [`Trace::open`] and [`Trace::generate`]; also when `as_blocks` is requested for a
    /// generator of keys.
    pub fn open_source(text: &str, options: &OpenOptions) -> Result<Self, Error> {
        if text == STANDARD_INPUT {
            return Self::from_reader(text, io::stdin(), options);
        }
        if !GeneratorSpec::looks_like(text) || Path::new(text).exists() {
            return Self::open(text, options);
        }
        let bad = |source| ErrorKind::Spec { text: text.to_owned(), source };
        let trace = Self::generate(&text.parse().map_err(bad)?)?;
        if options.as_blocks && trace.kind != TraceKind::Block {
            return Err(ErrorKind::KeysNotBlocks { text: text.to_owned() }.into());
        }
        trace.filtered(options)
    }

    /// Applies the filter of the options.
    fn filtered(self, options: &OpenOptions) -> Result<Self, Error> {
        let needs_disks = options.filter.as_ref().is_some_and(Filter::needs_disks);
        if needs_disks && self.kind != TraceKind::Block {
            return Err(ErrorKind::FilterOfKeys { path: self.name }.into());
        }
        Ok(Self { filter: options.filter.clone(), ..self })
    }

    /// Starts a generated trace.
    ///
    /// # Errors
    /// When the keys, as blocks, do not fit on a disk.
    pub fn generate(spec: &GeneratorSpec) -> Result<Self, Error> {
        let name = spec.to_string();
        let generated = Generated::new(spec)
            .map_err(|source| ErrorKind::Spec { text: name.clone(), source })?;
        let kind = generated.kind();
        let progress = Progress { bytes_read: Arc::default(), total_bytes: Some(spec.requests()) };
        let origin = Origin::Generator(generated);
        Ok(Self::new(name, Format::generated(), kind, origin, false, progress))
    }

    /// Opens a trace file, compressed or not.
    ///
    /// # Errors
    /// When the file cannot be read, and when its format is neither given nor recognised.
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self, Error> {
        let (name, file, total_bytes) = open_file(path.as_ref())?;
        Self::start(name, Box::new(file), Some(total_bytes), options)
    }

    /// Reads a trace from any reader, such as standard input. `name` appears in errors, and helps
    /// to recognise the format like a file's name.
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
        let read_error = |source, offset_bytes| {
            Error::from(ErrorKind::Read { path: name.clone(), offset_bytes, source })
        };
        let reader = decompressed(Box::new(reader)).map_err(|error| read_error(error, 0))?;
        let mut window = Window::new(reader);
        if let Err(error) = window.fill(SAMPLE_BYTES) {
            return Err(read_error(error, window.bytes().len() as u64));
        }
        let format = match options.format {
            Some(format) => format,
            None if options.columns.is_some() => {
                detect::refuse(&name, window.bytes())?;
                Format::with_columns()
            }
            None => detect::detect(&name, window.bytes(), window.ended())?,
        };
        let not_blocks = || ErrorKind::NotBlocks { path: name.clone(), format: format.name() };
        let (mut decoder, kind) = format.decoder(options.as_blocks).ok_or_else(not_blocks)?;
        if let Some(columns) = &options.columns {
            let no_columns = || ErrorKind::NoColumns { path: name.clone(), format: format.name() };
            decoder = format.decoder_of_columns(columns).ok_or_else(no_columns)?;
        }
        let kind = decoder.kind(window.bytes()).unwrap_or(kind);
        if options.as_blocks && kind != TraceKind::Block {
            return Err(not_blocks().into());
        }
        let origin = Origin::File { window, decoder };
        Self::new(name, format, kind, origin, options.skip_bad, progress).filtered(options)
    }

    fn new(
        name: String,
        format: Format,
        kind: TraceKind,
        origin: Origin,
        skip_bad: bool,
        progress: Progress,
    ) -> Self {
        let batch = Batch::new(skip_bad);
        Self {
            name,
            format,
            kind,
            origin,
            batch,
            run: 0,
            step: 0,
            failed: None,
            done: false,
            filter: None,
            progress,
        }
    }

    /// Returns the path or name with which the trace was opened, or the text of the generator.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the format, recognised or given.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Returns the meaning of the trace's keys and sizes.
    pub fn kind(&self) -> TraceKind {
        self.kind
    }

    /// Returns the number of bad records skipped so far.
    pub fn skipped(&self) -> u64 {
        self.batch.skipped
    }

    /// Returns the number of records so far whose time is before that of the preceding record.
    pub fn backward_times(&self) -> u64 {
        match &self.origin {
            Origin::File { decoder, .. } => decoder.clock().map_or(0, |clock| clock.steps_back),
            Origin::Generator(_) => 0,
        }
    }

    /// Returns the bytes of the file read so far, compressed if it is; for a generator, the
    /// requests made.
    pub fn bytes_read(&self) -> u64 {
        self.progress.bytes_read()
    }

    /// Returns the size of the file, compressed if it is; `None` for a stream. For a generator,
    /// returns the number of all requests.
    pub fn total_bytes(&self) -> Option<u64> {
        self.progress.total_bytes()
    }

    /// Returns a handle that shows the progress of reading, for use by other threads.
    pub fn progress(&self) -> Progress {
        self.progress.clone()
    }

    /// Decodes the next batch if the current one is used up; returns false at the end.
    #[cold]
    fn refill(&mut self) -> bool {
        self.batch.runs.clear();
        (self.run, self.step) = (0, 0);
        let (window, decoder) = match &mut self.origin {
            Origin::File { window, decoder } => (window, decoder),
            Origin::Generator(generated) => {
                self.progress.bytes_read.fetch_add(generated.fill(&mut self.batch), Relaxed);
                return !self.batch.runs.is_empty();
            }
        };
        while !self.done && self.batch.runs.is_empty() {
            let used = decoder.decode(window.bytes(), window.ended(), &mut self.batch);
            if let Some(bad) = self.batch.bad.take() {
                self.done = true;
                self.failed = Some(Error::from(ErrorKind::Malformed {
                    path: self.name.clone(),
                    unit: decoder.unit(),
                    record: bad.record,
                    offset_bytes: window.offset_bytes() + bad.at as u64,
                    expected: bad.flaw.expected(),
                    found: bad.flaw.found(),
                }));
            }
            window.consume(used);
            if used > 0 || self.done {
                continue;
            }
            if window.ended() {
                self.done = true;
            } else if let Err(source) = window.fill(WINDOW_BYTES) {
                self.done = true;
                let offset_bytes = window.offset_bytes() + window.bytes().len() as u64;
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
        if self.filter.is_none() {
            return self.advance();
        }
        self.next_kept()
    }
}

impl Trace {
    /// Returns the next request that the filter keeps.
    fn next_kept(&mut self) -> Option<Result<Request, Error>> {
        loop {
            let request = match self.advance()? {
                Ok(request) => request,
                Err(error) => return Some(Err(error)),
            };
            match &self.filter {
                None => return Some(Ok(request)),
                Some(filter) => match filter.keep(request) {
                    Some(kept) => return Some(Ok(kept)),
                    None => continue,
                },
            }
        }
    }

    /// Returns the next request, before filtering.
    #[inline]
    fn advance(&mut self) -> Option<Result<Request, Error>> {
        if self.run == self.batch.runs.len() && !self.refill() {
            return self.failed.take().map(Err);
        }
        let run = &self.batch.runs[self.run];
        let mut request = run.first;
        request.key = request.key.wrapping_add(self.step * run.stride);
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

/// Opens a file; returns its name, the file and its size.
fn open_file(path: &Path) -> Result<(String, File, u64), Error> {
    let name = path.display().to_string();
    let open = || -> io::Result<_> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if metadata.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        Ok((file, metadata.len()))
    };
    match open() {
        Ok((file, total_bytes)) => Ok((name, file, total_bytes)),
        Err(source) => Err(ErrorKind::Open { path: name, source }.into()),
    }
}

/// Opens a file; returns its name and a window over its decompressed bytes.
pub(crate) fn open_window(path: &Path) -> Result<(String, Window), Error> {
    let (name, file, _) = open_file(path)?;
    match decompressed(Box::new(file)) {
        Ok(reader) => Ok((name, Window::new(reader))),
        Err(source) => Err(ErrorKind::Read { path: name, offset_bytes: 0, source }.into()),
    }
}

/// Handle that shows the progress of reading a trace.
#[derive(Debug, Clone)]
pub struct Progress {
    bytes_read: Arc<AtomicU64>,
    total_bytes: Option<u64>,
}

impl Progress {
    /// Returns the bytes of the file read so far, compressed if it is; for a generator, the
    /// requests made.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Relaxed)
    }

    /// Returns the size of the file, compressed if it is; `None` for a stream. For a generator,
    /// returns the number of all requests.
    pub fn total_bytes(&self) -> Option<u64> {
        self.total_bytes
    }
}
