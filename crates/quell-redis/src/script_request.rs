//! A limit set as a script request: one script call, or one for each slot of a cluster.
//!
//! Keys in one slot are decided by one script call, all or nothing. If a set spans slots, each slot is a
//! part of it, and all or nothing over them is `quell`'s `split`.
//!
//! A state that cannot be read would make its key fail for ever, and how much was used is not known. So
//! it is replaced by a state that is fully used: the limit is not exceeded, and after one full refill the
//! key is back to normal. Permits, whose holders are not known, start at none held, as after a restart.
//! The decision scripts only report such a value; it is replaced, and the call is sent again.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::resp::Value;
use futures_util::future::join_all;
use quell::store::{self, Action, Paid, Totals};
use quell_core::charge::{Charge, LimitSet, Operation};
use quell_core::decision::Decision;
use quell_core::rule::CalendarEdges;
use quell_core::time::{Monotonic, Now, Wall};
use quell_store::remote::SetFailure;
use quell_store::split::{self, Part, PartOutcome};

use crate::answer::{RawDecision, Reply, SetReply, decisions, strange, wall};
use crate::bans::Bans;
use crate::encode::{LimitNumbers, code, micros_up, number};
use crate::link::Failure;
use crate::opcode::Opcode;
use crate::script::ScriptArgs;
use crate::servers::Servers;

/// Number of runs of a script for one call. Two runs are enough unless the store's clock runs past two
/// calendar edges in between, or another program keeps writing foreign values.
const MAX_RUNS: usize = 6;

/// A server that may have lost its memory is doubted about limits that are at rest again after this time:
/// a key that was at rest all along is refused for as long.
const LONGEST_DOUBT: Duration = Duration::from_secs(60);

/// The failure of a whole set: either all of `places` were charged or none was.
pub(crate) fn whole(failure: Failure, places: impl Iterator<Item = usize>) -> SetFailure<Failure> {
    let failed: Vec<usize> = places.collect();
    SetFailure {
        uncertain: match failure {
            Failure::Unknown(_) => failed.clone(),
            _ => Vec::new(),
        },
        failed,
        failure,
    }
}

/// Adds the failure of another part of the set, on other servers.
pub(crate) fn add_failure(
    first: &mut Option<SetFailure<Failure>>,
    failure: Failure,
    group: &[usize],
) {
    let other = whole(failure, group.iter().copied());
    match first {
        None => *first = Some(other),
        Some(first) => {
            first.uncertain.extend(other.uncertain);
            if first.failure == other.failure {
                first.failed.extend(other.failed);
            }
        }
    }
}

/// Decides a set that is not empty. A set over several slots has to run to its end: slots may have to be
/// refunded.
pub(crate) async fn decide(
    servers: &Servers,
    set: &LimitSet<'_>,
    operation: Operation,
    now: Now,
) -> Result<store::Answer, SetFailure<Failure>> {
    servers.apply_limit_changes().await?;
    let request = ScriptRequest::new(servers, set);
    let raw = match request.groups.as_slice() {
        [group] => {
            let raw = request.decide(group, operation.into(), now).await;
            raw.map_err(|failure| whole(failure, group.iter().copied()))?
        }
        _ => request.decide_in_slots(operation, now).await?,
    };
    let answer = request.answer(&raw, operation);
    if operation == Operation::Acquire {
        Bans::new(servers).list_new(set, &raw).await;
        servers.note_charged(set, request.names);
    }
    Ok(answer)
}

/// Charges as much of a set of one limit as fits, and counts no refusal.
pub(crate) async fn pay(
    servers: &Servers,
    set: &LimitSet<'_>,
    now: Now,
) -> Result<store::Answer, SetFailure<Failure>> {
    let request = ScriptRequest::new(servers, set);
    let raw = request.decide(&[0], Opcode::Pay, now).await;
    let raw = raw.map_err(|failure| whole(failure, 0..1))?;
    Ok(request.answer(&raw, Operation::Acquire))
}

