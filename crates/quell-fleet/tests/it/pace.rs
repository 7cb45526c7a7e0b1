//! Intervals at which a node sends: reports of many nodes are spread, and a node that finds no coordinator
//! asks less and less often. There time is tokio's and stands still while anything happens, so the waits
//! are exact.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use quell::clock::ManualClock;
use quell_core::time::Now;
use quell_fleet::agent::{Fleet, FleetOptions, MemberId};
use quell_shares::message::{Hold, Response};
use tokio::time::Instant;

use crate::agent::options;
use crate::coordinator::{Scripted, Stream, grant};

/// Timers of tokio are of whole milliseconds, and requests have a least distance of 20 ms.
const LATE: Duration = Duration::from_millis(22);

fn start(urls: &[&str], member: u32) -> Fleet {
    let clock = Arc::new(ManualClock::new(Now::from_nanos(1)));
    let options = FleetOptions {
        member: MemberId(member),
        ..options(urls, None, &clock)
    };
    Fleet::start(options).unwrap()
}

/// Number of reports of each node that are looked at.
const REPORTS: usize = 40;

const fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Of its two coordinators one is gone, and the other ends each stream at once.
#[tokio::test(start_paused = true)]
async fn who_finds_no_coordinator_asks_less_often_and_afterwards_as_at_first() {
    let mut coordinator = Scripted::start();
    let node = start(&["http://nobody:7600", &coordinator.url], 3);

    drop(coordinator.stream().await);
    // Each time two waits: before the one that is gone, and before this one. They double up to 2 s.
    let pairs = [
        [200, 400],
        [800, 1_600],
        [2_000, 2_000],
        [2_000, 2_000],
        [2_000, 2_000],
    ];
    for (nth, pair) in pairs.into_iter().enumerate() {
        let longest = millis(pair.iter().sum());
        let waited = until_it_asks(&mut coordinator).await.1;
        assert!(
            waited >= longest / 2 && waited <= longest + 2 * LATE,
            "pair {nth}: {waited:?}, and not {:?} to {longest:?}",
            longest / 2
        );
    }

    // Once it was answered, the waits begin anew.
    let (mut stream, _) = until_it_asks(&mut coordinator).await;
    let report = stream.first_report().await;
    stream
        .answer(&Response::Grant(grant(&report, 1, 400)))
        .await;
    stream.report_where(|report| report.applied == 1).await;
    drop(stream);
    let (_, waited) = until_it_asks(&mut coordinator).await;
    assert!(
        waited >= millis(150) && waited <= millis(300) + 2 * LATE,
        "{waited:?}"
    );
    drop(node);
}

/// The next stream of a node, and how long that took.
async fn until_it_asks(coordinator: &mut Scripted) -> (Stream, Duration) {
    let since = Instant::now();
    let stream = coordinator.stream().await;
    (stream, since.elapsed())
}

/// The waits between so many reports of a node, once it was granted its share.
async fn reports(mut stream: Stream, count: usize) -> Vec<Duration> {
    let report = stream.first_report().await;
    stream
        .answer(&Response::Grant(grant(&report, 1, 400)))
        .await;
    stream.report_where(|report| report.applied == 1).await;
    let mut instants = Vec::new();
    while instants.len() < count {
        let report = stream.report().await;
        instants.push(Instant::now());
        let hold = Hold {
            incarnation: report.incarnation,
            epoch: 7,
            seq: report.seq,
            record: 1,
            promise: None,
        };
        stream.answer(&Response::Hold(hold)).await;
    }
    let pairs = instants.windows(2);
    pairs.map(|pair| pair[1] - pair[0]).collect()
}

/// A coordinator that starts again hears all its nodes at the same moment, but not for long. Each node is alone
/// here, and counts from its first report: the waits of one have nothing to do with those of another.
#[tokio::test(start_paused = true)]
async fn reports_of_nodes_that_begin_together_are_spread() {
    let mut of_nodes = Vec::new();
    for member in 1..=16 {
        let mut coordinator = Scripted::start();
        let node = start(&[&coordinator.url], member);
        let stream = coordinator.stream().await;
        of_nodes.push(reports(stream, REPORTS).await);
        drop(node);
    }
    // The period is 100 ms, and each wait is up to a tenth shorter.
    for waits in &of_nodes {
        let mut waits = waits.clone();
        waits.sort_unstable();
        let (short, long) = (waits[waits.len() / 4], waits[waits.len() * 3 / 4]);
        assert!(short >= millis(90) && long <= millis(102), "{waits:?}");
        assert!(long - short >= millis(2), "{waits:?}");
    }
    // In which hundredth of a second each node speaks at the end. By chance in two of them or fewer: once in some
    // 10 million runs.
    let ends = of_nodes.iter().map(|waits| waits.iter().sum::<Duration>());
    let ends: HashSet<u128> = ends.map(|end| end.as_millis() / 10).collect();
    assert!(ends.len() > 2, "{ends:?}");
}
