//! Builds a limit from its raw fields, or reports which field makes it impossible.

use std::time::Duration;

use quell_core::algorithm::Algorithm;
use quell_core::ban::Ban;
use quell_core::limit::{Limit, LimitError};
use quell_core::rate::{MAX_PERIOD, Rate};

use crate::fields::RULE;
use crate::kind::Kind;
use crate::path::{Span, Spanned};
use crate::period::Period;
use crate::problem::Sink;
use crate::raw::{Align, DelayAfter, RawBan, RawLimit};

/// Builds the limit; reports a mistake at the field that causes it.
///
/// `span` is that of the rule or override as a whole.
pub(crate) fn build(raw: &RawLimit, span: &Span, sink: &mut Sink) -> Option<Limit> {
    let before = sink.count();
    let kind = raw
        .algorithm
        .as_ref()
        .map(|field| field.value)
        .unwrap_or_default();
    check_belonging(raw, kind, sink);
    if sink.count() > before {
        return None;
    }
    let limit = match kind {
        Kind::TokenBucket => token_bucket(raw, span, sink),
        Kind::LeakyBucket => leaky_bucket(raw, span, sink),
        Kind::FixedWindow => fixed_window(raw, span, sink),
        Kind::SlidingWindow | Kind::SlidingLog => sliding(raw, kind, span, sink),
        Kind::Concurrency => concurrency(raw, span, sink),
    };
    let ban = match &raw.ban {
        None => None,
        Some(field) => Some(build_ban(&field.value, &field.span, sink)?),
    };
    let mut limit = limit?;
    if let Some(on_expiry) = &raw.on_expiry {
        limit = limit.on_expiry(on_expiry.value);
    }
    match ban {
        None => Some(limit),
        Some(ban) => Some(limit.with_ban(ban)),
    }
}

/// Tells fields of other algorithms.
fn check_belonging(raw: &RawLimit, kind: Kind, sink: &mut Sink) {
    for (name, span) in raw.algorithm_fields() {
        let Some(field) = RULE.field(name) else {
            continue;
        };
        if field.of.contains(&kind) {
            continue;
        }
        let owners: Vec<&str> = field.of.iter().map(|kind| kind.name()).collect();
        let is_default = if raw.algorithm.is_none() {
            ", the default"
        } else {
            ""
        };
        let instead = match (name, kind.is_window(), field.of.first()) {
            ("rate" | "limit", ..) if kind == Kind::Concurrency => {
                "write `max` in its place, how many at a time".to_owned()
            }
            ("rate", true, _) => "write `limit: COUNT/PERIOD`".to_owned(),
            ("limit", false, _) => {
                "write `rate` in its place, or `algorithm: sliding_window`".to_owned()
            }
            (_, _, Some(owner)) => format!("leave it out, or write `algorithm: {}`", owner.name()),
            (_, _, None) => "leave it out".to_owned(),
        };
        let message = format!(
            "`{name}` belongs to {}, and this is a {}{is_default}: {instead}",
            owners.join(", "),
            kind.name()
        );
        sink.problem(span, message);
    }
}

