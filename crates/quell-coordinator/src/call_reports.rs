//! Call reports: what connected nodes say of their calls, added up: how long decisions take, whom the fleet refuses,
//! who is banned.
//!
//! Only what nodes say to this coordinator is known here, so the leader knows it and others do not. It is for
//! people: nothing is decided by it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use quell_core::key::KeyName;
use quell_fleet::call_report::{MAX_KEYS, bounded};
use quell_fleet::proto::{Bans, NodeSeen};
use quell_shares::plan::MemberId;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::member_reports::MemberReports;

/// A node that has said nothing for so long is left out. Nodes say it every 2 s.
const FRESH: Duration = Duration::from_secs(15);

/// The rule of limits that come with a call, as servers name it.
const AD_HOC_RULE: &str = "cl.throttle";

/// Recent decisions of a fleet's servers, and keys they refuse.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CallsStatus {
    /// Nodes that these numbers are of. Embedded nodes say nothing.
    pub nodes: usize,
    /// Decisions per second: calls that were allowed, and calls that were denied.
    pub decisions_per_s: f64,
    /// Calls that were allowed.
    pub allowed_per_s: f64,
    /// Calls that were denied.
    pub denied_per_s: f64,
    /// Calls that were allowed, and that a rule in shadow would have refused.
    pub would_refuse_per_s: f64,
    /// Calls that were answered degraded: without the store or the coordinator that their rule wants.
    pub degraded_per_s: f64,
    /// Half of the answers took at most so long, in nanoseconds, also those to peeks; null if there were none, or it
    /// is above all buckets.
    pub p50_ns: Option<u64>,
    /// The same of 99 of 100.
    pub p99_ns: Option<u64>,
    /// Window of counted decisions: a minute at most.
    pub window_ms: u64,
    /// The keys that were refused most often, at most 20.
    pub refused: Vec<RefusedKey>,
    /// Window of counted refusals.
    pub refused_window_ms: u64,
    /// Keys that are banned, at most 20, the longest first.
    pub bans: Vec<BannedKey>,
    /// At least so many keys are banned.
    pub bans_at_least: u64,
    /// At most so many are, as far as nodes know: servers list the first 20, and may have the same ones.
    pub bans_at_most: u64,
    /// Nodes that do not know who is banned, since their store does not answer.
    pub bans_unknown_nodes: usize,
}

/// The name of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct KeyStatus {
    /// Empty for `CL.THROTTLE`.
    pub domain: String,
    /// Its rule.
    pub rule: String,
    /// Null where the entry was missing.
    pub entries: BTreeMap<String, Option<String>>,
}

/// A key that was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RefusedKey {
    /// Its name.
    #[serde(flatten)]
    pub key: KeyStatus,
    /// At most so often.
    pub refusals: u64,
    /// At least so often.
    pub at_least: u64,
}

/// A key that is banned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BannedKey {
    /// Its name.
    #[serde(flatten)]
    pub key: KeyStatus,
    /// For how much longer.
    pub left_ms: u64,
    /// Null unless an operator banned it and said why.
    pub reason: Option<String>,
}

/// Connected nodes' last reports, and times.
#[derive(Debug, Default)]
pub(crate) struct CallReports(MemberReports<(Instant, Arc<NodeSeen>)>);

impl CallReports {
    /// Notes what a member says on a stream, within bounds.
    pub(crate) fn note(&self, member: MemberId, stream: u64, seen: NodeSeen) {
        let report = (Instant::now(), Arc::new(bounded(seen)));
        self.0.note(member, stream, report);
    }

    /// A stream has ended.
    pub(crate) fn forget(&self, member: MemberId, stream: u64) {
        self.0.forget(member, stream);
    }

    /// Sum of these nodes' reports; none if none of them says anything.
    pub(crate) fn calls(&self, of: impl Fn(MemberId) -> bool) -> Option<CallsStatus> {
        let said: Vec<Said> = {
            let all = self.0.all();
            let all = all.iter().filter(|(member, _)| of(**member));
            let said = all.map(|(_, (_, (at, seen)))| Said {
                age: at.elapsed(),
                seen: Arc::clone(seen),
            });
            said.filter(|said| said.age < FRESH).collect()
        };
        (!said.is_empty()).then(|| sum(&said))
    }
}

/// A node's report, and its age.
struct Said {
    age: Duration,
    seen: Arc<NodeSeen>,
}

fn sum(said: &[Said]) -> CallsStatus {
    let mut calls = CallsStatus {
        nodes: said.len(),
        ..CallsStatus::default()
    };
    add_latency(&mut calls, said);
    add_refused(&mut calls, said);
    add_bans(&mut calls, said);
    calls
}

