//! Ends, renews and promotes holds on the store.

use std::time::Duration;

use futures_util::future::join_all;
use quell::store::{Finished, HoldStatus};
use quell_core::end_hold::Ending;
use quell_core::hold::HoldId;
use quell_core::time::Now;
use redis::{Cmd, Value};

use crate::answer::Reply;
use crate::encode::number;
use crate::hold::ids;
use crate::link::Failure;
use crate::script_request::strange;
use crate::slots::{HoldLocation, Pointer};
use crate::store::{Opcode, RedisStore};
use crate::ticks::MAX_UNITS;

/// How long the pointer of a hold that is over may take to be told so, which nobody waits for.
const EXPIRE_TIMEOUT: Duration = Duration::from_secs(1);

/// Pauses before each attempt to end the hold of a caller that is gone. After the last it ends by
/// itself, when its time is over.
const RETRY_PAUSES: [Duration; 4] = [
    Duration::ZERO,
    Duration::from_millis(200),
    Duration::from_secs(2),
    Duration::from_secs(10),
];

/// How long one of these may take.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);

impl RedisStore {
    /// Ends or renews a hold; `None` if nothing is known of it.
    pub(crate) async fn try_end(
        &self,
        id: &HoldId,
        ending: Ending,
        now: Now,
    ) -> Result<Option<Finished>, Failure> {
        self.apply_limit_changes().await?;
        let arguments = self.ending(id, ending, now);
        let finished = if self.link.is_spread() {
            self.end_in_slots(id, ending, &arguments).await?
        } else {
            let location = HoldLocation::of(self, id, Vec::new());
            self.end_at(&[location], &arguments).await?
        };
        if finished.as_ref().is_none_or(|ended| ended.wait.is_none()) {
            self.turn_notifications.remove(id);
        }
        match &finished {
            Some(ended) if ended.status != HoldStatus::Stands => self.hold_gauges.remove(id),
            Some(ended) if ended.wait.is_some() => {}
            Some(_) if matches!(ending, Ending::Renew | Ending::Arrive) => {
                self.hold_gauges.restart(id, now.monotonic);
            }
            Some(_) => {}
            None => self.hold_gauges.remove(id),
        }
        Ok(finished)
    }

    /// Looks whether the turn of a hold comes sooner now; how long until then, and who is behind it.
    pub(crate) async fn try_advance(
        &self,
        id: &HoldId,
        now: Now,
    ) -> Result<Option<(Duration, Vec<HoldId>)>, Failure> {
        self.apply_limit_changes().await?;
        let locations = HoldLocation::find(self, id, self.pointer(id)).await?;
        let arguments = self.arguments_about(Opcode::Advance, id, Vec::new(), now);
        // It waits in one of them, if it does.
        let mut advanced = None;
        for reply in self.run_at(locations.iter(), &arguments).await {
            let reply = reply?;
            let mut read = Reply::of(&reply).ok_or_else(|| strange(&reply))?;
            let (Some(_), Some(wait), Some(expired)) =
                (read.natural(), read.number(), read.natural())
            else {
                return Err(strange(&reply));
            };
            self.hold_gauges.add_expired(expired);
            if let Ok(wait) = u64::try_from(wait) {
                advanced = Some((Duration::from_micros(wait), ids(&mut read)));
            }
        }
        Ok(advanced)
    }

    /// Ends a hold where its id points to: as this node remembers it, and else as the store says.
    async fn end_in_slots(
        &self,
        id: &HoldId,
        ending: Ending,
        arguments: &[Vec<u8>],
    ) -> Result<Option<Finished>, Failure> {
        if let Some(pointer) = self.pointer_cache.get(id) {
            let finished = self.end_pointed(id, &pointer, ending, arguments).await?;
            if finished.is_some() {
                return Ok(finished);
            }
        }
        match self.pointer(id).await? {
            Some(pointer) => self.end_pointed(id, &pointer, ending, arguments).await,
            None => Ok(None),
        }
    }

    async fn end_pointed(
        &self,
        id: &HoldId,
        pointer: &Pointer,
        ending: Ending,
        arguments: &[Vec<u8>],
    ) -> Result<Option<Finished>, Failure> {
        let locations = HoldLocation::all(self, id, &pointer.states);
        let finished = self.end_at(&locations, arguments).await?;
        if let Some(finished) = &finished {
            let stands = finished.status == HoldStatus::Stands && finished.wait.is_none();
            if stands && matches!(ending, Ending::Renew | Ending::Arrive) {
                pointer.prolong(self, id, Duration::ZERO).await;
            } else if finished.status != HoldStatus::Stands && !finished.repeated {
                self.expire_pointer(id, pointer);
            }
        }
        Ok(finished)
    }

    async fn end_at(
        &self,
        locations: &[HoldLocation],
        arguments: &[Vec<u8>],
    ) -> Result<Option<Finished>, Failure> {
        let mut all = Vec::new();
        for reply in self.run_at(locations.iter(), arguments).await {
            let reply = reply?;
            let (ended, expired) = read_end(&reply).ok_or_else(|| strange(&reply))?;
            self.hold_gauges.add_expired(expired);
            all.extend(ended);
        }
        Ok(merge(all))
    }

    /// What the store says of where an id points to.
    pub(crate) async fn pointer(&self, id: &HoldId) -> Result<Option<Pointer>, Failure> {
        let name = self.names.pointer(id.as_bytes());
        self.in_time(&name, Pointer::fetch(self, id)).await
    }

