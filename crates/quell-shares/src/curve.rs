//! Curve: the most that a member may use at later instants, and the sum over all members.
//!
//! A holding is every version sent since the last acknowledged one. Its curve is U(x) of the essay,
//! in slices of a fixed width: a lease counts for the whole slice in which it ends, a base for the
//! whole slice in which it begins. The sum over members is kept as differences between slices. So a
//! change costs a few additions, and computing the headroom one pass over the slices, however many
//! members there are.

use alloc::vec;
use alloc::vec::Vec;

use crate::plan::{LimitId, part, same_part};
use crate::schedule::{LEASE_STEPS, Right};

/// The most versions of one member that are kept apart; older ones are merged into one that allows
/// what any of them does. There are only more if answers are lost.
const MAX_VERSIONS: usize = 6;

/// A lease, with the latest instant of the coordinator's clock at which it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeaseBound {
    pub(crate) right: Right,
    pub(crate) ends: u64,
}

/// One version as its sender must count it, in nanoseconds of the sender's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SentVersion {
    pub(crate) number: u64,
    pub(crate) revision: u64,
    /// The largest rate, by the plans that the member may follow with it, of the limit that all else is a part
    /// of. It stays when the limit in force is another one.
    pub(crate) of: u64,
    pub(crate) leases: [LeaseBound; LEASE_STEPS],
    pub(crate) gap: Right,
    /// The earliest instant at which the base may begin.
    pub(crate) base_begins: u64,
    pub(crate) base: Right,
    /// The least base, in micro-units per second, that a member with this version has. It is less
    /// than `base` if the member only may have that.
    pub(crate) sure: u64,
    /// The latest instant at which the base ends.
    pub(crate) base_ends: u64,
    pub(crate) floor: Right,
    /// The latest instant at which the floor ends; the largest number if it does not.
    pub(crate) floor_ends: u64,
}

impl SentVersion {
    /// A version without any right.
    pub(crate) fn nothing(number: u64, revision: u64) -> Self {
        Self {
            number,
            revision,
            ..Self::default()
        }
    }

    fn at(&self, slice: u64, width: u64) -> u64 {
        let mut rate = self.gap.rate;
        for lease in &self.leases {
            if slice <= lease.ends / width {
                rate = rate.max(lease.right.rate);
            }
        }
        if slice >= self.base_begins / width {
            rate = rate.max(self.base.rate);
        }
        rate
    }

    /// The most that it allows at `now`.
    pub(crate) fn now(&self, now: u64, slices: Slices) -> u64 {
        self.at(now / slices.width, slices.width)
    }

    /// The largest burst that it ever allows.
    pub(crate) fn burst(&self) -> u64 {
        let leases = self.leases.iter().map(|lease| lease.right.burst);
        leases.fold(self.base.burst.max(self.gap.burst), u64::max)
    }

    /// Converts the version to a limit of `of` instead of `whole`: the same parts of it. What a
    /// member has under another plan is a part of that plan's limit, and all parts add up to one.
    pub(crate) fn rescale(&mut self, whole: Right, of: Right) {
        let leases = self.leases.iter_mut().map(|lease| &mut lease.right);
        for right in leases.chain([&mut self.gap, &mut self.base, &mut self.floor]) {
            right.rate = same_part(right.rate, whole.rate, of.rate);
            right.burst = same_part(right.burst, whole.burst, of.burst);
        }
        self.sure = part(self.sure, of.rate, whole.rate).min(self.base.rate);
    }

    /// Returns true if the curve allows nothing from `now` on.
    pub(crate) fn is_nothing(&self, now: u64) -> bool {
        let rests = self.gap.rate.max(self.base.rate).max(self.floor.rate);
        rests == 0 && self.leases_end() < now
    }

    /// The end of the last lease that allows anything.
    pub(crate) fn leases_end(&self) -> u64 {
        let leases = self.leases.iter().filter(|lease| lease.right.rate > 0);
        leases.map(|lease| lease.ends).fold(0, u64::max)
    }

