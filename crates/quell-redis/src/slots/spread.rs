//! One claim on limits in several slots, all or nothing.

use std::time::Duration;

use futures_util::future::{join, join_all};
use quell_core::charge::{Charge, Operation};
use quell_core::decision::{Decision, Outcome, RetryAfter};
use quell_core::hold::{Claim, WaitLimits};
use quell_core::time::Now;

use super::hold_location::HoldLocation;
use super::pointer::Pointer;
use super::{FIRST_WAIT, PointerState};
use crate::answer::{RawDecision, decisions};
use crate::encode::number;
use crate::hold::{ClaimReply, HoldError, hold_time};
use crate::link::Failure;
use crate::script_request::ScriptRequest;
use crate::store::{Opcode, RedisStore};

/// Ends a part as if it had not been.
const TAKE_BACK: u8 = 6;

/// Another attempt at the same has it.
const OVERTAKEN: u64 = 4;

/// Charges for good what was only tried.
const CONCLUDE: u8 = 7;

/// What each slot is told of the whole set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotContext {
    pub(crate) verdict: SetVerdict,
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
pub(crate) enum SetVerdict {
    Passes = 0,
    /// A limit refuses it: nothing is charged anywhere, and refusals count for bans.
    Refused = 1,
    /// The caller would not wait for its delay.
    TooLong = 2,
}

/// A claim on its way through several slots.
pub(super) struct SpreadClaim<'a> {
    store: &'a RedisStore,
    request: &'a ScriptRequest<'a>,
    claim: Claim<'a>,
    now: Now,
    pointer: Pointer,
    /// One for each group of charges.
    locations: Vec<HoldLocation>,
}

type Answers = Vec<Result<ClaimReply, Failure>>;

impl<'a> SpreadClaim<'a> {
    /// Makes the claim; nothing if another attempt at the same overtook it.
    pub(super) async fn claim(
        store: &'a RedisStore,
        request: &'a ScriptRequest<'a>,
        claim: &Claim<'a>,
        now: Now,
    ) -> Result<Option<ClaimReply>, HoldError> {
        let claim_pointer = store.claim_pointer(request, claim, now);
        let look = request.charge(Operation::Peek, now);
        let (pointing, peeked) = join(claim_pointer, look).await;
        let pointer = match pointing? {
            PointerState::Answered(claimed) => return Ok(Some(claimed)),
            PointerState::Free(pointer) => pointer,
        };
        let peeked = decisions(
            request.set.charges(),
            request.numbers(),
            &peeked.map_err(|undecided| undecided.failure)?,
            Operation::Peek,
        );
        // Nobody stands in several lines.
        let wait = claim.wait.map(|wait| WaitLimits {
            turn: Duration::ZERO,
            ..wait
        });
        let locations = request.groups.iter().map(|group| {
            let names = group.iter().filter_map(|index| request.names.get(*index));
            store.location(claim.id, names.cloned().collect())
        });
        let spread = Self {
            locations: locations.collect(),
            claim: Claim { wait, ..*claim },
            store,
            request,
            now,
            pointer,
        };
        spread.decide(peeked).await
    }

