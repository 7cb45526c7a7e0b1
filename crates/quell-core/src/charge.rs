//! Charge and limit set: all limits of one query are charged together, or none is.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;
use core::num::NonZeroU64;
use core::ops::Range;
use core::time::Duration;

use crate::account::Account;
use crate::actual::CostOrigin;
use crate::adjustment::Adjustment;
use crate::algorithm::{At, Edges};
use crate::ban::{Ban, BanRecord};
use crate::cost::Cost;
use crate::decision::Decision;
use crate::hold::HoldId;
use crate::key::{AD_HOC_SCOPE, Captured, Key, KeyBytes, push_value};
use crate::limit::{ActiveLimit, Limit};
use crate::over_admission::LeaseTerms;
use crate::policy::{Policy, Rung};
use crate::short_list::ShortList;
use crate::state::State;
use crate::time::{Now, Wall};
use crate::verdict::{RuleDecision, Verdict};

mod decide;

pub use decide::{Entry, decide, decide_one, pay, refund, take_back};

/// Operation that a store carries out on a set of charges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Checks all limits, and charges them if all allow.
    Acquire,
    /// Checks all limits, and changes nothing.
    Peek,
}

/// One key of a query with its limit and the cost to charge.
#[derive(Clone, Debug)]
pub struct Charge<'r> {
    /// The limit in force on the key.
    pub active: &'r ActiveLimit,
    /// Units to charge.
    pub cost: Cost,
    /// True if 0 units are charged in place of the cost: the limit, which has an overdraft, is only checked.
    pub is_check: bool,
    /// True if the limit is in shadow: it is evaluated and reported, but cannot refuse.
    pub shadow: bool,
    /// The start and end of the current calendar window, if the limit has one.
    pub edges: Option<Edges>,
    /// Instant, by the clock of a shared store, until which the key's state is known to exist there. If the
    /// store has none before that, it has lost it, and the key counts as used up.
    pub exists_until: Option<Wall>,
    /// True if the call is refused for good, whatever was used; the limit only has the form of one.
    pub(crate) refuses: bool,
    /// True if the rule sets the cost (`cost: 1`), so that settling with the real cost does not change it.
    pub counts_calls: bool,
    /// The index of the rule that made the charge, by which charges are merged. Stores ignore it.
    pub tag: u32,
    /// Rung that decides, and the answer if the store fails. A store in this process ignores it.
    pub policy: Policy,
    /// Terms of the lease or the sync of the limit on the rung of `policy`, if it has any
    /// ([`Rung::terms`](crate::policy::Rung::terms)).
    pub terms: Option<&'r LeaseTerms>,
    /// The name of the rule that made the charge. Stores cannot read it.
    pub(crate) rule: Option<&'r Arc<str>>,
    pub(crate) hash: KeyHash,
    key: Range<usize>,
    scope: usize,
}

/// The hash of a key, as a table of states computes it: the same table need not compute it again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyHash {
    /// The number of the table that computed it, under a secret of its own; 0 is none.
    pub owner: u32,
    /// The upper half.
    pub high: u64,
    /// The lower half.
    pub low: u32,
}

impl KeyHash {
    /// No hash.
    pub const NONE: Self = Self {
        owner: 0,
        high: 0,
        low: 0,
    };
}

/// A charge without its key.
#[derive(Clone, Copy, Debug)]
pub struct KeylessCharge<'r> {
    /// The limit in force.
    pub active: &'r ActiveLimit,
    /// Units to charge.
    pub cost: Cost,
}

