//! The servers of a store, and what this node remembers of them: scripts and commands are sent to the
//! server that has a key, within a time limit, unless that server is known to be gone.

use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::resp::{Cmd, Value, cmd};
use futures_util::future::join_all;
use quell::calendar::SystemCalendar;
use quell_core::charge::{Charge, LimitSet};
use quell_core::cost::Cost;
use quell_core::limit::{ActiveLimit, Limit, LimitId, LimitPlace};
use quell_core::rule::CalendarEdges;
use quell_core::time::{Monotonic, Now};

use crate::batch::Batcher;
use crate::breaker::{Admission, Transition};
use crate::encode::code;
use crate::hold_gauges::HoldGauges;
use crate::key::Names;
use crate::link::{Command, Endpoint, Failure, Link};
use crate::numbers::StoreCounters;
use crate::opcode::{Opcode, StoreClock};
use crate::pointer::PointerCache;
use crate::script::{DECIDE, Script, ScriptArgs};
use crate::test_isolation::{ForcedChange, TestIsolation};
use crate::turn_notifications::TurnNotifications;
use crate::url::StoreUrl;

/// The servers of one store.
#[derive(Debug)]
pub(crate) struct Servers {
    pub(crate) url: StoreUrl,
    pub(crate) link: Arc<Link>,
    pub(crate) names: Names,
    /// Batches calls that wait at the same time.
    pub(crate) batcher: Arc<Batcher>,
    pub(crate) clock: StoreClock,
    pub(crate) timeout: Duration,
    pub(crate) calendar: SystemCalendar,
    pub(crate) test_isolation: Option<TestIsolation>,
    pub(crate) turn_notifications: TurnNotifications,
    /// The pointers of this node's holds, on a cluster.
    pub(crate) pointer_cache: PointerCache,
    pub(crate) hold_gauges: HoldGauges,
    pub(crate) counts: StoreCounters,
}

impl Servers {
    /// Runs a script on the server that has `keys`, as [`Self::in_time`] awaits it.
    pub(crate) async fn run(
        &self,
        script: &'static Script,
        keys: &[Vec<u8>],
        arguments: &[Vec<u8>],
    ) -> Result<Value, Failure> {
        let first = keys.first().map_or(&[][..], Vec::as_slice);
        self.send(first, script.command(keys, arguments)).await
    }

    /// Sends a command to the server that has `key`, as [`Self::in_time`] awaits it.
    pub(crate) async fn call(&self, key: &[u8], command: &Cmd) -> Result<Value, Failure> {
        self.send(key, command.into()).await
    }

    async fn send(&self, key: &[u8], command: Command) -> Result<Value, Failure> {
        self.in_time(key, self.link.call(key, command)).await
    }

    /// Awaits `call`, which is about `key` and limits its time itself, or fails at once while the server
    /// that has the key is gone. Notes what the outcome says about the server.
    pub(crate) async fn in_time<T>(
        &self,
        key: &[u8],
        call: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let admitted = self.admit(key)?;
        admitted.end(call.await)
    }

    /// Admits a call to the server that has `key`; fails while that server is gone.
    pub(crate) fn admit<'a>(&'a self, key: &'a [u8]) -> Result<AdmittedCall<'a>, Failure> {
        let endpoint = self.link.endpoint_of(key);
        let began = Instant::now();
        match endpoint.breaker.admit(began) {
            Admission::Reject(reason) => Err(Failure::Unreachable(reason)),
            admission => Ok(AdmittedCall {
                servers: self,
                key,
                endpoint,
                admission: Some(admission),
                began,
            }),
        }
    }

    pub(crate) async fn delete(&self, names: Vec<Vec<u8>>) -> Result<(), Failure> {
        for name in names {
            self.call(&name, cmd("DEL").arg(name.as_slice())).await?;
        }
        Ok(())
    }

