//! The admission of a cache: the policy, and its knowledge of the memory above.

use floe_policy::admission::{Admission, Admissions};

/// The admission of a cache. By default everything is admitted.
#[derive(Debug, Clone, Default)]
pub struct Gate {
    /// The admission policy; each shard has one of its own.
    pub admission: Admissions,
    /// Bytes of the memory tier above the cache, which answers before the cache is asked; 0 without
    /// one.
    pub above_bytes: u64,
}

impl Gate {
    /// Returns this admission, without memory above.
    pub fn new(admission: Admissions) -> Self {
        Self { admission, above_bytes: 0 }
    }

    /// Returns the admission policy in the form that [`Admissions`] parses; `None` where everything
    /// is admitted.
    pub fn policy(&self) -> Option<String> {
        (!self.admission.is_always()).then(|| self.admission.to_string())
    }

    /// Returns the share of the shard with a number, of so many.
    pub(crate) fn share(&self, shard: u64, shards: u64) -> Self {
        let mut admission = self.admission.clone();
        admission.split(shard as usize, shards as usize);
        Self { admission, above_bytes: self.above_bytes / shards }
    }
}

#[cfg(test)]
mod tests {
    use floe_policy::Access;

    use super::*;

    #[test]
    fn two_shards_do_not_throw_the_same_coins() {
        let gate = Gate::new("probability:p=0.5".parse().unwrap());
        let thrown = |shard| {
            let mut admission = gate.share(shard, 4).admission;
            (0..64).map(|key| admission.admit(&Access::new(key), None).admits()).collect::<Vec<_>>()
        };
        assert_ne!(thrown(1), thrown(2));
    }
}
