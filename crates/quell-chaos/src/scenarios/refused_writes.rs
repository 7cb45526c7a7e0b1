//! The store answers, and refuses to write.

use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::load::Load;
use crate::process::wait;
use crate::proxy::{Fault, Proxy};
use crate::redis::Redis;
use crate::rng::Rng;
use crate::server::Server;

/// An hour lets one unit come back in 36 s, so that none comes back here.
const RULES: &str = "
domain: d
defaults: { on_failure: share, nodes: 1 }
rules:
  - { name: users, match: { path: /a }, per: [user], rate: 100/h }
";

const LIMIT: usize = 100;

pub(crate) async fn run(rng: &mut Rng) -> Result<String> {
    let redis = Redis::start(&[]).await?;
    let proxy = Proxy::start(redis.port, rng).await?;
    // A payment that is sent and not answered in time counts as made: here all are answered in time.
    let words = ["--store", &proxy.url(), "--store-timeout", "5s"];
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
            passed <= LIMIT,
            "{refusal}: {passed} of {LIMIT} passed, {account}"
        );
        ensure!(
            passed >= LIMIT || calls < LIMIT,
            "{refusal}: only {passed}, {account}"
        );
        summary.push(format!("{refusal} {clients} clients {passed} of {calls}"));
        if clients == 64 {
            erase_debt(&server, &proxy, &user).await?;
        }
        set(&redis, refusal, false).await?;
        wait("all is paid", Duration::from_secs(20), async || {
            let owed = server.metric("quell_store_owed_keys").await.ok()?;
            (owed < 0.5).then_some(())
        })
        .await?;
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

/// The store answers late, so that a payment takes a while, and callers hang up meanwhile.
async fn erase_debt(server: &Server, proxy: &Proxy, user: &str) -> Result<()> {
    proxy.set(Fault::Delay(Duration::from_millis(20)));
    let body = format!(r#"{{"domain":"d","entries":{{"path":"/a","user":"{user}"}}}}"#);
    let request = format!(
        "POST /v1/acquire HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    for _ in 0..200 {
        let mut stream = TcpStream::connect(("127.0.0.1", server.http)).await?;
        stream.write_all(request.as_bytes()).await?;
        tokio::time::sleep(Duration::from_millis(5)).await;
        stream.set_zero_linger()?;
    }
    proxy.set(Fault::None);
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
