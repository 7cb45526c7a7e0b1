//! The stored overrides of a fleet, which its coordinators keep, as an [`OverrideStore`].
//!
//! Calls go over the node's connection, to the coordinator that it has. Whoever may be a node may read them; to change
//! them its token needs the role `policy` as well.

use std::time::Duration;

use quell::override_store::{
    ApplyOutcome, Change, Changes, Cursor, Follower, OverrideFilter, OverrideId, OverrideStore,
    OverrideStoreError, Page, Position, Reply, StoredOverride, Waiting, check_batch,
};
use quell_shares::plan::MemberId;
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::{Code, Status};

use super::connection::CallLink;
use crate::proto;
use crate::proto::override_call::Kind as Call;
use crate::wire_overrides::{self as wire, LONGEST_WAIT};

/// Time that a call may take: no request of a client waits for it.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Wait while there is no coordinator, or it fails.
const RETRY: Duration = Duration::from_secs(1);

/// The stored overrides of the fleet of a node.
#[derive(Clone, Debug)]
pub struct FleetOverrides {
    member: MemberId,
    calls: watch::Receiver<Option<CallLink>>,
}

/// Reason why there is no answer.
enum Failure {
    /// The call was not sent, or was refused.
    NotDone(OverrideStoreError),
    /// It may have been carried out.
    Unknown(String),
}

impl From<Failure> for OverrideStoreError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NotDone(error) => error,
            Failure::Unknown(reason) => Self::Unknown(reason),
        }
    }
}

impl Failure {
    fn new(status: &Status) -> Self {
        let said = status.message();
        let text = match said.is_empty() {
            true => status.code().description(),
            false => said,
        };
        let told = format!("the coordinator: {text}");
        match status.code() {
            Code::PermissionDenied | Code::Unauthenticated => {
                Self::NotDone(OverrideStoreError::Refused(told))
            }
            Code::Unimplemented => {
                let reason = "the coordinator keeps no overrides: it is of an earlier version";
                Self::NotDone(OverrideStoreError::NoAnswer(reason.to_owned()))
            }
            Code::InvalidArgument | Code::OutOfRange => Self::NotDone(OverrideStoreError::Unfit {
                index: None,
                reason: told,
            }),
            Code::ResourceExhausted | Code::FailedPrecondition => {
                Self::NotDone(OverrideStoreError::NoAnswer(told))
            }
            _ => Self::Unknown(told),
        }
    }
}

impl FleetOverrides {
    pub(super) const fn new(member: MemberId, calls: watch::Receiver<Option<CallLink>>) -> Self {
        Self { member, calls }
    }

    async fn call(&self, kind: Call, within: Duration) -> Result<proto::OverrideAnswer, Failure> {
        let mut calls = self.calls.clone();
        // One that is lost is often replaced at once, and one that starts has none yet.
        let link = timeout(RETRY, calls.wait_for(Option::is_some)).await;
        let link = link.ok().and_then(|link| link.ok()?.clone());
        let Some(link) = link else {
            let reason = "no coordinator answers".to_owned();
            return Err(Failure::NotDone(OverrideStoreError::NoAnswer(reason)));
        };
        let call = link.overrides(proto::OverrideCall {
            kind: Some(kind),
            member: self.member.0,
        });
        match timeout(within, call).await {
            Ok(answer) => answer.map_err(|status| Failure::new(&status)),
            Err(_) => Err(Failure::Unknown(
                "the coordinator does not answer".to_owned(),
            )),
        }
    }

    /// A call that writes nothing.
    async fn read(&self, kind: Call) -> Result<proto::OverrideAnswer, OverrideStoreError> {
        let answer = self.call(kind, TIMEOUT).await;
        answer.map_err(|failure| match failure {
            Failure::NotDone(error) => error,
            Failure::Unknown(reason) => OverrideStoreError::NoAnswer(reason),
        })
    }
}

impl FleetOverrides {
    /// Waits by a call that is answered when there may be another position.
    async fn wait_by(&self, call: Call) {
        let mut calls = self.calls.clone();
        calls.mark_unchanged();
        tokio::select! {
            answer = self.call(call, LONGEST_WAIT + TIMEOUT) => {
                if answer.is_ok() {
                    return;
                }
            }
            // Another coordinator, perhaps of another history.
            Ok(()) = calls.changed() => return,
        }
        timeout(RETRY, calls.changed()).await.ok();
    }
}

impl OverrideStore for FleetOverrides {
    fn url(&self) -> &'static str {
        "fleet"
    }

    fn position(&self) -> Reply<'_, Position> {
        Box::pin(async { wire::read_newest(self.read(Call::Position(true)).await?) })
    }

    fn get<'a>(&'a self, id: &'a OverrideId) -> Reply<'a, Option<StoredOverride>> {
        Box::pin(async { wire::read_stored(self.read(wire::get(id)).await?) })
    }

    fn list<'a>(
        &'a self,
        filter: &'a OverrideFilter,
        after: Option<&'a Cursor>,
        most: usize,
    ) -> Reply<'a, Page> {
        let call = wire::list(Some(filter), after, most);
        Box::pin(async { wire::read_page(self.read(call).await?) })
    }

    fn all<'a>(&'a self, after: Option<&'a Cursor>, most: usize) -> Reply<'a, Page> {
        let call = wire::list(None, after, most);
        Box::pin(async { wire::read_page(self.read(call).await?) })
    }

    fn apply<'a>(&'a self, changes: &'a [Change]) -> Reply<'a, ApplyOutcome> {
        Box::pin(async {
            check_batch(changes)?;
            let answer = self.call(wire::apply(changes)?, TIMEOUT).await?;
            wire::read_outcome(answer, changes.len())
        })
    }

    fn changes<'a>(&'a self, since: &'a Position, most: usize) -> Reply<'a, Changes> {
        let call = wire::since(since, most);
        Box::pin(async { wire::read_since(self.read(call).await?) })
    }

    fn wait<'a>(&'a self, seen: &'a Position) -> Waiting<'a> {
        Box::pin(self.wait_by(Call::Wait(seen.to_string())))
    }

    fn wait_as<'a>(&'a self, follower: &'a str, seen: &'a Position) -> Waiting<'a> {
        let follower = wire::follower(follower, seen, Duration::ZERO);
        Box::pin(self.wait_by(Call::WaitAs(follower)))
    }

    fn report<'a>(
        &'a self,
        follower: &'a str,
        seen: &'a Position,
        behind: Duration,
    ) -> Reply<'a, ()> {
        let call = Call::Report(wire::follower(follower, seen, behind));
        Box::pin(async { wire::read_done(self.read(call).await?) })
    }

    fn leave<'a>(&'a self, follower: &'a str) -> Reply<'a, ()> {
        let call = Call::Leave(follower.to_owned());
        Box::pin(async { wire::read_done(self.read(call).await?) })
    }

    fn followers(&self) -> Reply<'_, Vec<Follower>> {
        Box::pin(async { wire::read_followers(self.read(Call::Followers(true)).await?) })
    }
}
