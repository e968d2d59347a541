//! A directory that records the latest state of each cache. It detects old copies of a cache,
//! missing caches, and caches that were bypassed while their device refused to record that.
//!
//! Each cache has a file, named by its id, with a note: [`Noted`]. The file is written after the
//! superblock, so it is never ahead of the cache. A bypassed cache is the exception: its device has
//! refused the superblock, and the file is the only record. An old copy goes undetected where the
//! directory is lost, or restored together with the cache.
//!
//! A second file for each cache reserves the disk space of the first. The two change places at each
//! note, so that a note can be written when the file system is full.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use floe_block::Superblock;
use floe_device::{Identity, Likeness, Place, create_private, create_private_folder};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde::{Deserialize, Serialize};

use super::error::Refusal;
use crate::volume::Volume;

/// Number of copies of a superblock. A cache counts as old only if it is this many generations
/// behind its note, because the later copy may be damaged.
const COPIES: u64 = 2;

/// A note's file is padded to a multiple of this size.
const ROOM_BYTES: usize = 4096;

/// The state directory: the place outside of cache devices in which the latest state of each cache
/// is noted. Clones share their state.
#[derive(Debug, Clone)]
pub struct StateDir {
    dir: PathBuf,
    /// True if an unusable directory is an error, because the user has asked for this one.
    required: bool,
    /// True if a warning has been logged. Relaxed operations suffice: no other memory depends on
    /// the flag.
    warned: Arc<AtomicBool>,
}

/// The result of comparing a cache with its note.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Judged {
    /// The cache is as recent as its note or more recent, or has no note.
    Current,
    /// The cache is an old copy.
    Old { noted: Noted, file: PathBuf },
    /// The cache was bypassed, and only the note records that.
    Bypassed { retired: bool, file: PathBuf },
    /// The cache was bypassed, and nothing records whether its dirty data was written back.
    Unclear { noted: Noted, file: PathBuf },
}

impl StateDir {
    /// Creates a handle of a directory, which the first note creates on disk. An unusable directory
    /// is an error if `required`, and otherwise causes a warning.
    pub fn new(dir: impl Into<PathBuf>, required: bool) -> Self {
        Self { dir: dir.into(), required, warned: Arc::default() }
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Returns whether a path leads to one of the files that hold the state of a cache or a mirror.
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

    /// Tests whether notes can be written, before a start changes anything.
    ///
    /// # Errors
    /// When notes cannot be written, and the user asked for the directory. A full file system
    /// causes a warning only: it was usable before and may have space again.
    pub(crate) fn try_out(&self) -> Result<(), Refusal> {
        let test = self.dir.join("test.new");
        let tried = create_private_folder(&self.dir).and_then(|()| create_private(&test));
        let _ = std::fs::remove_file(&test);
        match tried {
            Ok(_) => Ok(()),
            Err(error)
                if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) =>
            {
                self.warn(&error);
                Ok(())
            }
            Err(source) if self.required => {
                Err(Refusal::StateDir { dir: self.dir.display().to_string(), source })
            }
            Err(error) => {
                self.warn(&error);
                Ok(())
            }
        }
    }

    /// Compares a cache's superblock with the note on the cache.
    pub(super) fn judge(&self, superblock: &Superblock) -> Judged {
        let Some((noted, file)) = self.read(&superblock.id) else { return Judged::Current };
        let is_behind = |written: u64| written >= superblock.generation + COPIES;
        match noted.passed {
            Some(_) if noted.session > superblock.session => Judged::Old { noted, file },
            Some(passed) if noted.session == superblock.session => {
                match is_behind(passed.generation) {
                    true => Judged::Old { noted, file },
                    false => Judged::Bypassed { retired: passed.retired, file },
                }
            }
            // It was opened since, without this directory.
            Some(_) => Judged::Unclear { noted, file },
            None if !is_behind(noted.generation) => Judged::Current,
            // An earlier version of Floe noted only that requests went past the cache.
            None if noted.generation >= superblock.generation + UNWRITTEN / 2
                && noted.session <= superblock.session =>
            {
                Judged::Unclear { noted, file }
            }
            None => Judged::Old { noted, file },
        }
    }

    /// Returns the note on a cache, and the path of its file.
    pub(super) fn read(&self, id: &[u8; 16]) -> Option<(Noted, PathBuf)> {
        let file = self.file(id);
        match read(&file) {
            Ok(noted) => noted.map(|noted| (noted, file)),
            Err(error) => {
                self.warn(&error);
                None
            }
        }
    }