    /// Applies changed limits to all keys, under
    /// [`RedisStoreBuilder::test_isolation`](crate::RedisStoreBuilder::test_isolation).
    pub(crate) async fn apply_limit_changes(&self) -> Result<(), Failure> {
        let Some(isolation) = &self.test_isolation else {
            return Ok(());
        };
        for change in isolation.take_changes() {
            let (names, to, at) = match change {
                ForcedChange::Delete(names) => {
                    self.delete(names).await?;
                    continue;
                }
                ForcedChange::Carry(names, to, at) => (names, to, at),
            };
            let mut charge = Charge::alone(&to, Cost::ONE);
            let calendar = to.limit.calendar();
            charge.edges = calendar.map(|unit| self.calendar.edges(unit, at.wall));
            let head = self.clock.head(Opcode::Carry, Duration::ZERO, at);
            let arguments = vec![head, code(&charge).0];
            for name in names {
                let args = Arc::new(ScriptArgs::new(vec![name.clone()], arguments.clone()));
                self.in_time(&name, self.batcher.ask(&args)).await?;
            }
        }
        Ok(())
    }

    pub(crate) fn note_charged(&self, set: &LimitSet<'_>, names: Vec<Vec<u8>>) {
        if let Some(isolation) = &self.test_isolation {
            let limits = set.charges().iter().map(|charge| charge.active.id);
            isolation.note_states(names.into_iter().zip(limits));
        }
    }

    /// Tests whether every server decides, by charging a test key on each. A server that refuses to write
    /// does not pass.
    pub(crate) async fn ping(&self) -> Result<(), Failure> {
        let endpoints = self.link.endpoints();
        let probes = endpoints.iter().map(|endpoint| self.probe(endpoint));
        let answers = join_all(probes).await;
        // An overloaded server does answer.
        let is_well = |answer: &Result<(), _>| matches!(answer, Ok(()) | Err(Failure::Overloaded));
        if let Some(failed) = answers.into_iter().find(|answer| !is_well(answer)) {
            return failed;
        }
        if self.clock == StoreClock::Caller {
            // The test keys would exist for minutes.
            let tags = endpoints
                .iter()
                .filter_map(|endpoint| self.link.tag_at(endpoint));
            let names = tags.map(|tag| self.names.test_key(&tag, "probe")).collect();
            self.delete(names).await?;
        }
        Ok(())
    }

    /// Tests whether a server is back by letting it decide, which a replica does not.
    pub(crate) async fn probe(&self, endpoint: &Arc<Endpoint>) -> Result<(), Failure> {
        let Some(tag) = self.link.tag_at(endpoint) else {
            // Other servers have its keys.
            return Ok(());
        };
        let Ok(limit) = Limit::per_second(1_000_000).build() else {
            return Ok(());
        };
        let active = ActiveLimit {
            id: LimitId::default(),
            limit,
            since: Monotonic::ORIGIN,
            place: LimitPlace::NONE,
        };
        let head = self
            .clock
            .head(Opcode::Acquire, Duration::ZERO, Now::default());
        let arguments = [head, code(&Charge::alone(&active, Cost::ONE)).0];
        let keys = [self.names.test_key(&tag, "probe")];
        let probe = self.run(&DECIDE, &keys, &arguments);
        probe.await.map(|_| ())
    }

