//! Spread: one claim on limits in several slots, all or none.

use std::time::Duration;

use futures_util::future::{join, join_all};
use quell_core::charge::{Charge, Operation};
use quell_core::decision::{Decision, Outcome, RetryAfter};
use quell_core::hold::{Claim, Patience};
use quell_core::time::Now;

use super::pointer::Pointer;
use super::spot::Spot;
use super::{FIRST_WAIT, Pointing};
use crate::answer::{Said, decisions};
use crate::asked::Asked;
use crate::code::number;
use crate::hold::{Claimed, Trouble, keep_of};
use crate::link::Failure;
use crate::store::{RedisStore, Request};

/// Ends a part as if it had not been.
const TAKE_BACK: u8 = 6;

/// Another attempt at the same has it.
const OVERTAKEN: u64 = 4;

/// Charges for good what was only tried.
const CONCLUDE: u8 = 7;

/// What each slot is told of the whole set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) whole: Whole,
    /// The longest hold or lease of the set.
    pub(crate) stay: Option<Duration>,
    /// The longest delay of the set, of a caller that waits for it.
    pub(crate) delay: Duration,
    pub(crate) attempt: u64,
    /// Whether the hold is counted here, of all slots.
    pub(crate) counts: bool,
}

/// How the whole set looked a moment ago.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whole {
    Passes = 0,
    /// A limit refuses it: nothing is charged anywhere, and refusals count for bans.
    Refused = 1,
    /// The caller would not wait for its delay.
    TooLong = 2,
}

/// A claim on its way through several slots.
pub(super) struct Spread<'a> {
    store: &'a RedisStore,
    asked: &'a Asked<'a>,
    claim: Claim<'a>,
    now: Now,
    pointer: Pointer,
    /// One for each group of charges.
    spots: Vec<Spot>,
}

type Answers = Vec<Result<Claimed, Failure>>;

impl<'a> Spread<'a> {
    /// Makes the claim; nothing if another attempt at the same overtook it.
    pub(super) async fn claim(
        store: &'a RedisStore,
        asked: &'a Asked<'a>,
        claim: &Claim<'a>,
        now: Now,
    ) -> Result<Option<Claimed>, Trouble> {
        let point = store.point(asked, claim, now);
        let look = asked.charge(Operation::Peek, now);
        let (pointing, peeked) = join(point, look).await;
        let pointer = match pointing? {
            Pointing::Answered(claimed) => return Ok(Some(claimed)),
            Pointing::Free(pointer) => pointer,
        };
        let peeked = decisions(
            asked.set.charges(),
            asked.numbers(),
            &peeked.map_err(|undecided| undecided.failure)?,
            Operation::Peek,
        );
        // Nobody stands in several lines.
        let wait = claim.wait.map(|wait| Patience {
            turn: Duration::ZERO,
            ..wait
        });
        let spots = asked.groups.iter().map(|group| {
            let names = group.iter().filter_map(|index| asked.names.get(*index));
            store.spot(claim.id, names.cloned().collect())
        });
        let spread = Self {
            spots: spots.collect(),
            claim: Claim { wait, ..*claim },
            store,
            asked,
            now,
            pointer,
        };
        spread.decide(peeked).await
    }

