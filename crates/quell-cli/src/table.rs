//! Table: columns for people, as wide as they need to be.

use quell_protocol::printable;

use crate::output::Paint;

/// Rows under headings; every row has as many cells as there are headings.
#[derive(Debug)]
pub(crate) struct TextTable<const N: usize> {
    headings: [&'static str; N],
    rows: Vec<[String; N]>,
}

impl<const N: usize> TextTable<N> {
    /// A table without rows.
    pub(crate) const fn new(headings: [&'static str; N]) -> Self {
        Self {
            headings,
            rows: Vec::new(),
        }
    }

    /// Adds a row. What strangers wrote into its cells begins no other row and clears no screen.
    pub(crate) fn push(&mut self, row: [String; N]) {
        self.rows
            .push(row.map(|cell| printable(&cell).into_owned()));
    }

    /// The lines of the table, headings first, two spaces between columns.
    pub(crate) fn lines(&self, paint: Paint) -> Vec<String> {
        let mut widths = self.headings.map(|heading| heading.chars().count());
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            let padded = cells
                .zip(widths)
                .map(|(cell, width)| format!("{cell:width$}"));
            let line = padded.collect::<Vec<String>>().join("  ");
            line.trim_end().to_owned()
        };
        let headings = line(&mut self.headings.iter().copied());
        let rows = self
            .rows
            .iter()
            .map(|row| line(&mut row.iter().map(String::as_str)));
        std::iter::once(paint.bold(&headings)).chain(rows).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_longest_cell() {
        let mut table = TextTable::new(["RULE", "LEFT"]);
        table.push(["login-per-ip".to_owned(), "3".to_owned()]);
        table.push(["ä".to_owned(), "100".to_owned()]);
        let lines = table.lines(Paint::stdout());
        assert_eq!(
            lines,
            ["RULE          LEFT", "login-per-ip  3", "ä             100"]
        );
    }
}
