//! Policy, resolved: where a rule is decided, and its answer while the store does not answer.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use quell_core::cost::Cost;
use quell_core::fleet_share::{CutOff, NotShared, SharesPolicy};
use quell_core::limit::Limit;
use quell_core::on_failure::OnFailure;
use quell_core::over_admission::LeasePolicy;
use quell_core::policy::{Policy, Rung};
use quell_core::rule::{Effect, Override, Rule};

use crate::path::Span;
use crate::problem::{Problem, Sink};
use crate::raw::{MAX_FLEET_NAME, RawPolicy, RawRule, RungName};

/// The message for a rule without an `on_failure`, if servers share a store.
const UNDECLARED: &str = "the answer while the store does not answer is not declared, and no default is \
    safe: write `on_failure: deny`, `allow` or, with `nodes`, `share` here, or for all rules `defaults: \
    {on_failure: share, nodes: 2}`";

/// The message for a rule that declares an answer for outages, but is decided locally and cannot fail.
const NEVER_FAILS: &str = "this process decides on a rule that is `rung: local`, and that cannot fail: leave \
                           it out, or write `rung: strict`";

/// The message for a rule that may exceed its limit, if it is decided where that does not happen.
const IS_EXACT: &str = "a rule that says `rung: strict`, `shares` or `local` never exceeds its limit: leave it \
                        out, or write `rung: leased` or `synced`";

/// The least time that a call waits for a store, about: a round trip in a good network. Below it a rule asks
/// that its calls do not wait.
const ROUND_TRIP: Duration = Duration::from_millis(1);

/// Advice if the calls of a strict rule must not wait.
const WRITE_BOUND: &str = "`max_over_admission: 1%` with `nodes`, and no `rung: strict`";

/// The message for a rule whose calls must not wait, and may not exceed its limit.
const WAITS: &str = "each call of a rule that is strict waits for the store, a round trip, which is 1ms or more: \
                     write `max_over_admission: 1%` with `nodes`, and no `rung: strict`, or a \
                     `latency_budget` of 1ms or more, or `rung: local`";

/// The message for a rule that is leased, and whose calls must not wait.
const WAITS_FOR_LEASES: &str = "a call waits for a lease when there is none, a round trip, which is 1ms or more: \
                                write `rung: synced`, or a `latency_budget` of 1ms or more";

/// The message for a rule on which a fleet may not agree, because its keys are not known in advance.
const NOT_LISTED: &str = "a fleet shares limits that it knows, not one for each value that comes: write `keys: \
                          [..]` with the values of the one entry of `per`, or `rung: leased`; overrides may \
                          depend on that entry alone, and `on_missing` stays `skip`";

/// The limits of a rule: its own, if it has no mistakes, and its overrides.
type RuleLimits<'a> = (Option<&'a Effect>, &'a [(Override, Span)]);

/// The rules of a document whose calls wait for the store, and that do not say themselves how long they may.
#[derive(Debug, Default)]
pub(super) struct Wishes {
    strict: Vec<Arc<str>>,
    leased: Vec<Arc<str>>,
}

impl Wishes {
    pub(super) fn note(&mut self, raw: &RawRule, rule: Option<&Rule>) {
        let silent = rule.filter(|_| raw.policy.latency.is_none());
        match silent.map(|rule| (rule.policy.rung, &rule.name)) {
            Some((Rung::Strict, name)) => self.strict.push(Arc::clone(name)),
            Some((Rung::Leased(_), name)) => self.leased.push(Arc::clone(name)),
            _ => {}
        }
    }

    /// Warns if `defaults` wish that calls do not wait.
    pub(super) fn check(&self, defaults: &RawPolicy, sink: &mut Sink) {
        let wish = defaults.latency.as_ref();
        let Some(budget) = wish.filter(|budget| budget.value < ROUND_TRIP) else {
            return;
        };
        let lists = [
            (&self.strict, "strict", WRITE_BOUND),
            (&self.leased, "leased", "`rung: synced`"),
        ];
        for (rules, rung, write) in lists {
            let are = match rules.as_slice() {
                [] => continue,
                [name] => format!("`{name}` is"),
                [name, more @ ..] => format!("`{name}` and {} more are", more.len()),
            };
            let message = format!(
                "calls wait for the store all the same, a round trip, which is 1ms or more, where {are} {rung}: write \
                 {write}, or, if they may wait, `latency_budget: 1ms` in the rule"
            );
            sink.warn(&budget.span, message);
        }
    }
}