/// Runs an administrator's command on each key of a set; returns how many it changed.
pub(crate) async fn administer(
    servers: &Servers,
    set: &LimitSet<'_>,
    action: Action<'_>,
    now: Now,
) -> Result<usize, Failure> {
    servers.apply_limit_changes().await?;
    let request = ScriptRequest::new(servers, set);
    let (opcode, length) = match action {
        Action::Forgive => (Opcode::Forgive, Duration::ZERO),
        Action::Ban(length, _) => (Opcode::Ban, length),
        Action::Lift => (Opcode::Lift, Duration::ZERO),
        Action::Refund => (Opcode::GiveBack, Duration::ZERO),
        Action::Carry => (Opcode::Carry, Duration::ZERO),
        Action::Adjust(adjustment) => {
            let head = servers.clock.adjust_head(&adjustment, now);
            let id = adjustment.reservation.map(|one| one.id);
            let (changed, _) = request.administer_with(head, true, id).await?;
            servers.note_charged(set, request.names);
            return Ok(changed);
        }
    };
    let (changed, clocks) = request.administer(opcode, length, now).await?;
    if matches!(action, Action::Refund | Action::Carry) {
        servers.note_charged(set, request.names);
        return Ok(changed);
    }
    let bans = Bans::new(servers);
    for (charge, clock) in set.charges().iter().zip(clocks) {
        let key = set.key(charge);
        let Action::Ban(_, reason) = action else {
            bans.forget(key).await;
            continue;
        };
        let until = clock.saturating_add(micros_up(length));
        bans.add(key, until, clock).await;
        if let Some(reason) = reason {
            bans.explain(key, until, length, reason).await;
        }
    }
    servers.note_charged(set, request.names);
    Ok(changed)
}

/// Gives back units of a set of one limit that were charged at `charged`; the store ignores it after
/// `until`.
pub(crate) async fn give_back(
    servers: &Servers,
    set: &LimitSet<'_>,
    charged: Wall,
    until: Wall,
    now: Now,
) -> Result<(), Failure> {
    servers.apply_limit_changes().await?;
    let request = ScriptRequest::new(servers, set);
    let head = servers.clock.return_head(charged, until, now);
    request.administer_with(head, false, None).await?;
    Ok(())
}

/// Charges what fits of the totals that were not charged yet, under the limit of a set of one.
pub(crate) async fn sync(
    servers: &Servers,
    set: &LimitSet<'_>,
    totals: &Totals,
    now: Now,
) -> Result<Paid, Failure> {
    servers.apply_limit_changes().await?;
    let request = ScriptRequest::new(servers, set);
    let head = servers.clock.head(Opcode::Sync, Duration::ZERO, now);
    let (script, mut args) = request.script(&[0], head);
    args.keys.push(servers.names.totals(args.key(), totals.id));
    let numbers = [number(totals.total), number(totals.base)].concat();
    args.arguments.push(numbers);
    let read = |reply: &Value| {
        let mut reply = Reply::new(reply)?;
        let (now, paid) = (reply.natural()?, reply.natural()?);
        let next = RawDecision::read(&mut reply, now)?.complete()?;
        let expired = reply.natural().unwrap_or(0);
        let store_time = wall(now);
        let paid = Paid {
            paid,
            next,
            store_time,
        };
        Some((paid, expired))
    };
    let (paid, expired) = request.run_script(script, args, read).await?;
    servers.hold_gauges.add_expired(expired);
    Ok(paid)
}

/// Returns true if a missing state counts as lost on a server that was just started again, or took over.
fn is_doubted(charge: &Charge<'_>) -> bool {
    charge.terms.is_some() && charge.active.limit.full_refill() <= LONGEST_DOUBT
}

impl From<Operation> for Opcode {
    fn from(operation: Operation) -> Self {
        match operation {
            Operation::Acquire => Self::Acquire,
            Operation::Peek => Self::Peek,
        }
    }
}

/// A set as the script reads it.
#[derive(Debug)]
pub(crate) struct ScriptRequest<'a> {
    pub(crate) servers: &'a Servers,
    pub(crate) set: &'a LimitSet<'a>,
    pub(crate) names: Vec<Vec<u8>>,
    pub(crate) numbers: Vec<LimitNumbers>,
    /// Groups of charges that one script call may see together.
    pub(crate) groups: Vec<Vec<usize>>,
    pub(crate) codes: Vec<Vec<u8>>,
}

/// Charges of one script call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupScript<'a> {
    /// Indices of the charges in the set.
    pub(crate) group: &'a [usize],
    /// True for a claim, which has more keys and arguments.
    pub(crate) is_claim: bool,
}

