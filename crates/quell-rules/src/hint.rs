//! Hint: which word was meant.

use quell_core::key::printable;

/// Other people's words, and ours.
const SYNONYMS: [(&str, &str); 72] = [
    ("accept", "allow"),
    ("after", "at"),
    ("allowed", "allow"),
    ("at_most", "limit"),
    ("block", "ban"),
    ("burst_size", "burst"),
    ("by", "per"),
    ("capacity", "burst"),
    ("closed", "deny"),
    ("conditions", "match"),
    ("count", "limit"),
    ("delay", "at"),
    ("denied", "deny"),
    ("descriptor", "entries"),
    ("dry_run", "shadow"),
    ("duration", "window"),
    ("duration", "for"),
    ("durations", "for"),
    ("fail_closed", "deny"),
    ("fail_open", "allow"),
    ("fixed", "fixed_window"),
    ("group_by", "per"),
    ("hits", "cost"),
    ("id", "name"),
    ("if", "match"),
    ("if", "when"),
    ("instant", "at"),
    ("interval", "every"),
    ("interval", "window"),
    ("jail", "ban"),
    ("key", "per"),
    ("keys", "per"),
    ("kind", "algorithm"),
    ("leaky", "leaky_bucket"),
    ("limits", "rules"),
    ("log", "sliding_log"),
    ("match", "when"),
    ("max", "limit"),
    ("max_burst", "burst"),
    ("namespace", "domain"),
    ("offset", "at"),
    ("open", "allow"),
    ("operation", "op"),
    ("penalty", "ban"),
    ("period", "window"),
    ("period", "every"),
    ("policies", "rules"),
    ("quantity", "cost"),
    ("reject", "deny"),
    ("requests", "limit"),
    ("reset", "forgive"),
    ("retry_after_ms", "retry_after"),
    ("rps", "rate"),
    ("scenarios", "tests"),
    ("semaphore", "concurrency"),
    ("shadow_mode", "shadow"),
    ("sleep", "at"),
    ("sliding", "sliding_window"),
    ("strategy", "algorithm"),
    ("time", "at"),
    ("times", "repeat"),
    ("times", "after"),
    ("token", "token_bucket"),
    ("tolerance", "burst"),
    ("type", "algorithm"),
    ("tz", "time_zone"),
    ("unban", "lift"),
    ("unit", "window"),
    ("wait", "at"),
    ("when", "match"),
    ("where", "match"),
    ("window", "within"),
];

/// The candidate that `word` was meant to be.
pub(crate) fn meant<'c>(word: &str, candidates: &[&'c str]) -> Option<&'c str> {
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
    let mut synonyms = SYNONYMS.iter().filter(|(other, _)| *other == lower);
    if let Some(ours) = synonyms.find_map(|(_, ours)| find(ours)) {
        return Some(ours);
    }
    // Long words are not compared: the cost is the product of the lengths.
    if lower.len() > 64 {
        return None;
    }
    let near = candidates
        .iter()
        .map(|candidate| {
            (
                strsim::osa_distance(&lower, &candidate.to_ascii_lowercase()),
                *candidate,
            )
        })
        .min_by_key(|(distance, _)| *distance);
    near.filter(|(distance, candidate)| *distance <= candidate.len().div_ceil(4))
        .map(|(_, candidate)| candidate)
}

/// `word` names nothing: what was meant, and what there is.
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

/// The most characters of a file that a message repeats.
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
