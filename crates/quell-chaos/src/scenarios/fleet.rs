//! Nodes that share a limit behind a network that delays, loses and cuts, in both directions or in one, while
//! processes stand still and die.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::fleet::{Durations, Fleet, excess};
use crate::load::{Account, Aim, Kind, Load};
use crate::rng::Rng;
use quell_testkit::proxy::Fault;

/// Units per second of the limit.
const RATE: f64 = 300.0;

/// Its burst.
const BURST: f64 = 60.0;

const RULES: &str = "
domain: d
defaults: { rung: shares, cluster_size: auto }
rules:
  - { name: users, match: { path: /a }, rate: 300/s, burst: 60 }
";

/// Time for which a node keeps its share without an answer.
const LEASE: Duration = Duration::from_secs(3);

/// Duration of the attack, in milliseconds.
const ATTACK: u64 = 12_000;

/// Time for which the fleet is judged afterwards, in milliseconds.
const CALM: u64 = 3_000;

/// For how long one node is the busy one, and then all are.
const STAYS: Duration = Duration::from_millis(1_500);

/// Callers of all nodes, some three times the limit.
fn load(fleet: &Fleet, ms: u64) -> Load {
    let load = Load::on(0, "/a", "all").clients(6).pause(5).length(ms);
    Load {
        ports: fleet.ports.clone(),
        ..load
    }
}

/// The same callers, who all go to one node, so that shares follow them, and spread again, so that what was
/// shared out twice is used; and a few who stay.
fn moving(fleet: &Fleet) -> [Load; 2] {
    let all = load(fleet, ATTACK);
    let aim = Aim::default();
    let (aimed, ports) = (aim.clone(), fleet.ports.len());
    let few = Load {
        aim: Aim::default(),
        ..all.clone().clients(3).pause(40)
    };
    tokio::spawn(async move {
        let begun = Instant::now();
        for place in (0..ports).cycle() {
            aimed.at(&[place]);
            tokio::time::sleep(STAYS).await;
            aimed.at_all();
            tokio::time::sleep(STAYS).await;
            if begun.elapsed() > Duration::from_millis(ATTACK) {
                break;
            }
        }
    });
    [Load { aim, ..all }, few]
}

/// Something happens to one of them, for a while.
async fn strike(fleet: &mut Fleet, rng: &mut Rng) -> Result<()> {
    let length = Duration::from_millis(rng.within(200..2_500));
    let pause = async || tokio::time::sleep(length).await;
    let place = |rng: &mut Rng, among: usize| {
        let among = u64::try_from(among).unwrap_or(1);
        usize::try_from(rng.within(0..among)).unwrap_or(0)
    };
    match rng.within(0..10) {
        0 => {
            let node = &fleet.nodes[place(rng, fleet.nodes.len())];
            node.signal("STOP")?;
            pause().await;
            node.signal("CONT")?;
        }
        1 => {
            let node = place(rng, fleet.nodes.len());
            fleet.nodes[node].crash()?;
        }
        2 => {
            let coordinator = &fleet.coordinators[place(rng, fleet.coordinators.len())];
            coordinator.signal("STOP")?;
            pause().await;
            coordinator.signal("CONT")?;
        }
        3 => {
            let coordinator = place(rng, fleet.coordinators.len());
            fleet.coordinators[coordinator].crash()?;
        }
        4 => {
            fleet.etcd.signal("STOP");
            pause().await;
            fleet.etcd.signal("CONT");
        }
        _ => {
            let delay = Duration::from_millis(rng.within(20..800));
            let faults = [
                Fault::Delay(delay),
                Fault::Stall,
                Fault::Lose,
                Fault::LoseAnswers,
                Fault::Refuse,
            ];
            let links = fleet.links();
            let link = links[place(rng, links.len())];
            link.set(rng.pick(&faults));
            pause().await;
            // What was lost on a connection does not come: it is as if a router had forgotten it.
            link.set(Fault::Forgotten);
        }
    }
    Ok(())
}

pub(crate) async fn run(rng: &mut Rng) -> Result<String> {
    let mut fleet = Fleet::start(RULES, Durations::from_lease(LEASE), rng).await?;
    fleet.is_granted().await?;
    let running = moving(&fleet).map(|load| load.start(rng));
    let begun = Instant::now();
    let mut strikes = 0;
    // The last one may take its time, and be over with the calls.
    while begun.elapsed() < Duration::from_millis(ATTACK - 2_500) {
        strike(&mut fleet, rng).await?;
        strikes += 1;
    }
    let mut attacked = Account::default();
    for running in running {
        attacked.add(running.finish().await?);
    }
    let closest = excess(&attacked, RATE, BURST)?;
    let wrong = attacked.kinds(Kind::Undocumented);
    ensure!(wrong == 0, "{wrong} undocumented answers; {attacked}");
    ensure!(attacked.allowed() > 0, "nothing was admitted; {attacked}");

    fleet.is_granted().await?;
    let calm = load(&fleet, CALM).run(rng).await?;
    calm.is_documented()?;
    excess(&calm, RATE, BURST)?;
    let (admitted, limit) = (calm.allowed() as f64, RATE * calm.length().as_secs_f64());
    // A machine that is too slow for as many calls proves nothing.
    let is_busy = calm.calls.len() as f64 >= 2.0 * limit;
    ensure!(
        admitted >= 0.8 * limit || !is_busy,
        "only {admitted} of {limit:.0} afterwards; {calm}"
    );
    Ok(format!(
        "{strikes} faults, {} of {:.0} admitted, {:.0} short of the limit at the closest; afterwards {admitted} \
         of {limit:.0}",
        attacked.allowed(),
        BURST + RATE * attacked.length().as_secs_f64(),
        -closest,
    ))
}
