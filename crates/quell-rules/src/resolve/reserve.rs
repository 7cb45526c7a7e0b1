//! Reserve, resolved: a rule whose estimates can be settled, as all rules of its domain that reserve.

use std::collections::HashMap;
use std::sync::Arc;

use quell_core::algorithm::Algorithm;
use quell_core::policy::{Policy, Rung};
use quell_core::rule::{Effect, Override, Reserve};

use crate::hint;
use crate::path::Span;
use crate::problem::Sink;
use crate::raw::RawRule;

/// The message for a limit whose windows are not found by an instant.
const NO_WINDOW: &str = "a reservation belongs to the window in which it began, so it needs one: write `algorithm: \
                         fixed_window` in a rule with `reserve`";

/// The message for a rule that sets the cost.
const FIXED_COST: &str = "`cost` is what every call costs here, whatever its estimate is: leave it out in a rule with `reserve`";

/// The message for a rule that is not decided by the store: a server would settle what another one counts.
const NOT_STRICT: &str =
    "a settlement changes what the store counts: write `rung: strict` in a rule with `reserve`";

/// Reports what does not go with `reserve`.
pub(super) fn check(
    raw: &RawRule,
    policy: Policy,
    (effect, overrides): (Option<&Effect>, &[(Override, Span)]),
    sink: &mut Sink,
) {
    let Some(reserve) = &raw.reserve else {
        return;
    };
    let own = effect.map(|effect| (effect, &raw.span));
    let others = overrides.iter().map(|(over, span)| (&over.effect, span));
    for (effect, span) in own.into_iter().chain(others) {
        if let Effect::Limit(limit) = effect
            && !matches!(limit.algorithm(), Algorithm::FixedWindow(_))
        {
            sink.problem(span, NO_WINDOW);
        }
    }
    if let Some(cost) = &raw.cost {
        sink.problem(&cost.span, FIXED_COST);
    }
    if policy.rung != Rung::Strict {
        let rung = raw.policy.rung.as_ref();
        sink.problem(rung.map_or(&raw.span, |rung| &rung.span), NOT_STRICT);
    }
    let when = raw.overrides.iter().flat_map(|over| &over.when);
    let when = when.flat_map(|when| &when.value);
    let matchers = raw.matchers.iter().chain(when);
    let entries = matchers.map(|matcher| &matcher.entry);
    let mut entries = entries.chain(raw.per.iter().map(|per| &per.entry));
    let of_calls = [&reserve.value.phase, &reserve.value.id];
    if let Some(entry) = entries.find(|entry| of_calls.contains(entry)) {
        let message = format!(
            "`{}` differs between a reservation and its settlement, which have one key: leave it out of `match`, \
             `per` and `when`",
            hint::shorten(entry)
        );
        sink.problem(&raw.span, message);
    }
}

/// The `reserve` of each domain, with the place of its first rule.
#[derive(Debug, Default)]
pub(super) struct Reserves(HashMap<Arc<str>, (Reserve, String)>);

impl Reserves {
    /// Reports a rule that reserves in another way than the first of its domain.
    pub(super) fn agree(&mut self, domain: &Arc<str>, raw: &RawRule, sink: &mut Sink) {
        let Some(reserve) = &raw.reserve else {
            return;
        };
        let place = sink.place(&reserve.span);
        let first = self.0.entry(Arc::clone(domain));
        let (first, place) = first.or_insert_with(|| (reserve.value.clone(), place));
        if *first != reserve.value {
            let message = format!(
                "the rules of a domain reserve by the same entries and as long, and there is another `reserve` at \
                 {place}: write the same here"
            );
            sink.problem(&reserve.span, message);
        }
    }
}
