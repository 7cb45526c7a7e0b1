//! Rights: the cells of a node, which follow what its member may use.

use std::collections::BTreeMap;
use std::sync::Arc;

use quell::clock::Monotonic;
use quell::store::shares::{Share, Shares};
use quell_shares::cell::CellWriter;
use quell_shares::member::{LimitSchedule, Member, Phase};
use quell_shares::message::{Load, Totals};
use quell_shares::plan::LimitId;

use super::status::LimitStatus;

/// One limit.
#[derive(Debug)]
struct Right {
    name: Arc<str>,
    writer: CellWriter,
    share: Arc<Share>,
    schedule: LimitSchedule,
    phase: Phase,
    totals: Totals,
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

    /// When [`Rights::follow`] was last called.
    pub(super) const fn followed(&self) -> Monotonic {
        self.followed
    }

    /// What calls have asked for since the last time.
    pub(super) fn loads(&mut self) -> Vec<Load> {
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
            Load {
                limit: *limit,
                demand: asked,
                margin: 0,
                admitted: counts.admitted,
                denied: counts.denied,
                totals: Some(right.totals),
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
        };
        self.limits.iter().map(status).collect()
    }
}
