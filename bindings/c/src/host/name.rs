//! Keys: short ones need no memory of their own.

/// Keys up to this length need no memory of their own. RocksDB's have 16 bytes.
const SHORT_BYTES: usize = 23;

/// A key.
#[derive(Debug)]
pub(super) enum Name {
    Short(u8, [u8; SHORT_BYTES]),
    Long(Box<[u8]>),
}

impl Name {
    pub(super) fn new(bytes: &[u8]) -> Self {
        match u8::try_from(bytes.len()) {
            Ok(len) if bytes.len() <= SHORT_BYTES => {
                let mut short = [0; SHORT_BYTES];
                short[..bytes.len()].copy_from_slice(bytes);
                Self::Short(len, short)
            }
            _ => Self::Long(bytes.into()),
        }
    }

    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Short(len, bytes) => &bytes[..usize::from(*len)],
            Self::Long(bytes) => bytes,
        }
    }
}