/// The policy of `rule`, or else of the document. `resolved` is the rule without it.
pub(super) fn policy(
    rule: &RawRule,
    defaults: &RawPolicy,
    resolved: Option<&Rule>,
    limits: RuleLimits<'_>,
    sink: &mut Sink,
) -> Policy {
    let before = sink.count();
    let said = &rule.policy;
    let name = said.rung.as_ref().or(defaults.rung.as_ref());
    let name = name.map(|rung| rung.value);
    if name == Some(RungName::Local) {
        let spans = [
            said.on_failure.as_ref().map(|word| &word.span),
            said.nodes.as_ref().map(|nodes| &nodes.span),
        ];
        for span in spans.into_iter().flatten() {
            sink.problem(span, NEVER_FAILS);
        }
    }
    let is_exact = matches!(
        name,
        Some(RungName::Strict | RungName::Local | RungName::Shares)
    );
    if let (true, Some(over)) = (is_exact, &said.over)
        && !over.value.is_none()
    {
        sink.problem(&over.span, IS_EXACT);
    }
    let rung = match name {
        Some(RungName::Strict) => Rung::Strict,
        Some(RungName::Local) => Rung::Local,
        Some(RungName::Leased) => pinned(rule, defaults, limits, ("leased", Rung::Leased), sink),
        Some(RungName::Synced) => pinned(rule, defaults, limits, ("synced", Rung::Synced), sink),
        Some(RungName::Shares) => shares(rule, defaults, limits, sink),
        None => planned(rule, defaults, resolved, limits, sink),
    };
    // A rung with mistakes says nothing about waiting.
    if sink.count() == before {
        check_latency(rule, rung, limits, sink);
    }
    Policy {
        rung,
        on_failure: match rung {
            Rung::Local | Rung::Shares(_) => None,
            _ => on_failure(said, defaults, sink),
        },
    }
}

/// Reports a rule that says itself that its calls must not wait for the store, if they do.
fn check_latency(rule: &RawRule, rung: Rung, all: RuleLimits<'_>, sink: &mut Sink) {
    let Some(budget) = &rule.policy.latency else {
        return;
    };
    if budget.value >= ROUND_TRIP {
        return;
    }
    match rung {
        Rung::Local | Rung::Shares(_) => {}
        Rung::Strict => sink.problem(&budget.span, WAITS),
        Rung::Leased(_) => sink.problem(&budget.span, WAITS_FOR_LEASES),
        Rung::Synced(_) => {
            for (limit, span) in limits(rule, all) {
                if let Some(Err(why)) = rung.terms(limit, cost(rule)) {
                    let message = format!(
                        "`{limit}` cannot be synced: {why}: leave `latency_budget` out, or write 1ms or more"
                    );
                    sink.problem(span, message);
                }
            }
        }
    }
}

/// Terms on which `rule` may be leased; `None` if it does not say that it may.
fn lease_policy(rule: &RawRule, defaults: &RawPolicy, sink: &mut Sink) -> Option<LeasePolicy> {
    let over = rule.policy.over.as_ref().or(defaults.over.as_ref())?;
    if over.value.is_none() {
        return None;
    }
    let Some(nodes) = nodes(rule, defaults) else {
        let message = "the number of servers that exceed the limit together is missing: write `nodes` \
            beside it, such as `nodes: 2`: as many as run at a time, also in a rolling restart";
        sink.problem(&over.span, message);
        return None;
    };
    Some(LeasePolicy {
        over: over.value,
        nodes,
    })
}

/// The limits of a rule, its own first.
fn limits<'a>(
    rule: &'a RawRule,
    (effect, overrides): RuleLimits<'a>,
) -> impl Iterator<Item = (&'a Limit, &'a Span)> {
    let own = effect.map(|effect| (effect, &rule.span));
    let others = overrides.iter().map(|(over, span)| (&over.effect, span));
    own.into_iter()
        .chain(others)
        .filter_map(|(effect, span)| Some((effect.limit()?, span)))
}

/// The cost of each call of a rule; `None` if the calls say it.
fn cost(rule: &RawRule) -> Option<Cost> {
    rule.cost.as_ref().map(|cost| cost.value)
}

/// The rung of a rule that says `rung: leased` or `synced`: each of its limits has to be.
fn pinned(
    rule: &RawRule,
    defaults: &RawPolicy,
    all: RuleLimits<'_>,
    (name, rung): (&str, fn(LeasePolicy) -> Rung),
    sink: &mut Sink,
) -> Rung {
    let over = rule.policy.over.as_ref().or(defaults.over.as_ref());
    if over.is_none_or(|over| over.value.is_none()) {
        let message = format!(
            "the amount by which all servers together may exceed the limit is missing: write \
            `max_over_admission: 1%` beside `rung: {name}`, or `rung: strict`"
        );
        let rung = rule.policy.rung.as_ref().or(defaults.rung.as_ref());
        sink.problem(rung.map_or(&rule.span, |rung| &rung.span), message);
        return Rung::Strict;
    }
    let rung = lease_policy(rule, defaults, sink).map_or(Rung::Strict, rung);
    for (limit, span) in limits(rule, all) {
        if let Some(Err(why)) = rung.terms(limit, cost(rule)) {
            let message = format!("`{limit}` cannot be {name}: {why}: write `rung: strict`");
            sink.problem(span, message);
        }
    }
    rung
}

