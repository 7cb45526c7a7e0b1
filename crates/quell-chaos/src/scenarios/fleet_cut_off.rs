//! A node that has most of a limit, or has lent what it had, is cut off at the very moment at which everybody
//! wants all of it, while coordinators are well, die, stand still, or answer late.
//!
//! Faults that come when they please hardly ever meet the moment in which a mistake would show. Here each scene is
//! made for some of them.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use quell_testkit::proxy::Fault;

use crate::fleet::{Durations, Fleet, excess};
use crate::load::{Account, Aim, Kind, Load};
use crate::rng::Rng;

/// Units per second of the limit.
const RATE: f64 = 600.0;

/// Its burst: a little, so that what is shared out twice for a while soon exceeds it.
const BURST: f64 = 10.0;

const RULES: &str = "
domain: d
defaults: { rung: shares, cluster_size: auto }
rules:
  - { name: users, match: { path: /a }, rate: 600/s, burst: 10 }
";

/// Time for which a node keeps its share without an answer.
const LEASE: Duration = Duration::from_secs(4);

/// Time for which a scene goes on after the cut. A static share begins 1.154 leases after the last answer.
const AFTER: Duration = Duration::from_millis(7_500);

/// Fate of the node when it is cut off.
#[derive(Clone, Copy, Debug)]
enum Scene {
    /// Nothing else: what the node has must not be given to others while it may use it.
    Alone,
    /// Coordinators are killed: the next leader has to wait for what it cannot know.
    Killed,
    /// The node had lent what it had, and soon nobody leads: it must not take it back before its promise is over,
    /// and others must give it back until then.
    Lent,
    /// The leader, cut off from etcd as well, stands still until another one leads, and then finds the node.
    Frozen,
    /// The last answer to the node comes late.
    Late,
}

const SCENES: [Scene; 5] = [
    Scene::Alone,
    Scene::Killed,
    Scene::Lent,
    Scene::Frozen,
    Scene::Late,
];

/// Scenes of one run.
const ROUND: usize = 3;

/// Plays a scene on a fleet that is well. Returns all calls.
async fn play(fleet: &mut Fleet, scene: Scene, rng: &mut Rng) -> Result<Account> {
    let nodes: Vec<usize> = (0..fleet.nodes.len()).collect();
    let node = rng.pick(&nodes);
    let leader = fleet.leader_of(node).await?;
    let (settles, aim) = (rng.within(1_500..2_500), Aim::default());
    let others: Vec<usize> = nodes.into_iter().filter(|other| *other != node).collect();
    match scene {
        Scene::Lent => aim.at(&others),
        _ => aim.at(&[node]),
    }
    let length = AFTER + Duration::from_millis(settles);
    let running = load(fleet, &aim, length).start(rng);
    sleep(settles).await;
    let lost = rng.pick(&[Fault::Lose, Fault::Stall, Fault::Refuse]);
    let links = fleet.links_of(node);
    let cut = |fault| links.iter().for_each(|link| link.set(fault));
    match scene {
        Scene::Alone => cut(lost),
        Scene::Lent => {
            cut(lost);
            aim.at_all();
            // A leader would soon take back what a silent node has lent.
            sleep(rng.within(1_000..2_000)).await;
            fleet
                .coordinators
                .iter()
                .try_for_each(|one| one.signal("STOP"))?;
        }
        Scene::Killed => {
            cut(lost);
            for coordinator in &mut fleet.coordinators {
                coordinator.crash()?;
            }
        }
        Scene::Late => {
            cut(Fault::Delay(Duration::from_millis(
                rng.within(1_000..1_700),
            )));
            aim.at_all();
            sleep(250).await;
            cut(Fault::Lose);
        }
        Scene::Frozen => {
            for (place, link) in links.iter().enumerate() {
                if place != leader {
                    link.set(Fault::Refuse);
                }
            }
            // Nobody tells it that its time is over.
            fleet.back_of(leader).set(Fault::Lose);
            fleet.coordinators[leader].signal("STOP")?;
            aim.at_all();
            tokio::time::sleep(LEASE).await;
            sleep(rng.within(700..2_000)).await;
            fleet.coordinators[leader].signal("CONT")?;
        }
    }
    aim.at_all();
    let account = running.finish().await?;
    fleet
        .coordinators
        .iter()
        .try_for_each(|one| one.signal("CONT"))?;
    for link in fleet.links_of(node).iter().chain([fleet.back_of(leader)]) {
        // What was held back on the way does not come any more.
        link.set(Fault::Forgotten);
    }
    Ok(account)
}

async fn sleep(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

/// Callers of all nodes, each of which is asked for more than the limit.
fn load(fleet: &Fleet, aim: &Aim, length: Duration) -> Load {
    let load = Load::on(0, "/a", "all").clients(12).pause(4);
    Load {
        ports: fleet.ports.clone(),
        aim: aim.clone(),
        length,
        ..load
    }
}

pub(crate) async fn run(rng: &mut Rng) -> Result<String> {
    let mut fleet = Fleet::start(RULES, Durations::from_lease(LEASE), rng).await?;
    let mut told = Vec::new();
    // In any order: what one scene leaves behind is the next one's beginning.
    let mut scenes = SCENES.to_vec();
    for _ in 0..ROUND {
        let places: Vec<usize> = (0..scenes.len()).collect();
        let scene = scenes.swap_remove(rng.pick(&places));
        fleet.is_granted().await?;
        let account = play(&mut fleet, scene, rng).await?;
        let closest = excess(&account, RATE, BURST).with_context(|| format!("{scene:?}"))?;
        let wrong = account.kinds(Kind::Undocumented);
        ensure!(
            wrong == 0,
            "{scene:?}: {wrong} undocumented answers; {account}"
        );
        ensure!(
            account.allowed() > 0,
            "{scene:?}: nothing was admitted; {account}"
        );
        let (name, asked) = (format!("{scene:?}").to_lowercase(), account.calls.len());
        let limit = BURST + RATE * account.length().as_secs_f64();
        told.push(format!(
            "{name}: {} of {limit:.0} admitted of {asked} calls, {:.0} short of the limit at the closest",
            account.allowed(),
            -closest
        ));
    }
    Ok(told.join("; "))
}
