//! Rule set: an immutable snapshot of the rules in force, which turns a query into charges.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

use smol_str::SmolStr;

use super::index::{Index, OverrideIndex, conditions};
use super::numbers::{Numbers, StoredChoice, StoredOverrides};
use super::pattern::DescriptorReader;
use super::plans::NamedPlan;
use super::selector::Selector;
use super::{OnMissing, Reserve, Rule};
use crate::algorithm::Edges;
use crate::algorithm::fixed_window::Calendar;
use crate::charge::{Charge, KeyHash, LimitSet};
use crate::cost::Cost;
use crate::descriptor::{Descriptor, Query};
use crate::key::KeyBytes;
use crate::limit::{ActiveLimit, Limit, LimitId, LimitPlace};
use crate::policy::Policy;
use crate::refusal_page::RefusalPage;
use crate::time::{Now, Wall};
use crate::verdict::Verdict;

mod naming;

use naming::{Naming, activate};

/// Computes the edges of calendar windows.
pub trait CalendarEdges {
    /// The edges of the window that contains `wall`, and of the next.
    fn edges(&self, calendar: &Calendar, wall: Wall) -> Edges;
}

/// Time for which a limit is remembered after its last rule is gone. If the rule comes back by then, for
/// example because a file was half-written, its bans and its use are still there.
pub const REMEMBERED: Duration = Duration::from_secs(10 * 60);

/// The rules of one domain, in file order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainRules {
    /// The domain.
    pub domain: Arc<str>,
    /// Its rules, with unique names.
    pub rules: Vec<Rule>,
    /// Choice of the rule that limits a descriptor. Without it, all rules apply whose matchers hold.
    pub selector: Option<Selector>,
}

impl DomainRules {
    /// The rules of `domain`.
    #[must_use]
    pub fn new(domain: &str, rules: Vec<Rule>) -> Self {
        Self {
            domain: Arc::from(domain),
            rules,
            selector: None,
        }
    }
}

/// Generates ids for limits, each once.
#[derive(Debug, Default)]
pub struct LimitIds(AtomicU32);

impl LimitIds {
    /// A generator whose first id is `first`.
    #[must_use]
    pub const fn starting_at(first: u32) -> Self {
        Self(AtomicU32::new(first))
    }

    /// An id that was not used before.
    pub fn next_id(&self) -> LimitId {
        LimitId(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

/// Changes that a store has to know when rules come into force.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Limits that are new, and limits that were dropped and are back.
    pub added: Vec<ActiveLimit>,
    /// Limits that were replaced by another.
    pub replaced: Vec<ReplacedLimit>,
    /// Limits that are in no rule any more. They may come back within [`REMEMBERED`].
    pub dropped: Vec<DroppedLimit>,
    /// Limits that are gone, of a rule that is there and has no limit any more. What was used under them counts
    /// again if the rule has one before it has drained.
    pub idle: Vec<DroppedLimit>,
    /// Limits that are gone for good, with all state under them.
    pub removed: Vec<LimitId>,
}

impl Changes {
    /// Adds changes that come after these.
    pub fn add(&mut self, later: Self) {
        self.added.extend(later.added);
        self.replaced.extend(later.replaced);
        self.dropped.extend(later.dropped);
        self.idle.extend(later.idle);
        self.removed.extend(later.removed);
    }
}

/// A limit that is in no rule any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DroppedLimit {
    /// The limit that was in force.
    pub id: LimitId,
    /// Instant at which it was dropped.
    pub at: Now,
}

impl DroppedLimit {
    /// Returns true if the limit can no longer come back.
    #[must_use]
    pub fn is_over(&self, now: Now) -> bool {
        now.monotonic.since(self.at.monotonic) > REMEMBERED
    }
}

/// A limit that was replaced by another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplacedLimit {
    /// The limit that was in force.
    pub from: LimitId,
    /// The limit that is in force now.
    pub to: LimitId,
    /// Instant at which it was replaced: no earlier than any charge under `from`. `None` while the change
    /// is under way and callers may still begin under `from`; the instant follows.
    pub at: Option<Now>,
}

