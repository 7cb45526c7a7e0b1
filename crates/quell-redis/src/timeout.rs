//! How long calls wait for a server, and when they fail at once because it is gone.

use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use quell_core::charge::{Charge, LimitSet};
use quell_core::claim::Claim;
use quell_core::cost::Cost;
use quell_core::limit::{ActiveLimit, Limit, LimitId};
use quell_core::time::{Monotonic, Now};
use redis::{Cmd, Value};

use crate::breaker::{Admission, Transition};
use crate::encode::code;
use crate::hold::hold_time;
use crate::link::{Endpoint, Failure};
use crate::numbers::StoreNumbers;
use crate::script::Loaded;
use crate::store::{Opcode, RedisStore, StoreClock};

impl RedisStore {
    /// Asks whether the store decides: every server of it that is asked anything charges a key of its
    /// own. One that answers and refuses to write does not pass.
    ///
    /// # Errors
    /// [`Failure`] with what is known of the reason, of the first that does not.
    pub async fn ping(&self) -> Result<(), Failure> {
        let endpoints = self.link.endpoints();
        let probes = endpoints.iter().map(|endpoint| self.probe(endpoint));
        let answers = futures_util::future::join_all(probes).await;
        // One that has more to do than it can answers.
        let is_well = |answer: &Result<(), _>| matches!(answer, Ok(()) | Err(Failure::Overloaded));
        if let Some(failed) = answers.into_iter().find(|answer| !is_well(answer)) {
            return failed;
        }
        if self.clock() == StoreClock::Caller {
            // It would stay for minutes.
            let tags = endpoints
                .iter()
                .filter_map(|endpoint| self.link.tag_at(endpoint));
            let names = tags.map(|tag| self.names.probe(&tag)).collect();
            self.delete(names).await?;
        }
        Ok(())
    }

    /// Calls so far.
    #[must_use]
    pub fn numbers(&self) -> StoreNumbers {
        StoreNumbers {
            replaced: self.replaced.count(),
            ..self.counts.read(&self.link.endpoints())
        }
    }

    /// Why calls about a set, and a claim on it, fail at once, if they do.
    pub(crate) fn gone_reason(
        &self,
        set: &LimitSet<'_>,
        claim: Option<&Claim<'_>>,
        now: Instant,
    ) -> Option<String> {
        if !self.link.is_any_gone() {
            return None;
        }
        let mut endpoints = Vec::new();
        if self.link.is_spread() {
            let names = set.charges().iter().map(|charge| set.key(charge));
            endpoints.extend(names.map(|key| self.link.endpoint_of(&self.names.of(key))));
            // Where its id points from.
            let pointed = claim.filter(|claim| hold_time(set, claim).is_some());
            let pointed = pointed.map(|claim| self.names.pointer(claim.id.as_bytes()));
            endpoints.extend(pointed.map(|name| self.link.endpoint_of(&name)));
        } else {
            endpoints.push(self.link.endpoint_of(b""));
        }
        let mut gone_reason = endpoints
            .iter()
            .filter_map(|endpoint| endpoint.breaker.gone(now));
        gone_reason.next().map(|(reason, _)| gone_message(&reason))
    }

    /// Looks whether a server is back: whether it decides, which a replica does not.
    pub(crate) async fn probe(&self, endpoint: &Arc<Endpoint>) -> Result<(), Failure> {
        let Some(tag) = self.link.tag_at(endpoint) else {
            // Others have its keys.
            return Ok(());
        };
        let Ok(limit) = Limit::per_second(1_000_000).build() else {
            return Ok(());
        };
        let active = ActiveLimit {
            id: LimitId::default(),
            limit,
            since: Monotonic::ORIGIN,
            place: Arc::default(),
        };
        let head = self.head(Opcode::Acquire, Duration::ZERO, Now::default());
        let arguments = [head, code(&Charge::alone(&active, Cost::ONE)).bytes];
        let keys = [self.names.probe(&tag)];
        let probe = self.run(&self.scripts.decide, &keys, &arguments);
        probe.await.map(|_| ())
    }

    /// Runs a script on the server that has `keys`, as [`Self::in_time`] awaits it.
    pub(crate) async fn run(
        &self,
        script: &Loaded,
        keys: &[Vec<u8>],
        arguments: &[Vec<u8>],
    ) -> Result<Value, Failure> {
        let first = keys.first().map_or(&[][..], Vec::as_slice);
        let ran = script.run(&self.link, keys, arguments);
        self.in_time(first, ran).await
    }

