//! Rivals of Quell behind Envoy: the same service of tonic, which asks the library limitador, the two commands of Redis
//! that envoyproxy/ratelimit sends for each limit of a call, or nobody.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, anyhow, ensure};
use clap::{Args, ValueEnum};
use limitador::RateLimiter;
use limitador::limit::{Context, Expression, Limit, Namespace};
use quell_envoy::proto::{
    Code, DescriptorStatus, RateLimit, RateLimitRequest, RateLimitResponse, RateLimitService,
    RateLimitServiceServer, Unit,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// The decision of a rival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// None: everything passes.
    Echo,
    /// That of limitador, in memory.
    Limitador,
    /// That of `INCRBY` and `EXPIRE`, in one write on a connection of a pool.
    TwoCommands,
}

impl Kind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Echo => "echo",
            Self::Limitador => "limitador",
            Self::TwoCommands => "two-commands",
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
    /// Redis of the two commands.
    #[arg(long)]
    redis: Option<SocketAddr>,
}

/// Serves until it is killed.
///
/// # Errors
/// If it cannot listen.
pub(crate) fn run(settings: &Settings) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let mut service = Rival {
        limiter: None,
        pool: None,
    };
    match (settings.kind, settings.redis) {
        (Kind::Limitador, _) => service.limiter = Some(Arc::new(limiter()?)),
        (Kind::TwoCommands, Some(redis)) => {
            service.pool = Some(runtime.block_on(Pool::open(redis))?);
        }
        (Kind::TwoCommands, None) => return Err(anyhow!("write --redis")),
        (Kind::Echo, _) => {}
    }
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
    pool: Option<Pool>,
}

/// Connections to Redis, of which each carries one question at a time: `REDIS_POOL_SIZE` is 10 there.
struct Pool {
    redis: SocketAddr,
    free: Sender<TcpStream>,
    next: Mutex<Receiver<TcpStream>>,
}

/// A connection of the pool that carries a question. If the client hangs up before the answer, another one takes its
/// place, since the replies on it are another question's.
struct Lent {
    stream: Option<TcpStream>,
    redis: SocketAddr,
    free: Sender<TcpStream>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        if self.stream.take().is_some() {
            let (redis, free) = (self.redis, self.free.clone());
            tokio::spawn(async move {
                let stream = open(redis).await?;
                anyhow::Ok(free.send(stream).await?)
            });
        }
    }
}

async fn open(redis: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(redis).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

impl Pool {
    async fn open(redis: SocketAddr) -> Result<Self> {
        const SIZE: usize = 10;
        let (free, next) = channel(SIZE);
        for _ in 0..SIZE {
            free.send(open(redis).await?).await?;
        }
        let next = Mutex::new(next);
        Ok(Self { redis, free, next })
    }

    /// Adds hits to the count of a key in this hour. Returns the count.
    async fn add(&self, key: &str, hits: u64) -> Result<u64> {
        let next = self.next.lock().await.recv().await;
        let mut lent = Lent {
            stream: next,
            redis: self.redis,
            free: self.free.clone(),
        };
        let stream = lent.stream.as_mut();
        let stream = stream.ok_or_else(|| anyhow!("the pool is closed"))?;
        let hour = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() / 3_600;
        let key = format!("bench_user_{key}_{}", hour * 3_600);
        let hits = hits.to_string();
        let mut commands = Vec::new();
        for words in [["INCRBY", &*key, &*hits], ["EXPIRE", &*key, "3600"]] {
            commands.extend_from_slice(b"*3\r\n");
            for word in words {
                commands.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
            }
        }
        stream.write_all(&commands).await?;
        let mut replies = Vec::new();
        while replies.iter().filter(|byte| **byte == b'\n').count() < 2 {
            ensure!(stream.read_buf(&mut replies).await? > 0, "Redis is gone");
        }
        if let Some(stream) = lent.stream.take() {
            self.free.send(stream).await?;
        }
        let replies = String::from_utf8(replies)?;
        let count = replies
            .lines()
            .next()
            .and_then(|line| line.strip_prefix(':'));
        Ok(count
            .ok_or_else(|| anyhow!("Redis replied {replies:?}"))?
            .parse()?)
    }
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
        if let Some(pool) = &self.pool {
            for entry in request.descriptors.iter().flat_map(|one| &one.entries) {
                let count = pool.add(&entry.value, hits).await;
                let count = count.map_err(|error| Status::unavailable(error.to_string()))?;
                if count > 1_000_000_000 {
                    code = Code::OverLimit;
                }
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