/// The rung of a rule that says `rung: shares`: the fleet must be able to share each of its limits. Small parts
/// are a warning.
fn shares(rule: &RawRule, defaults: &RawPolicy, all: RuleLimits<'_>, sink: &mut Sink) -> Rung {
    let said = &rule.policy;
    let Some(size) = said
        .cluster_size
        .as_ref()
        .or(defaults.cluster_size.as_ref())
    else {
        let message = "the number of nodes that share the limit is missing: write `cluster_size: 4` beside \
            it, or `cluster_size: auto`";
        let rung = said.rung.as_ref().or(defaults.rung.as_ref());
        sink.problem(rung.map_or(&rule.span, |rung| &rung.span), message);
        return Rung::Strict;
    };
    if let (Some(nodes), Some(_)) = (&said.nodes, &said.rung) {
        let message = "the nodes of a fleet are its `cluster_size`: leave `nodes` out";
        sink.problem(&nodes.span, message);
    }
    let cut_off = cut_off(rule, defaults);
    if cut_off.is_none() {
        let message = "a node of a fleet never exceeds its share, so it cannot allow everything: write \
                       `on_failure: share`, `floor` or `deny` in the rule";
        let word = said.on_failure.as_ref().or(defaults.on_failure.as_ref());
        sink.problem(word.map_or(&rule.span, |word| &word.span), message);
    }
    let policy = SharesPolicy {
        size: size.value,
        cut_off: cut_off.unwrap_or_default(),
    };
    for (limit, span) in limits(rule, all) {
        match policy.check(limit, cost(rule)) {
            Ok(()) => {}
            Err(why @ NotShared::Unable(_)) => {
                let message = format!(
                    "a fleet cannot share `{limit}`: {why}; or write `rung: leased`, or `rung: strict`"
                );
                sink.problem(span, message);
            }
            // A limit that is in force may have to be cut, and only the coordinators know which are.
            Err(why) => {
                let message = format!(
                    "a fleet takes `{limit}` only as a cut of a limit that it has: {why}; or write `rung: \
                     leased`, or `rung: strict`"
                );
                sink.warn(span, message);
            }
        }
    }
    Rung::Shares(policy)
}

/// Reports fields of fleets in a rule that a fleet does not share.
pub(super) fn check_fleet_fields(rule: &RawRule, policy: Policy, sink: &mut Sink) {
    if matches!(policy.rung, Rung::Shares(_)) || rule.broken {
        return;
    }
    let says_shares = rule.policy.rung.as_ref();
    if says_shares.is_some_and(|rung| rung.value == RungName::Shares) {
        return;
    }
    if let Some(keys) = &rule.keys {
        let message = "`keys` lists the limits of a fleet: write `rung: shares` beside it, or the values in \
                       `match`";
        sink.problem(keys, message);
    }
    if let Some(size) = &rule.policy.cluster_size {
        let message = "it is the size of a fleet: write `rung: shares` beside it, or leave it out";
        sink.problem(&size.span, message);
    }
    if let Some(group) = &rule.policy.group {
        let message =
            "it is a group of a fleet's nodes: write `rung: shares` beside it, or leave it out";
        sink.problem(&group.span, message);
    }
}

/// Number of servers that share the limits of `rule`.
pub(super) fn nodes(rule: &RawRule, defaults: &RawPolicy) -> Option<NonZeroU32> {
    let nodes = rule.policy.nodes.as_ref().or(defaults.nodes.as_ref())?;
    Some(nodes.value)
}

/// The group of nodes that share the limits of `rule`.
pub(super) fn group(rule: &RawRule, defaults: &RawPolicy, policy: Policy) -> Option<Arc<str>> {
    let group = rule.policy.group.as_ref().or(defaults.group.as_ref())?;
    matches!(policy.rung, Rung::Shares(_)).then(|| Arc::clone(&group.value))
}

/// Reports a rule for a fleet whose keys are not known in advance, or whose names are too long.
pub(super) fn check_listed(rule: &Rule, raw: &RawRule, sink: &mut Sink) {
    if !matches!(rule.policy.rung, Rung::Shares(_)) || raw.broken {
        return;
    }
    if !rule.has_listed_keys() {
        sink.problem(&raw.span, NOT_LISTED);
        return;
    }
    let limits = rule.shared_limits("");
    if let Some(long) = limits
        .iter()
        .find(|limit| limit.name.len() > MAX_FLEET_NAME)
    {
        let message = format!(
            "the fleet would know this limit by a name of {} bytes: write shorter names, {MAX_FLEET_NAME} at \
             most for rule and key together",
            long.name.len()
        );
        sink.problem(&raw.span, message);
    }
}

