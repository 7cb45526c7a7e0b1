//! Candidate of a fleet: coordinators distribute it, this node runs it and reports on it.
//!
//! A limit that the fleet shares is decided with a part of it: the part that the node has of the limit in force
//! when the candidate comes, and of a limit that is new an even one. So all nodes together decide with the whole
//! limit, and one whose demand grows meanwhile counts too many refusals.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use quell_core::algorithm::Algorithm;
use quell_core::limit::Limit;
use quell_core::policy::Rung;
use quell_core::rule::{DomainRules, Effect, Rule};
use quell_core::time::Monotonic;
use quell_fleet::agent::{FleetRules, FleetStatus};
use quell_fleet::proto::{self, CandidateKey, CandidateSeen};
use quell_host::task;
use tokio::time::{MissedTickBehavior, interval};

use super::{About, Candidate, Unchanged};
use crate::shared::Shared;

/// Interval at which coordinators are told.
const EVERY: Duration = Duration::from_secs(1);

/// Keys that they are told.
const MAX_TOLD: usize = 20;

/// Denominator of a part.
const WHOLE: u64 = 1_000;

/// Runs the candidate of the fleet, for ever.
pub(crate) async fn follow(shared: Arc<Shared>, rules: Arc<FleetRules>) {
    let mut given = rules.follow_candidate();
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut id, mut own) = (0, Err(String::new()));
    loop {
        tokio::select! {
            changed = given.changed() => {
                if changed.is_err() {
                    return;
                }
                let candidate = Arc::clone(&given.borrow_and_update());
                if let Ok(before) = &own
                    && shared.candidates.runs(before)
                {
                    shared.candidates.stop();
                }
                id = candidate.id;
                own = start(&shared, candidate).await;
            }
            _ = ticks.tick() => {}
        }
        rules.tell_candidate(seen(&shared, id, &own));
    }
}

/// Starts a candidate, on a thread that answers no calls.
async fn start(
    shared: &Arc<Shared>,
    given: Arc<proto::Candidate>,
) -> Result<Arc<Candidate>, String> {
    if given.id == 0 {
        return Err(String::new());
    }
    let shared = Arc::clone(shared);
    let work = task::run_blocking(move || -> Result<Arc<Candidate>, String> {
        let mut stores = shared.sources.stores();
        let place = stores.position(|stored| stored.url() == "fleet");
        let place = place.ok_or("this node has rules of its own")?;
        let mut domains = shared.sources.try_out(place, &given.text)?;
        // Before limits are cut to the parts of this node.
        let unchanged = Unchanged::between(&shared.limiter.rules(), &domains);
        if let Some(node) = &shared.node {
            let status = node.status();
            let now = shared.limiter.now().monotonic;
            take_parts(&mut domains, &status, given.nodes, now);
        }
        let about = About {
            place,
            text: given.text.clone(),
            change: given.change.clone(),
            note: given.note.clone(),
            by: format!("{}, for the fleet", given.by),
            at: given.at,
            ..About::default()
        };
        let candidate = shared.candidates.start(about, domains, unchanged)?;
        tracing::info!(
            by = given.by,
            change = given.change,
            "a candidate of the fleet runs in shadow"
        );
        Ok(candidate)
    });
    let interrupted = || Err("the start was interrupted".to_owned());
    work.await.unwrap_or_else(interrupted)
}

/// Report on the candidate for coordinators.
fn seen(shared: &Shared, id: u64, own: &Result<Arc<Candidate>, String>) -> CandidateSeen {
    let mut seen = CandidateSeen {
        id,
        ..CandidateSeen::default()
    };
    match own {
        Ok(own) if shared.candidates.runs(own) => {
            let counts = own.counts();
            (seen.calls, seen.unanswered) = (counts.calls, counts.unanswered);
            (seen.would_refuse, seen.would_allow) = (counts.would_refuse, counts.would_allow);
            let keys = own.keys().into_iter().take(MAX_TOLD);
            let keys = keys.map(|key| CandidateKey {
                name: key.name.to_vec(),
                at_least: key.at_least,
                at_most: key.at_most,
            });
            seen.keys = keys.collect();
        }
        Ok(_) => "the candidate was stopped at this server, or another one was started there"
            .clone_into(&mut seen.refused),
        Err(why) => seen.refused.clone_from(why),
    }
    seen
}

