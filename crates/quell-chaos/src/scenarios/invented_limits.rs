//! Clients that invent limits: each `CL.THROTTLE` carries its own numbers.

use anyhow::{Context, Result, bail, ensure};
use tokio::task::JoinSet;

use crate::load::Load;
use crate::redis::Redis;
use crate::resp::{Reply, Resp, frame};
use crate::rng::Rng;
use crate::server::Server;

const RULES: &str = "
domain: d
rules:
  - { name: fixed, match: { path: /fixed }, per: [user], algorithm: fixed_window, limit: 5/h }
  - { name: bucket, match: { path: /bucket }, per: [user], rate: 5/h }
  - { name: ban, match: { path: /ban }, per: [user], rate: 1/h, ban: { after: 2, within: 1h, for: 1h } }
";

/// More than the 65,536 limits that memory keeps apart.
const INVENTED: u64 = 70_000;

const PIPELINE: u64 = 200;

pub(crate) async fn run(rng: &mut Rng) -> Result<String> {
    let memory = Server::start(RULES, &[]).await?;
    let redis = Redis::start(&[]).await?;
    let rules = RULES.replace("domain: d\n", "domain: d\ndefaults: { on_failure: deny }\n");
    let words = ["--store", &redis.url(), "--store-timeout", "10s"];
    let shared = Server::start(&rules, &words).await?;
    let mut summary = Vec::new();
    for (name, server, invented) in [("memory", &memory, INVENTED), ("store", &shared, 4_000)] {
        let said = attack(server, invented, rng).await;
        summary.push(format!("{name} {}", said.with_context(|| name)?));
    }
    Ok(summary.join("; "))
}

async fn attack(server: &Server, invented: u64, rng: &mut Rng) -> Result<String> {
    let mut client = Resp::connect(server.resp).await?;
    rules_hold(server, "before", true, rng).await?;
    let victim = ["CL.THROTTLE", "victim", "6", "1", "86400", "7"];
    ensure!(
        is_allowed(&client.command(&victim).await?)?,
        "seven of seven"
    );
    // In parallel: each client invents limits of its own, which differ from the others in all
    // numbers.
    let mut clients: JoinSet<Result<u64>> = JoinSet::new();
    for at in 0..4 {
        clients.spawn(invent(server.resp, at, invented / 4));
    }
    let during = rules_hold(server, "during", true, rng).await;
    let mut too_much = 0;
    while let Some(done) = clients.join_next().await {
        too_much += done??;
    }
    during?;
    ensure!(
        too_much == 0,
        "{too_much} keys admitted more than their limit"
    );
    // A user that had used up everything before still has, and new keys of all rules have their full
    // limit.
    for (user, is_new) in [("before", false), ("during", false), ("after", true)] {
        rules_hold(server, user, is_new, rng).await?;
    }
    let one = ["CL.THROTTLE", "victim", "6", "1", "86400", "1"];
    ensure!(!is_allowed(&client.command(&one).await?)?, "eight of seven");
    Ok(format!("{invented} limits invented"))
}

/// Checks that a user gets exactly the limit of each rule, or nothing if it was used up, and that
/// bans hold.
async fn rules_hold(server: &Server, user: &str, is_new: bool, rng: &mut Rng) -> Result<()> {
    for (path, limit) in [("/fixed", 5), ("/bucket", 5), ("/ban", 1)] {
        let mut admitted = 0;
        for _ in 0..limit + 3 {
            let load = Load::on(server.http, path, user).length(1).run(rng).await?;
            load.is_documented()?;
            admitted += load.allowed();
        }
        let due = if is_new { limit } else { 0 };
        ensure!(
            admitted == due,
            "{path} {user}: {admitted} admitted, {due} due"
        );
    }
    let bans = server.client().get("/v1/bans").await?;
    ensure!(
        bans.text.contains(user),
        "{user} is not banned: {}",
        bans.text
    );
    Ok(())
}

/// Asks for keys with a limit of their own each: for the whole limit and for one more. Returns how
/// many keys got more.
async fn invent(port: u16, client: u64, count: u64) -> Result<u64> {
    let mut stream = Resp::connect(port).await?;
    let mut too_much = 0;
    let mut next = 0;
    while next < count {
        let numbers = next..count.min(next + PIPELINE);
        next = numbers.end;
        let mut batch = Vec::new();
        let mut asked = 0;
        for number in numbers {
            // Bursts start at 2, and each client has a period of its own.
            let burst = 2 + number;
            let (key, all) = (format!("{client}-{number}"), burst.to_string());
            let (most, period) = ((burst - 1).to_string(), (80_000 + client).to_string());
            for quantity in [all.as_str(), "1"] {
                batch.extend(frame(&["CL.THROTTLE", &key, &most, "1", &period, quantity]));
            }
            asked += 1;
        }
        stream.send(&batch).await?;
        for _ in 0..asked {
            let all = is_allowed(&stream.read().await?)?;
            let one_more = is_allowed(&stream.read().await?)?;
            too_much += u64::from(all && one_more);
        }
    }
    Ok(too_much)
}

fn is_allowed(reply: &Reply) -> Result<bool> {
    match reply {
        Reply::List(numbers) if numbers.len() == 5 => Ok(numbers[0] == Reply::Number(0)),
        other => bail!("{other:?}"),
    }
}
