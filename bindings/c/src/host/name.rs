//! Keys: short ones need no memory of their own.

use std::hash::{Hash, Hasher};

use floe_memory::Equivalent;

/// Keys up to this length need no memory of their own. RocksDB's have 16 bytes.
const SHORT_BYTES: usize = 23;

/// A key.
#[derive(Debug, Clone)]
pub(crate) enum Name {
    Short(u8, [u8; SHORT_BYTES]),
    Long(Box<[u8]>),
}

impl Name {
    pub(crate) fn new(bytes: &[u8]) -> Self {
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
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Short(len, bytes) => &bytes[..usize::from(*len)],
            Self::Long(bytes) => bytes,
        }
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for Name {}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(self.bytes());
    }
}

/// A key that is looked up.
pub(crate) struct Asked<'a>(pub(crate) &'a [u8]);

impl Hash for Asked<'_> {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(self.0);
    }
}

impl Equivalent<Name> for Asked<'_> {
    #[inline]
    fn equivalent(&self, key: &Name) -> bool {
        self.0 == key.bytes()
    }
}
