//! The scenarios, in the order in which they run.

mod fleet;
mod fleet_cut_off;
mod fleet_without_etcd;
mod invented_limits;
mod leader_death;
mod many_holds;
mod outage_bounds;
mod over_admission;
mod over_admission_cell;
mod over_admission_fail_over;
mod stored_overrides;
mod stored_overrides_history;
mod utilisation;
mod weather;

use anyhow::Result;
use futures_util::future::LocalBoxFuture;

use crate::rng::Rng;

/// One attack and the promise that must hold.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) promise: &'static str,
    /// Duration of a run. One of more than a minute runs only if it is named.
    pub(crate) seconds: u64,
    /// True if the scenario must run alone on the machine.
    pub(crate) is_alone: bool,
    pub(crate) run: for<'a> fn(&'a mut Rng) -> LocalBoxFuture<'a, Result<String>>,
}

/// Scenarios that promise a rate or a duration of real processes, which a busy machine may break: they run only if they
/// are named.
pub(crate) const TIMED: [&str; 3] = ["many-holds", "utilisation", "leader-death"];

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "outage-strict",
        promise: "a store that stands still, and one that is killed and comes back empty, one after the other: in any \
                  interval three servers admit at most rate x time and one burst, one more for each outage, and \
                  one for what the store forgot",
        seconds: 16,
        is_alone: false,
        run: |rng| Box::pin(outage_bounds::run(outage_bounds::Rung::Strict, rng)),
    },
    Scenario {
        name: "outage-leased",
        promise: "the same for a rule that is leased, and its bound",
        seconds: 16,
        is_alone: false,
        run: |rng| Box::pin(outage_bounds::run(outage_bounds::Rung::Leased, rng)),
    },
    Scenario {
        name: "outage-synced",
        promise: "the same for a rule that is synced, and its bound",
        seconds: 16,
        is_alone: false,
        run: |rng| Box::pin(outage_bounds::run(outage_bounds::Rung::Synced, rng)),
    },
    Scenario {
        name: "outage-strict-large",
        promise: "what outage-strict promises, for one outage of each kind and for two in a row",
        seconds: 80,
        is_alone: true,
        run: |rng| Box::pin(outage_bounds::run_large(outage_bounds::Rung::Strict, rng)),
    },
    Scenario {
        name: "outage-leased-large",
        promise: "the same for a rule that is leased, and its bound",
        seconds: 80,
        is_alone: true,
        run: |rng| Box::pin(outage_bounds::run_large(outage_bounds::Rung::Leased, rng)),
    },
    Scenario {
        name: "outage-synced-large",
        promise: "the same for a rule that is synced, and its bound",
        seconds: 80,
        is_alone: true,
        run: |rng| Box::pin(outage_bounds::run_large(outage_bounds::Rung::Synced, rng)),
    },
    Scenario {
        name: "many-holds",
        promise: "with 990 permits held on a key no script runs for 100 ms, and scripts take less than \
                  20 ms on average",
        seconds: 5,
        is_alone: true,
        run: |rng| Box::pin(many_holds::run(rng)),
    },
    Scenario {
        name: "invented-limits",
        promise: "clients that invent more limits than a server keeps apart get no more than they ask \
                  for, and do not affect rules, bans or other clients that bring limits along",
        seconds: 7,
        is_alone: false,
        run: |rng| Box::pin(invented_limits::run(rng)),
    },
    Scenario {
        name: "over-admission",
        promise: "servers that decide in memory, and charge their store in advance or afterwards, together \
                  exceed a limit by the bound that they state at most: in steady load, when a server stands \
                  still, leaves or is killed (afterwards: by its part of the bound once more), and when the \
                  store stands still or loses its answers; a store that is emptied, or starts again empty, grants \
                  nothing again if all servers were busy with the key, else one more burst and the bound; one \
                  whose clock is set ahead and back grants the bound and what the limit produces in the step; \
                  and no server uses what was not charged for it",
        seconds: 9,
        is_alone: false,
        run: |rng| Box::pin(over_admission::run(rng)),
    },
    Scenario {
        name: "over-admission-fail-over",
        promise: "the same on Sentinel and on a Cluster; when another server takes over from a primary that \
                  hangs or is killed, what it lacks of a key is granted again, and the bound, and of a key that \
                  it does not know nothing; and the rule goes on",
        seconds: 18,
        is_alone: false,
        run: |rng| Box::pin(over_admission_fail_over::run(rng)),
    },
    Scenario {
        name: "utilisation",
        promise: "without faults 2 or 8 servers that decide in memory admit at least 97 % of what a limit \
                  produces while callers stay where they are, and 93 % while all of them move from server to \
                  server",
        seconds: 18,
        is_alone: false,
        run: |rng| Box::pin(utilisation::run(rng)),
    },
    Scenario {
        name: "fleet",
        promise: "whatever happens to etcd, two coordinators, three nodes and the network between them: the \
                  nodes admit at most burst + rate x time in any interval, and afterwards the limit is used \
                  again",
        seconds: 22,
        is_alone: false,
        run: |rng| Box::pin(fleet::run(rng)),
    },
    Scenario {
        name: "fleet-cut-off",
        promise: "when the node that has most of a limit is cut off, or one that had lent all, and everybody \
                  wants all of it at that moment, while coordinators are well, are killed, stand still or \
                  answer late: the nodes admit at most burst + rate x time in any interval",
        seconds: 40,
        is_alone: false,
        run: |rng| Box::pin(fleet_cut_off::run(rng)),
    },
    Scenario {
        name: "fleet-without-etcd",
        promise: "while etcd is gone for three minutes, nodes use the whole limit by their static shares, after \
                  --hold a tenth of it, and never more; when etcd is back, all is granted again by itself",
        seconds: 200,
        is_alone: false,
        run: |rng| Box::pin(fleet_without_etcd::run(rng)),
    },
    Scenario {
        name: "leader-death",
        promise: "when the leader of a fleet under load is killed, the three nodes admit within 40 s at least 97 % \
                  of the rate that they admitted before, and at most burst + rate x time in any interval",
        seconds: 80,
        is_alone: true,
        run: |rng| Box::pin(leader_death::run(rng)),
    },
    Scenario {
        name: "weather",
        promise: "whatever happens to one to three servers and their store: every answer is a \
                  documented one, at most 2 - 1/N times the limit and the calls in flight or misread \
                  are admitted, and 12 s afterwards all is normal, paid and counted",
        seconds: 17,
        is_alone: false,
        run: |rng| Box::pin(weather::run(rng)),
    },
    Scenario {
        name: "stored-overrides",
        promise: "stored overrides that change all the time, while servers are killed and cut off and their Redis \
                  stands still, fails over to a replica that lacks the last changes, and comes back empty: a change \
                  that was acknowledged is there afterwards, unless the fail-over lost it, and each server tells that; \
                  all servers decide by what the store has, and at any time by numbers that somebody had written; \
                  what an empty store had stays in force, and is told, until something is written to it",
        seconds: 18,
        is_alone: false,
        run: |rng| Box::pin(stored_overrides::run(rng)),
    },
];
