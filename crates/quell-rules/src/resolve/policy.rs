//! Policy, resolved: where a rule is decided, and its answer while the store does not answer.

use quell_core::on_failure::OnFailure;
use quell_core::policy::{Policy, Rung};
use quell_core::rule::{Effect, Override};

use crate::path::Span;
use crate::problem::{Problem, Sink};
use crate::raw::{RawPolicy, RawRule};

/// The message for a rule without an `on_failure`, if servers share a store.
const UNDECLARED: &str = "nothing says what to answer while the store does not, and there is no \
                          safe guess: write `on_failure: deny`, `allow` or, with `nodes`, `share` \
                          here, or for all rules `defaults: {on_failure: share, nodes: 2}`";

/// The message for a rule that declares an answer for outages, but is decided locally and cannot fail.
const NEVER_FAILS: &str = "this process decides on a rule that is `rung: local`, and that cannot fail: leave \
                           it out, or write `rung: strict`";

/// The policy of `rule`, or else of the document.
pub(super) fn policy(rule: &RawRule, defaults: &RawPolicy, sink: &mut Sink) -> Policy {
    let said = &rule.policy;
    let rung = said.rung.as_ref().or(defaults.rung.as_ref());
    let rung = rung.map(|rung| rung.value).unwrap_or_default();
    if rung == Rung::Local {
        let spans = [
            said.on_failure.as_ref().map(|word| &word.span),
            said.nodes.as_ref().map(|nodes| &nodes.span),
        ];
        for span in spans.into_iter().flatten() {
            sink.problem(span, NEVER_FAILS);
        }
    }
    Policy {
        rung,
        on_failure: match rung {
            Rung::Strict => on_failure(said, defaults, sink),
            Rung::Local => None,
        },
    }
}

fn on_failure(said: &RawPolicy, defaults: &RawPolicy, sink: &mut Sink) -> Option<OnFailure> {
    let word = said.on_failure.as_ref().or(defaults.on_failure.as_ref())?;
    match word.value {
        "deny" => return Some(OnFailure::Deny),
        "allow" => return Some(OnFailure::Allow),
        _ => {}
    }
    let Some(nodes) = said.nodes.as_ref().or(defaults.nodes.as_ref()) else {
        let message = "a share of how many servers? write `nodes` beside it, such as `nodes: 2`";
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

/// Whether no answer is declared for a store that does not answer.
pub(super) fn is_undeclared(policy: Policy) -> bool {
    policy == Policy::STRICT
}

/// The problem of a rule without a declared answer, if servers share a store.
pub(super) fn undeclared(rule: &RawRule, sink: &Sink) -> Problem {
    sink.at(&rule.span, UNDECLARED.to_owned())
}
