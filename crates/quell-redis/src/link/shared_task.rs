//! A task whose result all current callers share.
//!
//! For example, asking who has the keys: a caller that times out does not cancel it, and the next caller
//! joins it instead of starting again at the same silent server.

use std::future::Future;

use futures_util::future::{BoxFuture, FutureExt, Shared};
use parking_lot::Mutex;
use tokio::task::AbortHandle;

use super::Failure;

type TaskOutcome = Result<(), Failure>;

/// Work that is done once at a time.
#[derive(Debug, Default)]
pub(super) struct SharedTask {
    running: Mutex<Option<(AbortHandle, Shared<BoxFuture<'static, TaskOutcome>>)>>,
}

impl SharedTask {
    /// Begins `work`, unless it is running already, and waits for its outcome.
    pub(super) async fn join(
        &self,
        work: impl Future<Output = TaskOutcome> + Send + 'static,
    ) -> TaskOutcome {
        let outcome = {
            let mut running = self.running.lock();
            match &*running {
                Some((task, outcome)) if !task.is_finished() => outcome.clone(),
                _ => {
                    let task = tokio::spawn(work);
                    let handle = task.abort_handle();
                    let given_up = || Failure::Unreachable("the search was given up".to_owned());
                    let outcome =
                        task.map(move |outcome| outcome.unwrap_or_else(|_| Err(given_up())));
                    let outcome = outcome.boxed().shared();
                    *running = Some((handle, outcome.clone()));
                    outcome
                }
            }
        };
        outcome.await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use tokio::sync::Notify;

    use super::*;

    #[tokio::test]
    async fn who_gives_up_leaves_the_work_to_the_next() {
        let (task, begun, go) = (
            SharedTask::default(),
            Arc::new(AtomicUsize::new(0)),
            Arc::new(Notify::new()),
        );
        let work = || {
            let (begun, go) = (Arc::clone(&begun), Arc::clone(&go));
            async move {
                begun.fetch_add(1, Ordering::Relaxed);
                go.notified().await;
                Ok(())
            }
        };
        let first = tokio::time::timeout(Duration::ZERO, task.join(work()));
        assert!(first.await.is_err(), "it gave up");
        let second = task.join(work());
        go.notify_one();
        assert_eq!(second.await, Ok(()));
        assert_eq!(begun.load(Ordering::Relaxed), 1);
        go.notify_one();
        assert_eq!(task.join(work()).await, Ok(()));
        assert_eq!(begun.load(Ordering::Relaxed), 2, "the next one is new");
    }

    #[test]
    fn work_that_died_with_its_runtime_is_begun_again() {
        let runtime = || {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            builder.enable_time().build()
        };
        let task = SharedTask::default();
        let first = runtime().unwrap();
        let gave_up = first.block_on(async {
            let joined = task.join(std::future::pending());
            tokio::time::timeout(Duration::ZERO, joined).await
        });
        assert!(gave_up.is_err());
        drop(first);
        let second = runtime().unwrap();
        assert_eq!(second.block_on(task.join(async { Ok(()) })), Ok(()));
    }
}
