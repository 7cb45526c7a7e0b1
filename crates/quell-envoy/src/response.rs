//! Answer: verdicts as a response of the service, one status for each descriptor.
//!
//! A status has the numbers of the limit that binds its descriptor, as `RateLimit-Policy` has them: the largest cost
//! from rest, and the unit in which a window ends or a bucket is full again; no unit (`UNKNOWN`) if there is none of
//! that length. `duration_until_reset` is the wait of a refusal, and the time to rest otherwise.

use std::collections::HashMap;
use std::time::Duration;

use quell_core::algorithm::fixed_window::CalendarUnit;
use quell_core::decision::{Decision, RetryAfter};
use quell_core::limit::Limit;
use quell_core::rate_limit_fields::{
    RATE_LIMIT, RATE_LIMIT_POLICY, RateLimitItem, definition_field, seconds, status_field,
};
use quell_core::refusal_page::RefusalPage;
use quell_core::verdict::Verdict;

use crate::proto::{
    self, Code, DescriptorStatus, HeaderValue, Kind, RateLimit, RateLimitResponse, Struct, Unit,
    Value,
};
use crate::request::OwnLimit;

/// Header fields of an answer, which Envoy adds to that of its client; with a refusal `Retry-After` is one of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Fields {
    /// `RateLimit-Policy` and `RateLimit`, as in draft-ietf-httpapi-ratelimit-headers-10.
    #[default]
    Draft,
    /// `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset` of the descriptor with the least left.
    RateLimit,
    /// The same with `X-` before their names.
    XRateLimit,
    /// The same under other names: of the limit, what remains, and the seconds to its reset.
    Named([String; 3]),
    /// None, not even `Retry-After`.
    Off,
}

impl Fields {
    /// The fields of an answer. `items` are the limits for [`Fields::Draft`].
    pub(crate) fn headers(
        &self,
        statuses: &[DescriptorStatus],
        items: &[RateLimitItem<'_>],
        retry_after: Option<RetryAfter>,
    ) -> Vec<HeaderValue> {
        let mut headers = match self {
            Self::Draft => {
                let policy = definition_field(items).map(|text| header(RATE_LIMIT_POLICY, &text));
                let status = status_field(items).map(|text| header(RATE_LIMIT, &text));
                policy.into_iter().chain(status).collect()
            }
            Self::RateLimit => numbers(statuses, NUMBERS),
            Self::XRateLimit => numbers(statuses, X_NUMBERS),
            Self::Named(names) => numbers(statuses, names.each_ref().map(String::as_str)),
            Self::Off => return Vec::new(),
        };
        if let Some(RetryAfter::After(wait)) = retry_after {
            headers.push(header("retry-after", &seconds(wait).max(1).to_string()));
        }
        headers
    }
}

const NUMBERS: [&str; 3] = ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"];

const X_NUMBERS: [&str; 3] = [
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
];

fn header(name: &str, value: &str) -> HeaderValue {
    HeaderValue {
        key: name.to_owned(),
        value: value.to_owned(),
        ..HeaderValue::default()
    }
}

/// The numbers of the descriptor that is over its limit, the last if there are several, or else of the one with the
/// least left.
fn numbers(statuses: &[DescriptorStatus], names: [&str; 3]) -> Vec<HeaderValue> {
    let limited = || statuses.iter().filter(|one| one.current_limit.is_some());
    let over = limited().rfind(|one| one.code() == Code::OverLimit);
    let Some(status) = over.or_else(|| limited().min_by_key(|one| one.limit_remaining)) else {
        return Vec::new();
    };
    let limit = status.current_limit.as_ref();
    let reset = status.duration_until_reset.as_ref();
    let numbers = [
        limit.map(|limit| i64::from(limit.requests_per_unit)),
        Some(i64::from(status.limit_remaining)),
        reset.map(|reset| reset.seconds + i64::from(reset.nanos > 0)),
    ];
    let named = names.into_iter().zip(numbers);
    let fields = named.filter_map(|(name, number)| Some(header(name, &number?.to_string())));
    fields.collect()
}

/// An answer to a request, as far as it is known. A descriptor of which nothing is known passes.
#[derive(Clone, Debug)]
pub struct Answer {
    statuses: Vec<DescriptorStatus>,
    /// The longest wait of a refusal.
    retry_after: Option<RetryAfter>,
    metadata: HashMap<String, Value>,
}

impl Answer {
    /// The answer to so many descriptors, none of which has a limit.
    #[must_use]
    pub fn new(descriptors: usize) -> Self {
        let status = DescriptorStatus {
            code: Code::Ok.into(),
            ..DescriptorStatus::default()
        };
        Self {
            statuses: vec![status; descriptors],
            retry_after: None,
            metadata: HashMap::new(),
        }
    }

