//! The requests of a device.

use crate::abi::{
    Descriptor, OP_DISCARD, OP_FLUSH, OP_NO_UNMAP, OP_READ, OP_WRITE, OP_WRITE_ZEROES,
};

/// A request of the kernel to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Its number among those of its queue that are under way.
    pub tag: u16,
    /// The action; `None` for one that this version does not know.
    pub action: Option<Action>,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u32,
}

/// The action of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Read.
    Read,
    /// Write. The kernel also says which are to survive a power cut before they are complete (force
    /// unit access); Floe takes all to be.
    Write,
    /// Make all completed writes survive a power cut.
    Flush,
    /// Forget the content.
    Discard,
    /// Make the range read as zeros.
    Zero {
        /// The space may be freed.
        may_unmap: bool,
    },
}

impl Request {
    pub(crate) fn of(tag: u16, descriptor: &Descriptor) -> Self {
        let flag = |flag: u32| descriptor.operation & flag != 0;
        let action = match descriptor.operation & 0xff {
            OP_READ => Some(Action::Read),
            OP_WRITE => Some(Action::Write),
            OP_FLUSH => Some(Action::Flush),
            OP_DISCARD => Some(Action::Discard),
            OP_WRITE_ZEROES => Some(Action::Zero { may_unmap: !flag(OP_NO_UNMAP) }),
            _ => None,
        };
        Self {
            tag,
            action,
            offset: descriptor.first_sector << 9,
            bytes: descriptor.sectors.saturating_mul(512),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_is_read_with_its_flags() {
        let read = |operation| {
            let descriptor = Descriptor { operation, sectors: 8, first_sector: 3, address: 0 };
            let request = Request::of(7, &descriptor);
            assert_eq!((request.tag, request.offset, request.bytes), (7, 1536, 4096));
            request.action
        };
        // The lowest byte is the operation; failfast (bit 8) and others do not matter.
        assert_eq!(read(0x100), Some(Action::Read));
        assert_eq!(read(1), Some(Action::Write));
        assert_eq!(read(1 | 1 << 13), Some(Action::Write));
        assert_eq!(read(2), Some(Action::Flush));
        assert_eq!(read(3), Some(Action::Discard));
        assert_eq!(read(5), Some(Action::Zero { may_unmap: true }));
        assert_eq!(read(5 | 1 << 15), Some(Action::Zero { may_unmap: false }));
        assert_eq!(read(15), None);
    }
}