    async fn decide(&self, peeked: Vec<Decision>) -> Result<Option<ClaimReply>, HoldError> {
        let delay = self.with_say(&peeked).map(|one| one.delay).max();
        let delay = self.claim.wait.and(delay).unwrap_or_default();
        let most = self.claim.wait.map_or(Duration::MAX, |wait| wait.in_all);
        let verdict = match self.passes(&peeked) {
            false => SetVerdict::Refused,
            true if delay > most => SetVerdict::TooLong,
            true => SetVerdict::Passes,
        };
        let context = SlotContext {
            verdict,
            stay: hold_time(self.request.set, &self.claim),
            delay,
            attempt: self.pointer.attempt,
            counts: false,
        };
        let answers = self.ask_all(context).await;
        let mut claimed = match self.merge(&answers) {
            Ok(claimed) => claimed,
            Err(trouble) => {
                self.take_back(&answers).await;
                return Err(trouble);
            }
        };
        let passes = self.passes(&claimed.decisions);
        match verdict {
            SetVerdict::Passes if claimed.is_sound() && passes => {
                return self.conclude(claimed, &answers, context).await;
            }
            SetVerdict::Passes => {
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
            SetVerdict::Refused if passes => claimed.decisions = peeked,
            SetVerdict::TooLong if passes => claimed.decisions = self.too_late(peeked, most),
            SetVerdict::Refused | SetVerdict::TooLong => {}
        }
        claimed.held = 0;
        Ok((claimed.status != OVERTAKEN).then_some(claimed))
    }

    fn with_say<'d>(&self, decisions: &'d [Decision]) -> impl Iterator<Item = &'d Decision> {
        let pairs = self.request.set.charges().iter().zip(decisions);
        let with_say: Vec<_> = pairs.filter(|(charge, _)| !charge.shadow).collect();
        with_say.into_iter().map(|(_, decision)| decision)
    }

    fn charges(&self, group: &[usize]) -> impl Iterator<Item = &Charge<'a>> {
        let charges = self.request.set.charges();
        let picked: Vec<_> = group
            .iter()
            .filter_map(|index| charges.get(*index))
            .collect();
        picked.into_iter()
    }

    fn passes(&self, decisions: &[Decision]) -> bool {
        self.with_say(decisions).all(|one| one.outcome.is_allow())
    }

    async fn ask_all(&self, context: SlotContext) -> Answers {
        let groups = &self.request.groups;
        // Where something is held for certain.
        let counts = groups.iter().position(|group| {
            self.claim.hold.is_some()
                || self
                    .charges(group)
                    .any(|charge| charge.active.limit.lease().is_some())
        });
        let calls = groups.iter().zip(&self.locations).enumerate();
        let calls = calls.map(|(place, (group, location))| async move {
            let store = self.store;
            let (claim, now) = (&self.claim, self.now);
            let counts = place == counts.unwrap_or_default();
            let context = Some(SlotContext { counts, ..context });
            let answer = store.claim_at(self.request, group, claim, &location.record, context, now);
            store.in_time(&location.record, answer).await
        });
        join_all(calls).await
    }

    /// The replies of all slots as one, in the order of the set.
    fn merge(&self, answers: &Answers) -> Result<ClaimReply, HoldError> {
        let count = self.request.names.len();
        let nothing = self.request.groups.len();
        let mut all = ClaimReply {
            raw: vec![RawDecision::default(); count],
            ..ClaimReply::default()
        };
        let (mut repeated, mut held) = (0, 0);
        for (group, answer) in self.request.groups.iter().zip(answers) {
            let answer = answer.as_ref().map_err(Clone::clone)?;
            if !answer.is_sound() {
                all.status = answer.status;
                return Ok(all);
            }
            repeated += usize::from(answer.status == 1);
            all.clock = all.clock.max(answer.clock);
            held |= u64::from(answer.held == 1);
            all.expired += answer.expired;
            if answer.raw.len() != group.len() {
                // The id stands for other charges there.
                return Ok(ClaimReply::taken());
            }
            for (index, raw) in group.iter().zip(&answer.raw) {
                if let Some(place) = all.raw.get_mut(*index) {
                    *place = *raw;
                }
            }
        }
        all.status = u64::from(repeated == nothing);
        all.held = held;
        all.decisions = all.raw.iter().filter_map(|raw| raw.complete()).collect();
        Ok(all)
    }

    /// Ends what was claimed, or may have been, as if it had not been.
    async fn take_back(&self, answers: &Answers) {
        let may_stand = |answer: &Result<ClaimReply, Failure>| match answer {
            Ok(claimed) => claimed.held > 0,
            Err(failure) => matches!(failure, Failure::Unknown(_)),
        };
        let locations = self.locations.iter().zip(answers);
        let locations = locations.filter(|(_, answer)| may_stand(answer));
        self.end_parts(locations.map(|(location, _)| location), TAKE_BACK)
            .await;
    }

    async fn end_parts(&self, locations: impl Iterator<Item = &HoldLocation>, code: u8) {
        let store = self.store;
        let head = store.head(Opcode::End, Duration::ZERO, self.now);
        let mut ending = vec![code];
        ending.extend_from_slice(&number(0));
        ending.extend_from_slice(&number(self.pointer.attempt));
        let arguments = [head, ending, self.claim.id.as_bytes().to_vec()];
        let ended = store.run_at(locations, &arguments).await;
        for failure in ended.into_iter().filter_map(Result::err) {
            tracing::debug!(%failure, "a part of a claim stands until its time is over");
        }
    }

    /// Says of limits that would have passed what they say now that nothing is charged.
    async fn restate(&self, claimed: &mut ClaimReply, answers: &Answers) -> Result<(), Failure> {
        let peeked = self.request.charge(Operation::Peek, self.now).await;
        let peeked = peeked.map_err(|undecided| undecided.failure)?;
        let numbers = self.request.numbers();
        let peeked = decisions(
            self.request.set.charges(),
            numbers,
            &peeked,
            Operation::Peek,
        );
        for (group, answer) in self.request.groups.iter().zip(answers) {
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
        for (charge, decision) in self.request.set.charges().iter().zip(&mut decisions) {
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
        claimed: ClaimReply,
        answers: &Answers,
        context: SlotContext,
    ) -> Result<Option<ClaimReply>, HoldError> {
        let mut done = self.pointer.clone();
        let mut answer = Vec::new();
        for raw in &claimed.raw {
            raw.write(&mut answer);
        }
        done.answer = Some(answer);
        if context.stay.is_some() {
            let id = self.claim.id;
            let before = self.pointer.write();
            let wait = claimed.longest_wait().max(FIRST_WAIT);
            match self.store.write_pointer(id, &before, &done, wait).await {
                Ok(None) => {}
                // Somebody else asked for the same, found what is charged, and has it now.
                Ok(Some(_)) => return Ok(None),
                Err(failure) => {
                    self.take_back(answers).await;
                    return Err(HoldError::Failed(failure));
                }
            }
        }
        self.store.pointer_cache.set(self.claim.id, done);
        if self.claim.hold.is_none() && context.delay.is_zero() {
            let is_tried = |group: &[usize]| {
                let mut charges = self.charges(group);
                charges.any(|charge| charge.active.limit.lease().is_none())
            };
            let locations = self.locations.iter().zip(&self.request.groups);
            let tried = locations.filter(|(_, group)| is_tried(group));
            self.end_parts(tried.map(|(location, _)| location), CONCLUDE)
                .await;
        }
        Ok(Some(claimed))
    }
}
