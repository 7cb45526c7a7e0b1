//! Limits: which rules of a file are limits of the fleet: those that say `rung: shares`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quell_core::algorithm::token_bucket::TokenBucket;
use quell_core::fleet_share::{CutOff, FleetSize, NotShared, shared_bucket};
use quell_core::policy::Rung;
use quell_core::rule::{DomainRules, Rule, SameName, SharedLimit, all_shared_limits};
use quell_shares::plan::{Fallback, Limit, MICRO, Name, Quota};

/// The limits of a fleet, and the rules that are none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetLimits {
    /// The limits, in the order of the rules.
    pub limits: Vec<Limit>,
    /// Size of each group that shares limits, as the rules say; `None` is the group of all nodes.
    /// Empty if no rule is shared.
    pub sizes: BTreeMap<Option<Name>, FleetSize>,
    /// Rules that nodes decide by themselves, or with another store.
    pub left_out: Vec<LeftOut>,
}

/// A rule that is no limit of the fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// The rule's name.
    pub rule: Arc<str>,
    /// Reason.
    pub why: &'static str,
}

/// Reason why rules make no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitsError {
    /// Two limits have one name.
    #[error(transparent)]
    SameName(#[from] SameName),
    /// Two rules name different sizes of the same nodes.
    #[error(
        "the rules `{one}` and `{other}` say `cluster_size: {one_size}` and `cluster_size: {other_size}`: the \
         same nodes share both, so write the same in every rule with `rung: shares` and the same `group`"
    )]
    Sizes {
        /// The first rule.
        one: Arc<str>,
        /// Its size.
        one_size: FleetSize,
        /// The second rule.
        other: Arc<str>,
        /// Its size.
        other_size: FleetSize,
    },
    /// A group is larger than the fleet.
    #[error(
        "the group `{group}` is `cluster_size: {size}`, and rules without `group` say that all nodes are \
         {all}: write at least {size} there, or less here"
    )]
    LargeGroup {
        /// The group.
        group: Name,
        /// Number of its nodes.
        size: FleetSize,
        /// Number of all nodes.
        all: FleetSize,
    },
    /// A fleet cannot share the limit of a rule.
    #[error("rule `{rule}`: a fleet cannot share its limit: {why}")]
    NotShared {
        /// The rule.
        rule: Arc<str>,
        /// Reason.
        why: NotShared,
    },
}

/// Finds the limits of a fleet among rules.
///
/// # Errors
/// [`LimitsError`].
pub fn fleet_limits(domains: &[DomainRules]) -> Result<FleetLimits, LimitsError> {
    let mut found = FleetLimits::default();
    let mut first: BTreeMap<Option<&Name>, (&Rule, FleetSize)> = BTreeMap::new();
    let rules = domains.iter().flat_map(|domain| &domain.rules);
    for rule in rules {
        let Rung::Shares(policy) = rule.policy.rung else {
            found.left_out.push(LeftOut {
                rule: Arc::clone(&rule.name),
                why: "it does not say `rung: shares`",
            });
            continue;
        };
        let group = rule.group.as_ref();
        let (one, one_size) = *first.entry(group).or_insert((rule, policy.size));
        if one_size != policy.size {
            return Err(LimitsError::Sizes {
                one: Arc::clone(&one.name),
                one_size,
                other: Arc::clone(&rule.name),
                other_size: policy.size,
            });
        }
    }
    let sizes = first.into_iter();
    found.sizes = sizes
        .map(|(group, (_, size))| (group.cloned(), size))
        .collect();
    check_groups(&found.sizes)?;
    for (rule, limit) in all_shared_limits(domains)? {
        let quota = quota(rule, &limit).map_err(|why| LimitsError::NotShared {
            rule: Arc::clone(&rule.name),
            why,
        })?;
        found.limits.push(Limit {
            group: rule.group.clone(),
            ..Limit::new(limit.name, quota)
        });
    }
    Ok(found)
}

fn check_groups(sizes: &BTreeMap<Option<Name>, FleetSize>) -> Result<(), LimitsError> {
    let Some(all @ FleetSize::Nodes(most)) = sizes.get(&None) else {
        return Ok(());
    };
    for (group, size) in sizes {
        if let (Some(group), FleetSize::Nodes(nodes)) = (group, size)
            && nodes > most
        {
            return Err(LimitsError::LargeGroup {
                group: Arc::clone(group),
                size: *size,
                all: *all,
            });
        }
    }
    Ok(())
}

fn quota(rule: &Rule, limit: &SharedLimit<'_>) -> Result<Quota, NotShared> {
    let bucket = shared_bucket(limit.limit)?;
    let cut_off = match rule.policy.rung {
        Rung::Shares(policy) => policy.cut_off,
        _ => CutOff::default(),
    };
    let cost = rule.cost.map_or(1, |cost| cost.get());
    Ok(Quota {
        rate: per_second(&bucket),
        burst: limit.limit.max().saturating_mul(MICRO),
        least_burst: cost.saturating_mul(MICRO),
        fallback: match cut_off {
            CutOff::Share => Fallback::Share,
            CutOff::Floor => Fallback::Floor,
            CutOff::Deny => Fallback::Deny,
        },
    })
}

/// Micro-units per second, rounded down.
fn per_second(bucket: &TokenBucket) -> u64 {
    let second = Duration::from_secs(1).as_nanos();
    let micro = u128::from(bucket.count) * u128::from(MICRO) * second;
    u64::try_from(micro / bucket.period.as_nanos().max(1)).unwrap_or(u64::MAX)
}
