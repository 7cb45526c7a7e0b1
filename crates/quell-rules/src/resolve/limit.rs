//! From the fields that were said to a limit that was proved possible.

use std::time::Duration;

use quell_core::algorithm::Algorithm;
use quell_core::ban::Ban;
use quell_core::limit::{Limit, LimitError};
use quell_core::rate::{MAX_PERIOD, Rate};

use crate::fields::RULE;
use crate::kind::Kind;
use crate::path::{Said, Spot};
use crate::period::Period;
use crate::problem::Sink;
use crate::raw::{Align, DelayAfter, RawBan, RawLimit};

/// Builds the limit; what is wrong is told at the field that is to blame.
///
/// `spot` is that of the rule or override as a whole.
pub(crate) fn build(raw: &RawLimit, spot: &Spot, sink: &mut Sink) -> Option<Limit> {
    let before = sink.count();
    let kind = raw
        .algorithm
        .as_ref()
        .map(|said| said.value)
        .unwrap_or_default();
    check_belonging(raw, kind, sink);
    if sink.count() > before {
        return None;
    }
    let limit = match kind {
        Kind::TokenBucket => token_bucket(raw, spot, sink),
        Kind::LeakyBucket => leaky_bucket(raw, spot, sink),
        Kind::FixedWindow => fixed_window(raw, spot, sink),
        Kind::SlidingWindow | Kind::SlidingLog => sliding(raw, kind, spot, sink),
        Kind::Concurrency => concurrency(raw, spot, sink),
    };
    let ban = match &raw.ban {
        None => None,
        Some(said) => Some(build_ban(&said.value, &said.spot, sink)?),
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
    for (name, spot) in raw.said() {
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
        sink.problem(spot, message);
    }
}

/// The first of these that was said, or the whole.
fn blame<'s>(whole: &'s Spot, candidates: &[Option<&'s Spot>]) -> &'s Spot {
    candidates.iter().flatten().next().copied().unwrap_or(whole)
}

fn spot<T>(said: &Option<Said<T>>) -> Option<&Spot> {
    said.as_ref().map(|said| &said.spot)
}

/// Tells `error` at the field that is to blame.
fn told<T>(
    result: Result<T, LimitError>,
    raw: &RawLimit,
    whole: &Spot,
    sink: &mut Sink,
) -> Option<T> {
    let error = match result {
        Ok(value) => return Some(value),
        Err(error) => error,
    };
    let refill = raw.refill.as_ref().map(|said| &said.value);
    let amount = refill.map(|refill| &refill.amount.spot);
    let every = refill.map(|refill| &refill.every.spot);
    let adaptive = raw.adaptive.as_ref().map(|said| &said.value);
    let min = adaptive.map(|adaptive| &adaptive.min.spot);
    let place = match error {
        LimitError::ZeroRate | LimitError::FastRate => blame(whole, &[spot(&raw.rate), amount]),
        LimitError::ZeroPeriod | LimitError::LongPeriod => {
            blame(whole, &[spot(&raw.rate), every, spot(&raw.window)])
        }
        LimitError::ZeroBurst => blame(whole, &[spot(&raw.burst)]),
        LimitError::ZeroLimit => {
            let max = adaptive
                .map(|adaptive| &adaptive.max)
                .filter(|max| max.value == 0);
            let max = max.map(|max| &max.spot);
            blame(whole, &[spot(&raw.limit), spot(&raw.max), max, min])
        }
        LimitError::MinAboveMax => blame(whole, &[min]),
        LimitError::AdaptiveWithQueue => blame(whole, &[spot(&raw.queue)]),
        LimitError::DebtInBatches => blame(whole, &[spot(&raw.debt)]),
        LimitError::WarmUp => blame(whole, &[spot(&raw.warm_up)]),
        LimitError::ColdFactor | LimitError::ColdFactorAlone => {
            blame(whole, &[spot(&raw.cold_factor)])
        }
        LimitError::WarmUpWithBurst => {
            let refill = raw.refill.as_ref().map(|said| &said.spot);
            let others = [spot(&raw.burst), spot(&raw.initial), refill];
            blame(blame(whole, &[spot(&raw.warm_up)]), &others)
        }
        LimitError::ManyPermits
        | LimitError::ManyPermitsShared
        | LimitError::LargeCeilingShared => {
            let max = adaptive.map(|adaptive| &adaptive.max.spot);
            blame(whole, &[spot(&raw.queue), spot(&raw.max), max])
        }
        LimitError::Lease => blame(whole, &[spot(&raw.lease), spot(&raw.unit_delay)]),
        LimitError::InitialAboveBurst => blame(whole, &[spot(&raw.initial)]),
        LimitError::DelayAfterAboveBurst => blame(whole, &[spot(&raw.delay_after)]),
        LimitError::ZeroRefill => blame(whole, &[amount]),
        LimitError::RefillDisagrees => blame(whole, &[spot(&raw.rate)]),
        LimitError::Segments => blame(whole, &[spot(&raw.segments)]),
        LimitError::ShortSegments => blame(whole, &[spot(&raw.segments), spot(&raw.window)]),
        LimitError::MaxEntries => blame(whole, &[spot(&raw.max_entries)]),
        _ => whole,
    };
    sink.problem(place, error.to_string());
    None
}

/// A rate in the core's terms, and the burst that it implies.
struct RateSaid {
    rate: Rate,
    burst: u64,
}

fn rate(raw: &RawLimit, whole: &Spot, sink: &mut Sink) -> Option<RateSaid> {
    let said = raw.rate.as_ref()?;
    let (count, period) = said.value.in_rate();
    let rate = Rate::new(count, period);
    if rate == Err(LimitError::LongPeriod) && said.value.count.has_fraction() {
        let one_takes = period.as_nanos() / u128::from(count.max(1));
        let instead = match (said.value.simplest(), one_takes > MAX_PERIOD.as_nanos()) {
            (Some(exact), _) => format!("`{exact}`"),
            (None, true) => "a faster rate".to_owned(),
            (None, false) => "fewer decimal places".to_owned(),
        };
        let message =
            format!("in whole units this is {count} in more than 36500 days: write {instead}");
        sink.problem(&said.spot, message);
        return None;
    }
    let rate = told(rate, raw, whole, sink)?;
    let burst = said.value.count.floor().max(1);
    Some(RateSaid { rate, burst })
}

fn token_bucket(raw: &RawLimit, whole: &Spot, sink: &mut Sink) -> Option<Limit> {
    let said = match &raw.rate {
        Some(_) => Some(rate(raw, whole, sink)?),
        None => None,
    };
    let mut bucket = match (&raw.refill, &said) {
        (None, None) => {
            let message =
                "a token_bucket needs a rate: write `rate: COUNT/PERIOD`, such as `100/s`";
            sink.problem(whole, message);
            return None;
        }
        (None, Some(said)) => Limit::token_bucket(said.rate),
        (Some(refill), said) => {
            let (amount, every) = (refill.value.amount.value, refill.value.every.value);
            if let (Some(said), Ok(implied)) = (said, Rate::new(amount, every))
                && !said.rate.equals(implied)
            {
                told::<()>(Err(LimitError::RefillDisagrees), raw, whole, sink);
                return None;
            }
            quell_core::algorithm::token_bucket::TokenBucket::refill(amount, every)
        }
    };
    let burst = raw.burst.as_ref().map(|said| said.value);
    let of_rate = said.map(|said| said.burst);
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
    told(bucket.build(), raw, whole, sink)
}

fn concurrency(raw: &RawLimit, whole: &Spot, sink: &mut Sink) -> Option<Limit> {
    let mut permits = match (&raw.max, &raw.adaptive) {
        (None, None) => {
            let message = "concurrency needs a maximum: write `max: COUNT`, such as `max: 4`, or \
                           `adaptive: {min: 2, max: 50}`";
            sink.problem(whole, message);
            return None;
        }
        (Some(max), Some(_)) => {
            let message = "`adaptive` says the bounds of what is learned: leave `max` out";
            sink.problem(&max.spot, message);
            return None;
        }
        (Some(max), None) => Limit::concurrency(max.value),
        (None, Some(said)) => {
            Limit::concurrency(said.value.max.value).adaptive(said.value.min.value)
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
            sink.problem(&unit.spot, message);
            return None;
        }
        permits = permits.unit_delay(unit.value);
    }
    told(permits.build(), raw, whole, sink)
}

fn leaky_bucket(raw: &RawLimit, whole: &Spot, sink: &mut Sink) -> Option<Limit> {
    if raw.rate.is_none() {
        let message = "a leaky_bucket needs a rate: write `rate: COUNT/PERIOD`, such as `2/s`";
        sink.problem(whole, message);
        return None;
    }
    let said = rate(raw, whole, sink)?;
    let burst = raw.burst.as_ref().map_or(said.burst, |said| said.value);
    let mut bucket = Limit::leaky_bucket(said.rate).burst(burst);
    if let Some(delay_after) = &raw.delay_after {
        bucket = bucket.delay_after(match delay_after.value {
            DelayAfter::Units(units) => units,
            DelayAfter::Burst => burst,
        });
    }
    told(bucket.build(), raw, whole, sink)
}

/// The two numbers that every window needs, said or told to be missing.
fn window<'r>(
    raw: &'r RawLimit,
    kind: Kind,
    whole: &Spot,
    sink: &mut Sink,
) -> Option<(u64, &'r Said<Period>)> {
    let name = kind.name();
    match (&raw.limit, &raw.window) {
        (Some(limit), Some(window)) => return Some((limit.value, window)),
        (Some(limit), None) => {
            let count = limit.value;
            let message = format!(
                "a {name} needs a window: write `limit: {count}/min`, or `window: 1m` beside it"
            );
            sink.problem(&limit.spot, message);
        }
        (None, _) => {
            let message =
                format!("a {name} needs a limit: write `limit: COUNT/PERIOD`, such as `5/min`");
            sink.problem(whole, message);
        }
    }
    None
}

fn length(said: &Said<Period>, sink: &mut Sink) -> Option<Duration> {
    match said.value.in_window() {
        Ok(length) => Some(length),
        Err(message) => {
            sink.problem(&said.spot, message);
            None
        }
    }
}

fn fixed_window(raw: &RawLimit, whole: &Spot, sink: &mut Sink) -> Option<Limit> {
    let (limit, window) = window(raw, Kind::FixedWindow, whole, sink)?;
    let align = raw.align.as_ref().map(|said| said.value);
    let built = if align == Some(Align::Calendar) {
        let unit = match window.value.on_calendar() {
            Ok(unit) => unit,
            Err(message) => {
                sink.problem(&window.spot, message);
                return None;
            }
        };
        let zone = raw.time_zone.as_ref().map_or("UTC", |said| &said.value);
        Limit::calendar_window(limit, unit, zone).build()
    } else {
        if let Some(zone) = &raw.time_zone {
            let message = "a time zone means something on the calendar only: write `align: calendar`, or leave it out";
            sink.problem(&zone.spot, message);
            return None;
        }
        Limit::fixed_window(limit, length(window, sink)?).build()
    };
    told(built, raw, whole, sink)
}

fn sliding(raw: &RawLimit, kind: Kind, whole: &Spot, sink: &mut Sink) -> Option<Limit> {
    let (limit, window) = window(raw, kind, whole, sink)?;
    let window = length(window, sink)?;
    if kind == Kind::SlidingWindow {
        let mut sliding = Limit::sliding_window(limit, window);
        if let Some(segments) = &raw.segments {
            sliding = sliding.segments(segments.value);
        }
        return told(sliding.build(), raw, whole, sink);
    }
    let mut log = Limit::sliding_log(limit, window);
    if let Some(entries) = &raw.max_entries {
        log = log.max_entries(entries.value);
    }
    let bound = log.entry_bound();
    let built = told(log.build(), raw, whole, sink)?;
    if let Algorithm::SlidingWindow(_) = built.algorithm() {
        let message = format!(
            "a limit of {limit} is above max_entries ({bound}), so it is loaded as sliding_window: \
             write `algorithm: sliding_window`, or a larger `max_entries`"
        );
        sink.warn(blame(whole, &[spot(&raw.limit)]), message);
    }
    Some(built)
}

fn build_ban(raw: &RawBan, whole: &Spot, sink: &mut Sink) -> Option<Ban> {
    let within = raw.within.as_ref();
    let durations = raw.durations.value.clone();
    match Ban::new(raw.after.value, within.map(|said| said.value), durations) {
        Ok(ban) => Some(ban),
        Err(error) => {
            let place = match error {
                LimitError::BanAfter => &raw.after.spot,
                LimitError::BanWithin => within.map_or(whole, |said| &said.spot),
                LimitError::BanFor => &raw.durations.spot,
                _ => whole,
            };
            sink.problem(place, error.to_string());
            None
        }
    }
}