    /// A version that always allows at least what either of the two allows.
    pub(crate) fn merged(&self, newer: &Self) -> Self {
        let mut merged = *newer;
        merged.of = self.of.max(newer.of);
        merged.gap = self.gap.most(newer.gap);
        merged.base = self.base.most(newer.base);
        merged.floor = self.floor.most(newer.floor);
        merged.sure = self.sure.min(newer.sure);
        merged.base_begins = self.base_begins.min(newer.base_begins);
        merged.base_ends = self.base_ends.max(newer.base_ends);
        merged.floor_ends = self.floor_ends.max(newer.floor_ends);
        if self.revision != newer.revision {
            merged.revision = 0;
        }
        // One lease for all: the highest right until the last end.
        let mut all = LeaseBound::default();
        for lease in self.leases.iter().chain(&newer.leases) {
            if lease.right.rate > 0 {
                all.right = all.right.most(lease.right);
                all.ends = all.ends.max(lease.ends);
            }
        }
        merged.leases = [all, LeaseBound::default(), LeaseBound::default()];
        merged
    }
}

/// Rights that one member may hold of one limit, and those that it should have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holding {
    /// The limit.
    pub(crate) limit: LimitId,
    /// Its place among the limits that the ledger keeps.
    pub(crate) at: usize,
    /// From the last acknowledged version to the last one sent; never empty once the member is
    /// known.
    pub(crate) versions: Vec<SentVersion>,
    /// The demand with its margin, in micro-units per second.
    pub(crate) want: u64,
    /// The rate planned for the member.
    pub(crate) target: u64,
    /// The rate of the last version's first lease.
    pub(crate) sent: u64,
    /// Since when less was sent than is planned, in nanoseconds; 0 if that is not so.
    pub(crate) short_since: u64,
}

impl Holding {
    /// Plans another rate.
    pub(crate) fn aim(&mut self, now: u64, target: u64) {
        if !self.is_short() {
            self.short_since = 0;
        }
        self.target = target;
        if self.short_since == 0 && self.is_short() {
            self.short_since = now;
        }
    }

    /// For how many nanoseconds the member has waited for its planned share.
    pub(crate) fn lag(&self, now: u64) -> u64 {
        match self.is_short() {
            true => now.saturating_sub(self.short_since),
            false => 0,
        }
    }

    /// Returns true if so much less was sent than is planned that it matters.
    const fn is_short(&self) -> bool {
        self.sent < self.target - self.target / 20
    }

    pub(crate) fn new(limit: LimitId, version: SentVersion) -> Self {
        Self {
            limit,
            versions: vec![version],
            ..Self::default()
        }
    }

    /// The base to reserve for it.
    pub(crate) fn tail(&self) -> u64 {
        self.versions.iter().map(|v| v.base.rate).fold(0, u64::max)
    }

    /// The least base among its versions: what it has for certain, so leaving it that takes nothing
    /// from others.
    pub(crate) fn sure_base(&self) -> u64 {
        self.versions.iter().map(|v| v.sure).min().unwrap_or(0)
    }

    /// The largest burst among its versions of other revisions than these.
    fn foreign_burst(&self, native: [u64; 2]) -> u64 {
        let foreign = |version: &&SentVersion| !native.contains(&version.revision);
        let foreign = self.versions.iter().filter(foreign);
        foreign.map(SentVersion::burst).fold(0, u64::max)
    }

    /// Converts all versions to a limit of `of` instead of `whole`.
    pub(crate) fn rescale(&mut self, whole: Right, of: Right) {
        for version in &mut self.versions {
            version.rescale(whole, of);
        }
        self.target = same_part(self.target, whole.rate, of.rate);
        self.sent = same_part(self.sent, whole.rate, of.rate);
    }

    pub(crate) fn acknowledge(&mut self, number: u64) {
        self.versions.retain(|version| version.number >= number);
    }