/// Each bucket counts at its upper edge, so histograms with different edges can be added.
fn add_latency(calls: &mut CallsStatus, said: &[Said]) {
    let mut buckets = BTreeMap::<u64, u128>::new();
    for seen in said.iter().map(|said| &said.seen) {
        let Some(latency) = &seen.latency else {
            continue;
        };
        let edges = latency.edges_ns.iter().copied().chain([u64::MAX]);
        for (edge, count) in edges.zip(&latency.counts) {
            *buckets.entry(edge).or_default() += u128::from(*count);
        }
        let of = seen.outcomes.unwrap_or_default();
        for (per_s, count) in [
            (&mut calls.allowed_per_s, of.allowed),
            (&mut calls.denied_per_s, of.denied),
            (&mut calls.would_refuse_per_s, of.would_refuse),
            (&mut calls.degraded_per_s, of.degraded),
        ] {
            *per_s += per_second(count.into(), latency.window_ns);
        }
        calls.window_ms = calls.window_ms.max(millis(latency.window_ns));
    }
    calls.decisions_per_s = calls.allowed_per_s + calls.denied_per_s;
    let total: u128 = buckets.values().sum();
    let within = |percent: u128| {
        let (wanted, mut sum) = ((total * percent).div_ceil(100), 0);
        let mut buckets = buckets.iter();
        let bucket = buckets.find(|(_, count)| {
            sum += **count;
            sum >= wanted
        });
        let edge = bucket.map(|(edge, _)| *edge);
        edge.filter(|edge| total > 0 && *edge < u64::MAX)
    };
    (calls.p50_ns, calls.p99_ns) = (within(50), within(99));
}

/// A node that does not list a key may have refused it as often as any other that it does not list.
fn add_refused(calls: &mut CallsStatus, said: &[Said]) {
    let mut others = 0_u64;
    let mut keys = HashMap::<&[u8], (u64, u64)>::new();
    for Said { seen, .. } in said {
        others = others.saturating_add(seen.others_at_most);
        calls.refused_window_ms = calls.refused_window_ms.max(millis(seen.refused_ns));
        for key in &seen.refused {
            let (at_least, more) = keys.entry(&key.name).or_default();
            *at_least = at_least.saturating_add(key.at_least);
            *more = more.saturating_add(key.at_most.saturating_sub(seen.others_at_most));
        }
    }
    let mut keys: Vec<_> = keys.into_iter().collect();
    keys.sort_unstable_by(|(one, (_, one_more)), (other, (_, other_more))| {
        other_more.cmp(one_more).then_with(|| one.cmp(other))
    });
    let keys = keys.into_iter().filter_map(|(name, (at_least, more))| {
        let name = KeyName::parse(name)?;
        let key = KeyStatus {
            rule: match name.domain.is_empty() {
                true => AD_HOC_RULE.to_owned(),
                false => name.rule,
            },
            domain: name.domain,
            entries: name.values.into_iter().collect(),
        };
        Some(RefusedKey {
            key,
            refusals: others.saturating_add(more),
            at_least,
        })
    });
    calls.refused = keys.take(MAX_KEYS).collect();
}

/// On a shared store every node has the same bans.
fn add_bans(calls: &mut CallsStatus, said: &[Said]) {
    let mut bans = HashMap::new();
    let mut unlisted = 0_u64;
    for Said { age, seen } in said {
        let Some(Bans { bans: list, total }) = &seen.bans else {
            calls.bans_unknown_nodes += 1;
            continue;
        };
        let age = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        let lasting = list.iter().filter(|ban| ban.left_ns > age);
        let listed = u64::try_from(list.len()).unwrap_or(u64::MAX);
        let more = total.saturating_sub(listed);
        let all = lasting.clone().count();
        let all = more.saturating_add(u64::try_from(all).unwrap_or(u64::MAX));
        unlisted = unlisted.saturating_add(more);
        calls.bans_at_least = calls.bans_at_least.max(all);
        for ban in lasting {
            let entries = ban.entries.iter();
            let entries = entries.map(|entry| (&*entry.name, entry.value.as_deref()));
            let key = (&*ban.domain, &*ban.rule, entries.collect::<Vec<_>>());
            let found = bans.entry(key).or_insert((0, ""));
            *found = (*found).max((ban.left_ns - age, &*ban.reason));
        }
    }
    let distinct = u64::try_from(bans.len()).unwrap_or(u64::MAX);
    calls.bans_at_least = calls.bans_at_least.max(distinct);
    calls.bans_at_most = distinct.saturating_add(unlisted);
    let mut bans: Vec<_> = bans.into_iter().collect();
    bans.sort_unstable_by(|(one, (one_left, _)), (other, (other_left, _))| {
        other_left.cmp(one_left).then_with(|| one.cmp(other))
    });
    let bans = bans.into_iter().take(MAX_KEYS);
    let owned = |(name, value): (&str, Option<&str>)| (name.to_owned(), value.map(str::to_owned));
    let bans = bans.map(|((domain, rule, entries), (left_ns, reason))| BannedKey {
        key: KeyStatus {
            domain: domain.to_owned(),
            rule: rule.to_owned(),
            entries: entries.into_iter().map(owned).collect(),
        },
        left_ms: millis(left_ns),
        reason: Some(reason.to_owned()).filter(|reason| !reason.is_empty()),
    });
    calls.bans = bans.collect();
}

