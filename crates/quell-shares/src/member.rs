//! Member: the node's side of the protocol. It reports, puts answers into force, and then
//! acknowledges them.
//!
//! The caller owns the buckets. An [`Adopt`] holds a schedule for each; when no thread can admit
//! under the old ones any more, and the snapshot that comes with it is written, the caller calls
//! [`Member::sealed`], and only then do reports acknowledge the version. Nothing needs to be done when
//! a right ends: schedules end by themselves.
//!
//! A member obeys an answer if it is for this incarnation, answers a report that is still remembered,
//! and is of a newer epoch than any seen, or of the same epoch and a newer version. A push answers no
//! report, because it extends nothing.

mod demand;
mod limit_rights;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use quell_core::time::{Monotonic, saturating_nanos};

use self::demand::Demand;
use self::limit_rights::LimitRights;
use crate::message::{
    GivenUp, Grant, Hold, Join, Joined, Kept, Leave, LimitName, Load, MemberSnapshot, Push, Report,
    Response,
};
use crate::plan::{LimitId, MemberId, Name, Timing};
use crate::schedule::{Right, Schedule, Step};

pub(crate) use self::demand::LEAST_MARGIN;

/// The number of reports whose send time is remembered: 32 s of them at the shortest period.
const REMEMBERED: usize = 320;

/// A stage in the life of a member. What it may use is in its schedules alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The member has no incarnation yet and uses the floor of its snapshot.
    Joining,
    /// The member reports.
    Active,
    /// The member has set its rights to nothing, and reports that until it is answered.
    Leaving,
    /// The member has ended.
    Gone,
}

/// A process of a member that starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// The member.
    pub member: MemberId,
    /// Distinguishes this start from every other.
    pub nonce: u64,
    /// The member's weight.
    pub weight: u32,
    /// The groups that it is in, besides that of all.
    pub groups: Vec<Name>,
    /// True if something external (a lock, an ordinal) ensures that no other process has the id.
    pub exclusive: bool,
}

/// The schedule of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitSchedule {
    /// The limit.
    pub limit: LimitId,
    /// Schedule of the member's quota of the limit.
    pub schedule: Schedule,
}

/// Instants at which the rights of one limit follow each other: leases, the gap, the base, the floor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Phase {
    /// The limit.
    pub limit: LimitId,
    /// End of the last lease.
    pub leased_until: Monotonic,
    /// Beginning of the static share.
    pub base_from: Monotonic,
    /// End of the static share and beginning of the floor.
    pub base_until: Monotonic,
    /// The rate and burst of the whole limit.
    pub whole: Right,
}

/// Schedules to put into force, one for each limit.
///
/// Write `snapshot` if there is one, let no thread admit under older schedules any more, and then call
/// [`Member::sealed`]: reports acknowledge nothing before that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adopt {
    /// Pass this to [`Member::sealed`].
    pub ticket: u64,
    /// The schedules, in the order of the limits. Of any other limit the member may use nothing from
    /// now on, and a limit that it did not know begins with an empty bucket.
    pub schedules: Vec<LimitSchedule>,
    /// True if other members wait for the acknowledgement: then send a report as soon as this is sealed.
    pub prompt: bool,
    /// Snapshot that the next start of the member must find. None if what it would find is still right.
    pub snapshot: Option<MemberSnapshot>,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    ticket: u64,
    epoch: u64,
    version: u64,
}

/// Returns true if any right falls by more than a twentieth.
fn shrinks(before: &[LimitSchedule], after: &[LimitSchedule], now: Monotonic) -> bool {
    let mut after = after.iter().peekable();
    let less = |before: &LimitSchedule| {
        while after.next_if(|next| next.limit < before.limit).is_some() {}
        let next = after.next_if(|next| next.limit == before.limit);
        let right = next.map_or(Right::NONE, |next| next.schedule.at(now));
        let had = before.schedule.at(now).rate;
        right.rate.saturating_add(had / 20) < had
    };
    before.iter().any(less)
}