/// The rules in force, which `resolve` reads; replaced as a whole.
///
/// A copy is cheap: it is the same rules.
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    domains: Arc<BTreeMap<Arc<str>, Domain>>,
    dropped: Arc<DroppedLimits>,
    /// The numbers that are stored for single keys; `None` if there are none.
    stored: Option<Arc<dyn StoredOverrides>>,
}

/// Dropped limits, by their places.
type DroppedLimits = BTreeMap<LimitPlace, (ActiveLimit, DroppedLimit)>;

/// The rules of one domain in file order, with their index.
#[derive(Clone, Debug, Default)]
struct Domain {
    rules: Vec<ActiveRule>,
    index: Index,
    selector: Option<Selector>,
    /// The rules, by their position, with a limit that needs a follow-up and is not in shadow.
    follow_ups: Vec<usize>,
    reserve: Option<Arc<Reserve>>,
}

/// A rule whose limits have ids.
#[derive(Clone, Debug)]
pub struct ActiveRule {
    rule: Rule,
    scope: KeyBytes,
    /// The scope of the keys under which calls are refused, of which no state is kept.
    refused: KeyBytes,
    base: Numbers,
    /// The numbers of plans, in the order of their names.
    plans: Vec<(Arc<str>, Numbers)>,
    overrides: Vec<ActiveOverride>,
    index: OverrideIndex,
}

/// An override whose limit has an id. There may be hundreds of thousands, so all that a decision reads of one lies
/// in two neighbouring cache lines.
#[derive(Clone, Debug)]
struct ActiveOverride {
    numbers: Numbers,
    /// [`Override::only_value`].
    value: Option<SmolStr>,
}

impl ActiveRule {
    /// The rule.
    #[must_use]
    pub const fn rule(&self) -> &Rule {
        &self.rule
    }