impl GroupScript<'_> {
    /// The first argument that is an encoded charge, and how far it is from one to the next.
    const fn charges(self) -> (usize, usize) {
        if self.is_claim { (3, 2) } else { (1, 1) }
    }

    /// The call that replaces states of a call that cannot be read, and the hold's record if it cannot.
    fn replacement(self, args: &ScriptArgs) -> ScriptArgs {
        let mut head = args.arguments.first().cloned().unwrap_or_default();
        if let Some(opcode) = head.first_mut() {
            *opcode = Opcode::Replace as u8;
        }
        let (first, step) = self.charges();
        let codes = args.arguments.iter().skip(first).step_by(step);
        let record = self.is_claim.then(Vec::new);
        let keys = match self.is_claim {
            true => args.keys.len(),
            // What else the script reads it does not mind.
            false => self.group.len(),
        };
        let codes = codes.take(keys);
        let arguments = std::iter::once(head).chain(record).chain(codes.cloned());
        let keys = args.keys.iter().take(keys).cloned();
        ScriptArgs::new(keys.collect(), arguments.collect())
    }
}

impl<'a> ScriptRequest<'a> {
    pub(crate) fn new(servers: &'a Servers, set: &'a LimitSet<'a>) -> Self {
        let charges = set.charges();
        let names = charges.iter();
        let names: Vec<_> = names
            .map(|charge| servers.names.of(set.key(charge)))
            .collect();
        let (codes, numbers) = charges.iter().map(code).unzip();
        let mut groups: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
        for (index, name) in names.iter().enumerate() {
            let group = groups.entry(servers.link.group_of(name)).or_default();
            group.push(index);
        }
        Self {
            servers,
            set,
            names,
            numbers,
            groups: groups.into_values().collect(),
            codes,
        }
    }

    /// The store's answer from the script's decisions, with the store's time.
    fn answer(&self, raw: &[RawDecision], operation: Operation) -> store::Answer {
        let clock = raw.iter().map(|raw| raw.now).max();
        store::Answer {
            decisions: self.decisions(raw, operation).into(),
            store_time: Some(wall(clock.unwrap_or(0))),
            ..store::Answer::default()
        }
    }

    /// The decisions of the set's limits, from the script's reply.
    pub(crate) fn decisions(&self, raw: &[RawDecision], operation: Operation) -> Vec<Decision> {
        decisions(self.set.charges(), &self.numbers, raw, operation)
    }

    /// Decides the limits of one slot, and charges them if all that are not in shadow allow the call.
    fn decide(
        &self,
        group: &[usize],
        opcode: Opcode,
        now: Now,
    ) -> impl Future<Output = Result<Vec<RawDecision>, Failure>> + Send {
        let head = self.servers.clock.head(opcode, Duration::ZERO, now);
        let (script, args) = self.script(group, head);
        self.run_script(script, args, move |reply| {
            match SetReply::read(reply, group.len())? {
                SetReply::Decisions(raw, expired) => {
                    self.servers.hold_gauges.add_expired(expired);
                    Some(raw)
                }
                SetReply::OtherEdges { .. } => None,
            }
        })
    }

    /// Decides a set over several slots; the decisions are in the set's order.
    pub(crate) async fn decide_in_slots(
        &self,
        operation: Operation,
        now: Now,
    ) -> Result<Vec<RawDecision>, SetFailure<Failure>> {
        let groups = self.groups.iter();
        let slots: Vec<_> = groups
            .map(|group| SlotPart {
                request: self,
                group,
                now,
            })
            .collect();
        let parts = match operation {
            Operation::Acquire => split::acquire(&slots).await.parts,
            Operation::Peek => {
                let each = self.groups.iter();
                let peeked = each.map(|group| self.decide(group, Opcode::Peek, now));
                let peeked = join_all(peeked).await;
                peeked.into_iter().map(PartOutcome::from).collect()
            }
        };
        self.merge(parts)
    }

