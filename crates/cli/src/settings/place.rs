//! Where in a file a setting stands.

use toml::de::DeTable;

/// A table that there may be several of, by its number from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Table {
    /// A `[[tier]]`.
    Tier(usize),
    /// A `[[volume]]`.
    Volume(usize),
}

/// A setting of the whole run, or of one table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) table: Option<Table>,
    pub(super) setting: &'static str,
}

impl Place {
    /// The line of the setting in a file that parses, from 1; that of its table when the setting is not there.
    pub(super) fn line(&self, text: &str) -> Option<usize> {
        let file = DeTable::parse(text).ok()?;
        let key = |table: &DeTable<'_>| {
            let mut keys = table.keys().filter(|key| *key.get_ref() == self.setting);
            keys.next().map(|key| key.span().start)
        };
        let (tables, index) = match self.table {
            None => return Some(line_at(text, key(file.get_ref())?)),
            Some(Table::Tier(index)) => ("tier", index),
            Some(Table::Volume(index)) => ("volume", index),
        };
        let table = file.get_ref().get(tables)?.get_ref().get(index)?;
        let start = table.get_ref().as_table().and_then(key).unwrap_or(table.span().start);
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
        let text = "cache = 'a'\n\n[[volume]]\nname = 'x'\n# one\n[[volume]]\n\nbacking = 'b'\n[[tier]]\nwrite = 'back'\n";
        let line = |table, setting| Place { table, setting }.line(text);
        assert_eq!(line(None, "cache"), Some(1));
        assert_eq!(line(Some(Table::Volume(0)), "name"), Some(4));
        assert_eq!(line(Some(Table::Volume(1)), "backing"), Some(8));
        assert_eq!(line(Some(Table::Volume(1)), "name"), Some(6), "the table it is missing from");
        assert_eq!(line(Some(Table::Tier(0)), "write"), Some(10));
        assert_eq!(line(None, "write"), None);
    }
}
