//! Plan: the numbers that a whole fleet shares, and the record of its members.

mod envelope;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::ops::RangeInclusive;
use core::time::Duration;

use quell_core::time::saturating_nanos;

use crate::schedule::Right;

pub use self::envelope::Envelope;

/// Micro-units in a unit: rates and tokens are kept in micro-units.
pub const MICRO: u64 = 1_000_000;

/// The most members a fleet may have; also the most that a plan may seat.
pub const MAX_MEMBERS: u32 = 10_000;

/// The most limits a fleet may share.
pub const MAX_LIMITS: usize = 10_000;

/// The number of older plans that are kept apart for members that may still follow them.
const MAX_OLDER: usize = 8;

/// The floor is a tenth of the base: what a member keeps that was silent for long.
const FLOOR_PART: u64 = 10;

/// The planned floor is this part of a seat's weight: the first calls at an idle node need no round
/// trip, and nine idle nodes of ten keep less than a hundredth of the limit from the tenth.
const PLANNED_PART: u64 = 100;

/// The id of a member, for as long as its seat exists. Two processes never use one id at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u32);

/// What a member may use when no coordinator answers it any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// Its static share for the time of `hold`, then the floor.
    Share,
    /// A tenth of its static share.
    Floor,
    /// Nothing: the share of a member that died is free again when its lease ends.
    Deny,
}

/// One limit that the fleet shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Micro-units per second for the whole fleet.
    pub rate: u64,
    /// Micro-units that the whole fleet may admit at one instant.
    pub burst: u64,
    /// The burst in micro-units of any member whose rate is not zero: the largest cost of one call.
    pub least_burst: u64,
    /// What a member that is cut off may use.
    pub fallback: Fallback,
}

/// The durations of the protocol. All members and coordinators use those of the plan that they
/// answer under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// T: how often a member reports.
    pub report: Duration,
    /// D: how long a lease lasts, counted from the sending of the report that it answers.
    pub lease: Duration,
    /// P: how long a member stays below its static share after an answer.
    pub promise: Duration,
    /// F: how long the static share lasts, counted from the sending of the last answered report.
    pub hold: Duration,
}

impl Timing {
    /// The defaults: 0.5 s, 10 s, 11.5 s and 5 min. D outlasts the failover of a coordinator
    /// (3.5 s to notice, 3 s of quiet, two reports), P outlasts D, and F most partitions.
    pub const DEFAULT: Self = Self {
        report: Duration::from_millis(500),
        lease: Duration::from_secs(10),
        promise: Duration::from_millis(11_540),
        hold: Duration::from_secs(300),
    };

    /// The report periods that a plan may have. Shares move within three of them; each costs a
    /// message and its answer for every member.
    pub const REPORT: RangeInclusive<Duration> =
        Duration::from_millis(100)..=Duration::from_millis(1_000);
}

/// How far clocks may drift: each runs at least at `1 - rho` and at most at `1 + rho`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drift {
    /// Parts in a million.
    ppm: u64,
}

impl Drift {
    /// One in a thousand: twice what NTP may slew.
    pub const DEFAULT: Self = Self { ppm: 1_000 };

    /// A bound of `ppm` parts in a million, at most a tenth.
    #[must_use]
    pub const fn new(ppm: u64) -> Self {
        Self {
            ppm: if ppm > 100_000 { 100_000 } else { ppm },
        }
    }

    /// Parts in a million.
    #[must_use]
    pub const fn ppm(self) -> u64 {
        self.ppm
    }

    /// The most that this clock can show while another clock shows `nanos`; rounded up.
    #[must_use]
    pub const fn longest(self, nanos: u64) -> u64 {
        scaled(nanos, MICRO + self.ppm, MICRO - self.ppm, true)
    }

    /// The least that this clock can show while another clock shows `nanos`; rounded down.
    #[must_use]
    pub const fn shortest(self, nanos: u64) -> u64 {
        scaled(nanos, MICRO - self.ppm, MICRO + self.ppm, false)
    }
}

/// `value * up / down`, saturating.
const fn scaled(value: u64, up: u64, down: u64, ceil: bool) -> u64 {
    let more = if ceil { down as u128 - 1 } else { 0 };
    let scaled = (value as u128 * up as u128 + more) / down as u128;
    if scaled > u64::MAX as u128 {
        u64::MAX
    } else {
        #[expect(clippy::cast_possible_truncation, reason = "compared the line before")]
        let scaled = scaled as u64;
        scaled
    }
}

