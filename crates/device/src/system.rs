//! Functions of the operating system: ending the process, private files, and memory limits.

use std::fs::{DirBuilder, File, OpenOptions, Permissions, read_to_string};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fmt, io};

/// Ends the process with an exit code immediately: no destructors run, no exit handlers, and no
/// cleanup by other libraries. Data that the kernel has received stays.
pub fn end_process(code: u8) -> ! {
    // SAFETY: it may be called at any time by any thread, and returns to none.
    unsafe { libc::_exit(code.into()) }
}

/// Returns the release of the running kernel, such as `6.1.0-13-amd64`.
pub fn kernel_release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// Returns the number of the user (uid) on the other side of a Unix socket; `None` for anything
/// else. A user whom the user namespace of this process does not have is the overflow user, 65534.
pub fn peer_user(socket: impl AsFd) -> Option<u32> {
    let socket = socket.as_fd();
    // The kernel answers for other sockets too, with nobody's credentials.
    if rustix::net::sockopt::socket_domain(socket) != Ok(rustix::net::AddressFamily::UNIX) {
        return None;
    }
    // rustix has this option as well, but its process number may not be 0, which is that of a
    // process in another namespace.
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the pointers are to a `ucred` and to its length in bytes, both of which live until
    // the call has ended. A `ucred` has only integers, for which all bits are values.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    };
    let is_whole = result == 0 && length as usize == size_of::<libc::ucred>();
    (is_whole && peer.uid != u32::MAX).then_some(peer.uid)
}

/// The permissions of a file that only its owner can read and write.
pub(crate) const OWNER_ONLY: u32 = 0o600;

/// Creates a file that only its owner can read and write, or truncates an existing one.
///
/// # Errors
/// When the file cannot be created.
pub fn create_private(path: &Path) -> io::Result<File> {
    let mut how = OpenOptions::new();
    let file = how.write(true).create(true).truncate(true).mode(OWNER_ONLY).open(path)?;
    file.set_permissions(Permissions::from_mode(OWNER_ONLY))?; // of one that was there
    Ok(file)
}

/// Creates a folder that only its owner can use, with its parents. An existing folder keeps its
/// permissions.
///
/// # Errors
/// When the folder cannot be created.
pub fn create_private_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// The longest time for which an attempt is repeated. The kernel releases a killed process's files
/// and sockets only when it has closed its io_uring, which comes after the process has ended: a
/// restart right after a kill must not be refused for that.
const PATIENCE: Duration = Duration::from_secs(2);

/// The time between two attempts.
const AGAIN: Duration = Duration::from_millis(5);

/// Repeats an attempt to use a file or an address, for up to two seconds while it is in use.
///
/// # Errors
/// The error of the last attempt.
pub fn patiently<T, E>(
    mut attempt: impl FnMut() -> Result<T, E>,
    is_in_use: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let begun = Instant::now();
    loop {
        match attempt() {
            Err(error) if is_in_use(&error) && begun.elapsed() < PATIENCE => {
                std::thread::sleep(AGAIN)
            }
            result => return result,
        }
    }
}

/// The limit of memory for this process: the machine's memory, or less by a limit of its cgroups or
/// of the process itself. Reserving more succeeds, but using it gets the process killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct MemoryLimit {
    /// The limit in bytes.
    pub bytes: u64,
    by: Bound,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Bound {
    Machine,
    Cgroup,
    Process,
}

impl MemoryLimit {
    /// Returns the smallest limit that the system reports.
    pub fn here() -> Option<MemoryLimit> {
        let own = rustix::process::getrlimit(rustix::process::Resource::As).current;
        let own = own.map(|bytes| MemoryLimit { bytes, by: Bound::Process });
        own.into_iter().chain(within(Path::new("/"))).min()
    }
}

impl fmt::Display for MemoryLimit {
    /// Prints the source of the limit.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.by {
            Bound::Machine => "this machine has",
            Bound::Cgroup => "the cgroup of this process allows",
            Bound::Process => "ulimit -v allows",
        })
    }
}

/// Returns the limits found in the `/proc` and cgroup file systems below a root folder.
fn within(root: &Path) -> impl Iterator<Item = MemoryLimit> {
    let machine = read_to_string(root.join("proc/meminfo")).ok().and_then(|info| {
        let line = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
    });
    let groups = cgroups(root).into_iter().filter_map(|folder| {
        ["memory.max", "memory.limit_in_bytes"].iter().find_map(|name| {
            read_to_string(folder.join(name)).ok()?.trim().parse().ok() // "max" is none
        })
    });
    let groups = groups.map(|bytes| MemoryLimit { bytes, by: Bound::Cgroup });
    machine.map(|bytes| MemoryLimit { bytes, by: Bound::Machine }).into_iter().chain(groups)
}

