//! Answer: decisions as the statuses of envoyproxy/ratelimit, and what its statistics count.

use std::time::Duration;

use quell_core::decision::{Decision, RetryAfter};
use quell_core::rate_limit_fields::RateLimitItem;

use super::{Found, LeafLimit};
use crate::proto::{
    Code, DescriptorStatus, Kind, ListValue, RateLimit, RateLimitRequest, RateLimitResponse,
    Struct, Unit, Value,
};
use crate::response::{Fields, at_most_u32, duration};

/// Hits of one descriptor, as the statistics of that service count them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HitCounts {
    /// Hits of all calls.
    pub total: u64,
    /// Those beyond the limit.
    pub over: u64,
    /// Those within the limit that came near to it.
    pub near: u64,
    /// Those of calls within the limit.
    pub within: u64,
    /// Those beyond a limit in shadow.
    pub shadow: u64,
}

impl HitCounts {
    /// Counts `hits` of a call on a limit of `limit`, whose share `near_ratio` is near to it. A refused call tells how
    /// many units were left before it, any other how many are left after it.
    #[must_use]
    pub fn new(
        (hits, limit): (u64, u32),
        decision: &Decision,
        is_shadow: bool,
        near_ratio: f32,
    ) -> Self {
        let limit = u64::from(limit);
        let near = near_limit(limit, near_ratio);
        let left = decision.remaining.min(limit);
        let mut counts = Self {
            total: hits,
            ..Self::default()
        };
        if decision.outcome.is_allow() {
            let after = limit - left;
            counts.within = hits;
            counts.near = hits.min(after.saturating_sub(near));
        } else {
            let before = limit - left;
            counts.over = hits.saturating_sub(left);
            if left > 0 {
                counts.near = limit - near.max(before);
            }
            if is_shadow {
                counts.shadow = counts.over;
            }
        }
        counts
    }
}

/// Units after which a limit counts as near, computed in single precision as that service does, where a limit above
/// 2^24 may round up: never more than the limit.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a limit of 32 bits, rounded as the other service rounds it"
)]
fn near_limit(limit: u64, ratio: f32) -> u64 {
    let near = f64::from(limit as f32 * ratio).floor() as u64;
    near.min(limit)
}

/// Statuses of a call.
#[derive(Clone, Debug)]
pub struct ConfigAnswer {
    statuses: Vec<DescriptorStatus>,
    /// Number of limits that are no quota and refuse.
    over: usize,
    /// True if every descriptor without an unlimited limit is a quota.
    is_quota: bool,
    /// Number of quotas, and of those that are used up.
    quotas: (usize, usize),
    /// The longest time to the end of a window that refuses.
    wait: Option<Duration>,
    /// Metadata of what passed.
    metadata: Struct,
}

impl ConfigAnswer {
    /// The answer to so many descriptors, none of which has a limit yet; with `is_quota` all that they will have are
    /// quotas.
    #[must_use]
    pub fn new(descriptors: usize, is_quota: bool) -> Self {
        let status = DescriptorStatus {
            code: Code::Ok.into(),
            ..DescriptorStatus::default()
        };
        Self {
            statuses: vec![status; descriptors],
            over: 0,
            is_quota,
            quotas: (if is_quota { descriptors } else { 0 }, 0),
            wait: None,
            metadata: Struct::default(),
        }
    }

    /// Sets the status of the descriptor at `place`: without a decision its limit is not counted. `until` is the time to
    /// the end of the window.
    pub fn set(
        &mut self,
        place: usize,
        found: &Found<'_>,
        decision: Option<&Decision>,
        until: Duration,
    ) {
        let Some(status) = self.statuses.get_mut(place) else {
            return;
        };
        let leaf = found.leaf;
        let &LeafLimit::Window { requests, unit, .. } = &leaf.limit else {
            status.limit_remaining = u32::MAX;
            self.quotas.0 = self.quotas.0.saturating_sub(usize::from(self.is_quota));
            return;
        };
        let is_over = decision.is_some_and(|decision| !decision.outcome.is_allow());
        self.quotas.0 += usize::from(leaf.is_quota && !self.is_quota);
        if is_over && !leaf.is_shadow {
            match leaf.is_quota {
                true => self.quotas.1 += 1,
                false => self.over += 1,
            }
        } else if let Some(metadata) = &leaf.metadata {
            merge(&mut self.metadata, metadata);
        }
        let code = match is_over && !leaf.is_shadow {
            true => Code::OverLimit,
            false => Code::Ok,
        };
        if code == Code::OverLimit && requests > 0 {
            self.wait = self.wait.max(Some(until));
        }
        let left = decision.filter(|_| !is_over && requests > 0);
        *status = DescriptorStatus {
            code: code.into(),
            current_limit: Some(RateLimit {
                name: leaf.name.to_string(),
                requests_per_unit: requests,
                unit: unit.into(),
            }),
            limit_remaining: left.map_or(0, |decision| at_most_u32(decision.remaining)),
            duration_until_reset: Some(duration(until)),
            quota: None,
        };
    }

    /// Sets the status of a descriptor with a limit that came with it.
    pub fn set_own(&mut self, place: usize, status: DescriptorStatus) {
        let is_over = usize::from(status.code() == Code::OverLimit);
        match self.is_quota {
            true => self.quotas.1 += is_over,
            false => self.over += is_over,
        }
        if let Some(own) = self.statuses.get_mut(place) {
            *own = status;
        }
    }

