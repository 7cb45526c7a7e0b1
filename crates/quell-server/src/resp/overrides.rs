//! `QUELL.OVERRIDE`: what `/v1/overrides` does, for clients of Redis. Each command is a request to the route that does
//! it, so that its checks, its log and its words are the same.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use form_urlencoded::Serializer;
use quell_protocol::resp::{Encoder, OverriddenKey, OverrideCommand, OverrideVerb};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::http::Client;
use crate::http::override_routes;
use crate::shared::Shared;

/// The longest answer of a route, in bytes: a page of a thousand records.
const MAX_ANSWER: usize = 256 * 1_024 * 1_024;

/// Carries out a command of `client`, and writes its reply.
pub(super) async fn answer(
    shared: Arc<Shared>,
    client: Client,
    command: &OverrideCommand<'_>,
    encoder: &mut Encoder<'_>,
) {
    let domain = command.domain.to_owned();
    let state = || State(Arc::clone(&shared));
    let request = |query: String, body: &[u8]| {
        let mut request = Request::new(Body::from(body.to_vec()));
        if let Ok(uri) = format!("/?{query}").parse() {
            *request.uri_mut() = uri;
        }
        request.extensions_mut().insert(client.clone());
        request
    };
    let of_key = |key: &OverriddenKey<'_>| Ok(Path((domain.clone(), key.rule.to_owned())));
    // A client that hangs up stops no change half-way.
    let answered = match &command.verb {
        OverrideVerb::Set(key, numbers) => {
            let asked = override_routes::put(state(), of_key(key), request(entries(key), numbers));
            tokio::spawn(asked).await
        }
        OverrideVerb::Delete(key) => {
            let asked = override_routes::delete(state(), of_key(key), request(entries(key), b""));
            tokio::spawn(asked).await
        }
        OverrideVerb::Get(key) => {
            Ok(override_routes::show(state(), of_key(key), request(entries(key), b"")).await)
        }
        OverrideVerb::Scan { cursor, count } => {
            let request = request(page(*cursor, *count), b"");
            Ok(override_routes::list(state(), Ok(Path(domain.clone())), request).await)
        }
    };
    let Ok(answered) = answered else {
        return encoder.error("ERR", "the server stops");
    };
    let response = answered.into_response();
    let status = response.status();
    let body = to_bytes(response.into_body(), MAX_ANSWER).await;
    let body = body.unwrap_or_default();
    if !status.is_success() {
        return refuse(status, &body, encoder);
    }
    match &command.verb {
        OverrideVerb::Scan { .. } => write_page(&body, encoder),
        _ => encoder.bulk(&body),
    }
}

fn page(cursor: Option<&str>, count: Option<u64>) -> String {
    let mut query = Serializer::new(String::new());
    query.extend_pairs(cursor.map(|cursor| ("cursor", cursor)));
    query.extend_pairs(count.map(|count| ("most", count.to_string())));
    query.finish()
}

fn entries(key: &OverriddenKey<'_>) -> String {
    let mut query = Serializer::new(String::new());
    query.extend_pairs(&key.entries);
    query.finish()
}

/// Writes what a problem document says.
fn refuse(status: StatusCode, body: &[u8], encoder: &mut Encoder<'_>) {
    let problem: Value = serde_json::from_slice(body).unwrap_or_default();
    let detail = problem.get("detail").or_else(|| problem.get("title"));
    let detail = detail.and_then(Value::as_str).unwrap_or(status.as_str());
    let code = match status {
        StatusCode::UNAUTHORIZED => "NOAUTH",
        StatusCode::FORBIDDEN => "NOPERM",
        _ => "ERR",
    };
    encoder.error(code, detail);
}

/// A page, whose overrides stay as they are written.
#[derive(Debug, Default, Deserialize)]
struct Page<'b> {
    #[serde(borrow)]
    overrides: Vec<&'b RawValue>,
    next: Option<String>,
}

/// The cursor of the next part, or 0 at the end, and the overrides, each as JSON.
fn write_page(body: &[u8], encoder: &mut Encoder<'_>) {
    let page: Page<'_> = serde_json::from_slice(body).unwrap_or_default();
    encoder.array(2);
    encoder.bulk(page.next.as_deref().unwrap_or("0").as_bytes());
    encoder.array(page.overrides.len());
    for one in page.overrides {
        encoder.bulk(one.get().as_bytes());
    }
}