    /// Lets the pointer of a hold that is over go as soon as what is known of that; nobody waits.
    fn expire_pointer(&self, id: &HoldId, pointer: &Pointer) {
        if pointer.keep.is_zero() {
            return;
        }
        let name = self.names.pointer(id.as_bytes());
        let expiry = Pointer::rest().max(self.min_expiry());
        let link = self.link.clone();
        tokio::spawn(async move {
            let mut expire = Cmd::new();
            expire.arg("PEXPIRE").arg(name.as_slice()).arg(expiry);
            // If that fails it stands as long as what it pointed to would have.
            let call = tokio::time::timeout(EXPIRE_TIMEOUT, link.call(&name, &expire));
            call.await.ok();
        });
    }

    /// Ends the hold of a caller that is gone, in a task of its own.
    pub(crate) fn end_later(&self, id: &HoldId, ending: Ending, now: Now) {
        self.turn_notifications.remove(id);
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            tracing::debug!(?id, "no runtime: the hold ends when its time is over");
            return;
        };
        let arguments = self.ending(id, ending, now);
        let (store, id) = (self.clone(), id.clone());
        runtime.spawn(async move { store.end_with_retries(&id, &arguments).await });
    }

    /// Ends a hold, however often that has to be said: said again it changes nothing.
    async fn end_with_retries(&self, id: &HoldId, arguments: &[Vec<u8>]) {
        for pause in RETRY_PAUSES {
            tokio::time::sleep(pause).await;
            let ended = tokio::time::timeout(ATTEMPT_TIMEOUT, self.end_unawaited(id, arguments));
            match ended.await {
                Ok(Ok((woken, expired))) => {
                    self.turn_notifications.notify(&woken);
                    self.hold_gauges.remove(id);
                    self.hold_gauges.add_expired(expired);
                    return;
                }
                Ok(Err(failure)) => {
                    tracing::debug!(%failure, "a hold of a caller that is gone stands");
                }
                Err(_) => tracing::debug!("a hold of a caller that is gone stands: no answer"),
            }
        }
    }

    /// Ends a hold without a caller that waits for it; returns who may go sooner now, and how many holds
    /// were over by themselves.
    async fn end_unawaited(
        &self,
        id: &HoldId,
        arguments: &[Vec<u8>],
    ) -> Result<(Vec<HoldId>, u64), Failure> {
        let locations = HoldLocation::find(self, id, Pointer::fetch(self, id)).await?;
        let script = &self.scripts.hold;
        let ended = locations.iter().map(|location| async move {
            let keys = location.keys();
            script.run(&self.link, &keys, arguments).await
        });
        let (mut called, mut expired) = (Vec::new(), 0);
        for reply in join_all(ended).await {
            let reply = reply?;
            if let Some(mut reply) = Reply::of(&reply)
                && (0..4).all(|_| reply.number().is_some())
            {
                expired += reply.natural().unwrap_or_default();
                called.extend(ids(&mut reply));
            }
        }
        Ok((called, expired))
    }

    /// Runs the hold script at each location, all at once.
    pub(crate) async fn run_at(
        &self,
        locations: impl Iterator<Item = &HoldLocation>,
        arguments: &[Vec<u8>],
    ) -> Vec<Result<Value, Failure>> {
        let calls = locations.map(async |location| {
            let keys = location.keys();
            self.run(&self.scripts.hold, &keys, arguments).await
        });
        join_all(calls).await
    }

    /// What the script is told to end or renew a hold.
    pub(crate) fn ending(&self, id: &HoldId, ending: Ending, now: Now) -> Vec<Vec<u8>> {
        let (code, units) = match ending {
            Ending::Settle(units) => (0, units.min(MAX_UNITS)),
            Ending::Cancel => (1, 0),
            Ending::Release => (2, 0),
            Ending::Renew => (3, 0),
            Ending::Arrive => (4, 0),
            Ending::Fail => (5, 0),
        };
        let mut argument = vec![code];
        argument.extend_from_slice(&number(units));
        self.arguments_about(Opcode::End, id, argument, now)
    }

    fn arguments_about(
        &self,
        opcode: Opcode,
        id: &HoldId,
        argument: Vec<u8>,
        now: Now,
    ) -> Vec<Vec<u8>> {
        let head = self.head(opcode, Duration::ZERO, now);
        vec![head, argument, id.as_bytes().to_vec()]
    }
}

/// What one script says of an ending, nothing if the id is not known there; and how many holds were
/// over by themselves.
fn read_end(reply: &Value) -> Option<(Option<Finished>, u64)> {
    let mut reply = Reply::of(reply)?;
    reply.natural()?;
    let status = match reply.number()? {
        -1 => None,
        0 => Some(HoldStatus::Stands),
        1 => Some(HoldStatus::Settled),
        2 => Some(HoldStatus::Cancelled),
        3 => Some(HoldStatus::Released),
        _ => Some(HoldStatus::Expired),
    };
    let repeated = reply.natural()? != 0;
    let wait = u64::try_from(reply.number()?).ok();
    let expired = reply.natural()?;
    let next = ids(&mut reply);
    let finished = status.map(|status| Finished {
        status,
        repeated,
        wait: wait.map(Duration::from_micros),
        next,
    });
    Some((finished, expired))
}

/// What became of a hold of which several slots say something: it stands if it does in any, and is
/// expired only if it is in all.
fn merge(all: Vec<Finished>) -> Option<Finished> {
    all.into_iter().reduce(|mut one, other| {
        let rank = |status| match status {
            HoldStatus::Stands => 0,
            HoldStatus::Expired => 2,
            _ => 1,
        };
        if rank(other.status) < rank(one.status) {
            one.status = other.status;
        }
        one.repeated &= other.repeated;
        one.wait = one.wait.max(other.wait);
        one.next.extend(other.next);
        one.next.sort_unstable();
        one.next.dedup();
        one
    })
}
