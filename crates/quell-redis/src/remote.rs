//! Redis as a remote store: what a failure means, and which server has a key.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::resp::Value;
use quell::store::{Action, Answer, Paid, Placed, Totals};
use quell_core::charge::{LimitSet, Operation};
use quell_core::claim::Claim;
use quell_core::time::{Now, Wall};
use quell_store::remote::{
    FailureKind, HoldFailure, RemoteFailure, RemoteStore, ServerStatus, SetFailure,
};
use quell_store::split::{OwnedSet, run_to_end};

use crate::flow::MAX_WAIT;
use crate::hold_gauges::hold_time;
use crate::link::{Endpoint, Failure};
use crate::redis_holds::hold;
use crate::script::UNPAID_NODES;
use crate::script_request::{administer, decide, give_back, pay, sync, whole};
use crate::store::RedisStore;

/// A node counts as owing for this long after its last message, which it repeats every half a second.
const OWING_TTL: Duration = Duration::from_secs(3);

/// One server of a store: an address, or the primary that sentinels or a cluster name.
#[derive(Clone, Debug)]
pub struct Server(Arc<Endpoint>);

impl PartialEq for Server {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Server {}

impl From<Failure> for RemoteFailure {
    fn from(failure: Failure) -> Self {
        let kind = match &failure {
            Failure::Unknown(_) => FailureKind::Unknown,
            Failure::Overloaded => FailureKind::Overloaded,
            Failure::Foreign(_) => FailureKind::OneKey,
            Failure::Refused(_) if failure.refuses_writes() => FailureKind::TakesNoWrites,
            _ => FailureKind::NotRun,
        };
        Self {
            kind,
            reason: failure.to_string(),
        }
    }
}

impl RemoteStore for RedisStore {
    type Server = Server;

    fn servers(&self) -> Vec<Server> {
        self.servers
            .link
            .endpoints()
            .into_iter()
            .map(Server)
            .collect()
    }

    fn server_of(&self, key: &[u8], scope: usize) -> Server {
        Server(
            self.servers
                .link
                .endpoint_of(&self.servers.names.of_parts(key, scope)),
        )
    }

    fn is_spread(&self) -> bool {
        self.servers.link.is_spread()
    }

    fn status(&self, server: &Server, now: Instant) -> ServerStatus {
        match server.0.breaker.gone(now) {
            None => ServerStatus::Up,
            Some((_, is_probe_due)) => ServerStatus::Gone { is_probe_due },
        }
    }

    fn is_any_gone(&self) -> bool {
        self.servers.link.is_any_gone()
    }

    fn gone_reason(
        &self,
        set: &LimitSet<'_>,
        claim: Option<&Claim<'_>>,
        now: Instant,
    ) -> Option<String> {
        let (link, names) = (&self.servers.link, &self.servers.names);
        if !link.is_any_gone() {
            return None;
        }
        let keys = set.charges().iter().map(|charge| set.key(charge));
        // The pointer of its id, too.
        let claim = claim.filter(|claim| hold_time(set, claim).is_some());
        let pointer = claim.map(|claim| names.pointer(claim.id.as_bytes()));
        let mut names = keys.map(|key| names.of(key)).chain(pointer);
        names.find_map(|name| {
            let (reason, _) = link.endpoint_of(&name).breaker.gone(now)?;
            Some(reason)
        })
    }

    fn longest_call(&self) -> Duration {
        // The time in the queue and the time for the answer.
        self.servers.timeout * (MAX_WAIT + 2)
    }

    async fn probe(&self, server: &Server) -> Result<(), RemoteFailure> {
        Ok(self.servers.probe(&server.0).await?)
    }

    async fn check(&self) -> Result<(), RemoteFailure> {
        Ok(self.servers.ping().await?)
    }

    async fn try_decide(
        &self,
        set: &LimitSet<'_>,
        operation: Operation,
        now: Now,
    ) -> Result<Answer, SetFailure> {
        let servers = &self.servers;
        // Before anything is encoded: a refusal has to be cheap just when there is too much to do.
        if servers.batcher.is_full() {
            let failure = Failure::Overloaded;
            servers.counts.called(Duration::ZERO, Some(&failure));
            return Err(RemoteFailure::from(failure).into());
        }
        let is_one = !servers.link.is_spread() || set.charges().len() == 1;
        let decided = if is_one || operation == Operation::Peek {
            decide(servers, set, operation, now).await
        } else {
            let places = 0..set.charges().len();
            let (servers, set) = (Arc::clone(servers), OwnedSet::new(set));
            let decided =
                run_to_end(async move { decide(&servers, &set.as_set(), operation, now).await });
            decided.await.unwrap_or_else(|| {
                let failure = Failure::Unknown("the runtime ended".to_owned());
                Err(whole(failure, places))
            })
        };
        decided.map_err(|undecided| undecided.map(Into::into))
    }

    async fn try_pay(&self, set: &LimitSet<'_>, now: Now) -> Result<Answer, SetFailure> {
        let paid = pay(&self.servers, set, now).await;
        paid.map_err(|undecided| undecided.map(Into::into))
    }

    async fn try_hold(
        &self,
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        now: Now,
    ) -> Result<(Placed, Wall), HoldFailure> {
        let held = hold(&self.servers, set, claim, now).await;
        held.map_err(|failure| failure.map(Into::into))
    }

    async fn try_administer(
        &self,
        set: &LimitSet<'_>,
        action: Action<'_>,
        now: Now,
    ) -> Result<usize, RemoteFailure> {
        Ok(administer(&self.servers, set, action, now).await?)
    }

    async fn try_give_back(
        &self,
        set: &LimitSet<'_>,
        charged: Wall,
        until: Wall,
        now: Now,
    ) -> Result<(), RemoteFailure> {
        Ok(give_back(&self.servers, set, charged, until, now).await?)
    }

    async fn try_sync(
        &self,
        set: &LimitSet<'_>,
        totals: &Totals,
        now: Now,
    ) -> Result<Paid, RemoteFailure> {
        Ok(sync(&self.servers, set, totals, now).await?)
    }

    async fn others_owe(&self, node: u64, owes: bool) -> Result<bool, RemoteFailure> {
        let kept = if owes { OWING_TTL.as_millis() } else { 0 };
        let arguments = [format!("{node:016x}"), kept.to_string()].map(String::into_bytes);
        let list = [self.servers.names.owing()];
        let script = &UNPAID_NODES;
        let others = self.servers.run(script, &list, &arguments).await?;
        Ok(matches!(others, Value::Int(others) if others > 0))
    }
}