/// Rounded up.
const fn millis(nanos: u64) -> u64 {
    nanos.div_ceil(1_000_000)
}

#[expect(clippy::cast_precision_loss, reason = "it is only shown")]
fn per_second(count: u128, window_ns: u64) -> f64 {
    match window_ns {
        0 => 0.0,
        window => count as f64 * 1e9 / window as f64,
    }
}

#[cfg(test)]
mod tests {
    use quell_core::limit::Limit;
    use quell_core::rule::Rule;
    use quell_fleet::proto::{Ban, CandidateKey, KeyEntry, Latency, Outcomes};

    use super::*;

    fn calls(said: Vec<NodeSeen>) -> CallsStatus {
        let seen = CallReports::default();
        for (member, said) in (1..).zip(said) {
            seen.note(MemberId(member), 1, said);
        }
        seen.calls(|_| true).unwrap()
    }

    fn latency(edges: &[u64], counts: &[u64], window_s: u64) -> NodeSeen {
        NodeSeen {
            latency: Some(Latency {
                edges_ns: edges.to_vec(),
                counts: counts.to_vec(),
                window_ns: window_s * 1_000_000_000,
            }),
            ..NodeSeen::default()
        }
    }

    #[test]
    fn histograms_with_different_edges_are_added() {
        let sum = calls(vec![
            latency(&[250, 1_000], &[49, 0, 0], 60),
            latency(&[500], &[50, 0], 10),
            latency(&[], &[1], 60),
            NodeSeen::default(),
        ]);
        assert_eq!((sum.p50_ns, sum.p99_ns), (Some(500), Some(500)));
        assert_eq!((sum.nodes, sum.window_ms), (4, 60_000));
        // More than one of 100 is above all edges.
        let sum = calls(vec![latency(&[250], &[98, 2], 60)]);
        assert_eq!((sum.p50_ns, sum.p99_ns), (Some(250), None));
        let sum = calls(vec![latency(&[250], &[0, 0], 0)]);
        assert_eq!(sum.p50_ns, None);
        // A stranger's numbers stop nothing.
        let most = latency(&[u64::MAX], &[u64::MAX, u64::MAX], 1);
        let sum = calls(vec![most.clone(), most, latency(&[5, 3], &[1, 1, 1], 1)]);
        assert_eq!((sum.p50_ns, sum.nodes), (None, 3));
    }

    #[test]
    fn outcomes_are_added_each_by_its_own_window() {
        let of = |numbers: [u64; 4], window_s| {
            let [allowed, denied, would_refuse, degraded] = numbers;
            NodeSeen {
                outcomes: Some(Outcomes {
                    allowed,
                    denied,
                    would_refuse,
                    degraded,
                }),
                ..latency(&[], &[0], window_s)
            }
        };
        let without_window = NodeSeen {
            latency: None,
            ..of([9; 4], 1)
        };
        let said = vec![of([40, 8, 4, 2], 2), of([30, 3, 0, 0], 1), without_window];
        let sum = calls(said);
        assert_eq!(sum.decisions_per_s, 57.0);
        let per_s = [
            sum.allowed_per_s,
            sum.denied_per_s,
            sum.would_refuse_per_s,
            sum.degraded_per_s,
        ];
        assert_eq!(per_s, [50.0, 7.0, 2.0, 1.0]);
    }

    fn key(rule: &str, at_least: u64, at_most: u64) -> CandidateKey {
        let rule = Rule::new(rule, Limit::per_second(1)).unwrap();
        CandidateKey {
            name: rule.scope("shop").to_vec(),
            at_least,
            at_most,
        }
    }

    fn refused(keys: Vec<CandidateKey>, others_at_most: u64) -> NodeSeen {
        NodeSeen {
            refused: keys,
            others_at_most,
            refused_ns: 7_000_000,
            ..NodeSeen::default()
        }
    }

