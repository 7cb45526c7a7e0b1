//! Witnesses: members that say that they have seen a number which the store has not given.
//!
//! Epochs, incarnations and versions of the record only rise. So a member that knows a higher one than the
//! leader has heard a later leader, or the store went back, or it lies. The leader asks the store once
//! more: if it still has the key, and the record is not newer, there is no later leader. What remains is
//! whom to believe, because a leader that believes a liar grants nothing to anybody:
//!
//! * only a member that has a seat, in its incarnation, and of numbers that an operator can have raised:
//!   those of the generation that the record has;
//! * only if a second such member says so, too;
//! * only for as long as both say so: when one has been silent for three leases the leader goes on.
//!
//! The reports of others are shown to an operator, and proves nothing. Nobody who says that it has heard a later
//! leader obeys this one, so nothing that it has is given to others because of what it says.

use alloc::collections::BTreeMap;
use core::fmt;
use core::time::Duration;

use quell_core::time::Monotonic;

use crate::generation;
use crate::ledger::Claim;
use crate::plan::MemberId;
use crate::store_rollback::{Number, StoreRollback};

/// Number of members that have to say so.
const ENOUGH: usize = 2;

/// Number of members without a seat that are remembered: their claims are only shown, and there may be any
/// number of them.
const MAX_UNSEATED: usize = 64;

/// For how many leases a witness may be silent. A leader that grants nothing has members ask again after
/// one.
const SILENT_LEASES: u32 = 3;

#[derive(Clone, Copy, Debug)]
struct Witness {
    claim: Claim,
    /// Instant of the member's first claim.
    since: Monotonic,
    /// Instant of the member's last claim.
    heard: Monotonic,
    /// True if the store was asked since: the leader has the key, and no newer record.
    is_checked: bool,
}

/// Claims of members that prove nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unproven {
    /// Number of the members.
    pub members: usize,
    /// One of them.
    pub member: MemberId,
    /// The least generation that all numbers which two of them name are below.
    pub least_generation: u64,
}

impl fmt::Display for Unproven {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.members {
            1 => write!(f, "member {} names", self.member.0)?,
            members => write!(f, "{members} members, among them {}, name", self.member.0)?,
        }
        write!(
            f,
            " numbers that the configuration store has not issued, which proves nothing: this coordinator \
            leads on. If the store was restored from a backup, raise the generation to {} or more \
            (docs/fleet.md); if it was not, look for who has the credential of a node",
            self.least_generation
        )
    }
}

/// All that say so.
#[derive(Clone, Debug, Default)]
pub(super) struct Witnesses(BTreeMap<MemberId, Witness>);

impl Witnesses {
    /// Notes what a request says, or that it says nothing. Nobody speaks for a member that has a seat but
    /// its own process.
    pub(super) fn note(
        &mut self,
        now: Monotonic,
        member: MemberId,
        is_seated: bool,
        claim: Option<Claim>,
    ) {
        let known = self.0.get_mut(&member);
        if known
            .as_ref()
            .is_some_and(|known| known.claim.is_seated && !is_seated)
        {
            return;
        }
        match (known, claim) {
            (None, None) => {}
            (Some(_), None) => drop(self.0.remove(&member)),
            (Some(known), Some(claim)) => {
                let is_higher = (claim.number, claim.is_seated)
                    != (known.claim.number, known.claim.is_seated)
                    || claim.seen > known.claim.seen;
                known.heard = now;
                if is_higher {
                    (known.claim, known.since, known.is_checked) = (claim, now, false);
                }
            }
            (None, Some(claim)) => {
                let unseated = self.0.values().filter(|one| !one.claim.is_seated);
                if claim.is_seated || unseated.count() < MAX_UNSEATED {
                    let witness = Witness {
                        claim,
                        since: now,
                        heard: now,
                        is_checked: false,
                    };
                    self.0.insert(member, witness);
                }
            }
        }
    }

    /// Forgets who has been silent.
    pub(super) fn forget_silent(&mut self, now: Monotonic, lease: Duration) {
        let patience = lease.saturating_mul(SILENT_LEASES);
        self.0.retain(|_, one| now.since(one.heard) <= patience);
    }

    /// Returns true if the store has to be asked.
    pub(super) fn has_unchecked(&self) -> bool {
        self.0.values().any(|one| !one.is_checked)
    }

    /// Returns true if the store was asked since this member's claim.
    pub(super) fn is_checked(&self, member: MemberId) -> bool {
        self.0.get(&member).is_some_and(|one| one.is_checked)
    }

    /// The store was asked at `asked` or later: this leader has the key, and this is the version of the
    /// record.
    pub(super) fn check(&mut self, asked: Monotonic, version: u64) {
        let is_new = |one: &Witness| one.claim.number != Number::Record || one.claim.seen > version;
        self.0.retain(|_, one| is_new(one));
        for one in self.0.values_mut().filter(|one| one.since <= asked) {
            one.is_checked = true;
        }
    }

    fn checked(&self) -> impl Iterator<Item = &Claim> + Clone {
        let checked = self.0.values().filter(|one| one.is_checked);
        checked.map(|one| &one.claim)
    }

    /// The proof, if there are enough. It names the number that is least above what the store has.
    pub(super) fn proof(&self) -> Option<StoreRollback> {
        if self.0.len() < ENOUGH {
            return None;
        }
        let proving = self.checked().filter(|claim| claim.can_prove());
        let count = proving.clone().count();
        let least = proving.min_by_key(|claim| claim.seen.saturating_sub(claim.known))?;
        (count >= ENOUGH).then_some(StoreRollback {
            member: Some(least.member),
            others: count - 1,
            number: least.number,
            seen: least.seen,
            stored: least.known,
            leads_on: false,
        })
    }

    /// Returns the claims that prove nothing.
    pub(super) fn unproven(&self) -> Option<Unproven> {
        let first = self.checked().next()?;
        // One member alone names nothing that an operator is told to do.
        let mut named = [0; ENOUGH];
        for claim in self.checked() {
            let mut of = generation::of(claim.seen);
            for slot in &mut named {
                if of > *slot {
                    core::mem::swap(slot, &mut of);
                }
            }
        }
        let highest = named[ENOUGH - 1].max(generation::of(first.known));
        Some(Unproven {
            members: self.checked().count(),
            member: first.member,
            least_generation: (highest + 1).min(generation::HIGHEST),
        })
    }
}