    /// The replies of all slots, in the set's order.
    fn merge(
        &self,
        parts: Vec<PartOutcome<Vec<RawDecision>, Failure>>,
    ) -> Result<Vec<RawDecision>, SetFailure<Failure>> {
        let mut all = vec![RawDecision::default(); self.names.len()];
        let mut failed = None;
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
                    add_failure(&mut failed, failure, group);
                    continue;
                }
            };
            put_in_order(&mut all, group, &raw);
        }
        match failed {
            Some(mut failure) => {
                failure.uncertain.extend(kept);
                Err(failure)
            }
            None => Ok(all),
        }
    }

    /// Runs an administrator's command on each key; returns how many it changed, and the clock of each key's
    /// server.
    pub(crate) async fn administer(
        &self,
        opcode: Opcode,
        length: Duration,
        now: Now,
    ) -> Result<(usize, Vec<u64>), Failure> {
        let head = self.servers.clock.head(opcode, length, now);
        // Nothing is given back where something is held, so nobody's turn comes sooner by that.
        let calls_out = opcode != Opcode::GiveBack;
        self.administer_with(head, calls_out, None).await
    }

    /// If `calls_out`, callers that wait on a key are told to ask again. What adjusts keys for the reservation
    /// `settled` does so once.
    async fn administer_with(
        &self,
        head: Vec<u8>,
        calls_out: bool,
        settled: Option<u128>,
    ) -> Result<(usize, Vec<u64>), Failure> {
        let mut changed = 0;
        let mut clocks = vec![0; self.names.len()];
        for (place, group) in self.groups.iter().enumerate() {
            let (script, mut args) = self.script(group, head.clone());
            if calls_out {
                let tag = self.servers.link.tag_of(args.key());
                args.keys.push(self.servers.names.turn_stream(tag));
            }
            if let Some(id) = settled {
                let names = args.keys.get(..group.len()).unwrap_or_default().iter();
                let records = names.map(|name| self.servers.names.settled(name, id));
                let records: Vec<_> = records.collect();
                args.keys.extend(records);
            }
            let read = |reply: &Value| {
                let mut reply = Reply::new(reply)?;
                let (now, count) = (reply.natural()?, reply.natural()?);
                Some((now, count, reply.natural().unwrap_or(0)))
            };
            let ran = self.run_script(script, args, read).await;
            // What went before is done.
            let of_some = |failure: Failure| match place {
                0 => failure,
                _ => Failure::Unknown(failure.to_string()),
            };
            let (now, count, expired) = ran.map_err(of_some)?;
            changed += usize::try_from(count).unwrap_or(0);
            self.servers.hold_gauges.add_expired(expired);
            put_in_order(&mut clocks, group, &vec![now; group.len()]);
        }
        Ok((changed, clocks))
    }

    /// The call of the script on some of the charges.
    pub(crate) fn script<'g>(
        &self,
        group: &'g [usize],
        head: Vec<u8>,
    ) -> (GroupScript<'g>, ScriptArgs) {
        let pick = |from: &[Vec<u8>]| -> Vec<Vec<u8>> {
            let picked = group.iter().filter_map(|index| from.get(*index));
            picked.cloned().collect()
        };
        let script = GroupScript {
            group,
            is_claim: false,
        };
        let mut arguments = vec![head];
        arguments.extend(pick(&self.codes));
        let keys = pick(&self.names);
        (script, ScriptArgs::new(keys, arguments))
    }

    /// Runs a script on some of the charges, all of whose keys one server has: again with other calendar
    /// edges if the store's clock is outside of those that were sent, and again once a value that the
    /// script cannot read is replaced.
    pub(crate) async fn run_script<T>(
        &self,
        script: GroupScript<'_>,
        mut args: ScriptArgs,
        read: impl Fn(&Value) -> Option<T> + Send + Sync,
    ) -> Result<T, Failure> {
        let key = args.key().to_vec();
        let call = self.servers.admit(&key)?;
        let (first, step) = script.charges();
        let codes = script.group.iter().zip((first..).step_by(step));
        let doubted = codes.filter(|(at, _)| self.set.charges().get(**at).is_some_and(is_doubted));
        args.doubted = doubted.map(|(_, code)| code).collect();
        let mut args = Arc::new(args);
        let mut is_replaced = false;
        let answer = async {
            for _ in 0..MAX_RUNS {
                let mut found = None;
                let reply = match self.servers.batcher.ask(&args).await {
                    Err(Failure::Foreign(reason)) if !is_replaced => {
                        found = Some(reason);
                        let replacement = Arc::new(script.replacement(&args));
                        self.servers.batcher.ask(&replacement).await?
                    }
                    reply => reply?,
                };
                if let Some(SetReply::OtherEdges { wall }) = SetReply::read(&reply, 0) {
                    self.set_edges(script, Arc::make_mut(&mut args), wall);
                } else if let Some(reason) = found {
                    self.note_replaced(&reply, &reason)?;
                    is_replaced = true;
                } else {
                    return read(&reply).ok_or_else(|| strange(&reply));
                }
            }
            Err(Failure::Refused(
                "the store's clock passes calendar edges faster than they can be computed"
                    .to_owned(),
            ))
        };
        call.end(answer.await)
    }

    /// Counts values that were replaced, and logs it.
    fn note_replaced(&self, reply: &Value, reason: &str) -> Result<(), Failure> {
        let count = Reply::new(reply).and_then(|mut reply| {
            reply.natural()?;
            reply.natural()
        });
        let counts = &self.servers.counts;
        if counts.add_replaced(count.ok_or_else(|| strange(reply))?, Instant::now()) {
            tracing::warn!(
                store = %self.servers.url,
                values = counts.replaced_values(),
                reason,
                "keys of Quell held values that Quell did not write: each counts as used up now; give Quell \
                a database of its own"
            );
        }
        Ok(())
    }

    /// Encodes charges on calendar windows anew, with the edges around `wall`, in microseconds.
    fn set_edges(&self, script: GroupScript<'_>, args: &mut ScriptArgs, wall: u64) {
        let wall = Wall::from_nanos(wall.saturating_mul(1_000));
        let (first, step) = script.charges();
        let codes = args.arguments.iter_mut().skip(first).step_by(step);
        let charges = script.group.iter();
        let charges = charges.filter_map(|at| self.set.charges().get(*at));
        for (bytes, charge) in codes.zip(charges) {
            if let Some(calendar) = charge.active.limit.calendar() {
                let mut charge = charge.clone();
                charge.edges = Some(self.servers.calendar.edges(calendar, wall));
                (*bytes, _) = code(&charge);
            }
        }
    }
}

