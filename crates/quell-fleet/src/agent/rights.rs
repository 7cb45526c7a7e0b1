//! Rights: the cells of a node, which follow what its member may use.

use std::collections::BTreeMap;
use std::sync::Arc;

use quell::clock::Monotonic;
use quell_shares::cell::CellWriter;
use quell_shares::member::{LimitSchedule, Member, Phase};
use quell_shares::message::{Load, Totals};
use quell_shares::plan::{LimitId, MAX_MEMBERS};
use quell_store::shares::{Share, Shares};

use super::status::{LimitStatus, STARVED};

/// One limit.
#[derive(Debug)]
struct Right {
    name: Arc<str>,
    writer: CellWriter,
    share: Arc<Share>,
    schedule: LimitSchedule,
    phase: Phase,
    totals: Totals,
    hunger: Option<Hunger>,
}

/// A share is next to nothing below this part of its limit: what one of the most nodes has that there may be.
const NEXT_TO_NOTHING: u64 = MAX_MEMBERS as u64;

/// Demand of calls for a limit of which the node is granted next to nothing.
#[derive(Clone, Copy, Debug)]
struct Hunger {
    since: Monotonic,
    /// Instant at which a call last asked for the limit.
    asked: Monotonic,
}

impl Hunger {
    /// Next state after a report, whose `counts` are the demand of calls and its admitted part.
    fn next(
        before: Option<Self>,
        now: Monotonic,
        counts: (u64, u64),
        (share, whole): (u64, u64),
    ) -> Option<Self> {
        let (asked, admitted) = counts;
        if admitted > 0 || share >= whole / NEXT_TO_NOTHING {
            return None;
        }
        match before {
            _ if asked > 0 => Some(Self {
                since: before.map_or(now, |hunger| hunger.since),
                asked: now,
            }),
            // A call now and then is demand as well.
            Some(hunger) if now.since(hunger.asked) < STARVED => Some(hunger),
            _ => None,
        }
    }
}

/// The cells of a node.
#[derive(Debug)]
pub(super) struct Rights {
    limits: BTreeMap<LimitId, Right>,
    shares: Shares,
    followed: Monotonic,
}

impl Rights {
    pub(super) const fn new(shares: Shares) -> Self {
        Self {
            limits: BTreeMap::new(),
            shares,
            followed: Monotonic::ORIGIN,
        }
    }

    /// Puts the member's schedules into force. When this returns, no call can take by an older one.
    pub(super) fn follow(&mut self, now: Monotonic, member: &Member) {
        self.followed = now;
        let schedules: BTreeMap<LimitId, (LimitSchedule, Phase)> = member
            .schedules()
            .zip(member.phases())
            .map(|(schedule, phase)| (schedule.limit, (schedule, phase)))
            .collect();
        let mut is_same = true;
        self.limits.retain(|id, right| {
            let stays = schedules.contains_key(id);
            if !stays {
                right.writer.close(now);
                right.share.set_granted_until(Monotonic::ORIGIN);
            }
            is_same &= stays;
            stays
        });
        for (id, (schedule, phase)) in schedules {
            let right = self.limits.entry(id).or_insert_with(|| {
                is_same = false;
                let writer = CellWriter::new(&schedule.schedule, now);
                let share = Arc::new(Share::new(Arc::clone(writer.cell())));
                Right {
                    name: "".into(),
                    writer,
                    share,
                    schedule,
                    phase,
                    totals: Totals::default(),
                    hunger: None,
                }
            });
            right.writer.follow(now, &schedule.schedule);
            right.share.set_granted_until(phase.leased_until);
            (right.schedule, right.phase) = (schedule, phase);
        }
        for name in member.names() {
            if let Some(right) = self.limits.get_mut(&name.limit)
                && right.name != name.name
            {
                right.name = Arc::clone(&name.name);
                is_same = false;
            }
        }
        if !is_same {
            let named = self.limits.values().filter(|right| !right.name.is_empty());
            let shares = named.map(|right| (Arc::clone(&right.name), Arc::clone(&right.share)));
            self.shares.set_shares(shares.collect());
        }
    }

    /// Instant of the last call of [`Rights::follow`].
    pub(super) const fn followed(&self) -> Monotonic {
        self.followed
    }

    /// Returns the demand of calls since the last time.
    pub(super) fn loads(&mut self, now: Monotonic) -> Vec<Load> {
        let load = |(limit, right): (&LimitId, &mut Right)| {
            let counts = right.share.take_counts();
            let asked = counts.admitted.saturating_add(counts.denied);
            let totals = &mut right.totals;
            for (total, more) in [
                (&mut totals.asked, asked),
                (&mut totals.refused, counts.denied),
                (&mut totals.degraded, counts.degraded),
            ] {
                *total = total.saturating_add(more);
            }
            let share = right.schedule.schedule.at(now).rate;
            let rates = (share, right.phase.whole.rate);
            right.hunger = Hunger::next(right.hunger, now, (asked, counts.admitted), rates);
            Load {
                limit: *limit,
                demand: asked,
                margin: 0,
                admitted: counts.admitted,
                denied: counts.denied,
                totals: right.totals,
            }
        };
        self.limits.iter_mut().map(load).collect()
    }

    pub(super) fn status(&self) -> Vec<LimitStatus> {
        let status = |(id, right): (&LimitId, &Right)| LimitStatus {
            id: *id,
            name: Arc::clone(&right.name),
            schedule: right.schedule.schedule,
            phase: right.phase,
            hungry_since: right.hunger.map(|hunger| hunger.since),
        };
        self.limits.iter().map(status).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(millis: u64) -> Monotonic {
        Monotonic::ORIGIN.saturating_add(Duration::from_millis(millis))
    }

    #[test]
    fn a_node_hungers_while_calls_ask_for_what_it_is_not_granted() {
        let whole = 300 * 1_000_000;
        let next = |before, millis, counts, share| {
            Hunger::next(before, at(millis), counts, (share, whole))
        };
        let since = |hunger: Option<Hunger>| hunger.map(|hunger| hunger.since);
        let hunger = next(None, 500, (9, 0), 1);
        assert_eq!(since(hunger), Some(at(500)));
        // No call asks for a while.
        let hunger = next(next(hunger, 1_000, (0, 0), 1), 5_000, (2, 0), 1);
        assert_eq!(since(hunger), Some(at(500)));
        for (millis, counts, share) in [
            (10_100, (0, 0), 1),
            (5_500, (9, 1), 1),
            (5_500, (9, 0), whole / NEXT_TO_NOTHING),
        ] {
            assert_eq!(since(next(hunger, millis, counts, share)), None);
        }
        assert_eq!(since(next(None, 500, (0, 0), 0)), None, "nobody asks");
        assert_eq!(since(next(None, 500, (9, 0), whole / 100)), None);
    }
}
