//! The way to attach a volume to this machine.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

/// The way by which a volume becomes a block device of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attach {
    /// The kernel's ublk driver.
    Ublk,
}

impl Display for Attach {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("ublk")
    }
}

impl FromStr for Attach {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "ublk" => Ok(Self::Ublk),
            _ => Err(format!("there is no way `{name}` to attach a volume; there is ublk")),
        }
    }
}
