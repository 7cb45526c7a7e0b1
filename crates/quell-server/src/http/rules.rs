//! `/v1/rules`: the rules in force.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Request, State};
use jiff::Timestamp;
use quell_core::on_failure::OnFailure;
use quell_core::policy::Rung;
use quell_core::refusal_page::{PageBody, RefusalPage};
use quell_core::rule::{ActiveRule, Effect, EmptyValue, Matcher, OnMissing, Per, Rule};
use quell_rules::{BanNumbers, LimitDescription, LimitNumbers, max_hold_ms};
use serde::Serialize;

use super::caller::caller;
use super::reply::{self, RouteResult};
use crate::access::Role;
use crate::shared::Shared;
use quell_host::stored_rules::StoredRules;

#[derive(Serialize)]
struct RulesBody<'a> {
    domains: Vec<DomainBody<'a>>,
    /// The versions in force of the stores that rules are read from.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stores: Vec<VersionBody>,
}

/// A version as somebody pushed it.
#[derive(Serialize)]
struct VersionBody {
    url: String,
    /// Null: nothing was pushed yet.
    version: Option<u64>,
    by: Option<String>,
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

#[derive(Serialize)]
struct DomainBody<'a> {
    domain: &'a str,
    rules: Vec<RuleBody<'a>>,
}

/// A rule as it is in force.
#[derive(Serialize)]
struct RuleBody<'a> {
    name: &'a str,
    #[serde(rename = "match")]
    matchers: Vec<MatcherBody<'a>>,
    per: Vec<&'a str>,
    /// Number of leading bits that count, for entries of `per` that are cut.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    prefixes: BTreeMap<&'a str, PrefixBody>,
    on_missing: &'static str,
    /// Treatment of an empty value.
    empty: &'static str,
    #[serde(flatten)]
    effect: EffectBody,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    overrides: Vec<OverrideBody<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<u64>,
    shadow: bool,
    /// Rung that decides.
    rung: &'static str,
    /// Answer while a shared store does not answer, if that is declared.
    #[serde(skip_serializing_if = "Option::is_none")]
    on_failure: Option<&'static str>,
    /// Number of nodes of a fleet that share the limit, or `auto`.
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster_size: Option<String>,
    /// The group of nodes that share it, unless all do.
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<&'a str>,
    /// Among how many servers the limit is divided then.
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<u32>,
    /// The status of its refusals by `/v1/authorize`, if the rule says one.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    /// The content type of their body, if the rule says one.
    #[serde(skip_serializing_if = "Option::is_none")]
    body_type: Option<&'a str>,
}

#[derive(Serialize)]
struct MatcherBody<'a> {
    entry: &'a str,
    patterns: Vec<String>,
}

#[derive(Default, Serialize)]
struct EffectBody {
    unlimited: bool,
    algorithm: Option<&'static str>,
    /// For people.
    limit: Option<String>,
    max: Option<u64>,
    /// For programs.
    numbers: Option<LimitNumbers>,
    ban: Option<BanNumbers>,
    /// The longest that something can be reserved, unless it hands out permits.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_hold_ms: Option<u64>,
    /// Reason why the store decides on each call, although the rule may exceed its limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    why_strict: Option<String>,
}

#[derive(Serialize)]
struct PrefixBody {
    v4: u8,
    v6: u8,
}

#[derive(Serialize)]
struct OverrideBody<'a> {
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
        overrides: rule
            .overrides
            .iter()
            .map(|entry| OverrideBody {
                when: matchers(&entry.when),
                effect: effect(rule, &entry.effect),
            })
            .collect(),
        cost: rule.cost.map(|cost| cost.get()),
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
    let overrides = rule.overrides.iter().map(|entry| &entry.effect);
    let mut effects = overrides.chain([&rule.effect]);
    let rung = rule.policy.rung;
    let is_leased = |effect: &Effect| matches!(effect, Effect::Limit(limit) if rung.bound(limit, rule.cost).is_some());
    match rung {
        Rung::Leased(_) | Rung::Synced(_) if !effects.any(is_leased) => Rung::Strict,
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
            unlimited: true,
            ..EffectBody::default()
        };
    };
    let described = LimitDescription::new(limit);
    EffectBody {
        unlimited: false,
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
