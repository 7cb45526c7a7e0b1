//! Plan: the numbers that a whole fleet shares, and the record of its members.

mod envelope;
mod limit;
mod record;
mod restored;
mod rollout;
mod seat;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::fmt;
use core::ops::RangeInclusive;
use core::time::Duration;

use quell_core::time::saturating_nanos;

use crate::schedule::Right;

pub use self::envelope::Envelope;
pub use self::limit::{Fallback, Limit, LimitId, Name, Quota};
pub use self::record::Record;
pub use self::restored::{RaiseError, Restored};
pub use self::rollout::{Band, Rollout, Stage, TakenBack};
pub use self::seat::{MAX_MEMBERSHIPS, MAX_NAME, Membership, Seat};

/// Micro-units in a unit: rates and tokens are kept in micro-units.
pub const MICRO: u64 = 1_000_000;

/// The most members a fleet may have; also the most that a plan may seat.
pub const MAX_MEMBERS: u32 = 10_000;

/// The most limits a fleet may share.
pub const MAX_LIMITS: usize = 10_000;

/// The most groups that a plan may name.
pub const MAX_GROUPS: usize = 1_000;

/// The floor is a tenth of the base: what a member keeps that was silent for long.
pub(crate) const FLOOR_PART: u64 = 10;

/// The planned floor is this part of a seat's weight: the first calls at an idle node need no round
/// trip, and nine idle nodes of ten keep less than a hundredth of the limit from the tenth.
const PLANNED_PART: u64 = 100;

/// The most micro-units per second of a limit, and of its burst.
const MOST: u64 = MICRO * MICRO * MICRO;

/// The id of a member, for as long as its seat exists. Two processes never use one id at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u32);

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

/// Greatest drift of clocks: each runs at least at `1 - rho` and at most at `1 + rho`.
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

/// Relation of the static shares to the number of seats: they follow it, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizing {
    /// The total weight is what the plan says; a member that comes when it is used up has leases
    /// only.
    Fixed,
    /// The total weight is that of the seats: every member's base changes when one joins or leaves.
    Auto,
}

/// Number of members that a group may have, and the total of which their weights are parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// W: the total that each weight is divided by.
    pub total_weight: u64,
    /// The most members at once; each has `least_burst` of every limit of the group set aside.
    pub seats: u32,
    /// Relation of `total_weight` to the seats.
    pub sizing: Sizing,
}

/// A group of members: those that named it when they joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its name.
    pub name: Name,
    /// Its size.
    pub size: Size,
}

/// Return of the seat of a silent member: with or without a word of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReturnSeats {
    /// Never: a silent member keeps its floor, and its seat until it is fenced or deregistered.
    Never,
    /// This long after F: then the member's floor ends by its own schedule, wherever it is, so its
    /// seat and its share can be given to another. A process that restarts begins with nothing.
    After(Duration),
}

/// The limits, seats and durations in force, under one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Rises with every change.
    pub revision: u64,
    /// Every limit of the fleet, in the order of their numbers.
    pub limits: Vec<Limit>,
    /// The size of the group of all members.
    pub size: Size,
    /// The other groups that limits belong to.
    pub groups: Vec<Group>,
    /// The durations of the protocol.
    pub timing: Timing,
    /// Treatment of the seats of silent members.
    pub return_seats: ReturnSeats,
    /// The text of rules that goes with it, by its digest: members that follow the plan are given it. `None` if
    /// they have rules of their own. Nothing here depends on it.
    pub rules: Option<Name>,
}

