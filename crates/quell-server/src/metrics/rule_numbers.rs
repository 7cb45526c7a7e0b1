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
use super::Tally;

/// The counts of a rule, in the order of [`OUTCOMES`]: acquires, then peeks.
pub(crate) type RuleTally = Tally<8>;

/// The outcomes of a decision, as the label has them.
pub(crate) const OUTCOMES: [&str; 4] = ["allow", "deny", "shadow_allow", "shadow_deny"];

/// Place in a [`RuleTally`] at which a decision is counted.
pub(crate) fn place(operation: Operation, is_allow: bool, shadow: bool) -> usize {
    let peek = usize::from(operation == Operation::Peek) * OUTCOMES.len();
    peek + usize::from(shadow) * 2 + usize::from(!is_allow)
}

/// The numbers of a rule.
#[derive(Debug, Default)]
pub(crate) struct RuleNumbers {
    pub(crate) tally: RuleTally,
    /// Acquires that were answered degraded: so seldom that they need no tally.
    degraded: Number,
    /// For a limit that is learned, its value in the last answer; 0 before.
    learned: Number,
    /// Acquires that named a plan that the domain does not have.
    unknown_plans: Number,
}

/// Counts of answers under a rule; peeks are not among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RuleAnswers {
    pub(crate) asked: u64,
    /// By a rule in shadow nobody is.
    pub(crate) refused: u64,
    pub(crate) degraded: u64,
}

impl RuleNumbers {
    fn add(&self, place: usize, degraded: bool) {
        self.tally.add(place, 1);
        if degraded {
            self.degraded.add(1);
        }
    }

