//! Settings in a file such as floe.toml.

use std::path::Path;

use super::origin::Origin;
use super::place::{line_at, setting_at};
use super::tree::ServerConfig;

impl ServerConfig {
    /// Reads and validates the settings in a file.
    ///
    /// # Errors
    /// A line with the file, and with the line and the setting where there is one.
    pub fn from_file(file: &Path) -> Result<Self, String> {
        let refuse = |problem: String| format!("{}: {problem}", file.display());
        let bytes = std::fs::read(file).map_err(|error| refuse(error.to_string()))?;
        let text = String::from_utf8(bytes).map_err(|error| {
            let intact = &error.as_bytes()[..error.utf8_error().valid_up_to()];
            let line = 1 + intact.iter().filter(|byte| **byte == b'\n').count();
            refuse(format!("line {line}: this is not UTF-8, and no text with settings"))
        })?;
        let config = Self::from_text(&text).map_err(refuse)?;
        Ok(Self { origin: Origin::new(file, &text), ..config })
    }

    /// Reads and validates the text of a file.
    ///
    /// # Errors
    /// The problem, after its line and the setting.
    pub fn from_text(text: &str) -> Result<Self, String> {
        let at = |line: Option<usize>, problem: String| match line {
            Some(line) => format!("line {line}: {problem}"),
            None => problem,
        };
        let config: Self = toml::from_str(text).map_err(|error| {
            let start = error.span().map(|span| span.start);
            let setting = start.and_then(|start| setting_at(text, start));
            let setting = setting.map(|setting| format!("{setting}: ")).unwrap_or_default();
            let line = start.map(|start| line_at(text, start));
            at(line, format!("{setting}{}", error.message()))
        })?;
        config.validated().map_err(|wrong| at(wrong.place.line(text), wrong.to_string()))
    }

    /// Returns the settings as the text of a file.
    pub fn to_text(&self) -> String {
        toml::to_string(self).expect("settings are tables of texts, numbers and flags")
    }
}
