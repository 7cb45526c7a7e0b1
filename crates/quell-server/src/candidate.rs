//! Candidate: rules that run in shadow beside those in force, to see what they would refuse.
//!
//! They decide every call that was answered, after it was answered, on a memory of their own: nothing that
//! is in force knows of them. What a server refuses and they would allow is charged to them as well, as it
//! would be. They see the calls of this server alone, and are gone when it stops.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use quell::clock::Clock;
use quell::observer::{Event, Observer};
use quell::store::memory::MemoryStore;
use quell::{Limiter, Operation, Query, Verdict};
use quell_core::policy::Policy;
use quell_core::rule::{DomainRules, RuleSet};
use quell_core::time::Now;
use quell_rules::RuleChanges;

pub(crate) use quell_host::candidate::{About, CandidateStatus};
use quell_protocol::http::CandidateCounts;

use crate::key_hash::KeyNaming;
use crate::store::ServerStore;
use crate::top::{Refused, SinceStart};

pub(crate) mod of_fleet;

/// The most keys with a state of their own; some 100 bytes each at most. Further ones share states, and are
/// refused sooner.
const MAX_KEYS: usize = 500_000;

thread_local! {
    /// True if the call that a candidate looks at was allowed.
    static WAS_ALLOWED: Cell<bool> = const { Cell::new(false) };
}

/// Keys that are shown.
const MAX_SHOWN: usize = 50;

/// Rules that run in shadow.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub(crate) about: About,
    unchanged: Unchanged,
    limiter: Limiter<ServerStore>,
    tally: Arc<CandidateTally>,
}

/// The rules of a candidate that are those in force: by domain, their names. They decide as they do in force, so
/// they are not decided again.
#[derive(Debug, Default)]
pub(crate) struct Unchanged(HashMap<Arc<str>, HashSet<Arc<str>>>);

impl Unchanged {
    /// Rules of `candidate` that are in force.
    pub(crate) fn between(in_force: &RuleSet, candidate: &[DomainRules]) -> Self {
        let before: Vec<DomainRules> = { in_force.domains() }
            .map(|domain| {
                let rules = in_force.domain(domain).iter().map(|active| active.rule());
                DomainRules::new(domain, rules.cloned().collect())
            })
            .collect();
        let changes = RuleChanges::between_domains(&before, candidate);
        let changed: HashSet<(&str, &str)> = { changes.rules().iter() }
            .map(|change| (&*change.domain, &*change.rule))
            .collect();
        let unchanged = candidate.iter().map(|of| {
            let names = of.rules.iter().map(|rule| &rule.name);
            let names = names.filter(|name| !changed.contains(&(&*of.domain, &***name)));
            (Arc::clone(&of.domain), names.cloned().collect())
        });
        Self(unchanged.collect())
    }

    fn has(&self, domain: &str, rule: &str) -> bool {
        self.0.get(domain).is_some_and(|rules| rules.contains(rule))
    }

    /// Returns true if a call is refused whatever the other rules say: by one of these, or by a ban, which
    /// outlasts a change of the rules.
    fn refuse(&self, domain: &str, verdict: &Verdict) -> bool {
        let denials = { verdict.decisions.iter() }
            .filter(|decided| !decided.shadow && !decided.decision.outcome.is_allow());
        { denials }.any(|decided| decided.decision.banned || self.has(domain, &decided.rule))
    }
}

/// Counts what a candidate decides.
#[derive(Debug)]
struct CandidateTally {
    calls: AtomicU64,
    would_refuse: AtomicU64,
    would_allow: AtomicU64,
    unanswered: AtomicU64,
    /// The keys of calls that were allowed and that it would refuse.
    keys: SinceStart,
}

/// The candidate of a server, if there is one.
#[derive(Debug)]
pub(crate) struct Candidates {
    /// Looked at by each call, so it is cheaper than the pointer.
    is_running: AtomicBool,
    running: ArcSwapOption<Candidate>,
    clock: Arc<dyn Clock>,
    naming: KeyNaming,
}

impl Candidates {
    pub(crate) fn new(clock: &Arc<dyn Clock>, naming: KeyNaming) -> Arc<Self> {
        Arc::new(Self {
            is_running: AtomicBool::new(false),
            running: ArcSwapOption::empty(),
            clock: Arc::clone(clock),
            naming,
        })
    }

