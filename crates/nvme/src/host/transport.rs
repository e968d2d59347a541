//! The bytes between a host and its controller.

use std::time::Duration;

use super::error::HostError;

/// Carries a host's bytes to a controller and back.
///
/// Receiving blocks. Sending does not, so that a host with much in flight can receive while the
/// controller takes nothing.
pub trait Transport: Sized {
    /// Connects to an address of the form HOST:PORT. With a `timeout`, connecting and each later
    /// wait in which nothing moves end after it.
    ///
    /// # Errors
    /// When the controller cannot be reached.
    fn connect(address: &str, timeout: Option<Duration>) -> Result<Self, HostError>;

    /// Sends a part of `bytes`. Returns the bytes sent: 0 when none can be sent now.
    ///
    /// # Errors
    /// When the connection failed, as for every call.
    fn send_some(&mut self, bytes: &[u8]) -> Result<usize, HostError>;

    /// Receives at least one byte, waiting for it. Returns the bytes received.
    ///
    /// # Errors
    /// See [`Transport::send_some`].
    fn receive_some(&mut self, bytes: &mut [u8]) -> Result<usize, HostError>;

    /// Waits until more can be sent or something has arrived. Returns whether something has
    /// arrived.
    ///
    /// # Errors
    /// See [`Transport::send_some`].
    fn wait_to_send_or_receive(&mut self) -> Result<bool, HostError>;
}
