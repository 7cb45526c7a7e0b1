//! Kin: the numbers of one rule are for the same keys, so all of them count in the same way.

use quell_core::algorithm::Algorithm;
use quell_core::algorithm::fixed_window::Window;
use quell_core::limit::Limit;
use quell_core::rule::{Effect, Override};

use crate::path::Span;
use crate::problem::Sink;

/// Way in which a limit counts: what is used under one is not carried over to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kin {
    algorithm: &'static str,
    is_calendar: bool,
}

impl Kin {
    pub(crate) fn of(limit: &Limit) -> Self {
        let algorithm = limit.algorithm();
        let is_calendar = match &algorithm {
            Algorithm::FixedWindow(window) => matches!(window.window, Window::Calendar(_)),
            _ => false,
        };
        Self {
            algorithm: algorithm.name(),
            is_calendar,
        }
    }

    /// The message for a limit that counts in another way than the rule's own.
    pub(crate) fn differs(self, other: &Limit) -> Option<String> {
        let Self {
            algorithm,
            is_calendar,
        } = Self::of(other);
        if algorithm != self.algorithm {
            return Some(format!(
                "these numbers are for the keys of the rule, which count as {} and not as {algorithm}: write the same \
                 algorithm, or another rule",
                self.algorithm
            ));
        }
        (is_calendar != self.is_calendar).then(|| {
            let align = if self.is_calendar { "calendar" } else { "first_request" };
            format!(
                "these numbers are for the keys of the rule, whose windows have `align: {align}`: write the same, or \
                 another rule"
            )
        })
    }
}

/// Reports numbers that count in another way than those of the rule, or than the first ones of a rule without a
/// limit.
pub(super) fn check(effect: Option<&Effect>, others: &[(Override, Span)], sink: &mut Sink) {
    let own = effect.and_then(Effect::limit).map(Kin::of);
    let limits = others.iter();
    let mut limits = limits.filter_map(|(over, span)| Some((over.effect.limit()?, span)));
    let Some(kin) = own.or_else(|| limits.clone().next().map(|(limit, _)| Kin::of(limit))) else {
        return;
    };
    if let Some((message, span)) =
        limits.find_map(|(limit, span)| Some((kin.differs(limit)?, span)))
    {
        sink.problem(span, message);
    }
}
