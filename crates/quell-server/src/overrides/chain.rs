//! Chain: all numbers that there are for a key of a rule, and which of them decide.

use quell::OverrideRank;
use quell::override_store::{OverrideId, StoredOverride};
use quell_core::rule::{
    ActiveRule, DescriptorReader, Effect, NamedPlan, Numbers, Rule, StoredEffect,
};
use quell_core::time::Wall;
use quell_protocol::http::{ChainLinkBody, ChainSource};
use quell_rules::LimitDescription;

use super::{descriptor, instant_text, is_now, spans_of};
use crate::shared::Shared;

/// The numbers of the rule `in_force` for a key, each before those above it; `records` are the stored overrides of the
/// key. What a call says beside the values of its key is not known here.
pub(crate) fn chain(
    shared: &Shared,
    in_force: &ActiveRule,
    (id, records): (&OverrideId, &[StoredOverride]),
    wall: Wall,
) -> Vec<ChainLinkBody> {
    let rule = in_force.rule();
    let mut links = of_rules(rule, id);
    let without_plan = { links.iter() }
        .filter(|link| link.source != ChainSource::Plan)
        .filter_map(|link| link.limit.clone())
        .next_back();
    let rank =
        |record: &StoredOverride| OverrideRank::new(record.id.has_end, record.id.rule.is_some());
    let mut records: Vec<&StoredOverride> = records.iter().collect();
    records.sort_by_key(|record| std::cmp::Reverse(rank(record)));
    for record in records {
        let spans = spans_of(record, &rule.name, &shared.limiter.rules());
        let mut now = spans.iter();
        let now = now.find(|span| is_now(span.from, span.until, wall));
        let effect = now
            .or(spans.last())
            .and_then(|span| shared.effect_of(&record.id.domain, &rule.name, &span.numbers));
        let limit = match &effect {
            Some(StoredEffect::Effect(effect)) => Some(words(effect)),
            Some(StoredEffect::Plan(plan)) => {
                let plans = rule.plans.as_ref();
                let effect = plans.and_then(|plans| plans.effects.get(plan));
                effect.map(words).or_else(|| without_plan.clone())
            }
            None => None,
        };
        links.push(ChainLinkBody {
            plan: record.numbers.plan().map(ToString::to_string),
            limit,
            from: record.from.map(instant_text),
            until: record.until.map(instant_text),
            revision: Some(record.revision),
            reason: record.reason.to_string(),
            by: record.by.to_string(),
            in_force: now.is_some() && shared.has_in_force(record, wall),
            ..link(ChainSource::Override)
        });
    }
    let decides = links
        .iter()
        .rposition(|link| link.in_force && link.limit.is_some());
    for (place, link) in links.iter_mut().enumerate() {
        link.in_force = Some(place) == decides;
    }
    links
}

/// The numbers that the rules have for a key. All are marked as in force.
fn of_rules(rule: &Rule, id: &OverrideId) -> Vec<ChainLinkBody> {
    let descriptor = descriptor(id);
    let reader = DescriptorReader::new(&descriptor);
    let mut links = vec![ChainLinkBody {
        limit: Some(words(&rule.effect)),
        ..link(ChainSource::Rule)
    }];
    let of_file = rule.override_for(&reader);
    if let Some(other) = of_file.and_then(|place| rule.overrides.get(place)) {
        let conditions = other.when.iter().map(|matcher| {
            let patterns: Vec<String> = matcher.patterns.iter().map(ToString::to_string).collect();
            format!("{}: {}", matcher.entry, patterns.join(" or "))
        });
        links.push(ChainLinkBody {
            when: Some(conditions.collect::<Vec<_>>().join(", ")),
            limit: Some(words(&other.effect)),
            ..link(ChainSource::OverrideOfFile)
        });
    }
    let plans = rule.plans.as_ref();
    let named = plans.map(|plans| (plans, plans.named(&reader, rule.empty)));
    if let Some((plans, NamedPlan::Plan(plan))) = named {
        links.push(ChainLinkBody {
            plan: Some(plan.to_string()),
            limit: plans.effects.get(plan).map(words),
            ..link(ChainSource::Plan)
        });
    }
    links
}

const fn link(source: ChainSource) -> ChainLinkBody {
    ChainLinkBody {
        source,
        plan: None,
        when: None,
        limit: None,
        from: None,
        until: None,
        revision: None,
        reason: String::new(),
        by: String::new(),
        in_force: true,
    }
}

/// Numbers of a rule in one line.
pub(crate) fn numbers_words(numbers: &Numbers) -> String {
    match numbers.active() {
        Some(active) => LimitDescription::new(&active.limit).limit,
        None if numbers.refuses() => "refused".to_owned(),
        None => "unlimited".to_owned(),
    }
}

fn words(effect: &Effect) -> String {
    match effect {
        Effect::Limit(limit) => LimitDescription::new(limit).limit,
        Effect::Unlimited => "unlimited".to_owned(),
        Effect::Refuse => "refused".to_owned(),
    }
}
