//! The folders in which devices may be that admin clients name: with the right to open any path, a
//! client of a server that runs as root could have it create a file anywhere, and read and write
//! any disk.
//!
//! Links and `..` are resolved first, of the folders and of the path. A folder in which others may
//! change links protects nothing.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use floe_device::Spec;

/// Files and devices that admin clients may have opened.
#[derive(Debug, Clone, Default)]
pub enum AllowedPaths {
    /// All that the server can open.
    #[default]
    All,
    /// Paths in these folders, or below.
    Within(Arc<[PathBuf]>),
}

/// A path that an admin client may not have opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathRefused {
    /// The path is in none of the folders.
    #[error(
        "{} is in none of the folders that admin-paths allows{}",
        path.display(), leads(path, place)
    )]
    Outside {
        /// The path.
        path: PathBuf,
        /// The place it leads to.
        place: PathBuf,
    },
    /// An image of Ceph or an export is in no folder.
    #[error("{device} is in none of the folders that admin-paths allows, but on a network")]
    Remote {
        /// The device.
        device: String,
    },
    /// The path cannot be resolved.
    #[error("{}: {problem}", path.display())]
    Unknown {
        /// The path.
        path: PathBuf,
        /// Why.
        problem: String,
    },
}

fn leads(path: &Path, place: &Path) -> String {
    if path == place { String::new() } else { format!(": it leads to {}", place.display()) }
}

impl AllowedPaths {
    /// Allows a device to be opened, or its files to be made.
    ///
    /// # Errors
    /// Why not.
    pub fn check_device(&self, device: &Spec) -> Result<(), PathRefused> {
        if matches!(self, Self::Within(_)) && device.is_remote() {
            return Err(PathRefused::Remote { device: device.to_string() });
        }
        device.paths().iter().try_for_each(|path| self.check(path))
    }

    /// Allows a device at this path to be opened, or made there if nothing is.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, path: &Path) -> Result<(), PathRefused> {
        let Self::Within(folders) = self else { return Ok(()) };
        let place = resolved(path).map_err(|error| PathRefused::Unknown {
            path: path.to_owned(),
            problem: error.to_string(),
        })?;
        let is_inside =
            |folder: &PathBuf| folder.canonicalize().is_ok_and(|it| place.starts_with(it));
        if folders.iter().any(is_inside) {
            return Ok(());
        }
        Err(PathRefused::Outside { path: path.to_owned(), place })
    }
}

/// The path without links and `..`. Its last part may be missing.
fn resolved(path: &Path) -> io::Result<PathBuf> {
    match path.canonicalize() {
        Err(error)
            if error.kind() == io::ErrorKind::NotFound && path.symlink_metadata().is_err() =>
        {
            let Some(name) = path.file_name() else { return Err(error) }; // it ends in `..`
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            Ok(folder.unwrap_or(Path::new(".")).canonicalize()?.join(name))
        }
        found_or_not => found_or_not, // a link that leads to nothing would have it made there
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_what_lies_in_the_folders_is_allowed_wherever_links_lead() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(path("in/deep")).unwrap();
        std::fs::create_dir(path("inside")).unwrap();
        std::fs::write(path("out"), "").unwrap();
        std::fs::write(path("in/there"), "").unwrap();
        symlink(path("out"), path("in/leads-out")).unwrap();
        symlink(path("not-yet"), path("in/leads-to-nothing")).unwrap();
        symlink(folder.path(), path("in/up")).unwrap();
        symlink(path("in"), path("leads-in")).unwrap();
        let allowed = AllowedPaths::Within([path("leads-in"), path("missing")].into());
        for good in [
            "in/there",
            "in/new",
            "in/deep/new",
            "leads-in/there",
            "inside/../in/new",
            "in/up/in/there",
        ] {
            assert_eq!(allowed.check(&path(good)), Ok(()), "{good}");
        }
        for bad in [
            "out",
            "new",
            "inside/new",
            "in/leads-out",
            "in/../out",
            "in/up/out",
            "in/up/new",
            "missing",
        ] {
            let refused = allowed.check(&path(bad));
            assert!(matches!(refused, Err(PathRefused::Outside { .. })), "{bad}: {refused:?}");
        }
        for unknown in ["in/leads-to-nothing", "in/no/new", "in/.."] {
            let refused = allowed.check(&path(unknown));
            assert!(refused.is_err(), "{unknown}");
        }
        assert!(AllowedPaths::Within([].into()).check(&path("in/there")).is_err());
        assert_eq!(AllowedPaths::All.check(&path("out")), Ok(()));
        let line = allowed.check(&path("in/leads-out")).unwrap_err().to_string();
        assert!(
            line.contains("admin-paths") && line.ends_with(&path("out").display().to_string()),
            "{line}"
        );
    }
}
