//! The fields that make a limit, as they were said in a rule or an override.

use std::sync::Arc;
use std::time::Duration;

use quell_core::hold::OnExpiry;

use crate::cursor::{Cursor, Fields, Shape};
use crate::duration;
use crate::fields::{ADAPTIVE, BAN, REFILL};
use crate::hint;
use crate::kind::Kind;
use crate::path::{Said, Spot};
use crate::period::{PerPeriod, Period, flag, small, whole};
use crate::problem::Sink;

/// What was said of a limit.
#[derive(Clone, Debug, Default)]
pub(crate) struct RawLimit {
    pub(crate) algorithm: Option<Said<Kind>>,
    pub(crate) rate: Option<Said<PerPeriod>>,
    pub(crate) burst: Option<Said<u64>>,
    pub(crate) refill: Option<Said<RawRefill>>,
    pub(crate) initial: Option<Said<u64>>,
    pub(crate) delay_after: Option<Said<DelayAfter>>,
    pub(crate) limit: Option<Said<u64>>,
    /// Said by `window`, or behind the `/` of `limit`.
    pub(crate) window: Option<Said<Period>>,
    pub(crate) align: Option<Said<Align>>,
    pub(crate) time_zone: Option<Said<Arc<str>>>,
    pub(crate) segments: Option<Said<u32>>,
    pub(crate) max_entries: Option<Said<u32>>,
    pub(crate) debt: Option<Said<bool>>,
    pub(crate) warm_up: Option<Said<Duration>>,
    pub(crate) cold_factor: Option<Said<u32>>,
    pub(crate) max: Option<Said<u64>>,
    pub(crate) adaptive: Option<Said<RawAdaptive>>,
    pub(crate) queue: Option<Said<u64>>,
    pub(crate) lease: Option<Said<Duration>>,
    pub(crate) unit_delay: Option<Said<Duration>>,
    pub(crate) on_expiry: Option<Said<OnExpiry>>,
    pub(crate) ban: Option<Said<RawBan>>,
}

/// `refill`.
#[derive(Clone, Debug)]
pub(crate) struct RawRefill {
    pub(crate) amount: Said<u64>,
    pub(crate) every: Said<Duration>,
}

/// `adaptive`.
#[derive(Clone, Debug)]
pub(crate) struct RawAdaptive {
    pub(crate) min: Said<u64>,
    pub(crate) max: Said<u64>,
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
    pub(crate) after: Said<u32>,
    pub(crate) within: Option<Said<Duration>>,
    pub(crate) durations: Said<Vec<Duration>>,
}

/// What `limit` says.
enum LimitSaid {
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
        if let Some(Said { value, spot }) = fields.read("limit", sink, limit) {
            raw.say_limit(value, spot, sink);
        }
        raw
    }

    fn say_limit(&mut self, said: LimitSaid, spot: Spot, sink: &mut Sink) {
        let count = match said {
            LimitSaid::Count(count) => count,
            LimitSaid::PerPeriod(count, value) => {
                if let Some(window) = &self.window {
                    let message = format!(
                        "`limit` says the window already: write `limit: {count}`, or leave `window` out"
                    );
                    sink.problem(&window.spot, message);
                }
                let spot = spot.clone();
                self.window = Some(Said { value, spot });
                count
            }
        };
        self.limit = Some(Said { value: count, spot });
    }

    /// Each field that is said and belongs to some algorithms only.
    pub(crate) fn said(&self) -> Vec<(&'static str, &Spot)> {
        fn spot<'s, T>(
            name: &'static str,
            said: &'s Option<Said<T>>,
        ) -> Option<(&'static str, &'s Spot)> {
            said.as_ref().map(|said| (name, &said.spot))
        }
        let limit_says_window = match (&self.limit, &self.window) {
            (Some(limit), Some(window)) => limit.spot.at == window.spot.at,
            _ => false,
        };
        [
            spot("rate", &self.rate),
            spot("burst", &self.burst),
            spot("refill", &self.refill),
            spot("initial", &self.initial),
            spot("delay_after", &self.delay_after),
            spot("limit", &self.limit),
            spot("window", &self.window).filter(|_| !limit_says_window),
            spot("align", &self.align),
            spot("time_zone", &self.time_zone),
            spot("segments", &self.segments),
            spot("max_entries", &self.max_entries),
            spot("debt", &self.debt),
            spot("warm_up", &self.warm_up),
            spot("cold_factor", &self.cold_factor),
            spot("max", &self.max),
            spot("adaptive", &self.adaptive),
            spot("queue", &self.queue),
            spot("lease", &self.lease),
            spot("unit_delay", &self.unit_delay),
            spot("on_expiry", &self.on_expiry),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Whether it says anything at all.
    pub(crate) fn says_something(&self) -> bool {
        self.algorithm.is_some() || self.ban.is_some() || !self.said().is_empty()
    }

    /// What an override with these fields, at `spot`, means beside those of its rule.
    ///
    /// What is not said is the rule's, with these exceptions: of `rate` and `refill` one takes the
    /// place of both, and so does one of `max` and `adaptive`, the latter of the queue too; another
    /// algorithm takes over nothing but the ban; another `align` does not take over the time zone. What is taken over counts as said at `spot`, so that a mistake is
    /// told where the two meet.
    pub(crate) fn over(&self, rule: &Self, spot: &Spot) -> Self {
        let kind = |raw: &Self| raw.algorithm.as_ref().map(|said| said.value);
        let mut all = self.clone();
        inherit(&mut all.ban, &rule.ban, spot);
        if kind(self).is_some_and(|own| own != kind(rule).unwrap_or_default()) {
            return all;
        }
        inherit(&mut all.algorithm, &rule.algorithm, spot);
        if all.rate.is_none() && all.refill.is_none() {
            inherit(&mut all.rate, &rule.rate, spot);
            inherit(&mut all.refill, &rule.refill, spot);
        }
        inherit(&mut all.burst, &rule.burst, spot);
        inherit(&mut all.initial, &rule.initial, spot);
        inherit(&mut all.delay_after, &rule.delay_after, spot);
        inherit(&mut all.limit, &rule.limit, spot);
        inherit(&mut all.window, &rule.window, spot);
        if all.align.is_none() {
            inherit(&mut all.align, &rule.align, spot);
            inherit(&mut all.time_zone, &rule.time_zone, spot);
        }
        inherit(&mut all.segments, &rule.segments, spot);
        inherit(&mut all.max_entries, &rule.max_entries, spot);
        inherit(&mut all.debt, &rule.debt, spot);
        inherit(&mut all.warm_up, &rule.warm_up, spot);
        inherit(&mut all.cold_factor, &rule.cold_factor, spot);
        if all.max.is_none() && all.adaptive.is_none() {
            inherit(&mut all.max, &rule.max, spot);
            inherit(&mut all.adaptive, &rule.adaptive, spot);
        }
        if self.adaptive.is_none() {
            inherit(&mut all.queue, &rule.queue, spot);
            inherit(&mut all.unit_delay, &rule.unit_delay, spot);
        }
        inherit(&mut all.lease, &rule.lease, spot);
        inherit(&mut all.on_expiry, &rule.on_expiry, spot);
        all
    }
}

