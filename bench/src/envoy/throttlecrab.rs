//! throttlecrab-server, asked by its own gRPC, under a limit that is never reached.

use std::net::SocketAddr;
use std::process::Command;

use anyhow::{Result, ensure};
use prost::Message;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tonic_prost::ProstCodec;

use super::{Call, Rival};
use crate::draws::key;
use crate::processes::{Running, free_address, installed_throttlecrab};

/// The method that decides.
const METHOD: &str = "/throttlecrab.RateLimiter/Throttle";

/// Its question.
#[derive(Clone, PartialEq, Message)]
struct Question {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(int32, tag = "2")]
    max_burst: i32,
    #[prost(int32, tag = "3")]
    count_per_period: i32,
    /// Seconds.
    #[prost(int32, tag = "4")]
    period: i32,
    #[prost(int32, tag = "5")]
    quantity: i32,
}

/// Its answer, of which nothing else is read.
#[derive(Clone, PartialEq, Message)]
struct Answer {
    #[prost(bool, tag = "1")]
    allowed: bool,
}

/// Starts it, and asks once.
///
/// # Errors
/// If it cannot be installed or started, or does not allow the call.
pub(super) fn start() -> Result<Rival> {
    let address = free_address()?;
    let mut command = Command::new(installed_throttlecrab()?);
    command.args(["--grpc", "--grpc-host", &address.ip().to_string()]);
    command.args(["--grpc-port", &address.port().to_string()]);
    command.args(["--log-level", "error"]);
    let question = Question {
        key: key(0),
        max_burst: 1_000_000_000,
        count_per_period: 1_000_000_000,
        period: 3_600,
        quantity: 1,
    };
    let rival = Rival {
        name: "throttlecrab",
        address,
        running: Running::start("throttlecrab", &mut command, address)?,
        redis: None,
        call: Call::new(METHOD, &question)?,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let answer = runtime.block_on(ask(address, question))?;
    ensure!(answer.allowed, "throttlecrab answers {answer:?}");
    Ok(rival)
}

async fn ask(address: SocketAddr, question: Question) -> Result<Answer> {
    let channel = Endpoint::from_shared(format!("http://{address}"))?
        .connect()
        .await?;
    let mut client = Grpc::new(channel);
    client.ready().await?;
    let codec: ProstCodec<Question, Answer> = ProstCodec::default();
    let method = PathAndQuery::from_static(METHOD);
    let answer = client
        .unary(tonic::Request::new(question), method, codec)
        .await?;
    Ok(answer.into_inner())
}