/// Cuts the limits that the fleet shares to the parts of this node.
fn take_parts(domains: &mut [DomainRules], status: &FleetStatus, nodes: u32, now: Monotonic) {
    for DomainRules { domain, rules, .. } in domains {
        for rule in rules {
            if !matches!(rule.policy.rung, Rung::Shares(_)) {
                continue;
            }
            let part = part(rule, domain, status, now);
            let part = part.unwrap_or_else(|| WHOLE / u64::from(nodes.max(1)));
            let part = NonZeroU64::new(part.min(WHOLE)).unwrap_or(NonZeroU64::MIN);
            let overrides = rule.overrides.iter_mut().map(|entry| &mut entry.effect);
            for effect in overrides.chain([&mut rule.effect]) {
                if let Effect::Limit(limit) = effect
                    && let Some(own) = cut(limit, part)
                {
                    *limit = own;
                }
            }
        }
    }
}

/// The part that the node has of the limits of a rule; none if the fleet has no such limit.
fn part(rule: &Rule, domain: &str, status: &FleetStatus, now: Monotonic) -> Option<u64> {
    let limits = rule.shared_limits(domain);
    let known = limits.iter().filter_map(|limit| status.limit(&limit.name));
    let (share, whole) = known.fold((0_u128, 0_u128), |(share, whole), limit| {
        let rate = |rate: u64| u128::from(rate);
        let now = limit.schedule.at(now).rate;
        (share + rate(now), whole + rate(limit.phase.whole.rate))
    });
    let part = (share * u128::from(WHOLE)).checked_div(whole)?;
    Some(u64::try_from(part).unwrap_or(WHOLE))
}

/// Limit cut to so many thousandths; none if no fleet shares the limit.
fn cut(limit: &Limit, part: NonZeroU64) -> Option<Limit> {
    let mut own = limit.spec();
    let Algorithm::TokenBucket(bucket) = &mut own.algorithm else {
        return None;
    };
    let part = part.get();
    bucket.count = bucket.count.checked_mul(part)?;
    bucket.period = bucket.period.checked_mul(u32::try_from(WHOLE).ok()?)?;
    let burst = u128::from(limit.max()) * u128::from(part) / u128::from(WHOLE);
    bucket.burst = Some(u64::try_from(burst).unwrap_or(u64::MAX).max(1));
    own.build().ok()
}

#[cfg(test)]
mod tests {
    use quell_rules::parse_str;

    use super::*;

    /// The nodes of a fleet have the whole of a limit together, and a limit of one node alone stays as it is.
    #[test]
    fn limits_that_the_fleet_shares_are_cut_to_a_part() {
        let text = "domain: shop\nrules:\n  - { name: api, rate: 30/s, burst: 40, rung: shares, cluster_size: 2 }\n  - { name: own, rate: 30/s, burst: 40 }";
        let mut domains = parse_str("candidate", text).unwrap().domains;
        take_parts(
            &mut domains,
            &FleetStatus::default(),
            4,
            Monotonic::from_nanos(1),
        );
        let limit = |at: usize| match &domains[0].rules[at].effect {
            Effect::Limit(limit) => limit.clone(),
            Effect::Unlimited | Effect::Refuse => unreachable!(),
        };
        let rate = |at| match limit(at).algorithm() {
            Algorithm::TokenBucket(bucket) => (bucket.count, bucket.period.as_secs()),
            _ => (0, 0),
        };
        assert_eq!((rate(0), rate(1)), ((7_500, 1_000), (30, 1)));
        assert_eq!((limit(0).max(), limit(1).max()), (10, 40));
    }
}
