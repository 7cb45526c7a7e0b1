//! Limiters with a fallback store, and helpers for their calls.

use std::sync::Arc;

use quell::clock::ManualClock;
use quell::{Cost, Limit, Limiter, Query, Verdict};
use quell_core::on_failure::OnFailure;
use quell_core::rule::DomainRules;
use quell_redis::{FallbackStore, RedisStore, RedisStoreBuilder};

use crate::limits::{START, at, rules};
use crate::patience::{PATIENCE, until_it};
use crate::server::Server;

/// A node: a limiter on a store with a fallback, and its clock, which stands still.
pub(crate) struct Node {
    pub(crate) limiter: Limiter<FallbackStore<RedisStore>>,
    pub(crate) clock: Arc<ManualClock>,
}

pub(crate) fn share(nodes: u32) -> Option<OnFailure> {
    let nodes = nodes.try_into().unwrap();
    Some(OnFailure::Share { nodes })
}

/// One rule per limit, all with the same declared answer.
pub(crate) fn declaring(limits: &[Limit], on_failure: Option<OnFailure>) -> Vec<DomainRules> {
    let mut rules = rules(limits);
    for rule in rules.iter_mut().flat_map(|domain| &mut domain.rules) {
        rule.policy.on_failure = on_failure;
    }
    rules
}

impl Node {
    pub(crate) fn new(store: RedisStoreBuilder, rules: Vec<DomainRules>) -> Self {
        let clock = Arc::new(ManualClock::new(at(START)));
        let store = FallbackStore::new(store.build(), Arc::clone(&clock) as _);
        let builder = Limiter::builder(store).clock(Arc::clone(&clock) as _);
        let limiter = builder.build();
        limiter.set_rules(rules).unwrap();
        Self { limiter, clock }
    }

    /// Asks for `user`, and fails if that takes for ever.
    pub(crate) async fn ask(&self, user: &str, cost: u64) -> Verdict {
        let query = Query::new("d").entry("user", user.to_owned());
        let query = query.cost(Cost::new(cost).unwrap());
        let asked = tokio::time::timeout(PATIENCE, self.limiter.try_acquire(&query));
        asked.await.expect("no answer for ever").unwrap()
    }

    pub(crate) async fn peek(&self, user: &str) -> Verdict {
        let query = Query::new("d").entry("user", user.to_owned());
        self.limiter.peek(&query).await.unwrap()
    }

    /// Asks until an answer is not degraded: the store is back, without a restart.
    pub(crate) async fn until_back(&self, user: &str) -> Verdict {
        self.until(user, false).await
    }

    /// Asks until an answer is degraded.
    pub(crate) async fn until_gone(&self, user: &str) -> Verdict {
        self.until(user, true).await
    }

    async fn until(&self, user: &str, degraded: bool) -> Verdict {
        let mut last = None;
        until_it("the store comes or goes", async || {
            let verdict = self.ask(user, 1).await;
            let is_so = verdict.degraded == degraded;
            last = Some(verdict);
            is_so
        })
        .await;
        last.expect("it was asked")
    }

    /// Waits until everything that it admitted by itself is charged to the store.
    pub(crate) async fn until_paid(&self) {
        let guard = self.limiter.store();
        until_it("what is owed is paid", async || {
            guard.fallback_numbers().owed == 0
        })
        .await;
    }

    /// Calls that were tried on the store so far.
    pub(crate) fn trips(&self) -> u64 {
        self.limiter.store().store().numbers().calls
    }
}

/// Scripts that a server ran so far, those that it did not know included.
pub(crate) fn scripts(server: &Server) -> u64 {
    let text = server.command(&["INFO", "commandstats"]);
    let calls = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let count = line.and_then(|line| line.split(',').next());
        count.map_or(0, |count| count.parse::<u64>().unwrap())
    };
    calls("cmdstat_evalsha:calls=") + calls("cmdstat_eval:calls=")
}