    /// Returns all notes, with the ids of their caches and their files.
    pub(super) fn all(&self) -> Vec<([u8; 16], Noted, PathBuf)> {
        let entries = std::fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let id = |entry: std::fs::DirEntry| {
            let name = entry.file_name();
            let digits = name.to_str()?.strip_prefix("cache-")?.strip_suffix(".json")?;
            u128::from_str_radix(digits, 16).ok().map(u128::to_be_bytes)
        };
        let mut ids: Vec<[u8; 16]> = entries.filter_map(id).collect();
        ids.sort_unstable();
        let noted = |id| self.read(&id).map(|(noted, file)| (id, noted, file));
        ids.into_iter().filter_map(noted).collect()
    }

    /// Writes the note on a cache durably. Returns whether that succeeded, and logs a warning if
    /// not.
    pub(super) fn note(&self, id: &[u8; 16], noted: &Noted) -> bool {
        self.write(&self.file(id), noted)
    }

    /// Replaces the note in a file durably. Returns whether that succeeded, and logs a warning if
    /// not.
    pub(super) fn write(&self, file: &Path, noted: &Noted) -> bool {
        let text = serde_json::to_vec(noted).map_err(io::Error::from);
        let written = text.and_then(|text| self.put(file, text));
        if let Err(error) = &written {
            self.warn(error);
        }
        written.is_ok()
    }

    fn warn(&self, error: &io::Error) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            let dir = self.dir.display();
            tracing::warn!(
                %dir, %error,
                "an old copy of the cache, or one that is missing, would not be noticed; give a \
                 state-dir that can be used"
            );
        }
    }

    /// Removes the note on a cache that no longer exists.
    pub(super) fn forget(&self, id: &[u8; 16]) {
        // what is left is of a cache that never comes back
        let file = self.file(id);
        let _ = std::fs::remove_file(file.with_extension("new"));
        let _ = std::fs::remove_file(file);
    }

    /// Replaces the content of a file in the directory, atomically and durably. The text is padded
    /// with spaces.
    ///
    /// # Errors
    /// When the file cannot be written. It has its earlier content then, or the new one.
    pub(crate) fn put(&self, file: &Path, mut text: Vec<u8>) -> io::Result<()> {
        create_private_folder(&self.dir)?;
        text.resize(text.len().next_multiple_of(ROOM_BYTES), b' ');
        let spare = file.with_extension("new");
        let write = || -> io::Result<File> {
            let mut options = OpenOptions::new();
            let mut written =
                options.write(true).create(true).truncate(false).mode(0o600).open(&spare)?;
            written.write_all(&text)?;
            written.set_len(text.len() as u64)?;
            Ok(written)
        };
        write()?.sync_all()?;
        let exchanged = renameat_with(CWD, &spare, CWD, file, RenameFlags::EXCHANGE).is_ok();
        if !exchanged {
            std::fs::rename(&spare, file)?; // the first note
        }
        let room = std::fs::metadata(&spare).map_or(0, |spare| spare.len());
        if room < text.len() as u64 {
            // Without room in the spare file a full file system may take no further note.
            let _ = write();
        }
        File::open(&self.dir)?.sync_all()
    }
}

fn read(file: &Path) -> io::Result<Option<Noted>> {
    match std::fs::read(file) {
        Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Added to the noted generation of a bypassed cache. Earlier versions of Floe, which do not know
/// [`Noted::passed`], then refuse the cache as an old copy.
pub(super) const UNWRITTEN: u64 = 1 << 20;

/// The note on a cache. Earlier versions of Floe wrote only the fields `session` and `generation`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Noted {
    pub(super) session: u64,
    pub(super) generation: u64,
    /// Set while the cache is bypassed because its device has refused the superblock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) passed: Option<Bypassed>,
    /// Name of the cache device.
    pub(super) device: String,
    pub(super) volumes: Vec<NotedVolume>,
    /// True if the cache may hold dirty data.
    pub(super) dirty: bool,
    /// Bytes of dirty data. `None` unless the last session has ended cleanly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) dirty_bytes: Option<u64>,
    /// Names of volumes that have since been served without the cache.
    pub(super) without: Vec<String>,
}

/// The state of a bypassed cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Bypassed {
    /// True if all dirty data was written back, so that nothing in the cache is valid any more.
    /// Otherwise only its dirty data is valid.
    pub(super) retired: bool,
    /// Generation of the last superblock that the device accepted.
    pub(super) generation: u64,
}

/// A volume in the note on a cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NotedVolume {
    pub(super) name: String,
    pub(super) bytes: u64,
    /// Identity of the backing device, as words.
    pub(super) identity: Vec<u64>,
    /// Name of the backing device.
    pub(super) backing: String,
}

impl Noted {
    /// Creates a note from a cache's superblock. `backings` maps names of volumes to names of their
    /// devices.
    pub(super) fn of(superblock: &Superblock, backings: &BTreeMap<String, String>) -> Self {
        let volume = |volume: &floe_block::Volume| NotedVolume {
            name: volume.name.clone(),
            bytes: volume.bytes,
            identity: volume.identity.words().collect(),
            backing: backings.get(&volume.name).cloned().unwrap_or_default(),
        };
        Self {
            session: superblock.session,
            generation: superblock.generation,
            volumes: superblock.volumes.iter().map(volume).collect(),
            ..Self::default()
        }
    }