/// One process of one node.
#[derive(Clone, Debug)]
pub struct Member {
    start: Start,
    /// The incarnation that it replaces.
    replaces: u64,
    /// The epoch of the leader that named it.
    named_by: u64,
    gave_up: Option<GivenUp>,
    /// The last snapshot; the first one is that of the process before.
    snapshot: MemberSnapshot,
    stage: Stage,
    incarnation: u64,
    seq: u64,
    /// The newest known epoch; older ones are not obeyed.
    epoch: u64,
    /// The newest version received in that epoch.
    version: u64,
    /// The newest epoch for which no older schedule is still on its way into force.
    told_epoch: u64,
    /// The version of that epoch that is in force.
    applied: u64,
    revision: u64,
    /// The newest version of the record that it was told of.
    record: u64,
    pending: Option<Pending>,
    tickets: u64,
    sent: VecDeque<(u64, Monotonic)>,
    /// In the order of the limits, as all that follow.
    standings: Vec<LimitRights>,
    demands: Vec<Demand>,
    names: Vec<LimitName>,
    draining: bool,
    /// T of the last grant.
    every: Duration,
    /// Instant at which demand was last measured.
    reported: Monotonic,
}

impl Member {
    /// A process that starts with empty buckets and, for each limit that it knows, with what the
    /// snapshot of the process before kept. It obeys no leader older than that process did.
    #[must_use]
    pub fn start(start: Start, snapshot: &MemberSnapshot, now: Monotonic) -> Self {
        let floors: BTreeMap<LimitId, &Kept> = snapshot
            .kept
            .iter()
            .map(|kept| (kept.limit, kept))
            .collect();
        let standings = floors
            .values()
            .map(|kept| LimitRights::floor(**kept))
            .collect();
        let demands = floors.keys().map(|limit| Demand::new(*limit)).collect();
        Self {
            start,
            replaces: snapshot.incarnation,
            named_by: 0,
            gave_up: None,
            stage: Stage::Joining,
            incarnation: 0,
            seq: 0,
            epoch: snapshot.epoch,
            version: 0,
            told_epoch: 0,
            applied: 0,
            revision: 0,
            record: snapshot.record,
            pending: None,
            tickets: 0,
            sent: VecDeque::new(),
            standings,
            demands,
            names: snapshot.names.clone(),
            draining: false,
            snapshot: snapshot.clone(),
            every: Timing::DEFAULT.report,
            reported: now,
        }
    }

    /// Its stage.
    #[must_use]
    pub const fn stage(&self) -> Stage {
        self.stage
    }

    /// The number of this start; 0 before it has one.
    #[must_use]
    pub const fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The revision of the plan that it follows; 0 before its first grant.
    #[must_use]
    pub const fn revision(&self) -> u64 {
        self.revision
    }

    /// The newest epoch that it knows; it obeys no older one.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The names of the limits that it shares, as coordinators told them, or as its snapshot has
    /// them.
    #[must_use]
    pub fn names(&self) -> &[LimitName] {
        &self.names
    }

    /// Returns true if an operator drains the member: its quota goes to nothing, and then it is gone.
    #[must_use]
    pub const fn is_draining(&self) -> bool {
        self.draining
    }

    /// T: how often to report, by the plan that it follows.
    #[must_use]
    pub const fn report_every(&self) -> Duration {
        self.every
    }

    /// Rights to keep for the next start: the least that its schedules ever allow, which every ledger
    /// already counts.
    fn floors(&self) -> impl Iterator<Item = Kept> {
        self.standings.iter().map(LimitRights::least)
    }

    /// The snapshot that the next start must find, unless the last one is still right: it never allows
    /// more than this one, nor less than half of it.
    fn renewed(&mut self) -> Option<MemberSnapshot> {
        let revision = match self.revision {
            0 => self.snapshot.revision,
            revision => revision,
        };
        let right = |(new, old): (Kept, &Kept)| {
            let below = old.right.least(new.right) == old.right;
            let same = new.limit == old.limit && new.whole == old.whole;
            same && below && new.right.rate / 2 <= old.right.rate
        };
        let last = &self.snapshot;
        let is_same = last.epoch == self.epoch
            && last.incarnation == self.incarnation
            && last.revision == revision
            && last.names == self.names
            && last.kept.len() == self.standings.len();
        if is_same && self.floors().zip(&last.kept).all(right) {
            return None;
        }
        self.snapshot = MemberSnapshot {
            epoch: self.epoch,
            incarnation: self.incarnation,
            record: self.record,
            revision,
            names: self.names.clone(),
            kept: self.floors().collect(),
        };
        Some(self.snapshot.clone())
    }

    /// The schedules, including those that are not yet in force.
    pub fn schedules(&self) -> impl Iterator<Item = LimitSchedule> {
        self.standings.iter().map(|standing| LimitSchedule {
            limit: standing.limit,
            schedule: standing.schedule(),
        })
    }