    async fn decide(&self, peeked: Vec<Decision>) -> Result<Option<Claimed>, Trouble> {
        let delay = self.with_say(&peeked).map(|one| one.delay).max();
        let delay = self.claim.wait.and(delay).unwrap_or_default();
        let most = self.claim.wait.map_or(Duration::MAX, |wait| wait.in_all);
        let whole = match self.passes(&peeked) {
            false => Whole::Refused,
            true if delay > most => Whole::TooLong,
            true => Whole::Passes,
        };
        let part = Part {
            whole,
            stay: keep_of(self.asked.set, &self.claim),
            delay,
            attempt: self.pointer.attempt,
            counts: false,
        };
        let answers = self.ask_all(part).await;
        let mut claimed = match self.gather(&answers) {
            Ok(claimed) => claimed,
            Err(trouble) => {
                self.take_back(&answers).await;
                return Err(trouble);
            }
        };
        let passes = self.passes(&claimed.decisions);
        match whole {
            Whole::Passes if claimed.is_sound() && passes => {
                return self.conclude(claimed, &answers, part).await;
            }
            Whole::Passes => {
                // Somebody came in between.
                self.take_back(&answers).await;
                if claimed.status == OVERTAKEN {
                    return Ok(None);
                }
                if claimed.is_sound() {
                    self.restate(&mut claimed, &answers).await?;
                }
            }
            // What refused a moment ago would pass by now, and was not charged.
            Whole::Refused if passes => claimed.decisions = peeked,
            Whole::TooLong if passes => claimed.decisions = self.too_late(peeked, most),
            Whole::Refused | Whole::TooLong => {}
        }
        claimed.held = 0;
        Ok((claimed.status != OVERTAKEN).then_some(claimed))
    }

