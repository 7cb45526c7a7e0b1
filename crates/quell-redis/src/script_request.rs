//! A limit set as a script request: one script call, or one for each slot of a cluster.
//!
//! Keys in one slot are decided by one script call, all or nothing. If a set spans slots, each slot is a
//! part of it, and all or nothing over them is `quell`'s `split`.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use quell::store::split::{self, Part, PartOutcome};
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
    /// Places of those charges that `failure` was said of: of a set that spans servers, those of the
    /// servers that said so. Empty if it was not said of a charge.
    pub(crate) failed: Vec<usize>,
    /// Places of those charges that were made all the same, or may have been.
    pub(crate) uncertain: Vec<usize>,
}

impl SetFailure {
    /// All of `places` were charged or none, as far as the failure says.
    pub(crate) fn whole(failure: Failure, places: impl Iterator<Item = usize>) -> Self {
        let failed: Vec<usize> = places.collect();
        Self {
            uncertain: match failure {
                Failure::Unknown(_) => failed.clone(),
                _ => Vec::new(),
            },
            failed,
            failure,
        }
    }

    /// Adds that a part of the set on other servers failed, too.
    fn and(mut self, other: Self) -> Self {
        self.uncertain.extend(other.uncertain);
        if self.failure == other.failure {
            self.failed.extend(other.failed);
        }
        self
    }
}

/// Nothing of it was charged.
impl From<Failure> for SetFailure {
    fn from(failure: Failure) -> Self {
        Self {
            failure,
            failed: Vec::new(),
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
        if let [group] = self.groups.as_slice() {
            return self.charge_group(group, opcode, now).await;
        }
        let groups = self.groups.iter();
        let slots: Vec<_> = groups.map(|group| self.slot(group, now)).collect();
        let parts = match operation {
            Operation::Acquire => split::acquire(&slots).await.parts,
            Operation::Peek => {
                let peeked = join_all(slots.iter().map(|slot| slot.decide(opcode))).await;
                peeked.into_iter().map(PartOutcome::from).collect()
            }
        };
        self.merge(parts)
    }

    fn slot<'s>(&'s self, group: &'s [usize], now: Now) -> SlotPart<'s> {
        SlotPart {
            request: self,
            group,
            now,
        }
    }

    /// What all slots said, in the set's order.
    fn merge(
        &self,
        parts: Vec<PartOutcome<Vec<RawDecision>, Failure>>,
    ) -> Result<Vec<RawDecision>, SetFailure> {
        let mut all = vec![RawDecision::default(); self.names.len()];
        let mut failed: Option<SetFailure> = None;
        let mut kept = Vec::new();
        for (group, part) in self.groups.iter().zip(parts) {
            let raw = match part {
                PartOutcome::Decided(raw) => raw,
                PartOutcome::Kept { answer, failure } => {
                    tracing::debug!(%failure, "a refused set stays charged in one slot");
                    kept.extend(charged(group, &answer));
                    answer
                }
                PartOutcome::Failed(failure) => {
                    let other = SetFailure::whole(failure, group.iter().copied());
                    failed = Some(match failed {
                        Some(first) => first.and(other),
                        None => other,
                    });
                    continue;
                }
            };
            for (index, raw) in group.iter().zip(raw) {
                if let Some(place) = all.get_mut(*index) {
                    *place = raw;
                }
            }
        }
        match failed {
            Some(mut failure) => {
                failure.uncertain.extend(kept);
                Err(failure)
            }
            None => Ok(all),
        }
    }

    async fn charge_group(
        &self,
        group: &[usize],
        opcode: Opcode,
        now: Now,
    ) -> Result<Vec<RawDecision>, SetFailure> {
        let raw = self.slot(group, now).decide(opcode).await;
        raw.map_err(|failure| SetFailure::whole(failure, group.iter().copied()))
    }

    /// Charges as much of a set of one limit as fits.
    pub(crate) async fn pay(&self, now: Now) -> Result<Vec<RawDecision>, SetFailure> {
        self.charge_group(&[0], Opcode::Pay, now).await
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

/// The charges of a set that are in one slot of a cluster, or on one server: what one script decides.
#[derive(Clone, Copy, Debug)]
struct SlotPart<'a> {
    request: &'a ScriptRequest<'a>,
    group: &'a [usize],
    now: Now,
}

impl SlotPart<'_> {
    async fn decide(&self, opcode: Opcode) -> Result<Vec<RawDecision>, Failure> {
        let Self { request, group, .. } = *self;
        let head = request.store.head(opcode, Duration::ZERO, self.now);
        let decided = async {
            let reply = request.run(group, &head).await?;
            match Answer::read(&reply, group.len()) {
                Some(Answer::Decisions(raw, expired)) => {
                    request.store.hold_gauges.add_expired(expired);
                    Ok(raw)
                }
                _ => Err(strange(&reply)),
            }
        };
        request.in_time(group, decided).await
    }
}

impl Part for SlotPart<'_> {
    type Answer = Vec<RawDecision>;
    type Failure = Failure;

