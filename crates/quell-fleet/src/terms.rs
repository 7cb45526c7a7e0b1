//! Terms: which members the bearer of a credential may be, with how much weight, and in which groups.
//!
//! A node names its number, its weight and its groups itself. Without bounds one join with a large weight would
//! take every limit, so a credential states what its bearer may name, and coordinators hold it to that.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Arc;

use quell_shares::message::Join;
use quell_shares::plan::{MemberId, Name};

/// Members that the bearer of a credential may be in a fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeTerms {
    /// The members that it may be; `None`: any.
    pub members: Option<Arc<[Members]>>,
    /// The largest weight that it may name when it joins.
    pub weight: u32,
    /// The groups that it may name; `None`: any.
    pub groups: Option<Arc<[Name]>>,
}

impl NodeTerms {
    /// The largest weight under a credential that states none: that of a node that names none, so a shared
    /// token has the same part for each seat.
    pub const WEIGHT: u32 = 1;

    /// Terms without credentials: every caller may be any member.
    pub const ANY: Self = Self {
        members: None,
        weight: u32::MAX,
        groups: None,
    };

    /// Checks whether the bearer may be this member.
    ///
    /// # Errors
    /// Permitted values, for the node's log.
    pub fn check_member(&self, member: MemberId) -> Result<(), String> {
        let Some(members) = &self.members else {
            return Ok(());
        };
        if members.iter().any(|some| some.0.contains(&member.0)) {
            return Ok(());
        }
        let named: Vec<String> = members.iter().map(ToString::to_string).collect();
        Err(format!(
            "this credential is of member {}, and the request of member {}",
            named.join(", "),
            member.0
        ))
    }

    /// Checks whether the bearer may join with this weight and these groups.
    ///
    /// # Errors
    /// Advice for the node's log: the value to write instead.
    pub fn check_join(&self, join: &Join) -> Result<(), String> {
        if join.weight > self.weight {
            let (most, named) = (self.weight, join.weight);
            return Err(format!(
                "this credential is for a weight of at most {most}, and the node names {named}: start it with \
                 --fleet-weight {most}, or make its token with `quell token new --weight {named}`"
            ));
        }
        let Some(groups) = &self.groups else {
            return Ok(());
        };
        match join.groups.iter().find(|group| !groups.contains(group)) {
            None => Ok(()),
            Some(group) => Err(format!(
                "this credential is not for the group `{group}`: start the node without --fleet-group {group}, \
                 or make its token with `quell token new --group {group}`"
            )),
        }
    }
}

impl Default for NodeTerms {
    fn default() -> Self {
        Self {
            weight: Self::WEIGHT,
            ..Self::ANY
        }
    }
}

/// One member or several in a row, written as `7`, `node-7`, `1..20` or `node-1..node-20`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Members(RangeInclusive<u32>);

impl From<MemberId> for Members {
    fn from(member: MemberId) -> Self {
        Self(member.0..=member.0)
    }
}

impl FromStr for Members {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once("..").unwrap_or((text, text));
        let both = member_number(first).zip(member_number(last));
        let both = both.filter(|(first, last)| first <= last);
        both.map(|(first, last)| Self(first..=last)).ok_or_else(|| {
            format!(
                "`{text}` names no members: write one such as 7 or node-7, or several such as 1..20"
            )
        })
    }
}

impl fmt::Display for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.start(), self.0.end()) {
            (first, last) if first == last => write!(f, "{first}"),
            (first, last) => write!(f, "{first}..{last}"),
        }
    }
}

/// The number of a member: the digits that a name ends with, such as that of a `StatefulSet`'s pod.
#[must_use]
pub fn member_number(name: &str) -> Option<u32> {
    let rest = name.trim_end_matches(|c: char| c.is_ascii_digit());
    name.get(rest.len()..)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_one_or_several_in_a_row() {
        for (text, read) in [
            ("7", Some("7")),
            ("node-7", Some("7")),
            ("1..20", Some("1..20")),
            ("node-1..node-20", Some("1..20")),
            ("20..1", None),
            ("1..", None),
            ("..", None),
            ("", None),
            ("node", None),
            ("4294967296", None),
        ] {
            let members: Result<Members, String> = text.parse();
            let members = members.map(|members| members.to_string());
            assert_eq!(members.ok().as_deref(), read, "{text}");
        }
    }

    #[test]
    fn a_bearer_is_held_to_its_terms() {
        let join = |weight, groups: &[&str]| Join {
            member: MemberId(7),
            nonce: 1,
            weight,
            groups: groups.iter().map(|group| (*group).into()).collect(),
            exclusive: true,
            replaces: 0,
            floors: Vec::new(),
            gave_up: None,
            epoch: 0,
            record: 0,
        };
        let plain = NodeTerms::default();
        assert_eq!(plain.check_member(MemberId(u32::MAX)), Ok(()));
        assert_eq!(plain.check_join(&join(1, &["eu"])), Ok(()));
        let refused = plain.check_join(&join(u32::MAX, &[])).unwrap_err();
        assert!(refused.contains("--fleet-weight 1, or make"), "{refused}");
        let bound = NodeTerms {
            members: Some(Arc::new(["7".parse().unwrap(), "9..10".parse().unwrap()])),
            weight: 2,
            groups: Some(Arc::new(["eu".into()])),
        };
        assert_eq!(bound.check_join(&join(2, &["eu"])), Ok(()));
        assert!(bound.check_join(&join(3, &[])).is_err());
        let refused = bound.check_join(&join(1, &["eu", "gpu"])).unwrap_err();
        assert!(refused.contains("not for the group `gpu`"), "{refused}");
        let may = [6, 7, 8, 9, 10, 11].map(|id| bound.check_member(MemberId(id)).is_ok());
        assert_eq!(may, [false, true, false, true, true, false]);
        let refused = bound.check_member(MemberId(8)).unwrap_err();
        assert!(refused.contains("of member 7, 9..10, and"), "{refused}");
        assert_eq!(NodeTerms::ANY.check_join(&join(u32::MAX, &["x"])), Ok(()));
    }
}
