//! The scenarios, in the order in which they run.

mod abandoned;
mod clock_steps;
mod debt_memory;
mod disk_full;
mod empty_rules;
mod exact_debts;
mod fail_over;
mod flapping;
mod health;
mod idle_debts;
mod invented_limits;
mod late_payer;
mod many_holds;
mod one_cut_off;
mod overload;
mod refill_once;
mod refused_writes;
mod rolling_restart;
mod silent_loss;
mod two_versions;
mod waiters;
mod weather;

use anyhow::Result;
use futures_util::future::LocalBoxFuture;

use crate::rng::Rng;

/// One attack and the promise that must hold.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) promise: &'static str,
    /// How long it takes.
    pub(crate) seconds: u64,
    /// Whether it needs the machine for itself.
    pub(crate) is_alone: bool,
    pub(crate) run: for<'a> fn(&'a mut Rng) -> LocalBoxFuture<'a, Result<String>>,
}

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "refused-writes",
        promise: "a store that answers and refuses to write: never more than the share, whatever the \
                  number of clients, and never more than the limit once what was let pass is charged",
        seconds: 6,
        is_alone: false,
        run: |rng| Box::pin(refused_writes::run(rng)),
    },
    Scenario {
        name: "overload",
        promise: "a store that has too much to do and goes on answering is never taken for gone: no \
                  answer is degraded, what is too much is refused as overloaded, and all is well 5 s later",
        seconds: 6,
        is_alone: true,
        run: |rng| Box::pin(overload::run(rng)),
    },
    Scenario {
        name: "two-versions",
        promise: "while two versions of a limit are in force, on two servers, in a file that changes or in \
                  calls that bring their numbers, at most the larger one is admitted",
        seconds: 7,
        is_alone: false,
        run: |rng| Box::pin(two_versions::run(rng)),
    },
    Scenario {
        name: "refill-once",
        promise: "a store that comes and goes while a bucket refills: at most burst + rate x time, and \
                  what was on its way when it went",
        seconds: 8,
        is_alone: false,
        run: |rng| Box::pin(refill_once::run(rng)),
    },
    Scenario {
        name: "exact-debts",
        promise: "whatever way a store is lost and comes back, once all is paid it has counted each call that was let \
                  pass, once; only of calls that were on their way when it was lost nobody can tell",
        seconds: 8,
        is_alone: false,
        run: |rng| Box::pin(exact_debts::run(rng)),
    },
    Scenario {
        name: "flapping",
        promise: "a store that refuses to write and writes again many times a second: never more than the limit, \
                  and of a window all of it",
        seconds: 8,
        is_alone: false,
        run: |rng| Box::pin(flapping::run(rng)),
    },
    Scenario {
        name: "idle-debts",
        promise: "a server that nobody asks finds its store back and pays all its debts within 3 s, and \
                  another server then finds what is left",
        seconds: 4,
        is_alone: false,
        run: |rng| Box::pin(idle_debts::run(rng)),
    },
    Scenario {
        name: "late-payer",
        promise: "two servers that lose the store together and find it again within 2 s of each other admit the \
                  limit once, and the store counts all of it",
        seconds: 10,
        is_alone: false,
        run: |rng| Box::pin(late_payer::run(rng)),
    },
    Scenario {
        name: "one-cut-off",
        promise: "while one of two servers is cut off, or stays so longer than the other, both admit at \
                  most 2 - 1/2 times the limit, and what was on its way, and each by itself its half",
        seconds: 7,
        is_alone: false,
        run: |rng| Box::pin(one_cut_off::run(rng)),
    },
    Scenario {
        name: "health",
        promise: "health and metrics say degraded from the first degraded answer until none was for 5 s and at \
                  most 2 s longer, with the reason that the store gave, and the log ends with the store being back",
        seconds: 13,
        is_alone: false,
        run: |rng| Box::pin(health::run(rng)),
    },
    Scenario {
        name: "rolling-restart",
        promise: "servers that are replaced one after the other behind a balancer that asks /readyz and \
                  sends nothing twice lose no call, charge each once, and of a limit that changes on the \
                  way admit at most the larger version",
        seconds: 5,
        is_alone: false,
        run: |rng| Box::pin(rolling_restart::run(rng)),
    },
    Scenario {
        name: "fail-over",
        promise: "a new primary is found within 5 s, though the first sentinel hangs with the old one, \
                  and on a cluster, though the lost node stays listed",
        seconds: 16,
        is_alone: false,
        run: |rng| Box::pin(fail_over::run(rng)),
    },
    Scenario {
        name: "waiters",
        promise: "a store that fails while calls wait gives each a verdict as declared; settle, cancel, \
                  release, renew, bans and keys answer 503 until it is back, and nothing answers 500",
        seconds: 8,
        is_alone: false,
        run: |rng| Box::pin(waiters::run(rng)),
    },
    Scenario {
        name: "many-holds",
        promise: "with 990 permits held on a key no script keeps the store for 100 ms, and one takes \
                  less than 20 ms on average",
        seconds: 5,
        is_alone: true,
        run: |rng| Box::pin(many_holds::run(rng)),
    },
    Scenario {
        name: "silent-loss",
        promise: "a connection that was dropped in silence costs a quiet server 2 degraded answers at most, \
                  and garbage under a key harms that key alone, and not for ever",
        seconds: 12,
        is_alone: false,
        run: |rng| Box::pin(silent_loss::run(rng)),
    },
    Scenario {
        name: "empty-rules",
        promise: "a server whose store of rules has none is not ready until it has, one that has rules \
                  keeps them through a flush, and a store that may evict or lacks a right is told of",
        seconds: 5,
        is_alone: false,
        run: |rng| Box::pin(empty_rules::run(rng)),
    },
    Scenario {
        name: "debt-memory",
        promise: "120 MiB of keys made up during an outage take at most 90 MiB, and all is paid within \
                  a minute of the store's return",
        seconds: 14,
        is_alone: false,
        run: |rng| Box::pin(debt_memory::run(rng)),
    },
    Scenario {
        name: "abandoned",
        promise: "callers that hang up all the time keep nobody else from a store that is back: 4 s \
                  later it answers",
        seconds: 9,
        is_alone: false,
        run: |rng| Box::pin(abandoned::run(rng)),
    },
    Scenario {
        name: "invented-limits",
        promise: "clients that invent limits, more than are told apart, get no more than they ask for, and change \
                  nothing for rules, for their bans and for others who bring limits along",
        seconds: 7,
        is_alone: false,
        run: |rng| Box::pin(invented_limits::run(rng)),
    },
    Scenario {
        name: "disk-full",
        promise: "on a disk that is full all calls are answered as ever, health says degraded and why \
                  until there is room, and after a crash what was used before it is still used",
        seconds: 7,
        is_alone: false,
        run: |rng| Box::pin(disk_full::run(rng)),
    },
    Scenario {
        name: "clock-steps",
        promise: "a wall clock that is set ahead and back grants a calendar limit anew at most once for \
                  each step ahead and all others nothing, and locks no key for longer than a refill",
        seconds: 6,
        is_alone: false,
        run: |rng| Box::pin(clock_steps::run(rng)),
    },
    Scenario {
        name: "weather",
        promise: "whatever happens to one to three servers and their store, every answer is documented, \
                  at most 2 - 1/N times the limit is admitted, and what was on its way or misread, and \
                  12 s after it all is well, paid and counted",
        seconds: 17,
        is_alone: false,
        run: |rng| Box::pin(weather::run(rng)),
    },
];
