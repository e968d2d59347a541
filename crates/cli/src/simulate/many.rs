//! Many traces in one run of `floe simulate --policy`: the files of folders, and a file that keeps
//! the results of each trace for a later run.
//!
//! The file of results has a line for each trace, written when the trace is done. A line counts
//! only for the same trace, settings and version of the program. A line that a killed program has
//! left unfinished is cut off.

use std::collections::HashMap;
use std::fs::{File, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{CliError, OrFail};
use crate::trace::TraceArguments;

/// Number of files without a trace that are named; more are counted.
const MOST_NAMED: usize = 3;

/// The traces of a run.
#[derive(Debug, PartialEq)]
pub(super) struct Traces {
    /// The traces, with the files of folders in the order of their paths.
    pub(super) names: Vec<String>,
    /// True if some come from folders.
    pub(super) from_folders: bool,
}

impl Traces {
    /// Puts the traces in a folder, and in those below it, in its place. Files that begin with a
    /// dot are left out, and so are others that are no traces, with a line on standard error.
    ///
    /// # Errors
    /// When a folder cannot be read or has no traces.
    pub(super) fn of(given: &[String], open: &TraceArguments) -> Result<Self, CliError> {
        let mut traces = Self { names: Vec::new(), from_folders: false };
        for name in given {
            if !Path::new(name).is_dir() {
                traces.names.push(name.clone());
                continue;
            }
            traces.from_folders = true;
            let mut files = Vec::new();
            files_below(Path::new(name), &mut files)?;
            files.sort_unstable();
            let (found, others): (Vec<_>, Vec<_>) =
                files.into_iter().partition(|file| open.may_be_trace(file));
            if found.is_empty() {
                return Err(CliError::usage(format!("{name}: the folder has no traces")));
            }
            if !others.is_empty() {
                eprintln!("floe: {name}: {}", left_out(&others));
            }
            traces.names.extend(found);
        }
        Ok(traces)
    }

    /// Checks that all traces can be read again: files and generators.
    pub(super) fn refuse_pipes(&self) -> Result<(), CliError> {
        let is_pipe = |name: &&String| {
            *name == "-" || std::fs::metadata(name).is_ok_and(|file| !file.is_file())
        };
        match self.names.iter().find(is_pipe) {
            Some(name) => {
                Err(CliError::usage(format!("{name}: --resume takes files and generators only")))
            }
            None => Ok(()),
        }
    }
}

/// Adds the files in a folder and in those below it. Links to folders are not followed, since they
/// may lead back.
fn files_below(folder: &Path, files: &mut Vec<String>) -> Result<(), CliError> {
    let cannot_read =
        |error| CliError::usage(format!("{}: cannot read: {error}", folder.display()));
    for entry in std::fs::read_dir(folder).map_err(cannot_read)? {
        let entry = entry.map_err(cannot_read)?;
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let path = entry.path();
        if entry.file_type().map_err(cannot_read)?.is_dir() {
            files_below(&path, files)?;
        } else if path.is_file() {
            let name = path.into_os_string().into_string().map_err(|name| {
                CliError::usage(format!("{}: the name is not UTF-8", PathBuf::from(name).display()))
            })?;
            files.push(name);
        }
    }
    Ok(())
}

/// Says which files of a folder are no traces.
fn left_out(others: &[String]) -> String {
    let names = others[..others.len().min(MOST_NAMED)].join(", ");
    match others.len() - others.len().min(MOST_NAMED) {
        0 => format!("not recognised as traces: {names}"),
        more => format!("not recognised as traces: {names} and {more} more"),
    }
}

/// A line of the file of results.
#[derive(Serialize, Deserialize)]
struct Record<R> {
    trace: String,
    /// Size of the trace's file; `None` for a generator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trace_bytes: Option<u64>,
    version: String,
    settings: String,
    results: R,
}

/// The file of results that `--resume` names.
pub(super) struct SavedResults<R> {
    path: PathBuf,
    /// All settings of the run that change results, as text.
    settings: String,
    /// Results of earlier runs, by the trace and the size of its file.
    earlier: HashMap<(String, Option<u64>), R>,
    /// Place for the next line. It is locked, so that no other program appends.
    file: Mutex<File>,
}

impl<R: Serialize + DeserializeOwned + Clone> SavedResults<R> {
    /// Opens or creates the file. Reads the results that earlier runs with these settings have
    /// left.
    ///
    /// # Errors
    /// When the file cannot be opened, is in use, or has a line of something else.
    pub(super) fn open(path: &Path, settings: String) -> Result<Self, CliError> {
        let trouble = |doing: &str, error: &dyn std::fmt::Display| {
            CliError::usage(format!("{}: cannot {doing}: {error}", path.display()))
        };
        let mut file = File::options()
            .read(true)
            .append(true)
            .create(true)
            .open(path)
            .map_err(|error| trouble("open", &error))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let problem = "another run of floe simulate adds results to it";
                return Err(CliError::usage(format!("{}: {problem}", path.display())));
            }
            Err(TryLockError::Error(error)) => return Err(trouble("lock", &error)),
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(|error| trouble("read", &error))?;
        let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
        let mut earlier = HashMap::new();
        for (line, number) in bytes[..whole].split_inclusive(|&byte| byte == b'\n').zip(1..) {
            let record: Record<serde_json::Value> =
                serde_json::from_slice(line).map_err(|error| {
                    let at = format!("{}: line {number}", path.display());
                    CliError::usage(format!("{at} is no result of floe simulate --resume: {error}"))
                })?;
            if record.version != VERSION || record.settings != settings {
                continue;
            }
            // A result that does not read is computed again.
            if let Ok(results) = serde_json::from_value(record.results) {
                earlier.insert((record.trace, record.trace_bytes), results);
            }
        }
        if whole < bytes.len() {
            file.set_len(whole as u64)
                .map_err(|error| trouble("cut off an unfinished line", &error))?;
        }
        Ok(Self { path: path.to_owned(), settings, earlier, file: Mutex::new(file) })
    }

    /// Returns the results of a trace that an earlier run has left.
    pub(super) fn find(&self, trace: &str) -> Option<R> {
        self.earlier.get(&(trace.to_owned(), file_bytes(trace))).cloned()
    }

    /// Writes the results of a trace.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(super) fn add(&self, trace: &str, results: &R) -> Result<(), CliError> {
        let record = Record {
            trace: trace.to_owned(),
            trace_bytes: file_bytes(trace),
            version: VERSION.to_owned(),
            settings: self.settings.clone(),
            results,
        };
        let line = serde_json::to_string(&record).or_failure()? + "\n";
        // No line is half written where a thread panicked: the program ends with it.
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(line.as_bytes()).map_err(|error| {
            CliError::failure(format!("{}: cannot write: {error}", self.path.display()))
        })
    }
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn file_bytes(trace: &str) -> Option<u64> {
    std::fs::metadata(trace).ok().filter(std::fs::Metadata::is_file).map(|file| file.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &Path, settings: &str) -> Result<SavedResults<Vec<u64>>, CliError> {
        SavedResults::open(path, settings.to_owned())
    }

    #[test]
    fn results_are_found_again_for_the_same_settings_and_trace() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, trace) = (folder.path().join("results"), folder.path().join("trace"));
        let trace_name = trace.to_str().expect("it is UTF-8");
        std::fs::write(&trace, "1\n2\n").expect("it can be written");
        let saved = open(&path, "a").expect("it is new");
        assert_eq!(saved.find(trace_name), None);
        saved.add(trace_name, &vec![1, 2]).expect("it can be written");
        saved.add("loop:keys=1", &vec![3]).expect("it can be written");
        assert!(open(&path, "a").is_err_and(|error| error.line().contains("another run")));
        drop(saved);
        let saved = open(&path, "a").expect("it is free");
        assert_eq!(saved.find(trace_name), Some(vec![1, 2]));
        assert_eq!(saved.find("loop:keys=1"), Some(vec![3]));
        assert_eq!(saved.find("loop:keys=2"), None);
        drop(saved);
        assert_eq!(open(&path, "b").expect("it is free").find(trace_name), None);
        std::fs::write(&trace, "1\n2\n3\n").expect("it can be written");
        assert_eq!(open(&path, "a").expect("it is free").find(trace_name), None);
    }

    #[test]
    fn an_unfinished_line_is_cut_off_and_another_text_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("results");
        let saved = open(&path, "a").expect("it is new");
        saved.add("one", &vec![1]).expect("it can be written");
        drop(saved);
        let whole = std::fs::read_to_string(&path).expect("it is text");
        std::fs::write(&path, format!("{whole}{}", &whole[..20])).expect("it can be written");
        let saved = open(&path, "a").expect("the rest is cut off");
        saved.add("two", &vec![2]).expect("it can be written");
        drop(saved);
        let saved = open(&path, "a").expect("all lines are whole");
        assert_eq!([saved.find("one"), saved.find("two")], [Some(vec![1]), Some(vec![2])]);
        drop(saved);
        std::fs::write(&path, format!("{whole}a,b\n")).expect("it can be written");
        let error = open(&path, "a").err().expect("it is CSV");
        assert!(error.line().contains("line 2 is no result"), "{}", error.line());
    }
}
