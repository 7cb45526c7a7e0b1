//! Rule tests: scenarios run on a limiter over a store of the server, on the clock of the test runner.

use std::collections::VecDeque;
use std::fmt::{self, Display};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quell::clock::{Clock, SystemClock};
use quell::store::memory::MemoryStore;
use quell::store::{AdminStore, Finished, HoldStore, StoreError};
use quell::{Limiter, RulesError};
use quell_core::charge::{Action, Operation};
use quell_core::claim::Claim;
use quell_core::descriptor::Query;
use quell_core::end_hold::Ending;
use quell_core::hold::HoldId;
use quell_core::policy::Rung;
use quell_core::rule::DomainRules;
use quell_core::time::Now;
use quell_core::verdict::Verdict;
pub use quell_redis::StoreUrl;
use quell_redis::{Failure, FallbackStore, RedisStore};
use quell_rules::scenario::{self, EndAnswer, FileReport, Scenarios, Subject};
use quell_store::leased::LeasedStore;
use quell_store::rungs::RungStore;
use tokio::runtime::Runtime;

/// Longest time for one call to a store: longer than in a server, since nobody waits for a test.
const STORE_TIMEOUT: Duration = Duration::from_secs(10);

/// Reason why tests cannot run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubjectError {
    /// The system gives no runtime.
    #[error("cannot start a runtime")]
    Runtime(#[source] io::Error),
    /// The store cannot be reached.
    #[error("the store {url} does not answer")]
    Store {
        /// Its URL.
        url: Box<StoreUrl>,
        /// Reason why not.
        #[source]
        failure: Failure,
    },
}

/// A store that tests run on.
pub trait TestStore: AdminStore + HoldStore {
    /// The unit in which it counts time.
    const UNIT: Duration = Duration::from_nanos(1);

    /// Removes the keys of a test.
    fn clean_up(&self) -> impl Future<Output = Result<(), Failure>> {
        std::future::ready(Ok(()))
    }
}

impl TestStore for MemoryStore {}

impl TestStore for RedisStore {
    const UNIT: Duration = Self::UNIT;

    fn clean_up(&self) -> impl Future<Output = Result<(), Failure>> {
        self.forget_test_keys()
    }
}

/// Rules over a store. Each test has keys of its own, which are removed when it ends.
pub struct OnStore<S: TestStore> {
    runtime: Runtime,
    /// Makes a store without keys.
    empty: Box<dyn Fn() -> S>,
    limiter: Limiter<S>,
    /// Told if keys of a test stay.
    leftover: fn(&str),
}

impl<S: TestStore> fmt::Debug for OnStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnStore").finish_non_exhaustive()
    }
}

/// Checks whether servers that share the store at `url` can apply these rules, as far as that is known
/// without asking it: a store counts up to some number exactly, and holds so many permits of a key.
///
/// # Errors
/// The first rule that they cannot apply, with what to write.
pub fn check_shared(url: &StoreUrl, mut domains: Vec<DomainRules>) -> Result<(), RulesError> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let store = RedisStore::builder(url.clone()).build();
    let shared = FallbackStore::new(store, Arc::clone(&clock));
    let rungs = RungStore::new(LeasedStore::new(shared, clock), MemoryStore::new());
    // Whether the servers are nodes of a fleet is not known.
    let rules = domains.iter_mut().flat_map(|domain| &mut domain.rules);
    for rule in rules.filter(|rule| matches!(rule.policy.rung, Rung::Shares(_))) {
        rule.policy.rung = Rung::Local;
    }
    Limiter::new(rungs).set_rules(domains)
}

/// Runs the tests of a file: on the store at `shared` if there is one, under keys that nobody else has, else in
/// memory. `leftover` is told if keys of a test stay.
///
/// # Errors
/// If no runtime can be started, or the store does not answer.
pub fn run(
    scenarios: &Scenarios,
    shared: Option<&StoreUrl>,
    leftover: fn(&str),
) -> Result<FileReport, SubjectError> {
    Ok(match shared {
        None => scenario::run(scenarios, &mut OnStore::new(MemoryStore::new)?),
        Some(url) => scenario::run(scenarios, &mut OnStore::shared(url, leftover)?),
    })
}

impl OnStore<RedisStore> {
    /// Rules over a store that servers share, under keys that nobody else has: named after this process,
    /// the time and a count.
    ///
    /// # Errors
    /// If the store does not answer.
    pub fn shared(url: &StoreUrl, leftover: fn(&str)) -> Result<Self, SubjectError> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let nanos = since.unwrap_or_default().as_nanos();
        let (place, count) = (url.clone(), AtomicU64::new(0));
        let mut shared = Self::new(move || {
            let count = count.fetch_add(1, Ordering::Relaxed);
            RedisStore::builder(place.clone())
                .test_keys(&format!("{}-{nanos}-{count}", std::process::id()))
                .test_isolation()
                .timeout(STORE_TIMEOUT)
                .build()
        })?;
        shared.leftover = leftover;
        let answers = shared.runtime.block_on(shared.limiter.store().ping());
        answers.map_err(|failure| SubjectError::Store {
            url: Box::new(url.clone()),
            failure,
        })?;
        Ok(shared)
    }
}

impl<S: TestStore> OnStore<S> {
    /// Rules over the stores that `empty` makes.
    ///
    /// # Errors
    /// If no runtime can be started.
    pub fn new(empty: impl Fn() -> S + 'static) -> Result<Self, SubjectError> {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build();
        Ok(Self {
            runtime: runtime.map_err(SubjectError::Runtime)?,
            limiter: Limiter::new(empty()),
            empty: Box::new(empty),
            leftover: |_| {},
        })
    }

