//! The generation of a mirror, and the witness that knows the newest one.
//!
//! A generation is a number and the set of halves that were in sync from its beginning on. Two
//! generations with one number and different sets come from two servers, or from one that crashed
//! before the witness took the first. The witness takes only one of them.

use std::fmt;
use std::io;

/// A set of halves, by their numbers.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Halves(pub(crate) u8);

impl Halves {
    /// Halves that a mirror may have.
    pub const MAX: usize = 8;
    /// No half.
    pub const NONE: Halves = Halves(0);

    /// The first `count` halves.
    pub fn first(count: usize) -> Halves {
        Halves(((1u16 << count) - 1) as u8)
    }

    /// One half.
    pub fn one(half: usize) -> Halves {
        Halves(1 << half)
    }

    /// Returns whether a half is one of them.
    pub fn contains(self, half: usize) -> bool {
        self.0 >> half & 1 == 1
    }

    /// Returns whether all of them are in another set.
    pub fn are_in(self, other: Halves) -> bool {
        self.without(other).is_empty()
    }

    /// Returns the halves of both sets.
    pub fn with(self, other: Halves) -> Halves {
        Halves(self.0 | other.0)
    }

    /// Returns the halves that the other set does not have.
    pub fn without(self, other: Halves) -> Halves {
        Halves(self.0 & !other.0)
    }

    /// Returns the halves that are in both sets.
    pub fn and(self, other: Halves) -> Halves {
        Halves(self.0 & other.0)
    }

    /// Returns whether there is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns their number.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Returns their numbers.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..Halves::MAX).filter(move |half| self.contains(*half))
    }
}

impl fmt::Debug for Halves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// A generation of a mirror.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Generation {
    /// Its number; the first is 1.
    pub number: u64,
    /// The halves that are in sync.
    pub halves: Halves,
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:02x}", self.number, self.halves.0)
    }
}

impl Generation {
    /// Reads the text that displaying one prints.
    pub fn parse(text: &str) -> Option<Generation> {
        let (number, halves) = text.trim().split_once(':')?;
        let halves = Halves(u8::from_str_radix(halves, 16).ok()?);
        Some(Generation { number: number.parse().ok()?, halves })
    }
}

/// Why the witness did not take a generation.
#[derive(Debug, thiserror::Error)]
pub enum RaiseError {
    /// Another server has raised it.
    #[error("the witness is at generation {}, not at {}", known(*found), known(*expected))]
    Other {
        /// The generation it has.
        found: Option<Generation>,
        /// The one it should have had.
        expected: Option<Generation>,
    },
    /// The witness cannot be reached; it may or may not have taken the generation.
    #[error("the witness cannot be reached: {0}")]
    Unreachable(#[from] io::Error),
}

fn known(generation: Option<Generation>) -> u64 {
    generation.map_or(0, |generation| generation.number)
}

/// A place outside the halves that knows the newest generation of each mirror. Calls may block.
pub trait Witness: fmt::Debug + Send + Sync {
    /// Returns the newest generation of a mirror, `None` of one that it does not know.
    ///
    /// # Errors
    /// When the witness cannot be reached.
    fn read(&self, mirror: &[u8; 16]) -> io::Result<Option<Generation>>;

    /// Replaces the generation `from` by `to`, durably. Succeeds also where it is `to` already.
    ///
    /// # Errors
    /// When it is another one, or the witness cannot be reached.
    fn raise(
        &self,
        mirror: &[u8; 16],
        from: Option<Generation>,
        to: Generation,
    ) -> Result<(), RaiseError>;
}