    /// Returns whether the cache has data of a volume's backing device, under whatever volume name.
    /// A device without an identity matches by its name, size and volume name.
    pub(super) fn has(&self, volume: &Volume) -> bool {
        let backing = &volume.backing;
        self.volumes.iter().any(|noted| {
            let identity = Identity::from_words(noted.identity.iter().copied());
            match identity.compare(&backing.identity()) {
                Likeness::Same => true,
                Likeness::Unknown => {
                    (&noted.name, noted.bytes, &noted.backing)
                        == (&volume.name, backing.size_bytes(), &backing.name())
                        && backing.name() != "memory"
                }
                Likeness::Other(_) | Likeness::OtherClass => false,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use floe_block::{BlockSizes, Layout};

    use super::Bypassed;
    use super::*;

    fn superblock(session: u64, generation: u64) -> Superblock {
        let sizes: BlockSizes = "4KiB".parse().expect("a size");
        Superblock {
            id: [7; 16],
            generation,
            session,
            clean: false,
            void: false,
            retired: None,
            layout: Layout::new(&sizes, 4 << 20, 1).expect("there is room"),
            cache_bytes: None,
            calibrated: None,
            stack: 0,
            next_stack: 0,
            companions: Vec::new(),
            volumes: Vec::new(),
        }
    }

    #[test]
    fn a_cache_is_judged_by_the_session_and_the_generation_that_are_noted() {
        let folder = tempfile::tempdir().expect("a folder");
        let state = StateDir::new(folder.path().join("state"), true);
        let judge = |session, generation| match state.judge(&superblock(session, generation)) {
            Judged::Current => "current",
            Judged::Old { .. } => "old",
            Judged::Bypassed { retired: false, .. } => "void",
            Judged::Bypassed { retired: true, .. } => "retired",
            Judged::Unclear { .. } => "unclear",
        };
        let note = |generation, passed: Option<bool>| {
            let passed = passed.map(|retired| Bypassed { retired, generation });
            let generation = generation + if passed.is_some() { UNWRITTEN } else { 0 };
            let noted = Noted { session: 5, generation, passed, ..Noted::default() };
            assert!(state.note(&[7; 16], &noted));
        };
        assert_eq!(judge(5, 20), "current");
        note(20, None);
        assert_eq!([(5, 19), (5, 22), (6, 24)].map(|(s, g)| judge(s, g)), ["current"; 3]);
        assert_eq!([(5, 18), (4, 10)].map(|(s, g)| judge(s, g)), ["old"; 2]);
        note(20, Some(false));
        assert_eq!([(5, 19), (5, 24)].map(|(s, g)| judge(s, g)), ["void"; 2]);
        assert_eq!([(5, 18), (4, 10)].map(|(s, g)| judge(s, g)), ["old"; 2]);
        assert_eq!(judge(6, 24), "unclear");
        note(20, Some(true));
        assert_eq!(judge(5, 20), "retired");
        // An earlier version's note of a superblock that could not be written.
        note(20 + UNWRITTEN, None);
        assert_eq!([(5, 20), (6, 24)].map(|(s, g)| judge(s, g)), ["unclear"; 2]);
        state.forget(&[7; 16]);
        assert_eq!(judge(5, 20), "current");
        assert_eq!(std::fs::read_dir(state.path()).expect("a folder").count(), 0);
    }

    #[test]
    fn a_note_of_an_earlier_version_can_be_read_and_it_can_read_this_ones() {
        let folder = tempfile::tempdir().expect("a folder");
        let state = StateDir::new(folder.path(), true);
        let file = state.file(&[7; 16]);
        std::fs::write(&file, r#"{"session":5,"generation":20}"#).expect("a note");
        let (noted, _) = state.read(&[7; 16]).expect("a note");
        assert_eq!(noted, Noted { session: 5, generation: 20, ..Noted::default() });
        for session in 6..9 {
            assert!(state.note(&[7; 16], &Noted { session, ..noted.clone() }));
            assert_eq!(state.read(&[7; 16]).expect("a note").0.session, session);
            let text = std::fs::read(&file).expect("a note");
            assert_eq!(text.len(), ROOM_BYTES);
            let value: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
            assert_eq!((&value["session"], &value["generation"]), (&session.into(), &20.into()));
            let spare = std::fs::metadata(file.with_extension("new")).expect("it is reserved");
            assert_eq!(spare.len(), ROOM_BYTES as u64);
        }
        assert_eq!(state.all().len(), 1);
    }
}