/// Puts what one group of charges has into the order of the set.
pub(crate) fn put_in_order<T: Clone>(all: &mut [T], group: &[usize], values: &[T]) {
    for (index, value) in group.iter().zip(values) {
        if let Some(place) = all.get_mut(*index) {
            place.clone_from(value);
        }
    }
}

/// The charges of a set that are in one slot of a cluster: what one script decides.
#[derive(Clone, Copy, Debug)]
struct SlotPart<'a> {
    request: &'a ScriptRequest<'a>,
    group: &'a [usize],
    now: Now,
}

impl Part for SlotPart<'_> {
    type Answer = Vec<RawDecision>;
    type Failure = Failure;

    async fn acquire(&self) -> Result<Vec<RawDecision>, Failure> {
        let request = self.request;
        request.decide(self.group, Opcode::Acquire, self.now).await
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
        let (request, group, now) = (self.request, self.group, self.now);
        let charged: Vec<usize> = charged(group, raw).collect();
        if charged.is_empty() {
            return Ok(());
        }
        let at = raw.first().map_or(0, |raw| raw.now);
        let length = Monotonic::from_nanos(at.saturating_mul(1_000)).since(Monotonic::ORIGIN);
        let head = request.servers.clock.head(Opcode::Refund, length, now);
        let (script, args) = request.script(&charged, head);
        request.run_script(script, args, |_| Some(())).await?;
        // A complete decision was computed with the charge in place, so it is made again without it.
        if raw.iter().any(|raw| raw.complete().is_some())
            && let Ok(peeked) = request.decide(group, Opcode::Peek, now).await
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

/// The charges of a group that its slot made.
fn charged(group: &[usize], raw: &[RawDecision]) -> impl Iterator<Item = usize> {
    let each = group.iter().zip(raw).filter(|(_, raw)| raw.allows());
    each.map(|(index, _)| *index)
}

#[cfg(test)]
mod tests {
    use quell_core::cost::Cost;
    use quell_core::limit::{ActiveLimit, Limit, LimitId, LimitPlace};

    use super::*;

    /// A server's reply about a limit that allows the call, or refuses it.
    fn raw(allows: bool) -> RawDecision {
        const BRIEF: u8 = 8;
        let bytes = [&[u8::from(allows) | BRIEF][..], &[0; 8]].concat();
        RawDecision::read_all(Reply { rest: &bytes }, 7).unwrap()[0]
    }

    /// Keys of a set that spans slots, the last two of them in one.
    #[tokio::test]
    async fn a_failure_of_a_set_tells_which_of_its_charges_it_is_about() {
        let store = crate::RedisStore::new("redis+cluster://localhost".parse().unwrap());
        let active = ActiveLimit {
            id: LimitId::default(),
            limit: Limit::per_second(1).build().unwrap(),
            since: Monotonic::ORIGIN,
            place: LimitPlace::NONE,
        };
        let mut set = LimitSet::new();
        for key in [b"a", b"b", b"c"] {
            set.add(key, 0, &Charge::alone(&active, Cost::ONE));
        }
        let mut request = ScriptRequest::new(&store.servers, &set);
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
