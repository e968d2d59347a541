//! A blocking NBD client over TCP or a Unix socket: [`floe_nbd::client`] on a [`Socket`].

pub use floe_device::NbdSocket as Socket;
pub use floe_nbd::client::{ClientError, Cookie, Info, Options, Reply, RequestError};

/// A connection to one export over a socket.
pub type Client = floe_nbd::client::Client<Socket>;
