//! Implementations of the witness: a folder with a file for each mirror, a note beside a Ceph
//! image, and none at all.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

use crate::device::Halves;
use crate::rbd::RbdSource;
use crate::system::{create_private, create_private_folder};

/// A witness that stores each mirror's generation in a file of a folder, for a server without a
/// partner.
#[derive(Debug, Clone)]
pub struct FolderWitness(PathBuf);

impl FolderWitness {
    /// Creates a witness in this folder. The folder itself is created with the first mirror.
    pub fn new(folder: impl Into<PathBuf>) -> FolderWitness {
        FolderWitness(folder.into())
    }

    fn file(&self, mirror: &[u8; 16]) -> PathBuf {
        self.0.join(key(mirror))
    }
}

impl Witness for FolderWitness {
    fn read(&self, mirror: &[u8; 16]) -> io::Result<Option<Generation>> {
        let text = match std::fs::read_to_string(self.file(mirror)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let damaged = || {
            let message = format!("{} holds no generation", self.file(mirror).display());
            io::Error::new(io::ErrorKind::InvalidData, message)
        };
        Generation::parse(&text).ok_or_else(damaged).map(Some)
    }

    fn write(&self, mirror: &[u8; 16], generation: Generation) -> io::Result<()> {
        create_private_folder(&self.0)?;
        let file = self.file(mirror);
        let new = file.with_extension("new");
        let mut written = create_private(&new)?;
        writeln!(written, "{generation}")?;
        written.sync_all()?;
        std::fs::rename(&new, file)?;
        File::open(&self.0)?.sync_all()
    }
}

/// A folder witness that covers only mirrors already recorded in it, for programs that do not know
/// which witness a mirror uses.
#[derive(Debug, Clone)]
pub struct KnownWitness(FolderWitness);

impl KnownWitness {
    /// Creates a witness from the records in this folder.
    pub fn new(folder: impl Into<PathBuf>) -> KnownWitness {
        KnownWitness(FolderWitness::new(folder))
    }

    fn known(&self, mirror: &[u8; 16]) -> io::Result<Generation> {
        let unknown = || io::Error::other("the state folder has no record of the mirror");
        self.0.read(mirror)?.ok_or_else(unknown)
    }
}

impl Witness for KnownWitness {
    fn read(&self, mirror: &[u8; 16]) -> io::Result<Option<Generation>> {
        self.known(mirror).map(Some)
    }

    fn write(&self, mirror: &[u8; 16], generation: Generation) -> io::Result<()> {
        self.0.write(mirror, generation)
    }
}

/// A witness that stores generations in notes beside a Ceph image, while this program holds the
/// image's exclusive lock.
#[derive(Debug, Clone)]
pub struct ImageWitness(RbdSource);

impl ImageWitness {
    /// Creates a witness beside this image, which holds its lock for as long as it is open.
    pub fn new(image: RbdSource) -> ImageWitness {
        ImageWitness(image)
    }
}

impl Witness for ImageWitness {
    fn read(&self, mirror: &[u8; 16]) -> io::Result<Option<Generation>> {
        let Some(text) = self.0.note(&key(mirror))? else { return Ok(None) };
        let damaged = || {
            let message = format!("rbd:{}: {text:?} is not a generation", self.0.name());
            io::Error::new(io::ErrorKind::InvalidData, message)
        };
        Generation::parse(&text).ok_or_else(damaged).map(Some)
    }

    fn write(&self, mirror: &[u8; 16], generation: Generation) -> io::Result<()> {
        // Nobody else writes it: this program holds the lock, and a fenced one cannot write.
        self.0.set_note(&key(mirror), &generation.to_string())
    }
}

/// Returns the key under which a mirror's generation is stored.
fn key(mirror: &[u8; 16]) -> String {
    let digits: String = mirror.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("mirror-{digits}")
}

/// The absence of a witness: a mirror opens only with all of its halves, and no half can leave.
#[derive(Debug, Clone, Copy)]
pub struct NoWitness;

impl Witness for NoWitness {
    fn read(&self, _: &[u8; 16]) -> io::Result<Option<Generation>> {
        Err(io::Error::other("there is none"))
    }

