//! Hint: guesses the intended word.

use quell_core::key::printable;

/// Our words, each with its synonyms in other programs.
const SYNONYMS: [(&str, &str); 35] = [
    ("after", "times"),
    ("algorithm", "kind strategy type"),
    ("allow", "accept allowed fail_open open"),
    ("at", "after delay instant offset sleep time wait"),
    ("ban", "block jail penalty"),
    ("burst", "burst_size capacity max_burst tolerance"),
    ("concurrency", "semaphore"),
    ("cost", "hits quantity"),
    ("deny", "closed denied fail_closed reject"),
    ("domain", "namespace"),
    ("entries", "descriptor"),
    ("every", "interval period"),
    ("fixed_window", "fixed"),
    ("for", "duration durations"),
    ("forgive", "reset"),
    ("leaky_bucket", "leaky"),
    ("lift", "unban"),
    ("limit", "at_most count max requests"),
    ("match", "conditions if when where"),
    ("name", "id"),
    ("op", "operation"),
    ("per", "by group_by key keys"),
    ("rate", "rps"),
    ("repeat", "times"),
    ("retry_after", "retry_after_ms"),
    ("rules", "limits policies"),
    ("shadow", "dry_run shadow_mode"),
    ("sliding_log", "log"),
    ("sliding_window", "sliding"),
    ("tests", "scenarios"),
    ("time_zone", "tz"),
    ("token_bucket", "token"),
    ("when", "if match"),
    ("window", "duration interval period unit"),
    ("within", "window"),
];

/// The candidate that `word` probably means: the same in another case, a synonym, or a similar
/// word.
#[must_use]
pub fn meant<'c>(word: &str, candidates: &[&'c str]) -> Option<&'c str> {
    let lower = word.to_ascii_lowercase().replace(['-', ' '], "_");
    let find = |word: &str| {
        candidates
            .iter()
            .copied()
            .find(|c| c.eq_ignore_ascii_case(word))
    };
    if let Some(same) = find(&lower) {
        return Some(same);
    }
    let mut synonyms = SYNONYMS.iter().filter(|(_, others)| is_in(others, &lower));
    if let Some(ours) = synonyms.find_map(|(ours, _)| find(ours)) {
        return Some(ours);
    }
    // Long words are not compared: the cost is the product of the lengths.
    if lower.len() > 64 {
        return None;
    }
    let distance = |to: &str| strsim::osa_distance(&lower, &to.to_ascii_lowercase());
    let near = candidates.iter().copied().map(|to| (distance(to), to));
    let (distance, nearest) = near.min_by_key(|(distance, _)| *distance)?;
    (distance <= nearest.len().div_ceil(4)).then_some(nearest)
}

/// Returns true if one of two names is probably the other with a slip of the pen: not if they are short, or
/// differ in a number.
pub(crate) fn is_misspelt(name: &str, other: &str) -> bool {
    let letters = |name: &str| name.replace(|c: char| c.is_ascii_digit(), "");
    let shorter = name.len().min(other.len());
    let allowed = match shorter {
        ..=4 => 0,
        5..=7 => 1,
        _ => 2,
    };
    name.len().abs_diff(other.len()) <= allowed
        && shorter <= 64
        && letters(name) != letters(other)
        && strsim::osa_distance(name, other) <= allowed
}

/// Returns true if `word` is one of `words`, which are separated by spaces.
pub(crate) fn is_in(words: &str, word: &str) -> bool {
    words.split(' ').any(|other| other == word)
}

/// The value of `word`, which names a `what`.
///
/// # Errors
/// A message with the intended word, or with all known words.
pub fn one_of<T: Copy>(what: &str, word: &str, words: &[(&str, T)]) -> Result<T, String> {
    let found = words.iter().find(|(known, _)| *known == word);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let known: Vec<&str> = words.iter().map(|(known, _)| *known).collect();
        no_such(what, word, &known)
    })
}

/// The message for an unknown `word`: the intended word, and all known ones.
pub(crate) fn no_such(what: &str, word: &str, candidates: &[&str]) -> String {
    let word = shorten(word);
    let list = candidates.join(", ");
    match meant(&word, candidates) {
        Some(meant) => {
            format!("unknown {what} `{word}`, did you mean `{meant}`? write one of {list}")
        }
        None => format!("unknown {what} `{word}`: write one of {list}"),
    }
}

/// The most characters of a file's text that a message repeats.
pub(crate) const LONGEST: usize = 60;

/// `text` for a message: one line, not too long.
pub(crate) fn shorten(text: &str) -> String {
    let short: String = text.chars().take(LONGEST).collect();
    let mut short = printable(&short).into_owned();
    if text.chars().nth(LONGEST).is_some() {
        short.push_str("...");
    }
    short
}
