//! An export of an NBD server as a device.
//!
//! All threads share one connection, which a thread of its own drives ([hub]): a flush covers only
//! writes that were answered on its connection, unless the server promises more, and many servers
//! take one client at a time. A thread's operations travel to the hub and their results back by
//! mailboxes; the data is lent, not copied.
//!
//! A connection that is lost is made again, and the requests without an answer are sent again. A
//! server that crashed may also have lost writes that it had answered and not flushed. So the hub
//! keeps a copy of those ([log]), and repeats them before anything else. It has the server flush
//! when the copies get many.

mod hub;
mod socket;
mod source;
mod work;

pub use hub::{NbdError, NbdName};
pub use socket::Socket as NbdSocket;
pub use source::{NbdDevice, NbdSource};
