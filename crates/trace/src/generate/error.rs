//! Errors of generators given in words.

/// An error in the text of a generator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// No generator has this name.
    #[error("no generator is called {name:?}; there are {generators}")]
    UnknownGenerator {
        /// The name that was asked for.
        name: String,
        /// All generators, separated by commas.
        generators: String,
    },
    /// The generator has no such parameter.
    #[error("{generator} has no parameter {name:?}; it has {parameters}")]
    UnknownParameter {
        /// The generator.
        generator: &'static str,
        /// The parameter that was given.
        name: String,
        /// Its parameters, separated by commas.
        parameters: String,
    },
    /// A parameter is not what it should be.
    #[error("{parameter}: expected {expected}, found {found:?}")]
    Value {
        /// The parameter.
        parameter: &'static str,
        /// The expected value.
        expected: &'static str,
        /// The value that was found.
        found: String,
    },
    /// A parameter is there twice.
    #[error("{parameter} is given twice")]
    Twice {
        /// The parameter.
        parameter: &'static str,
    },
    /// Only a mix has parts.
    #[error("{generator} takes no parts; a mix does: mix:requests=9000+zipf:keys=100+loop:keys=50")]
    Parts {
        /// The generator.
        generator: &'static str,
    },
    /// A mix of nothing.
    #[error("mix needs parts, as in mix:requests=9000+zipf:keys=100+loop:keys=50")]
    NoParts,
    /// A mix in a mix.
    #[error("a mix cannot be part of a mix; give its parts")]
    Nested,
    /// The last block would lie behind the end of any disk.
    #[error("{keys} keys of this block size do not fit on a disk")]
    TooFar {
        /// The number of keys.
        keys: u64,
    },
}
