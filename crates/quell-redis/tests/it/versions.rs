//! Several versions of a limit on one store, as in a rolling deploy: at most the largest is admitted, even
//! if some servers run scripts from before versions were kept apart.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use quell::{Limit, Limiter, Operation, Rate};
use quell_core::algorithm::token_bucket::TokenBucket;
use quell_redis::{RedisStore, StoreClock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::limits::{SECOND, START, ask, built, limiter};
use crate::patience::PATIENCE;
use crate::server::Server;

const STEP: u64 = 1_000_000;

/// The earlier scripts, as they were sent then, and the current one, in the order of `script.rs`.
const OLD_DECIDE: &str = include_str!("../fixtures/decide_before_versions.lua");
const OLD_HOLD: &str = include_str!("../fixtures/hold_before_versions.lua");
const DECIDE: &str = concat!(
    include_str!("../../src/script/fast_bucket.lua"),
    include_str!("../../src/script/fast_set.lua"),
    include_str!("../../src/script/number.lua"),
    include_str!("../../src/script/limit.lua"),
    include_str!("../../src/script/state.lua"),
    include_str!("../../src/script/bucket.lua"),
    include_str!("../../src/script/window.lua"),
    include_str!("../../src/script/settle.lua"),
    include_str!("../../src/script/check.lua"),
    include_str!("../../src/script/ban.lua"),
    include_str!("../../src/script/decide.lua"),
    include_str!("../../src/script/hold/head.lua"),
    include_str!("../../src/script/hold/columns.lua"),
    include_str!("../../src/script/hold/adaptive.lua"),
    include_str!("../../src/script/hold/engine.lua"),
    include_str!("../../src/script/hold/warm.lua"),
    include_str!("../../src/script/hold/carry.lua"),
    include_str!("../../src/script/hold/versions.lua"),
    include_str!("../../src/script/hold/timeline.lua"),
    include_str!("../../src/script/hold/wait_queue.lua"),
    include_str!("../../src/script/hold/box.lua"),
    include_str!("../../src/script/hold/ask.lua"),
    include_str!("../../src/script/hold/claim.lua"),
    include_str!("../../src/script/hold/end.lua"),
);

/// Simulates servers of the earlier version: it passes calls on, with other hashes of scripts.
struct Before {
    port: u16,
    counts: Arc<Counts>,
}

/// Script calls that passed through it.
#[derive(Default)]
struct Counts {
    /// Calls of the earlier scripts: the one that decides rates, and the one for holds.
    renamed: [AtomicUsize; 2],
    /// Calls of other scripts.
    others: AtomicUsize,
}

impl Before {
    /// Every call so far used an earlier script.
    fn ran_scripts_of_before(&self, name: &str) {
        let read = |count: &AtomicUsize| count.load(Ordering::SeqCst);
        assert!(read(&self.counts.renamed[0]) > 0, "{name}: no script");
        assert_eq!(read(&self.counts.others), 0, "{name}: scripts of now");
    }

    fn ran_script_for_holds(&self) -> bool {
        self.counts.renamed[1].load(Ordering::SeqCst) > 0
    }
}

/// Passes on what an earlier server would send: its two scripts in place of the current one.
async fn server_of_before(server: &Server) -> Before {
    let hash = |text| server.command(&["SCRIPT", "LOAD", text]);
    let hashes = [DECIDE, OLD_DECIDE, OLD_HOLD].map(hash);
    for hash in &hashes {
        assert_eq!(hash.len(), 40);
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let redis = server.port();
    let counts = Arc::new(Counts::default());
    let counted = Arc::clone(&counts);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let counts = Arc::clone(&counted);
            tokio::spawn(rename(client, redis, hashes.clone(), counts));
        }
    });
    Before { port, counts }
}

async fn rename(
    mut client: TcpStream,
    redis: u16,
    [now, decide, hold]: [String; 3],
    counts: Arc<Counts>,
) {
    let mut server = TcpStream::connect(("127.0.0.1", redis)).await.unwrap();
    let (mut request, mut answer) = (vec![0; 65_536], vec![0; 65_536]);
    // The call to send to the script for holds if the script for rates cannot answer.
    let mut retry: Option<Vec<u8>> = None;
    loop {
        tokio::select! {
            read = client.read(&mut request) => {
                let Ok(read @ 1..) = read else { return };
                let mut bytes = request[..read].to_vec();
                // Calls are made one by one, and each arrives in one piece.
                assert!(bytes.ends_with(b"\r\n"), "a call in pieces");
                let at = bytes.windows(40).position(|window| window == now.as_bytes());
                retry = None;
                if let Some(at) = at {
                    let renamed = |to: &str| {
                        let mut bytes = bytes.clone();
                        bytes[at..at + 40].copy_from_slice(to.as_bytes());
                        bytes
                    };
                    let is_hold = went_to_script_for_holds(&bytes);
                    retry = (!is_hold).then(|| renamed(&hold));
                    bytes = renamed(if is_hold { &hold } else { &decide });
                    counts.renamed[usize::from(is_hold)].fetch_add(1, Ordering::SeqCst);
                } else if contains(&bytes, b"\r\nEVAL") {
                    counts.others.fetch_add(1, Ordering::SeqCst);
                }
                if server.write_all(&bytes).await.is_err() { return }
            }
            read = server.read(&mut answer) => {
                let Ok(read @ 1..) = read else { return };
                let cannot = [&b"$16\r\n"[..], &(-2.0_f64).to_be_bytes()].concat();
                if let Some(retry) = retry.take() && answer[..read].starts_with(&cannot) {
                    counts.renamed[1].fetch_add(1, Ordering::SeqCst);
                    if server.write_all(&retry).await.is_err() { return }
                } else if client.write_all(&answer[..read]).await.is_err() {
                    return
                }
            }
        }
    }
}

