//! Model tests: product code under many schedules.
//!
//! A scheduler chooses who runs next wherever a lock is taken, a task is started or polled, or somebody
//! waits. Time is its choice too: a wait is over after any number of choices. In other unit tests the same
//! code runs as in the product.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

use parking_lot::MutexGuard;
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;

thread_local! {
    static IS_ON: Cell<bool> = const { Cell::new(false) };
    static RUNTIME: RefCell<Arc<Runtime>> = RefCell::default();
}

/// Choices after which a wait is over, at most.
const MAX_WAIT: usize = 60;

/// Returns true in a run of a model.
pub(crate) fn is_on() -> bool {
    // No choice is made while a failed schedule is cleaned up.
    IS_ON.get() && !std::thread::panicking()
}

/// Ends with the model, however that ends.
struct On;

impl Drop for On {
    fn drop(&mut self) {
        IS_ON.set(false);
    }
}

/// Runs `run` under so many schedules, and lets all tasks end that it leaves behind.
pub(crate) fn check(schedules: usize, run: impl Fn() + Send + Sync + 'static) {
    // What sleeps by tokio's timers needs to find them; they do not go on.
    let timers = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    let timers = timers.unwrap();
    let _entered = timers.enter();
    let _on = On;
    IS_ON.set(true);
    let schedule = move || {
        RUNTIME.replace(Arc::default());
        run();
        end_runtime();
    };
    shuttle::check_random(schedule, schedules);
}

/// Runtime of tasks, until it ends.
#[derive(Default)]
struct Runtime {
    has_ended: AtomicBool,
    tasks: AtomicUsize,
    wakers: parking_lot::Mutex<Vec<Waker>>,
}

/// Starts a task.
pub(super) fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    let runtime = RUNTIME.with_borrow(Arc::clone);
    runtime.tasks.fetch_add(1, Ordering::SeqCst);
    let mut task = Some(Box::pin(task));
    let task = poll_fn(move |context| {
        let has_ended = runtime.has_ended.load(Ordering::SeqCst);
        let polled = match task.as_mut().filter(|_| !has_ended) {
            Some(running) => running.as_mut().poll(context),
            None => Poll::Ready(()),
        };
        if polled.is_ready() {
            task = None;
            runtime.tasks.fetch_sub(1, Ordering::SeqCst);
        } else {
            runtime.wakers.lock().push(context.waker().clone());
        }
        polled
    });
    drop(shuttle::future::spawn(task));
}

/// Ends the runtime with all its tasks, wherever each is. Later tasks have another runtime.
pub(crate) fn end_runtime() {
    let runtime = RUNTIME.replace(Arc::default());
    runtime.has_ended.store(true, Ordering::SeqCst);
    while runtime.tasks.load(Ordering::SeqCst) > 0 {
        for waker in std::mem::take(&mut *runtime.wakers.lock()) {
            waker.wake();
        }
        thread::yield_now();
    }
}

/// Waits: for as long as the scheduler likes.
pub(crate) async fn sleep(time: Duration) {
    if !is_on() {
        return tokio::time::sleep(time).await;
    }
    let choices = thread_rng().gen_range(0..MAX_WAIT);
    for _ in 0..choices {
        shuttle::future::yield_now().await;
    }
}

/// Lets the scheduler choose who goes on. Not by yielding, which would wake the task that runs: a
/// wake-up that is missing would not show.
fn choose() {
    shuttle::sync::atomic::AtomicBool::new(false).load(Ordering::SeqCst);
}

/// A lock with the face of `parking_lot`'s.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(parking_lot::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(parking_lot::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        while is_on() {
            choose();
            if let Some(locked) = self.0.try_lock() {
                return locked;
            }
        }
        self.0.lock()
    }
}