impl<'r> Charge<'r> {
    /// The charge without its key.
    #[must_use]
    pub const fn keyless(&self) -> KeylessCharge<'r> {
        KeylessCharge {
            active: self.active,
            cost: self.cost,
        }
    }

    /// A charge whose key is passed separately: it has no rule, no shadow and no fallback.
    #[must_use]
    pub const fn alone(active: &'r ActiveLimit, cost: Cost) -> Self {
        Self {
            active,
            cost,
            is_check: false,
            shadow: false,
            edges: None,
            exists_until: None,
            refuses: false,
            counts_calls: false,
            tag: 0,
            policy: Policy::STRICT,
            terms: None,
            rule: None,
            hash: KeyHash::NONE,
            key: 0..0,
            scope: 0,
        }
    }

    /// The hash of the key, if its look-up computed one.
    #[must_use]
    pub const fn hash(&self) -> KeyHash {
        self.hash
    }

    /// Units to charge: the cost, or 0 for a check.
    #[must_use]
    pub const fn units(&self) -> u64 {
        if self.is_check { 0 } else { self.cost.get() }
    }

    /// Adds the units of another charge on the same key.
    pub const fn add(&mut self, other: &Self) {
        match (self.is_check, other.is_check) {
            (_, true) => {}
            (true, false) => (self.cost, self.is_check) = (other.cost, false),
            (false, false) => self.cost = self.cost.saturating_add(other.cost),
        }
    }

    /// The cost, if the rule set it.
    fn fixed(&self) -> Option<u64> {
        self.counts_calls.then_some(self.cost.get())
    }

    /// `now`, with what this charge's limit needs to know about time.
    #[must_use]
    pub const fn at(&self, now: Now) -> At {
        self.active.at(now, self.edges)
    }
}

/// All charges of one query, in file order of their rules, no key twice.
#[derive(Clone, Debug, Default)]
pub struct LimitSet<'r> {
    bytes: KeyBytes,
    charges: ShortList<Charge<'r>>,
    /// `None` if the query has one descriptor.
    origins: Option<Box<Origins>>,
    account: Account,
    unknown_plan: Option<&'r Arc<str>>,
}

/// A key of a set whose charge is still to come.
#[derive(Debug)]
pub(crate) struct BegunKey {
    start: usize,
    scope: usize,
}

/// Descriptors of a query for which the charges are.
#[derive(Clone, Debug)]
struct Origins {
    /// Number of descriptors of the query.
    descriptors: usize,
    pairs: Vec<DescriptorOrigin>,
}

/// Link from a charge to its descriptor.
#[derive(Clone, Copy, Debug)]
struct DescriptorOrigin {
    /// The descriptor's index in the query.
    descriptor: usize,
    /// The charge's index in the set.
    place: usize,
    /// Units that the rule set for this descriptor, in place of its own cost.
    fixed: Option<u64>,
}

