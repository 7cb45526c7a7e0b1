//! Seats: which members take part. Every change is written, under the leader's key, before it takes
//! effect.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use quell_core::time::{Monotonic, saturating_nanos};

use super::learn::Most;
use super::{Account, GRAIN, Ledger};
use crate::curve::{Holding, Version};
use crate::errs;
use crate::leader::Effect;
use crate::message::{Join, Joined, Kept, Leave, Response};
use crate::plan::{MemberId, Record, Seat, Sizing};

/// The most joins that may wait for a write; further members have to ask again.
const JOINS: usize = 10_000;

/// Changes that wait to be written, and the write that is under way.
#[derive(Clone, Debug, Default)]
pub(super) struct Pending {
    joins: Vec<Join>,
    leaves: Vec<Leave>,
    prune: bool,
    /// The version that is being written.
    writing: Option<u64>,
}

impl Ledger {
    pub(super) fn join(&mut self, join: Join, effects: &mut Vec<Effect>) {
        let to = join.member;
        if let Some(seat) = self.record.seat(to) {
            if seat.nonce == join.nonce {
                effects.push(Self::joined(
                    self.epoch,
                    &self.record,
                    seat,
                    &mut self.accounts,
                ));
                return;
            }
            if seat.incarnation != join.replaces && !errs!(self, ObeyOldJoin) {
                effects.push(self.occupied(&join, seat));
                return;
            }
            if !join.exclusive && !errs!(self, IdNotExclusive) {
                // The process that has the id may be alive: only it, or an operator, can give the
                // seat back.
                effects.push(self.refused(&join));
                return;
            }
        }
        let waiting = &mut self.pending.joins;
        let same = |other: &Join| other.member == to && other.nonce == join.nonce;
        if waiting.len() < JOINS && !waiting.iter().any(same) {
            waiting.push(join);
        }
    }

    fn joined(
        epoch: u64,
        record: &Record,
        seat: &Seat,
        accounts: &mut BTreeMap<MemberId, Account>,
    ) -> Effect {
        let account = accounts.get_mut(&seat.member);
        account.into_iter().for_each(|one| one.addressed = true);
        let joined = Joined {
            epoch,
            nonce: seat.nonce,
            incarnation: seat.incarnation,
            record: record.version,
        };
        Effect::answer(seat.member, Response::Joined(joined))
    }

    pub(super) fn leave(&mut self, now: u64, leave: Leave, effects: &mut Vec<Effect>) {
        let any = errs!(self, LeaveAnyIncarnation);
        let revision = self.record.plan.revision;
        let account = self.accounts.get_mut(&leave.member);
        let account =
            account.filter(|account| any || account.seat.incarnation == leave.incarnation);
        let Some(account) = account else {
            // That start is over already, or was replaced.
            effects.push(left(leave));
            return;
        };
        account.change(&mut self.horizons, now, revision, |holding| {
            *holding = Holding::default();
        });
        account.left = true;
        account.known = true;
        self.dirty.fill(true);
        let of_seat = Leave {
            member: leave.member,
            incarnation: account.seat.incarnation,
        };
        if !self.pending.leaves.contains(&of_seat) {
            self.pending.leaves.push(of_seat);
        }
    }

    /// Writes the waiting changes, one write at a time.
    pub(super) fn write(&mut self, effects: &mut Vec<Effect>) {
        let waits = &self.pending;
        let nothing = waits.joins.is_empty() && waits.leaves.is_empty() && !waits.prune;
        if nothing || waits.writing.is_some() {
            return;
        }
        let mut record = self.record.clone();
        record.version += 1;
        if self.pending.prune {
            record.forget_older();
        }
        let mut changed = self.pending.prune;
        for leave in &self.pending.leaves {
            let seats = record.seats.len();
            record.seats.retain(|seat| {
                seat.member != leave.member || seat.incarnation != leave.incarnation
            });
            changed |= record.seats.len() != seats;
        }
        for join in &self.pending.joins {
            let any = (errs!(self, ObeyOldJoin), errs!(self, SeatForAll));
            changed |= seat(&mut record, join, any);
        }
        let weight = record.seated_weight().max(1);
        if record.plan.sizing == Sizing::Auto && record.plan.total_weight != weight {
            let plan = record.plan.clone();
            match record.replace_plan(plan) {
                Ok(()) => changed = true,
                Err(error) => effects.push(Effect::PlanRefused(error)),
            }
            if self.record.seats.is_empty() {
                record.forget_older();
            }
        }
        if changed {
            self.pending.writing = Some(record.version);
            effects.push(Effect::Write(record));
        } else {
            self.settle_pending(effects);
        }
    }

    /// Drops older plans that no member can follow any more.
    pub(super) fn prune(&mut self, now: u64) {
        if self.record.older.is_empty() || !self.grants() || self.latest == 0 {
            return;
        }
        let revision = self.record.plan.revision;
        let follows = |holding: &Holding| holding.versions.iter().all(|v| v.revision == revision);
        let early = errs!(self, PruneEarly);
        let all =
            |account: &Account| account.holdings.iter().all(follows) || early && !account.planned;
        // Leases of an older plan may be longer than a successor would wait for.
        let timing = self.record.plan.timing;
        let longest = now + self.drift.longest(saturating_nanos(timing.lease)) + GRAIN;
        self.pending.prune = self.latest <= longest && self.accounts.values().all(all);
    }

