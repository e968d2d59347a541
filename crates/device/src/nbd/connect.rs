//! Making a connection to an export: blocking, on a thread that may wait.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use floe_nbd::client::{ClientError, Info, Transport, negotiate};
use rustix::net::sockopt;

use super::error::NbdError;
use super::name::NbdName;
use super::socket::Socket;
use crate::SECTOR_BYTES;

/// The longest wait for a connection, and for each answer of the handshake.
const PATIENCE: Duration = Duration::from_secs(10);

/// The time after which a server that acknowledges nothing counts as gone.
const SILENCE: Duration = Duration::from_secs(15);

/// A connection whose handshake is over.
#[derive(Debug)]
pub(super) struct Connected {
    pub(super) socket: OwnedFd,
    pub(super) info: Info,
}

/// Connects, and checks that the export can be a device.
pub(super) fn connect(name: &NbdName, read_only: bool) -> Result<Connected, NbdError> {
    let export = || name.to_string();
    let failed = |source: ClientError| NbdError::Client { export: export(), source };
    let patience = name.timeout.map_or(PATIENCE, |timeout| timeout.min(PATIENCE));
    let mut socket = Socket::connect(&name.uri, Some(patience)).map_err(failed)?;
    let info = negotiate(&mut socket, &name.uri.export, true).map_err(failed)?;
    let socket = socket.into_fd().map_err(failed)?;
    watch(&socket).map_err(|source| NbdError::System { export: export(), source })?;
    let (size, minimum) = (info.size_bytes, info.minimum_block_bytes);
    if info.read_only() && !read_only {
        return Err(NbdError::ReadOnly { export: export() });
    }
    if size == 0 || !size.is_multiple_of(512) {
        return Err(NbdError::OddSize { export: export(), size });
    }
    if !SECTOR_BYTES.is_multiple_of(minimum.into()) || !size.is_multiple_of(minimum.into()) {
        return Err(NbdError::LargeBlocks { export: export(), minimum });
    }
    if u64::from(info.maximum_block_bytes) < SECTOR_BYTES {
        let maximum = info.maximum_block_bytes;
        return Err(NbdError::SmallRequests { export: export(), maximum });
    }
    Ok(Connected { socket, info })
}

/// Has the kernel notice a server that is gone without a word.
fn watch(socket: &OwnedFd) -> io::Result<()> {
    if sockopt::socket_domain(socket)? == rustix::net::AddressFamily::UNIX {
        return Ok(());
    }
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, SILENCE / 3)?;
    sockopt::set_tcp_keepintvl(socket, SILENCE / 3)?;
    sockopt::set_tcp_keepcnt(socket, 2)?;
    sockopt::set_tcp_user_timeout(socket, SILENCE.as_millis() as u32)?;
    Ok(())
}