    /// Returns true if a descriptor is over its limit.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.retry_after.is_some()
    }

    /// Sets the status of the descriptor at `place`. `limit` is that of the binding rule, if it is in force.
    pub fn set(&mut self, place: usize, verdict: &Verdict, limit: Option<&Limit>) {
        let shadows = verdict.decisions.iter().filter(|rule| rule.would_refuse());
        if let Some(shadow) = shadows.map(|rule| &*rule.rule).next() {
            self.note("would_refuse", Kind::StringValue(shadow.to_owned()));
        }
        if verdict.degraded {
            self.note("degraded", Kind::BoolValue(true));
        }
        let Some(binding) = verdict.binding_rule() else {
            return;
        };
        if !verdict.is_allow() {
            self.note("rule", Kind::StringValue(binding.rule.as_ref().to_owned()));
        }
        if verdict.banned {
            self.note("banned", Kind::BoolValue(true));
        }
        let unit = limit.map_or(Unit::Unknown, unit_of_limit);
        self.set_decision(place, &binding.rule, unit, &binding.decision);
    }

    /// Sets the status of a descriptor with a limit of its own; without a decision its limit is 0.
    pub fn set_own(&mut self, own: &OwnLimit, decision: Option<&Decision>) {
        let unit = unit_of_length(own.window);
        if let Some(decision) = decision {
            return self.set_decision(own.place, "", unit, decision);
        }
        self.retry_after = Some(RetryAfter::Never);
        if let Some(status) = self.statuses.get_mut(own.place) {
            status.code = Code::OverLimit.into();
            status.current_limit = Some(RateLimit {
                unit: unit.into(),
                ..RateLimit::default()
            });
        }
    }

    fn set_decision(&mut self, place: usize, rule: &str, unit: Unit, decision: &Decision) {
        let Some(status) = self.statuses.get_mut(place) else {
            return;
        };
        let wait = decision.retry_after();
        let code = wait.map_or(Code::Ok, |_| Code::OverLimit);
        let until = match wait {
            None => Some(decision.reset_after),
            Some(RetryAfter::After(wait)) => Some(wait),
            Some(RetryAfter::Never) => None,
        };
        *status = DescriptorStatus {
            code: code.into(),
            current_limit: Some(RateLimit {
                name: rule.to_owned(),
                requests_per_unit: at_most_u32(decision.limit),
                unit: unit.into(),
            }),
            limit_remaining: at_most_u32(decision.remaining),
            duration_until_reset: until.map(duration),
            quota: None,
        };
        self.retry_after = self.retry_after.max(wait);
    }

    /// The status of the descriptor at `place`.
    #[must_use]
    pub fn status(&self, place: usize) -> Option<&DescriptorStatus> {
        self.statuses.get(place)
    }

    /// Sets what Envoy keeps with the stream under `name`, and hands back when that ends.
    pub fn set_reservation(&mut self, name: &str, reservation: String) {
        let kind = Some(Kind::StringValue(reservation));
        self.metadata.insert(name.to_owned(), Value { kind });
    }

