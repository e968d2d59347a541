//! The powers of an authentication, which take milliseconds to compute: apart from the connection,
//! so that another thread can do it.

use std::sync::{Arc, OnceLock};

use crate::auth::Group;

/// A power to compute for a connection. Clones are the same one.
#[derive(Debug, Clone)]
pub struct Calculation(Arc<Power>);

#[derive(Debug)]
struct Power {
    group: Group,
    exponent: Vec<u8>,
    /// The host's public value; `None` for the generator of the group.
    public: Option<Vec<u8>>,
    /// The result; `None` in it where the public value is none of the group.
    result: OnceLock<Option<Vec<u8>>>,
}

impl Calculation {
    pub(super) fn new(group: Group, exponent: &[u8], public: Option<&[u8]>) -> Self {
        let (exponent, public) = (exponent.to_vec(), public.map(<[u8]>::to_vec));
        Self(Arc::new(Power { group, exponent, public, result: OnceLock::new() }))
    }

    /// Computes the power, on the calling thread. The connection takes the result when it is
    /// advanced next.
    pub fn run(&self) {
        let Power { group, exponent, public, result } = &*self.0;
        result.get_or_init(|| match public {
            None => Some(group.public_value(exponent)),
            Some(public) => group.shared_value(exponent, public),
        });
    }

    /// Returns a number that grows with the time it takes.
    pub fn cost(&self) -> usize {
        self.0.group.bytes()
    }

    /// Returns whether both are one calculation.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns whether it has been run.
    pub fn is_done(&self) -> bool {
        self.result().is_some()
    }

    pub(super) fn result(&self) -> Option<&Option<Vec<u8>>> {
        self.0.result.get()
    }
}
