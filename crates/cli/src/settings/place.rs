//! Where in a file a setting stands.

use toml::de::DeTable;

/// A setting of the whole run, or of one volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// Which `[[volume]]`, counted from 0.
    pub(super) volume: Option<usize>,
    pub(super) setting: &'static str,
}

impl Place {
    /// The line of the setting in a file that parses, from 1; that of its volume when the setting is not there.
    pub(super) fn line(&self, text: &str) -> Option<usize> {
        let file = DeTable::parse(text).ok()?;
        let key = |table: &DeTable<'_>| {
            let mut keys = table.keys().filter(|key| *key.get_ref() == self.setting);
            keys.next().map(|key| key.span().start)
        };
        let start = match self.volume {
            None => key(file.get_ref())?,
            Some(index) => {
                let volume = file.get_ref().get("volume")?.get_ref().get(index)?;
                volume.get_ref().as_table().and_then(key).unwrap_or(volume.span().start)
            }
        };
        Some(line_at(text, start))
    }
}

/// The line of a byte, from 1.
pub(super) fn line_at(text: &str, byte: usize) -> usize {
    1 + text[..byte].matches('\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_found_by_their_line() {
        let text = "cache = 'a'\n\n[[volume]]\nname = 'x'\n# one\n[[volume]]\n\nbacking = 'b'\n";
        let line = |volume, setting| Place { volume, setting }.line(text);
        assert_eq!(line(None, "cache"), Some(1));
        assert_eq!(line(Some(0), "name"), Some(4));
        assert_eq!(line(Some(1), "backing"), Some(8));
        assert_eq!(line(Some(1), "name"), Some(6), "the table it is missing from");
        assert_eq!(line(None, "write"), None);
    }
}