/// Reason why a plan cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanError {
    /// A limit's burst does not give every seat its least burst.
    SmallBurst(TooSmall),
    /// A limit's rate is so small that a share is less than a few units per report.
    SmallRate(TooSmall),
    /// A limit's rate or burst is 0, or too large for the arithmetic.
    Rate {
        /// The limit.
        limit: Name,
        /// The largest rate, in micro-units per second.
        most: u64,
    },
    /// There are too many seats, limits or groups, or none.
    Size,
    /// More members have seats than the plan allows, in this group; `None` is the group of all.
    Seated(Option<Name>),
    /// Two limits or groups have one name, or a name is empty or too long.
    Name,
    /// This limit belongs to a group that the plan does not have.
    Group(Name),
    /// A stage names a member without a seat.
    Member,
    /// No plan is being rolled out.
    NoRollout,
    /// The report period is too short or too long.
    Report,
    /// The promise does not outlast the lease on every clock, or the hold is shorter than the
    /// promise.
    Timing,
}

/// A number of a limit that is too small for so many seats, in micro-units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TooSmall {
    /// The limit.
    pub limit: Name,
    /// The seats of its group.
    pub seats: u32,
    /// Value in the plan.
    pub is: u64,
    /// The least that would do.
    pub least: u64,
}

/// Micro-units as units.
struct Units(u64);

impl fmt::Display for Units {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, mut part) = (self.0 / MICRO, self.0 % MICRO);
        write!(f, "{whole}")?;
        if part == 0 {
            return Ok(());
        }
        let mut digits = 6;
        while part % 10 == 0 {
            (part, digits) = (part / 10, digits - 1);
        }
        write!(f, ".{part:0digits$}")
    }
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SmallBurst(small) => {
                let TooSmall { limit, seats, .. } = small;
                let [is, least] = [small.is, small.least].map(Units);
                return write!(
                    f,
                    "limit `{limit}`: a burst of {is} has no call of the largest cost for each of {seats} \
                     seats: write at least {least}, or fewer seats, or deregister dead nodes, or write `rung: \
                     leased`"
                );
            }
            Self::SmallRate(small) => {
                let TooSmall { limit, seats, .. } = small;
                let [is, least] = [small.is, small.least].map(Units);
                return write!(
                    f,
                    "limit `{limit}`: {is}/s are less than 5 units for each of {seats} seats between two \
                     reports: write at least {least}/s, or fewer seats, or deregister dead nodes, or write \
                     `rung: leased`"
                );
            }
            Self::Rate { limit, most } => {
                let most = Units(*most);
                return write!(
                    f,
                    "limit `{limit}`: with so many seats a rate is above 0 and at most {most}/s, a burst \
                     above 0 and at most 10^12, and a largest cost above 0"
                );
            }
            Self::Group(limit) => {
                return write!(
                    f,
                    "limit `{limit}` belongs to a group that the plan does not have: add the group"
                );
            }
            Self::Size => {
                "a plan has 1 to 10,000 limits, at most 1,000 groups, and for each group 1 to 10,000 seats \
                 and a weight above 0"
            }
            Self::Seated(Some(group)) => {
                return write!(
                    f,
                    "more members of the group `{group}` have seats than the plan has: raise `cluster_size` in \
                     its rules, or deregister some"
                );
            }
            Self::Seated(None) => {
                "more members have seats than the plan has: raise `--seats` of the coordinators or \
                 `cluster_size` in the rules, or deregister some"
            }
            Self::Name => "a limit or a group has a name of its own, of 1 to 200 bytes",
            Self::Member => "no such member has a seat: `status` lists those that have",
            Self::NoRollout => "no plan is being rolled out: begin with a plan and a stage",
            Self::Report => "members must report every 100 to 1,000 ms",
            Self::Timing => "the promise must outlast the lease by 1 %, and hold the promise",
        })
    }
}

impl core::error::Error for PlanError {}

impl Plan {
    /// Checks that the promises can be kept with these numbers, and that each seat's part of a limit
    /// that `before` lacks is worth having. A limit that is in force is never refused because its parts
    /// are small, since a cut must not be.
    ///
    /// # Errors
    /// [`PlanError`] names the first number that is wrong.
    pub fn check_after(&self, before: Option<&Self>, drift: Drift) -> Result<(), PlanError> {
        self.check(drift)?;
        let first = self.cannot_begin(before).into_iter().next();
        first.map_or(Ok(()), |(_, error)| Err(error))
    }