    /// Request to send while joining; `None` while an older schedule is still going out of use.
    #[must_use]
    pub fn join(&self) -> Option<Join> {
        let Start {
            member,
            nonce,
            weight,
            exclusive,
            ..
        } = self.start;
        self.pending.is_none().then(|| Join {
            member,
            nonce,
            weight,
            groups: self.start.groups.clone(),
            exclusive,
            replaces: self.replaces,
            floors: self.floors().collect(),
            gave_up: self.gave_up.clone(),
            epoch: self.epoch,
            record: self.record,
        })
    }

    /// Request to send every period while active. `offered` has a [`Load`] for each limit that was asked
    /// for, in the order of the limits; its `demand` is the cost offered since the last report, each call
    /// counted once.
    pub fn report(&mut self, now: Monotonic, offered: &[Load]) -> Report {
        let elapsed = now.since(self.reported);
        // A report soon after another one cannot measure a rate.
        let measured = elapsed >= self.every * 2 / 5;
        if measured {
            self.reported = now;
        }
        self.seq += 1;
        self.sent.push_back((self.seq, now));
        if self.sent.len() > REMEMBERED {
            self.sent.pop_front();
        }
        let mut offered = offered.iter().peekable();
        let mut loads = Vec::with_capacity(self.demands.len());
        for demand in &mut self.demands {
            while offered.next_if(|load| load.limit < demand.limit).is_some() {}
            let load = offered.next_if(|load| load.limit == demand.limit);
            let mut load = load.copied().unwrap_or_default();
            demand.offered = demand.offered.saturating_add(load.demand);
            if measured {
                demand.observe(saturating_nanos(elapsed));
            }
            load.limit = demand.limit;
            (load.demand, load.margin) = (demand.rate, demand.margin);
            loads.push(load);
        }
        // While a version is on its way into force, the member does not know what it holds.
        let held = (self.applied == 0 && self.pending.is_none())
            .then(|| self.standings.iter().map(|s| s.held(now)).collect());
        Report {
            member: self.start.member,
            incarnation: self.incarnation,
            seq: self.seq,
            epoch: self.told_epoch,
            applied: self.applied,
            revision: self.revision,
            record: self.record,
            loads,
            held,
        }
    }

    /// Handles an answer. The caller puts what it returns into force and then seals it.
    pub fn receive(&mut self, now: Monotonic, answer: &Response) -> Option<Adopt> {
        match answer {
            Response::Joined(joined) => {
                self.joined(now, joined);
                None
            }
            Response::Occupied {
                nonce,
                incarnation,
                epoch,
                ..
            } => {
                if self.stage == Stage::Joining && *nonce == self.start.nonce {
                    self.occupied(*incarnation, *epoch);
                }
                None
            }
            Response::Grant(grant) => self.granted(now, grant),
            Response::Hold(hold) => self.held_back(now, *hold),
            Response::Push(push) => self.pushed(now, push),
            Response::Left { incarnation } => {
                if self.stage == Stage::Leaving && *incarnation == self.incarnation {
                    self.stage = Stage::Gone;
                }
                self.unseated(now, *incarnation, self.epoch)
            }
            Response::Unknown {
                incarnation, epoch, ..
            } => self.unseated(now, *incarnation, *epoch),
            Response::Elsewhere { .. } => None,
        }
    }

    /// A newer leader knows better which start has the seat, even if its number is lower, because the
    /// store went back.
    fn occupied(&mut self, incarnation: u64, epoch: u64) {
        if epoch > self.named_by {
            (self.named_by, self.replaces) = (epoch, incarnation);
        } else if epoch == self.named_by {
            self.replaces = self.replaces.max(incarnation);
        }
    }

    fn joined(&mut self, now: Monotonic, joined: &Joined) {
        let mine = self.stage == Stage::Joining && joined.nonce == self.start.nonce;
        // The member may have joined again; then the answer to its first join is useless.
        if !mine || joined.epoch < self.epoch || joined.incarnation <= self.incarnation {
            return;
        }
        self.stage = Stage::Active;
        self.incarnation = joined.incarnation;
        self.epoch = joined.epoch;
        self.told_epoch = joined.epoch;
        self.record = self.record.max(joined.record);
        self.gave_up = None;
        self.reported = now;
        self.names.clone_from(&joined.names);
        self.follow_demand();
    }