/// The first of these that was said, or the whole.
fn blame<'s>(whole: &'s Span, candidates: &[Option<&'s Span>]) -> &'s Span {
    candidates.iter().flatten().next().copied().unwrap_or(whole)
}

fn span<T>(field: &Option<Spanned<T>>) -> Option<&Span> {
    field.as_ref().map(|field| &field.span)
}

/// Tells `error` at the field that is to blame.
fn report<T>(
    result: Result<T, LimitError>,
    raw: &RawLimit,
    whole: &Span,
    sink: &mut Sink,
) -> Option<T> {
    let error = match result {
        Ok(value) => return Some(value),
        Err(error) => error,
    };
    let refill = raw.refill.as_ref().map(|field| &field.value);
    let amount = refill.map(|refill| &refill.amount.span);
    let every = refill.map(|refill| &refill.every.span);
    let adaptive = raw.adaptive.as_ref().map(|field| &field.value);
    let min = adaptive.map(|adaptive| &adaptive.min.span);
    let place = match error {
        LimitError::ZeroRate | LimitError::FastRate => blame(whole, &[span(&raw.rate), amount]),
        LimitError::ZeroPeriod | LimitError::LongPeriod => {
            blame(whole, &[span(&raw.rate), every, span(&raw.window)])
        }
        LimitError::ZeroBurst => blame(whole, &[span(&raw.burst)]),
        LimitError::ZeroLimit => {
            let max = adaptive
                .map(|adaptive| &adaptive.max)
                .filter(|max| max.value == 0);
            let max = max.map(|max| &max.span);
            blame(whole, &[span(&raw.limit), span(&raw.max), max, min])
        }
        LimitError::MinAboveMax => blame(whole, &[min]),
        LimitError::AdaptiveWithQueue => blame(whole, &[span(&raw.queue)]),
        LimitError::DebtInBatches => blame(whole, &[span(&raw.debt)]),
        LimitError::WarmUp => blame(whole, &[span(&raw.warm_up)]),
        LimitError::ColdFactor | LimitError::ColdFactorAlone => {
            blame(whole, &[span(&raw.cold_factor)])
        }
        LimitError::WarmUpWithBurst => {
            let refill = raw.refill.as_ref().map(|field| &field.span);
            let others = [span(&raw.burst), span(&raw.initial), refill];
            blame(blame(whole, &[span(&raw.warm_up)]), &others)
        }
        LimitError::ManyPermits
        | LimitError::ManyPermitsShared
        | LimitError::LargeCeilingShared => {
            let max = adaptive.map(|adaptive| &adaptive.max.span);
            blame(whole, &[span(&raw.queue), span(&raw.max), max])
        }
        LimitError::Lease => blame(whole, &[span(&raw.lease), span(&raw.unit_delay)]),
        LimitError::InitialAboveBurst => blame(whole, &[span(&raw.initial)]),
        LimitError::DelayAfterAboveBurst => blame(whole, &[span(&raw.delay_after)]),
        LimitError::ZeroRefill => blame(whole, &[amount]),
        LimitError::RefillDisagrees => blame(whole, &[span(&raw.rate)]),
        LimitError::Segments => blame(whole, &[span(&raw.segments)]),
        LimitError::ShortSegments => blame(whole, &[span(&raw.segments), span(&raw.window)]),
        LimitError::MaxEntries => blame(whole, &[span(&raw.max_entries)]),
        _ => whole,
    };
    sink.problem(place, error.to_string());
    None
}

/// A rate in the core's terms, and the burst that it implies.
struct BucketRate {
    rate: Rate,
    burst: u64,
}

fn rate(raw: &RawLimit, whole: &Span, sink: &mut Sink) -> Option<BucketRate> {
    let field = raw.rate.as_ref()?;
    let (count, period) = field.value.in_rate();
    let rate = Rate::new(count, period);
    if rate == Err(LimitError::LongPeriod) && field.value.count.has_fraction() {
        let one_takes = period.as_nanos() / u128::from(count.max(1));
        let instead = match (field.value.simplest(), one_takes > MAX_PERIOD.as_nanos()) {
            (Some(exact), _) => format!("`{exact}`"),
            (None, true) => "a faster rate".to_owned(),
            (None, false) => "fewer decimal places".to_owned(),
        };
        let message =
            format!("in whole units this is {count} in more than 36500 days: write {instead}");
        sink.problem(&field.span, message);
        return None;
    }
    let rate = report(rate, raw, whole, sink)?;
    let burst = field.value.count.floor().max(1);
    Some(BucketRate { rate, burst })
}

fn token_bucket(raw: &RawLimit, whole: &Span, sink: &mut Sink) -> Option<Limit> {
    let rate = match &raw.rate {
        Some(_) => Some(rate(raw, whole, sink)?),
        None => None,
    };
    let mut bucket = match (&raw.refill, &rate) {
        (None, None) => {
            let message =
                "a token_bucket needs a rate: write `rate: COUNT/PERIOD`, such as `100/s`";
            sink.problem(whole, message);
            return None;
        }
        (None, Some(rate)) => Limit::token_bucket(rate.rate),
        (Some(refill), rate) => {
            let (amount, every) = (refill.value.amount.value, refill.value.every.value);
            if let (Some(rate), Ok(implied)) = (rate, Rate::new(amount, every))
                && !rate.rate.equals(implied)
            {
                report::<()>(Err(LimitError::RefillDisagrees), raw, whole, sink);
                return None;
            }
            quell_core::algorithm::token_bucket::TokenBucket::refill(amount, every)
        }
    };
    let burst = raw.burst.as_ref().map(|field| field.value);
    let of_rate = rate.map(|rate| rate.burst);
    if let Some(burst) = burst.or(of_rate.filter(|_| raw.warm_up.is_none())) {
        bucket = bucket.burst(burst);
    }
    if let Some(initial) = &raw.initial {
        bucket = bucket.initial(initial.value);
    }
    if let Some(debt) = &raw.debt {
        bucket = bucket.debt(debt.value);
    }
    if let Some(window) = &raw.warm_up {
        bucket = bucket.warm_up(window.value);
    }
    if let Some(factor) = &raw.cold_factor {
        bucket = bucket.cold_factor(factor.value);
    }
    report(bucket.build(), raw, whole, sink)
}

fn concurrency(raw: &RawLimit, whole: &Span, sink: &mut Sink) -> Option<Limit> {
    let mut permits = match (&raw.max, &raw.adaptive) {
        (None, None) => {
            let message = "concurrency needs a maximum: write `max: COUNT`, such as `max: 4`, or \
                           `adaptive: {min: 2, max: 50}`";
            sink.problem(whole, message);
            return None;
        }
        (Some(max), Some(_)) => {
            let message = "`adaptive` says the bounds of what is learned: leave `max` out";
            sink.problem(&max.span, message);
            return None;
        }
        (Some(max), None) => Limit::concurrency(max.value),
        (None, Some(field)) => {
            Limit::concurrency(field.value.max.value).adaptive(field.value.min.value)
        }
    };
    if let Some(queue) = &raw.queue {
        permits = permits.queue(queue.value);
    }
    if let Some(lease) = &raw.lease {
        permits = permits.lease(lease.value);
    }
    if let Some(unit) = &raw.unit_delay {
        if raw.queue.is_none() {
            let message = "only calls in the queue are delayed: write `queue`, or leave it out";
            sink.problem(&unit.span, message);
            return None;
        }
        permits = permits.unit_delay(unit.value);
    }
    report(permits.build(), raw, whole, sink)
}

fn leaky_bucket(raw: &RawLimit, whole: &Span, sink: &mut Sink) -> Option<Limit> {
    if raw.rate.is_none() {
        let message = "a leaky_bucket needs a rate: write `rate: COUNT/PERIOD`, such as `2/s`";
        sink.problem(whole, message);
        return None;
    }
    let own = rate(raw, whole, sink)?;
    let burst = raw.burst.as_ref().map_or(own.burst, |field| field.value);
    let mut bucket = Limit::leaky_bucket(own.rate).burst(burst);
    if let Some(delay_after) = &raw.delay_after {
        bucket = bucket.delay_after(match delay_after.value {
            DelayAfter::Units(units) => units,
            DelayAfter::Burst => burst,
        });
    }
    report(bucket.build(), raw, whole, sink)
}

/// The two numbers that every window needs; reports those that are missing.
fn window<'r>(
    raw: &'r RawLimit,
    kind: Kind,
    whole: &Span,
    sink: &mut Sink,
) -> Option<(u64, &'r Spanned<Period>)> {
    let name = kind.name();
    match (&raw.limit, &raw.window) {
        (Some(limit), Some(window)) => return Some((limit.value, window)),
        (Some(limit), None) => {
            let count = limit.value;
            let message = format!(
                "a {name} needs a window: write `limit: {count}/min`, or `window: 1m` beside it"
            );
            sink.problem(&limit.span, message);
        }
        (None, _) => {
            let message =
                format!("a {name} needs a limit: write `limit: COUNT/PERIOD`, such as `5/min`");
            sink.problem(whole, message);
        }
    }
    None
}

