//! A directory that records the latest state of each cache, to detect old copies of a cache.
//!
//! It has a file for each cache, named by its id, with the session and the generation of the latest
//! superblock. The file is written after the superblock, so it is never ahead of the cache. An old
//! copy goes undetected where the directory is lost, or restored together with the cache.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use floe_block::Superblock;
use floe_device::{Place, create_private, create_private_folder};
use serde::{Deserialize, Serialize};

use super::refusal::Refusal;

/// A superblock has two copies, and the later one may be damaged.
const COPIES: u64 = 2;

/// The state directory. Clones share their state.
#[derive(Debug, Clone)]
pub struct StateDir {
    dir: PathBuf,
    /// The user asked for the directory, so that an unusable one is an error.
    required: bool,
    /// A warning has been logged. No other memory depends on it, so relaxed operations suffice.
    warned: Arc<AtomicBool>,
}

/// The recorded state of a cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Noted {
    pub(super) session: u64,
    pub(super) generation: u64,
}

impl StateDir {
    /// Names a directory, which the first note creates. An unusable one is only warned of where it
    /// is not `required`.
    pub fn new(dir: impl Into<PathBuf>, required: bool) -> Self {
        Self { dir: dir.into(), required, warned: Arc::default() }
    }

    /// Returns the directory.
    pub(crate) fn path(&self) -> &Path {
        &self.dir
    }

    /// Returns whether a path leads to a file in which the state of a cache or a mirror is.
    pub(crate) fn has(&self, path: &Path) -> bool {
        let Some(place) = Place::of(path) else { return false };
        let files = std::fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let is_state = |name: &std::ffi::OsStr| {
            let name = name.to_string_lossy();
            name.ends_with(".json")
                || name.ends_with(".new")
                || name.starts_with("mirror-")
                || name.starts_with("pair-")
        };
        files
            .filter(|file| is_state(&file.file_name()))
            .any(|file| Place::of(&file.path()).is_some_and(|other| other.overlaps(&place)))
    }

    fn file(&self, id: &[u8; 16]) -> PathBuf {
        let digits: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        self.dir.join(format!("cache-{digits}.json"))
    }

    /// Returns the recorded state of a cache and its file, if it is later than this superblock.
    pub(super) fn later(&self, superblock: &Superblock) -> Option<(Noted, PathBuf)> {
        let file = self.file(&superblock.id);
        let noted = match std::fs::read(&file) {
            Ok(text) => serde_json::from_slice::<Noted>(&text).map_err(io::Error::from),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => Err(error),
        };
        match noted {
            Ok(noted) => {
                (noted.generation >= superblock.generation + COPIES).then_some((noted, file))
            }
            Err(error) => {
                self.warn(&error);
                None
            }
        }
    }

    /// Records the state of a cache, durably, after its superblock was written.
    pub(super) fn note(&self, superblock: &Superblock) -> Result<(), Refusal> {
        let Superblock { session, generation, .. } = *superblock;
        match self.write(&self.file(&superblock.id), &Noted { session, generation }) {
            Ok(()) => Ok(()),
            Err(source) if self.required => {
                Err(Refusal::StateDir { dir: self.dir.display().to_string(), source })
            }
            Err(error) => {
                self.warn(&error);
                Ok(())
            }
        }
    }

    fn warn(&self, error: &io::Error) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            let dir = self.dir.display();
            tracing::warn!(
                %dir, %error,
                "an old copy of the cache would not be noticed; give a state-dir that can be used"
            );
        }
    }

    /// Forgets a cache that no longer exists.
    pub(super) fn forget(&self, id: &[u8; 16]) {
        // what is left is of a cache that never comes back
        let _ = std::fs::remove_file(self.file(id));
    }

    fn write(&self, file: &Path, noted: &Noted) -> io::Result<()> {
        create_private_folder(&self.dir)?;
        let new = file.with_extension("new");
        let mut written = create_private(&new)?;
        written.write_all(&serde_json::to_vec(noted)?)?;
        written.sync_all()?;
        std::fs::rename(&new, file)?;
        File::open(&self.dir)?.sync_all()
    }
}
