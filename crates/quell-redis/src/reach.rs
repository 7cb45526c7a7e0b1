//! Reach: how long calls wait, for whom, and who is not waited for.

use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use quell_core::charge::{Charge, LimitSet};
use quell_core::cost::Cost;
use quell_core::hold::Claim;
use quell_core::limit::{Installed, Limit, LimitId};
use quell_core::time::{Monotonic, Now};

use crate::breaker::{Leave, Turn};
use crate::code::code;
use crate::hold::keep_of;
use crate::link::{Failure, Place};
use crate::numbers::StoreNumbers;
use crate::store::{RedisStore, Request, StoreClock};

impl RedisStore {
    /// Asks whether the store decides: every server of it that is asked anything charges a key of its
    /// own. One that answers and refuses to write does not pass.
    ///
    /// # Errors
    /// [`Failure`] with what is known of the reason, of the first that does not.
    pub async fn ping(&self) -> Result<(), Failure> {
        let places = self.link.places();
        let asked = places.iter().map(|place| self.probe(place));
        let answers = futures_util::future::join_all(asked).await;
        // One that has more to do than it can answers.
        let is_well = |answer: &Result<(), _>| matches!(answer, Ok(()) | Err(Failure::Overloaded));
        if let Some(failed) = answers.into_iter().find(|answer| !is_well(answer)) {
            return failed;
        }
        if self.clock() == StoreClock::Caller {
            // It would stay for minutes.
            let tags = places.iter().filter_map(|place| self.link.tag_at(place));
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
            ..self.counts.read(&self.link.places())
        }
    }

    /// Why calls about a set, and a claim on it, fail at once, if they do.
    pub(crate) fn gone(
        &self,
        set: &LimitSet<'_>,
        claim: Option<&Claim<'_>>,
        now: Instant,
    ) -> Option<String> {
        if !self.link.is_any_gone() {
            return None;
        }
        let mut places = Vec::new();
        if self.link.is_spread() {
            let names = set.charges().iter().map(|charge| set.key(charge));
            places.extend(names.map(|key| self.link.place_of(&self.names.of(key))));
            // Where its id points from.
            let pointed = claim.filter(|claim| keep_of(set, claim).is_some());
            let pointed = pointed.map(|claim| self.names.pointer(claim.id.as_bytes()));
            places.extend(pointed.map(|name| self.link.place_of(&name)));
        } else {
            places.push(self.link.place_of(b""));
        }
        let mut gone = places.iter().filter_map(|place| place.breaker.gone(now));
        gone.next().map(|(reason, _)| gone_for(&reason))
    }

    /// Looks whether a server is back: whether it decides, which a replica does not.
    pub(crate) async fn probe(&self, place: &Arc<Place>) -> Result<(), Failure> {
        let Some(tag) = self.link.tag_at(place) else {
            // Others have its keys.
            return Ok(());
        };
        let Ok(limit) = Limit::per_second(1_000_000).build() else {
            return Ok(());
        };
        let installed = Installed {
            id: LimitId::default(),
            limit,
            since: Monotonic::ORIGIN,
            place: Arc::default(),
        };
        let name = self.names.probe(&tag);
        let head = self.head(Request::Acquire, Duration::ZERO, Now::default());
        let arguments = [head, code(&Charge::alone(&installed, Cost::ONE)).bytes];
        let keys = [name];
        let asked = self.scripts.decide.run(&self.link, &keys, &arguments);
        let [name] = &keys;
        self.in_time(name, asked).await.map(|_| ())
    }

    /// Awaits `call`, which is about `key` and limits its time itself, or does not while whoever has
    /// the key is gone. Notes what that says of the server.
    pub(crate) async fn in_time<T>(
        &self,
        key: &[u8],
        call: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let place = self.link.place_of(key);
        let leave = place.breaker.leave(Instant::now());
        if let Leave::Stay(reason) = leave {
            return Err(Failure::Unreachable(gone_for(&reason)));
        }
        let attempt = Attempt {
            place,
            leave: Some(leave),
        };
        let began = Instant::now();
        let answer = call.await;
        self.counts.called(began.elapsed(), answer.as_ref().err());
        if !matches!(answer, Err(Failure::Overloaded)) {
            let (place, leave) = attempt.end();
            self.judge(key, &place, leave, answer.as_ref().err());
        }
        answer
    }

    /// Tells whoever was asked about `key` from whoever was asked first, if the key moved meanwhile,
    /// and notes whether they answered.
    fn judge(&self, key: &[u8], first: &Arc<Place>, leave: Leave, failure: Option<&Failure>) {
        let mut leave = leave;
        let place = self.link.place_of(key);
        if !Arc::ptr_eq(&place, first) {
            if leave == Leave::Probe {
                let reason = "it has not answered yet";
                let now = Instant::now();
                first.breaker.failed(&leave, now, share(), reason);
            }
            leave = Leave::Go;
        }
        let turn = match failure {
            Some(
                failure @ (Failure::Unreachable(_) | Failure::Unknown(_) | Failure::NotReady(_)),
            ) => {
                let reason = failure.to_string();
                let now = Instant::now();
                let turn = place.breaker.failed(&leave, now, share(), &reason);
                if leave == Leave::Probe {
                    // Perhaps nobody is at the other end any more: the next look is on a new
                    // connection.
                    self.link.hang_up(&place);
                }
                if turn.is_some() || leave == Leave::Probe {
                    self.look_around(&place);
                }
                turn
            }
            _ => place.breaker.answered(),
        };
        let server = place.name();
        match turn {
            None => {}
            Some(Turn::Opened) => tracing::error!(
                store = %self.url,
                server,
                failure = failure.map(tracing::field::display),
                "the store is gone: calls about this server's keys fail at once until it is back"
            ),
            // Whether callers are answered by it again is the guard's to tell.
            Some(Turn::Closed) => tracing::info!(
                store = %self.url,
                server,
                refusal = failure.map(tracing::field::display),
                "this server of the store answers again"
            ),
        }
    }

    /// Looks whether others have the keys of a server that does not answer. Nobody waits for that.
    fn look_around(&self, place: &Arc<Place>) {
        if !self.link.is_single() {
            let (link, place) = (Arc::clone(&self.link), Arc::clone(place));
            tokio::spawn(async move { link.look_around(&place).await });
        }
    }
}

/// A call that is tried. If it is dropped before its end, nothing is known of the server.
struct Attempt {
    place: Arc<Place>,
    leave: Option<Leave>,
}

impl Attempt {
    fn end(mut self) -> (Arc<Place>, Leave) {
        let leave = self.leave.take().unwrap_or(Leave::Go);
        (Arc::clone(&self.place), leave)
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if let Some(leave) = &self.leave {
            self.place.breaker.unused(leave, Instant::now());
        }
    }
}

fn gone_for(reason: &str) -> String {
    format!("it decided nothing a moment ago: {reason}")
}

/// Anything from 0 to 255.
fn share() -> u8 {
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
        let breaker = &store.link.place_of(b"").breaker;
        for seconds in [20, 19, 18, 17, 16] {
            breaker.failed(&Leave::Go, long_ago(seconds), 0, "gone");
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
