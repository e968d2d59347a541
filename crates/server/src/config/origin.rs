//! The place from which settings came, for errors that are found after they were read.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::place::Place;

/// The file that settings were read from; none for those of a command line.
#[derive(Debug, Clone, Default)]
pub struct Origin(Option<Arc<(PathBuf, String)>>);

impl Origin {
    pub(super) fn new(file: &Path, text: &str) -> Self {
        Self(Some(Arc::new((file.to_owned(), text.to_owned()))))
    }

    /// Names the file and the line of a place, as far as there are any, before a problem.
    pub(super) fn before(&self, place: &Place) -> String {
        let Some(origin) = &self.0 else { return String::new() };
        let (file, text) = (origin.0.display(), &origin.1);
        match place.line(text) {
            Some(line) => format!("{file}: line {line}: "),
            None => format!("{file}: "),
        }
    }
}
