//! `/openapi.json`: what there is to ask, for programs.

use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;

use super::reply;

/// Written by hand; tests compare its paths and methods with what the server answers.
const OPENAPI: &str = include_str!("openapi.json");

pub(super) async fn openapi() -> Response {
    let kind = HeaderValue::from_static("application/json");
    reply::reply(StatusCode::OK, kind, OPENAPI)
}
