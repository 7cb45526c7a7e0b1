//! Several processes on one key: exactly the limit is admitted.

use std::io::Read;
use std::process::{Command, Stdio};

use quell::{Limit, Query};
use quell_redis::RedisStore;

use crate::limits::{SECOND, built, limiter};
use crate::patience::PATIENCE;
use crate::server::Server;

const PROCESSES: usize = 4;
const CALLS: usize = 500;
const LIMIT: u64 = 777;

/// The variable in which a process of this test finds its server.
const STORE: &str = "QUELL_TEST_STORE";

fn limits() -> [Limit; 2] {
    [
        built(Limit::fixed_window(LIMIT, 3_600 * SECOND).build()),
        built(Limit::sliding_log(LIMIT, 3_600 * SECOND).build()),
    ]
}

/// Makes [`CALLS`] calls, fifty at a time. Returns how many passed.
async fn hammer(store: RedisStore) -> usize {
    let subject = std::sync::Arc::new(limiter(store, &limits()));
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let subject = std::sync::Arc::clone(&subject);
        callers.spawn(async move {
            let mut passed = 0;
            for _ in 0..CALLS / 50 {
                let query = Query::new("d").entry("user", "hot");
                let verdict = subject.try_acquire(&query).await.unwrap();
                passed += usize::from(verdict.is_allow());
            }
            passed
        });
    }
    callers.join_all().await.into_iter().sum()
}

/// One process of the test below, if the variable names a store; otherwise it has a store of its
/// own.
#[tokio::test]
async fn one_process() {
    let Ok(url) = std::env::var(STORE) else {
        let server = Server::start(&[]);
        assert_eq!(hammer(server.store().build()).await, CALLS.min(777));
        return;
    };
    let store = RedisStore::builder(url.parse().unwrap()).timeout(PATIENCE);
    println!("passed={}", hammer(store.build()).await);
}

#[test]
fn several_processes_get_exactly_the_limit_together() {
    let server = Server::start(&[]);
    let url = format!("redis://127.0.0.1:{}", server.port());
    let start = || {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "processes::one_process", "--nocapture"])
            .env(STORE, &url)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let processes: Vec<_> = (0..PROCESSES).map(|_| start()).collect();
    let mut passed = 0;
    for mut process in processes {
        let mut text = String::new();
        process
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        assert!(process.wait().unwrap().success(), "{text}");
        let count = text
            .split("passed=")
            .nth(1)
            .and_then(|rest| rest.split_whitespace().next());
        passed += count.unwrap().parse::<u64>().unwrap();
    }
    assert_eq!(passed, LIMIT);
}