    /// Starts one in place of the one before.
    ///
    /// # Errors
    /// Why its rules cannot be applied.
    pub(crate) fn start(
        &self,
        about: About,
        domains: Vec<DomainRules>,
        unchanged: Unchanged,
    ) -> Result<Arc<Candidate>, String> {
        let rules = (domains, unchanged);
        let candidate = Candidate::new(about, rules, Arc::clone(&self.clock), self.naming)?;
        let candidate = Arc::new(candidate);
        self.running.store(Some(Arc::clone(&candidate)));
        self.is_running.store(true, Ordering::Release);
        Ok(candidate)
    }

    /// Ends the one that runs.
    pub(crate) fn stop(&self) -> Option<Arc<Candidate>> {
        self.is_running.store(false, Ordering::Release);
        self.running.swap(None)
    }

    /// Returns true if `candidate` is the one that runs.
    fn runs(&self, candidate: &Arc<Candidate>) -> bool {
        self.running()
            .is_some_and(|running| Arc::ptr_eq(&running, candidate))
    }

    pub(crate) fn running(&self) -> Option<Arc<Candidate>> {
        self.running.load_full()
    }

    /// Shows a call that was answered to the candidate, if there is one.
    #[inline]
    pub(crate) fn note(&self, query: &Query<'_>, verdict: &Verdict, now: Now) {
        if self.is_running.load(Ordering::Acquire)
            && let Some(candidate) = &*self.running.load()
        {
            candidate.note(query, verdict, now);
        }
    }
}

impl Candidate {
    fn new(
        about: About,
        (mut domains, unchanged): (Vec<DomainRules>, Unchanged),
        clock: Arc<dyn Clock>,
        naming: KeyNaming,
    ) -> Result<Self, String> {
        for domain in &mut domains {
            let name = &domain.domain;
            domain.rules.retain(|rule| !unchanged.has(name, &rule.name));
        }
        for rule in domains.iter_mut().flat_map(|domain| &mut domain.rules) {
            // In memory, whatever shares the limit of the rules in force.
            rule.policy = Policy::STRICT;
        }
        let tally = Arc::new(CandidateTally {
            calls: AtomicU64::new(0),
            would_refuse: AtomicU64::new(0),
            would_allow: AtomicU64::new(0),
            unanswered: AtomicU64::new(0),
            keys: SinceStart::new(naming),
        });
        let observer: Arc<CandidateTally> = Arc::clone(&tally);
        let store = ServerStore::Memory(MemoryStore::with(MAX_KEYS, naming.secret));
        let limiter = Limiter::builder(store)
            .clock(clock)
            .observer(observer)
            .build();
        limiter
            .set_rules(domains)
            .map_err(|error| error.to_string())?;
        Ok(Self {
            about,
            unchanged,
            limiter,
            tally,
        })
    }