    fn note(&mut self, name: &str, kind: Kind) {
        let value = Value { kind: Some(kind) };
        self.metadata.entry(name.to_owned()).or_insert(value);
    }

    /// The message. `items` are the limits for [`Fields::Draft`], and `page` is what the rule that refused shows.
    #[must_use]
    pub fn into_message(
        self,
        fields: &Fields,
        items: &[RateLimitItem<'_>],
        page: Option<&RefusalPage>,
    ) -> RateLimitResponse {
        let mut headers = fields.headers(&self.statuses, items, self.retry_after);
        let body = page.and_then(RefusalPage::page_body);
        headers.extend(body.map(|body| header("content-type", body.content_type())));
        let code = match self.is_over() {
            true => Code::OverLimit,
            false => Code::Ok,
        };
        let metadata = Struct {
            fields: self.metadata,
        };
        RateLimitResponse {
            overall_code: code.into(),
            statuses: self.statuses,
            response_headers_to_add: headers,
            request_headers_to_add: Vec::new(),
            raw_body: body.map_or_else(Vec::new, |body| body.text().as_bytes().to_vec()),
            dynamic_metadata: (!metadata.fields.is_empty()).then_some(metadata),
            quota: None,
        }
    }
}

/// The unit in which a limit is full again.
fn unit_of_limit(limit: &Limit) -> Unit {
    match limit.calendar() {
        None => unit_of_length(limit.full_refill()),
        Some(calendar) => match calendar.unit {
            CalendarUnit::Second => Unit::Second,
            CalendarUnit::Minute => Unit::Minute,
            CalendarUnit::Hour => Unit::Hour,
            CalendarUnit::Day => Unit::Day,
            CalendarUnit::Week => Unit::Week,
            CalendarUnit::Month => Unit::Month,
            CalendarUnit::Year => Unit::Year,
        },
    }
}

/// The unit of this length, of which a month has 30 days and a year 365.
fn unit_of_length(length: Duration) -> Unit {
    const DAY: u64 = 86_400;
    if length.subsec_nanos() > 0 {
        return Unit::Unknown;
    }
    match length.as_secs() {
        1 => Unit::Second,
        60 => Unit::Minute,
        3_600 => Unit::Hour,
        DAY => Unit::Day,
        seconds if seconds == 7 * DAY => Unit::Week,
        seconds if seconds == 30 * DAY => Unit::Month,
        seconds if seconds == 365 * DAY => Unit::Year,
        _ => Unit::Unknown,
    }
}

pub(crate) fn at_most_u32(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

pub(crate) fn duration(duration: Duration) -> proto::Duration {
    proto::Duration {
        seconds: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        // Below 10^9.
        nanos: i32::try_from(duration.subsec_nanos()).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use quell_core::decision::Outcome;

    use super::*;
    use crate::proto::{Descriptor, RateLimitOverride, RateLimitRequest};
    use crate::request::Request;

    fn decision(limit: u64, remaining: u64, wait: Option<RetryAfter>) -> Decision {
        Decision {
            outcome: wait.map_or(Outcome::Allow, Outcome::Deny),
            limit,
            remaining,
            reset_after: Duration::from_millis(30_500),
            delay: Duration::ZERO,
            banned: false,
        }
    }

    fn own(place: usize, requests_per_unit: u32, unit: Unit) -> OwnLimit {
        let limited = Descriptor {
            limit: Some(RateLimitOverride {
                requests_per_unit,
                unit: unit.into(),
            }),
            ..Descriptor::default()
        };
        let mut descriptors = vec![Descriptor::default(); place];
        descriptors.push(limited);
        let message = RateLimitRequest {
            domain: "d".to_owned(),
            descriptors,
            hits_addend: 0,
        };
        let mut read = Request::read(&message, None).unwrap();
        read.own_limits.remove(0)
    }

    fn headers(message: &RateLimitResponse) -> Vec<(&str, &str)> {
        let headers = message.response_headers_to_add.iter();
        let headers = headers.map(|one| (one.key.as_str(), one.value.as_str()));
        headers.collect()
    }

    #[test]
    fn a_descriptor_without_a_limit_passes() {
        let message = Answer::new(2).into_message(&Fields::RateLimit, &[], None);
        assert_eq!(message.overall_code(), Code::Ok);
        for status in &message.statuses {
            assert_eq!((status.code(), status.limit_remaining), (Code::Ok, 0));
            assert_eq!(
                (&status.current_limit, &status.duration_until_reset),
                (&None, &None)
            );
        }
        assert_eq!((message.statuses.len(), headers(&message).len()), (2, 0));
        assert_eq!(message.dynamic_metadata, None);
    }

    #[test]
    fn the_descriptor_with_the_least_left_has_its_numbers_in_the_header() {
        let mut answer = Answer::new(3);
        answer.set_own(&own(0, 20, Unit::Minute), Some(&decision(20, 19, None)));
        answer.set_own(&own(2, 5, Unit::Hour), Some(&decision(5, 4, None)));
        let message = answer.into_message(&Fields::XRateLimit, &[], None);
        let expected = [
            ("x-ratelimit-limit", "5"),
            ("x-ratelimit-remaining", "4"),
            ("x-ratelimit-reset", "31"),
        ];
        assert_eq!(headers(&message), expected);
        let exact = proto::Duration {
            seconds: 30,
            nanos: 500_000_000,
        };
        assert_eq!(message.statuses[2].duration_until_reset, Some(exact));
    }

    #[test]
    fn the_last_descriptor_over_its_limit_has_them_before_others() {
        let mut answer = Answer::new(3);
        let waits = [1_400, 200].map(|millis| {
            let wait = RetryAfter::After(Duration::from_millis(millis));
            decision(7, 1, Some(wait))
        });
        answer.set_own(&own(0, 7, Unit::Day), Some(&waits[0]));
        answer.set_own(&own(1, 7, Unit::Second), Some(&waits[1]));
        answer.set_own(&own(2, 9, Unit::Year), Some(&decision(9, 0, None)));
        let message = answer.into_message(&Fields::RateLimit, &[], None);
        assert_eq!(message.overall_code(), Code::OverLimit);
        let codes = message.statuses.iter().map(DescriptorStatus::code);
        let codes: Vec<_> = codes.collect();
        assert_eq!(codes, [Code::OverLimit, Code::OverLimit, Code::Ok]);
        let expected = [
            ("ratelimit-limit", "7"),
            ("ratelimit-remaining", "1"),
            ("ratelimit-reset", "1"),
            ("retry-after", "2"),
        ];
        assert_eq!(
            headers(&message),
            expected,
            "a caller waits for the longest"
        );
    }

    #[test]
    fn a_limit_of_nothing_always_refuses() {
        let mut answer = Answer::new(1);
        answer.set_own(&own(0, 0, Unit::Month), None);
        let message = answer.into_message(&Fields::Draft, &[], None);
        assert_eq!(message.overall_code(), Code::OverLimit);
        assert_eq!(headers(&message), [], "no wait helps");
        let limit = message.statuses[0].current_limit.as_ref().unwrap();
        assert_eq!((limit.unit(), limit.requests_per_unit), (Unit::Month, 0));
    }

    #[test]
    fn lengths_that_are_no_unit_have_none() {
        for (millis, unit) in [
            (1_000, Unit::Second),
            (604_800_000, Unit::Week),
            (2_592_000_000, Unit::Month),
            (31_536_000_000, Unit::Year),
            (60_001, Unit::Unknown),
            (5_000, Unit::Unknown),
        ] {
            assert_eq!(unit_of_length(Duration::from_millis(millis)), unit);
        }
        let monthly = Limit::calendar_window(5, CalendarUnit::Month, "UTC");
        assert_eq!(unit_of_limit(&monthly.build().unwrap()), Unit::Month);
    }
}
