//! Seat: a member's place in the fleet, and what it means for its rights.

use alloc::vec::Vec;

use super::{MemberId, Name};

/// The most groups that a member may name.
pub const MAX_MEMBERSHIPS: usize = 16;

/// The longest name of a limit or a group, in bytes.
pub const MAX_NAME: usize = 200;

/// Membership of a member in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// The group, as the member named it. A plan had it then; the present one need not.
    pub group: Name,
    /// True if the member has a static share in the group's limits.
    pub based: bool,
}

/// A member's place, stored from its first join until it leaves, is fenced or deregistered, or has
/// been silent for as long as the plan says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// The member.
    pub member: MemberId,
    /// The number of the process start that last joined; unique in the fleet, and rising.
    pub incarnation: u64,
    /// The nonce that the process sent when it joined, so that a repeated join changes nothing.
    pub nonce: u64,
    /// The member's weight, in every group.
    pub weight: u32,
    /// True if it has a static share in the limits of all members.
    pub based: bool,
    /// The groups that it is in.
    pub groups: Vec<Membership>,
    /// The largest weight that an older plan may count it with; 0 if that is `weight`.
    pub former_weight: u32,
    /// Groups that it was in under an older plan.
    pub former_groups: Vec<Name>,
    /// True if an operator drains the member: it is given nothing any more, and its seat is free when it
    /// has nothing.
    pub draining: bool,
    /// True if the member follows the plan that is being rolled out.
    pub staged: bool,
}

impl Seat {
    /// A seat with a static share, in no group but that of all.
    #[must_use]
    pub const fn new(member: MemberId, incarnation: u64, nonce: u64, weight: u32) -> Self {
        Self {
            member,
            incarnation,
            nonce,
            weight,
            based: true,
            groups: Vec::new(),
            former_weight: 0,
            former_groups: Vec::new(),
            draining: false,
            staged: false,
        }
    }

    /// Returns true if the member shares the limits of a group; `None` is the group of all.
    #[must_use]
    pub fn is_in(&self, group: Option<&Name>) -> bool {
        group.is_none_or(|group| self.groups.iter().any(|one| one.group == *group))
    }

    /// Returns true if the member shares them, or may still hold rights from the time when it did.
    #[must_use]
    pub fn may_be_in(&self, group: Option<&Name>) -> bool {
        self.is_in(group) || group.is_some_and(|group| self.former_groups.contains(group))
    }

    /// Returns true if the member has a static share in the limits of a group.
    #[must_use]
    pub fn has_base(&self, group: Option<&Name>) -> bool {
        match group {
            None => self.based,
            Some(group) => self
                .groups
                .iter()
                .any(|one| one.group == *group && one.based),
        }
    }

    pub(super) fn set_base(&mut self, group: Option<&Name>) {
        let of = |one: &&mut Membership| group.is_some_and(|group| one.group == *group);
        match group {
            None => self.based = true,
            Some(_) => {
                if let Some(one) = self.groups.iter_mut().find(of) {
                    one.based = true;
                }
            }
        }
    }

    /// The seat with a static share in all its groups.
    pub(crate) fn with_base(&self) -> Self {
        let mut seat = self.clone();
        seat.based = true;
        for one in &mut seat.groups {
            one.based = true;
        }
        seat
    }

    /// Changes weight and groups; what the member may still hold from before is kept.
    pub(crate) fn change(&mut self, weight: u32, groups: Vec<Membership>) {
        self.former_weight = self.former_weight.max(self.weight);
        self.weight = weight;
        let left = core::mem::replace(&mut self.groups, groups);
        for one in left {
            if !self.may_be_in(Some(&one.group)) {
                self.former_groups.push(one.group);
            }
        }
    }

    /// Forgets what only older plans could have given it.
    pub(super) fn forget_former(&mut self) {
        self.former_weight = 0;
        self.former_groups.clear();
    }

    /// The seat with everything that any plan may have given it: what a leader counts a member with
    /// that it has not heard.
    pub(crate) fn widest(&self) -> Self {
        let former = self.former_groups.iter().map(|group| Membership {
            group: group.clone(),
            based: true,
        });
        Self {
            weight: self.weight.max(self.former_weight),
            groups: self.groups.iter().cloned().chain(former).collect(),
            draining: false,
            ..self.clone()
        }
    }
}