fn length(field: &Spanned<Period>, sink: &mut Sink) -> Option<Duration> {
    match field.value.in_window() {
        Ok(length) => Some(length),
        Err(message) => {
            sink.problem(&field.span, message);
            None
        }
    }
}

fn fixed_window(raw: &RawLimit, whole: &Span, sink: &mut Sink) -> Option<Limit> {
    let (limit, window) = window(raw, Kind::FixedWindow, whole, sink)?;
    let align = raw.align.as_ref().map(|field| field.value);
    let built = if align == Some(Align::Calendar) {
        let unit = match window.value.on_calendar() {
            Ok(unit) => unit,
            Err(message) => {
                sink.problem(&window.span, message);
                return None;
            }
        };
        let zone = raw.time_zone.as_ref().map_or("UTC", |field| &field.value);
        Limit::calendar_window(limit, unit, zone).build()
    } else {
        if let Some(zone) = &raw.time_zone {
            let message = "a time zone means something on the calendar only: write `align: calendar`, or leave it out";
            sink.problem(&zone.span, message);
            return None;
        }
        Limit::fixed_window(limit, length(window, sink)?).build()
    };
    report(built, raw, whole, sink)
}

fn sliding(raw: &RawLimit, kind: Kind, whole: &Span, sink: &mut Sink) -> Option<Limit> {
    let (limit, window) = window(raw, kind, whole, sink)?;
    let window = length(window, sink)?;
    if kind == Kind::SlidingWindow {
        let mut sliding = Limit::sliding_window(limit, window);
        if let Some(segments) = &raw.segments {
            sliding = sliding.segments(segments.value);
        }
        return report(sliding.build(), raw, whole, sink);
    }
    let mut log = Limit::sliding_log(limit, window);
    if let Some(entries) = &raw.max_entries {
        log = log.max_entries(entries.value);
    }
    let bound = log.entry_bound();
    let built = report(log.build(), raw, whole, sink)?;
    if let Algorithm::SlidingWindow(_) = built.algorithm() {
        let message = format!(
            "a limit of {limit} is above max_entries ({bound}), so it is loaded as sliding_window: \
             write `algorithm: sliding_window`, or a larger `max_entries`"
        );
        sink.warn(blame(whole, &[span(&raw.limit)]), message);
    }
    Some(built)
}

fn build_ban(raw: &RawBan, whole: &Span, sink: &mut Sink) -> Option<Ban> {
    let within = raw.within.as_ref();
    let durations = raw.durations.value.clone();
    match Ban::new(raw.after.value, within.map(|field| field.value), durations) {
        Ok(ban) => Some(ban),
        Err(error) => {
            let place = match error {
                LimitError::BanAfter => &raw.after.span,
                LimitError::BanWithin => within.map_or(whole, |field| &field.span),
                LimitError::BanFor => &raw.durations.span,
                _ => whole,
            };
            sink.problem(place, error.to_string());
            None
        }
    }
}
