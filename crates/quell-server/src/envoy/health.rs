//! Health of the rate limit service, as gRPC asks for it (`grpc.health.v1`): that of `/readyz`.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, Stream};
use tokio::time::sleep;
use tonic::{Request, Response, Status};
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::shared::Shared;

/// Names under which the service is asked for: the whole server, the name of envoyproxy/ratelimit, and its own.
const NAMES: [&str; 3] = [
    "",
    "ratelimit",
    "envoy.service.ratelimit.v3.RateLimitService",
];

/// Interval at which a watcher's answer is computed again; a stop is told at once.
const INTERVAL: Duration = Duration::from_secs(1);

/// Readiness as a service of gRPC.
#[derive(Debug)]
pub(super) struct ServiceHealth(pub(super) Arc<Shared>);

fn now(shared: &Shared) -> ServingStatus {
    match shared.is_ready() {
        true => ServingStatus::Serving,
        false => ServingStatus::NotServing,
    }
}

fn answer(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse {
        status: status as i32,
    }
}

fn check_name(request: &Request<HealthCheckRequest>) -> Result<(), Status> {
    let name = request.get_ref().service.as_str();
    NAMES.contains(&name).then_some(()).ok_or_else(|| {
        let known = NAMES[1..].join(", ");
        Status::not_found(format!(
            "there is no service {name:?}: write none, or one of {known}"
        ))
    })
}

#[tonic::async_trait]
impl Health for ServiceHealth {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        check_name(&request)?;
        Ok(Response::new(answer(now(&self.0))))
    }

    type WatchStream =
        Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send + 'static>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        check_name(&request)?;
        let (shared, phase) = (Arc::clone(&self.0), self.0.phase.subscribe());
        let changes = stream::unfold((shared, phase, None), async |(shared, mut phase, last)| {
            loop {
                let next = now(&shared);
                if last != Some(next) {
                    return Some((Ok(answer(next)), (shared, phase, Some(next))));
                }
                tokio::select! {
                    changed = phase.changed() => changed.ok()?,
                    () = sleep(INTERVAL) => {}
                }
            }
        });
        Ok(Response::new(Box::pin(changes)))
    }
}
