//! On failure, resolved: what a rule answers while the store that servers share does not.

use quell_core::rule::{Effect, OnFailure, Override};

use crate::path::Spot;
use crate::problem::{Problem, Sink};
use crate::raw::{RawFailure, RawRule, Word};

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
        Word::Deny => return Some(OnFailure::Deny),
        Word::Allow => return Some(OnFailure::Allow),
        Word::Share => {}
    }
    let Some(nodes) = rule.failure.nodes.as_ref().or(defaults.nodes.as_ref()) else {
        let message = "a share of how many servers? write `nodes` beside it, such as `nodes: 2`";
        sink.problem(&word.spot, message);
        return None;
    };
    let nodes = nodes.value;
    Some(OnFailure::Share { nodes })
}

/// Tells of every limit of a rule that leaves each node nothing. The rule's own comes first.
pub(super) fn check_shares(
    declared: Option<OnFailure>,
    (effect, spot): (&Effect, &Spot),
    overrides: &[(Override, Spot)],
    sink: &mut Sink,
) {
    let Some(OnFailure::Share { nodes }) = declared else {
        return;
    };
    let others = overrides.iter().map(|(over, spot)| (&over.effect, spot));
    for (effect, spot) in [(effect, spot)].into_iter().chain(others) {
        if let Effect::Limit(limit) = effect
            && limit.share(nodes).is_none()
        {
            let message = format!(
                "{limit} on {nodes} nodes leaves each a share of 0: write a burst, limit or refill \
                 of at least {nodes}, fewer nodes, or `on_failure: deny` or `allow`"
            );
            sink.problem(spot, message);
        }
    }
}

/// What is wrong with a rule that declares nothing, where servers share a store.
pub(super) fn undeclared(rule: &RawRule, sink: &Sink) -> Problem {
    sink.at(&rule.spot, UNDECLARED.to_owned())
}
