//! One claim on limits in several slots, all or nothing: each slot is a part of `quell`'s `split`.
//!
//! Charges have an id here. So a part whose answer was lost can take back what it may have charged. Taking
//! back names the attempt, so that it leaves alone what a later attempt took over.

use std::time::Duration;

use futures_util::future::{join, join_all};
use quell_core::charge::{Charge, Operation};
use quell_core::claim::{Claim, WaitLimits};
use quell_core::decision::{Decision, Outcome, RetryAfter};
use quell_core::time::Now;
use quell_store::remote::{HoldFailure, SetFailure};
use quell_store::split::{self, Part, PartOutcome};

use super::hold_location::{HoldLocation, run_at};
use super::{FIRST_WAIT, PointerState, claim_pointer, stored_pointer};
use crate::answer::{RawDecision, complete};
use crate::claim::{ClaimReply, SetVerdict, SlotContext, claim_at};
use crate::encode::number;
use crate::hold_gauges::hold_time;
use crate::link::Failure;
use crate::opcode::Opcode;
use crate::pointer::Pointer;
use crate::script_request::{ScriptRequest, add_failure, put_in_order};

/// The ending that takes a part back.
const TAKE_BACK: u8 = 6;

/// The status of a claim whose id a later attempt owns.
const OVERTAKEN: u64 = 4;

/// The ending that makes tried charges final.
const CONCLUDE: u8 = 7;

/// A claim in several slots.
pub(super) struct SpreadClaim<'a> {
    request: &'a ScriptRequest<'a>,
    claim: Claim<'a>,
    now: Now,
    pointer: Pointer,
    /// One for each group of charges.
    locations: Vec<HoldLocation>,
}

/// The replies of the slots, in the order of the groups.
type Answers = Vec<Result<ClaimReply, Failure>>;

/// The claim on the limits of one slot.
#[derive(Clone, Copy)]
struct ClaimPart<'a> {
    spread: &'a SpreadClaim<'a>,
    group: &'a [usize],
    location: &'a HoldLocation,
    context: SlotContext,
}

impl ClaimPart<'_> {
    async fn take_back(&self) -> Result<(), Failure> {
        self.spread.end_parts([self.location], TAKE_BACK).await
    }
}

impl Part for ClaimPart<'_> {
    type Answer = ClaimReply;
    type Failure = Failure;

    async fn acquire(&self) -> Result<ClaimReply, Failure> {
        let (spread, record, context) = (self.spread, &self.location.record, Some(self.context));
        let (request, claim, now) = (spread.request, &spread.claim, spread.now);
        let claimed = claim_at(request, self.group, claim, record, context, now).await;
        if matches!(claimed, Err(Failure::Unknown(_))) {
            // The claim as a whole has failed, whether or not this arrives.
            self.take_back().await.ok();
        }
        claimed
    }

    fn passes(&self, claimed: &ClaimReply) -> bool {
        let mut each = self.spread.charges(self.group).zip(&claimed.decisions);
        let passes = each.all(|(charge, one)| charge.shadow || one.outcome.is_allow());
        passes && claimed.is_sound() && claimed.decisions.len() == self.group.len()
    }

    /// The decisions without the charge are made for all slots together: see `restate`.
    async fn refund(&self, claimed: &mut ClaimReply) -> Result<(), Failure> {
        match claimed.held {
            0 => Ok(()),
            _ => self.take_back().await,
        }
    }
}

impl<'a> SpreadClaim<'a> {
    /// Makes the claim; `None` if another attempt at the same id overtook it.
    pub(super) async fn claim(
        request: &'a ScriptRequest<'a>,
        claim: &Claim<'a>,
        now: Now,
    ) -> Result<Option<ClaimReply>, HoldFailure<Failure>> {
        let servers = request.servers;
        let claim_pointer = claim_pointer(request, claim, now);
        let look = request.decide_in_slots(Operation::Peek, now);
        let (pointing, peeked) = join(claim_pointer, look).await;
        let pointer = match pointing? {
            PointerState::Answered(claimed) => return Ok(Some(claimed)),
            PointerState::Free(pointer) => pointer,
        };
        let peeked = peeked.map_err(|undecided| SetFailure {
            // Nothing is claimed yet.
            uncertain: Vec::new(),
            ..undecided
        })?;
        let peeked = request.decisions(&peeked, Operation::Peek);
        // A claim never waits in several queues.
        let wait = claim.wait.map(|wait| WaitLimits {
            turn: Duration::ZERO,
            ..wait
        });
        let locations = request.groups.iter().map(|group| {
            let names = group.iter().filter_map(|index| request.names.get(*index));
            HoldLocation::new(servers, claim.id, names.cloned().collect())
        });
        let spread = Self {
            locations: locations.collect(),
            claim: Claim { wait, ..*claim },
            request,
            now,
            pointer,
        };
        spread.decide(peeked).await
    }

