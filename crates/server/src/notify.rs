//! Reports the server's state to the service manager, by systemd's protocol: a datagram of
//! `NAME=value` lines to the socket that `NOTIFY_SOCKET` names. Without that variable nothing is
//! sent. Source: `sd_notify(3)`.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Reports that the server serves clients from now on.
pub fn ready() {
    tell("READY=1");
}

/// Reports that the shutdown begins, before dirty data is written to the backing devices.
pub fn stopping() {
    tell("STOPPING=1");
}

fn tell(state: &str) {
    if let Some(socket) = std::env::var_os("NOTIFY_SOCKET")
        && let Err(error) = send(&socket, state)
    {
        tracing::warn!(%error, state, "cannot notify the service manager");
    }
}

fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(socket),
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address?).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_arrives_at_a_file_and_at_an_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("notify");
        let name = format!("floe-{}", folder.path().display());
        for (socket, text) in [
            (UnixDatagram::bind(&file).unwrap(), file.into_os_string()),
            (
                UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap(),
                format!("@{name}").into(),
            ),
        ] {
            send(&text, "READY=1").unwrap();
            let mut received = [0; 16];
            let bytes = socket.recv(&mut received).unwrap();
            assert_eq!(&received[..bytes], b"READY=1");
        }
        assert!(send(OsStr::new("/no/such/socket"), "READY=1").is_err());
    }
}
