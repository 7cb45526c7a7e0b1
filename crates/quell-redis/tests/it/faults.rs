//! Faults of a server: it forgets the script, restarts, refuses, or has a foreign value.

use std::time::Duration;

use quell::{Limit, Limiter, Query};
use quell_redis::{Failure, RedisStore, StoreUrl};

use crate::limits::{SECOND, built, limiter};
use crate::patience::{HASTY, PATIENCE, TIMEOUT, until_it};
use crate::server::Server;

fn five_per_hour() -> Limit {
    built(Limit::fixed_window(5, 3_600 * SECOND).build())
}

async fn passes(subject: &Limiter<RedisStore>) -> Result<bool, String> {
    let query = Query::new("d").entry("user", "a");
    let verdict = subject.try_acquire(&query).await;
    verdict
        .map(|verdict| verdict.is_allow())
        .map_err(|error| error.to_string())
}

#[tokio::test]
async fn a_script_that_is_gone_is_sent_again_in_the_same_call() {
    let server = Server::start(&[]);
    let subject = limiter(server.store().build(), &[five_per_hour()]);
    for _ in 0..5 {
        server.command(&["SCRIPT", "FLUSH"]);
        assert_eq!(passes(&subject).await, Ok(true));
    }
    server.command(&["SCRIPT", "FLUSH"]);
    assert_eq!(
        passes(&subject).await,
        Ok(false),
        "none was charged twice or not at all"
    );
}

#[tokio::test]
async fn a_restart_goes_unnoticed() {
    let mut server = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let subject = limiter(server.store().build(), &[five_per_hour()]);
    for _ in 0..5 {
        assert_eq!(passes(&subject).await, Ok(true));
        // In another thread, so that this runtime notices the end of its connection.
        let restart = move || {
            server.restart();
            server
        };
        server = tokio::task::spawn_blocking(restart).await.unwrap();
    }
    assert_eq!(passes(&subject).await, Ok(false));
}

#[tokio::test]
async fn no_server_is_an_error_that_says_where() {
    let port = crate::server::free_port();
    let url: StoreUrl = format!("redis://127.0.0.1:{port}").parse().unwrap();
    let store = RedisStore::builder(url).timeout(PATIENCE).build();
    let subject = limiter(store, &[five_per_hour()]);
    let error = passes(&subject).await.unwrap_err();
    assert!(error.contains(&format!("127.0.0.1:{port}")), "{error}");
    assert!(error.contains("refused"), "{error}");
}