impl<'r> LimitSet<'r> {
    /// A set without charges.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            bytes: KeyBytes::new(),
            charges: ShortList::new(),
            origins: None,
            account: Account::NONE,
            unknown_plan: None,
        }
    }

    /// A set of one limit that the call itself specified (`CL.THROTTLE`). Its keys are any bytes and
    /// never equal the keys of rules.
    #[must_use]
    pub fn ad_hoc(key: &[u8], active: &'r ActiveLimit, cost: Cost) -> Self {
        let mut set = Self::new();
        set.push(Charge::alone(active, cost), AD_HOC_SCOPE, |bytes| {
            push_value(bytes, Captured::Bytes(key));
            true
        });
        set
    }

    /// A set of only `charge`, on the key `bytes`. The first `scope` bytes are the key's scope.
    #[must_use]
    pub fn from_key_bytes(bytes: &[u8], scope: usize, charge: &Charge<'r>) -> Self {
        let mut set = Self::new();
        set.add(bytes, scope, charge);
        set
    }

    /// Adds `charge` on the key with these bytes.
    pub fn add(&mut self, bytes: &[u8], scope: usize, charge: &Charge<'r>) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.charges.push(Charge {
            key: start..self.bytes.len(),
            scope,
            hash: KeyHash::NONE,
            ..charge.clone()
        });
    }

    /// Sets whose part of scarce places the set takes up.
    pub const fn set_account(&mut self, account: Account) {
        self.account = account;
    }

    /// Account whose part of scarce places the set takes up.
    #[must_use]
    pub const fn account(&self) -> Account {
        self.account
    }

    pub(crate) const fn set_unknown_plan(&mut self, rule: &'r Arc<str>) {
        self.unknown_plan = Some(rule);
    }

    /// A rule for which the query named a plan that its domain does not have.
    #[must_use]
    pub const fn unknown_plan(&self) -> Option<&'r Arc<str>> {
        self.unknown_plan
    }

    /// Sets until when the state of a charge's key is known to exist on a shared store, by its index.
    pub fn set_exists_until(&mut self, place: usize, until: Option<Wall>) {
        if let Some(charge) = self.charges.get_mut(place) {
            charge.exists_until = until;
        }
    }

    /// Sets the cost of a charge, by its index.
    pub fn set_cost(&mut self, place: usize, cost: Cost) {
        if let Some(charge) = self.charges.get_mut(place) {
            charge.cost = cost;
        }
    }

    /// Keeps only the charges at these indices, which must ascend.
    pub fn keep(&mut self, places: &[usize]) {
        let mut place = 0;
        let mut charges = mem::take(&mut self.charges).into_vec();
        charges.retain(|_| {
            let is_kept = places.binary_search(&place).is_ok();
            place += 1;
            is_kept
        });
        self.charges = ShortList::Many(charges);
        if let Some(origins) = &mut self.origins {
            origins.pairs.retain_mut(|origin| {
                let place = places.binary_search(&origin.place);
                place.map(|place| origin.place = place).is_ok()
            });
        }
    }

    /// Returns true if one of the limits is on permits.
    #[must_use]
    pub fn has_permits(&self) -> bool {
        let mut charges = self.charges().iter();
        charges.any(|charge| charge.active.limit.lease().is_some())
    }

    /// The charges.
    #[must_use]
    pub fn charges(&self) -> &[Charge<'r>] {
        self.charges.as_slice()
    }

    /// The key of one of this set's charges.
    #[must_use]
    pub fn key(&self, charge: &Charge<'_>) -> Key<'_> {
        let bytes = self.bytes.get(charge.key.clone()).unwrap_or_default();
        Key::from_parts(bytes, charge.scope)
    }

    /// Returns true if all limits that are not in shadow allow, given the decisions on this set in its
    /// order.
    #[must_use]
    pub fn passes(&self, decisions: &[Decision]) -> bool {
        let mut each = self.charges().iter().zip(decisions);
        each.all(|(charge, decision)| decision.outcome.is_allow() || charge.shadow)
    }

    /// Combines the decisions on this set's charges, which are in the same order, into a verdict. Each
    /// decision gets the name of its charge's rule. A charge without a rule is left out.
    #[must_use]
    pub fn combine(&self, decisions: &[Decision]) -> Verdict {
        let decided = self.charges().iter().zip(decisions);
        Verdict::combine(decided.filter_map(named))
    }

    /// As [`LimitSet::combine`], but only for the charges of one descriptor, given by its index in the
    /// query. A charge that several descriptors share counts for each of them.
    #[must_use]
    pub fn combine_descriptor(&self, descriptor: usize, decisions: &[Decision]) -> Verdict {
        let Some(origins) = &self.origins else {
            return match descriptor {
                0 => self.combine(decisions),
                _ => Verdict::default(),
            };
        };
        let origins = origins.pairs.iter();
        let origins = origins.filter(|origin| origin.descriptor == descriptor);
        Verdict::combine(origins.filter_map(|DescriptorOrigin { place, .. }| {
            let decided = (self.charges().get(*place)?, decisions.get(*place)?);
            named(decided)
        }))
    }

    /// Number of descriptors of the query.
    #[must_use]
    pub fn descriptors(&self) -> usize {
        let origins = self.origins.as_deref();
        origins.map_or(1, |origins| origins.descriptors)
    }

    /// DescriptorOrigin of the cost of each charge.
    #[must_use]
    pub fn cost_origins(&self) -> Vec<CostOrigin> {
        let mut all = alloc::vec![CostOrigin::default(); self.charges().len()];
        match &self.origins {
            None => {
                for (one, charge) in all.iter_mut().zip(self.charges()) {
                    one.add(0, charge.fixed());
                }
            }
            Some(origins) => {
                for origin in &origins.pairs {
                    if let Some(one) = all.get_mut(origin.place) {
                        one.add(origin.descriptor, origin.fixed);
                    }
                }
            }
        }
        all
    }

    /// Adds a charge under a new key: `scope` followed by what `values` writes. If `values` returns false,
    /// nothing is added.
    #[inline]
    pub(crate) fn push(
        &mut self,
        charge: Charge<'r>,
        scope: &[u8],
        values: impl FnOnce(&mut KeyBytes) -> bool,
    ) {
        if let Some(key) = self.begin_key(scope, values) {
            self.end_key(key, charge);
        }
    }

    /// Adds a new key, whose charge has to follow: `scope` and what `values` writes. If `values` returns false,
    /// nothing is added.
    #[inline]
    pub(crate) fn begin_key(
        &mut self,
        scope: &[u8],
        values: impl FnOnce(&mut KeyBytes) -> bool,
    ) -> Option<BegunKey> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(scope);
        let key = BegunKey {
            start,
            scope: scope.len(),
        };
        if values(&mut self.bytes) {
            return Some(key);
        }
        self.drop_key(key);
        None
    }

    /// The bytes of a key whose charge is still to come.
    pub(crate) fn begun(&self, key: &BegunKey) -> &[u8] {
        self.bytes.get(key.start..).unwrap_or_default()
    }

    /// Removes a key for which there is no charge.
    #[expect(clippy::needless_pass_by_value, reason = "it is gone then")]
    pub(crate) fn drop_key(&mut self, key: BegunKey) {
        self.bytes.truncate(key.start);
    }

    /// Adds the charge of the last key.
    #[inline]
    pub(crate) fn end_key(&mut self, key: BegunKey, charge: Charge<'r>) {
        self.charges.push(Charge {
            key: key.start..self.bytes.len(),
            scope: key.scope,
            ..charge
        });
    }

    /// Sorts charges by tag, and merges charges on the same key by adding their costs; but however many
    /// descriptors a call has, it is one call, and takes its permits once. If descriptors choose different numbers
    /// for one key, the smaller limit applies: under it both would be allowed. `ends[i]` is the
    /// number of charges after descriptor `i` was resolved.
    pub(crate) fn merge(&mut self, ends: &[usize]) {
        let charges = mem::take(&mut self.charges).into_vec();
        let descriptor = |at: usize| ends.partition_point(|end| *end <= at);
        let charges = charges.into_iter().enumerate();
        let mut charges: Vec<_> = charges
            .map(|(at, charge)| (descriptor(at), charge))
            .collect();
        charges.sort_by_key(|(_, charge)| charge.tag);
        let bytes = &self.bytes;
        let mut merged: Vec<Charge<'r>> = Vec::with_capacity(charges.len());
        let mut places: BTreeMap<(u32, &[u8]), usize> = BTreeMap::new();
        let mut pairs = Vec::with_capacity(charges.len());
        for (descriptor, charge) in charges {
            let key = bytes.get(charge.key.clone()).unwrap_or_default();
            let place = places.entry((charge.tag, key)).or_insert(merged.len());
            let (mut fixed, place) = (charge.fixed(), *place);
            match merged.get_mut(place) {
                Some(other) => {
                    if charge.active.limit.max() < other.active.limit.max() {
                        other.active = charge.active;
                        (other.edges, other.terms) = (charge.edges, charge.terms);
                    }
                    match other.active.limit.lease() {
                        Some(_) => fixed = Some(0),
                        None => other.add(&charge),
                    }
                }
                None => merged.push(charge),
            }
            pairs.push(DescriptorOrigin {
                descriptor,
                place,
                fixed,
            });
        }
        self.charges = ShortList::Many(merged);
        self.origins = Some(Box::new(Origins {
            descriptors: ends.len(),
            pairs,
        }));
    }
}