    /// The numbers for a descriptor, for whose key this is stored, and whether it names a plan that there is not.
    #[inline]
    fn numbers<'r>(
        &'r self,
        stored: Option<StoredChoice<'r>>,
        reader: &DescriptorReader<'_>,
    ) -> (&'r Numbers, bool) {
        match stored {
            Some(StoredChoice::Numbers(numbers)) => (numbers, false),
            Some(StoredChoice::WithoutPlan) => (self.without_plan(reader), false),
            None => self.chosen(reader),
        }
    }

    /// The numbers that the rules choose for a descriptor, and whether it names a plan that there is not.
    fn chosen(&self, reader: &DescriptorReader<'_>) -> (&Numbers, bool) {
        let mut is_unknown = false;
        if let Some(plans) = &self.rule.plans {
            match plans.named(reader, self.rule.empty) {
                NamedPlan::Plan(plan) => {
                    if let Some(numbers) = self.plan(plan) {
                        return (numbers, false);
                    }
                }
                NamedPlan::Nothing => {}
                NamedPlan::Unknown(_) => is_unknown = true,
            }
        }
        (self.without_plan(reader), is_unknown)
    }

    /// The numbers of the first override that applies, or the rule's own.
    fn without_plan(&self, reader: &DescriptorReader<'_>) -> &Numbers {
        let value = |place: usize| self.overrides.get(place)?.value.as_ref();
        let place = self.index.find(&self.rule, reader, value);
        let entry = place.and_then(|place| self.overrides.get(place));
        entry.map_or(&self.base, |entry| &entry.numbers)
    }

    /// The same without those that refuse; `None` if the rule has no limit of its own then.
    fn chosen_limit(&self, reader: &DescriptorReader<'_>) -> Option<&Numbers> {
        let (chosen, _) = self.chosen(reader);
        let mut all = [chosen, &self.base].into_iter();
        all.find(|numbers| !numbers.refuses() && numbers.active.is_some())
    }

    /// The numbers of a plan for this rule; `None` if it has none.
    #[must_use]
    pub fn plan(&self, name: &str) -> Option<&Numbers> {
        let plan = self.plans.binary_search_by(|(plan, _)| (**plan).cmp(name));
        Some(&self.plans.get(plan.ok()?)?.1)
    }

    /// Adds the charge that the rule makes for a descriptor, if it applies and has a limit.
    fn add_charge<'r>(
        &'r self,
        tag: u32,
        (reader, descriptor): (&DescriptorReader<'_>, &Descriptor<'_>),
        at: &Resolution<'r, '_, impl CalendarEdges>,
        set: &mut LimitSet<'r>,
    ) {
        let rule = &self.rule;
        // Whether the descriptor has what the key needs, `capture` tells.
        if rule.check_all(&rule.matchers, reader).is_err() {
            return;
        }
        let needs_all = rule.on_missing != OnMissing::SharedKey;
        let Some(key) = set.begin_key(&self.scope, |bytes| {
            rule.capture(reader, bytes) || !needs_all
        }) else {
            return;
        };
        let (stored, hash) = match at.stored {
            Some(stored) => stored.find(set.begun(&key), at.now.wall),
            None => (None, KeyHash::NONE),
        };
        let (numbers, is_unknown) = self.numbers(stored, reader);
        if is_unknown {
            set.set_unknown_plan(&rule.name);
        }
        let Some(active) = &numbers.active else {
            return set.drop_key(key);
        };
        if numbers.refuses() {
            set.drop_key(key);
            let charge = self.charge(numbers, active, Cost::MAX, tag, at);
            return set.push(charge, &self.refused, |bytes| {
                rule.capture(reader, bytes);
                true
            });
        }
        if descriptor.is_check && !active.limit.has_overdraft() {
            return set.drop_key(key);
        }
        let own = rule.own_cost(&active.limit);
        let mut charge = self.charge(numbers, active, own.unwrap_or(descriptor.cost), tag, at);
        charge.counts_calls = own.is_some();
        charge.is_check = descriptor.is_check;
        charge.hash = hash;
        set.end_key(key, charge);
    }

    /// A charge of `cost` under the numbers that apply.
    fn charge<'r>(
        &'r self,
        numbers: &'r Numbers,
        active: &'r ActiveLimit,
        cost: Cost,
        tag: u32,
        at: &Resolution<'r, '_, impl CalendarEdges>,
    ) -> Charge<'r> {
        let mut charge = Charge::alone(active, cost);
        let unit = active.limit.calendar();
        charge.edges = unit.map(|unit| at.calendar.edges(unit, at.now.wall));
        charge.shadow = self.rule.shadow;
        charge.tag = tag;
        charge.policy = self.rule.policy;
        if numbers.refuses() {
            charge.refuses = true;
            // No store is asked, and no outage lets the call through.
            charge.policy = Policy::LOCAL;
        }
        charge.terms = numbers.terms();
        charge.rule = Some(&self.rule.name);
        charge
    }

    /// Returns true if a limit of the rule needs a follow-up, unless it is in shadow.
    fn needs_follow_up(&self) -> bool {
        !self.rule.shadow && self.limits().any(|active| active.limit.needs_follow_up())
    }

    /// All limits of the rule, its plans and its overrides.
    pub fn limits(&self) -> impl Iterator<Item = &ActiveLimit> {
        self.all_numbers().filter_map(Numbers::active)
    }

    fn all_numbers(&self) -> impl Iterator<Item = &Numbers> {
        let plans = self.plans.iter().map(|(_, numbers)| numbers);
        let overrides = self.overrides.iter().map(|entry| &entry.numbers);
        overrides.chain(plans).chain([&self.base])
    }

    /// The limit to which keys go whose numbers are gone: the rule's own, or another one of the rule.
    fn heir(&self) -> Option<&ActiveLimit> {
        let mut all = [&self.base].into_iter().chain(self.all_numbers());
        all.find(|numbers| !numbers.refuses() && numbers.active.is_some())?
            .active()
    }
}

