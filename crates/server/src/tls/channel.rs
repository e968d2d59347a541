//! TLS on one connection: converts between bytes of the socket and bytes of the protocol, in
//! memory.
//!
//! Bytes from the socket go into [`Channel::received`] and come out of [`Channel::read`]. Bytes to
//! send go into [`Channel::write`] and come out of [`Channel::take`]. rustls decrypts record by
//! record.
//!
//! Invariants: unread bytes are at most those of one receive, and the plaintext of one record or a
//! few more. Unsent bytes are those given to [`Channel::write`] since the last [`Channel::take`],
//! and handshake messages.

use std::io::{self, Read, Write};
use std::sync::Arc;

use rustls::server::{ServerConfig, ServerConnection};

/// Bytes given to rustls at once: it keeps at most 16 KiB of plaintext unread, and refuses more
/// bytes until that is read.
const FEED_BYTES: usize = 4 << 10;

/// The server's end of one encrypted connection.
pub(crate) struct Channel {
    tls: ServerConnection,
    /// Received and not yet given to rustls.
    encrypted: Vec<u8>,
    fed: usize,
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel")
            .field("waiting_bytes", &(self.encrypted.len() - self.fed))
            .finish_non_exhaustive()
    }
}

impl Channel {
    pub(super) fn new(config: Arc<ServerConfig>) -> Self {
        let mut tls = ServerConnection::new(config).expect("a server's configuration is complete");
        tls.set_buffer_limit(None); // the session writes a bounded piece at a time
        Self { tls, encrypted: Vec::new(), fed: 0 }
    }

    /// Takes in bytes of the socket, once [`Channel::read`] has returned all earlier ones.
    pub(crate) fn received(&mut self, bytes: usize, copy: impl FnOnce(&mut [u8])) {
        debug_assert_eq!(self.fed, self.encrypted.len(), "all that came before is read");
        self.fed = 0;
        self.encrypted.clear();
        self.encrypted.resize(bytes, 0);
        copy(&mut self.encrypted);
    }

    /// Appends decrypted bytes to `plain`, one record or a few more at once; nothing when more must
    /// be received.
    ///
    /// # Errors
    /// When the client broke TLS, or closed it: [`io::ErrorKind::UnexpectedEof`]. An alert may wait
    /// to be sent.
    pub(crate) fn read(&mut self, plain: &mut Vec<u8>) -> io::Result<()> {
        loop {
            let state = self.tls.process_new_packets().map_err(io::Error::other)?;
            let ready = state.plaintext_bytes_to_read();
            if ready > 0 {
                let begun = plain.len();
                plain.resize(begun + ready, 0);
                return self.tls.reader().read_exact(&mut plain[begun..]);
            }
            if state.peer_has_closed() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let end = self.encrypted.len().min(self.fed + FEED_BYTES);
            let mut more = &self.encrypted[self.fed..end];
            if more.is_empty() {
                self.encrypted.clear();
                self.encrypted.shrink_to(FEED_BYTES); // an idle client holds no more
                self.fed = 0;
                return Ok(());
            }
            self.fed += self.tls.read_tls(&mut more)?;
        }
    }

    /// Encrypts.
    pub(crate) fn write(&mut self, plain: &[u8]) {
        self.tls.writer().write_all(plain).expect("rustls has no limit set, and writes to memory");
    }

    /// Returns whether bytes wait to be sent.
    pub(crate) fn wants_send(&self) -> bool {
        self.tls.wants_write()
    }

    /// Appends all bytes that wait to be sent.
    pub(crate) fn take(&mut self, encrypted: &mut Vec<u8>) {
        while self.tls.wants_write() {
            self.tls.write_tls(encrypted).expect("memory takes all");
        }
    }

    /// Sends the close notification; nothing is written afterwards.
    pub(crate) fn close(&mut self) {
        self.tls.send_close_notify();
    }
}
