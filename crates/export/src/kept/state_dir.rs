//! What is noted of caches outside them, so that an old copy of one is told from the cache itself.
//!
//! A folder has a file for each cache, called by its id: the session and the generation of the
//! superblock that was written last. It is written after the superblock, so it never is ahead of
//! the cache. Nothing is noticed where the folder is lost, or brought back together with the cache.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use floe_block::Superblock;
use serde::{Deserialize, Serialize};

use super::refusal::Refusal;

/// A superblock is written twice; the copy that was written last may be damaged.
const COPIES: u64 = 2;

/// The folder with what is noted of caches. Clones are the same one.
#[derive(Debug, Clone)]
pub struct StateDir {
    dir: PathBuf,
    /// It was asked for, so that it has to work.
    required: bool,
    /// It was warned of. No other memory depends on it, so that relaxed operations do.
    warned: Arc<AtomicBool>,
}

/// What is noted of a cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Noted {
    pub(super) session: u64,
    pub(super) generation: u64,
}

impl StateDir {
    /// A folder, which is made when something is to be noted. Where it is not `required`, one that
    /// cannot be written is warned of.
    pub fn new(dir: impl Into<PathBuf>, required: bool) -> Self {
        Self { dir: dir.into(), required, warned: Arc::default() }
    }

    fn file(&self, id: &[u8; 16]) -> PathBuf {
        let digits: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        self.dir.join(format!("cache-{digits}.json"))
    }

    /// What is noted of a cache, and where, if that is of a later state than this one.
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

    /// Notes the state of a cache, durably, once its superblock is written.
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

    /// Forgets a cache that is no more.
    pub(super) fn forget(&self, id: &[u8; 16]) {
        // what is left is of a cache that never comes back
        let _ = std::fs::remove_file(self.file(id));
    }

    fn write(&self, file: &Path, noted: &Noted) -> io::Result<()> {
        std::fs::create_dir_all(&self.dir)?;
        let new = file.with_extension("new");
        let mut written = File::create(&new)?;
        written.write_all(&serde_json::to_vec(noted)?)?;
        written.sync_all()?;
        std::fs::rename(&new, file)?;
        File::open(&self.dir)?.sync_all()
    }
}
