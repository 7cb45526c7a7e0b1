//! Ledger: what a leader knows about every member, and what it may therefore grant.
//!
//! For each member and limit it holds the versions sent since the last acknowledged one, and for all
//! members together the sum of their curves (see the essay of [the crate](crate)). A report is
//! answered in one pass: the versions before the acknowledged one are dropped, the member's own
//! curve is taken out of the sum, and the member may have what is then left of the limit from now to
//! the end of a lease. If more is left at first than later, the grant has steps.
//!
//! ```text
//! lease ends     c + D*sigma + g      (the member counts D from the sending of its report)
//! base begins    c + P/sigma          (the member counts P from the receipt of the answer)
//! base ends      c + F*sigma + g      (from the sending again)
//! ```
//!
//! c is when the answer is made, sigma = (1+rho)/(1-rho), g the grain of timers. A new leader knows
//! nothing: `learn` says how it finds out, `seats` which members take part, `share` how much each
//! should have.

mod claim;
mod grant;
mod learn;
mod operate;
mod seats;
mod share;
mod shortage;
mod unheard_members;
mod view;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;
use quell_core::time::{Monotonic, saturating_nanos};

use self::learn::Phase;
use self::seats::Pending;
use self::unheard_members::UnheardMembers;
use crate::curve::{Holding, Horizon, Slices};
use crate::effect::Effect;
use crate::generation;
use crate::member::LEAST_MARGIN;
use crate::message::{Report, Request, Response};
use crate::plan::{Drift, Limit, LimitId, MemberId, Plan, Record, Seat};

pub(crate) use self::claim::Claim;
pub use self::learn::{Left, Snapshot, SnapshotAccount};
pub use self::operate::{Operation, OperationError};
pub use self::shortage::BaseShortage;
pub use self::view::{FleetView, LimitView, MemberState, MemberView, RightView, RolloutView};

/// g: how late a timer of a member may be, in nanoseconds.
const GRAIN: u64 = 10_000_000;

/// Account of one member.
#[derive(Clone, Debug)]
struct Account {
    seat: Seat,
    seq: u64,
    /// Instant of its last report.
    heard: u64,
    /// The version last sent to it.
    version: u64,
    /// The version of this epoch that it acknowledged.
    applied: u64,
    /// True if it was told of this epoch.
    addressed: bool,
    /// Instant at which it was first told of this epoch; only while its holdings are not known.
    told: Option<u64>,
    /// True if `holdings` is an upper bound of what it has.
    known: bool,
    /// True if the bound stands because the member said so in this epoch, or joined.
    fenced: bool,
    /// True if it has left and only its seat remains.
    left: bool,
    /// True if a share is planned for it; not if it has been silent for long.
    planned: bool,
    /// In the order of the limits: those that it shares, and those of which it may still hold
    /// something.
    holdings: Vec<Holding>,
}

impl Account {
    /// A member about which nothing is known yet.
    fn new(seat: Seat, now: u64) -> Self {
        Self {
            seat,
            seq: 0,
            heard: now,
            version: 0,
            applied: 0,
            addressed: false,
            told: None,
            known: false,
            fenced: false,
            left: false,
            planned: true,
            holdings: Vec::new(),
        }
    }

    /// The latest instant at which its last lease ends.
    fn leases_end(&self) -> u64 {
        let ends = self.holdings.iter().map(|h| h.envelope().leases_end());
        ends.max().unwrap_or(0)
    }

    /// Changes the member's holding of each limit, and updates the sums.
    fn change(&mut self, horizons: &mut [Horizon], now: u64, mut change: impl FnMut(&mut Holding)) {
        for holding in &mut self.holdings {
            let Some(horizon) = horizons.get_mut(holding.at) else {
                continue;
            };
            horizon.advance(now);
            horizon.remove(holding);
            change(holding);
            horizon.add(holding);
        }
    }

    /// Index of the holding of a limit. Most members share all limits before it: `guess` is tried first.
    fn place(&self, limit: LimitId, guess: usize) -> Option<usize> {
        match self.holdings.get(guess) {
            Some(holding) if holding.limit == limit => Some(guess),
            _ => {
                let found = self.holdings.binary_search_by_key(&limit, |h| h.limit);
                found.ok()
            }
        }
    }

    fn holding(&self, limit: LimitId, guess: usize) -> Option<&Holding> {
        let at = self.place(limit, guess)?;
        self.holdings.get(at)
    }

    fn holding_mut(&mut self, limit: LimitId, guess: usize) -> Option<&mut Holding> {
        let at = self.place(limit, guess)?;
        self.holdings.get_mut(at)
    }

    /// Index of the current plan that it is to follow: 1 for the one that is being rolled out.
    fn side(&self) -> usize {
        usize::from(self.seat.staged)
    }
}