/// Whether an earlier server would use the script for holds at once: for claims, ends and payments, and
/// for limits that the other script could not decide.
fn went_to_script_for_holds(call: &[u8]) -> bool {
    let Ok(redis::Value::Array(words)) = redis::parse_redis_value(call) else {
        panic!("no command");
    };
    let words = words.into_iter().map(|word| match word {
        redis::Value::BulkString(bytes) => bytes,
        other => panic!("no word: {other:?}"),
    });
    let words: Vec<_> = words.collect();
    let keys: usize = String::from_utf8_lossy(&words[2]).parse().unwrap();
    let [head, charges @ ..] = &words[3 + keys..] else {
        panic!("no head");
    };
    head[0] >= 8 || charges.iter().any(|charge| charge[2] >= 128)
}

fn contains(bytes: &[u8], what: &[u8]) -> bool {
    bytes.windows(what.len()).any(|window| window == what)
}

/// Limiters on one server, each with its own version, asked at instants that the test gives; `true` for
/// one that runs the earlier scripts.
async fn fleet(
    server: &Server,
    before: &Before,
    limits: &[(Limit, bool)],
    name: &str,
) -> Vec<Limiter<RedisStore>> {
    let mut limiters = Vec::new();
    for (limit, is_old) in limits {
        let port = if *is_old { before.port } else { server.port() };
        let url = format!("redis://127.0.0.1:{port}").parse().unwrap();
        let store = RedisStore::builder(url).timeout(PATIENCE);
        let store = store.test_keys(name).clock(StoreClock::Caller).build();
        limiters.push(limiter(store, std::slice::from_ref(limit)));
    }
    limiters
}

async fn drain(limiter: &Limiter<RedisStore>, now: u64) -> u64 {
    let mut passed = 0;
    while ask(limiter, Operation::Acquire, "a", 1, now)
        .await
        .is_allow()
    {
        passed += 1;
    }
    passed
}

/// Asks every limiter once a second until it refuses.
async fn admitted_in_turn(fleet: &[Limiter<RedisStore>], seconds: u64) -> u64 {
    let mut admitted = 0;
    for second in 0..seconds {
        for limiter in fleet {
            admitted += drain(limiter, START + second * STEP).await;
        }
    }
    admitted
}

fn token(count: u64, burst: u64) -> Limit {
    built(Limit::per_second(count).burst(burst).build())
}

fn window(limit: u64) -> Limit {
    built(Limit::fixed_window(limit, 3_600 * SECOND).build())
}

/// The larger and the smaller of two versions, and what may pass in this many seconds.
fn pairs(seconds: u64) -> Vec<(Limit, Limit, u64)> {
    let minute = 60 * SECOND;
    let rate = |count| Rate::new(count, SECOND).unwrap();
    let leaky = |burst| built(Limit::leaky_bucket(rate(2)).burst(burst).build());
    let batches = |burst| built(TokenBucket::refill(2, SECOND).burst(burst).build());
    let drained = 2 * (seconds - 1);
    vec![
        (window(60), window(30), 60),
        (token(2, 60), token(2, 30), 60 + drained),
        (token(3, 60), token(2, 10), 60 + 3 * (seconds - 1)),
        (leaky(60), leaky(30), 60 + drained),
        (batches(60), batches(30), 60 + drained),
        (
            built(Limit::sliding_window(60, minute).build()),
            built(Limit::sliding_window(30, minute).build()),
            60,
        ),
        (
            built(Limit::sliding_log(60, minute).build()),
            built(Limit::sliding_log(30, minute).build()),
            60,
        ),
    ]
}

#[tokio::test]
async fn two_versions_in_turn_admit_no_more_than_the_larger() {
    let server = Server::start(&[]);
    let before = server_of_before(&server).await;
    for (number, (large, small, most)) in pairs(10).into_iter().enumerate() {
        for (order, limits) in [[&large, &small], [&small, &large]].into_iter().enumerate() {
            let limits = limits.map(|limit| (limit.clone(), false));
            let fleet = fleet(&server, &before, &limits, &format!("{number}-{order}")).await;
            assert_eq!(
                admitted_in_turn(&fleet, 10).await,
                most,
                "{}",
                large.algorithm()
            );
        }
    }
}