    fn with_say<'d>(&self, decisions: &'d [Decision]) -> impl Iterator<Item = &'d Decision> {
        let pairs = self.asked.set.charges().iter().zip(decisions);
        let with_say: Vec<_> = pairs.filter(|(charge, _)| !charge.shadow).collect();
        with_say.into_iter().map(|(_, decision)| decision)
    }

    fn charges(&self, group: &[usize]) -> impl Iterator<Item = &Charge<'a>> {
        let charges = self.asked.set.charges();
        let picked: Vec<_> = group
            .iter()
            .filter_map(|index| charges.get(*index))
            .collect();
        picked.into_iter()
    }

    fn passes(&self, decisions: &[Decision]) -> bool {
        self.with_say(decisions).all(|one| one.outcome.is_allow())
    }

    async fn ask_all(&self, part: Part) -> Answers {
        let groups = &self.asked.groups;
        // Where something is held for certain.
        let counts = groups.iter().position(|group| {
            self.claim.hold.is_some()
                || self
                    .charges(group)
                    .any(|charge| charge.installed.limit.lease().is_some())
        });
        let asked = groups.iter().zip(&self.spots).enumerate();
        let asked = asked.map(|(place, (group, spot))| async move {
            let store = self.store;
            let (claim, now) = (&self.claim, self.now);
            let counts = place == counts.unwrap_or_default();
            let part = Some(Part { counts, ..part });
            let answer = store.claim_at(self.asked, group, claim, &spot.record, part, now);
            store.in_time(&spot.record, answer).await
        });
        join_all(asked).await
    }

    /// What all say, in the order of the set.
    fn gather(&self, answers: &Answers) -> Result<Claimed, Trouble> {
        let count = self.asked.names.len();
        let nothing = self.asked.groups.len();
        let mut all = Claimed {
            said: vec![Said::default(); count],
            ..Claimed::default()
        };
        let (mut repeated, mut held) = (0, 0);
        for (group, answer) in self.asked.groups.iter().zip(answers) {
            let answer = answer.as_ref().map_err(Clone::clone)?;
            if !answer.is_sound() {
                all.status = answer.status;
                return Ok(all);
            }
            repeated += usize::from(answer.status == 1);
            all.clock = all.clock.max(answer.clock);
            held |= u64::from(answer.held == 1);
            all.clock = all.clock.max(answer.clock);
            all.expired += answer.expired;
            if answer.said.len() != group.len() {
                // The id stands for other charges there.
                return Ok(Claimed::taken());
            }
            for (index, said) in group.iter().zip(&answer.said) {
                if let Some(place) = all.said.get_mut(*index) {
                    *place = *said;
                }
            }
        }
        all.status = u64::from(repeated == nothing);
        all.held = held;
        all.decisions = all.said.iter().filter_map(|said| said.told()).collect();
        Ok(all)
    }

    /// Ends what was claimed, or may have been, as if it had not been.
    async fn take_back(&self, answers: &Answers) {
        let may_stand = |answer: &Result<Claimed, Failure>| match answer {
            Ok(claimed) => claimed.held > 0,
            Err(failure) => matches!(failure, Failure::Unknown(_)),
        };
        let spots = self.spots.iter().zip(answers);
        let spots = spots.filter(|(_, answer)| may_stand(answer));
        self.end_parts(spots.map(|(spot, _)| spot), TAKE_BACK).await;
    }

    async fn end_parts(&self, spots: impl Iterator<Item = &Spot>, code: u8) {
        let store = self.store;
        let head = store.head(Request::End, Duration::ZERO, self.now);
        let mut ending = vec![code];
        ending.extend_from_slice(&number(0));
        ending.extend_from_slice(&number(self.pointer.attempt));
        let arguments = [head, ending, self.claim.id.as_bytes().to_vec()];
        let ended = spots.map(|spot| store.run_hold(spot.keys(), &arguments));
        for failure in join_all(ended).await.into_iter().filter_map(Result::err) {
            tracing::debug!(%failure, "a part of a claim stands until its time is over");
        }
    }

    /// Says of limits that would have passed what they say now that nothing is charged.
    async fn restate(&self, claimed: &mut Claimed, answers: &Answers) -> Result<(), Failure> {
        let peeked = self.asked.charge(Operation::Peek, self.now).await;
        let peeked = peeked.map_err(|undecided| undecided.failure)?;
        let numbers = self.asked.numbers();
        let peeked = decisions(self.asked.set.charges(), numbers, &peeked, Operation::Peek);
        for (group, answer) in self.asked.groups.iter().zip(answers) {
            if !answer.as_ref().is_ok_and(|answer| answer.held > 0) {
                continue;
            }
            for index in group {
                if let (Some(place), Some(other)) =
                    (claimed.decisions.get_mut(*index), peeked.get(*index))
                {
                    *place = *other;
                }
            }
        }
        Ok(())
    }

    /// The delays that were asked for, as refusals.
    fn too_late(&self, mut decisions: Vec<Decision>, most: Duration) -> Vec<Decision> {
        for (charge, decision) in self.asked.set.charges().iter().zip(&mut decisions) {
            if !charge.shadow && decision.delay > most {
                let excess = decision.delay.saturating_sub(most);
                decision.outcome = Outcome::Deny(RetryAfter::After(excess));
            }
            decision.delay = Duration::ZERO;
        }
        decisions
    }

    /// All is held: says so where the id points from, and charges for good what is.
    async fn conclude(
        &self,
        claimed: Claimed,
        answers: &Answers,
        part: Part,
    ) -> Result<Option<Claimed>, Trouble> {
        let mut done = self.pointer.clone();
        let mut answer = Vec::new();
        for said in &claimed.said {
            said.write(&mut answer);
        }
        done.answer = Some(answer);
        if part.stay.is_some() {
            let id = self.claim.id;
            let before = self.pointer.write();
            let wait = claimed.longest().max(FIRST_WAIT);
            match self.store.write_pointer(id, &before, &done, wait).await {
                Ok(None) => {}
                // Somebody else asked for the same, found what is charged, and has it now.
                Ok(Some(_)) => return Ok(None),
                Err(failure) => {
                    self.take_back(answers).await;
                    return Err(Trouble::Failed(failure));
                }
            }
        }
        self.store.remembered.set(self.claim.id, done);
        if self.claim.hold.is_none() && part.delay.is_zero() {
            let is_tried = |group: &[usize]| {
                let mut charges = self.charges(group);
                charges.any(|charge| charge.installed.limit.lease().is_none())
            };
            let spots = self.spots.iter().zip(&self.asked.groups);
            let tried = spots.filter(|(_, group)| is_tried(group));
            self.end_parts(tried.map(|(spot, _)| spot), CONCLUDE).await;
        }
        Ok(Some(claimed))
    }
}
