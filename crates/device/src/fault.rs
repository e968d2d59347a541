//! Fault injection from a file that a test, or another process, changes while the device is used:
//! `file:PATH,faults=FILE`.
//!
//! Each line of the file is a rule, `OPERATION ERROR [START-END]`: the operations that fail, the
//! error, and the range of bytes.
//!
//! ```text
//! write ENOSPC            every write, zeroing and discard: the file system is full
//! all EIO 0-65536         every operation that touches the first 64 KiB
//! read EIO 1048576-       every read from 1 MiB on
//! write EROFS             the file system has become read-only
//! power-cut               every operation fails with EIO; with write-cache=volatile, unflushed
//!                         writes are lost
//! ```
//!
//! The operations are `read`, `write`, `flush` and `all`. A flush has no range, so only a rule
//! without a range applies to it. Without the file, or with an empty one, nothing fails. The file
//! is read for each operation, so a rule applies to operations submitted after it was written. An
//! invalid rule fails every operation, and the error names the line.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::delegate_device;
use crate::device::{Action, Completion, Device, Operation};
use crate::volatile::VolatileDisk;

/// The file of fault rules of a device. Clones share its state.
#[derive(Debug, Clone)]
pub struct Script(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    /// True once a rule has cut the power.
    off: AtomicBool,
}

#[derive(Debug, PartialEq, Eq)]
enum Rule {
    Fails { reads: bool, writes: bool, flushes: bool, errno: i32, bytes: Option<Range<u64>> },
    PowerCut,
}

impl Rule {
    fn parse(line: &str) -> Option<Rule> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (operation, error, range) = match words[..] {
            ["power-cut"] => return Some(Rule::PowerCut),
            [operation, error] => (operation, error, None),
            [operation, error, range] => (operation, error, Some(range)),
            _ => return None,
        };
        let (reads, writes, flushes) = match operation {
            "read" => (true, false, false),
            "write" => (false, true, false),
            "flush" => (false, false, true),
            "all" => (true, true, true),
            _ => return None,
        };
        let errno = match error {
            "EIO" => libc::EIO,
            "ENOSPC" => libc::ENOSPC,
            "EDQUOT" => libc::EDQUOT,
            "EROFS" => libc::EROFS,
            _ => return None,
        };
        let bytes = match range {
            None => None,
            Some(range) => {
                let (start, end) = range.split_once('-')?;
                let end = if end.is_empty() { u64::MAX } else { end.parse().ok()? };
                Some(start.parse().ok()?..end)
            }
        };
        Some(Rule::Fails { reads, writes, flushes, errno, bytes })
    }

    fn error(&self, operation: &Operation) -> Option<i32> {
        let Rule::Fails { reads, writes, flushes, errno, bytes } = self else {
            return Some(libc::EIO);
        };
        let (is_meant, len) = match &operation.action {
            Action::Read(into) => (*reads, into.len() as u64),
            Action::Write { from, .. } => (*writes, from.len() as u64),
            Action::Zero { len, .. } | Action::Discard { len } => (*writes, *len),
            Action::Flush => return (*flushes && bytes.is_none()).then_some(*errno),
        };
        let touches = |bytes: &Range<u64>| {
            bytes.start < operation.offset.saturating_add(len) && operation.offset < bytes.end
        };
        (is_meant && bytes.as_ref().is_none_or(touches)).then_some(*errno)
    }
}

impl Script {
    /// Creates a script that reads its rules from this file, which need not exist.
    pub fn new(path: impl Into<PathBuf>) -> Script {
        Script(Arc::new(Shared { path: path.into(), off: AtomicBool::new(false) }))
    }

    /// Returns the path of the file of rules.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    fn rules(&self) -> io::Result<Vec<Rule>> {
        let text = match std::fs::read_to_string(&self.0.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            text => text?,
        };
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let rule = |(number, line): (usize, &str)| {
            let nonsense = || {
                let path = self.0.path.display();
                let message = format!(
                    "{path}, line {}: {line:?} is no fault; write OPERATION ERROR [START-END], \
                     such as write ENOSPC",
                    number + 1
                );
                io::Error::new(io::ErrorKind::InvalidInput, message)
            };
            Rule::parse(line).ok_or_else(nonsense)
        };
        lines.map(rule).collect()
    }

    /// Decides whether an operation is carried out or fails. A power cut discards the writes that
    /// the disk has not flushed.
    fn judge(&self, operation: &Operation, disk: Option<&VolatileDisk>) -> io::Result<()> {
        let rules = self.rules()?;
        let off = rules.contains(&Rule::PowerCut);
        // Relaxed: the disk's own lock orders what is lost and what is written.
        if off && !self.0.off.swap(true, Ordering::Relaxed) {
            disk.inspect(|disk| disk.lose_unflushed());
        } else if !off {
            self.0.off.store(false, Ordering::Relaxed); // the next one is another
        }
        match rules.iter().find_map(|rule| rule.error(operation)) {
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
            None => Ok(()),
        }
    }
}