/// The rung of a rule that says none. What a fleet can share, it shares: that exceeds nothing and asks no
/// store. Small parts do not change that, so a limit that is cut stays where it is. What may exceed its limits
/// is leased, or synced if calls must not wait for a lease; limits that cannot be are strict all the same, with
/// a warning.
fn planned(
    rule: &RawRule,
    defaults: &RawPolicy,
    resolved: Option<&Rule>,
    all: RuleLimits<'_>,
    sink: &mut Sink,
) -> Rung {
    let is_said = rule.keys.is_some() || rule.policy.group.is_some();
    if rule.policy.cluster_size.is_some() || is_said && defaults.cluster_size.is_some() {
        return shares(rule, defaults, all, sink);
    }
    let fleet = defaults.cluster_size.as_ref().map(|size| SharesPolicy {
        size: size.value,
        cut_off: CutOff::default(),
    });
    let can_share = |fleet: &SharesPolicy| {
        let unable =
            |(limit, _)| matches!(fleet.check(limit, cost(rule)), Err(NotShared::Unable(_)));
        resolved.is_some_and(Rule::has_listed_keys)
            && cut_off(rule, defaults).is_some()
            && !limits(rule, all).any(unable)
    };
    if fleet.as_ref().is_some_and(can_share) {
        return shares(rule, defaults, all, sink);
    }
    let latency = rule.policy.latency.as_ref().or(defaults.latency.as_ref());
    let rung = match latency {
        Some(budget) if budget.value < ROUND_TRIP => Rung::Synced,
        _ => Rung::Leased,
    };
    let rung = lease_policy(rule, defaults, sink).map_or(Rung::Strict, rung);
    for (limit, span) in limits(rule, all) {
        if let Some(Err(why)) = rung.terms(limit, cost(rule)) {
            let message = format!(
                "`{limit}` is strict, although it may be exceeded: {why}; if that is meant, write \
                 `max_over_admission: 0`"
            );
            sink.warn(span, message);
        }
    }
    rung
}

/// Quota of a node of a fleet that is cut off; `None` if the rule says `allow`.
fn cut_off(rule: &RawRule, defaults: &RawPolicy) -> Option<CutOff> {
    let word = rule.policy.on_failure.as_ref();
    match word.or(defaults.on_failure.as_ref()).map(|word| word.value) {
        None | Some("share") => Some(CutOff::Share),
        Some("floor") => Some(CutOff::Floor),
        Some("deny") => Some(CutOff::Deny),
        Some(_) => None,
    }
}

fn on_failure(said: &RawPolicy, defaults: &RawPolicy, sink: &mut Sink) -> Option<OnFailure> {
    let word = said.on_failure.as_ref().or(defaults.on_failure.as_ref())?;
    match word.value {
        "deny" => return Some(OnFailure::Deny),
        "allow" => return Some(OnFailure::Allow),
        "floor" => {
            let message =
                "only nodes of a fleet (`rung: shares`) have a floor: write share, deny or allow";
            sink.problem(&word.span, message);
            return None;
        }
        _ => {}
    }
    let Some(nodes) = said.nodes.as_ref().or(defaults.nodes.as_ref()) else {
        let message = "the number of servers that share the limit is missing: write `nodes` beside it, such \
            as `nodes: 2`";
        sink.problem(&word.span, message);
        return None;
    };
    let nodes = nodes.value;
    Some(OnFailure::Share { nodes })
}

/// Reports every limit of a rule that leaves each node nothing. The rule's own comes first.
pub(super) fn check_shares(
    declared: Option<OnFailure>,
    (effect, span): (&Effect, &Span),
    overrides: &[(Override, Span)],
    sink: &mut Sink,
) {
    let Some(OnFailure::Share { nodes }) = declared else {
        return;
    };
    let others = overrides.iter().map(|(over, span)| (&over.effect, span));
    for (effect, span) in [(effect, span)].into_iter().chain(others) {
        if let Effect::Limit(limit) = effect
            && limit.share(nodes).is_none()
        {
            let message = format!(
                "`{limit}` on {nodes} nodes leaves each a share of 0: write a burst, limit or refill \
                 of at least {nodes}, fewer nodes, or `on_failure: deny` or `allow`"
            );
            sink.problem(span, message);
        }
    }
}

/// Returns true if no answer is declared for a store that does not answer.
pub(super) fn is_undeclared(policy: Policy) -> bool {
    let needs_store = !matches!(policy.rung, Rung::Local | Rung::Shares(_));
    needs_store && policy.on_failure.is_none()
}

/// The problem of a rule without a declared answer, if servers share a store.
pub(super) fn undeclared(rule: &RawRule, sink: &Sink) -> Problem {
    sink.at(&rule.span, UNDECLARED.to_owned())
}
