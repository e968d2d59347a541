//! A note on this machine of the locks that its server holds.
//!
//! The server keeps the file locked for as long as it runs. The system frees it when the process
//! has ended, however that was. So a server that is started again knows at once that the owner of
//! the images is its dead predecessor, and does not wait for the lease. The file names the owner as
//! the cluster does, so that an old file, or one of another pair, says nothing.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use floe_device::{RbdName, create_private_folder, patiently};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// The file; nothing is held yet.
#[derive(Debug, Clone)]
pub struct OwnNote(PathBuf);

/// The file while it is held.
#[derive(Debug)]
pub(super) struct Held(#[expect(dead_code, reason = "its lock ends with it")] File);

impl OwnNote {
    /// Names the file of a pair with this first image, in the state directory.
    pub(crate) fn new(state: &std::path::Path, image: &RbdName) -> Self {
        let image = image.to_string().replace(['/', '@'], "-");
        Self(state.join(format!("pair-{image}")))
    }

    /// Holds the file for a server with these locks. Two servers of one state directory have one
    /// note, and the second has none.
    pub(super) fn hold(&self, owners: &[String]) -> io::Result<Held> {
        self.0.parent().map_or(Ok(()), create_private_folder)?;
        let mut how = File::options();
        let how = how.create(true).write(true).truncate(false).mode(0o600);
        let mut file = how.open(&self.0)?;
        let lock = || flock(&file, FlockOperation::NonBlockingLockExclusive);
        patiently(lock, |error| *error == Errno::WOULDBLOCK)?;
        file.set_len(0)?;
        file.write_all(owners.join("\n").as_bytes())?;
        Ok(Held(file))
    }

    /// Returns the locks of the server that had this one, if that has ended.
    pub(super) fn of_the_dead(&self, owner: &str) -> Option<Vec<String>> {
        let mut file = File::open(&self.0).ok()?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
        let mut text = String::new();
        file.read_to_string(&mut text).ok()?;
        let owners: Vec<String> = text.lines().map(str::to_owned).collect();
        owners.iter().any(|other| other == owner).then_some(owners)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_known_to_have_ended_by_its_own_locks_and_no_others() {
        let folder = tempfile::tempdir().unwrap();
        let note = OwnNote(folder.path().join("state/pair"));
        assert_eq!(note.of_the_dead("a"), None, "there was none");
        let owners = vec!["a".to_owned(), "b".to_owned()];
        let held = note.hold(&owners).unwrap();
        assert_eq!(note.of_the_dead("a"), None, "it lives");
        drop(held);
        assert_eq!(note.of_the_dead("b"), Some(owners));
        assert_eq!(note.of_the_dead("c"), None, "another server's lock");
        let held = note.hold(&["c".to_owned()]).unwrap();
        drop(held);
        assert_eq!(note.of_the_dead("a"), None, "an earlier one");
    }
}
