//! The fields of a limit, as they were written in a rule or an override.

use std::sync::Arc;
use std::time::Duration;

use quell_core::hold::OnExpiry;

use crate::anchor::WrittenAnchor;
use crate::cursor::{Cursor, Fields, Shape};
use crate::duration;
use crate::fields::{ADAPTIVE, BAN, REFILL};
use crate::hint;
use crate::kind::Kind;
use crate::path::{Span, Spanned};
use crate::period::{PerPeriod, Period, flag, small, whole};
use crate::problem::Sink;

/// Declares [`RawLimit`]: each field, its type, and the function that reads it.
macro_rules! raw_limit {
    ($($field:ident: $type:ty = $read:expr,)*) => {
        /// The fields of a limit, as written. Each is in a box: a hundred thousand overrides set one or two of them.
        #[derive(Clone, Debug, Default)]
        pub(crate) struct RawLimit {
            $(pub(crate) $field: Option<Box<Spanned<$type>>>,)*
        }

        impl RawLimit {
            fn read_fields(fields: &Fields<'_>, sink: &mut Sink) -> Self {
                Self {
                    $($field: fields
                        .get(stringify!($field))
                        .and_then(|it| $read(&it, sink))
                        .map(Box::new),)*
                }
            }

            /// The name and the place of each field that is set.
            pub(crate) fn set_fields(&self) -> impl Iterator<Item = (&'static str, &Span)> {
                let fields = [
                    $((stringify!($field), self.$field.as_ref().map(|field| &field.span)),)*
                ];
                fields.into_iter().filter_map(|(name, span)| Some((name, span?)))
            }

            /// Takes each field that is not set and that `takes` names from `rule`, as written at
            /// `span`.
            fn inherit(&mut self, rule: &Self, span: &Span, takes: impl Fn(&str) -> bool) {
                $(if let (None, Some(field)) = (&self.$field, &rule.$field)
                    && takes(stringify!($field))
                {
                    self.$field = Some(Box::new(field.moved(span)));
                })*
            }
        }
    };
}

raw_limit! {
    algorithm: Kind = text(Kind::parse),
    rate: PerPeriod = text(PerPeriod::parse),
    burst: u64 = text(whole),
    refill: RawRefill = read_refill,
    initial: u64 = text(whole),
    delay_after: DelayAfter = text(delay_after),
    limit: u64 = text(limit),
    // The period of `window`, or the part of `limit` after its `/`.
    window: Period = text(Period::parse),
    align: Align = word(&[("first_request", Align::FirstRequest), ("calendar", Align::Calendar)]),
    time_zone: Arc<str> = text(time_zone),
    anchor: WrittenAnchor = text(WrittenAnchor::parse),
    segments: u32 = text(small),
    max_entries: u32 = text(small),
    debt: bool = text(flag),
    warm_up: Duration = text(duration::parse),
    cold_factor: u32 = text(small),
    max: u64 = text(whole),
    adaptive: RawAdaptive = read_adaptive,
    queue: u64 = text(whole),
    lease: Duration = text(duration::parse),
    unit_delay: Duration = text(duration::parse),
    on_expiry: OnExpiry = word(&[("charge", OnExpiry::Charge), ("release", OnExpiry::Release)]),
    ban: RawBan = read_ban,
}

/// Reads a single value with `parse`.
fn text<T>(
    parse: fn(&str) -> Result<T, String>,
) -> impl Fn(&Cursor<'_>, &mut Sink) -> Option<Spanned<T>> {
    move |cursor, sink| cursor.read(sink, parse)
}