    fn wait<T, E: Display>(&self, answer: impl Future<Output = Result<T, E>>) -> Result<T, String> {
        // A box, so that the runtime is compiled once for each type of answer, not of future.
        let answer: Pin<Box<dyn Future<Output = Result<T, E>> + '_>> = Box::pin(answer);
        let answer = self.runtime.block_on(answer);
        answer.map_err(|error| error.to_string())
    }
}

impl<S: TestStore> Subject for OnStore<S> {
    fn reset(&mut self, _now: Now) -> Result<(), String> {
        self.wait(self.limiter.store().clean_up())?;
        self.limiter = Limiter::new((self.empty)());
        Ok(())
    }

    fn set_rules(&mut self, mut domains: Vec<DomainRules>, now: Now) -> Result<(), String> {
        // A test has no fleet: its node has the whole limit.
        let rules = domains.iter_mut().flat_map(|domain| &mut domain.rules);
        for rule in rules.filter(|rule| matches!(rule.policy.rung, Rung::Shares(_))) {
            rule.policy.rung = Rung::Strict;
        }
        let set = self.limiter.set_rules_at(domains, now);
        set.map_err(|error| error.to_string())
    }

    fn unit(&self) -> Duration {
        S::UNIT
    }

    fn ask(
        &mut self,
        operation: Operation,
        query: &Query<'_>,
        now: Now,
    ) -> Result<Verdict, String> {
        self.wait(self.limiter.ask(operation, query, now))
    }

    fn hold(&mut self, claim: &Claim<'_>, query: &Query<'_>, now: Now) -> Result<Verdict, String> {
        self.wait(self.limiter.hold_at(query, claim, now))
    }

    fn end(&mut self, id: &HoldId, ending: Ending, now: Now) -> Result<EndAnswer, String> {
        let finished = self.wait(self.limiter.end_at(id, ending, now))?;
        let Some(finished) = finished else {
            return Ok(EndAnswer {
                outcome: "unknown",
                repeated: false,
            });
        };
        self.wait(move_up(self.limiter.store(), &finished, now))?;
        Ok(EndAnswer {
            outcome: finished.status.name(),
            repeated: finished.repeated,
        })
    }

    fn administer(
        &mut self,
        rule: Option<&str>,
        query: &Query<'_>,
        action: Action<'_>,
        now: Now,
    ) -> Result<usize, String> {
        let (limiter, domain) = (&self.limiter, query.domain());
        self.wait(async {
            match (rule, query.descriptors()) {
                (Some(rule), [entries]) => {
                    let changed = limiter.administer_key_at(domain, rule, entries, action, now);
                    changed.await
                }
                _ => limiter.administer_at(query, action, now).await,
            }
        })
    }
}

impl<S: TestStore> Drop for OnStore<S> {
    fn drop(&mut self) {
        // Keys not removed expire.
        if let Err(failure) = self.wait(self.limiter.store().clean_up()) {
            (self.leftover)(&format!(
                "the keys of the last test stay for ten minutes: {failure}"
            ));
        }
    }
}

/// Said of a test that was not run to its end.
pub const OUT_OF_TIME: &str = "not run to its end: here tests have 2 s together; `quell rules test FILE` \
                                      runs all of them";

/// A subject that answers for as long as `has_time` says.
#[derive(Debug)]
pub struct Timed<S, F> {
    /// Test subject.
    pub subject: S,
    /// Returns true while there is time left.
    pub has_time: F,
}

impl<S, F: Fn() -> bool> Timed<S, F> {
    fn in_time(&mut self) -> Result<&mut S, String> {
        match (self.has_time)() {
            true => Ok(&mut self.subject),
            false => Err(OUT_OF_TIME.to_owned()),
        }
    }
}

impl<S: Subject, F: Fn() -> bool> Subject for Timed<S, F> {
    fn reset(&mut self, now: Now) -> Result<(), String> {
        self.in_time()?.reset(now)
    }

    fn set_rules(&mut self, domains: Vec<DomainRules>, now: Now) -> Result<(), String> {
        self.in_time()?.set_rules(domains, now)
    }

    fn unit(&self) -> Duration {
        self.subject.unit()
    }

    fn ask(
        &mut self,
        operation: Operation,
        query: &Query<'_>,
        now: Now,
    ) -> Result<Verdict, String> {
        self.in_time()?.ask(operation, query, now)
    }

    fn hold(&mut self, claim: &Claim<'_>, query: &Query<'_>, now: Now) -> Result<Verdict, String> {
        self.in_time()?.hold(claim, query, now)
    }

    fn end(&mut self, id: &HoldId, ending: Ending, now: Now) -> Result<EndAnswer, String> {
        self.in_time()?.end(id, ending, now)
    }

    fn administer(
        &mut self,
        rule: Option<&str>,
        query: &Query<'_>,
        action: Action<'_>,
        now: Now,
    ) -> Result<usize, String> {
        self.in_time()?.administer(rule, query, action, now)
    }
}

/// Most waiters that are moved up.
const MAX_MOVES: usize = 10_000;

/// Moves up those who wait behind a hold that ended, as real waiters do themselves.
async fn move_up(store: &impl HoldStore, finished: &Finished, now: Now) -> Result<(), StoreError> {
    let mut next: VecDeque<HoldId> = finished.next.iter().cloned().collect();
    for _ in 0..MAX_MOVES {
        let Some(id) = next.pop_front() else {
            break;
        };
        if let Some((_, behind)) = store.advance(&id, now).await? {
            next.extend(behind);
        }
    }
    Ok(())
}
