//! Call report: what coordinators are told of this server's calls: how long decisions take, whom it refuses, who is
//! banned.
//!
//! It is gathered beside the reports, which take along what is there and wait for nothing.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quell_fleet::agent::CallReportSlot;
use quell_fleet::call_report::MAX_KEYS;
use quell_fleet::proto::{Ban, Bans, CandidateKey, KeyEntry, Latency, NodeSeen, Outcomes};
use tokio::time::{MissedTickBehavior, interval};

use crate::access::Caller;
use crate::history::Counts;
use crate::http::admin::{self, WantedBans, ban_hash};
use crate::metrics::{BUCKETS, Histogram};
use crate::shared::Shared;

/// Interval at which coordinators are told.
const EVERY: Duration = Duration::from_secs(2);

/// Interval at which bans are read, since a shared store has to be asked.
const BANS_EVERY: Duration = Duration::from_secs(10);

/// Readings that are kept: the first and the last are a minute apart.
const READINGS: usize = 31;

/// Decisions since the server started, and when they were counted.
type Reading = (Instant, Counts);

/// Tells coordinators, for ever.
pub(crate) async fn report(shared: Arc<Shared>, slot: CallReportSlot) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut readings = VecDeque::<Reading>::new();
    let mut bans: Option<(Instant, Option<Bans>)> = None;
    loop {
        ticks.tick().await;
        readings.push_back((Instant::now(), Counts::total(&shared.metrics)));
        if readings.len() > READINGS {
            readings.pop_front();
        }
        let node = shared.node.as_ref();
        if node.is_none_or(|node| node.status().coordinator.is_none()) {
            continue;
        }
        bans = bans.filter(|(read, _)| read.elapsed() < BANS_EVERY);
        if bans.is_none() {
            bans = Some((Instant::now(), read_bans(&shared).await));
        }
        let (keys, window) = shared.top.list(shared.limiter.now().monotonic);
        // One more than is told says how often any other was refused.
        let keys = keys.iter().take(MAX_KEYS + 1).map(|key| CandidateKey {
            name: key.name.to_vec(),
            at_least: key.at_least,
            at_most: key.at_most,
        });
        let (latency, outcomes) = decisions(&readings).unzip();
        slot.set(NodeSeen {
            latency,
            outcomes,
            refused: keys.collect(),
            others_at_most: 0,
            refused_ns: nanos(window),
            bans: { bans.clone() }.and_then(|(read, bans)| Some(left(bans?, read.elapsed()))),
        });
    }
}

/// Bans that the overview shows; none if the store does not answer.
async fn read_bans(shared: &Arc<Shared>) -> Option<Bans> {
    let body = admin::bans(shared, WantedBans::longest(MAX_KEYS), &Caller::Anyone)
        .await
        .ok()?;
    let bans = body.bans.into_iter().map(|ban| {
        let hash = ban_hash(&ban, shared);
        let reason = ban.why().unwrap_or_default().to_owned();
        let entry = |(name, value)| KeyEntry {
            name,
            value: hash.clone().or(value),
        };
        Ban {
            entries: ban.entries.into_iter().map(entry).collect(),
            domain: ban.domain,
            rule: ban.rule,
            left_ns: ban.left_ms.saturating_mul(1_000_000),
            reason,
        }
    });
    Some(Bans {
        bans: bans.collect(),
        total: u64::try_from(body.total.unwrap_or_default()).unwrap_or(u64::MAX),
    })
}

/// Remainder of bans that were read `since` ago.
fn left(mut bans: Bans, since: Duration) -> Bans {
    for ban in &mut bans.bans {
        ban.left_ns = ban.left_ns.saturating_sub(nanos(since));
    }
    bans
}

/// The decisions between the first reading and the last.
fn decisions(readings: &VecDeque<Reading>) -> Option<(Latency, Outcomes)> {
    let ((since, before), (until, after)) = (readings.front()?, readings.back()?);
    let counts = after.with(before, u64::saturating_sub);
    let edges = (0..BUCKETS).filter_map(Histogram::upper_edge);
    let latency = Latency {
        edges_ns: edges.map(nanos).collect(),
        counts: counts.latency.to_vec(),
        window_ns: nanos(until.duration_since(*since)),
    };
    let outcomes = Outcomes {
        allowed: counts.allowed,
        denied: counts.denied,
        would_refuse: counts.would_refuse,
        degraded: counts.degraded,
    };
    Some((latency, outcomes))
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use quell_fleet::call_report::bounded;

    use super::*;
    use crate::metrics::Metrics;

    #[test]
    fn decisions_of_the_last_minute_are_told_and_fit_into_the_bounds() {
        let (metrics, begun) = (Metrics::default(), Instant::now());
        let read = |after| (begun + Duration::from_secs(after), Counts::total(&metrics));
        let record = |took| metrics.query_seconds.record(took);
        record(Duration::from_nanos(100));
        let mut readings = VecDeque::from([read(0)]);
        record(Duration::from_nanos(300));
        record(Duration::from_secs(9));
        metrics.degraded.add(7);
        readings.push_back(read(60));
        let (told, outcomes) = decisions(&readings).unwrap();
        assert_eq!((outcomes.allowed, outcomes.degraded), (0, 7));
        assert_eq!(told.window_ns, 60_000_000_000);
        assert_eq!(told.edges_ns[..2], [250, 500]);
        assert_eq!(told.counts[..2], [0, 1]);
        assert_eq!(told.counts.iter().sum::<u64>(), 2);
        assert_eq!(told.counts.last(), Some(&1));
        let seen = NodeSeen {
            latency: Some(told),
            ..NodeSeen::default()
        };
        assert_eq!(bounded(seen.clone()), seen);
    }

    #[test]
    fn bans_end_while_they_are_told_again() {
        let bans = Bans {
            bans: vec![Ban {
                left_ns: 5,
                ..Ban::default()
            }],
            total: 1,
        };
        let of = |nanos| left(bans.clone(), Duration::from_nanos(nanos)).bans[0].left_ns;
        assert_eq!((of(2), of(9)), (3, 0));
    }
}