    /// Returns true if the call is refused: by a limit, or because all of its quotas are used up.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        let (quotas, used_up) = self.quotas;
        self.over > 0 || (quotas > 0 && quotas == used_up)
    }

    /// The dynamic metadata of that service: what was asked, and what the configuration says of limits that passed.
    #[must_use]
    pub fn metadata(&self, message: &RateLimitRequest) -> Struct {
        let text = |text: &str| value(Kind::StringValue(text.to_owned()));
        let list = |values: Vec<Value>| value(Kind::ListValue(ListValue { values }));
        let descriptors = message.descriptors.iter().map(|one| {
            let entries = one.entries.iter();
            let entries = entries.map(|entry| text(&format!("{}={}", entry.key, entry.value)));
            let mut fields = Struct::default();
            let mut add = |name: &str, value| fields.fields.insert(name.to_owned(), value);
            add("entries", list(entries.collect()));
            if let Some(limit) = &one.limit {
                let unit = Unit::try_from(limit.unit).unwrap_or_default().as_str_name();
                let limit = format!("requests_per_unit:{} unit:{unit}", limit.requests_per_unit);
                add("limit", text(&limit));
            }
            if let Some(hits) = &one.hits_addend {
                add("hitsAddend", number(hits.value));
            }
            value(Kind::StructValue(fields))
        });
        let mut fields = Struct::default();
        let mut add = |name: &str, value| fields.fields.insert(name.to_owned(), value);
        add("domain", text(&message.domain));
        add("descriptors", list(descriptors.collect()));
        if message.hits_addend > 0 {
            add("hitsAddend", number(message.hits_addend.into()));
        }
        if !self.metadata.fields.is_empty() {
            add("metadata", value(Kind::StructValue(self.metadata.clone())));
        }
        fields
    }

    /// The message. `items` are the limits for [`Fields::Draft`]; in shadow the call passes whatever its statuses say.
    #[must_use]
    pub fn into_message(
        self,
        (fields, items): (&Fields, &[RateLimitItem<'_>]),
        is_shadow: bool,
        metadata: Option<Struct>,
    ) -> RateLimitResponse {
        let is_over = self.is_over() && !is_shadow;
        let wait = self.wait.filter(|_| is_over).map(RetryAfter::After);
        let code = if is_over { Code::OverLimit } else { Code::Ok };
        RateLimitResponse {
            overall_code: code.into(),
            response_headers_to_add: fields.headers(&self.statuses, items, wait),
            statuses: self.statuses,
            dynamic_metadata: metadata,
            ..RateLimitResponse::default()
        }
    }
}

const fn value(kind: Kind) -> Value {
    Value { kind: Some(kind) }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "numbers of metadata are doubles; hits are small"
)]
const fn number(count: u64) -> Value {
    value(Kind::NumberValue(count as f64))
}

/// Adds what `into` lacks; maps that both have are merged.
fn merge(into: &mut Struct, from: &Struct) {
    for (name, value) in &from.fields {
        match into.fields.get_mut(name).map(|known| &mut known.kind) {
            None => drop(into.fields.insert(name.clone(), value.clone())),
            Some(Some(Kind::StructValue(known))) => {
                if let Some(Kind::StructValue(more)) = &value.kind {
                    merge(known, more);
                }
            }
            Some(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use quell_core::decision::Outcome;

    use super::*;

    /// A decision on a limit of 20 with so many units left.
    fn decision(is_allowed: bool, remaining: u64) -> Decision {
        let second = Duration::from_secs(1);
        Decision {
            outcome: match is_allowed {
                true => Outcome::Allow,
                false => Outcome::Deny(RetryAfter::After(second)),
            },
            limit: 20,
            remaining,
            reset_after: second,
            delay: Duration::ZERO,
            banned: false,
        }
    }

    /// The cases of the other service's tests: limit 20, of which 16 are near.
    #[test]
    fn hits_are_counted_as_there() {
        // Hits; whether they passed; units left, before a refusal and after any other; over, near and within.
        for (hits, is_allowed, left, expected) in [
            (1, true, 19, (0, 0, 1)),
            (1, true, 3, (0, 1, 1)),
            (4, true, 2, (0, 2, 4)),
            (3, false, 1, (2, 1, 0)),
            (7, false, 5, (2, 4, 0)),
            (1, false, 0, (1, 0, 0)),
        ] {
            let decision = decision(is_allowed, left);
            let counts = HitCounts::new((hits, 20), &decision, false, 0.8);
            let told = (counts.over, counts.near, counts.within);
            assert_eq!(told, expected, "{hits} hits, {left} left");
            let shadow = HitCounts::new((hits, 20), &decision, true, 0.8).shadow;
            assert_eq!(shadow, expected.0);
        }
        assert_eq!(near_limit(15, 0.8), 12);
    }

    /// In single precision 16,777,219 is 16,777,220.
    #[test]
    fn a_limit_that_rounds_up_is_near_at_the_limit() {
        let limit = 16_777_219;
        assert_eq!(near_limit(limit.into(), 1.0), u64::from(limit));
        assert_eq!(near_limit(u32::MAX.into(), 1.0), u64::from(u32::MAX));
        let counts = HitCounts::new((3, limit), &decision(false, 1), false, 1.0);
        assert_eq!((counts.over, counts.near), (2, 0));
    }
}
