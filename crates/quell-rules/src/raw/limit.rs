//! The fields of a limit, as they were written in a rule or an override.

use std::sync::Arc;
use std::time::Duration;

use quell_core::hold::OnExpiry;

use crate::cursor::{Cursor, Fields, Shape};
use crate::duration;
use crate::fields::{ADAPTIVE, BAN, REFILL};
use crate::hint;
use crate::kind::Kind;
use crate::path::{Span, Spanned};
use crate::period::{PerPeriod, Period, flag, small, whole};
use crate::problem::Sink;

/// What was said of a limit.
#[derive(Clone, Debug, Default)]
pub(crate) struct RawLimit {
    pub(crate) algorithm: Option<Spanned<Kind>>,
    pub(crate) rate: Option<Spanned<PerPeriod>>,
    pub(crate) burst: Option<Spanned<u64>>,
    pub(crate) refill: Option<Spanned<RawRefill>>,
    pub(crate) initial: Option<Spanned<u64>>,
    pub(crate) delay_after: Option<Spanned<DelayAfter>>,
    pub(crate) limit: Option<Spanned<u64>>,
    /// Spanned by `window`, or behind the `/` of `limit`.
    pub(crate) window: Option<Spanned<Period>>,
    pub(crate) align: Option<Spanned<Align>>,
    pub(crate) time_zone: Option<Spanned<Arc<str>>>,
    pub(crate) segments: Option<Spanned<u32>>,
    pub(crate) max_entries: Option<Spanned<u32>>,
    pub(crate) debt: Option<Spanned<bool>>,
    pub(crate) warm_up: Option<Spanned<Duration>>,
    pub(crate) cold_factor: Option<Spanned<u32>>,
    pub(crate) max: Option<Spanned<u64>>,
    pub(crate) adaptive: Option<Spanned<RawAdaptive>>,
    pub(crate) queue: Option<Spanned<u64>>,
    pub(crate) lease: Option<Spanned<Duration>>,
    pub(crate) unit_delay: Option<Spanned<Duration>>,
    pub(crate) on_expiry: Option<Spanned<OnExpiry>>,
    pub(crate) ban: Option<Spanned<RawBan>>,
}

/// `refill`.
#[derive(Clone, Debug)]
pub(crate) struct RawRefill {
    pub(crate) amount: Spanned<u64>,
    pub(crate) every: Spanned<Duration>,
}

/// `adaptive`.
#[derive(Clone, Debug)]
pub(crate) struct RawAdaptive {
    pub(crate) min: Spanned<u64>,
    pub(crate) max: Spanned<u64>,
}

/// `delay_after`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DelayAfter {
    Units(u64),
    /// As many as the burst, whatever that is: never delay.
    Burst,
}

/// `align`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    FirstRequest,
    Calendar,
}

/// `ban`.
#[derive(Clone, Debug)]
pub(crate) struct RawBan {
    pub(crate) after: Spanned<u32>,
    pub(crate) within: Option<Spanned<Duration>>,
    pub(crate) durations: Spanned<Vec<Duration>>,
}

/// What `limit` says.
enum LimitNumber {
    Count(u64),
    PerPeriod(u64, Period),
}

impl RawLimit {
    pub(crate) fn read(fields: &Fields<'_>, sink: &mut Sink) -> Self {
        let mut raw = Self {
            algorithm: fields.read("algorithm", sink, Kind::parse),
            rate: fields.read("rate", sink, PerPeriod::parse),
            burst: fields.read("burst", sink, whole),
            refill: fields
                .get("refill")
                .and_then(|refill| read_refill(&refill, sink)),
            initial: fields.read("initial", sink, whole),
            delay_after: fields.read("delay_after", sink, delay_after),
            limit: None,
            window: fields.read("window", sink, Period::parse),
            align: fields.read("align", sink, align),
            time_zone: fields.read("time_zone", sink, time_zone),
            segments: fields.read("segments", sink, small),
            max_entries: fields.read("max_entries", sink, small),
            debt: fields.read("debt", sink, flag),
            warm_up: fields.read("warm_up", sink, duration::parse),
            cold_factor: fields.read("cold_factor", sink, small),
            max: fields.read("max", sink, whole),
            adaptive: fields
                .get("adaptive")
                .and_then(|adaptive| read_adaptive(&adaptive, sink)),
            queue: fields.read("queue", sink, whole),
            lease: fields.read("lease", sink, duration::parse),
            unit_delay: fields.read("unit_delay", sink, duration::parse),
            on_expiry: fields.read("on_expiry", sink, on_expiry),
            ban: fields.get("ban").and_then(|ban| read_ban(&ban, sink)),
        };
        if let Some(Spanned { value, span }) = fields.read("limit", sink, limit) {
            raw.set_limit(value, span, sink);
        }
        raw
    }

    fn set_limit(&mut self, number: LimitNumber, span: Span, sink: &mut Sink) {
        let count = match number {
            LimitNumber::Count(count) => count,
            LimitNumber::PerPeriod(count, value) => {
                if let Some(window) = &self.window {
                    let message = format!(
                        "`limit` says the window already: write `limit: {count}`, or leave `window` out"
                    );
                    sink.problem(&window.span, message);
                }
                let span = span.clone();
                self.window = Some(Spanned { value, span });
                count
            }
        };
        self.limit = Some(Spanned { value: count, span });
    }

