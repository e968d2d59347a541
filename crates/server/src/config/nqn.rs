//! Names of NVMe hosts and subsystems.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use floe_nvme::target::subsystem::{NqnError, check_nqn};

/// An NVMe qualified name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nqn(String);

impl Nqn {
    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Display for Nqn {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Nqn {
    type Err = NqnError;

    fn from_str(text: &str) -> Result<Self, NqnError> {
        check_nqn(text)?;
        Ok(Self(text.to_owned()))
    }
}
