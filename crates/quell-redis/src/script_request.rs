//! A limit set as a script request: one script call, or one for each slot of a cluster.
//!
//! Keys in one slot are decided by one script call, all or nothing. If a set spans slots, all slots are
//! asked at the same time and each charges what it allows; if one refuses, the others give back what they
//! charged. No limit ever admits more than it should, since every charge was allowed when it was made. But
//! until it is given back, which takes one more round trip, other callers may be refused because of it. If
//! this process ends in between, or a server is gone, the charge stays and drains as if it had been used.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use quell_core::charge::{LimitSet, Operation};
use quell_core::rule::CalendarEdges;
use quell_core::time::{Monotonic, Now, Wall};
use redis::Value;

use crate::answer::{Answer, RawDecision, Reply};
use crate::batch::ScriptArgs;
use crate::encode::{LimitNumbers, code};
use crate::link::Failure;
use crate::store::{Opcode, RedisStore, needs_holds};

/// How often the edges of calendar windows are looked up again for one call. Once is enough unless
/// the store's clock runs past two edges in between.
const MAX_EDGE_LOOKUPS: usize = 3;

/// A set that was not decided.
#[derive(Clone, Debug)]
pub(crate) struct SetFailure {
    pub(crate) failure: Failure,
    /// Places of those charges that were made all the same, or may have been.
    pub(crate) uncertain: Vec<usize>,
}

impl SetFailure {
    /// All of `places` were charged or none, as far as the failure says.
    pub(crate) fn whole(failure: Failure, places: impl Iterator<Item = usize>) -> Self {
        let is_uncertain = matches!(failure, Failure::Unknown(_));
        Self {
            uncertain: places.filter(|_| is_uncertain).collect(),
            failure,
        }
    }
}

/// Nothing of it was charged.
impl From<Failure> for SetFailure {
    fn from(failure: Failure) -> Self {
        Self {
            failure,
            uncertain: Vec::new(),
        }
    }
}

/// A set in the words of the script.
#[derive(Debug)]
pub(crate) struct ScriptRequest<'a> {
    store: &'a RedisStore,
    pub(crate) set: &'a LimitSet<'a>,
    pub(crate) names: Vec<Vec<u8>>,
    numbers: Vec<LimitNumbers>,
    /// Which charges one script call may see together.
    pub(crate) groups: Vec<Vec<usize>>,
    pub(crate) codes: Vec<Vec<u8>>,
}

impl<'a> ScriptRequest<'a> {
    pub(crate) fn new(store: &'a RedisStore, set: &'a LimitSet<'a>) -> Self {
        let charges = set.charges();
        let names: Vec<_> = charges
            .iter()
            .map(|charge| store.names.of(set.key(charge)))
            .collect();
        let mut numbers = Vec::with_capacity(names.len());
        let mut codes = Vec::with_capacity(names.len());
        for charge in charges {
            let code = code(charge);
            numbers.push(code.numbers);
            codes.push(code.bytes);
        }
        let mut groups: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
        for (index, name) in names.iter().enumerate() {
            groups
                .entry(store.link.group_of(name))
                .or_default()
                .push(index);
        }
        Self {
            store,
            set,
            names,
            numbers,
            groups: groups.into_values().collect(),
            codes,
        }
    }

    pub(crate) const fn store(&self) -> &RedisStore {
        self.store
    }

    pub(crate) fn numbers(&self) -> &[LimitNumbers] {
        &self.numbers
    }

    pub(crate) fn into_names(self) -> Vec<Vec<u8>> {
        self.names
    }

    /// What each limit says, in the set's order; charged if all that have a say allow.
    pub(crate) async fn charge(
        &self,
        operation: Operation,
        now: Now,
    ) -> Result<Vec<RawDecision>, SetFailure> {
        let opcode = match operation {
            Operation::Acquire => Opcode::Acquire,
            Operation::Peek => Opcode::Peek,
        };
        let head = self.store.head(opcode, Duration::ZERO, now);
        if let [group] = self.groups.as_slice() {
            return self.charge_group(group, &head).await;
        }
        let calls = self
            .groups
            .iter()
            .map(|group| self.in_time(group, self.decide_group(group, &head)));
        let mut answers = futures_util::future::join_all(calls).await;
        let passes = self
            .groups
            .iter()
            .zip(&answers)
            .all(|(group, answer)| answer.as_ref().is_ok_and(|raw| self.passes(group, raw)));
        let mut uncertain = Vec::new();
        if operation == Operation::Acquire && !passes {
            uncertain = self.give_back(&answers, now).await;
            self.restate(&mut answers, now).await;
        }
        let mut all = vec![RawDecision::default(); self.names.len()];
        let mut failure = None;
        for (group, answer) in self.groups.iter().zip(answers) {
            match answer {
                Ok(raw) => {
                    for (index, raw) in group.iter().zip(raw) {
                        if let Some(place) = all.get_mut(*index) {
                            *place = raw;
                        }
                    }
                }
                Err(other) => {
                    if matches!(other, Failure::Unknown(_)) {
                        uncertain.extend(group);
                    }
                    failure.get_or_insert(other);
                }
            }
        }
        match failure {
            Some(failure) => Err(SetFailure { failure, uncertain }),
            None => Ok(all),
        }
    }

