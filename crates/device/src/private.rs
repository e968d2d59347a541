//! Files for their owner only, as caches and what belongs to them are.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// The permissions of a file.
pub(crate) const OWNER_ONLY: u32 = 0o600;

/// Creates a file that only its owner can read and write. One that is there becomes empty.
///
/// # Errors
/// When it cannot be created.
pub fn create_private(path: &Path) -> io::Result<File> {
    let mut how = OpenOptions::new();
    let file = how.write(true).create(true).truncate(true).mode(OWNER_ONLY).open(path)?;
    file.set_permissions(Permissions::from_mode(OWNER_ONLY))?; // of one that was there
    Ok(file)
}

/// Creates a folder that only its owner can use, and those around it. One that is there keeps its
/// permissions.
///
/// # Errors
/// When it cannot be created.
pub fn create_private_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_users_have_no_permission() {
        let folder = tempfile::tempdir().unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        let (within, file) = (folder.path().join("a/b"), folder.path().join("a/b/c"));
        create_private_folder(&within).unwrap();
        create_private_folder(&within).unwrap();
        assert_eq!(mode(&within), 0o700);
        std::fs::write(&file, "text").unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        create_private(&file).unwrap();
        assert_eq!((mode(&file), file.metadata().unwrap().len()), (0o600, 0));
    }
}
