//! The store answers, but refuses to write.

use std::time::Duration;

use anyhow::{Result, ensure};
use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use hyper::client::conn::http2::handshake;
use hyper_util::rt::{TokioExecutor, TokioIo};
use quell_testkit::proxy::{Fault, Proxy};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::load::Load;
use crate::redis::Redis;
use crate::rng::Rng;
use crate::server::Server;

/// With a limit per hour one unit comes back every 36 s, so none comes back during this run.
const RULES: &str = "
domain: d
defaults: { on_failure: share, nodes: 1 }
rules:
  - { name: users, match: { path: /a }, per: [user], rate: 100/h }
";

const LIMIT: usize = 100;

/// When a caller that does not wait for its answer hangs up.
const GIVES_UP: Duration = Duration::from_millis(5);

pub(crate) async fn run(rng: &mut Rng) -> Result<String> {
    let redis = Redis::start(&[]).await?;
    let proxy = Proxy::seeded(redis.port, rng.next());
    // A payment that is sent and not answered in time counts as made; here all are answered in time.
    let words = ["--store", &proxy.redis_url(), "--store-timeout", "5s"];
    let server = Server::start(RULES, &words).await?;
    let mut summary = Vec::new();
    for clients in [64, 4, 1] {
        let refusal = rng.pick(&["noreplicas", "oom", "noperm"]);
        set(&redis, refusal, true).await?;
        let user = format!("{refusal}-{clients}");
        let load = Load::on(server.http, "/a", &user).clients(clients);
        let account = load.length(700).run(rng).await?;
        account.is_documented()?;
        let passed = account.allowed();
        let calls = account.calls.len();
        ensure!(
            passed == LIMIT.min(calls),
            "{refusal}: {passed} of {LIMIT} passed, {account}"
        );
        summary.push(format!("{refusal} {clients} clients {passed} of {calls}"));
        if clients == 64 {
            erase_debt(&server, &proxy, &user).await?;
        }
        set(&redis, refusal, false).await?;
        server.has_paid(Duration::from_secs(4)).await?;
        let after = Load::on(server.http, "/a", &user).clients(clients);
        let after = after.length(300).run(rng).await?;
        let more = after.allowed();
        ensure!(
            passed + more <= LIMIT,
            "{refusal}: {passed}, then {more} more once it is back"
        );
    }
    Ok(summary.join("; "))
}

/// The store answers late, so that a payment takes a while. Meanwhile two callers give up: one
/// resets its connections, the other resets HTTP/2 streams on a connection that stays open.
async fn erase_debt(server: &Server, proxy: &Proxy, user: &str) -> Result<()> {
    proxy.set(Fault::Delay(Duration::from_millis(20)));
    let body = format!(r#"{{"domain":"d","entries":{{"path":"/a","user":"{user}"}}}}"#);
    let connections = reset_connections(server.http, &body);
    let streams = reset_streams(server.http, &body);
    tokio::try_join!(connections, streams)?;
    proxy.set(Fault::None);
    Ok(())
}

async fn reset_connections(port: u16, body: &str) -> Result<()> {
    let request = format!(
        "POST /v1/acquire HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    for _ in 0..200 {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.write_all(request.as_bytes()).await?;
        tokio::time::sleep(GIVES_UP).await;
        stream.set_zero_linger()?;
    }
    Ok(())
}

async fn reset_streams(port: u16, body: &str) -> Result<()> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let (mut connection, driver) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    tokio::spawn(driver);
    for _ in 0..200 {
        connection.ready().await?;
        let request = Request::post(format!("http://127.0.0.1:{port}/v1/acquire"))
            .header("content-type", "application/json")
            .body(Full::new(Bytes::copy_from_slice(body.as_bytes())))?;
        // Dropping the request resets its stream.
        let answer = tokio::time::timeout(GIVES_UP, connection.send_request(request)).await;
        if let Ok(answer) = answer {
            answer?;
        }
    }
    Ok(())
}

async fn set(redis: &Redis, refusal: &str, refuses: bool) -> Result<()> {
    match (refusal, refuses) {
        ("noreplicas", _) => {
            let least = if refuses { "1" } else { "0" };
            redis.configure("min-replicas-to-write", least).await
        }
        ("oom", _) => {
            let most = if refuses { "1" } else { "0" };
            redis.configure("maxmemory", most).await
        }
        (_, _) => {
            let right = if refuses { "-@write" } else { "+@all" };
            redis.command(&["ACL", "SETUSER", "default", right]).await?;
            Ok(())
        }
    }
}
