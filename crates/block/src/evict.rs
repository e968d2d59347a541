//! The eviction policy of a cache: any registered policy that needs no knowledge of future
//! requests.

use std::fmt;
use std::str::FromStr;

use floe_policy::registry::{Choice, ChoiceError, Entry};
use floe_policy::{AnyPolicy, Eviction, Lru, POLICIES, Policy};

/// The eviction policy; each shard has an order of its own. The default is LRU.
#[derive(Debug, Clone, PartialEq)]
pub struct Evict(Choice);

/// The reason for which a text is no policy for a block cache.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum EvictError {
    /// The text names no registered policy.
    #[error(transparent)]
    Choice(#[from] ChoiceError),
    /// The policy cannot be used while serving.
    #[error(
        "policy {name} has to know what is asked for next, and a cache does not; it can have {}",
        known().join(", ")
    )]
    Future {
        /// The policy's name.
        name: &'static str,
    },
}

/// Returns whether a policy needs no knowledge of future requests.
fn serves(entry: &&Entry) -> bool {
    !entry.info.next_uses
}

fn known() -> Vec<&'static str> {
    POLICIES.iter().filter(serves).map(|entry| entry.info.name).collect()
}

impl Evict {
    /// Returns every policy that a block cache can have, with its defaults.
    pub fn all() -> impl Iterator<Item = Self> {
        POLICIES.iter().filter(serves).map(|entry| Self(Choice::of(&entry.info)))
    }

    /// Returns the policy and its parameters.
    pub fn choice(&self) -> &Choice {
        &self.0
    }

    /// Returns the length, in smallest blocks, from which a stream's continuation is fetched ahead;
    /// `None` for most policies.
    pub fn fetches_ahead(&self) -> Option<u64> {
        AnyPolicy::new(&self.0).fetches_ahead()
    }

    /// Returns whether the policy is LRU.
    pub fn is_lru(&self) -> bool {
        self.0.name() == Lru::INFO.name
    }
}

impl Default for Evict {
    fn default() -> Self {
        Self(Choice::of(&Lru::INFO))
    }
}

impl fmt::Display for Evict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Evict {
    type Err = EvictError;

    /// Reads a [`Choice`], such as `s3-fifo:small=0.2`.
    fn from_str(text: &str) -> Result<Self, EvictError> {
        let choice: Choice = text.parse()?;
        let entry = POLICIES.iter().find(|entry| entry.info.name == choice.name());
        match entry.filter(serves) {
            Some(_) => Ok(Self(choice)),
            None => Err(EvictError::Future { name: choice.name() }),
        }
    }
}