/// A decision with the name of its rule; `None` if no rule made the charge.
fn named((charge, decision): (&Charge<'_>, &Decision)) -> Option<RuleDecision> {
    let mut decision = *decision;
    if charge.refuses {
        (decision.limit, decision.remaining) = (0, 0);
    }
    let rung = charge.policy.rung;
    let bound = charge
        .terms
        .and_then(|terms| NonZeroU64::new(terms.bound()));
    let is_shared = matches!(rung, Rung::Shares(_));
    Some(RuleDecision {
        rule: Arc::clone(charge.rule?),
        shadow: charge.shadow,
        cost: if charge.refuses {
            Cost::ONE
        } else {
            charge.cost
        },
        decision,
        rung: (bound.is_some() || is_shared).then_some(rung.name()),
        bound,
    })
}

/// A borrowed view of what a store has to charge.
#[derive(Clone, Copy, Debug)]
pub enum Charges<'a, 'r> {
    /// One charge on one key, without building a set.
    One(Key<'a>, &'a Charge<'r>),
    /// All charges of a query.
    Set(&'a LimitSet<'r>),
    /// All charges of a query, at least one of them a permit. An acquire holds the permits under this
    /// id.
    Permits(&'a LimitSet<'r>, &'a HoldId),
}

impl<'a, 'r> Charges<'a, 'r> {
    /// The charges of a set, held under `id` if that is given.
    #[must_use]
    pub const fn new(set: &'a LimitSet<'r>, id: Option<&'a HoldId>) -> Self {
        match id {
            Some(id) => Self::Permits(set, id),
            None => Self::Set(set),
        }
    }

    /// The set; for one charge, a new set is built.
    #[must_use]
    pub fn set(&self) -> Cow<'a, LimitSet<'r>> {
        match *self {
            Self::One(key, charge) => {
                let scope = key.scope().len();
                Cow::Owned(LimitSet::from_key_bytes(key.as_bytes(), scope, charge))
            }
            Self::Set(set) | Self::Permits(set, _) => Cow::Borrowed(set),
        }
    }
}

/// Characters of a ban's reason that are kept.
pub const MAX_REASON: usize = 200;

/// An operator's action on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action<'a> {
    /// Forget the key's use, its refusals and its ban.
    Forgive,
    /// Ban the key for this long, whatever its limit says; and why, for those who look at the ban. A limiter keeps
    /// 200 characters of that.
    Ban(Duration, Option<&'a str>),
    /// Lift the key's ban and forget its refusals. Its use stays.
    Lift,
    /// Give the cost of each charge back, to what was refused first ([`refund`]).
    Refund,
    /// Correct an estimate ([`adjust`](crate::adjustment::adjust)). A key whose limit is no fixed window, or on which
    /// that was done before, stays as it is.
    Adjust(Adjustment),
    /// Bring the key's use under the limit that applies to it now, as its next call would. No key counts as changed.
    Carry,
}

impl Action<'_> {
    /// The same with no more of a reason than is kept.
    #[must_use]
    pub fn bounded(self) -> Self {
        match self {
            Self::Ban(length, Some(reason)) => {
                let end = reason.char_indices().nth(MAX_REASON);
                Self::Ban(length, reason.get(..end.map_or(reason.len(), |(at, _)| at)))
            }
            other => other,
        }
    }
}

/// Bans a key for `length` from now on, whatever its limit says: no turn of a waiting caller comes before
/// the ban is over.
pub fn ban(state: &mut State, limit: &Limit, at: &At, length: Duration) {
    state.settle(limit, at);
    let now = at.now;
    let record = state.ban.get_or_insert_default();
    let record: &mut BanRecord = record;
    // Its quiet time so far is measured by the length of the ban before.
    if let Some(ban) = limit.ban() {
        Ban::clamp(record, now.monotonic);
        ban.settle(record, now.monotonic);
    }
    record.length = length;
    record.until = now.monotonic.saturating_add(length);
    record.quiet_since = record.until;
    state.postpone_turns(&limit.engine(), at);
}

/// Lifts the ban on a key and forgets its refusals; its use stays. Returns whether there was a ban.
pub fn lift(state: &mut State, now: Now) -> bool {
    let stood = state.banned_for(now.monotonic).is_some();
    state.ban = None;
    stood
}