/// Whether the static shares follow the number of seats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizing {
    /// The total weight is what the plan says; a member that comes when it is used up has leases
    /// only.
    Fixed,
    /// The total weight is that of the seats: every member's base changes when one joins or leaves.
    Auto,
}

/// The limits, seats and durations in force, under one revision. Limits keep their position from
/// plan to plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Rises with every change.
    pub revision: u64,
    /// Every limit of the fleet.
    pub limits: Vec<Quota>,
    /// W: the total that each weight is divided by.
    pub total_weight: u64,
    /// The most members at once; each has `least_burst` of every limit set aside.
    pub seats: u32,
    /// The durations of the protocol.
    pub timing: Timing,
    /// Whether `total_weight` follows the seats.
    pub sizing: Sizing,
}

/// Why a plan cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanError {
    /// A limit's burst does not give every seat its least burst.
    SmallBurst,
    /// A limit's rate is so small that a share is less than a few units per report.
    SmallRate,
    /// A limit's rate is 0, or too large for the arithmetic.
    Rate,
    /// There are too many seats or limits, or none.
    Size,
    /// More members have seats than the plan allows.
    Seated,
    /// The plan has fewer limits than the previous one.
    Shorter,
    /// The report period is too short or too long.
    Report,
    /// The promise does not outlast the lease on every clock, or the hold is shorter than the
    /// promise.
    Timing,
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SmallBurst => "a burst must be at least seats x the largest cost: raise it",
            Self::SmallRate => "a rate must be at least 5 units per seat and report: use `leased`",
            Self::Rate => {
                "a rate must be above 0 and at most 10^12, and 10^13 / seats, units per second"
            }
            Self::Size => "a plan has 1 to 10,000 seats, 1 to 10,000 limits and a weight above 0",
            Self::Seated => {
                "more members have seats than the plan has: raise `seats`, or deregister some"
            }
            Self::Shorter => "limits keep their positions: keep an unused limit in the plan",
            Self::Report => "members must report every 100 to 1,000 ms",
            Self::Timing => "the promise must outlast the lease by 1 %, and hold the promise",
        })
    }
}

impl core::error::Error for PlanError {}

impl Plan {
    /// Checks that the promises can be kept with these numbers.
    ///
    /// # Errors
    /// [`PlanError`] names the first number that is wrong.
    pub fn check(&self, drift: Drift) -> Result<(), PlanError> {
        let sized = self.seats > 0 && self.seats <= MAX_MEMBERS && self.total_weight > 0;
        if !sized || self.limits.is_empty() || self.limits.len() > MAX_LIMITS {
            return Err(PlanError::Size);
        }
        let [lease, promise, hold] =
            [self.timing.lease, self.timing.promise, self.timing.hold].map(saturating_nanos);
        if drift.shortest(promise) < drift.longest(lease).saturating_add(lease / 100)
            || hold < promise
        {
            return Err(PlanError::Timing);
        }
        if !Timing::REPORT.contains(&self.timing.report) {
            return Err(PlanError::Report);
        }
        for quota in &self.limits {
            // Sums over members are kept in 64 bits.
            let sums = quota.rate.checked_mul(u64::from(self.seats) + 1);
            if quota.rate == 0 || quota.rate > MICRO * MICRO * MICRO || sums.is_none() {
                return Err(PlanError::Rate);
            }
            if quota.least_burst == 0
                || quota.burst > MICRO * MICRO * MICRO
                || quota.least_burst.saturating_mul(u64::from(self.seats)) > quota.burst
            {
                return Err(PlanError::SmallBurst);
            }
            let per_report = u128::from(quota.rate) * self.timing.report.as_nanos() / 1_000_000_000;
            if per_report < 5 * u128::from(MICRO) * u128::from(self.seats) {
                return Err(PlanError::SmallRate);
            }
        }
        Ok(())
    }

    /// The rate and burst of a limit; zero if there is no such limit.
    #[must_use]
    pub fn whole(&self, limit: usize) -> Right {
        let quota = self.limits.get(limit);
        quota.map_or(Right::NONE, |quota| Right {
            rate: quota.rate,
            burst: quota.burst,
        })
    }