    /// Demand is measured for every limit that the member knows.
    fn follow_demand(&mut self) {
        let rights = self.standings.iter().map(|standing| standing.limit);
        let mut limits: Vec<LimitId> = self
            .names
            .iter()
            .map(|name| name.limit)
            .chain(rights)
            .collect();
        limits.sort_unstable();
        limits.dedup();
        if self
            .demands
            .iter()
            .map(|demand| demand.limit)
            .eq(limits.iter().copied())
        {
            return;
        }
        let before = core::mem::take(&mut self.demands);
        let mut before = before.into_iter().peekable();
        for limit in limits {
            while before.next_if(|demand| demand.limit < limit).is_some() {}
            let same = before.next_if(|demand| demand.limit == limit);
            self.demands
                .push(same.unwrap_or_else(|| Demand::new(limit)));
        }
    }

    fn is_for_me(&self, incarnation: u64) -> bool {
        self.stage == Stage::Active && incarnation == self.incarnation
    }

    fn is_newer(&self, epoch: u64, version: u64) -> bool {
        epoch > self.epoch || epoch == self.epoch && version > self.version
    }

    fn sent_at(&self, seq: u64) -> Option<Monotonic> {
        let mut latest = self.sent.iter().rev();
        let found = latest.find(|(sent, _)| *sent == seq);
        found.map(|(_, at)| *at)
    }

    fn granted(&mut self, now: Monotonic, grant: &Grant) -> Option<Adopt> {
        if !self.is_for_me(grant.incarnation) || !self.is_newer(grant.epoch, grant.version) {
            return None;
        }
        let sent = self.sent_at(grant.seq)?;
        // A very late grant. What was set aside for the base ends with the base, so the gap cannot
        // last longer. The floor may be more than the gap, so it must not begin sooner than promised.
        let base_ends = sent.saturating_add(grant.hold);
        let promised = now.saturating_add(grant.promise);
        let base_begins = promised.min(base_ends);
        let floor_ends = grant.ends.map(|ends| sent.saturating_add(ends));
        let before: Vec<LimitSchedule> = self.schedules().collect();
        self.standings.clear();
        for granted in &grant.rights {
            let step = |(right, lasts): (Right, Duration)| Step {
                until: sent.saturating_add(lasts),
                right,
            };
            self.standings.push(LimitRights {
                limit: granted.limit,
                leases: granted.leases.map(step),
                gap: granted.gap,
                base_begins,
                base: granted.base,
                base_ends,
                promised,
                floor: granted.floor,
                floor_ends,
                whole: granted.whole,
            });
        }
        if !grant.names.is_empty() {
            self.names.clone_from(&grant.names);
        }
        self.follow_demand();
        self.draining = grant.draining;
        self.revision = grant.revision;
        self.record = self.record.max(grant.record);
        self.every = grant.report;
        let mut adopt = self.adopt(grant.epoch, grant.version);
        adopt.prompt = shrinks(&before, &adopt.schedules, now);
        Some(adopt)
    }

    fn pushed(&mut self, now: Monotonic, push: &Push) -> Option<Adopt> {
        // The member cannot apply a push of an epoch other than the one in force: it does not know
        // what it would change.
        let known = push.epoch == self.epoch && self.version > 0 && push.revision == self.revision;
        let newer = self.is_newer(push.epoch, push.version);
        if !self.is_for_me(push.incarnation) || !known || !newer {
            return None;
        }
        let limits = self.standings.iter().map(|standing| standing.limit);
        if !limits.eq(push.rights.iter().map(|pushed| pushed.limit)) {
            return None;
        }
        for (standing, pushed) in self.standings.iter_mut().zip(&push.rights) {
            let right = &pushed.right;
            // A step without a rate is not a lease: a push must not fill it.
            let leases = standing.leases.iter();
            let leases = leases.filter(|step| step.right.rate > 0);
            let ends = leases.map(|lease| lease.until);
            let until = ends.max().unwrap_or_default();
            // The gap shrinks even if the lease has ended, because the leader will count it so.
            let gap = right.least(standing.gap);
            if until > now {
                standing.leases = Default::default();
                standing.leases[0] = Step {
                    until,
                    right: *right,
                };
            }
            standing.gap = gap;
        }
        Some(Adopt {
            prompt: true,
            ..self.adopt(push.epoch, push.version)
        })
    }

    fn held_back(&mut self, now: Monotonic, hold: Hold) -> Option<Adopt> {
        if !self.is_for_me(hold.incarnation) || hold.epoch < self.epoch {
            return None;
        }
        self.record = self.record.max(hold.record);
        if hold.epoch > self.epoch {
            self.epoch = hold.epoch;
            self.version = 0;
            if self.pending.is_none() {
                self.told_epoch = hold.epoch;
                self.applied = 0;
            }
        }
        // Later than promised is always safe. A version of this epoch carries its own promise.
        let promise = hold.promise.filter(|_| self.version == 0)?;
        self.sent_at(hold.seq)?;
        let until = now.saturating_add(promise);
        let mut later = false;
        for standing in &mut self.standings {
            let begins = until.min(standing.base_ends);
            if now < standing.base_begins && standing.base_begins < begins {
                standing.base_begins = begins;
                standing.promised = standing.promised.max(until);
                later = true;
            }
        }
        later.then(|| self.adopt(hold.epoch, 0))
    }