/// A device whose operations fail as a [`Script`] says.
#[derive(Debug)]
pub(crate) struct ScriptedDevice<D> {
    inner: D,
    script: Script,
    /// The imitated disk that loses its unflushed writes on a power cut.
    disk: Option<VolatileDisk>,
    failed: Vec<Completion>,
}

impl<D: Device> ScriptedDevice<D> {
    pub(crate) fn new(inner: D, script: Script, disk: Option<VolatileDisk>) -> ScriptedDevice<D> {
        ScriptedDevice { inner, script, disk, failed: Vec::new() }
    }
}

impl<D: Device> Device for ScriptedDevice<D> {
    delegate_device!(this => this.inner; size_bytes set_size allocation set_timeout spun);

    fn submit(&mut self, operation: Operation) {
        match self.script.judge(&operation, self.disk.as_ref()) {
            Ok(()) => self.inner.submit(operation),
            Err(error) => {
                self.failed.push(Completion { token: operation.token, result: Err(error) })
            }
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.failed);
        self.inner.poll(done);
    }

    fn next_due(&self) -> Option<Instant> {
        let soon = (!self.failed.is_empty()).then(Instant::now);
        [soon, self.inner.next_due()].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::SECTOR_BYTES;
    use crate::{MemoryDevice, Pool};

    #[test]
    fn a_script_fails_what_it_names_from_when_it_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("faults");
        let mut device = ScriptedDevice::new(MemoryDevice::new(1 << 20), Script::new(&path), None);
        let pool = Pool::new(0);
        let sector = pool.allocate(SECTOR_BYTES as usize).whole();
        let mut outcome = |rules: Option<&str>, offset: u64, action: Action| {
            match rules {
                Some(rules) => std::fs::write(&path, rules).unwrap(),
                None => drop(std::fs::remove_file(&path)),
            }
            device.submit(Operation { token: 7, offset, action });
            let mut done = Vec::new();
            device.poll(&mut done);
            let [Completion { token: 7, result }] = &done[..] else { panic!("{done:?}") };
            result.as_ref().err().map(|error| (error.raw_os_error(), error.to_string()))
        };
        let errno = |found: Option<(Option<i32>, String)>| found.and_then(|(errno, _)| errno);
        let write = || Action::Write { from: sector.clone(), durable: true };
        let read = || Action::Read(sector.clone());
        assert_eq!(outcome(None, 0, write()), None);
        assert_eq!(errno(outcome(Some("write ENOSPC\n"), 0, write())), Some(libc::ENOSPC));
        assert_eq!(outcome(Some("write ENOSPC\n"), 0, read()), None);
        assert_eq!(errno(outcome(Some("all EROFS"), 0, Action::Flush)), Some(libc::EROFS));
        assert_eq!(
            errno(outcome(Some("write EIO"), 0, Action::Discard { len: 4096 })),
            Some(libc::EIO)
        );
        let part = "flush EIO\n\nread EIO 8192-16384\nread ENOSPC 65536-\n";
        assert_eq!(outcome(Some(part), 4096, read()), None);
        assert_eq!(errno(outcome(Some(part), 8192, read())), Some(libc::EIO));
        assert_eq!(outcome(Some(part), 16384, read()), None);
        assert_eq!(errno(outcome(Some(part), 128 << 10, read())), Some(libc::ENOSPC));
        assert_eq!(errno(outcome(Some(part), 0, Action::Flush)), Some(libc::EIO));
        assert_eq!(outcome(Some("all EIO 0-4096"), 0, Action::Flush), None);
        assert_eq!(errno(outcome(Some("power-cut"), 0, Action::Flush)), Some(libc::EIO));
        for rule in [
            "write",
            "write EPERM",
            "writes EIO",
            "write EIO 1",
            "write EIO 1-x",
            "write EIO 1-2 3",
        ] {
            let (_, said) = outcome(Some(&format!("\n{rule}")), 0, read()).unwrap();
            assert!(said.contains("line 2") && said.contains(rule), "{said}");
        }
        assert_eq!(outcome(None, 0, Action::Flush), None);
    }
}
