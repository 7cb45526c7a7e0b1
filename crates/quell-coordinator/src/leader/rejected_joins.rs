//! Turned away: members that join and are given no seat. They ask again whenever a lease would be over, and
//! nobody sees them but an operator.

use std::collections::BTreeMap;
use std::time::Duration;

use quell_core::time::Monotonic;
use quell_shares::message::{NoSeat, Response};
use quell_shares::plan::MemberId;

/// The most that are remembered: what is full is full for all others, too.
const MOST: usize = 100;

/// The members, and why.
#[derive(Debug, Default)]
pub(super) struct RejectedJoins {
    members: BTreeMap<MemberId, RejectedJoin>,
}

#[derive(Debug)]
struct RejectedJoin {
    why: NoSeat,
    /// Until then it would have asked again.
    until: Monotonic,
}

impl RejectedJoins {
    /// Takes note of an answer to a member.
    pub(super) fn follow(&mut self, now: Monotonic, member: MemberId, answer: &Response) {
        let (why, retry) = match answer {
            Response::Unknown {
                no_seat: Some(why),
                retry,
                ..
            } => (why, *retry),
            Response::Joined(_) => {
                self.members.remove(&member);
                return;
            }
            _ => return,
        };
        let known = self.members.get(&member);
        if known.is_none() && self.members.len() >= MOST {
            return;
        }
        if known.is_none_or(|known| known.why != *why) {
            tracing::warn!(member = member.0, "a node was refused a seat: {why}");
        }
        // Shells add a random part to the time, and two answers may be lost.
        let until = now.saturating_add(retry * 3 + Duration::from_secs(1));
        let why = why.clone();
        self.members.insert(member, RejectedJoin { why, until });
    }

    /// Those that still ask, in the order of their numbers.
    pub(super) fn list(&mut self, now: Monotonic) -> Vec<(MemberId, NoSeat)> {
        self.members.retain(|_, refusal| now < refusal.until);
        let members = self.members.iter();
        members
            .map(|(member, refusal)| (*member, refusal.why.clone()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use quell_shares::message::Joined;

    use super::*;

    fn refused(why: NoSeat) -> Response {
        Response::Unknown {
            incarnation: 0,
            epoch: 1,
            retry: Duration::from_secs(10),
            no_seat: Some(why),
        }
    }

    fn at(seconds: u64) -> Monotonic {
        Monotonic::ORIGIN.saturating_add(Duration::from_secs(seconds))
    }

    #[test]
    fn who_is_turned_away_is_listed_while_it_asks() {
        let mut away = RejectedJoins::default();
        let (one, two) = (MemberId(1), MemberId(2));
        let full = NoSeat::Full(Some("eu".into()));
        away.follow(at(0), one, &refused(NoSeat::Taken));
        away.follow(at(5), two, &refused(full.clone()));
        let both = vec![(one, NoSeat::Taken), (two, full.clone())];
        assert_eq!(away.list(at(30)), both);
        // It has gone.
        assert_eq!(away.list(at(31)), [(two, full)]);
        let joined = Joined {
            epoch: 1,
            nonce: 1,
            incarnation: 1,
            record: 1,
            names: Vec::new(),
        };
        away.follow(at(32), two, &Response::Joined(joined));
        assert_eq!(away.list(at(32)), []);
    }

    #[test]
    fn strangers_cannot_make_it_grow() {
        let mut away = RejectedJoins::default();
        for member in 0..10 * 100 {
            away.follow(at(0), MemberId(member), &refused(NoSeat::Full(None)));
        }
        assert_eq!(away.list(at(1)).len(), MOST);
    }
}