/// Returns the folders of the cgroups that limit this process's memory: its own and their
/// ancestors, of either cgroup version.
fn cgroups(root: &Path) -> Vec<PathBuf> {
    let text = |name: &str| read_to_string(root.join(name)).unwrap_or_default();
    let (own, mounts) = (text("proc/self/cgroup"), text("proc/self/mountinfo"));
    let mut folders = Vec::new();
    for line in own.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let is_2 = controllers.is_empty();
        if !is_2 && !controllers.split(',').any(|name| name == "memory") {
            continue;
        }
        for (top, at) in mounts.lines().filter_map(|line| mount(line, is_2)) {
            let Some(at) = at.strip_prefix('/').map(|at| root.join(at)) else { continue };
            // Of a container's, the mount is its own group; a path outside of it leads nowhere.
            let below = path.strip_prefix(top).filter(|_| !path.contains("..")).unwrap_or("");
            let mut folder = at.join(below.trim_start_matches('/'));
            while folder.starts_with(&at) {
                folders.push(folder.clone());
                folder.pop();
            }
        }
    }
    folders
}

/// Returns the root cgroup and the folder of a cgroup mount that controls memory.
fn mount(line: &str, is_2: bool) -> Option<(&str, &str)> {
    let (mount, system) = line.split_once(" - ")?;
    let mut fields = mount.split(' ').skip(3);
    let (top, at) = (fields.next()?, fields.next()?);
    let mut fields = system.split(' ');
    let (kind, options) = (fields.next()?, fields.nth(1).unwrap_or_default());
    let has_memory = match is_2 {
        true => kind == "cgroup2",
        false => kind == "cgroup" && options.split(',').any(|option| option == "memory"),
    };
    has_memory.then_some((top.trim_end_matches('/'), at))
}

/// Draws a random id.
pub(crate) fn random_id() -> io::Result<[u8; 16]> {
    let mut id = [0; 16];
    io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut id)?;
    Ok(id)
}

#[cfg(test)]
mod private_tests {
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

#[cfg(test)]
mod memory_limit_tests {
    use super::*;

    /// Returns the smallest limit in a system with these files.
    fn least(files: &[(&str, &str)]) -> Option<(u64, Bound)> {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        within(folder.path()).min().map(|limit| (limit.bytes, limit.by))
    }

    const MEMORY: (&str, &str) = ("proc/meminfo", "MemTotal:       1024 kB\nMemFree: 5 kB\n");

    #[test]
    fn the_smallest_bound_of_all_groups_counts() {
        let machine = Some((1 << 20, Bound::Machine));
        assert_eq!(least(&[]), None);
        assert_eq!(least(&[MEMORY]), machine);
        let own = ("proc/self/cgroup", "0::/system.slice/floe.service\n");
        let mounts = (
            "proc/self/mountinfo",
            "25 30 0:22 / /proc rw - proc proc rw\n\
             35 25 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
        );
        let group = |path, text| [MEMORY, own, mounts, (path, text)];
        let inner = "sys/fs/cgroup/system.slice/floe.service/memory.max";
        let outer = "sys/fs/cgroup/system.slice/memory.max";
        let cgroup = |bytes| Some((bytes, Bound::Cgroup));
        assert_eq!(least(&group(inner, "max\n")), machine);
        assert_eq!(least(&group(inner, "65536\n")), cgroup(65536));
        assert_eq!(least(&group(outer, "65536\n")), cgroup(65536), "a group around it");
        assert_eq!(least(&group("sys/fs/cgroup/other/memory.max", "65536\n")), machine);
        assert_eq!(least(&group(inner, "9223372036854771712\n")), machine);
    }

    #[test]
    fn groups_of_version_1_and_of_containers_are_found() {
        let own = ("proc/self/cgroup", "9:cpu,cpuacct:/a\n5:memory:/docker/7\n1:name=systemd:/b\n");
        let limit = ("memory/docker/7/memory.limit_in_bytes", "4096\n");
        let mounts = |top| {
            format!(
                "31 25 0:26 {top} /memory rw shared:11 - cgroup cgroup rw,memory\n\
                     32 25 0:27 / /cpu rw - cgroup cgroup rw,cpu\n"
            )
        };
        let whole = mounts("/");
        let host = [MEMORY, own, ("proc/self/mountinfo", whole.as_str()), limit];
        assert_eq!(least(&host), Some((4096, Bound::Cgroup)));
        let inside = ("memory/memory.limit_in_bytes", "8192\n");
        let container = mounts("/docker/7");
        let container = [MEMORY, own, ("proc/self/mountinfo", container.as_str()), inside];
        assert_eq!(least(&container), Some((8192, Bound::Cgroup)));
        let outside = ("proc/self/cgroup", "0::/../..\n");
        let mounts = ("proc/self/mountinfo", "3 2 0:3 / /cg rw - cgroup2 cgroup2 rw\n");
        let container = [MEMORY, outside, mounts, ("cg/memory.max", "4096\n")];
        assert_eq!(least(&container), Some((4096, Bound::Cgroup)));
    }

    #[test]
    fn a_bound_of_this_machine_is_found() {
        let limit = MemoryLimit::here().expect("a machine has memory");
        assert!(limit.bytes > 1 << 20, "{limit:?}");
    }
}

#[cfg(test)]
mod peer_tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn only_a_unix_socket_has_a_user_on_its_other_side() {
        let own = Some(rustix::process::getuid().as_raw());
        let (socket, other) = UnixStream::pair().unwrap();
        assert_eq!((peer_user(&socket), peer_user(&other)), (own, own));
        drop(other);
        assert_eq!(peer_user(&socket), own, "also after it has closed the connection");
        // The kernel has credentials for this one too, but they are nobody's.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(peer_user(&client), None);
        assert_eq!(peer_user(File::open("/dev/null").unwrap()), None);
    }
}