/// Parts of a resolution that are the same for all rules.
struct Resolution<'r, 'c, C> {
    now: Now,
    calendar: &'c C,
    stored: Option<&'r dyn StoredOverrides>,
}

impl RuleSet {
    /// Puts `domains` into force in place of `self`, and returns what that changes for a store.
    ///
    /// A rule is the same if its domain and name are. An unchanged limit keeps its id; a changed one
    /// replaces the old one, and its use is carried over. Overrides are the same if their `when` is; the
    /// keys of a removed override go to the rule's own limit. A limit that is in no rule any more is
    /// still the same if it is back within [`REMEMBERED`]. If a domain occurs several times, its rules
    /// are added up.
    #[must_use]
    #[doc(hidden)]
    pub fn reload(&self, domains: Vec<DomainRules>, now: Now, ids: &LimitIds) -> (Self, Changes) {
        let mut changes = Changes::default();
        let mut in_force: BTreeMap<Arc<str>, Domain> = BTreeMap::new();
        let mut dropped = DroppedLimits::clone(&self.dropped);
        dropped.retain(|_, (_, dropped)| {
            if dropped.is_over(now) {
                changes.removed.push(dropped.id);
            }
            !dropped.is_over(now)
        });
        let mut naming = Naming::new(now, ids, Arc::new(dropped));
        naming.changes = changes;
        for DomainRules {
            domain,
            rules,
            selector,
        } in domains
        {
            let before = self.domains.get(&domain);
            let by_name: BTreeMap<&str, &ActiveRule> = before
                .into_iter()
                .flat_map(|before| &before.rules)
                .map(|old| (&*old.rule.name, old))
                .collect();
            let rules = rules.into_iter().map(|rule| {
                let old = by_name.get(&*rule.name).copied();
                activate(&domain, rule, old, &mut naming)
            });
            let rules: Vec<ActiveRule> = rules.collect();
            let domain = in_force.entry(domain).or_default();
            domain.rules.extend(rules);
            domain.selector = domain.selector.take().or(selector);
        }
        for domain in in_force.values_mut() {
            let rules = domain.rules.iter();
            domain.index = Index::new(rules.map(|active| conditions(&active.rule.matchers)));
            let rules = domain.rules.iter().enumerate();
            let rules = rules.filter(|(_, rule)| rule.needs_follow_up());
            domain.follow_ups = rules.map(|(position, _)| position).collect();
            let mut rules = domain.rules.iter();
            domain.reserve = rules.find_map(|active| active.rule.reserve.clone());
        }
        for (domain, old) in &*self.domains {
            let names = in_force.get(domain).into_iter().flat_map(|new| &new.rules);
            let names: BTreeSet<&str> = names.map(|new| &*new.rule.name).collect();
            let gone = old.rules.iter();
            let gone = gone.filter(|old| !names.contains(&*old.rule.name));
            for active in gone.flat_map(ActiveRule::limits) {
                naming.retire(active, None);
            }
        }
        let next = Self {
            domains: Arc::new(in_force),
            dropped: naming.dropped,
            stored: None,
        };
        (next, naming.changes)
    }

    /// The same rules with other numbers for single keys.
    #[must_use]
    #[doc(hidden)]
    pub fn with_stored(&self, stored: Option<Arc<dyn StoredOverrides>>) -> Self {
        Self {
            stored,
            ..self.clone()
        }
    }

    /// The bytes of the key of a rule for a descriptor; `None` if there is no such rule, or the descriptor lacks what
    /// the key needs.
    #[must_use]
    pub fn key_of(
        &self,
        domain: &str,
        rule: &str,
        descriptor: &Descriptor<'_>,
    ) -> Option<KeyBytes> {
        let mut rules = self.domain(domain).iter();
        let in_force = rules.find(|active| *active.rule.name == *rule)?;
        let mut key = in_force.scope.clone();
        let has_all = in_force
            .rule
            .capture(&DescriptorReader::new(descriptor), &mut key);
        has_all.then_some(key)
    }