    #[test]
    fn a_key_was_refused_as_often_as_its_bounds_say_together() {
        let sum = calls(vec![
            refused(vec![key("api", 30, 32), key("login", 9, 10)], 4),
            refused(vec![key("login", 50, 50)], 3),
            refused(vec![key("login", 1, 1)], 0),
        ]);
        let shown = |key: &RefusedKey| (key.key.rule.clone(), key.at_least, key.refusals);
        let shown: Vec<_> = sum.refused.iter().map(shown).collect();
        // The second node may have refused 3 of `api`, too.
        let expected = [("login", 60, 61), ("api", 30, 35)];
        assert_eq!(
            shown,
            expected.map(|(rule, least, most)| (rule.to_owned(), least, most))
        );
        assert_eq!(sum.refused_window_ms, 7);
    }

    /// A stranger chooses the bytes.
    #[test]
    fn keys_that_are_none_or_too_many_are_not_shown() {
        let many = |node: usize| {
            let keys = (0..10_000).map(|at| key(&format!("r{node}-{at}"), 1, u64::MAX));
            refused(keys.collect(), u64::MAX)
        };
        let mut nodes: Vec<_> = (0..9).map(many).collect();
        let garbage = CandidateKey {
            name: b"garbage".to_vec(),
            at_least: u64::MAX,
            at_most: u64::MAX,
        };
        nodes.push(refused(vec![garbage], 0));
        let sum = calls(nodes);
        assert_eq!((sum.nodes, sum.refused.len()), (10, MAX_KEYS));
        assert!(sum.refused.iter().all(|key| key.refusals == u64::MAX));
    }

    fn ban(user: &str, left_s: u64, reason: &str) -> Ban {
        let entry = KeyEntry {
            name: "user".to_owned(),
            value: Some(user.to_owned()),
        };
        Ban {
            domain: "shop".to_owned(),
            rule: "login".to_owned(),
            entries: vec![entry],
            left_ns: left_s * 1_000_000_000,
            reason: reason.to_owned(),
        }
    }

    fn banned(bans: Vec<Ban>, total: u64) -> NodeSeen {
        NodeSeen {
            bans: Some(Bans { bans, total }),
            ..NodeSeen::default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_ban_that_several_nodes_know_is_one() {
        let seen = CallReports::default();
        let on_store = banned(vec![ban("ann", 60, "abuse"), ban("bob", 9, "")], 2);
        seen.note(MemberId(1), 1, on_store.clone());
        seen.note(MemberId(2), 1, on_store);
        seen.note(MemberId(3), 1, banned(vec![ban("cid", 90, "")], 31));
        seen.note(MemberId(4), 1, NodeSeen::default());
        let sum = || seen.calls(|_| true).unwrap();
        let shown = |sum: &CallsStatus| -> Vec<_> {
            let bans = sum.bans.iter();
            bans.map(|ban| {
                let user = ban.key.entries["user"].clone().unwrap();
                (user, ban.left_ms, ban.reason.clone())
            })
            .collect()
        };
        let of = |user: &str, left_ms, reason: Option<&str>| {
            (user.to_owned(), left_ms, reason.map(str::to_owned))
        };
        let abuse = Some("abuse");
        let expected = [
            of("cid", 90_000, None),
            of("ann", 60_000, abuse),
            of("bob", 9_000, None),
        ];
        let before = sum();
        assert_eq!(shown(&before), expected);
        assert_eq!((before.bans_at_least, before.bans_at_most), (31, 33));
        assert_eq!(before.bans_unknown_nodes, 1);
        tokio::time::advance(Duration::from_secs(9)).await;
        let after = sum();
        assert_eq!(
            shown(&after),
            [of("cid", 81_000, None), of("ann", 51_000, abuse)]
        );
        assert_eq!((after.bans_at_least, after.bans_at_most), (31, 32));
    }

    #[tokio::test(start_paused = true)]
    async fn nodes_that_are_gone_silent_or_without_a_seat_are_not_counted() {
        let seen = CallReports::default();
        assert_eq!(seen.calls(|_| true), None);
        for member in 1..=3 {
            seen.note(MemberId(member), 5, NodeSeen::default());
        }
        let count = || {
            let calls = seen.calls(|member| member != MemberId(3));
            calls.map_or(0, |calls| calls.nodes)
        };
        assert_eq!(count(), 2);
        seen.forget(MemberId(1), 4);
        assert_eq!(count(), 2, "an older stream");
        seen.forget(MemberId(1), 5);
        assert_eq!(count(), 1);
        tokio::time::advance(FRESH).await;
        assert_eq!(count(), 0);
    }
}