/// The limit, if a seat shares it under this plan.
fn shared<'a>(plan: &'a Plan, seat: &Seat, limit: LimitId) -> Option<&'a Limit> {
    let limit = plan.limit(limit);
    limit.filter(|limit| seat.is_in(limit.group.as_ref()))
}

/// The state of a leader.
#[derive(Clone, Debug)]
pub struct Ledger {
    epoch: u64,
    drift: Drift,
    record: Record,
    phase: Phase,
    /// The previous leader may decide until then; 0 if it is known what that one left.
    quiet_until: u64,
    accounts: BTreeMap<MemberId, Account>,
    slices: Slices,
    /// The limits of the current plans, in order.
    limits: Vec<LimitId>,
    horizons: Vec<Horizon>,
    /// Limits that must be divided again.
    dirty: Vec<bool>,
    /// Instant at which the limits were last divided.
    shared: u64,
    /// Decides which of several equal fractions comes first.
    rotation: u64,
    /// The latest instant at which any lease ends.
    latest: u64,
    /// Members that wait for more and may receive a push.
    push_queue: VecDeque<MemberId>,
    pending: Pending,
    unheard_members: Option<UnheardMembers>,
}

impl Ledger {
    /// The ledger of a leader that was elected at `now`. The leader before it may still decide for
    /// `quiet` nanoseconds of this clock.
    pub(crate) fn new(
        now: Monotonic,
        epoch: u64,
        record: Record,
        snapshot: Option<Snapshot>,
        drift: Drift,
        quiet: u64,
    ) -> Self {
        let now = now.as_nanos();
        let mut ledger = Self {
            epoch,
            drift,
            phase: Phase::Granting,
            quiet_until: 0,
            accounts: BTreeMap::new(),
            slices: Slices { width: 1, count: 1 },
            limits: Vec::new(),
            horizons: Vec::new(),
            dirty: Vec::new(),
            shared: 0,
            rotation: 0,
            latest: 0,
            push_queue: VecDeque::new(),
            pending: Pending::default(),
            unheard_members: None,
            record,
        };
        ledger.begin(now, quiet, snapshot);
        ledger.rebuild(now);
        ledger
    }

    /// The number of this leadership.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The record, as last stored.
    #[must_use]
    pub const fn record(&self) -> &Record {
        &self.record
    }

    /// Returns true if the ledger grants; before that it is learning.
    #[must_use]
    pub const fn grants(&self) -> bool {
        matches!(self.phase, Phase::Granting)
    }

    /// The most micro-units per second of a limit that members may use now, and the limit's own
    /// rate.
    #[must_use]
    pub fn in_use(&self, limit: LimitId) -> Option<(u64, u64)> {
        let at = self.limits.binary_search(&limit).ok()?;
        let horizon = self.horizons.get(at)?;
        Some((horizon.now(), self.record.whole(limit).rate))
    }

    pub(super) fn receive(&mut self, now: Monotonic, request: Request, effects: &mut Vec<Effect>) {
        match request {
            Request::Report(report) => self.report(now.as_nanos(), &report, effects),
            Request::Join(join) => self.join(join, effects),
            Request::Leave(leave) => self.leave(now.as_nanos(), leave, effects),
        }
        self.write(effects);
    }

    fn report(&mut self, now: u64, report: &Report, effects: &mut Vec<Effect>) {
        let Some(account) = self.accounts.get_mut(&report.member) else {
            return self.unknown(report, effects);
        };
        if account.seat.incarnation != report.incarnation || account.left {
            return self.unknown(report, effects);
        }
        if report.seq <= account.seq {
            return;
        }
        account.seq = report.seq;
        account.heard = now;
        if !account.planned {
            account.planned = true;
            effects.push(Effect::Heard(report.member));
            self.dirty.fill(true);
        }
        let late = self.grants() && self.must_be_fenced(report.member);
        let grants = self.grants() && !late || self.learn(now, report);
        self.note_wants(report);
        if !grants || self.must_be_fenced(report.member) {
            return self.hold_back(now, report, effects);
        }
        let acknowledged = (report.epoch == self.epoch).then_some(report.applied);
        self.share_if_due(now);
        if let Some(grant) = self.grant(now, report, acknowledged) {
            effects.push(Effect::answer(report.member, Response::Grant(grant)));
        }
        if self.is_short(report.member) {
            Self::wants_push(&mut self.push_queue, report.member);
        }
        self.push_some(now, Some(report.member), effects);
    }