    /// The limits that `before` lacks and that cannot be shared, or whose parts would not be worth having,
    /// by name, each with the reason.
    #[must_use]
    pub fn cannot_begin(&self, before: Option<&Self>) -> Vec<(Name, PlanError)> {
        let before = before.iter().flat_map(|plan| &plan.limits);
        let known: BTreeSet<_> = before.map(Limit::identity).collect();
        let new = self.limits.iter();
        let new = new.filter(|limit| !known.contains(&limit.identity()));
        let seats = |limit| self.size_of(limit).map_or(0, |size| size.seats);
        let why = |limit| {
            let small = || self.small_parts(limit, seats(limit));
            self.check_limit(limit).err().or_else(small)
        };
        new.filter_map(|limit| Some((limit.name.clone(), why(limit)?)))
            .collect()
    }

    /// Checks that the promises can be kept with these numbers.
    ///
    /// # Errors
    /// [`PlanError`] names the first number that is wrong.
    pub fn check(&self, drift: Drift) -> Result<(), PlanError> {
        let sizes = self.groups.iter().map(|group| &group.size);
        let sized =
            |size: &Size| size.seats > 0 && size.seats <= MAX_MEMBERS && size.total_weight > 0;
        let few = self.limits.len() <= MAX_LIMITS && self.groups.len() <= MAX_GROUPS;
        if self.limits.is_empty() || !few || !sized(&self.size) || !sizes.clone().all(sized) {
            return Err(PlanError::Size);
        }
        self.check_names()?;
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
        self.limits
            .iter()
            .try_for_each(|limit| self.check_limit(limit))
    }

    fn check_limit(&self, limit: &Limit) -> Result<(), PlanError> {
        let name = || limit.name.clone();
        let size = self
            .size_of(limit)
            .ok_or_else(|| PlanError::Group(name()))?;
        let (quota, seats) = (&limit.quota, u64::from(size.seats));
        // Sums over members are kept in 64 bits.
        let most = MOST.min(u64::MAX / (seats + 1));
        let is_whole = quota.rate > 0 && quota.burst >= seats && quota.least_burst > 0;
        if !is_whole || quota.rate > most || quota.burst > MOST {
            let limit = name();
            return Err(PlanError::Rate { limit, most });
        }
        Ok(())
    }

    /// Reason why the parts of a limit are of little use to so many members: a burst without a call of the
    /// largest cost for each, or less than 5 units for each between two reports. It is safe all the same:
    /// who has less than a call costs admits none.
    #[must_use]
    pub fn small_parts(&self, limit: &Limit, members: u32) -> Option<PlanError> {
        let small = |is, least| TooSmall {
            limit: limit.name.clone(),
            seats: members,
            is,
            least,
        };
        let quota = &limit.quota;
        let least = quota.least_burst.saturating_mul(members.into());
        if quota.burst < least {
            return Some(PlanError::SmallBurst(small(quota.burst, least)));
        }
        let report = self.timing.report;
        (limit.members_by_rate(report) < members.into())
            .then(|| PlanError::SmallRate(small(quota.rate, Limit::least_rate(members, report))))
    }

    /// Lowers least bursts that a burst does not give every seat, so that bursts never sum to more than
    /// the limit's.
    fn fit_least_bursts(&mut self) {
        let sizes: BTreeMap<Option<Name>, u32> = self
            .sizes()
            .map(|(group, size)| (group.cloned(), size.seats))
            .collect();
        for limit in &mut self.limits {
            let seats = sizes.get(&limit.group).copied().unwrap_or(1);
            limit.quota = limit.quota.for_seats(seats);
        }
    }

    fn check_names(&self) -> Result<(), PlanError> {
        let limits: BTreeSet<&Name> = self.limits.iter().map(|limit| &limit.name).collect();
        let groups: BTreeSet<&Name> = self.groups.iter().map(|group| &group.name).collect();
        let fits = |name: &&Name| !name.is_empty() && name.len() <= MAX_NAME;
        let unique = limits.len() == self.limits.len() && groups.len() == self.groups.len();
        if !unique || !limits.iter().chain(&groups).all(fits) {
            return Err(PlanError::Name);
        }
        Ok(())
    }