    pub(crate) fn push(&mut self, version: SentVersion) {
        if self.versions.len() >= MAX_VERSIONS
            && let [first, second, ..] = self.versions[..]
        {
            let merged = first.merged(&second);
            self.versions.remove(0);
            if let Some(first) = self.versions.first_mut() {
                *first = merged;
            }
        }
        self.versions.push(version);
    }

    /// If every base and lease has ended, reduces the holding to its floor, and to nothing if every
    /// floor has ended. Returns whether it did.
    pub(crate) fn fall(&mut self, now: u64) -> bool {
        let over = |v: &SentVersion| v.base_ends < now && v.leases_end() < now;
        if !self.versions.iter().all(over) {
            return false;
        }
        let gone = self.versions.iter().all(|v| v.floor_ends < now);
        let mut fell = false;
        for version in &mut self.versions {
            if gone {
                version.floor = Right::NONE;
            }
            let floor = version.floor;
            fell |= version.base.rate > floor.rate || version.gap.rate > floor.rate;
            version.leases = Default::default();
            version.base = floor;
            version.sure = version.sure.min(floor.rate);
            version.gap = floor;
            version.base_begins = 0;
        }
        fell
    }

    /// Returns true if the sum allows nothing from `now` on.
    pub(crate) fn is_nothing(&self, now: u64) -> bool {
        self.versions.iter().all(|v| v.is_nothing(now))
    }

    /// The largest limit that the member may use a part of, by the plans that it may follow; 0 if it has nothing.
    pub(crate) fn largest(&self, now: u64) -> u64 {
        let some = self.versions.iter().filter(|v| !v.is_nothing(now));
        some.map(|v| v.of).fold(0, u64::max)
    }

    /// One version that allows what any of them does.
    pub(crate) fn envelope(&self) -> SentVersion {
        let mut all = self.versions.iter();
        let first = all.next().copied().unwrap_or_default();
        all.fold(first, |merged, version| merged.merged(version))
    }

    fn at(&self, slice: u64, width: u64) -> u64 {
        let versions = self.versions.iter().map(|v| v.at(slice, width));
        versions.fold(0, u64::max)
    }
}

/// The division of the coordinator's clock into slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slices {
    /// In nanoseconds.
    pub(crate) width: u64,
    /// A power of two.
    pub(crate) count: u64,
}

impl Slices {
    /// Slices of about 1/200 of a lease, up to the end of a promise.
    pub(crate) fn reaching(lease: u64, farthest: u64) -> Self {
        let width = (lease / 200).max(1_000_000);
        let count = (farthest / width + 4).next_power_of_two();
        Self { width, count }
    }
}

/// The sum of the curves of all members of one limit, from now on.
#[derive(Clone, Debug)]
pub(crate) struct Horizon {
    slices: Slices,
    /// The current slice.
    head: u64,
    /// The sum in the current slice.
    sum: u64,
    /// The difference between each later slice and the one before it, in two's complement.
    steps: Vec<u64>,
    /// The sum of the tails.
    pub(crate) tails: u64,
    /// For decisions under the plan in force, and under the one that is being rolled out: the
    /// revisions whose bursts add up with theirs.
    native: [[u64; 2]; 2],
    /// For the same two: the sum of the bursts of other revisions.
    pub(crate) foreign: [u64; 2],
    /// Slices where a curve may bend; kept to save allocations.
    bends: Vec<u64>,
}

impl Horizon {
    pub(crate) fn new(slices: Slices, now: u64, native: [[u64; 2]; 2]) -> Self {
        let count = usize::try_from(slices.count).unwrap_or(0).max(1);
        Self {
            slices,
            head: now / slices.width,
            sum: 0,
            steps: vec![0; count],
            tails: 0,
            native,
            foreign: [0; 2],
            bends: Vec::new(),
        }
    }

