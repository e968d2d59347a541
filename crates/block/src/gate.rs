//! Who comes into a cache: what is asked, and what it is told of the memory above.

use floe_policy::admission::{Admission, Admissions};

/// Who comes into a cache. The default is everything.
#[derive(Debug, Clone, Default)]
pub struct Gate {
    /// What is asked; each shard has one of its own.
    pub admission: Admissions,
    /// Bytes that the memory above the cache holds, which answers before the cache is asked; 0 where there is none.
    pub above_bytes: u64,
}

impl Gate {
    /// This admission, with no memory above.
    pub fn new(admission: Admissions) -> Self {
        Self { admission, above_bytes: 0 }
    }

    /// What one of so many shards is told.
    pub(crate) fn share(&self, shards: u64) -> Self {
        let mut admission = self.admission.clone();
        admission.split(shards as usize);
        Self { admission, above_bytes: self.above_bytes / shards }
    }
}
