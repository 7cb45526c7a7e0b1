//! A pool of tokio tasks that wait for their turn: every customer gets twenty jobs a second, in order.
//!
//! ```sh
//! cargo run -p quell --example workers
//! ```
//!
//! `acquire` queues callers first come, first served on each key, so nobody starves. A task that is dropped
//! gives its place back.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quell::{KeyedLimiter, Limit, LimitError};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;

/// Number of tasks that work.
const WORKERS: usize = 8;

/// Does `jobs`, each named by its customer; returns when each was begun.
pub(crate) async fn run(
    jobs: Vec<&'static str>,
) -> Result<Vec<(&'static str, Duration)>, LimitError> {
    let turns = Arc::new(KeyedLimiter::<str>::new(Limit::per_second(20).burst(1))?);
    let (send, queue) = mpsc::channel(jobs.len().max(1));
    for job in jobs {
        // There is room for all, and the other end is below.
        let _ = send.try_send(job);
    }
    drop(send);
    let queue = Arc::new(Mutex::new(queue));
    let started = Instant::now();
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let (turns, queue) = (Arc::clone(&turns), Arc::clone(&queue));
        workers.spawn(async move {
            let mut begun = Vec::new();
            loop {
                let Some(customer) = queue.lock().await.recv().await else {
                    return begun;
                };
                turns.acquire(customer).await;
                begun.push((customer, started.elapsed()));
                // The work on the job.
            }
        });
    }
    Ok(workers.join_all().await.concat())
}

#[expect(clippy::print_stdout, reason = "it shows what it does")]
#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let jobs = [["alice"; 10], ["bob"; 10]].concat();
    for (customer, begun) in run(jobs).await? {
        println!("{begun:>12?}  {customer}");
    }
    Ok(())
}