#[tokio::test]
async fn a_server_that_comes_up_later_is_found() {
    let port = crate::server::free_port();
    let url: StoreUrl = format!("redis://127.0.0.1:{port}").parse().unwrap();
    let store = RedisStore::builder(url).timeout(PATIENCE).build();
    let subject = limiter(store, &[five_per_hour()]);
    assert!(passes(&subject).await.is_err());
    let _server = Server::start_on(port, &[]);
    until_it("it answers", async || passes(&subject).await.is_ok()).await;
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_given_up_in_time() {
    let server = Server::start(&[]);
    let store = RedisStore::builder(server.url()).timeout(TIMEOUT);
    let subject = limiter(store.build(), &[five_per_hour()]);
    until_it("it answers", async || passes(&subject).await.is_ok()).await;
    server.freeze();
    let error = passes(&subject).await.unwrap_err();
    server.thaw();
    assert!(error.contains("no answer within 2s"), "{error}");
}

/// During an outage no call waits for the store; it is found again without any help.
#[tokio::test]
async fn a_store_that_is_gone_holds_nobody_up() {
    let server = Server::start(&[]);
    let store = RedisStore::builder(server.url()).timeout(HASTY);
    let subject = limiter(store.build(), &[five_per_hour()]);
    until_it("it answers", async || passes(&subject).await.is_ok()).await;
    server.freeze();
    let mut at_once = 0;
    until_it("200 calls do not wait", async || {
        let error = passes(&subject).await.unwrap_err();
        at_once += usize::from(error.contains("not reachable: "));
        at_once == 200
    })
    .await;
    server.thaw();
    until_it("it answers", async || passes(&subject).await.is_ok()).await;
}

#[tokio::test]
async fn a_wrong_password_is_an_error_that_says_so() {
    let server = Server::start(&["--requirepass", "right"]);
    for (login, words) in [("", "NOAUTH"), (":wrong@", "WRONGPASS")] {
        let url = format!("redis://{login}127.0.0.1:{}", server.port());
        let store = RedisStore::builder(url.parse().unwrap())
            .timeout(PATIENCE)
            .build();
        let error = match store.ping().await {
            Err(error) => error.to_string(),
            Ok(()) => panic!("{url} got in"),
        };
        assert!(
            error.contains(words) || error.contains("assword"),
            "{login}: {error}"
        );
        assert!(!error.contains("wrong@"), "{error}");
    }
    let url = format!("redis://:right@127.0.0.1:{}/2", server.port());
    let store = RedisStore::builder(url.parse().unwrap()).timeout(PATIENCE);
    assert_eq!(
        passes(&limiter(store.build(), &[five_per_hour()])).await,
        Ok(true)
    );
}

#[tokio::test]
async fn a_full_server_refuses_and_charges_nothing() {
    let server = Server::start(&["--maxmemory", "1", "--maxmemory-policy", "noeviction"]);
    let store = server.store().build();
    let subject = limiter(store, &[five_per_hour()]);
    let error = passes(&subject).await.unwrap_err();
    assert!(error.contains("OOM"), "{error}");
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    for _ in 0..5 {
        assert_eq!(passes(&subject).await, Ok(true));
    }
    assert_eq!(passes(&subject).await, Ok(false));
}

#[tokio::test]
async fn a_replica_is_never_mistaken_for_its_primary() {
    let primary = Server::start(&[]);
    let port = primary.port().to_string();
    let replica = Server::start(&["--replicaof", "127.0.0.1", &port]);
    let store = RedisStore::builder(replica.url()).timeout(TIMEOUT);
    let subject = limiter(store.build(), &[five_per_hour()]);
    let error = passes(&subject).await.unwrap_err();
    assert!(error.contains("READONLY"), "{error}");
    // Once promoted, it answers; nothing has to be restarted.
    replica.command(&["REPLICAOF", "NO", "ONE"]);
    assert_eq!(passes(&subject).await, Ok(true));
}

/// A fail-over during use: the server that we are connected to may no longer write, and later may
/// again. Calls meanwhile end in time, and charge nothing.
#[tokio::test]
async fn a_primary_that_is_demoted_while_it_is_used_is_found_again() {
    let server = Server::start(&[]);
    let store = RedisStore::builder(server.url()).timeout(TIMEOUT);
    let subject = limiter(store.build(), &[five_per_hour()]);
    while passes(&subject).await != Ok(true) {}
    // Its new primary does not exist, so it keeps its data.
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    for _ in 0..2 {
        let error = passes(&subject).await.unwrap_err();
        assert!(error.contains("READONLY"), "{error}");
    }
    server.command(&["REPLICAOF", "NO", "ONE"]);
    let mut passed = 0;
    for _ in 0..10 {
        passed += usize::from(passes(&subject).await.unwrap());
    }
    assert_eq!(passed, 4);
}

#[tokio::test]
async fn failures_are_values() {
    let port = crate::server::free_port();
    let url: StoreUrl = format!("redis://127.0.0.1:{port}").parse().unwrap();
    let answer = RedisStore::builder(url)
        .timeout(PATIENCE)
        .build()
        .ping()
        .await;
    assert!(matches!(answer, Err(Failure::Unreachable(_))), "{answer:?}");
}

/// A call may have been charged if it was handed to the system to send, and only then.
#[tokio::test]
async fn a_call_that_found_no_connection_was_not_sent() {
    // The system accepts the connection, and the login on it is never answered.
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = nobody.local_addr().unwrap().port();
    let url: StoreUrl = format!("redis://:word@127.0.0.1:{port}").parse().unwrap();
    let store = RedisStore::builder(url).timeout(HASTY).build();
    let answer = store.ping().await;
    assert!(matches!(answer, Err(Failure::Unreachable(_))), "{answer:?}");
}

#[tokio::test]
async fn a_call_that_was_handed_over_may_have_been_charged() {
    let server = Server::start(&[]);
    let store = RedisStore::builder(server.url()).timeout(TIMEOUT).build();
    until_it("it answers", async || store.ping().await.is_ok()).await;
    server.freeze();
    let answer = store.ping().await;
    server.thaw();
    assert!(matches!(answer, Err(Failure::Unknown(_))), "{answer:?}");
}

/// The task that connects ends with the runtime of the first caller.
#[test]
fn a_runtime_that_ends_while_it_connects_leaves_a_store_that_connects() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap()
    };
    let server = Server::start(&[]);
    let store = server.store().build();
    server.freeze();
    let first = runtime();
    let asked = async { tokio::time::timeout(Duration::from_millis(100), store.ping()).await };
    assert!(first.block_on(asked).is_err(), "nobody answers the login");
    drop(first);
    server.thaw();
    for _ in 0..2 {
        // The second caller finds a connection whose runtime has ended.
        assert_eq!(runtime().block_on(store.ping()), Ok(()));
    }
}

/// A server with too many clients says so and closes the connection: this is the reason that is
/// reported.
#[tokio::test]
async fn a_server_with_too_many_clients_is_told_as_that() {
    let server = Server::start(&["--maxclients", "1"]);
    let _other = std::net::TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    let store = server.store().build();
    until_it("it is told", async || {
        let failure = store.ping().await.unwrap_err().to_string();
        failure.contains("max number of clients")
    })
    .await;
}