/// Versions of different algorithms count separately: each finds its own use again, so both limits
/// together are admitted, and nothing more however often they alternate.
#[tokio::test]
async fn versions_of_different_algorithms_admit_no_more_than_their_limits_together() {
    let server = Server::start(&[]);
    let before = server_of_before(&server).await;
    let hour = 3_600 * SECOND;
    let log = built(Limit::sliding_log(30, hour).build());
    let segments = built(Limit::sliding_window(30, hour).build());
    let bucket = built(Limit::per_hour(30).build());
    let others = [log, segments, bucket];
    for (number, other) in others.into_iter().enumerate() {
        for (order, limits) in [[window(60), other.clone()], [other.clone(), window(60)]]
            .into_iter()
            .enumerate()
        {
            let limits = limits.map(|limit| (limit, false));
            let fleet = fleet(
                &server,
                &before,
                &limits,
                &format!("kinds-{number}-{order}"),
            )
            .await;
            let admitted = admitted_in_turn(&fleet, 20).await;
            assert!(
                (60..=60 + 30).contains(&admitted),
                "{admitted} {}",
                other.algorithm()
            );
        }
    }
}

#[tokio::test]
async fn a_lowered_limit_locks_no_key_for_longer_than_its_refill() {
    let server = Server::start(&[]);
    let before = server_of_before(&server).await;
    let limits = [(token(2, 1_000), false), (token(2, 10), false)];
    let fleet = fleet(&server, &before, &limits, "lowered").await;
    assert_eq!(drain(&fleet[0], START).await, 1_000);
    assert_eq!(drain(&fleet[1], START).await, 0);
    assert_eq!(drain(&fleet[1], START + 5 * STEP).await, 10);
    assert_eq!(drain(&fleet[0], START + 5 * STEP).await, 0);
    assert!(server.left() > 0, "it expires");
}

/// An earlier server with the larger version is exact; one with the smaller version cuts the use that it
/// finds once, and from then on reads a debt, which it never cuts.
#[tokio::test]
async fn servers_of_before_and_of_now_admit_no_more_than_the_larger_and_one_cut() {
    let server = Server::start(&[]);
    let before = server_of_before(&server).await;
    for (number, (large, small, most)) in pairs(10).into_iter().enumerate() {
        let name = large.algorithm().name();
        let limits = [(large.clone(), true), (small.clone(), false)];
        let old_is_larger = fleet(&server, &before, &limits, &format!("larger-{number}")).await;
        let admitted = admitted_in_turn(&old_is_larger, 10).await;
        assert!(admitted <= most, "{name}: {admitted} of {most}");

        let limits = [(small.clone(), false), (large.clone(), true)];
        let old_is_larger =
            fleet(&server, &before, &limits, &format!("larger-last-{number}")).await;
        let admitted = admitted_in_turn(&old_is_larger, 10).await;
        assert!(admitted <= most, "{name}: {admitted} of {most}");

        let limits = [(small.clone(), true), (large.clone(), false)];
        let old_is_smaller = fleet(&server, &before, &limits, &format!("smaller-{number}")).await;
        let admitted = admitted_in_turn(&old_is_smaller, 10).await;
        assert!(admitted <= most, "{name}: {admitted} of {most}");

        // The larger version charged the key before the smaller one was known.
        let limits = [(large.clone(), false), (small.clone(), true)];
        let old_is_smaller = fleet(&server, &before, &limits, &format!("cut-{number}")).await;
        let admitted = admitted_in_turn(&old_is_smaller, 10).await;
        let cut = large.max() - small.max();
        assert!(
            admitted <= most + cut,
            "{name}: {admitted} of {most} and {cut}"
        );
        before.ran_scripts_of_before(name);
    }
    assert!(before.ran_script_for_holds(), "states of several versions");
}

/// Shows the problem: without a current server, two versions refund each other's use. This also proves
/// that the simulated servers really run the earlier scripts.
#[tokio::test]
async fn two_servers_of_before_admit_more_than_the_larger() {
    let server = Server::start(&[]);
    let before = server_of_before(&server).await;
    let limits = [(window(60), true), (window(30), true)];
    let fleet = fleet(&server, &before, &limits, "both").await;
    let admitted = admitted_in_turn(&fleet, 4).await;
    assert!(admitted > 60, "{admitted} of 60");
    before.ran_scripts_of_before("fixed_window");
}

/// States of earlier servers are read correctly.
#[tokio::test]
async fn states_of_before_count() {
    let server = Server::start(&[]);
    let before = server_of_before(&server).await;
    for (number, (large, small, _)) in pairs(10).into_iter().enumerate() {
        let limits = [
            (large.clone(), true),
            (large.clone(), false),
            (small, false),
        ];
        let fleet = fleet(&server, &before, &limits, &format!("before-{number}")).await;
        assert_eq!(drain(&fleet[0], START).await, 60);
        assert_eq!(drain(&fleet[1], START).await, 0, "{}", large.algorithm());
        assert_eq!(drain(&fleet[2], START).await, 0, "{}", large.algorithm());
        assert_eq!(drain(&fleet[0], START).await, 0, "{}", large.algorithm());
        before.ran_scripts_of_before(large.algorithm().name());
    }
}
