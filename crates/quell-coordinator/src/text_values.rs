//! Text values: percentages and whole seconds, as people write them on the command line and in the console.

use std::time::Duration;

use quell_rules::parse_duration;

/// Reads a percentage, with or without its sign.
///
/// # Errors
/// A text that says what to write instead.
pub fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim().trim_end_matches('%').trim_end();
    let percent = number.parse().ok();
    let percent = percent.filter(|percent| (0.0..=100.0).contains(percent));
    percent.ok_or_else(|| format!("`{text}` is not a percentage: write one such as 5% or 0.5%"))
}

/// Reads a duration as whole seconds, rounded up.
///
/// # Errors
/// A text that says what to write instead.
pub fn seconds(text: &str) -> Result<u64, String> {
    let duration = parse_duration(text)?;
    let whole = duration.as_secs();
    let is_whole = duration == Duration::from_secs(whole);
    Ok(whole + u64::from(!is_whole))
}