    /// Treats limits from before a restart, older ones first, as dropped at `now`, unless a rule has a
    /// limit in the same place.
    pub fn remember(&mut self, limits: &[ActiveLimit], now: Now) {
        let in_force = self.all().flat_map(|(_, rule)| rule.limits());
        let places: BTreeSet<LimitPlace> = in_force.map(|limit| limit.place).collect();
        for limit in limits {
            let (place, id) = (limit.place, limit.id);
            if !place.is_none() && !places.contains(&place) {
                let dropped = DroppedLimit { id, at: now };
                Arc::make_mut(&mut self.dropped).insert(place, (limit.clone(), dropped));
            }
        }
    }

    /// The rules of `domain` in file order; none if there is no such domain.
    #[must_use]
    pub fn domain(&self, domain: &str) -> &[ActiveRule] {
        self.domains.get(domain).map_or(&[], |domain| &domain.rules)
    }

    /// The limit of a rule, by its name, for a descriptor at an instant; `None` if there is no such rule in force, or
    /// it has no limit for this descriptor.
    ///
    /// Cost: linear in the rules of the domain.
    #[must_use]
    pub fn limit_of(
        &self,
        domain: &str,
        rule: &str,
        descriptor: &Descriptor<'_>,
        wall: Wall,
    ) -> Option<&Limit> {
        let mut rules = self.domain(domain).iter();
        let in_force = rules.find(|active| *active.rule.name == *rule)?;
        let numbers = self.numbers_for(in_force, &DescriptorReader::new(descriptor), wall);
        Some(&numbers.active()?.limit)
    }

