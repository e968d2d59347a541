//! The order to end, which may come while a device is begun.

use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The descriptor that becomes readable when the server is to end.
#[derive(Debug)]
pub(crate) struct Ending(Rc<OwnedFd>);

impl Ending {
    pub(crate) fn new(signal: &Rc<OwnedFd>) -> Self {
        Self(Rc::clone(signal))
    }

    /// Waits that long, or until the server is to end, and returns whether it is.
    pub(crate) fn comes_within(&self, time: Duration) -> bool {
        let time = Timespec::try_from(time).expect("waits are short");
        let mut signal = [PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::IN)];
        // A wait that a signal has cut short is followed by another.
        poll(&mut signal, Some(&time)).is_ok_and(|ready| ready > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_order_is_seen_again_and_again_and_left_to_others() {
        let (mut order, signal) = UnixStream::pair().expect("a pair");
        let ending = Ending::new(&Rc::new(signal.into()));
        assert!(!ending.comes_within(Duration::from_millis(1)));
        order.write_all(&[0]).expect("room for a byte");
        assert!(ending.comes_within(Duration::from_secs(60)));
        assert!(ending.comes_within(Duration::ZERO));
    }
}
