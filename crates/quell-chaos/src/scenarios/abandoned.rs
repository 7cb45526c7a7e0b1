//! Callers that hang up while the server does work that all callers share.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use quell_testkit::proxy::{Fault, Proxy};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::load::{Account, Load};
use crate::process::wait;
use crate::redis::Redis;
use crate::rng::Rng;
use crate::server::Server;

const RULES: &str = "
domain: d
defaults: { on_failure: share, nodes: 1 }
rules:
  - { name: users, match: { path: /a }, per: [user], rate: 1000/s }
";

/// Time for which answers may stay degraded after the store is back: it is found within a second, and
/// limits stay shared for two more.
const BACK: Duration = Duration::from_secs(4);

pub(crate) async fn run(rng: &mut Rng) -> Result<String> {
    let redis = Redis::start(&[]).await?;
    let proxy = Proxy::seeded(redis.port, rng.next());
    let server = Server::start(RULES, &["--store", &proxy.redis_url()]).await?;
    server.is_status("ok", Duration::from_secs(20)).await?;
    let mut impatient = JoinSet::new();
    for client in 0..16 {
        let port = server.http;
        impatient.spawn(hang_up(port, client, rng.fork()));
    }
    let mut summary = Vec::new();
    for _ in 0..2 {
        let fault = rng.pick(&[
            Fault::Stall,
            Fault::Lose,
            Fault::Delay(Duration::from_millis(700)),
        ]);
        proxy.set(fault);
        tokio::time::sleep(Duration::from_millis(rng.within(600..1_800))).await;
        proxy.set(Fault::Refuse);
        tokio::time::sleep(Duration::from_millis(30)).await;
        proxy.set(Fault::None);
        let back = Instant::now();
        let mut last = Account::default();
        let what = "a patient caller is answered by the store";
        let seen = wait(what, BACK, async || {
            last = Load::on(server.http, "/a", "patient")
                .pause(5)
                .length(100)
                .run(rng)
                .await
                .ok()?;
            (last.degraded() == 0 && last.allowed() > 0).then_some(())
        });
        seen.await.with_context(|| format!("{fault:?}: {last}"))?;
        summary.push(format!("{fault:?} {:.1?}", back.elapsed()));
    }
    impatient.abort_all();
    let panics = server.logged("panicked");
    ensure!(panics == 0, "{}", server.process.stderr());
    Ok(format!(
        "answered by the store again after {}",
        summary.join(", ")
    ))
}

/// Sends calls and resets the connection after a moment, again and again.
async fn hang_up(port: u16, client: usize, mut rng: Rng) -> Result<()> {
    let body = format!(r#"{{"domain":"d","entries":{{"path":"/a","user":"hasty-{client}"}}}}"#);
    let request = format!(
        "POST /v1/acquire HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    loop {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.write_all(request.as_bytes()).await?;
        tokio::time::sleep(Duration::from_millis(rng.within(1..40))).await;
        stream.set_zero_linger()?;
    }
}
