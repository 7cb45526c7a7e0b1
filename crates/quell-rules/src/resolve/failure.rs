//! On failure, resolved: what a rule answers while the store that servers share does not.

use quell_core::on_failure::OnFailure;
use quell_core::rule::{Effect, Override};

use crate::path::Span;
use crate::problem::{Problem, Sink};
use crate::raw::{FailureWord, RawFailure, RawRule};

/// What to tell of a rule that says nothing of it where servers share a store.
const UNDECLARED: &str = "nothing says what to answer while the store does not, and there is no \
                          safe guess: write `on_failure: deny`, `allow` or, with `nodes`, `share` \
                          here, or for all rules `defaults: {on_failure: share, nodes: 2}`";

/// What `rule` declares, or else the document.
pub(super) fn on_failure(
    rule: &RawRule,
    defaults: &RawFailure,
    sink: &mut Sink,
) -> Option<OnFailure> {
    let word = rule.failure.word.as_ref().or(defaults.word.as_ref())?;
    match word.value {
        FailureWord::Deny => return Some(OnFailure::Deny),
        FailureWord::Allow => return Some(OnFailure::Allow),
        FailureWord::Share => {}
    }
    let Some(nodes) = rule.failure.nodes.as_ref().or(defaults.nodes.as_ref()) else {
        let message = "a share of how many servers? write `nodes` beside it, such as `nodes: 2`";
        sink.problem(&word.span, message);
        return None;
    };
    let nodes = nodes.value;
    Some(OnFailure::Share { nodes })
}

/// Tells of every limit of a rule that leaves each node nothing. The rule's own comes first.
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

/// What is wrong with a rule that declares nothing, where servers share a store.
pub(super) fn undeclared(rule: &RawRule, sink: &Sink) -> Problem {
    sink.at(&rule.span, UNDECLARED.to_owned())
}
