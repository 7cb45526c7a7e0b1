//! Redis as a remote store: what a failure means, and which server has a key.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quell::store::remote::{
    FailureKind, HoldFailure, RemoteFailure, RemoteStore, ServerStatus, SetFailure,
};
use quell::store::{Action, Answer, Placed};
use quell_core::charge::{LimitSet, Operation};
use quell_core::claim::Claim;
use quell_core::decision::Decision;
use quell_core::time::{Now, Wall};

use crate::flow::MAX_WAIT;
use crate::hold::HoldError;
use crate::link::{Endpoint, Failure};
use crate::script_request;
use crate::store::RedisStore;
use crate::unpaid_nodes;

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

impl From<script_request::SetFailure> for SetFailure {
    fn from(undecided: script_request::SetFailure) -> Self {
        Self {
            failure: undecided.failure.into(),
            failed: undecided.failed,
            uncertain: undecided.uncertain,
        }
    }
}

impl From<HoldError> for HoldFailure {
    fn from(error: HoldError) -> Self {
        match error {
            HoldError::Failed(failure) => Self::Failed(failure.into()),
            HoldError::Refused(error) => Self::Refused(error),
        }
    }
}

/// The store's clock, of which scripts tell microseconds.
pub(crate) const fn wall(micros: u64) -> Wall {
    Wall::from_nanos(micros.saturating_mul(1_000))
}

pub(crate) fn answer((decisions, clock): (Vec<Decision>, u64)) -> Answer {
    Answer {
        decisions: decisions.into(),
        store_time: Some(wall(clock)),
        ..Answer::default()
    }
}

impl RemoteStore for RedisStore {
    type Server = Server;

    fn servers(&self) -> Vec<Server> {
        self.link.endpoints().into_iter().map(Server).collect()
    }

    fn server_of(&self, key: &[u8], scope: usize) -> Server {
        Server(self.link.endpoint_of(&self.names.of_parts(key, scope)))
    }

    fn is_spread(&self) -> bool {
        self.link.is_spread()
    }

    fn status(&self, server: &Server, now: Instant) -> ServerStatus {
        match server.0.breaker.gone(now) {
            None => ServerStatus::Up,
            Some((_, is_probe_due)) => ServerStatus::Gone { is_probe_due },
        }
    }

    fn is_any_gone(&self) -> bool {
        self.link.is_any_gone()
    }

    fn gone_reason(
        &self,
        set: &LimitSet<'_>,
        claim: Option<&Claim<'_>>,
        now: Instant,
    ) -> Option<String> {
        Self::gone_reason(self, set, claim, now)
    }

    fn longest_call(&self) -> Duration {
        // In the queue, and for its answer.
        self.timeout * (MAX_WAIT + 2)
    }

    async fn probe(&self, server: &Server) -> Result<(), RemoteFailure> {
        Ok(Self::probe(self, &server.0).await?)
    }

    async fn check(&self) -> Result<(), RemoteFailure> {
        Ok(self.ping().await?)
    }

    async fn try_decide(
        &self,
        set: &LimitSet<'_>,
        operation: Operation,
        now: Now,
    ) -> Result<Answer, SetFailure> {
        Ok(answer(Self::try_decide(self, set, operation, now).await?))
    }

    async fn try_pay(&self, set: &LimitSet<'_>, now: Now) -> Result<Answer, SetFailure> {
        Ok(answer(Self::try_pay(self, set, now).await?))
    }

    async fn try_hold(
        &self,
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        now: Now,
    ) -> Result<(Placed, Wall), HoldFailure> {
        let (placed, clock) = Self::try_hold(self, set, claim, now).await?;
        Ok((placed, wall(clock)))
    }

    async fn try_administer(
        &self,
        set: &LimitSet<'_>,
        action: Action,
        now: Now,
    ) -> Result<usize, RemoteFailure> {
        Ok(Self::try_administer(self, set, action, now).await?)
    }

    async fn others_owe(&self, node: u64, owes: bool) -> Result<bool, RemoteFailure> {
        Ok(unpaid_nodes::others_owe(self, node, owes).await?)
    }
}
