//! The reply to `QUELL.ACQUIRE` and `QUELL.PEEK`: a map with the fields of the JSON verdict.

use super::encode::Encoder;
use crate::http::{DecisionBody, EndedBody, VerdictBody};
use crate::rounding::signed;

impl Encoder<'_> {
    /// A verdict: the fields of the JSON, in the same order. Larger numbers are written as
    /// `i64::MAX`.
    pub fn verdict(&mut self, verdict: &VerdictBody<'_>) {
        let optional = usize::from(verdict.id.is_some()) + usize::from(verdict.would_refuse);
        self.map(11 + optional);
        self.field_boolean("allowed", verdict.allowed);
        self.bulk(b"binding");
        match &verdict.binding {
            Some(rule) => self.bulk(rule.as_bytes()),
            None => self.null(),
        }
        self.field_number("remaining", verdict.remaining);
        self.field_number("retry_after_ms", verdict.retry_after_ms);
        self.field_number("reset_after_ms", verdict.reset_after_ms);
        self.field_number("delay_ms", Some(verdict.delay_ms));
        self.field_boolean("permanent", verdict.permanent);
        self.field_boolean("banned", verdict.banned);
        self.field_boolean("degraded", verdict.degraded);
        self.field_boolean("unmatched", verdict.unmatched);
        if let Some(id) = &verdict.id {
            self.field_text("id", id);
        }
        self.bulk(b"decisions");
        self.array(verdict.decisions.len());
        for decision in &verdict.decisions {
            self.decision(decision);
        }
        self.would_refuse(verdict.would_refuse);
    }

    /// Writes the outcome of the end of a hold.
    pub fn ended(&mut self, ended: &EndedBody<'_>) {
        self.map(3);
        self.field_text("id", &ended.id);
        self.field_text("outcome", &ended.outcome);
        self.field_boolean("repeated", ended.repeated);
    }

    fn decision(&mut self, decision: &DecisionBody<'_>) {
        let optional = [
            decision.rung.is_some(),
            decision.bound.is_some(),
            decision.would_refuse,
        ];
        self.map(10 + optional.iter().filter(|is_there| **is_there).count());
        self.field_text("rule", &decision.rule);
        self.field_text("outcome", decision.outcome.as_str());
        self.field_number("limit", Some(decision.limit));
        self.field_number("remaining", Some(decision.remaining));
        self.field_number("retry_after_ms", decision.retry_after_ms);
        self.field_number("reset_after_ms", Some(decision.reset_after_ms));
        self.field_number("delay_ms", Some(decision.delay_ms));
        self.field_boolean("permanent", decision.permanent);
        self.field_boolean("banned", decision.banned);
        self.field_boolean("shadow", decision.shadow);
        if let Some(rung) = &decision.rung {
            self.field_text("rung", rung);
        }
        if decision.bound.is_some() {
            self.field_number("bound", decision.bound);
        }
        self.would_refuse(decision.would_refuse);
    }

    /// The last field of a map, which is left out if it is false.
    fn would_refuse(&mut self, would_refuse: bool) {
        if would_refuse {
            self.field_boolean("would_refuse", true);
        }
    }

    fn field_text(&mut self, name: &str, text: &str) {
        self.bulk(name.as_bytes());
        self.bulk(text.as_bytes());
    }

    fn field_number(&mut self, name: &str, number: Option<u64>) {
        self.bulk(name.as_bytes());
        match number {
            Some(number) => self.integer(signed(number)),
            None => self.null(),
        }
    }

    fn field_boolean(&mut self, name: &str, value: bool) {
        self.bulk(name.as_bytes());
        self.boolean(value);
    }
}
