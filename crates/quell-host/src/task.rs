//! Task: work beside calls, in tasks of one type.
//!
//! The compiler makes all of tokio's task anew for each type of future that is spawned. A box costs nothing where no
//! call waits for it.

use std::future::Future;
use std::pin::Pin;

use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs `work` in a task.
pub fn spawn(work: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    fn spawn(work: Work) -> JoinHandle<()> {
        tokio::spawn(work)
    }
    spawn(Box::pin(work))
}

/// Runs `work` in a task of `tasks`.
pub fn spawn_in(tasks: &mut JoinSet<()>, work: impl Future<Output = ()> + Send + 'static) {
    fn spawn(tasks: &mut JoinSet<()>, work: Work) {
        tasks.spawn(work);
    }
    spawn(tasks, Box::pin(work));
}

/// Runs `work`, which blocks, on a thread for such. `None` if it panics, or the runtime stops before it begins.
pub async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    fn spawn(work: Box<dyn FnOnce() + Send>) {
        drop(tokio::task::spawn_blocking(work));
    }
    let (sender, answer) = oneshot::channel();
    // The caller may be gone by then.
    spawn(Box::new(move || drop(sender.send(work()))));
    answer.await.ok()
}
