//! Reflection (`grpc.reflection.v1` and `v1alpha`): which services the listener has, and what their messages are.
//!
//! It is for everybody, as health is. Its clients wait for an answer before they ask on, so a call is not read whole:
//! each question is bounded, and so are all answers together, for which a call draws from its caller's budget.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request as HttpRequest, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use http_body_util::{BodyExt as _, Limited};
use quell_envoy::file_descriptors;
use quell_host::budget::BudgetShare;
use quell_host::caller::Client;
use quell_host::reply::{self, Endless, FULL};
use tonic::Status;
use tonic_reflection::server::{Builder, Error};

use super::check_version;
use crate::shared::Shared;

/// Longest question, which is a name.
const QUESTION: usize = 4 * 1_024;

/// Bytes of all answers of a call. A client that reads every file once gets some 8 KiB.
const ANSWERS: usize = 64 * 1_024;

/// The routes of both versions. They are always there: the descriptors do not change, and a test reads them.
pub(super) fn routes(shared: &Arc<Shared>) -> Router {
    let bounds = from_fn_with_state(Arc::clone(shared), bounded);
    services().map_or_else(|_| Router::new(), |services| services.route_layer(bounds))
}

fn services() -> Result<Router, Error> {
    let builder = || {
        Builder::configure()
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .register_file_descriptor_set(file_descriptors())
    };
    let now = builder().build_v1()?.max_decoding_message_size(QUESTION);
    let before = builder()
        .build_v1alpha()?
        .max_decoding_message_size(QUESTION);
    let router = Router::new()
        .route_service("/grpc.reflection.v1.ServerReflection/{method}", now)
        .route_service("/grpc.reflection.v1alpha.ServerReflection/{method}", before);
    Ok(router)
}

/// Passes a call on, and draws for its answers until the last is sent.
async fn bounded(State(shared): State<Arc<Shared>>, request: HttpRequest, next: Next) -> Response {
    if let Err(problem) = check_version(&request) {
        return reply::problem(&problem);
    }
    // A request without a client came some other way than a listener's.
    let client = request.extensions().get::<Client>();
    let buffers = client.map_or_else(
        || shared.buffers.of(None),
        |client| Arc::clone(&client.buffers),
    );
    let mut share = buffers.share_of_answers();
    if !share.resize(ANSWERS) {
        return Status::resource_exhausted(FULL).into_http();
    }
    let share = Arc::new(share);
    let mut response = next.run(request).await.map(|body| {
        let body = Limited::new(body, ANSWERS).map_frame(move |frame| {
            let share = Arc::clone(&share);
            frame.map_data(|bytes| {
                Bytes::from_owner(Drawn {
                    bytes,
                    _share: share,
                })
            })
        });
        Body::new(body)
    });
    response.extensions_mut().insert(Endless);
    response
}

/// A piece of an answer, and the share that its call has drawn.
struct Drawn {
    bytes: Bytes,
    _share: Arc<BudgetShare>,
}

impl AsRef<[u8]> for Drawn {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}