    /// Each field that is set and belongs to some algorithms only.
    pub(crate) fn algorithm_fields(&self) -> Vec<(&'static str, &Span)> {
        fn span<'s, T>(
            name: &'static str,
            field: &'s Option<Spanned<T>>,
        ) -> Option<(&'static str, &'s Span)> {
            field.as_ref().map(|field| (name, &field.span))
        }
        let limit_says_window = match (&self.limit, &self.window) {
            (Some(limit), Some(window)) => limit.span.at == window.span.at,
            _ => false,
        };
        [
            span("rate", &self.rate),
            span("burst", &self.burst),
            span("refill", &self.refill),
            span("initial", &self.initial),
            span("delay_after", &self.delay_after),
            span("limit", &self.limit),
            span("window", &self.window).filter(|_| !limit_says_window),
            span("align", &self.align),
            span("time_zone", &self.time_zone),
            span("segments", &self.segments),
            span("max_entries", &self.max_entries),
            span("debt", &self.debt),
            span("warm_up", &self.warm_up),
            span("cold_factor", &self.cold_factor),
            span("max", &self.max),
            span("adaptive", &self.adaptive),
            span("queue", &self.queue),
            span("lease", &self.lease),
            span("unit_delay", &self.unit_delay),
            span("on_expiry", &self.on_expiry),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Where a field is set, by a name of [`LimitError::fields`](quell_core::limit::LimitError::fields).
    pub(crate) fn span_of(&self, name: &str) -> Option<&Span> {
        let refill = self.refill.as_ref().map(|field| &field.value);
        let adaptive = self.adaptive.as_ref().map(|field| &field.value);
        let ban = self.ban.as_ref().map(|field| &field.value);
        match name {
            "refill.amount" => refill.map(|refill| &refill.amount.span),
            "refill.every" => refill.map(|refill| &refill.every.span),
            "adaptive.min" => adaptive.map(|adaptive| &adaptive.min.span),
            "adaptive.max" => adaptive.map(|adaptive| &adaptive.max.span),
            "ban.after" => ban.map(|ban| &ban.after.span),
            "ban.within" => ban.and_then(|ban| ban.within.as_ref().map(|field| &field.span)),
            "ban.for" => ban.map(|ban| &ban.durations.span),
            _ => {
                let mut fields = self.algorithm_fields().into_iter();
                fields.find_map(|(field, span)| (field == name).then_some(span))
            }
        }
    }

    /// Whether any field is set.
    pub(crate) fn says_something(&self) -> bool {
        self.algorithm.is_some() || self.ban.is_some() || !self.algorithm_fields().is_empty()
    }

    /// The fields of an override at `span`, completed from its rule.
    ///
    /// A field that the override does not set is the rule's, with these exceptions: `rate` or `refill`
    /// replaces both, `max` or `adaptive` replaces both, and `adaptive` also the queue; an override
    /// with another algorithm inherits only the ban; one with another `align` does not inherit the time
    /// zone. An inherited field counts as written at `span`, so that a mistake is reported at the
    /// override.
    pub(crate) fn over(&self, rule: &Self, span: &Span) -> Self {
        let kind = |raw: &Self| raw.algorithm.as_ref().map(|field| field.value);
        let mut all = self.clone();
        inherit(&mut all.ban, &rule.ban, span);
        if kind(self).is_some_and(|own| own != kind(rule).unwrap_or_default()) {
            return all;
        }
        inherit(&mut all.algorithm, &rule.algorithm, span);
        if all.rate.is_none() && all.refill.is_none() {
            inherit(&mut all.rate, &rule.rate, span);
            inherit(&mut all.refill, &rule.refill, span);
        }
        inherit(&mut all.burst, &rule.burst, span);
        inherit(&mut all.initial, &rule.initial, span);
        inherit(&mut all.delay_after, &rule.delay_after, span);
        inherit(&mut all.limit, &rule.limit, span);
        inherit(&mut all.window, &rule.window, span);
        if all.align.is_none() {
            inherit(&mut all.align, &rule.align, span);
            inherit(&mut all.time_zone, &rule.time_zone, span);
        }
        inherit(&mut all.segments, &rule.segments, span);
        inherit(&mut all.max_entries, &rule.max_entries, span);
        inherit(&mut all.debt, &rule.debt, span);
        inherit(&mut all.warm_up, &rule.warm_up, span);
        inherit(&mut all.cold_factor, &rule.cold_factor, span);
        if all.max.is_none() && all.adaptive.is_none() {
            inherit(&mut all.max, &rule.max, span);
            inherit(&mut all.adaptive, &rule.adaptive, span);
        }
        if self.adaptive.is_none() {
            inherit(&mut all.queue, &rule.queue, span);
            inherit(&mut all.unit_delay, &rule.unit_delay, span);
        }
        inherit(&mut all.lease, &rule.lease, span);
        inherit(&mut all.on_expiry, &rule.on_expiry, span);
        all
    }
}

/// Copies the rule's value if the override does not set the field.
fn inherit<T: Clone>(own: &mut Option<Spanned<T>>, rule: &Option<Spanned<T>>, span: &Span) {
    if own.is_none() {
        *own = rule.as_ref().map(|field| Spanned {
            value: field.value.clone(),
            span: span.clone(),
        });
    }
}

fn limit(text: &str) -> Result<LimitNumber, String> {
    if !text.contains('/') {
        return whole(text).map(LimitNumber::Count);
    }
    let PerPeriod { count, period } = PerPeriod::parse(text)?;
    if count.has_fraction() {
        let text = hint::shorten(text);
        return Err(format!(
            "`{text}` is a part of a unit: write a whole number per longer window, or `rate` with a bucket"
        ));
    }
    Ok(LimitNumber::PerPeriod(count.floor(), period))
}

fn delay_after(text: &str) -> Result<DelayAfter, String> {
    match text {
        "burst" => Ok(DelayAfter::Burst),
        _ if text.starts_with(|c: char| c.is_ascii_digit() || c == '-') => {
            whole(text).map(DelayAfter::Units)
        }
        _ => {
            let shown = hint::shorten(text);
            Err(format!(
                "`{shown}` is no number of units: write digits such as `2`, or `burst` never to delay"
            ))
        }
    }
}

fn align(text: &str) -> Result<Align, String> {
    match text {
        "first_request" => Ok(Align::FirstRequest),
        "calendar" => Ok(Align::Calendar),
        _ => Err(hint::no_such("value", text, &["first_request", "calendar"])),
    }
}

fn on_expiry(text: &str) -> Result<OnExpiry, String> {
    match text {
        "charge" => Ok(OnExpiry::Charge),
        "release" => Ok(OnExpiry::Release),
        _ => Err(hint::no_such("value", text, &["charge", "release"])),
    }
}

/// The canonical name of a time zone.
fn time_zone(text: &str) -> Result<Arc<str>, String> {
    let known = jiff::tz::db().get(text).ok();
    if let Some(name) = known.as_ref().and_then(jiff::tz::TimeZone::iana_name) {
        return Ok(Arc::from(name));
    }
    let shown = hint::shorten(text);
    let names: Vec<String> = jiff::tz::db()
        .available()
        .map(|name| name.to_string())
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    Err(match hint::meant(text, &names) {
        Some(meant) => {
            format!("unknown time zone `{shown}`, did you mean `{meant}`? write an IANA name")
        }
        None => format!("unknown time zone `{shown}`: write an IANA name such as `Europe/Berlin`"),
    })
}

fn read_refill(cursor: &Cursor<'_>, sink: &mut Sink) -> Option<Spanned<RawRefill>> {
    let fields = cursor.fields(&REFILL, sink)?;
    if fields.lacks("amount") || fields.lacks("every") {
        let message = "a refill needs both fields: write `{amount: 100, every: 1s}`";
        sink.problem(cursor.span(), message);
    }
    let amount = fields.read("amount", sink, whole);
    let every = fields.read("every", sink, duration::parse);
    Some(cursor.spanned(RawRefill {
        amount: amount?,
        every: every?,
    }))
}

fn read_adaptive(cursor: &Cursor<'_>, sink: &mut Sink) -> Option<Spanned<RawAdaptive>> {
    let fields = cursor.fields(&ADAPTIVE, sink)?;
    if fields.lacks("min") || fields.lacks("max") {
        let message = "what is learned needs both bounds: write `{min: 2, max: 50}`";
        sink.problem(cursor.span(), message);
    }
    let min = fields.read("min", sink, whole);
    let max = fields.read("max", sink, whole);
    Some(cursor.spanned(RawAdaptive {
        min: min?,
        max: max?,
    }))
}

fn read_ban(cursor: &Cursor<'_>, sink: &mut Sink) -> Option<Spanned<RawBan>> {
    let fields = cursor.fields(&BAN, sink)?;
    if fields.lacks("after") || fields.lacks("for") {
        let message =
            "a ban needs `after` and `for`: write `{after: 3, within: 10m, for: [1m, 10m]}`";
        sink.problem(cursor.span(), message);
    }
    let after = fields.read("after", sink, small);
    let within = fields.read("within", sink, duration::parse);
    let durations = fields
        .get("for")
        .and_then(|list| read_durations(&list, sink));
    let ban = RawBan {
        after: after?,
        within,
        durations: durations?,
    };
    Some(cursor.spanned(ban))
}

fn read_durations(cursor: &Cursor<'_>, sink: &mut Sink) -> Option<Spanned<Vec<Duration>>> {
    let items = match cursor.shape()? {
        Shape::List(_) => cursor.items("a duration such as `1m`", sink)?,
        _ => vec![cursor.clone()],
    };
    let before = sink.count();
    let lengths = items
        .iter()
        .filter_map(|item| item.read(sink, duration::parse));
    let lengths: Vec<Duration> = lengths.map(|field| field.value).collect();
    (sink.count() == before).then(|| cursor.spanned(lengths))
}