    async fn charge_group(
        &self,
        group: &[usize],
        head: &[u8],
    ) -> Result<Vec<RawDecision>, SetFailure> {
        let raw = self.in_time(group, self.decide_group(group, head)).await;
        raw.map_err(|failure| SetFailure::whole(failure, group.iter().copied()))
    }

    /// Charges as much of a set of one limit as fits.
    pub(crate) async fn pay(&self, now: Now) -> Result<Vec<RawDecision>, SetFailure> {
        let head = self.store.head(Opcode::Pay, Duration::ZERO, now);
        self.charge_group(&[0], &head).await
    }

    /// Whether all limits of a group allow that have a say: whether it charged.
    fn passes(&self, group: &[usize], raw: &[RawDecision]) -> bool {
        group.iter().zip(raw).all(|(index, raw)| {
            let charge = self.set.charges().get(*index);
            raw.allows() || charge.is_some_and(|charge| charge.shadow)
        })
    }

    /// Gives back what the groups charged that allowed; returns the places of the charges of which that
    /// is not certain.
    async fn give_back(
        &self,
        answers: &[Result<Vec<RawDecision>, Failure>],
        now: Now,
    ) -> Vec<usize> {
        let charged = self
            .groups
            .iter()
            .zip(answers)
            .filter_map(|(group, answer)| {
                let raw = answer.as_ref().ok()?;
                self.passes(group, raw).then_some((group, raw))
            });
        let refunds = charged.map(|(group, raw)| {
            let taken = group.iter().zip(raw).filter(|(_, raw)| raw.allows());
            let indices: Vec<usize> = taken.map(|(index, _)| *index).collect();
            let at = raw.first().map_or(0, |raw| raw.now());
            let length = Monotonic::from_nanos(at.saturating_mul(1_000)).since(Monotonic::ORIGIN);
            let head = self.store.head(Opcode::Refund, length, now);
            async move {
                let refunded = self.in_time(&indices, self.run(&indices, &head));
                let failure = refunded.await.err()?;
                tracing::debug!(%failure, "a refused set stays charged in one slot");
                Some(indices)
            }
        });
        let kept = futures_util::future::join_all(refunds).await;
        kept.into_iter().flatten().flatten().collect()
    }

    /// Looks again at what was charged and given back, where it was said in the numbers that leave the
    /// store: those are what was left with the charge.
    async fn restate(&self, answers: &mut [Result<Vec<RawDecision>, Failure>], now: Now) {
        let head = self.store.head(Opcode::Peek, Duration::ZERO, now);
        for (group, answer) in self.groups.iter().zip(answers) {
            let Ok(raw) = answer else { continue };
            let is_complete = raw.iter().any(|raw| raw.complete().is_some());
            if !(is_complete && self.passes(group, raw)) {
                continue;
            }
            if let Ok(peeked) = self.in_time(group, self.decide_group(group, &head)).await {
                let pairs = raw.iter_mut().zip(peeked);
                for (place, peeked) in pairs.filter(|(place, _)| place.allows()) {
                    *place = peeked;
                }
            }
        }
    }

    /// Does something by hand to each key; returns to how many it made a difference, and a clock.
    pub(crate) async fn administer(
        &self,
        opcode: Opcode,
        length: Duration,
        now: Now,
    ) -> Result<(usize, u64), Failure> {
        let head = self.store.head(opcode, length, now);
        let mut changed = 0;
        let mut clock = 0;
        for group in &self.groups {
            let reply = self.in_time(group, self.run(group, &head)).await?;
            let numbers = Reply::of(&reply).and_then(|mut reply| {
                let (now, count) = (reply.natural()?, reply.natural()?);
                Some((now, count, reply.natural().unwrap_or(0)))
            });
            let Some((now, count, expired)) = numbers else {
                return Err(strange(&reply));
            };
            changed += usize::try_from(count).unwrap_or(0);
            self.store.hold_gauges.add_expired(expired);
            clock = now;
        }
        Ok((changed, clock))
    }

