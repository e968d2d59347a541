//! Unix sockets in the file system: creates them with their permissions, and replaces only a stale
//! one of the same user.
//!
//! A socket's file never has more permissions than intended. The permissions are set on the socket
//! before it is bound, and Linux copies them to the file. A group gets its own before any client
//! can connect. A lock on the folder serializes servers that start at the same time, so that
//! neither takes the other's fresh socket for a stale one.

use std::fs::{File, OpenOptions};
use std::io;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};

use floe_device::patiently;
use rustix::fs::{FlockOperation, Mode, fchmod, flock};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

/// Length of the queue of connections to be accepted; the system may allow fewer.
pub(crate) const BACKLOG: i32 = 1024;

/// The users that may connect to a socket, in addition to the server's user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Permitted {
    /// All users that the umask permits.
    ByUmask,
    /// No user but the server's.
    Nobody,
    /// The members of the group with this number.
    Group(u32),
}

/// The reason why the server cannot listen on a Unix socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another program serves the socket.
    #[error("another program serves {}; choose another path", .0.display())]
    Taken(PathBuf),
    /// The path has a stale socket of another user, which is left alone.
    #[error(
        "{} is a stale socket of another user (uid {owner}), which is left alone; remove it or \
         choose another path",
        path.display()
    )]
    Stale {
        /// The path of the socket.
        path: PathBuf,
        /// The user that owns the socket.
        owner: u32,
    },
    /// The path has a socket of another user, to which connecting is forbidden.
    #[error("{} is a socket of another user (uid {owner}); choose another path", path.display())]
    Foreign {
        /// The path of the socket.
        path: PathBuf,
        /// The user that owns the socket.
        owner: u32,
    },
    /// The path has a file that is no socket.
    #[error("{} exists and is not a socket; choose another path", .0.display())]
    NoSocket(PathBuf),
    /// The server's user may not give the socket to the group.
    #[error(
        "{} cannot be given to group {group}: {source}; the server's user must belong to it",
        path.display()
    )]
    Group {
        /// The path of the socket.
        path: PathBuf,
        /// The group's number.
        group: u32,
        /// The system's error.
        source: io::Error,
    },
    /// The folder for the socket does not exist.
    #[error("No such file or directory: the folder {} does not exist", .0.display())]
    NoFolder(PathBuf),
    /// Another error of the system.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl SocketError {
    /// Returns whether the address may soon be free, because its owner may just be ending.
    pub(crate) fn is_in_use(&self) -> bool {
        match self {
            Self::Taken(_) => true,
            Self::System(error) => error.kind() == io::ErrorKind::AddrInUse,
            _ => false,
        }
    }
}

impl From<Errno> for SocketError {
    fn from(error: Errno) -> Self {
        Self::System(error.into())
    }
}

/// The file of a listening socket. Dropping this removes the file, unless another one has taken its
/// place.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Device and inode of the file.
    identity: (u64, u64),
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), identity: identity(path)? })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|now| now == self.identity) {
            let _ = std::fs::remove_file(&self.path); // someone may have removed it just now
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))
}

/// Listens on a Unix socket. If it is in use, this retries for a moment, because its program may
/// just have been killed.
pub(crate) fn listen_on(
    path: &Path,
    permitted: Permitted,
) -> Result<(OwnedFd, SocketFile), SocketError> {
    let attempt = || {
        let _turn = turn(path);
        attempt(path, permitted)
    };
    patiently(attempt, SocketError::is_in_use)
}

/// Locks a socket's folder, so that no other server looks for a stale socket there or creates its
/// own. Returns `None` without the lock, as when another process holds it; then only servers that
/// start at the same time can collide.
fn turn(path: &Path) -> Option<File> {
    let folder =
        path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = File::open(folder).ok()?;
    let lock = || flock(&folder, FlockOperation::NonBlockingLockExclusive);
    patiently(lock, |error| *error == Errno::WOULDBLOCK).ok()?;
    Some(folder)
}

fn attempt(path: &Path, permitted: Permitted) -> Result<(OwnedFd, SocketFile), SocketError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.exists()) {
        return Err(SocketError::NoFolder(folder.to_owned()));
    }
    remove_stale(path)?;
    let socket = bound(path, permitted)?;
    let file = SocketFile::of(path)?;
    let mode = |mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode));
    match permitted {
        Permitted::ByUmask => {}
        Permitted::Nobody => mode(0o600)?,
        Permitted::Group(group) => {
            let given = lchown(path, None, Some(group));
            given.map_err(|source| SocketError::Group { path: path.to_owned(), group, source })?;
            mode(0o660)?;
        }
    }
    listen(&socket, BACKLOG)?; // before that nobody can connect
    Ok((socket, file))
}