    /// The static share of a seat: the rate by weight, or 0 if the seat has no base.
    #[must_use]
    pub fn base(&self, limit: usize, seat: &Seat) -> u64 {
        let Some(quota) = self.limits.get(limit).filter(|_| seat.based) else {
            return 0;
        };
        match quota.fallback {
            Fallback::Share => part(quota.rate, u64::from(seat.weight), self.total_weight),
            Fallback::Floor => self.floor(limit, seat),
            Fallback::Deny => 0,
        }
    }

    /// The floor of a seat, which remains when its static share has ended.
    #[must_use]
    pub fn floor(&self, limit: usize, seat: &Seat) -> u64 {
        let Some(quota) = self.limits.get(limit).filter(|_| seat.based) else {
            return 0;
        };
        match quota.fallback {
            Fallback::Share | Fallback::Floor => {
                part(quota.rate, u64::from(seat.weight), self.total_weight) / FLOOR_PART
            }
            Fallback::Deny => 0,
        }
    }

    /// The least that is planned for a seat, whatever it wants and whatever it may use when it is cut
    /// off.
    #[must_use]
    pub fn planned_floor(&self, limit: usize, seat: &Seat) -> u64 {
        let rate = self.limits.get(limit).map_or(0, |quota| quota.rate);
        part(rate, u64::from(seat.weight), self.total_weight) / PLANNED_PART
    }

    /// The burst that goes with a rate: the least burst, plus a part of what the least bursts of all
    /// seats leave of the limit's burst. If rates sum to at most the limit's, their bursts sum to at
    /// most its burst; a plain `burst * rate / limit`, "at least one", would exceed it.
    #[must_use]
    pub fn right(&self, limit: usize, rate: u64) -> Right {
        self.right_beside(limit, rate, Others::default())
    }

    /// As [`Plan::right`], while members follow other plans.
    pub(crate) fn right_beside(&self, limit: usize, rate: u64, others: Others) -> Right {
        let Some(quota) = self.limits.get(limit).filter(|_| rate > 0) else {
            return Right { rate: 0, burst: 0 };
        };
        let set_aside = quota.least_burst.saturating_mul(u64::from(self.seats));
        let shared = quota.burst.saturating_sub(set_aside);
        let shared = shared.saturating_sub(others.bursts);
        // What every plan sets aside for each member.
        let least = quota.least_burst.min(others.least_burst);
        let burst = least + part(shared, rate.min(quota.rate), quota.rate);
        Right { rate, burst }
    }
}

/// What members hold, or may hold, of a limit under other plans.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Others {
    /// The sum of their bursts, as parts of the burst in force.
    pub(crate) bursts: u64,
    /// The smallest least burst of any plan that may be followed.
    pub(crate) least_burst: u64,
}

impl Default for Others {
    fn default() -> Self {
        Self {
            bursts: 0,
            least_burst: u64::MAX,
        }
    }
}

/// Converts a rate that is a part of `whole` to the same part of `of`, rounded up. A member never
/// has more than all of it.
pub(crate) fn same_part(rate: u64, whole: u64, of: u64) -> u64 {
    if whole == of || whole == 0 {
        return rate.min(of);
    }
    let part = (u128::from(rate) * u128::from(of)).div_ceil(u128::from(whole));
    u64::try_from(part).unwrap_or(u64::MAX).min(of)
}

/// `whole * share / total`, rounded down; `total` is not 0.
pub(crate) fn part(whole: u64, share: u64, total: u64) -> u64 {
    if let Some(product) = whole.checked_mul(share) {
        return product / total.max(1);
    }
    let part = u128::from(whole) * u128::from(share) / u128::from(total.max(1));
    u64::try_from(part).unwrap_or(u64::MAX)
}

/// A member's place, stored from its first join until it leaves or is deregistered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// The member.
    pub member: MemberId,
    /// The number of the process start that last joined; unique in the fleet, and rising.
    pub incarnation: u64,
    /// The nonce that the process sent when it joined, so that a repeated join changes nothing.
    pub nonce: u64,
    /// The member's weight.
    pub weight: u32,
    /// Whether it has a static share.
    pub based: bool,
}

