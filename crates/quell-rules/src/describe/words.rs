//! Words: limits and bans as people read them.

use std::time::Duration;

use quell_core::algorithm::Algorithm;
use quell_core::algorithm::fixed_window::Window;
use quell_core::ban::Ban;
use quell_core::limit::Limit;

use crate::duration::Exact;

/// `COUNT/PERIOD`.
fn per(count: u64, length: Duration) -> String {
    let unit = match length.as_nanos() {
        1_000_000_000 => "s",
        60_000_000_000 => "min",
        3_600_000_000_000 => "h",
        86_400_000_000_000 => "day",
        604_800_000_000_000 => "week",
        _ => return format!("{count}/{}", Exact(length)),
    };
    format!("{count}/{unit}")
}

/// A rate, in which a month has 30 days and a year 365.
fn rate(count: u64, period: Duration) -> String {
    const DAY: u64 = 86_400;
    if period == Duration::from_secs(30 * DAY) {
        format!("{count}/month")
    } else if period == Duration::from_secs(365 * DAY) {
        format!("{count}/year")
    } else {
        per(count, period)
    }
}

/// A limit in the words of a rules file.
pub(super) fn in_words(limit: &Limit) -> String {
    match limit.algorithm() {
        Algorithm::TokenBucket(spec) => {
            let burst = limit.max();
            let rate = match spec.batches() {
                Some(refill) => format!("{} every {}", refill.amount, Exact(refill.every)),
                None => rate(spec.count(), spec.period()),
            };
            let initial = spec.initial_tokens().filter(|initial| *initial != burst);
            let initial = initial
                .map(|tokens| format!(", initial {tokens}"))
                .unwrap_or_default();
            if let Some((window, factor)) = spec.warming() {
                let window = Exact(window);
                return format!("token_bucket {rate}, warm_up {window}, cold_factor {factor}");
            }
            let debt = if spec.is_on_credit() { ", debt" } else { "" };
            format!("token_bucket {rate}, burst {burst}{initial}{debt}")
        }
        Algorithm::LeakyBucket(spec) => {
            let burst = spec.burst_size();
            let rate = rate(spec.rate().count(), spec.rate().period());
            format!(
                "leaky_bucket {rate}, burst {burst}, delay_after {}",
                spec.undelayed()
            )
        }
        Algorithm::FixedWindow(spec) => match spec.window() {
            Window::FirstRequest(length) => {
                format!(
                    "fixed_window {} from the first request",
                    per(spec.limit(), *length)
                )
            }
            Window::Calendar(calendar) => format!(
                "fixed_window {} per calendar {} in {}",
                spec.limit(),
                calendar.unit.name(),
                calendar.zone
            ),
        },
        Algorithm::SlidingWindow(spec) => format!(
            "sliding_window {} in {} segments",
            per(spec.limit(), spec.window()),
            spec.segment_count()
        ),
        Algorithm::SlidingLog(spec) => format!("sliding_log {}", per(spec.limit(), spec.window())),
        Algorithm::Concurrency(spec) => {
            let queue = match spec.queue_size() {
                0 => String::new(),
                queue => format!(", queue {queue}"),
            };
            let lease = Exact(spec.lease_length());
            let max = spec.max();
            match spec.min() {
                Some(min) => {
                    format!("concurrency {min} to {max} at a time, learned, lease {lease}")
                }
                None => format!("concurrency {max} at a time{queue}, lease {lease}"),
            }
        }
        other => other.to_string(),
    }
}

pub(super) fn ban_in_words(ban: &Ban) -> String {
    let lengths: Vec<String> = ban
        .durations()
        .iter()
        .map(|length| Exact(*length).to_string())
        .collect();
    let lengths = lengths.join(", ");
    match ban.after() {
        1 => format!("after 1 refusal for {lengths}"),
        after => format!(
            "after {after} refusals within {} for {lengths}",
            Exact(ban.within())
        ),
    }
}
