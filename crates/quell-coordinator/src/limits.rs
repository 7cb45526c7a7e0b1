//! Limits: which rules of a file are limits of the fleet.
//!
//! A rule cannot say `rung: shares` yet. Until it can, every rule is a limit of the fleet that shares can
//! serve: a plain token bucket without `per`. This file is the only place that knows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quell_core::algorithm::Algorithm;
use quell_core::algorithm::token_bucket::TokenBucket;
use quell_core::on_failure::OnFailure;
use quell_core::policy::Rung;
use quell_core::rule::{DomainRules, Effect, Rule};
use quell_shares::plan::{Fallback, Limit, MICRO, Quota};

/// The limits of a fleet, and the rules that are none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetLimits {
    /// The limits, in the order of the rules.
    pub limits: Vec<Limit>,
    /// Rules that nodes decide by themselves.
    pub left_out: Vec<LeftOut>,
}

/// A rule that is no limit of the fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// The rule's name.
    pub rule: Arc<str>,
    /// Why.
    pub why: &'static str,
}

/// Two rules have one name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "two rules of the fleet are named `{rule}`, in the domains `{one}` and `{other}`: a limit of a fleet is \
     known by the name of its rule, so rename one"
)]
pub struct SameName {
    /// The name.
    pub rule: Arc<str>,
    /// The domain of the first.
    pub one: Arc<str>,
    /// The domain of the second.
    pub other: Arc<str>,
}

/// Finds the limits of a fleet among rules.
///
/// # Errors
/// [`SameName`].
pub fn fleet_limits(domains: &[DomainRules]) -> Result<FleetLimits, SameName> {
    let mut found = FleetLimits::default();
    let mut names: BTreeMap<Arc<str>, Arc<str>> = BTreeMap::new();
    for domain in domains {
        for rule in &domain.rules {
            let name = Arc::clone(&rule.name);
            match quota(rule) {
                Ok(quota) => {
                    let other = Arc::from(&*domain.domain);
                    if let Some(one) = names.insert(Arc::clone(&name), Arc::clone(&other)) {
                        let rule = name;
                        return Err(SameName { rule, one, other });
                    }
                    found.limits.push(Limit::new(name, quota));
                }
                Err(why) => found.left_out.push(LeftOut { rule: name, why }),
            }
        }
    }
    Ok(found)
}

/// The numbers of a rule that a fleet can share, or why it cannot.
fn quota(rule: &Rule) -> Result<Quota, &'static str> {
    if rule.policy.rung == Rung::Local {
        return Err("it says `rung: local`");
    }
    if rule.shadow {
        return Err("it is in shadow");
    }
    if !rule.per.is_empty() {
        return Err("it has `per`: use `leased`");
    }
    if !rule.overrides.is_empty() {
        return Err("it has overrides");
    }
    let Effect::Limit(limit) = &rule.effect else {
        return Err("it has no limit");
    };
    if limit.spec().ban.is_some() {
        return Err("it has a ban");
    }
    let Algorithm::TokenBucket(bucket) = &limit.spec().algorithm else {
        return Err("its algorithm is not token_bucket");
    };
    if bucket.in_batches || bucket.debt || bucket.warm_up.is_some() {
        return Err("it has refill, debt or warm_up");
    }
    let cost = rule.cost.map_or(1, |cost| cost.get());
    Ok(Quota {
        rate: per_second(bucket),
        burst: bucket.burst.unwrap_or(bucket.count).saturating_mul(MICRO),
        least_burst: cost.saturating_mul(MICRO),
        fallback: match rule.policy.on_failure {
            None | Some(OnFailure::Share { .. }) => Fallback::Share,
            Some(OnFailure::Deny) => Fallback::Deny,
            // Shares never let more pass than the limit says.
            Some(OnFailure::Allow) => Fallback::Floor,
        },
    })
}

/// Micro-units per second, rounded down.
fn per_second(bucket: &TokenBucket) -> u64 {
    let second = Duration::from_secs(1).as_nanos();
    let micro = u128::from(bucket.count) * u128::from(MICRO) * second;
    u64::try_from(micro / bucket.period.as_nanos().max(1)).unwrap_or(u64::MAX)
}