    async fn acquire(&self) -> Result<Vec<RawDecision>, Failure> {
        self.decide(Opcode::Acquire).await
    }

    fn passes(&self, raw: &Vec<RawDecision>) -> bool {
        let charges = self.request.set.charges();
        self.group.iter().zip(raw).all(|(index, raw)| {
            let charge = charges.get(*index);
            raw.allows() || charge.is_some_and(|charge| charge.shadow)
        })
    }

    /// The charge is named by the instant at which it was made, by the clock of its server.
    async fn refund(&self, raw: &mut Vec<RawDecision>) -> Result<(), Failure> {
        let charged: Vec<usize> = charged(self.group, raw).collect();
        if charged.is_empty() {
            return Ok(());
        }
        let at = raw.first().map_or(0, |raw| raw.now());
        let length = Monotonic::from_nanos(at.saturating_mul(1_000)).since(Monotonic::ORIGIN);
        let request = self.request;
        let head = request.store.head(Opcode::Refund, length, self.now);
        let refund = request.run(&charged, &head);
        request.in_time(&charged, refund).await?;
        // The numbers that leave the store are those with the charge; the others are not about it.
        if raw.iter().any(|raw| raw.complete().is_some())
            && let Ok(peeked) = self.decide(Opcode::Peek).await
        {
            for (place, peeked) in raw.iter_mut().zip(peeked) {
                if place.allows() {
                    *place = peeked;
                }
            }
        }
        Ok(())
    }
}

/// Those of a group that were charged, of a part that passes.
fn charged(group: &[usize], raw: &[RawDecision]) -> impl Iterator<Item = usize> {
    let each = group.iter().zip(raw).filter(|(_, raw)| raw.allows());
    each.map(|(index, _)| *index)
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

#[cfg(test)]
mod tests {
    use quell_core::charge::Charge;
    use quell_core::cost::Cost;
    use quell_core::limit::{ActiveLimit, Limit, LimitId};

    use super::*;

    /// What a server says of a limit that lets the call pass, or not.
    fn raw(allows: bool) -> RawDecision {
        const BRIEF: u8 = 8;
        let bytes = [&[u8::from(allows) | BRIEF][..], &[0; 8]].concat();
        RawDecision::read_all(&bytes, 7).unwrap()[0]
    }

    /// Keys of a set that spans slots, the last two of them in one.
    #[tokio::test]
    async fn a_failure_of_a_set_tells_which_of_its_charges_it_is_about() {
        let store = RedisStore::new("redis+cluster://localhost".parse().unwrap());
        let active = ActiveLimit {
            id: LimitId::default(),
            limit: Limit::per_second(1).build().unwrap(),
            since: Monotonic::ORIGIN,
            place: Arc::default(),
        };
        let mut set = LimitSet::new();
        for key in [b"a", b"b", b"c"] {
            set.add(key, 0, &Charge::alone(&active, Cost::ONE));
        }
        let mut request = ScriptRequest::new(&store, &set);
        assert_eq!(request.groups.len(), 3);
        request.groups = vec![vec![1], vec![0, 2]];
        let full = || Failure::Refused("NOREPLICAS not enough".to_owned());
        let lost = || Failure::Unknown("no answer".to_owned());
        let decided = || PartOutcome::Decided(vec![raw(true)]);
        let kept = PartOutcome::Kept {
            answer: vec![raw(true), raw(false)],
            failure: lost(),
        };
        let failed = PartOutcome::Failed;
        for (parts, failure, failed, uncertain) in [
            (vec![decided(), failed(full())], full(), vec![0, 2], vec![]),
            (vec![failed(full()), decided()], full(), vec![1], vec![]),
            (
                vec![failed(full()), failed(full())],
                full(),
                vec![1, 0, 2],
                vec![],
            ),
            (
                vec![failed(full()), failed(lost())],
                full(),
                vec![1],
                vec![0, 2],
            ),
            (
                vec![failed(lost()), failed(full())],
                lost(),
                vec![1],
                vec![1],
            ),
            // A charge that is kept, beside one that a limit in shadow refused.
            (vec![failed(full()), kept], full(), vec![1], vec![0]),
        ] {
            let undecided = request.merge(parts).unwrap_err();
            assert_eq!(undecided.failure, failure);
            assert_eq!((undecided.failed, undecided.uncertain), (failed, uncertain));
        }
    }
}