    /// The numbers of a rule for a descriptor that has what its key needs.
    #[must_use]
    pub fn numbers_for<'r>(
        &'r self,
        in_force: &'r ActiveRule,
        reader: &DescriptorReader<'_>,
        wall: Wall,
    ) -> &'r Numbers {
        let find = |stored: &'r dyn StoredOverrides, key: &[u8]| stored.find(key, wall).0;
        self.numbers_by(in_force, reader, find)
    }

    /// The same without numbers of a stored override that are for its first window alone.
    #[must_use]
    pub fn lasting_numbers_for<'r>(
        &'r self,
        in_force: &'r ActiveRule,
        reader: &DescriptorReader<'_>,
        wall: Wall,
    ) -> &'r Numbers {
        let find = |stored: &'r dyn StoredOverrides, key: &[u8]| stored.find_lasting(key, wall);
        self.numbers_by(in_force, reader, find)
    }

    fn numbers_by<'r>(
        &'r self,
        in_force: &'r ActiveRule,
        reader: &DescriptorReader<'_>,
        find: impl FnOnce(&'r dyn StoredOverrides, &[u8]) -> Option<StoredChoice<'r>>,
    ) -> &'r Numbers {
        let stored = self.stored.as_deref().and_then(|stored| {
            let mut key = in_force.scope.clone();
            in_force.rule.capture(reader, &mut key);
            find(stored, &key)
        });
        in_force.numbers(stored, reader).0
    }

    /// The instants at which numbers that are stored for a [key](Self::key_of) begin or cease to apply.
    #[must_use]
    pub fn stored_instants(&self, key: &[u8]) -> Vec<Wall> {
        let stored = self.stored.as_deref();
        stored.map_or_else(Vec::new, |stored| stored.instants(key))
    }

    /// The page of the rule that refused a query, which is the binding one.
    ///
    /// `None` if the query is allowed, if the rule has no page, and if the refusal is
    /// [degraded](Verdict::degraded): then the caller is within its limits, as far as anybody knows.
    #[must_use]
    pub fn refusal_page(&self, query: &Query<'_>, verdict: &Verdict) -> Option<&RefusalPage> {
        if verdict.is_allow() || verdict.degraded {
            return None;
        }
        let name = &verdict.binding_rule()?.rule;
        let mut rules = self.domain(query.domain()).iter();
        let active = rules.find(|active| active.rule.name == *name)?;
        active.rule.refusal_page.as_deref()
    }

    /// Returns true if the rules have the domain.
    #[must_use]
    pub fn has_domain(&self, domain: &str) -> bool {
        self.domains.contains_key(domain)
    }

    /// Choice of the rules of `domain`, if it is not by their matchers.
    #[must_use]
    pub fn selector(&self, domain: &str) -> Option<&Selector> {
        self.domains.get(domain)?.selector.as_ref()
    }

    /// The entries by which calls of `domain` reserve and settle, if it has rules with
    /// [`reserve`](Rule::reserve).
    #[must_use]
    pub fn reserve(&self, domain: &str) -> Option<&Reserve> {
        self.domains.get(domain)?.reserve.as_deref()
    }

    /// The charges of `query` under rules with [`reserve`](Rule::reserve).
    #[must_use]
    pub fn resolve_reserved<'r>(
        &'r self,
        query: &Query<'_>,
        now: Now,
        calendar: &impl CalendarEdges,
    ) -> LimitSet<'r> {
        let mut set = self.resolve(query, now, calendar);
        let rules = self.domain(query.domain());
        let reserves = |charge: &Charge<'_>| {
            let active = rules.get(charge.tag as usize);
            active.is_some_and(|active| active.rule.reserve.is_some())
        };
        let charges = set.charges().iter().enumerate();
        let places = charges.filter(|(_, charge)| reserves(charge));
        let places: Vec<usize> = places.map(|(place, _)| place).collect();
        set.keep(&places);
        set
    }

    /// All domains, by name.
    pub fn domains(&self) -> impl Iterator<Item = &str> {
        self.domains.keys().map(|domain| &**domain)
    }

    /// All rules with their domains.
    pub fn all(&self) -> impl Iterator<Item = (&str, &ActiveRule)> {
        self.domains
            .iter()
            .flat_map(|(name, domain)| domain.rules.iter().map(move |rule| (&**name, rule)))
    }

    /// The charges of `query`; none if no rule applies.
    ///
    /// Cost: linear in the rules of the domain that may apply (see `rule/index.rs`).
    #[must_use]
    pub fn resolve<'r>(
        &'r self,
        query: &Query<'_>,
        now: Now,
        calendar: &impl CalendarEdges,
    ) -> LimitSet<'r> {
        let mut set = LimitSet::new();
        self.resolve_into(query, now, calendar, &mut set);
        set
    }

    /// As [`RuleSet::resolve`], into `set`, which must be empty: a set is some 300 bytes, and would be
    /// copied when it is returned.
    pub fn resolve_into<'r>(
        &'r self,
        query: &Query<'_>,
        now: Now,
        calendar: &impl CalendarEdges,
        set: &mut LimitSet<'r>,
    ) {
        let Some(Domain {
            rules,
            index,
            selector,
            ..
        }) = self.domains.get(query.domain())
        else {
            return;
        };
        set.set_account(query.account());
        let at = Resolution {
            now,
            calendar,
            stored: self.stored.as_deref(),
        };
        if let Some(selector) = selector {
            return select_into(selector, rules, query, &at, set);
        }
        let add = |descriptor: &Descriptor<'_>, set: &mut LimitSet<'r>| {
            let reader = DescriptorReader::new(descriptor);
            for tag in index.candidates(&reader) {
                if let Some(in_force) = rules.get(tag as usize) {
                    in_force.add_charge(tag, (&reader, descriptor), &at, set);
                }
            }
        };
        if let [descriptor] = query.descriptors() {
            return add(descriptor, set);
        }
        let ends = query.descriptors().iter().map(|descriptor| {
            add(descriptor, set);
            set.charges().len()
        });
        let ends: Vec<usize> = ends.collect();
        set.merge(&ends);
    }

    /// The first rule whose limit on `query` needs its caller to do something once it is allowed
    /// ([`Limit::needs_follow_up`](crate::limit::Limit::needs_follow_up)), with that limit; rules in
    /// shadow aside. Stored overrides do not change that: their algorithm is the rule's.
    ///
    /// Cost: linear in the rules of the domain that have such limits.
    #[must_use]
    pub fn follow_up(&self, query: &Query<'_>) -> Option<(&Rule, &Limit)> {
        let Domain {
            rules, follow_ups, ..
        } = self.domains.get(query.domain())?;
        let mut rules = follow_ups
            .iter()
            .filter_map(|position| rules.get(*position));
        rules.find_map(|in_force| {
            let applying = |descriptor| {
                let reader = DescriptorReader::new(descriptor);
                in_force.rule.applies(&reader).ok()?;
                let limit = &in_force.chosen(&reader).0.active()?.limit;
                limit.needs_follow_up().then_some(limit)
            };
            let limit = query.descriptors().iter().find_map(applying)?;
            Some((&in_force.rule, limit))
        })
    }

    /// The charge that one rule would make for `descriptor`, whatever its matchers say: this is how
    /// administration names a key. `None` if there is no such rule or it is unlimited.
    #[must_use]
    pub fn select(
        &self,
        domain: &str,
        rule: &str,
        descriptor: &Descriptor<'_>,
        now: Now,
        calendar: &impl CalendarEdges,
    ) -> Option<LimitSet<'_>> {
        let rules = self.domain(domain);
        let index = rules.iter().position(|other| &*other.rule.name == rule)?;
        let in_force = rules.get(index)?;
        let reader = DescriptorReader::new(descriptor);
        let numbers = self.numbers_for(in_force, &reader, now.wall);
        // A key that is refused keeps the state that it had under the limits of its rule.
        let numbers = match numbers.refuses() {
            true => in_force.chosen_limit(&reader)?,
            false => numbers,
        };
        let active = numbers.active()?;
        let at = Resolution {
            now,
            calendar,
            stored: None,
        };
        let mut set = LimitSet::new();
        let tag = u32::try_from(index).unwrap_or(u32::MAX);
        let charge = in_force.charge(numbers, active, descriptor.cost, tag, &at);
        set.push(charge, &in_force.scope, |bytes| {
            in_force.rule.capture(&reader, bytes);
            true
        });
        Some(set)
    }
}

