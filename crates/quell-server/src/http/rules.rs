//! `/v1/rules`: the rules in force.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use quell_core::limit::Limit;
use quell_core::rule::{Effect, InForce, Matcher, OnMissing};
use serde::Serialize;

use super::reply;
use crate::shared::Shared;

#[derive(Serialize)]
struct RulesBody<'a> {
    domains: Vec<DomainBody<'a>>,
}

#[derive(Serialize)]
struct DomainBody<'a> {
    domain: &'a str,
    rules: Vec<RuleBody<'a>>,
}

/// A rule as it is in force. Its limit is text for people: the rules file is where it is written.
#[derive(Serialize)]
struct RuleBody<'a> {
    name: &'a str,
    #[serde(rename = "match")]
    matchers: Vec<MatcherBody<'a>>,
    per: Vec<&'a str>,
    on_missing: &'static str,
    #[serde(flatten)]
    effect: EffectBody,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    overrides: Vec<OverrideBody<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<u64>,
    shadow: bool,
}

#[derive(Serialize)]
struct MatcherBody<'a> {
    entry: &'a str,
    patterns: Vec<String>,
}

#[derive(Serialize)]
struct EffectBody {
    unlimited: bool,
    algorithm: Option<&'static str>,
    limit: Option<String>,
    max: Option<u64>,
    ban: Option<BanBody>,
}

#[derive(Serialize)]
struct BanBody {
    after: u32,
    within_ms: u64,
    for_ms: Vec<u64>,
}

#[derive(Serialize)]
struct OverrideBody<'a> {
    when: Vec<MatcherBody<'a>>,
    #[serde(flatten)]
    effect: EffectBody,
}

pub(super) async fn rules(State(shared): State<Arc<Shared>>) -> Response {
    let rules = shared.limiter.rules();
    let domains = rules.domains().map(|domain| DomainBody {
        domain,
        rules: rules.domain(domain).iter().map(rule).collect(),
    });
    reply::json(&RulesBody {
        domains: domains.collect(),
    })
}

fn rule(in_force: &InForce) -> RuleBody<'_> {
    let rule = in_force.rule();
    RuleBody {
        name: &rule.name,
        matchers: matchers(&rule.matchers),
        per: rule.per.iter().map(|per| &*per.entry).collect(),
        on_missing: match rule.on_missing {
            OnMissing::Skip => "skip",
            OnMissing::SharedKey => "shared_key",
        },
        effect: effect(&rule.effect),
        overrides: rule
            .overrides
            .iter()
            .map(|entry| OverrideBody {
                when: matchers(&entry.when),
                effect: effect(&entry.effect),
            })
            .collect(),
        cost: rule.cost.map(|cost| cost.get()),
        shadow: rule.shadow,
    }
}

fn matchers(matchers: &[Matcher]) -> Vec<MatcherBody<'_>> {
    let body = |matcher: &'_ Matcher| -> Vec<String> {
        matcher.patterns.iter().map(ToString::to_string).collect()
    };
    let all = matchers.iter();
    all.map(|matcher| MatcherBody {
        entry: &matcher.entry,
        patterns: body(matcher),
    })
    .collect()
}

fn effect(effect: &Effect) -> EffectBody {
    let limit = match effect {
        Effect::Limit(limit) => Some(limit),
        Effect::Unlimited => None,
    };
    EffectBody {
        unlimited: limit.is_none(),
        algorithm: limit.map(|limit| limit.algorithm().name()),
        limit: limit.map(Limit::to_string),
        max: limit.map(Limit::max),
        ban: limit.and_then(Limit::ban).map(|ban| BanBody {
            after: ban.after(),
            within_ms: reply::milliseconds(ban.within()),
            for_ms: ban
                .durations()
                .iter()
                .copied()
                .map(reply::milliseconds)
                .collect(),
        }),
    }
}
