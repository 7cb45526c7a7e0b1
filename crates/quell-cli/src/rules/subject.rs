//! Subjects: the limiter and the stores that the server uses, under a clock that the runner holds.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use quell::store::memory::MemoryStore;
use quell::store::{AdminStore, Finished, HoldStore, StoreError};
use quell::{AskError, Limiter};
use quell_core::charge::{Action, Operation};
use quell_core::claim::Claim;
use quell_core::descriptor::Query;
use quell_core::end_hold::Ending;
use quell_core::hold::HoldId;
use quell_core::rule::DomainRules;
use quell_core::time::Now;
use quell_core::verdict::Verdict;
use quell_redis::{Failure, RedisStore, StoreUrl};
use quell_rules::scenario::{EndAnswer, Subject};
use tokio::runtime::Runtime;

/// How long one call to a store may take: a test need not answer anybody in time.
const STORE_TIMEOUT: Duration = Duration::from_secs(10);

/// Rules over a store in memory.
#[derive(Debug)]
pub(super) struct Memory {
    limiter: Limiter<MemoryStore>,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            limiter: Limiter::new(MemoryStore::new()),
        }
    }
}

impl Subject for Memory {
    fn reset(&mut self, _now: Now) -> Result<(), String> {
        *self = Self::default();
        Ok(())
    }

    fn set_rules(&mut self, domains: Vec<DomainRules>, now: Now) -> Result<(), String> {
        let set = self.limiter.set_rules_at(domains, now);
        set.map_err(|error| error.to_string())
    }

    fn ask(
        &mut self,
        operation: Operation,
        query: &Query<'_>,
        now: Now,
    ) -> Result<Verdict, String> {
        let verdict = self.limiter.ask_local(operation, query, now);
        verdict.map_err(|error| error.to_string())
    }

    fn hold(&mut self, claim: &Claim<'_>, query: &Query<'_>, now: Now) -> Result<Verdict, String> {
        let verdict = self.limiter.hold_local(query, claim, now);
        verdict.map_err(|error| error.to_string())
    }

    fn end(&mut self, id: &HoldId, ending: Ending, now: Now) -> Result<EndAnswer, String> {
        let finished = self.limiter.end_local(id, ending, now);
        if let Some(finished) = &finished {
            let moved = at_once(move_up(self.limiter.store(), finished, now))?;
            moved.map_err(|error| error.to_string())?;
        }
        Ok(answer(finished))
    }

    fn administer(
        &mut self,
        rule: Option<&str>,
        query: &Query<'_>,
        action: Action,
        now: Now,
    ) -> Result<usize, String> {
        let changed = at_once(administer(&self.limiter, rule, query, action, now))?;
        changed.map_err(|error| error.to_string())
    }
}

/// What comes without waiting: a store in this process never has to.
fn at_once<T>(future: impl Future<Output = T>) -> Result<T, String> {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(future).poll(&mut context) {
        Poll::Ready(output) => Ok(output),
        Poll::Pending => Err("the store in memory did not answer at once".to_owned()),
    }
}

/// Does something by hand to the keys of one rule, or of all that match.
async fn administer<S: AdminStore>(
    limiter: &Limiter<S>,
    rule: Option<&str>,
    query: &Query<'_>,
    action: Action,
    now: Now,
) -> Result<usize, AskError> {
    let (Some(rule), [entries]) = (rule, query.descriptors()) else {
        return limiter.administer_at(query, action, now).await;
    };
    let domain = query.domain();
    let changed = limiter.administer_key_at(domain, rule, entries, action, now);
    changed.await
}

/// The longest line that is moved up.
const MOST_MOVES: usize = 10_000;

