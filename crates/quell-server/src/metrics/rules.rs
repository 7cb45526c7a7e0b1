//! The numbers of each rule. A decision finds them by its limit, without comparing names.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use quell::{Operation, RuleDecision, Verdict};
use quell_core::charge::Charge;
use quell_core::limit::LimitId;
use quell_core::rule::RuleSet;

use super::Number;
use super::tally::Tally;

/// The counts of a rule, in the order of [`OUTCOMES`]: acquires, then peeks.
pub(crate) type RuleTally = Tally<8>;

/// The outcomes of a decision, as the label has them.
pub(crate) const OUTCOMES: [&str; 4] = ["allow", "deny", "shadow_allow", "shadow_deny"];

/// Where a decision is counted in a [`RuleTally`].
pub(crate) fn place(operation: Operation, is_allow: bool, shadow: bool) -> usize {
    let peek = usize::from(operation == Operation::Peek) * OUTCOMES.len();
    peek + usize::from(shadow) * 2 + usize::from(!is_allow)
}

/// The numbers of a rule.
#[derive(Debug, Default)]
pub(crate) struct RuleNumbers {
    pub(crate) tally: RuleTally,
    /// For a limit that is learned, its value in the last answer; 0 before.
    learned: Number,
}

/// The counts of a domain.
pub(crate) type DomainTally = Tally<4>;

/// Queries that were allowed.
pub(crate) const ALLOWED: usize = 0;
/// Queries that were denied.
pub(crate) const DENIED: usize = 1;
/// Queries that no rule decided; they are among those allowed.
pub(crate) const UNMATCHED: usize = 2;
/// Queries that were allowed and that a rule in shadow would have refused.
pub(crate) const WOULD_REFUSE: usize = 3;

type Name = (Arc<str>, Arc<str>);

/// Numbers of the rules in force.
#[derive(Debug, Default)]
pub(crate) struct RuleTallies {
    table: ArcSwap<Table>,
    /// Decisions of rules that the table does not have yet, during a reload. Calls wait for this lock, so
    /// it is held only briefly, however many rules there are.
    early: Mutex<BTreeMap<Name, RuleTally>>,
    /// The table before this one, so that the next reload frees it, and not a call that read it last. Its
    /// lock keeps two reloads apart.
    before: Mutex<Arc<Table>>,
}

#[derive(Debug, Default)]
pub(crate) struct Table {
    by_limit: HashMap<LimitId, Arc<RuleNumbers>, BuildHasherDefault<IdHasher>>,
    by_name: BTreeMap<Name, Arc<RuleNumbers>>,
    domains: BTreeMap<Arc<str>, Arc<DomainTally>>,
}

impl RuleTallies {
    /// Takes over the rules in force: their numbers stay, those of other rules are dropped.
    pub(crate) fn adopt(&self, rules: &RuleSet) {
        let mut before = self.before.lock();
        let table = Arc::new(self.table.load().reload(rules));
        let mut early = self.early.lock();
        for (name, counted) in std::mem::take(&mut *early) {
            if let Some(numbers) = table.by_name.get(&name) {
                numbers.tally.take_over(&counted);
            }
        }
        let last = self.table.swap(table);
        drop(early);
        *before = last;
    }

    /// Counts the decision of a rule.
    pub(crate) fn count(
        &self,
        operation: Operation,
        domain: &str,
        charge: &Charge<'_>,
        decided: &RuleDecision,
    ) {
        let place = place(
            operation,
            decided.decision.outcome.is_allow(),
            decided.shadow,
        );
        let table = self.table.load();
        let Some(numbers) = table.by_limit.get(&charge.active.id) else {
            return self.count_early(domain, decided, place);
        };
        numbers.tally.add(place, 1);
        if charge.active.limit.is_learned() {
            numbers.learned.set(decided.decision.limit);
        }
    }

    #[cold]
    fn count_early(&self, domain: &str, decided: &RuleDecision, place: usize) {
        let mut early = self.early.lock();
        let name = (Arc::from(domain), Arc::clone(&decided.rule));
        // Looked up under the lock: the table may have been swapped by now.
        match self.table.load().by_name.get(&name) {
            Some(numbers) => numbers.tally.add(place, 1),
            None => early.entry(name).or_default().add(place, 1),
        }
    }