    fn note(&self, query: &Query<'_>, verdict: &Verdict, now: Now) {
        if self.unchanged.refuse(query.domain(), verdict) {
            self.tally.calls.fetch_add(1, Ordering::Relaxed);
            return;
        }
        WAS_ALLOWED.set(verdict.is_allow());
        let answer = self.limiter.ask_at_once(Operation::Acquire, query, now);
        if !matches!(answer, Ok(Some(_))) {
            self.tally.unanswered.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn counts(&self) -> CandidateCounts {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        CandidateCounts {
            calls: of(&self.tally.calls),
            would_refuse: of(&self.tally.would_refuse),
            would_allow: of(&self.tally.would_allow),
            unanswered: of(&self.tally.unanswered),
        }
    }

    /// The keys of calls that were allowed and that it would refuse, most often first.
    fn keys(&self) -> Vec<Refused> {
        self.tally.keys.list()
    }

    pub(crate) fn status(&self) -> CandidateStatus {
        let keys = self.keys();
        let keys = keys.iter();
        let keys = keys.filter_map(|key| key.body(self.tally.keys.is_hashed()));
        CandidateStatus {
            about: self.about.clone(),
            counts: self.counts(),
            keys: keys.take(MAX_SHOWN).collect(),
            nodes: None,
        }
    }

    /// Frees the memory of some states at rest.
    pub(crate) fn sweep(&self, round: usize) {
        let store = self.limiter.store().memory();
        store.sweep(store.shard_count().div_ceil(round), self.limiter.now());
    }
}

impl Observer for CandidateTally {
    fn observe(&self, event: &Event<'_>) {
        let Event::Query { set, verdict, .. } = event else {
            return;
        };
        let add = |count: &AtomicU64| count.fetch_add(1, Ordering::Relaxed);
        add(&self.calls);
        match (WAS_ALLOWED.get(), verdict.is_allow()) {
            (true, false) => {
                add(&self.would_refuse);
                for (charge, decided) in set.charges().iter().zip(&verdict.decisions) {
                    if !decided.shadow && !decided.decision.outcome.is_allow() {
                        self.keys.note(set.key(charge).as_bytes());
                    }
                }
            }
            (false, true) => {
                add(&self.would_allow);
            }
            (true, true) | (false, false) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt as _;
    use quell::clock::ManualClock;
    use quell::store::Action;
    use quell::store::memory::HashKey;
    use quell_rules::parse_str;

    use super::*;

    #[test]
    fn a_candidate_counts_what_it_would_decide_otherwise() {
        let clock = Arc::new(ManualClock::new(Now::from_nanos(1)));
        let shared: Arc<dyn Clock> = Arc::clone(&clock) as Arc<dyn Clock>;
        let naming = KeyNaming {
            secret: HashKey([1, 2]),
            is_hashed: false,
        };
        let candidates = Candidates::new(&shared, naming);
        let in_force = Limiter::builder(MemoryStore::new()).clock(shared).build();
        let before = "domain: shop\nrules:\n  - { name: api, per: [user], rate: 1/h, burst: 3 }\n  \
                      - { name: same, per: [peer], rate: 1/h, burst: 1 }";
        let other = "keys: [ann, eve], rate: 1000/s, burst: 2, rung: shares, cluster_size: 2";
        let text = before.replace("rate: 1/h, burst: 3", other);
        let parse = |text: &str| parse_str("candidate", text).unwrap().domains;
        let mut both = parse(before);
        both.extend(parse("domain: bank\nrules: [{ name: any, rate: 9/s }]"));
        in_force.set_rules(both).unwrap();
        let ask = |domain: &'static str, entry: &'static str, value: &'static str| {
            let query = Query::new(domain).entry(entry, value);
            let verdict = in_force.ask_at_once(Operation::Acquire, &query, clock.now());
            let verdict = verdict.unwrap().unwrap();
            candidates.note(&query, &verdict, clock.now());
            verdict.is_allow()
        };
        assert!(ask("shop", "user", "eve") && candidates.running().is_none());

        let domains = parse(&text);
        let unchanged = Unchanged::between(&in_force.rules(), &domains);
        candidates
            .start(About::default(), domains, unchanged)
            .unwrap();
        let allowed = [(); 4].map(|()| ask("shop", "user", "ann"));
        assert_eq!(allowed, [true, true, true, false]);
        // A rule that stays as it is refuses in both, and nothing if it refuses nobody in force: whatever became of
        // its keys meanwhile.
        assert!(ask("shop", "peer", "x") && !ask("shop", "peer", "x"));
        let by_hand = |action| {
            let entries = Query::new("shop").entry("peer", "x");
            let done = in_force.administer(&entries, action);
            done.now_or_never().unwrap().unwrap()
        };
        by_hand(Action::Forgive);
        assert!(ask("shop", "peer", "x"));
        // Who is banned stays so under other rules.
        let eve = Query::new("shop").entry("user", "eve");
        let ban = Action::Ban(Duration::from_secs(60), None);
        in_force
            .administer(&eve, ban)
            .now_or_never()
            .unwrap()
            .unwrap();
        assert!(!ask("shop", "user", "eve"));
        ask("bank", "user", "ann");
        let candidate = candidates.stop().unwrap();
        ask("shop", "user", "ann");
        let expected = CandidateCounts {
            calls: 8,
            would_refuse: 1,
            would_allow: 0,
            unanswered: 1,
        };
        assert_eq!(candidate.counts(), expected);
        let keys = candidate.keys();
        assert_eq!((keys.len(), keys[0].at_least, keys[0].at_most), (1, 1, 1));
    }
}