/// Binds a socket and creates its file; no client can connect yet. Only the owner has any
/// permission, unless the umask decides.
fn bound(path: &Path, permitted: Permitted) -> Result<OwnedFd, SocketError> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    if permitted != Permitted::ByUmask {
        fchmod(&socket, Mode::RUSR | Mode::WUSR)?; // the file's, less the umask
    }
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Removes a socket that a killed server of this user has left behind.
fn remove_stale(path: &Path) -> Result<(), SocketError> {
    let Ok(file) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !file.file_type().is_socket() {
        return Err(SocketError::NoSocket(path.to_owned()));
    }
    let (path, owner) = (path.to_owned(), file.uid());
    let is_ours = owner == rustix::process::geteuid().as_raw();
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK; // a crowd may wait to be accepted
    let probe = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match connect(&probe, &SocketAddrUnix::new(&path)?) {
        Ok(()) | Err(Errno::AGAIN) => Err(SocketError::Taken(path)),
        Err(Errno::NOENT) => Ok(()),
        Err(Errno::CONNREFUSED) if is_ours => Ok(std::fs::remove_file(path)?),
        Err(Errno::CONNREFUSED) => Err(SocketError::Stale { path, owner }),
        Err(Errno::ACCESS) if !is_ours => Err(SocketError::Foreign { path, owner }),
        Err(error) => Err(error.into()),
    }
}

/// Reads a private text file, or the first `most` + 1 bytes of a longer one.
///
/// # Errors
/// The problem without the file's name, for instance that other users can read the file.
pub(crate) fn read_private(path: &Path, most: u64) -> Result<String, String> {
    let failed = |error: io::Error| error.to_string();
    // A pipe would be waited for.
    let file =
        OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(failed)?;
    let data = file.metadata().map_err(failed)?;
    if !data.is_file() {
        return Err("it is not a regular file".to_owned());
    }
    let mode = data.permissions().mode() & 0o777;
    if mode & 0o007 != 0 {
        return Err(format!("other users can use it (mode {mode:o}); chmod 600 it"));
    }
    let mut text = String::new();
    file.take(most + 1).read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    fn modes(path: &Path) -> (u32, u32) {
        let file = std::fs::symlink_metadata(path).unwrap();
        (file.mode() & 0o777, file.gid())
    }

    #[test]
    fn a_socket_has_the_permissions_asked_for_and_goes_with_its_listener() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let (socket, file) = listen_on(&path, Permitted::Nobody).unwrap();
        assert_eq!(modes(&path).0, 0o600);
        UnixStream::connect(&path).unwrap();
        drop((socket, file));
        assert!(!path.exists());
        let group = rustix::process::getegid().as_raw();
        let (_socket, _file) = listen_on(&path, Permitted::Group(group)).unwrap();
        assert_eq!(modes(&path), (0o660, group));
    }

    #[test]
    fn a_socket_is_never_open_to_more_than_it_will_be() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let group = rustix::process::getegid().as_raw();
        let _socket = bound(&path, Permitted::Group(group)).unwrap();
        assert_eq!(modes(&path).0 & 0o177, 0);
        assert_eq!(
            UnixStream::connect(&path).unwrap_err().kind(),
            io::ErrorKind::ConnectionRefused
        );
    }

    #[test]
    fn a_stale_socket_is_replaced_and_what_is_not_ours_to_take_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let refusal = || listen_on(&path, Permitted::Nobody).unwrap_err().to_string();
        drop(UnixListener::bind(&path).unwrap());
        let (socket, file) = listen_on(&path, Permitted::Nobody).unwrap();
        assert!(refusal().contains("another program serves"), "{}", refusal());
        drop((socket, file));
        std::fs::write(&path, "text").unwrap();
        assert!(refusal().contains("is not a socket"), "{}", refusal());
        assert_eq!(std::fs::read(&path).unwrap(), b"text");
    }

    #[test]
    fn of_servers_that_begin_at_once_over_a_stale_socket_one_listens() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        let ready = std::sync::Barrier::new(4);
        let listeners: Vec<_> = std::thread::scope(|scope| {
            let begin = || {
                ready.wait();
                listen_on(&path, Permitted::Nobody).ok()
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(begin)).collect();
            threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(listeners.len(), 1);
        assert_eq!(listeners[0].1.identity, identity(&path).unwrap(), "clients find it");
    }

    #[test]
    fn a_stale_socket_of_another_user_is_named_and_left_alone() {
        if !rustix::process::geteuid().is_root() {
            return; // nobody else can give a file away
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        lchown(&path, Some(65534), None).unwrap();
        let refusal = listen_on(&path, Permitted::Nobody).unwrap_err().to_string();
        assert!(refusal.contains("stale socket of another user (uid 65534)"), "{refusal}");
        assert!(path.exists());
    }

    #[test]
    fn a_socket_that_has_replaced_ours_is_not_removed_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let (socket, file) = listen_on(&path, Permitted::ByUmask).unwrap();
        std::fs::remove_file(&path).unwrap();
        let _other = UnixListener::bind(&path).unwrap();
        drop((socket, file));
        assert!(path.exists());
    }
}