    /// A limit of the plan.
    #[must_use]
    pub fn limit(&self, id: LimitId) -> Option<&Limit> {
        // While no limit was ever removed, each is where its number says.
        let guess = usize::try_from(id.0).unwrap_or(0).wrapping_sub(1);
        let guessed = self.limits.get(guess).filter(|limit| limit.id == id);
        guessed.or_else(|| {
            let at = self.limits.binary_search_by_key(&id, |limit| limit.id);
            at.ok().and_then(|at| self.limits.get(at))
        })
    }

    /// The limit with this name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Limit> {
        self.limits.iter().find(|limit| &*limit.name == name)
    }

    /// The size of a group, if the plan has it; `None` is the group of all.
    #[must_use]
    pub fn size_of_group(&self, group: Option<&Name>) -> Option<&Size> {
        let Some(name) = group else {
            return Some(&self.size);
        };
        let found = self.groups.iter().find(|group| group.name == *name);
        found.map(|group| &group.size)
    }

    /// The group of all, and every other group with its size.
    pub fn sizes(&self) -> impl Iterator<Item = (Option<&Name>, &Size)> {
        let others = self
            .groups
            .iter()
            .map(|group| (Some(&group.name), &group.size));
        core::iter::once((None, &self.size)).chain(others)
    }

    fn sizes_mut(&mut self) -> impl Iterator<Item = (Option<Name>, &mut Size)> {
        let others = self.groups.iter_mut();
        let others = others.map(|group| (Some(group.name.clone()), &mut group.size));
        core::iter::once((None, &mut self.size)).chain(others)
    }

    fn size_of(&self, limit: &Limit) -> Option<&Size> {
        self.size_of_group(limit.group.as_ref())
    }

    /// Time for which a member may use anything after the sending of its last answered report; `None` if it
    /// keeps its floor for ever.
    #[must_use]
    pub fn ends(&self) -> Option<Duration> {
        match self.return_seats {
            ReturnSeats::Never => None,
            ReturnSeats::After(time) => Some(self.timing.hold.saturating_add(time)),
        }
    }

    /// Returns true if a plan of an operator would change nothing: numbers that a record gives do not
    /// count.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        self.rules == other.rules && self.shares_like(other)
    }

    /// The same of what is shared, whatever rules go with it.
    #[must_use]
    pub fn shares_like(&self, other: &Self) -> bool {
        let same = |one: &Size, other: &Size| {
            let weight = one.sizing == Sizing::Auto || one.total_weight == other.total_weight;
            (one.seats, one.sizing) == (other.seats, other.sizing) && weight
        };
        let groups = self.groups.iter().all(|group| {
            let size = other.size_of_group(Some(&group.name));
            size.is_some_and(|size| same(&group.size, size))
        });
        self.groups.len() == other.groups.len()
            && groups
            && self.differing(other).is_empty()
            && same(&self.size, &other.size)
            && self.timing == other.timing
            && self.return_seats == other.return_seats
    }

    /// The names of the limits that only one of two plans has, or with other numbers than the other one: numbers
    /// that a record gives do not count.
    #[must_use]
    pub fn differing(&self, other: &Self) -> BTreeSet<Name> {
        let (own, others) = (self.fitted(), other.fitted());
        let limits = self.limits.iter().chain(&other.limits);
        let limits =
            limits.filter(|limit| own.get(&limit.identity()) != others.get(&limit.identity()));
        limits.map(|limit| limit.name.clone()).collect()
    }

    /// Numbers of limits as a record gives them. A plan of an operator is not fitted to its seats yet.
    fn fitted(&self) -> BTreeMap<(&Name, Option<&Name>), Quota> {
        let limits = self.limits.iter().map(|limit| {
            let seats = self.size_of(limit).map_or(1, |size| size.seats);
            (limit.identity(), limit.quota.for_seats(seats))
        });
        limits.collect()
    }

    /// The limits that a seat shares.
    pub fn limits_of(&self, seat: &Seat) -> impl Iterator<Item = &Limit> {
        self.limits
            .iter()
            .filter(|limit| seat.is_in(limit.group.as_ref()))
    }

    /// The rate and burst of a limit; zero if there is no such limit.
    #[must_use]
    pub fn whole(&self, id: LimitId) -> Right {
        self.limit(id).map_or(Right::NONE, Limit::whole)
    }

    /// The part of a limit's rate that is a seat's by weight; 0 if it does not share the limit.
    fn by_weight(&self, limit: &Limit, seat: &Seat) -> u64 {
        let group = limit.group.as_ref();
        let size = self
            .size_of(limit)
            .filter(|_| seat.is_in(group) && !seat.draining);
        size.map_or(0, |size| {
            part(limit.quota.rate, u64::from(seat.weight), size.total_weight)
        })
    }

    /// The static share of a seat: the rate by weight, or 0 if the seat has no base.
    #[must_use]
    pub fn base(&self, limit: &Limit, seat: &Seat) -> u64 {
        match limit.quota.fallback {
            _ if !seat.has_base(limit.group.as_ref()) => 0,
            Fallback::Share => self.by_weight(limit, seat),
            Fallback::Floor => self.floor(limit, seat),
            Fallback::Deny => 0,
        }
    }

    /// The floor of a seat, which remains when its static share has ended.
    #[must_use]
    pub fn floor(&self, limit: &Limit, seat: &Seat) -> u64 {
        match limit.quota.fallback {
            _ if !seat.has_base(limit.group.as_ref()) => 0,
            Fallback::Share | Fallback::Floor => self.by_weight(limit, seat) / FLOOR_PART,
            Fallback::Deny => 0,
        }
    }

    /// The least that is planned for a seat, whatever it wants and whatever it may use when it is cut
    /// off.
    #[must_use]
    pub fn planned_floor(&self, limit: &Limit, seat: &Seat) -> u64 {
        self.by_weight(limit, seat) / PLANNED_PART
    }

    /// The burst that goes with a rate: the least burst, plus a part of what the least bursts of all
    /// seats leave of the limit's burst. If rates sum to at most the limit's, their bursts sum to at
    /// most its burst; a plain `burst * rate / limit`, "at least one", would exceed it.
    #[must_use]
    pub fn right(&self, limit: &Limit, rate: u64) -> Right {
        self.right_beside(limit, rate, Others::default())
    }

    /// As [`Plan::right`], while members follow other plans.
    pub(crate) fn right_beside(&self, limit: &Limit, rate: u64, others: Others) -> Right {
        let Some(size) = self.size_of(limit).filter(|_| rate > 0) else {
            return Right { rate: 0, burst: 0 };
        };
        let quota = &limit.quota;
        let set_aside = quota.least_burst.saturating_mul(u64::from(size.seats));
        let shared = quota.burst.saturating_sub(set_aside);
        let shared = shared.saturating_sub(others.bursts);
        // What every plan sets aside for each member.
        let mut least = quota.least_burst.min(others.least_burst);
        if others.unknown {
            // It is not known what their plans set aside.
            let left = quota.burst.saturating_sub(others.bursts);
            least = least.min(left / u64::from(size.seats.max(1)));
        }
        let burst = least + part(shared, rate.min(quota.rate), quota.rate);
        Right { rate, burst }
    }
}

/// Rights of members to a limit under other plans, at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Others {
    /// The sum of their bursts, as parts of the burst in force.
    pub(crate) bursts: u64,
    /// The smallest least burst of any plan that may be followed.
    pub(crate) least_burst: u64,
    /// True if they may follow plans that are not known.
    pub(crate) unknown: bool,
}

impl Default for Others {
    fn default() -> Self {
        Self {
            bursts: 0,
            least_burst: u64::MAX,
            unknown: false,
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
