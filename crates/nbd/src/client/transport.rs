//! The bytes between a client and its server.

use std::time::Duration;

use super::ClientError;
use crate::uri::Uri;

/// Carries a client's bytes to its server and back.
///
/// Receiving blocks. Sending does not, so that a client with much in flight can receive while the
/// server takes nothing.
pub trait Transport: Sized {
    /// Connects to the server of a URI. With a `timeout`, connecting and each later wait in which
    /// nothing moves end after it.
    ///
    /// # Errors
    /// When the server cannot be reached.
    fn connect(uri: &Uri, timeout: Option<Duration>) -> Result<Self, ClientError>;

    /// Sends a part of `header` and `payload` in a row from byte `sent` on. Returns the bytes sent:
    /// 0 when none can be sent now.
    ///
    /// # Errors
    /// When the connection failed, as for every call.
    fn send_some(
        &mut self,
        header: &[u8],
        payload: &[u8],
        sent: usize,
    ) -> Result<usize, ClientError>;

    /// Sends all, waiting as needed. For when nothing is in flight that the server might be
    /// sending.
    ///
    /// # Errors
    /// See [`Transport::send_some`].
    fn send_all(&mut self, bytes: &[u8]) -> Result<(), ClientError>;

    /// Waits until more can be sent or something has arrived. Returns whether something has
    /// arrived.
    ///
    /// # Errors
    /// See [`Transport::send_some`].
    fn wait_to_send_or_receive(&mut self) -> Result<bool, ClientError>;

    /// Fills `data`, waiting as needed.
    ///
    /// # Errors
    /// See [`Transport::send_some`].
    fn receive_exact(&mut self, data: &mut [u8]) -> Result<(), ClientError>;

    /// Receives a field of fixed size.
    ///
    /// # Errors
    /// See [`Transport::send_some`].
    fn receive_array<const N: usize>(&mut self) -> Result<[u8; N], ClientError> {
        let mut array = [0; N];
        self.receive_exact(&mut array)?;
        Ok(array)
    }
}
