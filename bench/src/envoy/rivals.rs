//! Rivals of Quell behind Envoy: the same service of tonic, which asks the library limitador, or nobody.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Result, anyhow};
use clap::{Args, ValueEnum};
use limitador::RateLimiter;
use limitador::limit::{Context, Expression, Limit, Namespace};
use quell_envoy::proto::{
    Code, DescriptorStatus, RateLimit, RateLimitRequest, RateLimitResponse, RateLimitService,
    RateLimitServiceServer, Unit,
};
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// The decision of a rival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// None: everything passes.
    Echo,
    /// That of limitador, in memory.
    Limitador,
}

impl Kind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Echo => "echo",
            Self::Limitador => "limitador",
        }
    }
}

/// Settings of a rival.
#[derive(Args, Debug)]
pub(crate) struct Settings {
    #[arg(long)]
    kind: Kind,
    #[arg(long)]
    address: SocketAddr,
}

/// Serves until it is killed.
///
/// # Errors
/// If it cannot listen.
pub(crate) fn run(settings: &Settings) -> Result<()> {
    let service = match settings.kind {
        Kind::Echo => Rival { limiter: None },
        Kind::Limitador => Rival {
            limiter: Some(Arc::new(limiter()?)),
        },
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let server = Server::builder()
        .tcp_nodelay(true)
        .add_service(RateLimitServiceServer::new(service));
    Ok(runtime.block_on(server.serve(settings.address))?)
}

/// The limit of `bench/inputs/envoy.yaml`.
fn limiter() -> Result<RateLimiter> {
    let limiter = RateLimiter::new(1_000_000);
    let user = Expression::parse("descriptors[0].user").map_err(|error| anyhow!("{error:?}"))?;
    limiter.add_limit(Limit::new("bench", 1_000_000_000, 3_600, [], [user]));
    Ok(limiter)
}

struct Rival {
    limiter: Option<Arc<RateLimiter>>,
}

#[tonic::async_trait]
impl RateLimitService for Rival {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let request = request.into_inner();
        let hits = u64::from(request.hits_addend.max(1));
        let mut code = Code::Ok;
        if let Some(limiter) = &self.limiter {
            let each = request.descriptors.iter().map(|descriptor| {
                let entries = descriptor.entries.iter();
                let entries = entries.map(|entry| (entry.key.clone(), entry.value.clone()));
                entries.collect::<HashMap<String, String>>()
            });
            let mut context = Context::default();
            context.list_binding("descriptors".to_owned(), each.collect());
            let domain = Namespace::from(request.domain.as_str());
            let checked = limiter.check_rate_limited_and_update(&domain, &context, hits);
            let checked = checked.map_err(|error| Status::unavailable(error.to_string()))?;
            if checked.limited {
                code = Code::OverLimit;
            }
        }
        let status = DescriptorStatus {
            code: code.into(),
            current_limit: Some(RateLimit {
                name: "per-user".to_owned(),
                requests_per_unit: 1_000_000_000,
                unit: Unit::Hour.into(),
            }),
            limit_remaining: 1,
            ..DescriptorStatus::default()
        };
        Ok(Response::new(RateLimitResponse {
            overall_code: code.into(),
            statuses: vec![status; request.descriptors.len()],
            ..RateLimitResponse::default()
        }))
    }
}
