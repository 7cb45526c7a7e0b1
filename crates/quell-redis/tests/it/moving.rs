//! A slot that moves from one server of a cluster to another, step by step.

use std::time::Duration;

use futures_util::future::join_all;
use quell::{Limit, Limiter, Query};
use quell_core::rule::DomainRules;
use quell_redis::RedisStore;

use crate::cluster::{Cluster, slot_of};
use crate::limits::{SECOND, built, rule};
use crate::patience::{PATIENCE, TIMEOUT, until_it};
use crate::server::{Server, try_command};

fn hourly(limit: u64) -> Limit {
    built(Limit::fixed_window(limit, 3_600 * SECOND).build())
}

/// This many rules with that limit; the keys of a tenant are in one slot.
fn limiter(cluster: &Cluster, limits: &[u64], timeout: Duration) -> Limiter<RedisStore> {
    let rules = limits.iter().enumerate().map(|(number, limit)| {
        let mut rule = rule(number, &["tenant"], &hourly(*limit));
        for per in &mut rule.per {
            per.colocate = true;
        }
        rule
    });
    let store = cluster.store().timeout(timeout).build();
    let limiter = Limiter::builder(store).build();
    let domain = DomainRules::new("d", rules.collect());
    limiter.set_rules(vec![domain]).unwrap();
    limiter
}

async fn passes(subject: &Limiter<RedisStore>) -> Result<bool, String> {
    let query = Query::new("d").entry("tenant", "acme");
    let verdict = subject.try_acquire(&query).await;
    verdict
        .map(|verdict| verdict.is_allow())
        .map_err(|error| error.to_string())
}

/// The slot that contains the only keys of a cluster, on its way to another server.
pub(crate) struct Moving<'a> {
    from: &'a Server,
    to: &'a Server,
    slot: String,
    keys: Vec<Vec<u8>>,
}

impl<'a> Moving<'a> {
    pub(crate) fn begin(cluster: &'a Cluster) -> Self {
        let mut servers = cluster.servers.iter();
        let from = servers.find(|server| !server.keys().is_empty()).unwrap();
        let to = cluster.servers.iter().find(|to| to.port() != from.port());
        let (to, keys) = (to.unwrap(), from.keys());
        let slot = slot_of(from, &keys[0]);
        begin_move(from, to, &slot);
        Self {
            from,
            to,
            slot,
            keys,
        }
    }

    /// Moves one of the keys.
    pub(crate) fn carry(&self, key: usize) {
        assert_eq!(carry(self.from, self.to, &self.keys[key]), "OK");
    }

    pub(crate) fn end(&self) {
        end_move(self.from, self.to, &self.slot);
    }
}

fn begin_move(from: &Server, to: &Server, slot: &str) {
    let id = |server: &Server| server.command(&["CLUSTER", "MYID"]);
    to.command(&["CLUSTER", "SETSLOT", slot, "IMPORTING", &id(from)]);
    from.command(&["CLUSTER", "SETSLOT", slot, "MIGRATING", &id(to)]);
}

/// Moves a key. Returns what the server says: `NOKEY` if it is gone.
fn carry(from: &Server, to: &Server, key: &[u8]) -> String {
    let port = to.port().to_string();
    let mut words: Vec<&[u8]> = vec![b"MIGRATE", b"127.0.0.1", port.as_bytes()];
    words.extend([key, b"0", b"60000"]);
    try_command(from.port(), &words).unwrap()
}

fn end_move(from: &Server, to: &Server, slot: &str) {
    let id = to.command(&["CLUSTER", "MYID"]);
    for server in [to, from] {
        server.command(&["CLUSTER", "SETSLOT", slot, "NODE", &id]);
    }
}

/// Moves a slot with all that is in it.
pub(crate) fn move_slot(from: &Server, to: &Server, slot: &str) {
    begin_move(from, to, slot);
    // From now on no key begins there.
    for key in from.keys() {
        if slot_of(from, &key) == slot {
            let said = carry(from, to, &key);
            assert!(["OK", "NOKEY"].contains(&&*said), "{said}");
        }
    }
    end_move(from, to, slot);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_asked_for_wherever_it_is() {
    let cluster = Cluster::start(0);
    let subject = limiter(&cluster, &[7], 60 * SECOND);
    let some = async |count: usize| {
        for _ in 0..count {
            assert_eq!(passes(&subject).await, Ok(true));
        }
    };
    some(2).await;
    let moving = Moving::begin(&cluster);
    // Still on the first server.
    some(1).await;
    moving.carry(0);
    // ASK: the other server has it, and does not know the script.
    some(2).await;
    assert_eq!(moving.from.keys(), Vec::<Vec<u8>>::new());
    assert_eq!(moving.to.keys(), moving.keys);
    moving.end();
    // MOVED: the other server has it for good.
    some(2).await;
    assert_eq!(passes(&subject).await, Ok(false));
    assert_eq!(moving.to.keys(), moving.keys);
}

/// Answers that say that keys are on their way, of calls that are made together. Calls that end otherwise say nothing.
async fn told_to_try_again(subject: &Limiter<RedisStore>, calls: usize) -> usize {
    let told = join_all((0..calls).map(|_| passes(subject))).await;
    let told = told.into_iter().map(|told| told.unwrap_err());
    told.filter(|error| error.contains("TRYAGAIN")).count()
}

/// While its keys are on two servers no server can decide the set at once: the call ends in time and
/// has charged nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_of_which_half_has_moved_waits_and_charges_nothing() {
    let cluster = Cluster::start(0);
    let subject = limiter(&cluster, &[3, 5], PATIENCE);
    assert_eq!(passes(&subject).await, Ok(true));
    let moving = Moving::begin(&cluster);
    assert_eq!(moving.keys.len(), 2);
    moving.carry(0);
    let hasty = limiter(&cluster, &[3, 5], TIMEOUT);
    until_it("calls end, and say why", async || {
        told_to_try_again(&hasty, 2).await == 2
    })
    .await;
    moving.carry(1);
    assert_eq!(passes(&subject).await, Ok(true));
    moving.end();
    assert_eq!(passes(&subject).await, Ok(true));
    assert_eq!(passes(&subject).await, Ok(false));
}

/// TRYAGAIN is an answer: however many calls get it, the server is available for all its other keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_keys_move_is_not_gone() {
    let cluster = Cluster::start(0);
    let subject = limiter(&cluster, &[3, 5], PATIENCE);
    assert_eq!(passes(&subject).await, Ok(true));
    let moving = Moving::begin(&cluster);
    moving.carry(0);
    let hasty = limiter(&cluster, &[3, 5], TIMEOUT);
    until_it("many calls end, and say why", async || {
        told_to_try_again(&hasty, 8).await == 8
    })
    .await;
    for subject in [&subject, &hasty] {
        let numbers = subject.store().numbers();
        assert!(!numbers.is_gone, "{numbers:?}");
    }
    for number in 0..30 {
        // Either server has some of them.
        let other = Query::new("d").entry("tenant", format!("t{number}"));
        assert!(subject.try_acquire(&other).await.unwrap().is_allow());
    }
    moving.carry(1);
    assert_eq!(passes(&subject).await, Ok(true));
    moving.end();
}