    /// Counts a query of a domain.
    pub(crate) fn count_query(&self, domain: &str, verdict: &Verdict) {
        if let Some(tally) = self.table.load().domains.get(domain) {
            let is_allow = verdict.is_allow();
            tally.add(if is_allow { ALLOWED } else { DENIED }, 1);
            if verdict.is_unmatched() {
                tally.add(UNMATCHED, 1);
            }
            if is_allow && verdict.would_refuse() {
                tally.add(WOULD_REFUSE, 1);
            }
        }
    }

    /// All rules, by name.
    pub(crate) fn rules(&self) -> BTreeMap<Name, Arc<RuleNumbers>> {
        self.table.load().by_name.clone()
    }

    /// The learned limits of rules that were asked about, by name.
    pub(crate) fn learned(&self) -> Vec<(Name, u64)> {
        let all = self.rules().into_iter();
        let all = all.map(|(name, numbers)| (name, numbers.learned.get()));
        all.filter(|(_, limit)| *limit > 0).collect()
    }

    /// All domains, by name.
    pub(crate) fn domains(&self) -> BTreeMap<Arc<str>, Arc<DomainTally>> {
        self.table.load().domains.clone()
    }
}

impl Table {
    /// The table of `rules`, in place of this one.
    fn reload(&self, rules: &RuleSet) -> Self {
        let mut table = Self::default();
        for domain in rules.domains() {
            let known = self.domains.get(domain).cloned();
            let domain = Arc::from(domain);
            table.domains.insert(domain, known.unwrap_or_default());
        }
        for (domain, in_force) in rules.all() {
            let name = (Arc::from(domain), Arc::clone(&in_force.rule().name));
            let numbers = self.by_name.get(&name).cloned().unwrap_or_default();
            let limits = in_force.limits();
            let by_limit = limits.map(|active| (active.id, Arc::clone(&numbers)));
            table.by_limit.extend(by_limit);
            if !in_force.limits().any(|active| active.limit.is_learned()) {
                numbers.learned.set(0);
            }
            table.by_name.insert(name, numbers);
        }
        table
    }
}

/// Hashes the id of a limit, a number that the server itself chose, or what is hashed already: multiplying
/// is enough.
#[derive(Debug, Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        let mixed = self.0 ^ u64::from(number);
        self.0 = mixed.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32);
    }
}

#[cfg(test)]
mod tests {
    use quell_core::decision::{Decision, Outcome};
    use quell_core::limit::{ActiveLimit, Limit};
    use quell_core::rule::LimitIds;
    use quell_core::time::{Monotonic, Now};

    use super::*;

    #[test]
    fn what_decided_before_its_reload_was_over_is_counted() {
        let text = "domain: d\nrules: [{name: a, rate: 1/s}]";
        let domains = quell_rules::parse_str("test", text).unwrap().domains;
        let ids = LimitIds::default();
        let (rules, _) = RuleSet::default().reload(domains, Now::default(), &ids);
        let active = ActiveLimit {
            id: LimitId(9_999),
            limit: Limit::per_second(1).build().unwrap(),
            since: Monotonic::ORIGIN,
            place: Arc::default(),
        };
        let charge = Charge::alone(&active, quell_core::cost::Cost::ONE);
        let decided = |rule: &str| RuleDecision {
            rule: Arc::from(rule),
            shadow: false,
            cost: quell_core::cost::Cost::ONE,
            decision: Decision {
                outcome: Outcome::Allow,
                limit: 1,
                remaining: 0,
                reset_after: std::time::Duration::ZERO,
                delay: std::time::Duration::ZERO,
                banned: false,
            },
            rung: None,
            bound: None,
        };
        let tallies = RuleTallies::default();
        let count = |rule| tallies.count(Operation::Acquire, "d", &charge, &decided(rule));
        count("a");
        count("gone");
        tallies.adopt(&rules);
        count("a");
        tallies.adopt(&rules);
        let counted: Vec<_> = tallies
            .rules()
            .into_iter()
            .map(|((_, name), numbers)| (name, numbers.tally.sum(0)))
            .collect();
        assert_eq!(counted, [(Arc::from("a"), 2)]);
    }
}