/// Lets those move up who wait behind what ended, as they do themselves where they are real.
async fn move_up(store: &impl HoldStore, finished: &Finished, now: Now) -> Result<(), StoreError> {
    let mut next: VecDeque<HoldId> = finished.next.iter().cloned().collect();
    for _ in 0..MOST_MOVES {
        let Some(id) = next.pop_front() else {
            break;
        };
        if let Some((_, behind)) = store.advance(&id, now).await? {
            next.extend(behind);
        }
    }
    Ok(())
}

fn answer(finished: Option<Finished>) -> EndAnswer {
    let unknown = EndAnswer {
        outcome: "unknown",
        repeated: false,
    };
    finished.map_or(unknown, |finished| EndAnswer {
        outcome: finished.status.name(),
        repeated: finished.repeated,
    })
}

/// Rules over a store that servers share. Each test has keys of its own, which go when it ends.
#[derive(Debug)]
pub(super) struct Shared {
    runtime: Runtime,
    url: StoreUrl,
    limiter: Limiter<RedisStore>,
}

impl Shared {
    /// # Errors
    /// If the store does not answer.
    pub(super) fn new(url: &StoreUrl) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start a runtime")?;
        let store = isolated_store(url);
        let answers = runtime.block_on(store.ping());
        answers.with_context(|| format!("the store {url} does not answer"))?;
        Ok(Self {
            runtime,
            url: url.clone(),
            limiter: Limiter::new(store),
        })
    }

    fn clean_up(&self) -> Result<(), Failure> {
        self.runtime
            .block_on(self.limiter.store().forget_test_keys())
    }
}

/// A store whose keys nobody else has: named after this process, the time and a count.
fn isolated_store(url: &StoreUrl) -> RedisStore {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let name = format!(
        "{}-{}-{}",
        std::process::id(),
        since.unwrap_or_default().as_nanos(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    );
    RedisStore::builder(url.clone())
        .test_keys(&name)
        .test_isolation()
        .timeout(STORE_TIMEOUT)
        .build()
}

impl Subject for Shared {
    fn reset(&mut self, _now: Now) -> Result<(), String> {
        self.clean_up().map_err(|failure| failure.to_string())?;
        self.limiter = Limiter::new(isolated_store(&self.url));
        Ok(())
    }

    fn set_rules(&mut self, domains: Vec<DomainRules>, now: Now) -> Result<(), String> {
        let set = self.limiter.set_rules_at(domains, now);
        set.map_err(|error| error.to_string())
    }

    fn unit(&self) -> Duration {
        RedisStore::UNIT
    }

    fn ask(
        &mut self,
        operation: Operation,
        query: &Query<'_>,
        now: Now,
    ) -> Result<Verdict, String> {
        let asked = self.limiter.ask(operation, query, now);
        self.runtime
            .block_on(asked)
            .map_err(|error| error.to_string())
    }

    fn hold(&mut self, claim: &Claim<'_>, query: &Query<'_>, now: Now) -> Result<Verdict, String> {
        let held = self.limiter.hold_at(query, claim, now);
        self.runtime
            .block_on(held)
            .map_err(|error| error.to_string())
    }

    fn end(&mut self, id: &HoldId, ending: Ending, now: Now) -> Result<EndAnswer, String> {
        let ended = async {
            let finished = self.limiter.end_at(id, ending, now).await?;
            if let Some(finished) = &finished {
                move_up(self.limiter.store(), finished, now).await?;
            }
            Ok::<_, AskError>(finished)
        };
        let ended = self.runtime.block_on(ended);
        ended.map(answer).map_err(|error| error.to_string())
    }

    fn administer(
        &mut self,
        rule: Option<&str>,
        query: &Query<'_>,
        action: Action,
        now: Now,
    ) -> Result<usize, String> {
        let done = administer(&self.limiter, rule, query, action, now);
        self.runtime
            .block_on(done)
            .map_err(|error| error.to_string())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // What cannot be removed expires.
        if let Err(failure) = self.clean_up() {
            crate::output::note(format!(
                "the keys of the last test stay for ten minutes: {failure}"
            ));
        }
    }
}
