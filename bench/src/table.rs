//! Table: figures for people, as Markdown that is also readable in a terminal.

use std::fmt::Write;

/// Rows under a heading; the first column is text, the others are figures.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new<S: Into<String>>(heading: impl IntoIterator<Item = S>) -> Self {
        let mut table = Self { rows: Vec::new() };
        table.row(heading);
        table
    }

    pub(crate) fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for (index, row) in self.rows.iter().enumerate() {
            let mut line = String::from("|");
            for (column, width) in widths.iter().enumerate() {
                let cell = row.get(column).map_or("", String::as_str);
                if column == 0 {
                    write!(line, " {cell:<width$} |")?;
                } else {
                    write!(line, " {cell:>width$} |")?;
                }
            }
            writeln!(f, "{line}")?;
            if index == 0 {
                let rule = |(column, width): (usize, &usize)| {
                    let dashes = "-".repeat(width + 1);
                    if column == 0 {
                        format!("{dashes}-|")
                    } else {
                        format!("{dashes}:|")
                    }
                };
                let rules: String = widths.iter().enumerate().map(rule).collect();
                writeln!(f, "|{rules}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(["case", "ns"]);
        table.row(["one hot key", "7"]);
        let text = table.to_string();
        assert_eq!(
            text,
            "| case        | ns |\n|-------------|---:|\n| one hot key |  7 |\n"
        );
    }
}