    pub(crate) fn stored(&mut self, now: Monotonic, record: Record, effects: &mut Vec<Effect>) {
        if record.version <= self.record.version {
            return;
        }
        let now = now.as_nanos();
        self.pending.writing = None;
        self.pending.prune = false;
        let before = core::mem::replace(&mut self.record, record);
        self.rescale(&before);
        let seats = self.record.seats.clone();
        let ours = |member: &MemberId| self.record.seat(*member).is_some();
        self.accounts.retain(|member, _| ours(member));
        for seat in seats {
            let known = self.accounts.get_mut(&seat.member);
            if let Some(account) = known
                && account.seat.incarnation == seat.incarnation
            {
                account.seat = seat;
                continue;
            }
            let mut account = Account::of(seat, now);
            let join = self.pending.joins.iter().find(|j| j.nonce == seat.nonce);
            match join {
                Some(join) => {
                    let floors = join.floors.iter().enumerate();
                    let versions = floors.map(|(limit, kept)| boot(&self.record, limit, kept));
                    account.holdings = versions.map(Holding::of).collect();
                    let count = self.record.plan.limits.len();
                    let nothing = Holding::of(Version::default());
                    account.holdings.resize(count, nothing);
                    account.known = true;
                }
                // Only a leader gives seats, so there is another one, and the time of this one is nearly
                // over. Until then it knows nothing of the process.
                None => account.holdings = self.unheard(&seat, now),
            }
            self.accounts.insert(seat.member, account);
        }
        self.rebuild(now);
        self.settle_pending(effects);
        self.write(effects);
    }

    /// Converts what every member holds to the same parts of the new limits.
    fn rescale(&mut self, before: &Record) {
        if errs!(self, CountPlainly) {
            return;
        }
        for account in self.accounts.values_mut() {
            for (limit, holding) in account.holdings.iter_mut().enumerate() {
                let (was, is) = (before.whole(limit), self.record.whole(limit));
                if was != is {
                    holding.rescale(was, is);
                }
            }
        }
    }

    /// Another start has the seat.
    const fn occupied(&self, join: &Join, seat: &Seat) -> Effect {
        let answer = Response::Occupied {
            nonce: join.nonce,
            incarnation: seat.incarnation,
            epoch: self.epoch,
            retry: Duration::ZERO,
        };
        Effect::answer(join.member, answer)
    }

    /// There is no seat for it now: it may ask again when a lease is over.
    const fn refused(&self, join: &Join) -> Effect {
        let answer = Response::Unknown {
            incarnation: 0,
            epoch: self.epoch,
            retry: self.record.plan.timing.lease,
        };
        Effect::answer(join.member, answer)
    }

    /// Whether a write is under way.
    pub(crate) const fn writes(&self) -> bool {
        self.pending.writing.is_some()
    }

    pub(crate) fn not_stored(&mut self, effects: &mut Vec<Effect>) {
        self.pending.writing = None;
        self.write(effects);
    }

    /// Answers waiting joins and leaves according to the new record.
    fn settle_pending(&mut self, effects: &mut Vec<Effect>) {
        let joins = core::mem::take(&mut self.pending.joins);
        for join in joins {
            let room = self.record.seats.len() < self.record.room();
            match self.record.seat(join.member) {
                Some(seat) if seat.nonce == join.nonce => {
                    let accounts = &mut self.accounts;
                    effects.push(Self::joined(self.epoch, &self.record, seat, accounts));
                }
                // Another start came first: if this one is newer, it can say so.
                Some(seat) if seat.incarnation != join.replaces => {
                    effects.push(self.occupied(&join, seat));
                }
                // It came while another write was under way.
                Some(_) => self.pending.joins.push(join),
                None if room => self.pending.joins.push(join),
                None => effects.push(self.refused(&join)),
            }
        }
        let leaves = core::mem::take(&mut self.pending.leaves);
        for leave in leaves {
            let seat = self.record.seat(leave.member);
            if seat.is_some_and(|seat| seat.incarnation == leave.incarnation) {
                self.pending.leaves.push(leave);
                continue;
            }
            effects.push(left(leave));
        }
    }
}

const fn left(leave: Leave) -> Effect {
    let incarnation = leave.incarnation;
    Effect::answer(leave.member, Response::Left { incarnation })
}

/// What a process may use of a limit when it starts.
fn boot(record: &Record, limit: usize, kept: &Kept) -> Version {
    let floor = Most::of(record, limit).right(kept.right);
    let mut version = Version {
        base: floor,
        sure: floor.rate,
        gap: floor,
        floor,
        ..Version::default()
    };
    version.rescale(kept.whole, record.whole(limit));
    version
}

/// Gives a joining process its seat and number. Returns whether the record changed.
fn seat(record: &mut Record, join: &Join, (any, all): (bool, bool)) -> bool {
    let weight = join.weight.max(1);
    let at = record
        .seats
        .binary_search_by_key(&join.member, |seat| seat.member);
    let room = record.plan.total_weight;
    let seats = record.room();
    match at {
        Ok(at) if record.seats[at].nonce == join.nonce => return false,
        Ok(at) if record.seats[at].incarnation != join.replaces && !any => return false,
        Ok(at) => {
            record.incarnations += 1;
            record.seats[at].incarnation = record.incarnations;
            record.seats[at].nonce = join.nonce;
        }
        Err(_) if record.seats.len() >= seats && !all => return false,
        Err(at) => {
            let based = record.seats.iter().filter(|seat| seat.based);
            let taken: u64 = based.map(|seat| u64::from(seat.weight)).sum();
            record.incarnations += 1;
            let fits = taken + u64::from(weight) <= room;
            let seat = Seat {
                member: join.member,
                incarnation: record.incarnations,
                nonce: join.nonce,
                weight,
                based: record.plan.sizing == Sizing::Auto || fits,
            };
            record.seats.insert(at, seat);
        }
    }
    true
}
