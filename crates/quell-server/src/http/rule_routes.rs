//! `/v1/rules`: the rules in force.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Request, State};
use jiff::Timestamp;
use quell_core::limit::Limit;
use quell_core::on_failure::OnFailure;
use quell_core::policy::Rung;
use quell_core::refusal_page::{PageBody, RefusalPage};
use quell_core::rule::{ActiveRule, Effect, EmptyValue, Matcher, OnMissing, Per, Rule};
use quell_rules::{BanNumbers, LimitDescription, LimitNumbers, ReserveDescription, max_hold_ms};
use serde::Serialize;

use super::caller::caller;
use super::reply::{self, RouteResult};
use crate::access::Role;
use crate::shared::Shared;
use quell_host::stored_rules::StoredRules;

/// The rules in force.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct RulesBody<'a> {
    /// All that the caller may read.
    domains: Vec<DomainBody<'a>>,
    /// The versions in force, of the stores that rules are read from; left out if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stores: Vec<VersionBody>,
}

/// A version as somebody pushed it.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct VersionBody {
    /// The store.
    url: String,
    /// Its number. Null: nothing was pushed yet.
    version: Option<u64>,
    /// Its author.
    by: Option<String>,
    /// Time of the push.
    #[cfg_attr(
        test,
        schemars(with = "Option<String>", extend("format" = "date-time"))
    )]
    at: Option<Timestamp>,
}

impl VersionBody {
    fn new(stored: &Arc<StoredRules>) -> Self {
        let standing = stored.status();
        let version = standing.version();
        let (by, at_ms) = standing
            .in_force
            .map(|entry| (entry.who, entry.at_ms))
            .unzip();
        let at_ms = at_ms.and_then(|millis| i64::try_from(millis).ok());
        Self {
            url: stored.url().to_owned(),
            version,
            by,
            at: at_ms.and_then(|millis| Timestamp::from_millisecond(millis).ok()),
        }
    }
}

/// A domain with its rules.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct DomainBody<'a> {
    /// Its name.
    domain: &'a str,
    /// In the order of its file.
    rules: Vec<RuleBody<'a>>,
}

/// A rule as it is in force.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct RuleBody<'a> {
    /// Its name.
    name: &'a str,
    /// Calls that it is for: those that match all of these.
    #[serde(rename = "match")]
    matchers: Vec<MatcherBody<'a>>,
    /// The entries whose values make a key.
    per: Vec<&'a str>,
    /// Of those entries of `per` that are addresses cut to a prefix, how many leading bits count; left out if there
    /// are none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    prefixes: BTreeMap<&'a str, PrefixBody>,
    /// Treatment of a call without an entry of `per`.
    #[cfg_attr(test, schemars(extend("enum" = ["skip", "shared_key"])))]
    on_missing: &'static str,
    /// Treatment of an entry with an empty value: missing, or a value like any other.
    #[cfg_attr(test, schemars(extend("enum" = ["missing", "keep"])))]
    empty: &'static str,
    #[serde(flatten)]
    effect: EffectBody,
    /// The entry of a call that names its plan; left out if none does.
    #[serde(skip_serializing_if = "Option::is_none")]
    plan_entry: Option<&'a str>,
    /// The numbers of plans, which take the place of the rule's limit; left out if there are none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    plans: BTreeMap<&'a str, EffectBody>,
    /// The first whose `when` matches takes the place of the rule's limit, unless a plan does; left out if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    overrides: Vec<OverrideBody<'a>>,
    /// Cost of every call here; left out if the descriptor says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(range(min = 1)))]
    cost: Option<u64>,
    /// How calls through Envoy reserve estimates; left out if they do not.
    #[serde(skip_serializing_if = "Option::is_none")]
    reserve: Option<ReserveDescription>,
    /// True if it refuses nobody.
    shadow: bool,
    /// Rung that decides: the store, for all servers together (`strict`); this server (`local`); this server, from
    /// units that it charges on the store in advance (`leased`) or afterwards (`synced`); or this server, from its part
    /// of a limit that a fleet shares (`shares`).
    #[cfg_attr(
        test,
        schemars(extend("enum" = ["strict", "local", "leased", "synced", "shares"]))
    )]
    rung: &'static str,
    /// Answer while the store that servers share does not answer, or what a node of a fleet may use that no
    /// coordinator answers; left out if nothing is declared.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        test,
        schemars(extend("enum" = ["share", "deny", "allow", "floor"]))
    )]
    on_failure: Option<&'static str>,
    /// With `shares`: how many nodes share the limit, or `auto`; left out otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster_size: Option<String>,
    /// With `shares`: the group of nodes that share the limit; left out if all nodes do.
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<&'a str>,
    /// Among how many servers the limit is divided then, with `share`; left out otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(range(min = 1)))]
    nodes: Option<u32>,
    /// The status of its refusals by `/v1/authorize`; left out if the rule says none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(range(min = 400, max = 599)))]
    status: Option<u16>,
    /// The content type of their body; left out if the rule says none.
    #[serde(skip_serializing_if = "Option::is_none")]
    body_type: Option<&'a str>,
}

/// A condition on an entry.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct MatcherBody<'a> {
    /// Its name.
    entry: &'a str,
    /// One of them matches.
    patterns: Vec<String>,
}