    fn cell(&mut self, slice: u64) -> &mut u64 {
        let mask = self.steps.len() - 1;
        #[expect(clippy::cast_possible_truncation, reason = "masked to the table")]
        let index = (slice as usize) & mask;
        &mut self.steps[index]
    }

    /// Moves the current slice to `now`.
    pub(crate) fn advance(&mut self, now: u64) {
        let to = now / self.slices.width;
        if to > self.head + self.slices.count {
            let all = self.steps.iter().fold(0_u64, |a, b| a.wrapping_add(*b));
            self.sum = self.sum.wrapping_add(all);
            self.steps.fill(0);
            self.head = to;
        }
        while self.head < to {
            self.head += 1;
            let step = core::mem::take(self.cell(self.head));
            self.sum = self.sum.wrapping_add(step);
        }
    }

    /// Adds a holding to the sum.
    pub(crate) fn add(&mut self, holding: &Holding) {
        self.count(holding, u64::wrapping_add);
    }

    /// Removes a holding from the sum. It must be as it was when added, except for changes by time.
    pub(crate) fn remove(&mut self, holding: &Holding) {
        self.count(holding, u64::wrapping_sub);
    }

    fn count(&mut self, holding: &Holding, apply: fn(u64, u64) -> u64) {
        self.tails = apply(self.tails, holding.tail());
        let first = holding.foreign_burst(self.native[0]);
        let second = if self.native[0] == self.native[1] {
            first
        } else {
            holding.foreign_burst(self.native[1])
        };
        self.foreign = [
            apply(self.foreign[0], first),
            apply(self.foreign[1], second),
        ];
        let width = self.slices.width;
        let mut bends = core::mem::take(&mut self.bends);
        bends.clear();
        for version in &holding.versions {
            let leases = version.leases.iter().map(|lease| lease.ends / width + 1);
            let places = leases.chain([version.base_begins / width]);
            bends.extend(places.filter(|slice| *slice > self.head));
        }
        bends.sort_unstable();
        bends.dedup();
        let mut before = holding.at(self.head, width);
        self.sum = apply(self.sum, before);
        for slice in &bends {
            let value = holding.at(*slice, width);
            let cell = self.cell(*slice);
            *cell = apply(*cell, value.wrapping_sub(before));
            before = value;
        }
        self.bends = bends;
    }

    /// Rates that may be added until the slice of `end`: they fall from step to step, each with the last
    /// instant at which it may be used; the last step reaches `end`. No rate exceeds `target`, and none
    /// exceeds `rate` together with the curves in the sum.
    pub(crate) fn headroom(&mut self, rate: u64, target: u64, end: u64) -> Headroom {
        let last = end / self.slices.width;
        let mut sum = self.sum;
        let mut least = rate.saturating_sub(sum).min(target);
        let mut found = Headroom::default();
        let mut slice = self.head;
        while slice < last {
            slice += 1;
            sum = sum.wrapping_add(*self.cell(slice));
            let free = rate.saturating_sub(sum);
            if free < least {
                found.close(least, slice * self.slices.width - 1);
                least = free;
            }
        }
        found.close(least, end);
        found
    }

    /// The sum in the current slice: what all members together may use now.
    pub(crate) fn now(&self) -> u64 {
        self.sum
    }
}

/// Rates that fall from step to step.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Headroom {
    pub(crate) steps: [(u64, u64); LEASE_STEPS],
    pub(crate) len: usize,
}

impl Headroom {
    /// Adds a step. If all steps are taken, the last one is extended and lowered.
    pub(crate) fn close(&mut self, rate: u64, ends: u64) {
        if self.len == LEASE_STEPS {
            self.len -= 1;
        }
        self.steps[self.len] = (rate, ends);
        self.len += 1;
    }

    /// The rate of the last step.
    pub(crate) fn lowest(&self) -> u64 {
        self.len.checked_sub(1).map_or(0, |last| self.steps[last].0)
    }
}