    /// Sends a command to the server that has `key`, as [`Self::in_time`] awaits it.
    pub(crate) async fn call(&self, key: &[u8], command: &Cmd) -> Result<Value, Failure> {
        self.in_time(key, self.link.call(key, command)).await
    }

    /// Awaits `call`, which is about `key` and limits its time itself, or does not while whoever has
    /// the key is gone. Notes what that says of the server.
    pub(crate) async fn in_time<T>(
        &self,
        key: &[u8],
        call: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let endpoint = self.link.endpoint_of(key);
        let admission = endpoint.breaker.admit(Instant::now());
        if let Admission::Reject(reason) = admission {
            return Err(Failure::Unreachable(gone_message(&reason)));
        }
        let admitted = AdmittedCall {
            endpoint,
            admission: Some(admission),
        };
        let began = Instant::now();
        let answer = call.await;
        self.counts.called(began.elapsed(), answer.as_ref().err());
        if !matches!(answer, Err(Failure::Overloaded)) {
            let (endpoint, admission) = admitted.end();
            self.note_outcome(key, &endpoint, admission, answer.as_ref().err());
        }
        answer
    }

    /// Tells whoever was asked about `key` from whoever was asked first, if the key moved meanwhile,
    /// and notes whether they answered.
    fn note_outcome(
        &self,
        key: &[u8],
        first: &Arc<Endpoint>,
        admission: Admission,
        failure: Option<&Failure>,
    ) {
        let mut admission = admission;
        let endpoint = self.link.endpoint_of(key);
        if !Arc::ptr_eq(&endpoint, first) {
            if admission == Admission::Probe {
                let reason = "it has not answered yet";
                let now = Instant::now();
                first.breaker.failed(&admission, now, jitter(), reason);
            }
            admission = Admission::Allow;
        }
        let transition = match failure {
            Some(
                failure @ (Failure::Unreachable(_) | Failure::Unknown(_) | Failure::NotReady(_)),
            ) => {
                let reason = failure.to_string();
                let now = Instant::now();
                let transition = endpoint.breaker.failed(&admission, now, jitter(), &reason);
                if admission == Admission::Probe {
                    // Perhaps nobody is at the other end any more: the next look is on a new
                    // connection.
                    self.link.hang_up(&endpoint);
                }
                if transition.is_some() || admission == Admission::Probe {
                    self.find_successor(&endpoint);
                }
                transition
            }
            _ => endpoint.breaker.answered(),
        };
        let server = endpoint.name();
        match transition {
            None => {}
            Some(Transition::Opened) => tracing::error!(
                store = %self.url,
                server,
                failure = failure.map(tracing::field::display),
                "the store is gone: calls about this server's keys fail at once until it is back"
            ),
            // Whether callers are answered by it again is the guard's to tell.
            Some(Transition::Closed) => tracing::info!(
                store = %self.url,
                server,
                refusal = failure.map(tracing::field::display),
                "this server of the store answers again"
            ),
        }
    }

    /// Looks whether others have the keys of a server that does not answer. Nobody waits for that.
    fn find_successor(&self, endpoint: &Arc<Endpoint>) {
        if !self.link.is_single() {
            let (link, endpoint) = (Arc::clone(&self.link), Arc::clone(endpoint));
            tokio::spawn(async move { link.find_successor(&endpoint).await });
        }
    }
}

/// A call that is tried. If it is dropped before its end, nothing is known of the server.
struct AdmittedCall {
    endpoint: Arc<Endpoint>,
    admission: Option<Admission>,
}

impl AdmittedCall {
    fn end(mut self) -> (Arc<Endpoint>, Admission) {
        let admission = self.admission.take().unwrap_or(Admission::Allow);
        (Arc::clone(&self.endpoint), admission)
    }
}

impl Drop for AdmittedCall {
    fn drop(&mut self) {
        if let Some(admission) = &self.admission {
            self.endpoint.breaker.cancelled(admission, Instant::now());
        }
    }
}

fn gone_message(reason: &str) -> String {
    format!("it decided nothing a moment ago: {reason}")
}

/// Anything from 0 to 255.
fn jitter() -> u8 {
    RandomState::new().hash_one(0_u8).to_le_bytes()[0]
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;

    /// Whoever looks whether a store is back may go away; the next one looks in its place.
    #[tokio::test]
    async fn a_look_that_is_given_up_leaves_the_next_to_go() {
        let store = RedisStore::new("redis://localhost".parse().unwrap());
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
