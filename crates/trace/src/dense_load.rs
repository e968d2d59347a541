//! Reading a whole trace as dense keys, by the fastest way that its form has.

use crate::compact::CompactTrace;
use crate::dense::DenseKeys;
use crate::error::Error;
use crate::request::Kind;
use crate::trace::{OpenOptions, STANDARD_INPUT, Trace};

impl DenseKeys {
    /// Opens a file or generator and reads all of it, the compact form by its fast way.
    ///
    /// # Errors
    /// As [`Trace::open_source`] and [`DenseKeys::read`].
    pub fn load(text: &str, options: &OpenOptions) -> Result<Self, Error> {
        let mut trace = Trace::open_source(text, options)?;
        let whole = options.filter.is_none() && text != STANDARD_INPUT;
        if whole && trace.format().name() == "floe" && trace.kind() != Kind::Block {
            let compact = CompactTrace::open(text)?;
            if !compact.header().has_deletes() {
                return compact.into_dense();
            }
        }
        Self::read(&mut trace)
    }
}