/// The charges of `query` under the rules that `selector` chooses.
fn select_into<'r>(
    selector: &Selector,
    rules: &'r [ActiveRule],
    query: &Query<'_>,
    at: &Resolution<'r, '_, impl CalendarEdges>,
    set: &mut LimitSet<'r>,
) {
    let descriptors = query.descriptors();
    let mut ends = vec![0; descriptors.len()];
    selector.select(descriptors, &mut |place, rule| {
        let (Some(descriptor), Some(in_force)) = (descriptors.get(place), rules.get(rule)) else {
            return;
        };
        let reader = DescriptorReader::new(descriptor);
        let tag = u32::try_from(rule).unwrap_or(u32::MAX);
        in_force.add_charge(tag, (&reader, descriptor), at, set);
        if let Some(ends) = ends.get_mut(place..) {
            ends.fill(set.charges().len());
        }
    });
    if descriptors.len() > 1 {
        set.merge(&ends);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::Override;
    use crate::rule::index::SLOT_BYTES;

    /// Memory of an override in the rules in force: its description, what decisions need, and its place in
    /// the index, of which a quarter is free.
    #[test]
    fn an_override_takes_at_most_208_bytes() {
        let index = SLOT_BYTES + SLOT_BYTES.div_ceil(3);
        let all = size_of::<Override>() + size_of::<ActiveOverride>() + index;
        assert!(all <= 208, "{all}");
        // Both of its cache lines are neighbours.
        assert!(size_of::<ActiveOverride>() <= 128);
    }
}