    /// Awaits a call about some of the charges, all of whose keys one server has.
    async fn in_time<T>(
        &self,
        group: &[usize],
        call: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let name = group.first().and_then(|index| self.names.get(*index));
        self.store
            .in_time(name.map_or(&[], Vec::as_slice), call)
            .await
    }

    async fn decide_group(
        &self,
        group: &[usize],
        head: &[u8],
    ) -> Result<Vec<RawDecision>, Failure> {
        let reply = self.run(group, head).await?;
        match Answer::read(&reply, group.len()) {
            Some(Answer::Decisions(raw, expired)) => {
                self.store.hold_gauges.add_expired(expired);
                Ok(raw)
            }
            _ => Err(strange(&reply)),
        }
    }

    /// Runs the script on some of the charges.
    async fn run(&self, group: &[usize], head: &[u8]) -> Result<Value, Failure> {
        let pick = |from: &[Vec<u8>]| -> Vec<Vec<u8>> {
            let picked = group.iter().filter_map(|index| from.get(*index));
            picked.cloned().collect()
        };
        let keys = pick(&self.names);
        let mut arguments = vec![head.to_vec()];
        arguments.extend(pick(&self.codes));
        let mut charges = group.iter().filter_map(|at| self.set.charges().get(*at));
        let is_payment = head.first() == Some(&(Opcode::Pay as u8));
        let is_of_holds = is_payment || charges.any(needs_holds);
        let args = ScriptArgs { keys, arguments };
        let charges = ChargePositions { first: 1, step: 1 };
        let script = GroupScript {
            group,
            record: None,
            charges,
            is_of_holds,
        };
        self.run_script(script, args).await
    }
}

/// Which of a script's arguments are encoded charges.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChargePositions {
    pub(crate) first: usize,
    pub(crate) step: usize,
}

/// A script call on some of a set's charges.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupScript<'a> {
    /// Indices of the charges.
    pub(crate) group: &'a [usize],
    /// The name of the hold's record, if the script reads one.
    pub(crate) record: Option<&'a [u8]>,
    pub(crate) charges: ChargePositions,
    /// Whether only the hold script can decide.
    pub(crate) is_of_holds: bool,
}

impl ScriptRequest<'_> {
    /// Runs a script on some of the charges. If it finds a value that it cannot read, that is replaced
    /// and the script run once more.
    pub(crate) async fn run_script(
        &self,
        script: GroupScript<'_>,
        args: ScriptArgs,
    ) -> Result<Value, Failure> {
        let args = Arc::new(args);
        match self.run_with_edges(script, Arc::clone(&args)).await {
            Err(Failure::Foreign(reason)) => {
                let head = args.arguments.first().map_or(&[][..], Vec::as_slice);
                self.replace_foreign(script, head, &reason).await?;
                self.run_with_edges(script, args).await
            }
            reply => reply,
        }
    }

    /// Runs a script on some of the charges: again with other calendar edges, if the store's clock is
    /// outside of those that were sent.
    pub(crate) async fn run_with_edges(
        &self,
        script: GroupScript<'_>,
        mut args: Arc<ScriptArgs>,
    ) -> Result<Value, Failure> {
        let GroupScript { group, charges, .. } = script;
        for _ in 0..MAX_EDGE_LOOKUPS {
            let reply = match script.is_of_holds {
                true => self.store.run_hold_script(&args).await?,
                false => self.store.run_script(&args).await?,
            };
            let Some(Answer::OtherEdges { wall }) = Answer::read(&reply, 0) else {
                return Ok(reply);
            };
            let wall = Wall::from_nanos(wall.saturating_mul(1_000));
            let arguments = &mut Arc::make_mut(&mut args).arguments;
            let arguments = arguments
                .iter_mut()
                .skip(charges.first)
                .step_by(charges.step);
            for (argument, index) in arguments.zip(group) {
                if let Some(other) = self.code_at(*index, wall) {
                    *argument = other;
                }
            }
        }
        Err(Failure::Refused(
            "its clock does not stand still for as long as a look at the calendar takes".to_owned(),
        ))
    }

    /// What is charged, with the edges around `wall`, where the charge is on a calendar window.
    fn code_at(&self, index: usize, wall: Wall) -> Option<Vec<u8>> {
        let charge = self.set.charges().get(index)?;
        let calendar = charge.active.limit.calendar()?;
        let mut charge = charge.clone();
        charge.edges = Some(self.store.calendar.edges(calendar, wall));
        Some(code(&charge).bytes)
    }
}

/// A reply that cannot be read. The script may have charged before it was garbled.
pub(crate) fn strange(reply: &Value) -> Failure {
    Failure::Unknown(format!("a reply that means nothing: {reply:?}"))
}
