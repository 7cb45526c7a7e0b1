//! Dominant member: a member that has nearly all by its weight.
//!
//! Each member is given its part by weight where all want more than there is. One that named a large weight
//! leaves the others next to nothing, and none of them can see why.

use std::fmt;

use quell_shares::plan::{Group, MemberId, Name, Seat};

/// A member with this part of the weight of a group has nearly all: as one of weight 20 beside one of weight 1.
const NEARLY_ALL_PERCENT: u64 = 95;

/// A member that has nearly all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DominantMember {
    /// The member.
    pub member: MemberId,
    /// Its part of the group's weight, rounded down.
    pub percent: u64,
    /// The group; `None` is that of all.
    pub group: Option<Name>,
}

impl DominantMember {
    /// The first one of all these seats or of those of a group, if there is one.
    pub(super) fn find(seats: &[Seat], groups: &[Group]) -> Option<Self> {
        let groups = groups.iter().map(|group| Some(&group.name));
        let mut all = std::iter::once(None).chain(groups);
        all.find_map(|group| Self::of_group(seats, group))
    }

    fn of_group(seats: &[Seat], group: Option<&Name>) -> Option<Self> {
        let seats = || seats.iter().filter(|seat| seat.is_in(group));
        let heaviest = seats().max_by_key(|seat| seat.weight)?;
        let all: u64 = seats().map(|seat| u64::from(seat.weight)).sum();
        let percent = u64::from(heaviest.weight) * 100 / all.max(1);
        // Alone it has everything, and nobody lacks it.
        let is_alone = seats().nth(1).is_none();
        (percent >= NEARLY_ALL_PERCENT && !is_alone).then(|| Self {
            member: heaviest.member,
            percent,
            group: group.cloned(),
        })
    }
}

impl fmt::Display for DominantMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (member, percent) = (self.member.0, self.percent);
        write!(f, "node {member} has {percent} % of the weight of ")?;
        match &self.group {
            Some(group) => write!(f, "the group `{group}`")?,
            None => f.write_str("all nodes")?,
        }
        write!(
            f,
            ", and the others get next to nothing when it wants more: if that is not meant, `quell fleet weight \
             {member} 1`, and bound the weight of its token (`quell token new --weight`)"
        )
    }
}

#[cfg(test)]
mod tests {
    use quell_shares::plan::{Membership, Size, Sizing};

    use super::*;

    fn seat(member: u32, weight: u32, is_in_group: bool) -> Seat {
        let mut seat = Seat::new(MemberId(member), u64::from(member), 1, weight);
        let membership = Membership {
            group: "gpu".into(),
            based: true,
        };
        seat.groups.extend(is_in_group.then_some(membership));
        seat
    }

    #[test]
    fn a_member_dominates_others_by_its_weight() {
        let found = |seats: &[(u32, u32)]| {
            let seats = seats.iter().map(|(id, weight)| seat(*id, *weight, false));
            let found = DominantMember::find(&seats.collect::<Vec<_>>(), &[]);
            found.map(|one| (one.member.0, one.percent))
        };
        assert_eq!(found(&[]), None);
        assert_eq!(found(&[(1, u32::MAX)]), None, "there are no others");
        assert_eq!(found(&[(1, 1), (2, 10)]), None);
        assert_eq!(found(&[(1, 1), (2, 19)]), Some((2, 95)));
        let strange = [(1, 1), (2, 1), (4242, u32::MAX)];
        assert_eq!(found(&strange), Some((4242, 99)));
    }

    #[test]
    fn a_group_may_be_dominated_alone() {
        let size = Size {
            total_weight: 20,
            seats: 3,
            sizing: Sizing::Fixed,
        };
        let groups = [Group {
            name: "gpu".into(),
            size,
        }];
        let mut seats = vec![seat(1, 19, true), seat(2, 1, true), seat(3, 9, false)];
        let found = DominantMember::find(&seats, &groups).unwrap().to_string();
        let begins = "node 1 has 95 % of the weight of the group `gpu`";
        assert!(found.starts_with(begins), "{found}");
        seats.remove(1);
        assert_eq!(DominantMember::find(&seats, &groups), None);
    }
}