/// The durable state: the plan in force, plans that a member may still follow, and the seats.
///
/// It is written as a whole, guarded by the leader's key and by `version`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Rises with every write. Its upper bits are the generation of the fleet (see
    /// [`generation`](crate::generation)), as are those of all numbers in the record.
    pub version: u64,
    /// The last incarnation that was given.
    pub incarnations: u64,
    /// The plan in force.
    pub plan: Plan,
    /// Plans under which a member may still hold a right; a leader removes them when all members
    /// have acknowledged a newer one.
    pub older: Vec<Plan>,
    /// Plans before those, if there were too many: one that allows whatever any of them does.
    pub merged: Option<Box<Envelope>>,
    /// Ordered by member.
    pub seats: Vec<Seat>,
}

impl Record {
    /// A record without seats.
    #[must_use]
    pub fn new(plan: Plan) -> Self {
        Self {
            version: 0,
            incarnations: 0,
            plan,
            older: Vec::new(),
            merged: None,
            seats: Vec::new(),
        }
    }

    /// The seat of a member, if it has one.
    #[must_use]
    pub fn seat(&self, member: MemberId) -> Option<&Seat> {
        let at = self.seats.binary_search_by_key(&member, |seat| seat.member);
        at.ok().and_then(|at| self.seats.get(at))
    }

    /// Puts another plan into force, and keeps the previous one for members that still follow it.
    ///
    /// # Errors
    /// [`PlanError::Seated`] if there are more members than seats, because each seat has a least burst;
    /// [`PlanError::Shorter`] if a limit is missing, because members would never follow such a plan.
    pub fn replace_plan(&mut self, plan: Plan) -> Result<(), PlanError> {
        if usize::try_from(plan.seats).is_ok_and(|seats| seats < self.seats.len()) {
            return Err(PlanError::Seated);
        }
        if plan.limits.len() < self.plan.limits.len() {
            return Err(PlanError::Shorter);
        }
        self.follow(plan);
        Ok(())
    }

    /// As [`Record::replace_plan`], without any check.
    #[cfg(feature = "mutations")]
    pub fn replace_plan_unchecked(&mut self, plan: Plan) {
        self.follow(plan);
    }

    fn follow(&mut self, plan: Plan) {
        let before = core::mem::replace(&mut self.plan, plan);
        self.plan.revision = before.revision + 1;
        if self.plan.sizing == Sizing::Auto {
            self.plan.total_weight = self.seated_weight().max(1);
        }
        if self.seats.is_empty() {
            return;
        }
        self.older.push(before);
        if self.older.len() > MAX_OLDER {
            let oldest = self.older.remove(0);
            match &mut self.merged {
                Some(merged) => merged.add(&oldest),
                None => self.merged = Some(Box::new(Envelope::of(&oldest))),
            }
        }
    }

    /// Forgets all older plans: no member can follow them any more.
    pub(crate) fn forget_older(&mut self) {
        self.older.clear();
        self.merged = None;
    }

    /// The sum of the weights of the seats.
    #[must_use]
    pub fn seated_weight(&self) -> u64 {
        self.seats.iter().map(|seat| u64::from(seat.weight)).sum()
    }

    /// The rate and burst of a limit in the plan in force; zero if there is no such limit.
    #[must_use]
    pub fn whole(&self, limit: usize) -> Right {
        self.plan.whole(limit)
    }

    /// The smallest least burst of a limit in any plan that may be followed.
    pub(crate) fn least_burst(&self, limit: usize) -> u64 {
        let quotas = self.exact().filter_map(|plan| plan.limits.get(limit));
        let merged = self.merged.iter();
        let merged = merged.filter_map(|merged| merged.least_bursts.get(limit));
        quotas
            .map(|quota| quota.least_burst)
            .chain(merged.copied())
            .fold(u64::MAX, u64::min)
    }

    /// The number of members that may take part while any of the plans may be followed: additional
    /// seats of a new plan are given only when no member follows a plan with fewer.
    #[must_use]
    pub fn room(&self) -> usize {
        let merged = self.merged.iter().map(|merged| merged.seats);
        let seats = self.exact().map(|plan| plan.seats).chain(merged);
        let seats = seats.fold(u32::MAX, u32::min);
        usize::try_from(seats).unwrap_or(usize::MAX)
    }

    /// The plan in force, the older ones, and one that allows whatever even older ones do.
    pub fn plans(&self) -> impl Iterator<Item = &Plan> {
        let merged = self.merged.iter().map(|merged| &merged.most);
        self.exact().chain(merged)
    }

    fn exact(&self) -> impl Iterator<Item = &Plan> {
        core::iter::once(&self.plan).chain(&self.older)
    }
}
