//! Minutes without etcd: nodes end at their static shares, then at a tenth of them, and come back by themselves.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::fleet::{DRIFT, Durations, Fleet, excess};
use crate::load::{Account, Kind, Load};
use crate::rng::Rng;

/// Units per second of the limit.
const RATE: f64 = 100.0;

/// Its burst.
const BURST: f64 = 20.0;

const RULES: &str = "
domain: d
defaults: { rung: shares, cluster_size: auto }
rules:
  - { name: users, match: { path: /a }, rate: 100/s, burst: 20 }
";

const DURATIONS: Durations = Durations {
    lease: Duration::from_secs(3),
    hold: Duration::from_secs(90),
};

/// Time for which etcd is gone.
const GONE: Duration = Duration::from_secs(180);

/// The seconds without etcd in which nodes use their static shares, and those in which they use a tenth.
const STATIC: [u64; 2] = [10, 85];
const FLOOR: [u64; 2] = [100, 175];

/// Time for which the fleet is judged afterwards, in milliseconds.
const CALM: u64 = 5_000;

/// Callers of all nodes, more than twice the limit.
fn load(fleet: &Fleet, length: Duration) -> Load {
    let load = Load::on(0, "/a", "all").clients(6).pause(25);
    Load {
        ports: fleet.ports.clone(),
        length,
        ..load
    }
}

/// Units admitted in these seconds, and the units of the whole limit.
fn used(account: &Account, gone: Instant, [from, until]: [u64; 2]) -> (f64, f64) {
    let at = |seconds| gone + Duration::from_secs(seconds);
    let is_then = |begun: Instant, ended: Instant| begun >= at(from) && ended <= at(until);
    let admitted =
        account.count(|call| call.kind == Kind::Allowed && is_then(call.begun, call.ended));
    (admitted as f64, RATE * (until - from) as f64)
}

fn judge(account: &Account) -> Result<()> {
    account.is_documented()?;
    excess(account, RATE, BURST)?;
    Ok(())
}

pub(crate) async fn run(rng: &mut Rng) -> Result<String> {
    let mut fleet = Fleet::start(RULES, DURATIONS, rng).await?;
    fleet.is_granted().await?;
    let pause = Duration::from_millis(rng.within(500..3_000));
    let running = load(&fleet, pause + GONE).start(rng);
    tokio::time::sleep(pause).await;
    fleet.etcd.kill();
    let gone = Instant::now();
    let account = running.finish().await?;
    judge(&account)?;
    let (alone, limit) = used(&account, gone, STATIC);
    ensure!(
        alone >= 0.8 * limit,
        "only {alone} of {limit} with static shares; {account}"
    );
    let (least, limit) = used(&account, gone, FLOOR);
    let tenth = limit / 10.0;
    ensure!(
        least >= 0.5 * tenth && least <= tenth * DRIFT + BURST,
        "{least} with a tenth of the static shares, which is {tenth}; {account}"
    );

    fleet.etcd.begin_again();
    fleet.is_granted().await?;
    let back = gone.elapsed() - GONE;
    let calm = load(&fleet, Duration::from_millis(CALM)).run(rng).await?;
    judge(&calm)?;
    let (admitted, limit) = (calm.allowed() as f64, RATE * calm.length().as_secs_f64());
    ensure!(
        admitted >= 0.8 * limit,
        "only {admitted} of {limit:.0} afterwards; {calm}"
    );
    Ok(format!(
        "{alone} admitted in 75 s with static shares and {least} with a tenth of them; granted again {:.1} s \
         after etcd, then {admitted} of {limit:.0}",
        back.as_secs_f32()
    ))
}
