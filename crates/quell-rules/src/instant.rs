//! Instants: counted in nanoseconds since 1970, which end in 2554.

use jiff::civil::Date;

/// Returns true if a text begins with a date whose year no instant has, such as the 9999 of a database.
#[must_use]
pub fn is_no_year_of_instants(text: &str) -> bool {
    let date = text.get(..10).and_then(|date| date.parse::<Date>().ok());
    date.is_some_and(|date| !(1970..=2554).contains(&date.year()))
}