    /// Notes the outcome of a call for the server that has `key` now, which may differ from the one that
    /// was asked first.
    fn note_outcome(
        &self,
        key: &[u8],
        first: &Arc<Endpoint>,
        admission: Admission,
        failure: Option<&Failure>,
    ) {
        let mut admission = admission;
        let (now, jitter) = (Instant::now(), random().to_le_bytes()[0]);
        let endpoint = self.link.endpoint_of(key);
        if !Arc::ptr_eq(&endpoint, first) {
            if admission == Admission::Probe {
                let reason = "it has not answered yet";
                first.breaker.failed(&admission, now, jitter, reason);
            }
            admission = Admission::Allow;
        }
        let transition = match failure {
            Some(
                failure @ (Failure::Unreachable(_) | Failure::Unknown(_) | Failure::NotReady(_)),
            ) => {
                let reason = match failure {
                    // It is said again for each call that fails at once.
                    Failure::Unreachable(reason) => reason.clone(),
                    other => other.to_string(),
                };
                let transition = endpoint.breaker.failed(&admission, now, jitter, &reason);
                if admission == Admission::Probe {
                    // Perhaps the machine is gone: the next probe uses a new connection.
                    self.link.hang_up(&endpoint);
                }
                if transition.is_some() || admission == Admission::Probe {
                    self.find_successor(&endpoint);
                }
                transition
            }
            _ => endpoint.breaker.note_answer(),
        };
        let server = endpoint.name.as_str();
        match transition {
            None => {}
            Some(Transition::Opened) => tracing::error!(
                store = %self.url,
                server,
                failure = failure.map(tracing::field::display),
                "the store is gone: calls about this server's keys fail at once until it is back"
            ),
            // The fallback logs when it lets callers go to this server again.
            Some(Transition::Closed) => tracing::info!(
                store = %self.url,
                server,
                refusal = failure.map(tracing::field::display),
                "this server of the store answers again"
            ),
        }
    }

    /// Asks other servers for the keys of one that does not answer, in a task of its own.
    fn find_successor(&self, endpoint: &Arc<Endpoint>) {
        if !self.link.is_single() {
            let (link, endpoint) = (Arc::clone(&self.link), Arc::clone(endpoint));
            tokio::spawn(async move { link.find_successor(&endpoint).await });
        }
    }
}

/// A call that the breaker admitted. If it is dropped before [`Self::end`], it says nothing about the
/// server.
#[derive(Debug)]
pub(crate) struct AdmittedCall<'a> {
    servers: &'a Servers,
    key: &'a [u8],
    endpoint: Arc<Endpoint>,
    admission: Option<Admission>,
    began: Instant,
}

impl AdmittedCall<'_> {
    /// Notes whether the server answered. A call that was not sent because of overload says nothing about
    /// the server.
    pub(crate) fn end<T>(mut self, answer: Result<T, Failure>) -> Result<T, Failure> {
        let (servers, failure) = (self.servers, answer.as_ref().err());
        servers.counts.called(self.began.elapsed(), failure);
        if failure != Some(&Failure::Overloaded)
            && let Some(admission) = self.admission.take()
        {
            servers.note_outcome(self.key, &self.endpoint, admission, failure);
        }
        answer
    }
}

impl Drop for AdmittedCall<'_> {
    fn drop(&mut self) {
        if let Some(admission) = &self.admission {
            self.endpoint.breaker.cancelled(admission, Instant::now());
        }
    }
}

/// A random number.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(0_u8)
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;

    /// A caller that probes whether a store is back may go away. The next caller probes instead.
    #[tokio::test]
    async fn a_look_that_is_given_up_leaves_the_next_to_go() {
        let store = crate::RedisStore::new("redis://localhost".parse().unwrap());
        let store = &store.servers;
        let now = Instant::now();
        let long_ago = |seconds| now.checked_sub(Duration::from_secs(seconds)).unwrap();
        let breaker = &store.link.endpoint_of(b"").breaker;
        for seconds in [20, 19, 18, 17, 16] {
            breaker.failed(&Admission::Allow, long_ago(seconds), 0, "gone");
        }
        assert!(breaker.is_open());
        let mut look = Box::pin(store.in_time(b"", std::future::pending::<Result<(), Failure>>()));
        let mut context = Context::from_waker(Waker::noop());
        assert!(look.as_mut().poll(&mut context).is_pending());
        let others = store.in_time(b"", async { Ok(()) }).await;
        assert!(
            matches!(others, Err(Failure::Unreachable(_))),
            "one at a time"
        );
        drop(look);
        assert_eq!(store.in_time(b"", async { Ok(()) }).await, Ok(()));
        assert!(!breaker.is_open());
    }
}
