//! A table as data: rows in groups, the best of each group marked.

/// A table.
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// Its caption.
    pub caption: String,
    /// Headings.
    pub columns: Vec<String>,
    /// The number of columns at the left that hold text; the others hold numbers.
    pub text_columns: usize,
    /// The rows.
    pub groups: Vec<Group>,
}

/// Rows under a heading of their own.
#[derive(Debug, Clone, Default)]
pub struct Group {
    /// The heading; none when empty.
    pub heading: String,
    /// The rows, in order.
    pub rows: Vec<Row>,
}

/// A row.
#[derive(Debug, Clone, Default)]
pub struct Row {
    /// A text for each column.
    pub cells: Vec<String>,
    /// Its emphasis.
    pub rank: Rank,
}

/// The emphasis of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rank {
    /// Not at all.
    #[default]
    Usual,
    /// The best of its group.
    Best,
    /// A bound that nothing real reaches.
    Bound,
}

impl Table {
    /// Rows in all groups.
    pub(super) fn rows(&self) -> usize {
        self.groups.iter().map(|group| group.rows.len()).sum()
    }
}