    async fn decide(
        &self,
        peeked: Vec<Decision>,
    ) -> Result<Option<ClaimReply>, HoldFailure<Failure>> {
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
        let (answers, kept) = self.ask_all(context).await;
        let mut claimed = self.merge(&answers, kept)?;
        let passes = self.passes(&claimed.decisions);
        match verdict {
            SetVerdict::Passes if claimed.is_sound() && passes => {
                return self.conclude(claimed, &answers, context).await;
            }
            SetVerdict::Passes => {
                // Another call came in between: parts that passed are taken back.
                if claimed.status == OVERTAKEN {
                    return Ok(None);
                }
                if claimed.is_sound() {
                    self.restate(&mut claimed, &answers).await?;
                }
            }
            // The limits that refused in the peek would pass by now, but were not charged.
            SetVerdict::Refused if passes => claimed.decisions = peeked,
            SetVerdict::TooLong if passes => claimed.decisions = self.too_late(peeked, most),
            SetVerdict::Refused | SetVerdict::TooLong => {}
        }
        claimed.held = 0;
        Ok((claimed.status != OVERTAKEN).then_some(claimed))
    }

    fn with_say<'d>(&self, decisions: &'d [Decision]) -> impl Iterator<Item = &'d Decision> {
        let pairs = self.request.set.charges().iter().zip(decisions);
        let with_say = pairs.filter(|(charge, _)| !charge.shadow);
        with_say.map(|(_, decision)| decision)
    }

    fn charges(&self, group: &[usize]) -> impl Iterator<Item = &Charge<'a>> {
        let charges = self.request.set.charges();
        group.iter().filter_map(|index| charges.get(*index))
    }

    fn passes(&self, decisions: &[Decision]) -> bool {
        self.with_say(decisions).all(|one| one.outcome.is_allow())
    }

    /// Makes the claim in all slots; also returns charges that could not be taken back.
    async fn ask_all(&self, context: SlotContext) -> (Answers, Vec<usize>) {
        let groups = &self.request.groups;
        // The first slot in which something is certainly held.
        let counts = groups.iter().position(|group| {
            self.claim.hold.is_some()
                || self
                    .charges(group)
                    .any(|charge| charge.active.limit.lease().is_some())
        });
        let parts = groups.iter().zip(&self.locations).enumerate();
        let parts = parts.map(|(place, (group, location))| ClaimPart {
            spread: self,
            group,
            location,
            context: SlotContext {
                counts: place == counts.unwrap_or_default(),
                ..context
            },
        });
        let parts: Vec<_> = parts.collect();
        if context.verdict != SetVerdict::Passes {
            // Nothing is charged anywhere.
            let answers = join_all(parts.iter().map(Part::acquire)).await;
            return (answers, Vec::new());
        }
        let (mut answers, mut kept) = (Vec::new(), Vec::new());
        for (group, part) in groups.iter().zip(split::acquire(&parts).await.parts) {
            answers.push(match part {
                PartOutcome::Decided(answer) => Ok(answer),
                PartOutcome::Kept { answer, .. } => {
                    kept.extend(group);
                    Ok(answer)
                }
                PartOutcome::Failed(failure) => Err(failure),
            });
        }
        (answers, kept)
    }

    /// The replies of all slots as one, in the order of the set; `kept` are charges that could not be
    /// taken back.
    fn merge(
        &self,
        answers: &Answers,
        kept: Vec<usize>,
    ) -> Result<ClaimReply, HoldFailure<Failure>> {
        let count = self.request.names.len();
        let nothing = self.request.groups.len();
        let mut all = ClaimReply {
            raw: vec![RawDecision::default(); count],
            ..ClaimReply::default()
        };
        let (mut repeated, mut held) = (0, 0);
        let mut failed = None;
        for (group, answer) in self.request.groups.iter().zip(answers) {
            let answer = match answer {
                Ok(answer) => answer,
                Err(failure) => {
                    add_failure(&mut failed, failure.clone(), group);
                    continue;
                }
            };
            if failed.is_some() {
                continue;
            }
            if !answer.is_sound() {
                all.status = answer.status;
                return Ok(all);
            }
            repeated += usize::from(answer.status == 1);
            all.clock = all.clock.max(answer.clock);
            held |= u64::from(answer.held == 1);
            all.expired += answer.expired;
            if answer.raw.len() != group.len() {
                // Another claim has the id there.
                return Ok(ClaimReply::id_taken());
            }
            put_in_order(&mut all.raw, group, &answer.raw);
        }
        if let Some(mut failed) = failed {
            failed.uncertain.extend(kept);
            return Err(failed.into());
        }
        all.status = u64::from(repeated == nothing);
        all.held = held;
        all.decisions = complete(&all.raw);
        Ok(all)
    }

    /// Ends what was claimed at these locations.
    ///
    /// # Errors
    /// The first failure; parts that the call did not reach end when their time is over.
    async fn end_parts(
        &self,
        locations: impl IntoIterator<Item = &HoldLocation>,
        code: u8,
    ) -> Result<(), Failure> {
        let head = self
            .request
            .servers
            .clock
            .head(Opcode::End, Duration::ZERO, self.now);
        let mut ending = vec![code];
        ending.extend_from_slice(&number(self.pointer.attempt));
        let arguments = [head, ending, self.claim.id.as_bytes().to_vec()];
        let ended = run_at(self.request.servers, locations, &arguments).await;
        let ended = ended.into_iter().try_for_each(|ended| ended.map(|_| ()));
        ended.inspect_err(|failure| {
            tracing::debug!(
                %failure,
                "cannot cancel a part of a claim; the part expires by itself"
            );
        })
    }

    /// Decides the limits that passed once more, now that nothing is charged.
    async fn restate(
        &self,
        claimed: &mut ClaimReply,
        answers: &Answers,
    ) -> Result<(), HoldFailure<Failure>> {
        let peeked = self
            .request
            .decide_in_slots(Operation::Peek, self.now)
            .await;
        let peeked = peeked.map_err(|undecided| undecided.failure)?;
        let peeked = self.request.decisions(&peeked, Operation::Peek);
        for (group, answer) in self.request.groups.iter().zip(answers) {
            if answer.as_ref().is_ok_and(|answer| answer.held > 0) {
                let others = group.iter().filter_map(|at| peeked.get(*at).copied());
                let others: Vec<_> = others.collect();
                put_in_order(&mut claimed.decisions, group, &others);
            }
        }
        Ok(())
    }

    /// Turns delays above `most` into refusals.
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

    /// All parts hold: writes the answer to the pointer, and makes tried charges final.
    async fn conclude(
        &self,
        claimed: ClaimReply,
        answers: &Answers,
        context: SlotContext,
    ) -> Result<Option<ClaimReply>, HoldFailure<Failure>> {
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
            match stored_pointer::write(self.request.servers, id, &done, &before, wait).await {
                Ok(None) => {}
                // Another attempt at the same id found the charges, and owns them now.
                Ok(Some(_)) => return Ok(None),
                Err(failure) => {
                    let all = self.locations.iter().zip(answers);
                    let held = all.filter(|(_, one)| one.as_ref().is_ok_and(|one| one.held > 0));
                    let held = held.map(|(location, _)| location);
                    self.end_parts(held, TAKE_BACK).await.ok();
                    return Err(failure.into());
                }
            }
        }
        self.request.servers.pointer_cache.set(self.claim.id, done);
        if self.claim.hold.is_none() && context.delay.is_zero() {
            let is_tried = |group: &[usize]| {
                let mut charges = self.charges(group);
                charges.any(|charge| charge.active.limit.lease().is_none())
            };
            let locations = self.locations.iter().zip(&self.request.groups);
            let tried = locations.filter_map(|(at, group)| is_tried(group).then_some(at));
            self.end_parts(tried, CONCLUDE).await.ok();
        }
        Ok(Some(claimed))
    }
}
