//! Detach: a change that was begun is ended and logged, although whoever asked for it hangs up.

use std::panic::resume_unwind;
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use quell_protocol::http::{Problem, ProblemKind};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;

use crate::reply;

/// Changes of some routes that go on at a time although nobody waits for them; rules among them have megabytes.
/// Further ones are dropped with their connections: whoever begins many and hangs up leaves a line in the log for each
/// of these.
const MOST: usize = 16;

/// Routes that make changes.
pub trait DetachOnDisconnect {
    /// Ends what these routes begin.
    fn detach_on_disconnect(self) -> Self;
}

impl<S: Clone + Send + Sync + 'static> DetachOnDisconnect for Router<S> {
    fn detach_on_disconnect(self) -> Self {
        let places = Arc::new(Semaphore::new(MOST));
        self.route_layer(from_fn_with_state(places, end))
    }
}

/// Answers what may change something in a task of its own: an answer that nobody waits for any more is dropped
/// where it stands, perhaps between a ban and the line of the log that says who banned.
async fn end(State(places): State<Arc<Semaphore>>, request: Request, next: Next) -> Response {
    if request.method().is_safe() {
        return next.run(request).await;
    }
    let place = Arc::<OnceLock<_>>::default();
    let own = Arc::clone(&place);
    let task = tokio::spawn(async move {
        let _own = own;
        next.run(request).await
    });
    let mut waits = Waits {
        task,
        place,
        places,
    };
    let ended = (&mut waits.task).await;
    ended.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => resume_unwind(panic),
        Err(_) => reply::problem(&Problem::new(ProblemKind::Internal, "the server stops")),
    })
}

/// Whoever waits for a change.
struct Waits {
    task: JoinHandle<Response>,
    /// Place of the task when nobody waits for it any more.
    place: Arc<OnceLock<OwnedSemaphorePermit>>,
    places: Arc<Semaphore>,
}

impl Drop for Waits {
    fn drop(&mut self) {
        if self.task.is_finished() {
            return;
        }
        let place = Arc::clone(&self.places).try_acquire_owned();
        if place.map(|place| self.place.set(place)).is_err() {
            self.task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use axum::body::Body;
    use axum::http::Method;
    use axum::routing::get;
    use tokio::task::yield_now;
    use tokio::time::timeout;
    use tower_service::Service as _;

    use super::*;

    /// Routes whose answers wait, and how many have begun and ended.
    #[derive(Clone)]
    struct Slow {
        begun: Arc<AtomicUsize>,
        ended: Arc<AtomicUsize>,
        go_on: Arc<Semaphore>,
    }

    impl Slow {
        fn new() -> (Self, Router) {
            let own = Self {
                begun: Arc::default(),
                ended: Arc::default(),
                go_on: Arc::new(Semaphore::new(0)),
            };
            let slow = own.clone();
            let answer = async move || {
                slow.begun.fetch_add(1, Ordering::SeqCst);
                drop(slow.go_on.acquire().await);
                slow.ended.fetch_add(1, Ordering::SeqCst);
            };
            let routes = Router::new().route("/", get(answer.clone()).post(answer));
            (own, routes.detach_on_disconnect())
        }

        /// Asks, and hangs up once that has begun.
        async fn ask(routes: &mut Router, method: Method) {
            let request = Request::builder().method(method);
            let answer = routes.call(request.body(Body::empty()).unwrap());
            let a_moment = async {
                for _ in 0..10 {
                    yield_now().await;
                }
            };
            tokio::select! {
                answer = answer => panic!("{answer:?}"),
                () = a_moment => {}
            }
        }

        /// Waits until so many have ended, for so many seconds.
        async fn until_ended(&self, count: usize, seconds: u64) -> bool {
            let all = async {
                while self.ended.load(Ordering::SeqCst) < count {
                    yield_now().await;
                }
            };
            timeout(Duration::from_secs(seconds), all).await.is_ok()
        }
    }

    #[tokio::test]
    async fn a_change_is_ended_although_its_caller_hangs_up() {
        for (method, is_ended, seconds) in [(Method::POST, true, 60), (Method::GET, false, 1)] {
            let (slow, mut routes) = Slow::new();
            Slow::ask(&mut routes, method.clone()).await;
            assert_eq!(slow.begun.load(Ordering::SeqCst), 1);
            slow.go_on.add_permits(1);
            assert_eq!(slow.until_ended(1, seconds).await, is_ended, "{method}");
        }
    }

    #[tokio::test]
    async fn so_many_changes_go_on_and_no_more() {
        let (slow, mut routes) = Slow::new();
        for _ in 0..MOST + 9 {
            Slow::ask(&mut routes, Method::POST).await;
        }
        assert_eq!(slow.begun.load(Ordering::SeqCst), MOST + 9);
        slow.go_on.add_permits(1);
        assert!(slow.until_ended(MOST, 60).await);
        // Their places are free again, and the rest was dropped.
        let held = slow.go_on.acquire().await.unwrap();
        Slow::ask(&mut routes, Method::POST).await;
        assert_eq!(slow.ended.load(Ordering::SeqCst), MOST);
        drop(held);
        assert!(slow.until_ended(MOST + 1, 60).await);
    }
}