    fn take_over(&self, other: &Self) {
        self.tally.take_over(&other.tally);
        self.degraded.add(other.degraded.get());
        self.unknown_plans.add(other.unknown_plans.get());
    }
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

/// The numbers of the rules of a domain, by their names.
type ByRule = HashMap<Arc<str>, Arc<RuleNumbers>>;

/// Numbers of the rules in force.
#[derive(Debug, Default)]
pub(crate) struct RuleTallies {
    table: ArcSwap<Table>,
    /// Decisions of rules that the table does not have yet, during a reload. Calls wait for this lock, so
    /// it is held only briefly, however many rules there are.
    early: Mutex<BTreeMap<Name, RuleNumbers>>,
    /// The table before this one, so that the next reload frees it, and not a call that read it last. Its
    /// lock keeps two reloads apart.
    before: Mutex<Arc<Table>>,
}

#[derive(Debug, Default)]
pub(crate) struct Table {
    by_limit: HashMap<LimitId, Arc<RuleNumbers>, BuildHasherDefault<IdHasher>>,
    by_name: BTreeMap<Name, Arc<RuleNumbers>>,
    /// The same without names of one's own, for limits that are stored for single keys: these come and go.
    by_domain: HashMap<Arc<str>, ByRule>,
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
                numbers.take_over(&counted);
            }
        }
        let last = self.table.swap(table);
        drop(early);
        *before = last;
    }

    /// Counts the decision of a rule, and whether it is one of an acquire that was answered degraded.
    pub(crate) fn count(
        &self,
        operation: Operation,
        domain: &str,
        charge: &Charge<'_>,
        decided: &RuleDecision,
        degraded: bool,
    ) {
        let place = place(
            operation,
            decided.decision.outcome.is_allow(),
            decided.shadow,
        );
        let table = self.table.load();
        let numbers = table.by_limit.get(&charge.active.id);
        let Some(numbers) = numbers.or_else(|| table.find(domain, &decided.rule)) else {
            return self.count_early((domain, &decided.rule), |numbers| {
                numbers.add(place, degraded);
            });
        };
        numbers.add(place, degraded);
        if charge.active.limit.is_learned() {
            numbers.learned.set(decided.decision.limit);
        }
    }

    /// Counts an acquire that named a plan that the domain does not have, under a rule whose calls name one.
    #[cold]
    pub(crate) fn count_unknown_plan(&self, domain: &str, rule: &Arc<str>) {
        match self.table.load().find(domain, rule) {
            Some(numbers) => numbers.unknown_plans.add(1),
            None => self.count_early((domain, rule), |numbers| numbers.unknown_plans.add(1)),
        }
    }

    #[cold]
    fn count_early(&self, (domain, rule): (&str, &Arc<str>), count: impl FnOnce(&RuleNumbers)) {
        let mut early = self.early.lock();
        // Looked up under the lock: the table may have been swapped by now.
        match self.table.load().find(domain, rule) {
            Some(numbers) => count(numbers),
            None => {
                let name = (Arc::from(domain), Arc::clone(rule));
                count(early.entry(name).or_default());
            }
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

    /// Counts of answers since the start under the rule of this name, `domain/rule`; zero if there is none.
    /// Rules whose names read the same, since a domain or a rule has a `/` in its own, are added up.
    pub(crate) fn answers(&self, name: &str) -> RuleAnswers {
        let table = self.table.load();
        let mut answers = RuleAnswers::default();
        for (at, slash) in name.match_indices('/') {
            let (domain, rule) = name.split_at(at);
            let rule = rule.strip_prefix(slash).unwrap_or_default();
            if let Some(numbers) = table.by_name.get(&(domain.into(), rule.into())) {
                let tally = &numbers.tally;
                answers.asked += tally.total(0..OUTCOMES.len());
                answers.refused += tally.sum(place(Operation::Acquire, false, false));
                answers.degraded += numbers.degraded.get();
            }
        }
        answers
    }

    /// The learned limits of rules that were asked about, by name.
    pub(crate) fn learned(&self) -> Vec<(Name, u64)> {
        let all = self.rules().into_iter();
        let all = all.map(|(name, numbers)| (name, numbers.learned.get()));
        all.filter(|(_, limit)| *limit > 0).collect()
    }

    /// Acquires that named a plan that the domain does not have, of rules with any.
    pub(crate) fn unknown_plans(&self) -> Vec<(Name, u64)> {
        let all = self.rules().into_iter();
        let all = all.map(|(name, numbers)| (name, numbers.unknown_plans.get()));
        all.filter(|(_, count)| *count > 0).collect()
    }

    /// All domains, by name.
    pub(crate) fn domains(&self) -> BTreeMap<Arc<str>, Arc<DomainTally>> {
        self.table.load().domains.clone()
    }
}

impl Table {
    fn find(&self, domain: &str, rule: &str) -> Option<&Arc<RuleNumbers>> {
        self.by_domain.get(domain)?.get(rule)
    }

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
            let (domain, rule) = (Arc::clone(&name.0), Arc::clone(&name.1));
            let of_domain = table.by_domain.entry(domain).or_default();
            of_domain.insert(rule, Arc::clone(&numbers));
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
    use quell_core::limit::{ActiveLimit, Limit, LimitPlace};
    use quell_core::rule::LimitIds;
    use quell_core::time::{Monotonic, Now};

    use super::*;

    fn active(id: u32) -> ActiveLimit {
        ActiveLimit {
            id: LimitId(id),
            limit: Limit::per_second(1).build().unwrap(),
            since: Monotonic::ORIGIN,
            place: LimitPlace::NONE,
        }
    }

    fn decided(rule: &str, outcome: Outcome, shadow: bool) -> RuleDecision {
        RuleDecision {
            rule: Arc::from(rule),
            shadow,
            cost: quell_core::cost::Cost::ONE,
            decision: Decision {
                outcome,
                limit: 1,
                remaining: 0,
                reset_after: std::time::Duration::ZERO,
                delay: std::time::Duration::ZERO,
                banned: false,
            },
            rung: None,
            bound: None,
        }
    }

    fn rules(text: &str) -> RuleSet {
        let domains = quell_rules::parse_str("test", text).unwrap().domains;
        let ids = LimitIds::default();
        RuleSet::default().reload(domains, Now::default(), &ids).0
    }

    #[test]
    fn what_decided_before_its_reload_was_over_is_counted() {
        let rules = rules("domain: d\nrules: [{name: a, rate: 1/s}]");
        let active = active(9_999);
        let charge = Charge::alone(&active, quell_core::cost::Cost::ONE);
        let tallies = RuleTallies::default();
        let count = |rule| {
            let decided = decided(rule, Outcome::Allow, false);
            tallies.count(Operation::Acquire, "d", &charge, &decided, true);
        };
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
        assert_eq!(tallies.answers("d/a").degraded, 2);
    }

    /// Rules of one name in two domains are two, and a rule that comes again begins again.
    #[test]
    fn answers_are_those_of_a_rule_of_one_domain() {
        let text = "domain: d\nrules: [{name: a, rate: 1/s}]\n";
        let both = rules(&format!(
            "{text}---\ndomain: e\nrules: [{{name: a, rate: 1/s}}]\n"
        ));
        let active = active(9_999);
        let charge = Charge::alone(&active, quell_core::cost::Cost::ONE);
        let tallies = RuleTallies::default();
        tallies.adopt(&both);
        let count = |operation, domain: &str, outcome, shadow| {
            let decided = decided("a", outcome, shadow);
            tallies.count(operation, domain, &charge, &decided, false);
        };
        let deny = Outcome::Deny(quell_core::decision::RetryAfter::Never);
        count(Operation::Acquire, "d", Outcome::Allow, false);
        count(Operation::Acquire, "d", deny, false);
        count(Operation::Acquire, "d", deny, true);
        count(Operation::Peek, "d", deny, false);
        count(Operation::Acquire, "e", deny, false);
        let answers = |asked, refused| RuleAnswers {
            asked,
            refused,
            degraded: 0,
        };
        assert_eq!(tallies.answers("d/a"), answers(3, 1));
        assert_eq!(tallies.answers("e/a"), answers(1, 1));
        for none in ["a", "d/b", "f/a", "d/", "/a"] {
            assert_eq!(tallies.answers(none), answers(0, 0), "{none}");
        }
        tallies.adopt(&rules(text));
        assert_eq!(tallies.answers("e/a"), answers(0, 0));
        tallies.adopt(&both);
        assert_eq!(
            (tallies.answers("d/a"), tallies.answers("e/a")),
            (answers(3, 1), answers(0, 0))
        );
    }
}
