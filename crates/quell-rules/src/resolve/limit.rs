//! Builds a limit from its raw fields, or reports which field makes it impossible.

use std::sync::Arc;

use quell_core::algorithm::Algorithm;
use quell_core::algorithm::concurrency::{Concurrency, DEFAULT_LEASE};
use quell_core::algorithm::fixed_window::{Anchor, Calendar, FixedWindow, Window};
use quell_core::algorithm::leaky_bucket::LeakyBucket;
use quell_core::algorithm::sliding_log::{DEFAULT_MAX_ENTRIES, SlidingLog};
use quell_core::algorithm::sliding_window::{DEFAULT_SEGMENTS, SlidingWindow};
use quell_core::algorithm::token_bucket::TokenBucket;
use quell_core::ban::Ban;
use quell_core::limit::Limit;
use quell_core::limit_error::LimitError;
use quell_core::limit_spec::LimitSpec;
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
    let kind = value(&raw.algorithm).unwrap_or_default();
    check_belonging(raw, kind, sink);
    if sink.count() > before {
        return None;
    }
    let algorithm = match kind {
        Kind::TokenBucket => token_bucket(raw, span, sink),
        Kind::LeakyBucket => leaky_bucket(raw, span, sink),
        Kind::FixedWindow => fixed_window(raw, span, sink),
        Kind::SlidingWindow | Kind::SlidingLog => sliding(raw, kind, span, sink),
        Kind::Concurrency => concurrency(raw, span, sink),
    };
    let ban = raw.ban.as_ref();
    let ban = ban.map(|field| build_ban(&field.value, raw, &field.span, sink));
    let is_wrong = matches!(ban, Some(None));
    let algorithm = algorithm?;
    warn_of_long_log(&algorithm, raw, span, sink);
    let spec = LimitSpec {
        algorithm,
        ban: ban.flatten().map(Arc::new),
        on_expiry: value(&raw.on_expiry).unwrap_or_default(),
    };
    let limit = report(spec.build(), raw, span, sink)?;
    (!is_wrong).then_some(limit)
}

/// Warns of a log that is built as a window, because it would be too long.
fn warn_of_long_log(algorithm: &Algorithm, raw: &RawLimit, whole: &Span, sink: &mut Sink) {
    let Algorithm::SlidingLog(SlidingLog {
        limit, max_entries, ..
    }) = algorithm
    else {
        return;
    };
    if *limit > u64::from(*max_entries) {
        let message = format!(
            "a limit of {limit} is above max_entries ({max_entries}), so it is loaded as \
             sliding_window: write `algorithm: sliding_window`, or a larger `max_entries`"
        );
        sink.warn(raw.span_of("limit").unwrap_or(whole), message);
    }
}

/// Reports fields that belong to other algorithms.
fn check_belonging(raw: &RawLimit, kind: Kind, sink: &mut Sink) {
    for (name, span) in raw.set_fields() {
        let owners = RULE.field(name).map_or(&[][..], |field| &field.of);
        let is_told = name == "window" && raw.limit_says_window();
        let (Some(owner), false) = (owners.first(), is_told || owners.contains(&kind)) else {
            continue;
        };
        let instead = match name {
            "rate" | "limit" if kind == Kind::Concurrency => {
                "write `max` in its place, how many at a time".to_owned()
            }
            "rate" if kind.is_window() => "write `limit: COUNT/PERIOD`".to_owned(),
            "limit" if !kind.is_window() => {
                "write `rate` in its place, or `algorithm: sliding_window`".to_owned()
            }
            _ => format!("leave it out, or write `algorithm: {}`", owner.name()),
        };
        let owners: Vec<&str> = owners.iter().map(|kind| kind.name()).collect();
        let default = if raw.algorithm.is_none() {
            ", the default"
        } else {
            ""
        };
        let message = format!(
            "`{name}` belongs to {}, and this is a {}{default}: {instead}",
            owners.join(", "),
            kind.name()
        );
        sink.problem(span, message);
    }
}

fn value<T: Copy>(field: &Option<Box<Spanned<T>>>) -> Option<T> {
    field.as_ref().map(|field| field.value)
}

/// Reports `error` at the field that is wrong.
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
    let mut fields = error.fields().iter();
    let place = fields.find_map(|field| raw.span_of(field));
    sink.problem(place.unwrap_or(whole), error.to_string());
    None
}

/// A rate as a type of the core, and the burst that it implies.
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

