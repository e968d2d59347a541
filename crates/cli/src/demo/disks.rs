//! Tells the disk that a folder is on.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Returns the disk of a file system: its folder in sysfs, or for a file system that is on no block
/// device, a name made of its number.
pub(super) fn disk(folder: &Path) -> io::Result<PathBuf> {
    let number = fs::metadata(folder)?.dev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let name = format!("{major}:{minor}");
    let Ok(device) = fs::canonicalize(Path::new("/sys/dev/block").join(&name)) else {
        return Ok(name.into());
    };
    // A partition is a folder within that of its disk.
    let is_partition = device.join("partition").exists();
    Ok(device.parent().filter(|_| is_partition).unwrap_or(&device).to_path_buf())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_one_file_system_are_on_one_disk_and_others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let within = folder.path().join("within");
        fs::create_dir(&within).unwrap();
        assert_eq!(disk(folder.path()).unwrap(), disk(&within).unwrap());
        assert_ne!(disk(folder.path()).unwrap(), disk(Path::new("/proc")).unwrap());
        assert!(disk(&folder.path().join("missing")).is_err());
    }
}