/// Reads one of these words.
fn word<T: Copy>(words: &[(&str, T)]) -> impl Fn(&Cursor<'_>, &mut Sink) -> Option<Spanned<T>> {
    move |cursor, sink| cursor.read(sink, |text| hint::one_of("value", text, words))
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
    /// The same as the burst, whatever that is: never delay.
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

impl RawLimit {
    pub(crate) fn read(fields: &Fields<'_>, sink: &mut Sink) -> Self {
        let mut raw = Self::read_fields(fields, sink);
        let period = fields.read("limit", sink, |text| Ok(PerPeriod::parse(text).ok()));
        if let (
            Some(limit),
            Some(Spanned {
                value: Some(said),
                span,
            }),
        ) = (&raw.limit, period)
        {
            if let Some(window) = &raw.window {
                let message = format!(
                    "`limit` says the window already: write `limit: {}`, or leave `window` out",
                    limit.value
                );
                sink.problem(&window.span, message);
            }
            let value = said.period;
            raw.window = Some(Box::new(Spanned { value, span }));
        }
        raw
    }

    /// Returns true if the window is the part after the `/` of `limit`.
    pub(crate) fn limit_says_window(&self) -> bool {
        match (&self.limit, &self.window) {
            (Some(limit), Some(window)) => limit.span.at == window.span.at,
            _ => false,
        }
    }

    /// The place of a field, by a name of [`LimitError::fields`](quell_core::limit_error::LimitError::fields).
    pub(crate) fn span_of(&self, name: &str) -> Option<&Span> {
        let refill = self.refill.as_ref().map(|field| &field.value);
        let adaptive = self.adaptive.as_ref().map(|field| &field.value);
        let ban = self.ban.as_ref().map(|field| &field.value);
        Some(match name {
            "refill.amount" => &refill?.amount.span,
            "refill.every" => &refill?.every.span,
            "adaptive.min" => &adaptive?.min.span,
            "adaptive.max" => &adaptive?.max.span,
            "ban.after" => &ban?.after.span,
            "ban.within" => &ban?.within.as_ref()?.span,
            "ban.for" => &ban?.durations.span,
            _ => self.set_fields().find(|(field, _)| *field == name)?.1,
        })
    }

    /// Returns true if any field is set.
    pub(crate) fn says_something(&self) -> bool {
        self.set_fields().next().is_some()
    }

    /// The fields of an override at `span`, completed from its rule.
    ///
    /// A field that the override does not set is the rule's, with these exceptions: `rate` or `refill`
    /// replaces both, `max` or `adaptive` replaces both, and `adaptive` also the queue; one with another window does
    /// not inherit the anchor. With another algorithm or `align`, which are mistakes, it inherits nothing that goes
    /// with the rule's. An inherited field counts as written at `span`, so that a mistake is reported at the
    /// override.
    pub(crate) fn over(&self, rule: &Self, span: &Span) -> Self {
        let kind = |raw: &Self| raw.algorithm.as_ref().map(|field| field.value);
        let is_other = kind(self).is_some_and(|own| own != kind(rule).unwrap_or_default());
        let window = |raw: &Self| raw.window.as_ref().map(|field| field.value);
        let has_other_window = window(self).is_some_and(|own| Some(own) != window(rule));
        let align = |raw: &Self| raw.align.as_ref().map(|field| field.value);
        let has_other_align = align(self).is_some_and(|own| Some(own) != align(rule));
        let mut all = self.clone();
        all.inherit(rule, span, |name| match name {
            _ if is_other => false,
            "rate" | "refill" => self.rate.is_none() && self.refill.is_none(),
            "time_zone" => !has_other_align,
            "anchor" => !has_other_align && !has_other_window,
            "max" | "adaptive" => self.max.is_none() && self.adaptive.is_none(),
            "queue" | "unit_delay" => self.adaptive.is_none(),
            _ => true,
        });
        all
    }
}

impl RawLimit {
    /// An anchor by itself.
    pub(crate) fn read_anchor(
        cursor: &Cursor<'_>,
        sink: &mut Sink,
    ) -> Option<Box<Spanned<WrittenAnchor>>> {
        cursor.read(sink, WrittenAnchor::parse).map(Box::new)
    }

    /// A count of `limit` by itself.
    pub(crate) fn read_count(cursor: &Cursor<'_>, sink: &mut Sink) -> Option<Box<Spanned<u64>>> {
        cursor.read(sink, whole).map(Box::new)
    }

    /// A time zone by itself.
    pub(crate) fn read_time_zone(
        cursor: &Cursor<'_>,
        sink: &mut Sink,
    ) -> Option<Box<Spanned<Arc<str>>>> {
        cursor.read(sink, time_zone).map(Box::new)
    }
}

/// The count of `limit`.
fn limit(text: &str) -> Result<u64, String> {
    if !text.contains('/') {
        return whole(text);
    }
    let count = PerPeriod::parse(text)?.count;
    if count.has_fraction() {
        let text = hint::shorten(text);
        return Err(format!(
            "`{text}` is a part of a unit: write a whole number per longer window, or `rate` with a bucket"
        ));
    }
    Ok(count.floor())
}

fn delay_after(text: &str) -> Result<DelayAfter, String> {
    match text {
        "burst" => Ok(DelayAfter::Burst),
        _ if text.starts_with(|c: char| c.is_ascii_digit() || c == '-') => {
            whole(text).map(DelayAfter::Units)
        }
        _ => Err(format!(
            "`{}` is not a number of units: write digits such as `2`, or `burst` never to delay",
            hint::shorten(text)
        )),
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
    let message = "a refill needs both fields: write `{amount: 100, every: 1s}`";
    fields.require(&["amount", "every"], message, sink);
    let amount = fields.read("amount", sink, whole);
    let every = fields.read("every", sink, duration::parse);
    Some(cursor.spanned(RawRefill {
        amount: amount?,
        every: every?,
    }))
}

fn read_adaptive(cursor: &Cursor<'_>, sink: &mut Sink) -> Option<Spanned<RawAdaptive>> {
    let fields = cursor.fields(&ADAPTIVE, sink)?;
    let message = "what is learned needs both bounds: write `{min: 2, max: 50}`";
    fields.require(&["min", "max"], message, sink);
    let min = fields.read("min", sink, whole);
    let max = fields.read("max", sink, whole);
    Some(cursor.spanned(RawAdaptive {
        min: min?,
        max: max?,
    }))
}

fn read_ban(cursor: &Cursor<'_>, sink: &mut Sink) -> Option<Spanned<RawBan>> {
    let fields = cursor.fields(&BAN, sink)?;
    let message = "a ban needs `after` and `for`: write `{after: 3, within: 10m, for: [1m, 10m]}`";
    fields.require(&["after", "for"], message, sink);
    let after = fields.read("after", sink, small);
    let within = fields.read("within", sink, duration::parse);
    let durations = fields.get("for").and_then(|it| read_durations(&it, sink));
    Some(cursor.spanned(RawBan {
        after: after?,
        within,
        durations: durations?,
    }))
}

fn read_durations(cursor: &Cursor<'_>, sink: &mut Sink) -> Option<Spanned<Vec<Duration>>> {
    let items = match cursor.shape()? {
        Shape::List(_) => cursor.items("a duration such as `1m`", sink),
        _ => vec![cursor.clone()],
    };
    let before = sink.count();
    let lengths = items
        .iter()
        .filter_map(|item| item.read(sink, duration::parse));
    let lengths: Vec<Duration> = lengths.map(|field| field.value).collect();
    (sink.count() == before).then(|| cursor.spanned(lengths))
}
