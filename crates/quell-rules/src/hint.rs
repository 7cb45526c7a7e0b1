//! Hint: which word was meant.

/// Other people's words, and ours.
const SYNONYMS: [(&str, &str); 34] = [
    ("at_most", "limit"),
    ("block", "ban"),
    ("by", "per"),
    ("capacity", "burst"),
    ("count", "limit"),
    ("day", "1d"),
    ("descriptor", "entries"),
    ("dry_run", "shadow"),
    ("duration", "window"),
    ("group_by", "per"),
    ("hits", "cost"),
    ("hour", "1h"),
    ("id", "name"),
    ("interval", "every"),
    ("jail", "ban"),
    ("key", "per"),
    ("keys", "per"),
    ("max", "limit"),
    ("max_burst", "burst"),
    ("namespace", "domain"),
    ("operation", "op"),
    ("penalty", "ban"),
    ("period", "window"),
    ("quantity", "cost"),
    ("requests", "limit"),
    ("retry_after_ms", "retry_after"),
    ("rps", "rate"),
    ("scenarios", "tests"),
    ("shadow_mode", "shadow"),
    ("strategy", "algorithm"),
    ("time", "at"),
    ("tz", "time_zone"),
    ("unit", "window"),
    ("where", "match"),
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
    let synonym = SYNONYMS.iter().find(|(other, _)| *other == lower);
    if let Some(ours) = synonym.and_then(|(_, ours)| find(ours)) {
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

/// `text` for a message: one line, not too long.
pub(crate) fn shorten(text: &str) -> String {
    const LONGEST: usize = 60;
    let mut short: String = text
        .chars()
        .take(LONGEST)
        .flat_map(|c| {
            if c.is_control() {
                c.escape_default().collect()
            } else {
                vec![c]
            }
        })
        .collect();
    if text.chars().nth(LONGEST).is_some() {
        short.push_str("...");
    }
    short
}