    fn write(&self, _: &[u8; 16], _: Generation) -> io::Result<()> {
        Err(io::Error::other("there is none"))
    }
}

/// A generation of a mirror: a number, and the halves that are in sync at its beginning.
///
/// Two generations with one number and different sets come from two servers, or from one that
/// crashed before the witness recorded the first. The witness accepts only one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Generation {
    /// The number of the generation; the first is 1.
    pub number: u64,
    /// The halves that are in sync.
    pub halves: Halves,
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:02x}", self.number, self.halves.0)
    }
}

impl Generation {
    /// Parses a generation from the text that `Display` prints.
    pub fn parse(text: &str) -> Option<Generation> {
        let (number, halves) = text.trim().split_once(':')?;
        let halves = Halves(u8::from_str_radix(halves, 16).ok()?);
        Some(Generation { number: number.parse().ok()?, halves })
    }
}

/// The reason why the witness did not record a generation.
#[derive(Debug, thiserror::Error)]
pub enum RaiseError {
    /// The witness has another generation than expected: another server has changed it.
    #[error("the witness is at generation {}, not at {}", known(*found), known(*expected))]
    Other {
        /// The generation that the witness has.
        found: Option<Generation>,
        /// The generation that the witness should have had.
        expected: Option<Generation>,
    },
    /// The witness cannot be reached; it may or may not have recorded the generation.
    #[error("the witness cannot be reached: {0}")]
    Unreachable(#[from] io::Error),
}

fn known(generation: Option<Generation>) -> u64 {
    generation.map_or(0, |generation| generation.number)
}

/// A store outside the halves that records the newest generation of each mirror. Calls may block.
pub trait Witness: fmt::Debug + Send + Sync {
    /// Returns the newest generation of a mirror; `None` for an unknown mirror.
    ///
    /// # Errors
    /// When the witness cannot be reached.
    fn read(&self, mirror: &[u8; 16]) -> io::Result<Option<Generation>>;

    /// Stores the newest generation of a mirror, durably.
    ///
    /// # Errors
    /// When the witness cannot be reached.
    fn write(&self, mirror: &[u8; 16], generation: Generation) -> io::Result<()>;

    /// Replaces the generation `from` by `to`, durably. Succeeds also if the witness already has
    /// `to`.
    ///
    /// # Errors
    /// When the witness has another generation, or cannot be reached.
    fn raise(
        &self,
        mirror: &[u8; 16],
        from: Option<Generation>,
        to: Generation,
    ) -> Result<(), RaiseError> {
        let found = self.read(mirror)?;
        if found == Some(to) {
            return Ok(());
        }
        if found != from {
            return Err(RaiseError::Other { found, expected: from });
        }
        Ok(self.write(mirror, to)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Halves;

    #[test]
    fn a_generation_is_raised_from_the_one_that_is_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let witness = FolderWitness::new(folder.path().join("state"));
        let [one, two, other] = [(1, 2), (2, 1), (2, 2)]
            .map(|(number, count)| Generation { number, halves: Halves::first(count) });
        let mirror = [3; 16];
        assert_eq!(witness.read(&mirror).expect("it reads"), None);
        assert!(matches!(
            witness.raise(&mirror, Some(one), two),
            Err(RaiseError::Other { found: None, .. })
        ));
        witness.raise(&mirror, None, one).expect("the first");
        witness.raise(&mirror, Some(one), two).expect("the second");
        witness.raise(&mirror, Some(one), two).expect("again");
        assert!(matches!(
            witness.raise(&mirror, Some(one), other),
            Err(RaiseError::Other { found: Some(_), .. })
        ));
        assert_eq!(witness.read(&mirror).expect("it reads"), Some(two));
        assert_eq!(witness.read(&[4; 16]).expect("it reads"), None);
        let known = KnownWitness::new(folder.path().join("state"));
        assert_eq!(known.read(&mirror).expect("it knows that one"), Some(two));
        assert!(known.read(&[4; 16]).is_err());
        assert!(matches!(known.raise(&[4; 16], None, one), Err(RaiseError::Unreachable(_))));
        assert_eq!(witness.read(&[4; 16]).expect("it reads"), None);
    }
}