/// Takes over what is not said.
fn inherit<T: Clone>(own: &mut Option<Said<T>>, rule: &Option<Said<T>>, spot: &Spot) {
    if own.is_none() {
        *own = rule.as_ref().map(|said| Said {
            value: said.value.clone(),
            spot: spot.clone(),
        });
    }
}

fn limit(text: &str) -> Result<LimitSaid, String> {
    if !text.contains('/') {
        return whole(text).map(LimitSaid::Count);
    }
    let PerPeriod { count, period } = PerPeriod::parse(text)?;
    if count.has_fraction() {
        let text = hint::shorten(text);
        return Err(format!(
            "`{text}` is a part of a unit: write a whole number per longer window, or `rate` with a bucket"
        ));
    }
    Ok(LimitSaid::PerPeriod(count.floor(), period))
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

fn read_refill(cursor: &Cursor<'_>, sink: &mut Sink) -> Option<Said<RawRefill>> {
    let fields = cursor.fields(&REFILL, sink)?;
    if fields.lacks("amount") || fields.lacks("every") {
        let message = "a refill needs both fields: write `{amount: 100, every: 1s}`";
        sink.problem(cursor.spot(), message);
    }
    let amount = fields.read("amount", sink, whole);
    let every = fields.read("every", sink, duration::parse);
    Some(cursor.said(RawRefill {
        amount: amount?,
        every: every?,
    }))
}

fn read_adaptive(cursor: &Cursor<'_>, sink: &mut Sink) -> Option<Said<RawAdaptive>> {
    let fields = cursor.fields(&ADAPTIVE, sink)?;
    if fields.lacks("min") || fields.lacks("max") {
        let message = "what is learned needs both bounds: write `{min: 2, max: 50}`";
        sink.problem(cursor.spot(), message);
    }
    let min = fields.read("min", sink, whole);
    let max = fields.read("max", sink, whole);
    Some(cursor.said(RawAdaptive {
        min: min?,
        max: max?,
    }))
}

fn read_ban(cursor: &Cursor<'_>, sink: &mut Sink) -> Option<Said<RawBan>> {
    let fields = cursor.fields(&BAN, sink)?;
    if fields.lacks("after") || fields.lacks("for") {
        let message =
            "a ban needs `after` and `for`: write `{after: 3, within: 10m, for: [1m, 10m]}`";
        sink.problem(cursor.spot(), message);
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
    Some(cursor.said(ban))
}

fn read_durations(cursor: &Cursor<'_>, sink: &mut Sink) -> Option<Said<Vec<Duration>>> {
    let items = match cursor.shape()? {
        Shape::List(_) => cursor.items("a duration such as `1m`", sink)?,
        _ => vec![cursor.clone()],
    };
    let before = sink.count();
    let lengths = items
        .iter()
        .filter_map(|item| item.read(sink, duration::parse));
    let lengths: Vec<Duration> = lengths.map(|said| said.value).collect();
    (sink.count() == before).then(|| cursor.said(lengths))
}