fn token_bucket(raw: &RawLimit, whole: &Span, sink: &mut Sink) -> Option<Algorithm> {
    let said = match &raw.rate {
        Some(_) => Some(rate(raw, whole, sink)?),
        None => None,
    };
    let of_rate = said.as_ref().map(|said| said.burst);
    let (count, period) = match (&raw.refill, said) {
        (None, None) => {
            let message =
                "a token_bucket needs a rate: write `rate: COUNT/PERIOD`, such as `100/s`";
            sink.problem(whole, message);
            return None;
        }
        (None, Some(said)) => (said.rate.count(), said.rate.period()),
        (Some(refill), said) => {
            let (amount, every) = (refill.value.amount.value, refill.value.every.value);
            if let (Some(said), Ok(implied)) = (said, Rate::new(amount, every))
                && !said.rate.equals(implied)
            {
                report::<()>(Err(LimitError::RefillDisagrees), raw, whole, sink);
                return None;
            }
            (amount, every)
        }
    };
    Some(Algorithm::TokenBucket(TokenBucket {
        count,
        period,
        in_batches: raw.refill.is_some(),
        burst: value(&raw.burst).or(of_rate.filter(|_| raw.warm_up.is_none())),
        initial: value(&raw.initial),
        debt: value(&raw.debt).unwrap_or(false),
        warm_up: value(&raw.warm_up),
        cold_factor: value(&raw.cold_factor),
    }))
}

fn concurrency(raw: &RawLimit, whole: &Span, sink: &mut Sink) -> Option<Algorithm> {
    let (min, max) = match (&raw.max, &raw.adaptive) {
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
        (Some(max), None) => (None, max.value),
        (None, Some(field)) => (Some(field.value.min.value), field.value.max.value),
    };
    if let (Some(unit), None) = (&raw.unit_delay, &raw.queue) {
        let message = "only calls in the queue are delayed: write `queue`, or leave it out";
        sink.problem(&unit.span, message);
        return None;
    }
    Some(Algorithm::Concurrency(Concurrency {
        max,
        min,
        queue: value(&raw.queue).unwrap_or(0),
        lease: value(&raw.lease).unwrap_or(DEFAULT_LEASE),
        unit_delay: value(&raw.unit_delay).unwrap_or_default(),
    }))
}

fn leaky_bucket(raw: &RawLimit, whole: &Span, sink: &mut Sink) -> Option<Algorithm> {
    if raw.rate.is_none() {
        let message = "a leaky_bucket needs a rate: write `rate: COUNT/PERIOD`, such as `2/s`";
        sink.problem(whole, message);
        return None;
    }
    let own = rate(raw, whole, sink)?;
    let burst = value(&raw.burst).unwrap_or(own.burst);
    Some(Algorithm::LeakyBucket(LeakyBucket {
        rate: own.rate,
        burst,
        delay_after: match value(&raw.delay_after) {
            Some(DelayAfter::Units(units)) => units,
            Some(DelayAfter::Burst) => burst,
            None => 0,
        },
    }))
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
        (Some(limit), Some(window)) => return Some((limit.value, &**window)),
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

/// The value of a field; reports the error if it has none.
fn or_report<T>(value: Result<T, String>, span: &Span, sink: &mut Sink) -> Option<T> {
    value.map_err(|message| sink.problem(span, message)).ok()
}

fn fixed_window(raw: &RawLimit, whole: &Span, sink: &mut Sink) -> Option<Algorithm> {
    let (limit, field) = window(raw, Kind::FixedWindow, whole, sink)?;
    let window = if value(&raw.align) == Some(Align::Calendar) {
        let unit = or_report(field.value.on_calendar(), &field.span, sink)?;
        let zone = raw.time_zone.as_ref().map(|zone| Arc::clone(&zone.value));
        let zone = zone.unwrap_or_else(|| Arc::from("UTC"));
        let anchor = match &raw.anchor {
            Some(anchor) => or_report(anchor.value.of(unit), &anchor.span, sink)?,
            None => Anchor::UnitStart,
        };
        Window::Calendar(Calendar { unit, zone, anchor })
    } else {
        if let Some(zone) = &raw.time_zone {
            let message = "a time zone means something on the calendar only: write `align: calendar`, or leave it out";
            sink.problem(&zone.span, message);
            return None;
        }
        if let Some(anchor) = &raw.anchor {
            let message = "an anchor means something on the calendar only: write `align: calendar`, or leave it out";
            sink.problem(&anchor.span, message);
            return None;
        }
        Window::FirstRequest(or_report(field.value.in_window(), &field.span, sink)?)
    };
    Some(Algorithm::FixedWindow(FixedWindow {
        limit,
        window,
        overdraft: false,
    }))
}

fn sliding(raw: &RawLimit, kind: Kind, whole: &Span, sink: &mut Sink) -> Option<Algorithm> {
    let (limit, window) = window(raw, kind, whole, sink)?;
    let window = or_report(window.value.in_window(), &window.span, sink)?;
    Some(if kind == Kind::SlidingWindow {
        Algorithm::SlidingWindow(SlidingWindow {
            limit,
            window,
            segments: value(&raw.segments).unwrap_or(DEFAULT_SEGMENTS),
        })
    } else {
        Algorithm::SlidingLog(SlidingLog {
            limit,
            window,
            max_entries: value(&raw.max_entries).unwrap_or(DEFAULT_MAX_ENTRIES),
        })
    })
}

fn build_ban(ban: &RawBan, raw: &RawLimit, whole: &Span, sink: &mut Sink) -> Option<Ban> {
    let durations = ban.durations.value.clone();
    let within = ban.within.as_ref().map(|field| field.value);
    let ban = Ban::new(ban.after.value, within, durations);
    report(ban, raw, whole, sink)
}