    /// Instants at which the schedules go over from one right to the next.
    pub fn phases(&self) -> impl Iterator<Item = Phase> {
        self.standings.iter().map(|standing| {
            let leases = standing.leases.iter();
            Phase {
                limit: standing.limit,
                leased_until: leases.map(|lease| lease.until).max().unwrap_or_default(),
                base_from: standing.base_begins,
                base_until: standing.base_ends,
                whole: standing.whole,
            }
        })
    }

    fn adopt(&mut self, epoch: u64, version: u64) -> Adopt {
        self.epoch = epoch;
        self.version = version;
        self.tickets += 1;
        self.pending = Some(Pending {
            ticket: self.tickets,
            epoch,
            version,
        });
        Adopt {
            ticket: self.tickets,
            schedules: self.schedules().collect(),
            prompt: false,
            snapshot: self.renewed(),
        }
    }

    /// Call this when no thread admits under schedules older than those of `ticket` any more and its
    /// snapshot is written. Returns whether `ticket` is the newest.
    pub fn sealed(&mut self, ticket: u64) -> bool {
        let Some(pending) = self.pending.filter(|pending| pending.ticket == ticket) else {
            return false;
        };
        self.pending = None;
        self.told_epoch = self.epoch;
        self.applied = if pending.epoch == self.epoch {
            pending.version
        } else {
            0
        };
        true
    }

    /// The clock stood still for `hidden` (see [`SuspendDetector`](crate::suspend_detector::SuspendDetector)): leases have ended,
    /// the base ends sooner by that much, and answers to reports sent before count from that much
    /// earlier. No thread may admit anything until the returned schedules are sealed.
    pub fn stood_still(&mut self, hidden: Duration) -> Adopt {
        for (_, at) in &mut self.sent {
            *at = at.saturating_sub(hidden);
        }
        for standing in &mut self.standings {
            standing.leases = Default::default();
            standing.base_ends = standing.base_ends.saturating_sub(hidden);
            standing.base_begins = standing.base_begins.min(standing.base_ends);
            let floor_ends = &mut standing.floor_ends;
            *floor_ends = floor_ends.map(|end| end.saturating_sub(hidden));
        }
        self.adopt(self.epoch, self.version)
    }

    /// Sets every right to nothing, for good. Once that is sealed, [`Member::farewell`] reports it.
    pub fn leave(&mut self) -> Adopt {
        self.stage = Stage::Leaving;
        self.give_up(self.version)
    }

    /// Request to send until it is answered, once the leave is sealed.
    #[must_use]
    pub fn farewell(&self) -> Option<Leave> {
        let over = self.stage == Stage::Leaving && self.pending.is_none();
        over.then_some(Leave {
            member: self.start.member,
            incarnation: self.incarnation,
        })
    }

    /// The member has no seat any more, although it is alive: an operator took it for dead, or it was
    /// silent for too long, or it was drained and has nothing. Its
    /// share belongs to other members, or soon will, so it gives up everything and joins as if it
    /// had just started. A leader never says this to a start that has a seat: it reads the record
    /// after it was elected, and only a leader gives seats. If the store went back, the leader may grant
    /// it again what it gave up.
    fn unseated(&mut self, now: Monotonic, incarnation: u64, epoch: u64) -> Option<Adopt> {
        let old = epoch < self.epoch;
        if !self.is_for_me(incarnation) || old {
            return None;
        }
        let standings = self.standings.iter();
        let bases = standings.map(|standing| standing.now_based(now)).collect();
        self.gave_up = Some(GivenUp { epoch, bases });
        // A store that went back may know an earlier join of this start.
        self.start.nonce = self.start.nonce.wrapping_add(1 << 48);
        self.stage = if self.draining {
            Stage::Gone
        } else {
            Stage::Joining
        };
        self.revision = 0;
        Some(self.give_up(0))
    }

    fn give_up(&mut self, version: u64) -> Adopt {
        for standing in &mut self.standings {
            *standing = LimitRights {
                limit: standing.limit,
                ..LimitRights::default()
            };
        }
        Adopt {
            prompt: true,
            ..self.adopt(self.epoch, version)
        }
    }
}
