//! Seats: which members take part. Every change is written, under the leader's key, before it takes
//! effect.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use quell_core::time::{Monotonic, saturating_nanos};

use super::grant::names;
use super::learn::{Most, Phase, claimed, in_order};
use super::operate::Operation;
use super::{Account, GRAIN, Ledger};
use crate::curve::{Holding, SentVersion};
use crate::effect::Effect;
use crate::message::{Join, Joined, Kept, Leave, NoSeat, Response};
use crate::plan::{MAX_MEMBERSHIPS, MAX_NAME, MemberId, Membership, Name, Record, Seat};

/// The most joins that may wait for a write; further members have to ask again.
const JOINS: usize = 10_000;

/// Changes that wait to be written, and the write that is under way.
#[derive(Clone, Debug, Default)]
pub(super) struct Pending {
    joins: Vec<Join>,
    pub(super) operations: VecDeque<Operation>,
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
            if seat.incarnation != join.replaces {
                effects.push(self.occupied(&join, seat));
                return;
            }
            if !join.exclusive {
                // The process that has the id may be alive: only it, or an operator, can give the
                // seat back.
                effects.push(self.refused(&join, NoSeat::Taken));
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
            names: names(record.plan_of(seat), seat),
        };
        Effect::answer(seat.member, Response::Joined(joined))
    }

    pub(super) fn leave(&mut self, now: u64, leave: Leave, effects: &mut Vec<Effect>) {
        let account = self.accounts.get_mut(&leave.member);
        let account = account.filter(|account| account.seat.incarnation == leave.incarnation);
        let Some(account) = account else {
            // That start is over already, or was replaced.
            effects.push(left(leave));
            return;
        };
        account.change(&mut self.horizons, now, |holding| {
            *holding = Holding {
                limit: holding.limit,
                at: holding.at,
                ..Holding::default()
            };
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

    /// Gives back the seats of drained members that have nothing any more, and of members that were
    /// silent for as long as the plan says and have nothing any more by their own schedules.
    pub(super) fn give_back(&mut self, now: u64) {
        if !self.grants() {
            return;
        }
        let unheard = self.unheard_members.is_some();
        let drained: BTreeSet<MemberId> = { self.record.seats.iter() }
            .filter(|seat| seat.draining && !self.is_drain_undone(seat.member))
            .map(|seat| seat.member)
            .collect();
        let ends = self.record.plan.ends().map(saturating_nanos);
        let ends = ends.map(|ends| self.drift.longest(ends).saturating_add(GRAIN));
        for account in self.accounts.values_mut() {
            let silent = now.saturating_sub(account.heard);
            let over = !account.planned && ends.is_some_and(|ends| silent > ends);
            let drained = drained.contains(&account.seat.member);
            let mut holdings = account.holdings.iter();
            let nothing = holdings.all(|holding| holding.is_nothing(now));
            // Of a member that was not heard since a restore, nothing is known: what it has is part of what is
            // set aside, until it is said that nobody has that.
            let nothing = nothing && (account.fenced || !unheard);
            if (over || drained) && account.known && !account.left && nothing {
                account.left = true;
                self.pending.leaves.push(Leave {
                    member: account.seat.member,
                    incarnation: account.seat.incarnation,
                });
            }
        }
    }

    /// Writes the waiting changes, one write at a time.
    pub(crate) fn write(&mut self, effects: &mut Vec<Effect>) {
        let waits = &self.pending;
        let nothing = waits.joins.is_empty() && waits.leaves.is_empty() && !waits.prune;
        if nothing && waits.operations.is_empty() || waits.writing.is_some() {
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
            changed |= seat(&mut record, join);
        }
        changed |= self.apply_operation(&mut record);
        if changed {
            record.give_bases();
            record.resize();
            if self.record.seats.is_empty() {
                record.forget_older();
            }
        }
        if changed {
            self.pending.writing = Some(record.version);
            effects.push(Effect::Write(record));
        } else {
            self.settle_operations();
            self.settle_pending(effects);
        }
    }

    /// Drops older plans that no member can follow any more.
    pub(super) fn prune(&mut self, now: u64) {
        let waits = !self.grants() || self.latest == 0 || self.unheard_members.is_some();
        let has_older = !self.record.older.is_empty() || self.record.merged.is_some();
        if !has_older || waits {
            return;
        }
        let follows = |account: &Account| {
            let revision = self.record.plan_of(&account.seat).revision;
            let is_newest = |version: &SentVersion| version.revision == revision;
            let mut versions = account.holdings.iter().flat_map(|h| &h.versions);
            versions.all(is_newest)
        };
        // Leases of an older plan may be longer than a successor would wait for.
        let leases = self.record.current().map(|plan| plan.timing.lease);
        let lease = saturating_nanos(leases.max().unwrap_or_default());
        let longest = now + self.drift.longest(lease) + GRAIN;
        self.pending.prune = self.latest <= longest && self.accounts.values().all(follows);
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
        let mut joined = Vec::new();
        let ours = |member: &MemberId| self.record.seat(*member).is_some();
        self.accounts.retain(|member, _| ours(member));
        for seat in seats {
            let unheard = self.unheard_if_learning(&seat);
            let known = self.accounts.get_mut(&seat.member);
            if let Some(account) = known
                && account.seat.incarnation == seat.incarnation
            {
                account.seat = seat;
                // The leader before may have granted by this record.
                if let Some(unheard) = unheard.filter(|_| !account.known) {
                    account.holdings = unheard;
                }
                continue;
            }
            let joins = self.pending.joins.iter();
            let join = joins.clone().find(|join| join.nonce == seat.nonce);
            let mut account = Account::new(seat, now);
            if let Some(join) = join {
                let floors = join.floors.iter().map(|kept| boot(&self.record, kept));
                account.holdings = in_order(floors);
                account.known = true;
                account.fenced = true;
                joined.push(join.clone());
            } else {
                // Only a leader gives seats, so there is another one, and the time of this one is
                // nearly over. Until then it knows nothing of the process.
                account.holdings = self.unheard(&account.seat, now);
            }
            self.accounts.insert(account.seat.member, account);
        }
        self.end_unheard(now);
        self.rebuild(now);
        self.settle_operations();
        for join in &joined {
            self.count_joined(now, join, before.seat(join.member));
        }
        self.settle_pending(effects);
        self.write(effects);
    }

    /// Converts what every member holds to the same parts of the new limits.
    fn rescale(&mut self, before: &Record) {
        self.rescale_unheard(before);
        for account in self.accounts.values_mut() {
            for holding in &mut account.holdings {
                let limit = holding.limit;
                let (was, is) = (before.whole(limit), self.record.whole(limit));
                if was != is {
                    holding.rescale(was, is);
                }
            }
        }
    }

    /// Holdings of a member that was not heard, while this leader is learning.
    fn unheard_if_learning(&self, seat: &Seat) -> Option<Vec<Holding>> {
        match self.phase {
            Phase::Learning { .. } => Some(self.unheard(seat, self.quiet_until)),
            Phase::Granting => None,
        }
    }

    /// Another start has the seat.
    fn occupied(&self, join: &Join, seat: &Seat) -> Effect {
        let answer = Response::Occupied {
            nonce: join.nonce,
            incarnation: seat.incarnation,
            epoch: self.epoch,
            retry: Duration::ZERO,
        };
        Effect::answer(join.member, answer)
    }

    /// Refuses a seat for now: the member may ask again when a lease is over.
    fn refused(&self, join: &Join, why: NoSeat) -> Effect {
        let answer = Response::Unknown {
            incarnation: 0,
            epoch: self.epoch,
            retry: self.record.plan.timing.lease,
            no_seat: Some(why),
        };
        Effect::answer(join.member, answer)
    }

    /// Writes the record as it is known here over an older one.
    pub(crate) fn write_again(&mut self, effects: &mut Vec<Effect>) {
        let mut record = self.record.clone();
        record.version += 1;
        self.pending.writing = Some(record.version);
        effects.push(Effect::Write(record));
    }

    /// Returns true while a write is under way.
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
            let groups = groups(&join);
            match self.record.seat(join.member) {
                Some(seat) if seat.nonce == join.nonce => {
                    let accounts = &mut self.accounts;
                    effects.push(Self::joined(self.epoch, &self.record, seat, accounts));
                }
                // Another start came first: if this one is newer, it can say so.
                Some(seat) if seat.incarnation != join.replaces => {
                    effects.push(self.occupied(&join, seat));
                }
                seat => match full(&self.record, seat, &groups) {
                    Some(why) => effects.push(self.refused(&join, why)),
                    // It came while another write was under way.
                    None => self.pending.joins.push(join),
                },
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

/// Holding of a process for a limit when it starts.
fn boot(record: &Record, kept: &Kept) -> Holding {
    let floor = Most::new(record, kept.limit).right(kept.right);
    let mut version = SentVersion {
        of: claimed(record, kept.limit, kept.whole),
        base: floor,
        sure: floor.rate,
        gap: floor,
        floor,
        floor_ends: u64::MAX,
        ..SentVersion::default()
    };
    version.rescale(kept.whole, record.whole(kept.limit));
    Holding::new(kept.limit, version)
}

/// The groups that a join names, each once.
fn groups(join: &Join) -> Vec<Name> {
    let valid = |group: &&Name| !group.is_empty() && group.len() <= MAX_NAME;
    let mut groups: Vec<Name> = join.groups.iter().filter(valid).cloned().collect();
    groups.sort_unstable();
    groups.dedup();
    groups.truncate(MAX_MEMBERSHIPS);
    groups
}

/// Returns those of these groups that are not in any plan, or have no room for a member, besides those that
/// its seat is in. What strangers may name would fill the record, so a group that nobody shares is none.
fn full(record: &Record, seat: Option<&Seat>, groups: &[Name]) -> Option<NoSeat> {
    let has_room = |group: Option<&Name>| record.members_of(group) < record.room(group);
    let is_in = |group: Option<&Name>| seat.is_some_and(|seat| seat.may_be_in(group));
    let is_known = |group: &Name| {
        let mut current = record.current();
        current.any(|plan| plan.size_of_group(Some(group)).is_some())
    };
    let unknown = groups
        .iter()
        .find(|group| !is_in(Some(group)) && !is_known(group));
    if let Some(group) = unknown {
        return Some(NoSeat::NoGroup(group.clone()));
    }
    let mut all = core::iter::once(None).chain(groups.iter().map(Some));
    let full = all.find(|group| !is_in(*group) && !has_room(*group))?;
    Some(NoSeat::Full(full.cloned()))
}

/// Gives a joining process its seat and number. Returns whether the record changed.
fn seat(record: &mut Record, join: &Join) -> bool {
    let at = record
        .seats
        .binary_search_by_key(&join.member, |seat| seat.member);
    let named = groups(join);
    let fits = full(record, record.seat(join.member), &named).is_none();
    let memberships = named.into_iter().map(|group| Membership {
        group,
        based: false,
    });
    match at {
        Ok(at) if record.seats[at].nonce == join.nonce => return false,
        Ok(at) if record.seats[at].incarnation != join.replaces => return false,
        _ if !fits => return false,
        Ok(at) => {
            record.incarnations += 1;
            let seat = &mut record.seats[at];
            seat.incarnation = record.incarnations;
            seat.nonce = join.nonce;
            let same = |one: &Membership| seat.is_in(Some(&one.group));
            let groups: Vec<Membership> = memberships.collect();
            if groups.len() != seat.groups.len() || !groups.iter().all(same) {
                seat.change(seat.weight, groups);
                record.plan_again();
            }
        }
        Err(at) => {
            record.incarnations += 1;
            let weight = join.weight.max(1);
            let seat = Seat {
                based: false,
                groups: memberships.collect(),
                ..Seat::new(join.member, record.incarnations, join.nonce, weight)
            };
            record.seats.insert(at, seat);
        }
    }
    true
}
