//! Candidate: rules that the nodes of a fleet run in shadow, and what came of them at all nodes together.

use std::collections::HashMap;

use jiff::Timestamp;
use quell_fleet::proto::{self, CandidateSeen};
use quell_host::candidate::{About, CandidateStatus};
use quell_host::refused_key::refused_key;
use quell_protocol::http::{CandidateCounts, CandidateNodes, RefusedKeyBody};
use quell_shares::plan::MemberId;

use crate::leader::Service;

/// Keys that are shown.
const MAX_KEYS: usize = 50;

/// Nodes that are named because they do not run it.
const MAX_NAMED: usize = 10;

/// Gives nodes a candidate.
///
/// # Errors
/// If this coordinator does not lead, or no message can carry it.
pub(super) fn start(service: &Service, about: About) -> Result<(), String> {
    let status = service.status().borrow().clone();
    if status.epoch.is_none() {
        return Err(
            "this coordinator does not lead, so it gives nodes nothing: ask the leader, which \
                    `quell fleet status` names"
                .to_owned(),
        );
    }
    let candidate = proto::Candidate {
        id: u64::try_from(Timestamp::now().as_nanosecond()).unwrap_or(1),
        text: about.text,
        change: about.change,
        note: about.note,
        by: about.by,
        at: about.at,
        nodes: u32::try_from(status.members).unwrap_or(u32::MAX),
        from: about.from,
    };
    service.rule_distribution().run(candidate)
}

/// Ends the candidate of all nodes.
pub(super) fn stop(service: &Service) -> Option<About> {
    let about = running(service)?;
    service
        .rule_distribution()
        .run(proto::Candidate::default())
        .ok()?;
    Some(about)
}

fn running(service: &Service) -> Option<About> {
    let candidate = service.rule_distribution().candidate();
    (candidate.id != 0).then(|| About {
        from: candidate.from.clone(),
        text: candidate.text.clone(),
        change: candidate.change.clone(),
        note: candidate.note.clone(),
        by: candidate.by.clone(),
        at: candidate.at,
        ..About::default()
    })
}

/// Result of it at all nodes that are connected.
pub(super) fn status(service: &Service) -> Option<CandidateStatus> {
    let about = running(service)?;
    let seen = service.rule_distribution().candidate_seen();
    let of = service.status().borrow().members;
    Some(sum(about, &seen, of))
}

fn sum(about: About, seen: &[(MemberId, CandidateSeen)], of: usize) -> CandidateStatus {
    let mut counts = CandidateCounts::default();
    let mut keys: HashMap<&[u8], (u64, u64)> = HashMap::new();
    let mut nodes = CandidateNodes {
        of,
        ..CandidateNodes::default()
    };
    for (member, seen) in seen {
        if !seen.refused.is_empty() {
            if nodes.refused.len() < MAX_NAMED {
                let why = format!("node {}: {}", member.0, seen.refused);
                nodes.refused.push(why);
            }
            continue;
        }
        nodes.running += 1;
        let add = |sum: &mut u64, count: u64| *sum = sum.saturating_add(count);
        add(&mut counts.calls, seen.calls);
        add(&mut counts.would_refuse, seen.would_refuse);
        add(&mut counts.would_allow, seen.would_allow);
        add(&mut counts.unanswered, seen.unanswered);
        for key in &seen.keys {
            let (at_least, at_most) = keys.entry(&key.name).or_default();
            add(at_least, key.at_least);
            add(at_most, key.at_most);
        }
    }
    let mut keys: Vec<RefusedKeyBody> = { keys.into_iter() }
        .filter_map(|(name, (at_least, at_most))| refused_key(name, at_least, at_most))
        .collect();
    keys.sort_by(|one, other| {
        let by_count = other.refusals.cmp(&one.refusals);
        by_count.then_with(|| {
            (&one.domain, &one.rule, &one.entries).cmp(&(
                &other.domain,
                &other.rule,
                &other.entries,
            ))
        })
    });
    keys.truncate(MAX_KEYS);
    CandidateStatus {
        about,
        counts,
        keys,
        nodes: Some(nodes),
    }
}

#[cfg(test)]
mod tests {
    use quell_core::limit::Limit;
    use quell_core::rule::Rule;
    use quell_fleet::proto::CandidateKey;

    use super::*;

    #[test]
    fn what_nodes_say_is_added_up_by_key() {
        let name = |rule: &str| Rule::new(rule, Limit::per_second(1)).unwrap().scope("shop");
        let key = |rule: &str, count| CandidateKey {
            name: name(rule).to_vec(),
            at_least: count,
            at_most: count + 1,
        };
        let seen = |keys: Vec<CandidateKey>, refused: &str| CandidateSeen {
            id: 7,
            calls: 10,
            would_refuse: 4,
            keys,
            refused: refused.to_owned(),
            ..CandidateSeen::default()
        };
        let all = [
            (MemberId(1), seen(vec![key("api", 3), key("login", 1)], "")),
            (MemberId(2), seen(vec![key("login", 9)], "")),
            (MemberId(3), seen(vec![key("login", 90)], "no room")),
        ];
        let status = sum(About::default(), &all, 4);
        let shown: Vec<_> = { status.keys.iter() }
            .map(|key| (&*key.rule, key.at_least, key.refusals))
            .collect();
        assert_eq!(shown, [("login", 10, 12), ("api", 3, 4)]);
        assert_eq!((status.counts.calls, status.counts.would_refuse), (20, 8));
        let nodes = status.nodes.unwrap();
        assert_eq!((nodes.running, nodes.of), (2, 4));
        assert_eq!(nodes.refused, ["node 3: no room"]);
    }
}
