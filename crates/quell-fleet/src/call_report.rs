//! Call report: the bounds of what a server says of its calls, for those who send it and those who read it.

use crate::proto::{Ban, CandidateSeen, Latency, NodeSeen};

/// The most keys in a list.
pub const MAX_KEYS: usize = 20;

/// The longest key, in bytes: the name of one that was refused, or all texts of one that is banned.
pub const LONGEST_KEY: usize = 1_024;

/// The most edges of a histogram.
pub const MAX_EDGES: usize = 64;

/// The most rules of which a node says how calls were answered.
pub const MAX_ANSWERS: usize = 100;

/// The most characters of a node's reason for not using rules.
pub const LONGEST_WHY: usize = 1_000;

/// The most characters of a ban's reason.
const LONGEST_REASON: usize = 200;

/// Bytes that the entry of a banned key counts for, beside its texts.
const ENTRY: usize = 32;

/// The same within the bounds. Keys that are left out count among the others, and a histogram that is none
/// is left out.
#[must_use]
pub fn bounded(mut seen: NodeSeen) -> NodeSeen {
    for key in std::mem::take(&mut seen.refused) {
        match key.name.len() <= LONGEST_KEY && seen.refused.len() < MAX_KEYS {
            true => seen.refused.push(key),
            false => seen.others_at_most = seen.others_at_most.max(key.at_most),
        }
    }
    seen.latency = seen.latency.filter(is_histogram);
    if let Some(bans) = &mut seen.bans {
        let listed = u64::try_from(bans.bans.len()).unwrap_or(u64::MAX);
        bans.total = bans.total.max(listed);
        bans.bans.retain(|ban| length(ban) <= LONGEST_KEY);
        bans.bans.truncate(MAX_KEYS);
        // What was read stays, and a message of nothing takes a hundred times its bytes.
        bans.bans.shrink_to_fit();
        for ban in &mut bans.bans {
            ban.reason = ban.reason.chars().take(LONGEST_REASON).collect();
        }
    }
    seen
}

/// Report on a candidate, cut to the bounds.
#[must_use]
pub fn bounded_candidate(mut seen: CandidateSeen) -> CandidateSeen {
    seen.refused = seen.refused.chars().take(LONGEST_WHY).collect();
    seen.keys.retain(|key| key.name.len() <= LONGEST_KEY);
    seen.keys.truncate(MAX_KEYS);
    seen.keys.shrink_to_fit();
    seen
}

fn is_histogram(latency: &Latency) -> bool {
    latency.edges_ns.len() <= MAX_EDGES
        && latency.edges_ns.is_sorted_by(|one, next| one < next)
        && latency.counts.len() == latency.edges_ns.len() + 1
}

fn length(ban: &Ban) -> usize {
    let entries = ban.entries.iter();
    let entries = entries.map(|entry| {
        let value = entry.value.as_deref().unwrap_or_default();
        ENTRY + entry.name.len() + value.len()
    });
    ban.domain.len() + ban.rule.len() + entries.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{Bans, CandidateKey, KeyEntry};

    fn key(name: usize, at_most: u64) -> CandidateKey {
        CandidateKey {
            name: vec![b'x'; name],
            at_least: 1,
            at_most,
        }
    }

    /// A stranger chooses the bytes.
    #[test]
    fn lists_are_cut_and_what_is_left_out_counts_among_the_others() {
        let said = NodeSeen {
            refused: [key(LONGEST_KEY, 9), key(LONGEST_KEY + 1, 8)]
                .into_iter()
                .chain(vec![key(1, 3); 10_000])
                .collect(),
            others_at_most: 2,
            ..NodeSeen::default()
        };
        let seen = bounded(said.clone());
        assert_eq!((seen.refused.len(), seen.others_at_most), (MAX_KEYS, 8));
        assert_eq!(seen.refused[0], key(LONGEST_KEY, 9));
        assert_eq!(bounded(seen.clone()), seen);
        let few = NodeSeen {
            refused: vec![key(1, 3)],
            ..said
        };
        assert_eq!(bounded(few.clone()), few);
    }

    #[test]
    fn bans_are_cut_and_counted() {
        let ban = |entries: Vec<KeyEntry>, reason: &str| Ban {
            domain: "shop".to_owned(),
            entries,
            reason: reason.to_owned(),
            ..Ban::default()
        };
        let entry = |length| KeyEntry {
            name: "user".to_owned(),
            value: Some("v".repeat(length)),
        };
        let bans = [ban(vec![entry(LONGEST_KEY)], "")]
            .into_iter()
            .chain([ban(vec![KeyEntry::default(); 10_000], "")])
            .chain(vec![ban(vec![entry(900)], &"é".repeat(10_000)); 30])
            .chain(vec![Ban::default(); 10_000]);
        let said = NodeSeen {
            bans: Some(Bans {
                bans: bans.collect(),
                total: 7,
            }),
            ..NodeSeen::default()
        };
        let bans = bounded(said).bans.unwrap();
        assert_eq!((bans.bans.len(), bans.total), (MAX_KEYS, 10_032));
        assert!(bans.bans.capacity() < 2 * MAX_KEYS, "what was read stays");
        let shown = ban(vec![entry(900)], &"é".repeat(LONGEST_REASON));
        assert!(bans.bans.iter().all(|ban| *ban == shown));
    }

    #[test]
    fn a_histogram_has_ascending_edges_and_a_count_for_each_and_one_more() {
        let is_kept = |edges_ns: Vec<u64>, counts: usize| {
            let latency = Latency {
                edges_ns,
                counts: vec![1; counts],
                window_ns: 1,
            };
            let said = NodeSeen {
                latency: Some(latency),
                ..NodeSeen::default()
            };
            bounded(said).latency.is_some()
        };
        assert!(is_kept(vec![250, 500], 3) && is_kept(vec![], 1));
        assert!(!is_kept(vec![250, 500], 2) && !is_kept(vec![250], 10_000));
        assert!(!is_kept(vec![500, 250], 3) && !is_kept(vec![250, 250], 3));
        assert!(is_kept((1..=64).collect(), 65) && !is_kept((1..=65).collect(), 66));
    }
}
