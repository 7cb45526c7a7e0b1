//! To the end: a change that was begun is ended and logged, although whoever asked for it hangs up.

use std::panic::resume_unwind;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use quell_protocol::http::{Problem, ProblemKind};

use super::reply;

/// Routes whose changes are ended.
pub(super) fn to_the_end<S: Clone + Send + Sync + 'static>(routes: Router<S>) -> Router<S> {
    routes.route_layer(from_fn(end))
}

/// Answers what may change something in a task of its own: an answer that nobody waits for any more is dropped
/// where it stands, perhaps between a ban and the line of the log that says who banned.
async fn end(request: Request, next: Next) -> Response {
    if request.method().is_safe() {
        return next.run(request).await;
    }
    let ended = tokio::spawn(next.run(request)).await;
    ended.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => resume_unwind(panic),
        Err(_) => reply::problem(&Problem::new(ProblemKind::Internal, "the server stops")),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use axum::body::Body;
    use axum::http::Method;
    use axum::routing::get;
    use tokio::sync::Notify;
    use tokio::time::timeout;
    use tower_service::Service as _;

    use super::*;

    /// Asks, hangs up while the answer is on its way, and says whether it was ended.
    async fn is_ended(method: Method) -> bool {
        let [begun, go_on, ended] = [(); 3].map(|()| Arc::new(Notify::new()));
        let steps = (Arc::clone(&begun), Arc::clone(&go_on), Arc::clone(&ended));
        let answer = async move || {
            let (begun, go_on, ended) = steps;
            begun.notify_one();
            go_on.notified().await;
            ended.notify_one();
        };
        let routes = Router::new().route("/", get(answer.clone()).post(answer));
        let mut routes = to_the_end(routes);
        let request = Request::builder()
            .method(method)
            .body(Body::empty())
            .unwrap();
        tokio::select! {
            answer = routes.call(request) => panic!("{answer:?}"),
            () = begun.notified() => {}
        }
        go_on.notify_one();
        timeout(Duration::from_secs(1), ended.notified())
            .await
            .is_ok()
    }

    #[tokio::test]
    async fn a_change_is_ended_although_its_caller_hangs_up() {
        assert!(is_ended(Method::POST).await);
        assert!(!is_ended(Method::GET).await, "nobody waits for it");
    }
}