    /// Plans are made again for limits of which the member wants more or less than before.
    fn note_wants(&mut self, report: &Report) {
        let Some(account) = self.accounts.get_mut(&report.member) else {
            return;
        };
        for (guess, load) in report.loads.iter().enumerate() {
            let Some(holding) = account.holding_mut(load.limit, guess) else {
                continue;
            };
            let want = load.demand.saturating_add(load.margin);
            if holding.want.abs_diff(want) > holding.want / LEAST_MARGIN
                && let Some(dirty) = self.dirty.get_mut(holding.at)
            {
                holding.want = want;
                *dirty = true;
            }
        }
    }

    fn unknown(&self, report: &Report, effects: &mut Vec<Effect>) {
        if self.fence_stranger(report, effects) {
            return;
        }
        // A report of an older start than the known one is only late. But one that joined before the
        // store went back may have a seat under another number, of which it has not heard; and so may one
        // whose join came twice, before and after its seat was given back.
        let incarnation = report.incarnation;
        let before = generation::of(incarnation) < generation::of(self.epoch);
        let account = self.accounts.get(&report.member);
        let twice = account.is_some_and(|account| account.seq == 0 && !account.planned);
        let seat = self.record.seat(report.member);
        if before || twice || seat.is_none_or(|seat| seat.incarnation < incarnation) {
            let answer = Response::Unknown {
                incarnation,
                epoch: self.epoch,
                retry: Duration::ZERO,
                no_seat: None,
            };
            effects.push(Effect::answer(report.member, answer));
        }
    }

    pub(super) fn tick(&mut self, now: Monotonic, effects: &mut Vec<Effect>) {
        let now = now.as_nanos();
        self.finish_learning(now);
        let timing = self.record.plan.timing;
        let patience = saturating_nanos(timing.lease) / 5 * 3;
        for account in self.accounts.values_mut() {
            if now.saturating_sub(account.heard) < patience {
                continue;
            }
            if account.planned {
                account.planned = false;
                effects.push(Effect::Suspect(account.seat.member));
                self.dirty.fill(true);
            }
            if !account.known {
                continue;
            }
            account.change(&mut self.horizons, now, |holding| {
                if holding.fall(now) {
                    self.dirty.fill(true);
                }
            });
        }
        if self.grants() {
            // In a small fleet the next report may be far away.
            self.share_if_due(now);
            self.push_some(now, None, effects);
        }
        self.prune(now);
        self.give_back(now);
        self.write(effects);
    }

    /// Recomputes all sums: after an election, and when the limits or the seats change.
    fn rebuild(&mut self, now: u64) {
        let (lease, promise) = self.record.plans().fold((0, 0), |(lease, promise), plan| {
            (
                saturating_nanos(plan.timing.lease).max(lease),
                saturating_nanos(plan.timing.promise).max(promise),
            )
        });
        let leases = self.drift.longest(lease) + GRAIN;
        let farthest = leases.max(promise).max(self.latest.saturating_sub(now));
        self.slices = Slices::reaching(lease, farthest.saturating_mul(2));
        self.limits = self.record.limits();
        let horizon = |limit| Horizon::new(self.slices, now, native(&self.record, limit));
        self.horizons = self.limits.iter().copied().map(horizon).collect();
        self.dirty = alloc::vec![true; self.limits.len()];
        self.add_unheard_members();
        for account in self.accounts.values_mut() {
            arrange(account, &self.record, &self.limits);
            for holding in &account.holdings {
                if let Some(horizon) = self.horizons.get_mut(holding.at) {
                    horizon.add(holding);
                }
            }
        }
    }
}

/// Gives an account a holding for each limit that its seat shares, and drops those of limits that
/// are gone: nobody is granted them any more.
fn arrange(account: &mut Account, record: &Record, limits: &[LimitId]) {
    let mut before = core::mem::take(&mut account.holdings)
        .into_iter()
        .peekable();
    for (at, limit) in limits.iter().enumerate() {
        while before.next_if(|holding| holding.limit < *limit).is_some() {}
        let held = before.next_if(|holding| holding.limit == *limit);
        let may = |plan: &Plan| shared(plan, &account.seat, *limit).is_some();
        let holding = match held {
            Some(holding) => holding,
            None if record.current().any(may) => Holding {
                limit: *limit,
                ..Holding::default()
            },
            None => continue,
        };
        account.holdings.push(Holding { at, ..holding });
    }
}

/// For each of the current plans: the revisions whose bursts of a limit add up with its own. If the
/// least bursts are equal, those of both do.
fn native(record: &Record, limit: LimitId) -> [[u64; 2]; 2] {
    let plan = &record.plan;
    let Some(rollout) = &record.rollout else {
        return [[plan.revision; 2]; 2];
    };
    let least = |plan: &Plan| plan.limit(limit).map(|limit| limit.quota.least_burst);
    let (one, other) = (plan.revision, rollout.plan.revision);
    if least(plan) == least(&rollout.plan) {
        [[one, other]; 2]
    } else {
        [[one; 2], [other; 2]]
    }
}
