//! Bodies: JSON only, complete, and of bounded size and time.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE, ORIGIN};
use http_body_util::BodyExt;
use quell_protocol::http::{Problem, ProblemKind};

use crate::budget::{Budget, BudgetShare, Budgeted};
use crate::caller::Client;
use crate::head::MAX_HEAD;

/// Bytes beyond the limit that are read and dropped, so that the client gets to read the answer.
const EXCESS: usize = 8 * 1_024 * 1_024;

/// The type that curl sends by default.
const FORM: &[u8] = b"application/x-www-form-urlencoded";

/// Longest body that draws nothing: an HTTP/1 connection has at most one, and each request over HTTP/2
/// draws for its own.
const SMALL: usize = 4 * 1_024;

/// Part of a long body that hyper keeps beside its read buffer: a piece not taken yet.
const PIECE: usize = MAX_HEAD;

/// Bounds of a body.
#[derive(Clone, Copy, Debug)]
pub struct BodyBounds<'a> {
    /// Budget it draws from, unless its client has one.
    pub buffers: &'a Arc<Budget>,
    /// Longest time for it to arrive.
    pub timeout: Duration,
    /// Its longest length, in bytes.
    pub most: usize,
}

/// A complete body.
pub type BufferedBody = Budgeted<Vec<u8>>;

/// Reads a JSON body within its bounds.
///
/// A type is required, so that no web page can make a browser send a body here without asking first.
/// Clients other than browsers may omit it, or send the default of `curl -d`; browsers tell which page
/// a request comes from.
pub async fn read_json(
    request: Request,
    bounds: BodyBounds<'_>,
) -> Result<BufferedBody, Box<Problem>> {
    read_typed(request, ("JSON", "application/json"), bounds).await
}

/// Reads lines of JSON within their bounds, as [`read_json`] does with their own type.
pub async fn read_lines(
    request: Request,
    bounds: BodyBounds<'_>,
) -> Result<BufferedBody, Box<Problem>> {
    read_typed(request, ("lines of JSON", "application/x-ndjson"), bounds).await
}

async fn read_typed(
    request: Request,
    (what, kind): (&str, &str),
    bounds: BodyBounds<'_>,
) -> Result<BufferedBody, Box<Problem>> {
    if !is_of_type(request.headers(), kind) {
        let detail = format!("the body must be {what}: write the header Content-Type: {kind}");
        return Err(Box::new(Problem::new(
            ProblemKind::UnsupportedMediaType,
            detail,
        )));
    }
    if is_coded(request.headers()) {
        let detail = "the body must come as it is: send it without Content-Encoding";
        return Err(Box::new(Problem::new(
            ProblemKind::UnsupportedMediaType,
            detail,
        )));
    }
    read_all(request, bounds).await
}

/// Reads a body of any kind, which `client` sends, within its bounds.
pub async fn read(
    body: Body,
    client: Option<&Client>,
    bounds: BodyBounds<'_>,
) -> Result<BufferedBody, Box<Problem>> {
    let of_address = client.map(|client| Arc::clone(&client.buffers));
    // A request without a client came some other way than a listener's.
    let share = of_address
        .unwrap_or_else(|| bounds.buffers.of(None))
        .share();
    let mut body = pin!(collect(body, bounds.most, share));
    // It nearly always arrives with its head, and then needs no timer.
    let at_once = poll_fn(|context| Poll::Ready(body.as_mut().poll(context)));
    if let Poll::Ready(read) = at_once.await {
        return read;
    }
    match tokio::time::timeout(bounds.timeout, body).await {
        Ok(read) => read,
        Err(_) => {
            let detail = "the body did not arrive in time: send it at once";
            Err(Box::new(Problem::new(ProblemKind::RequestTimeout, detail)))
        }
    }
}

/// Reads the form of a page, whose origin was checked, within its bounds.
pub async fn read_form(
    request: Request,
    bounds: BodyBounds<'_>,
) -> Result<BufferedBody, Box<Problem>> {
    let kind = request.headers().get(CONTENT_TYPE);
    if kind.is_none_or(|kind| !kind.as_bytes().starts_with(FORM)) {
        let detail = "the body must be a form: write the header Content-Type: \
                      application/x-www-form-urlencoded";
        return Err(Box::new(Problem::new(
            ProblemKind::UnsupportedMediaType,
            detail,
        )));
    }
    read_all(request, bounds).await
}

async fn read_all(request: Request, bounds: BodyBounds<'_>) -> Result<BufferedBody, Box<Problem>> {
    let (head, body) = request.into_parts();
    read(body, head.extensions.get(), bounds).await
}

fn is_of_type(headers: &HeaderMap, wanted: &str) -> bool {
    let kind = headers.get(CONTENT_TYPE).map(|value| value.as_bytes());
    let essence = kind.and_then(|kind| kind.split(|byte| *byte == b';').next());
    let essence = essence.unwrap_or_default().trim_ascii();
    if essence.eq_ignore_ascii_case(wanted.as_bytes()) {
        return true;
    }
    let is_unsaid = essence.is_empty() || essence.eq_ignore_ascii_case(FORM);
    let is_browser = headers.contains_key(ORIGIN) || headers.contains_key("sec-fetch-site");
    is_unsaid && !is_browser
}

/// Returns true if a body would have to be inflated, to whatever size.
fn is_coded(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(CONTENT_ENCODING).into_iter();
    codings.any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity"))
}

async fn collect(
    mut body: Body,
    most: usize,
    mut share: BudgetShare,
) -> Result<BufferedBody, Box<Problem>> {
    let mut bytes = Vec::new();
    let mut size = 0_usize;
    let mut is_refused = false;
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            let detail = "the body broke off: send all of it";
            return Err(Box::new(Problem::new(ProblemKind::InvalidRequest, detail)));
        };
        let Ok(data) = frame.into_data() else {
            continue;
        };
        size = size.saturating_add(data.len());
        let room = size.next_power_of_two();
        if size <= most && room > SMALL && !is_refused {
            is_refused = !share.resize(room.saturating_add(room.min(PIECE)));
        }
        if size > most || is_refused {
            bytes = Vec::new();
            share.resize(0);
            if size > most.saturating_add(EXCESS) {
                break;
            }
        } else {
            // Copied, since a piece keeps all of the buffer that it was read into. At most what was drawn.
            if bytes.capacity() < size {
                bytes.reserve_exact(room - bytes.len());
            }
            bytes.extend_from_slice(&data);
        }
    }
    if size > most {
        let detail = format!("the body is longer than {most} bytes: write a shorter one");
        return Err(Box::new(Problem::new(ProblemKind::BodyTooLarge, detail)));
    }
    if is_refused {
        let detail =
            "the buffers of all connections are full (max_buffer_bytes): send bodies at once";
        return Err(Box::new(Problem::new(ProblemKind::Overloaded, detail)));
    }
    let held = Some(bytes.capacity()).filter(|bytes| *bytes > SMALL);
    share.resize(held.unwrap_or_default());
    Ok(BufferedBody {
        bytes,
        _share: share,
    })
}