#[derive(Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct EffectBody {
    /// True if there is no limit.
    unlimited: bool,
    /// True if every call is refused; left out if not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[cfg_attr(test, schemars(default))]
    refuse: bool,
    /// Null if unlimited, or if every call is refused.
    #[cfg_attr(
        test,
        schemars(extend("enum" = [
            "token_bucket", "leaky_bucket", "fixed_window", "sliding_window", "sliding_log", "concurrency", null
        ]))
    )]
    algorithm: Option<&'static str>,
    /// The limit in one line, for people; programs read `numbers`.
    limit: Option<String>,
    /// The largest cost admitted from rest; where that is learned (`adaptive`), the most that can be.
    max: Option<u64>,
    /// The limit for programs.
    numbers: Option<LimitNumbers>,
    /// The ban on top.
    ban: Option<BanNumbers>,
    /// The longest that something can be reserved; left out for permits, whose lease is the rule's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(range(max = 86_400_000)))]
    max_hold_ms: Option<u64>,
    /// Reason why the store decides on each call although the rule may exceed its limit; left out otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    why_strict: Option<String>,
}

/// Leading bits of an address.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct PrefixBody {
    /// Of IPv4.
    #[cfg_attr(test, schemars(range(max = 32)))]
    v4: u8,
    /// Of IPv6.
    #[cfg_attr(test, schemars(range(max = 128)))]
    v6: u8,
}

/// A limit in place of the rule's.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct OverrideBody<'a> {
    /// Calls that it is for: those that match all of these.
    when: Vec<MatcherBody<'a>>,
    #[serde(flatten)]
    effect: EffectBody,
}

pub(super) async fn rules(State(shared): State<Arc<Shared>>, request: Request) -> RouteResult {
    let caller = caller(&request, Role::Read)?;
    let rules = shared.limiter.rules();
    let domains = rules.domains().filter(|domain| caller.reaches(domain));
    let domains = domains.map(|domain| DomainBody {
        domain,
        rules: rules.domain(domain).iter().map(rule).collect(),
    });
    let stores = shared.sources.stores().filter(|_| caller.is_whole());
    Ok(reply::json(&RulesBody {
        domains: domains.collect(),
        stores: stores.map(VersionBody::new).collect(),
    }))
}

fn rule(in_force: &ActiveRule) -> RuleBody<'_> {
    let rule = in_force.rule();
    let page = rule.refusal_page.as_deref();
    RuleBody {
        name: &rule.name,
        matchers: matchers(&rule.matchers),
        per: rule.per.iter().map(|per| &*per.entry).collect(),
        prefixes: prefixes(&rule.per),
        on_missing: match rule.on_missing {
            OnMissing::Skip => "skip",
            OnMissing::SharedKey => "shared_key",
        },
        empty: match rule.empty {
            EmptyValue::Missing => "missing",
            EmptyValue::Keep => "keep",
        },
        effect: effect(rule, &rule.effect),
        plan_entry: rule.plans.as_ref().and_then(|plans| plans.entry.as_deref()),
        plans: { rule.plans.iter() }
            .flat_map(|plans| &plans.effects)
            .map(|(plan, numbers)| (&**plan, effect(rule, numbers)))
            .collect(),
        overrides: rule
            .overrides
            .iter()
            .map(|entry| OverrideBody {
                when: matchers(&entry.when),
                effect: effect(rule, &entry.effect),
            })
            .collect(),
        cost: rule.cost.map(|cost| cost.get()),
        reserve: rule.reserve.as_deref().map(ReserveDescription::new),
        shadow: rule.shadow,
        rung: rung(rule).name(),
        on_failure: match rule.policy.rung {
            Rung::Shares(policy) => Some(policy.cut_off.name()),
            _ => rule.policy.on_failure.map(OnFailure::name),
        },
        cluster_size: match rule.policy.rung {
            Rung::Shares(policy) => Some(policy.size.to_string()),
            _ => None,
        },
        group: rule.group.as_deref(),
        nodes: rule.policy.on_failure.and_then(OnFailure::nodes),
        status: page.and_then(RefusalPage::status_code),
        body_type: page
            .and_then(RefusalPage::page_body)
            .map(PageBody::content_type),
    }
}

/// Rung of the rule: strict if none of its limits can be leased or synced.
fn rung(rule: &Rule) -> Rung {
    let rung = rule.policy.rung;
    let mut limits = rule.effects().filter_map(Effect::limit);
    let is_leased = |limit: &Limit| rung.bound(limit, rule.cost).is_some();
    match rung {
        Rung::Leased(_) | Rung::Synced(_) if !limits.any(is_leased) => Rung::Strict,
        _ => rung,
    }
}

fn prefixes(per: &[Per]) -> BTreeMap<&str, PrefixBody> {
    let cut = per.iter().filter_map(|per| {
        let prefix = per.prefix?;
        let (v4, v6) = (prefix.v4(), prefix.v6());
        Some((&*per.entry, PrefixBody { v4, v6 }))
    });
    cut.collect()
}

fn matchers(matchers: &[Matcher]) -> Vec<MatcherBody<'_>> {
    let patterns = |matcher: &Matcher| matcher.patterns.iter().map(ToString::to_string).collect();
    let all = matchers.iter();
    all.map(|matcher| MatcherBody {
        entry: &matcher.entry,
        patterns: patterns(matcher),
    })
    .collect()
}

fn effect(rule: &Rule, effect: &Effect) -> EffectBody {
    let Effect::Limit(limit) = effect else {
        return EffectBody {
            unlimited: *effect == Effect::Unlimited,
            refuse: *effect == Effect::Refuse,
            ..EffectBody::default()
        };
    };
    let described = LimitDescription::new(limit);
    EffectBody {
        unlimited: false,
        refuse: false,
        algorithm: Some(described.algorithm),
        limit: Some(described.limit),
        max: Some(described.max),
        numbers: Some(described.numbers),
        ban: described.ban,
        max_hold_ms: max_hold_ms(rule, limit),
        why_strict: rule
            .policy
            .rung
            .terms(limit, rule.cost)
            .and_then(Result::err)
            .map(|why| why.to_string()),
    }
}
