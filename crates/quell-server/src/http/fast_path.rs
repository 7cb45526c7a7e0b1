//! Fast path: answers the usual questions over HTTP/1.1, parsed in place.
//!
//! Every connection begins here. At the first bytes that are not a whole question it goes to hyper with
//! all that was read, and stays there: other routes, HTTP/2, bodies in pieces, callers who wait for
//! their turn, requests with mistakes. So each of those is answered in one place only, and nothing is
//! charged twice, since a question is left to hyper before it is decided.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::Poll;

use axum::http::StatusCode;
use jiff::Timestamp;
use quell::{Operation, Plan, Query, Verdict};
use quell_core::time::Wall;
use quell_protocol::http::{PROBLEM_JSON, VerdictBody, find_question};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;

use super::caller::authenticate;
use super::origin::LastHost;
use super::requests::Requests;
use super::service::HttpService;
use super::stream::TimedStream;
use super::{ask, reply};
use crate::access::{Caller, ClientCertificate};
use crate::health::Phase;
use crate::shared::Shared;
use crate::store::ServerStore;

/// Room for what comes at once: a dozen questions. A longer one goes to hyper.
const ROOM: usize = 4 * 1_024;

/// Bytes of answers that are sent before more are made: a dozen of all but the longest.
const MAX_OUTPUT: usize = 16 * 1_024;

/// Way in which a connection left the fast path.
pub(super) enum Exit {
    /// The connection ended: the client is gone, or the server stops and all that was read is answered.
    Closed,
    /// The client sent something other than a question, which begins with these bytes.
    Fallback(Vec<u8>),
}

/// Answers questions until something else comes.
///
/// # Errors
/// If the connection breaks off, or nothing moves on it for too long.
pub(super) async fn serve(
    stream: &mut TimedStream,
    service: &HttpService,
    certificate: Option<&ClientCertificate>,
    requests: &Requests,
    phase: &mut watch::Receiver<Phase>,
) -> io::Result<Exit> {
    let shared = &*service.shared;
    let limiter = &shared.limiter;
    let (mut input, mut output) = (Vec::new(), Vec::new());
    let mut last_host = LastHost::default();
    loop {
        input.reserve(ROOM);
        let read = tokio::select! {
            biased;
            read = stream.read_buf(&mut input) => read?,
            () = is_stopping(phase) => {
                let read = stream.read_buf(&mut input);
                match tokio::time::timeout(requests.last_wait(), read).await {
                    Ok(read) => read?,
                    Err(_) => return Ok(Exit::Closed),
                }
            }
        };
        if read == 0 {
            return Ok(Exit::Closed);
        }
        if *phase.borrow() != Phase::Running {
            // The answer has to say that the connection closes.
            return Ok(Exit::Fallback(input));
        }
        let mut rest = input.as_slice();
        while let Some(asked) = read_question(service, certificate, rest, &mut last_host) {
            let now = limiter.now();
            // After the clock, as `ask_or_plan` needs it, and for each: what waits may be overtaken by a reload.
            let rules = limiter.rules();
            let at_once = limiter.ask_or_plan(&rules, asked.operation, &asked.query, now);
            // There is no such domain.
            let Ok(at_once) = at_once else { break };
            requests.begin();
            let is_last = match at_once {
                Ok(verdict) => {
                    write_verdict(&mut output, &verdict, now.wall, false);
                    false
                }
                // In a box, so that an idle connection keeps no room for it.
                Err(plan) => {
                    Box::pin(wait(shared, &asked, plan, phase, stream, &mut output)).await?
                }
            };
            requests.answer();
            rest = rest.get(asked.length..).unwrap_or_default();
            if is_last || output.len() >= MAX_OUTPUT {
                send(stream, &output).await?;
                output = Vec::new();
            }
            if is_last {
                return Ok(Exit::Closed);
            }
        }
        if !output.is_empty() {
            send(stream, &output).await?;
            output.clear();
        }
        if !rest.is_empty() {
            return Ok(Exit::Fallback(rest.to_vec()));
        }
        input.clear();
    }
}

/// Sends all of it.
async fn send(stream: &mut TimedStream, output: &[u8]) -> io::Result<()> {
    stream.write_all(output).await?;
    stream.flush().await
}

async fn is_stopping(phase: &mut watch::Receiver<Phase>) {
    // Without a sender there is no server any more.
    let _ = phase.wait_for(|phase| *phase == Phase::Stopping).await;
}

/// A question whose body was read.
struct ParsedQuestion<'a> {
    operation: Operation,
    query: Query<'a>,
    caller: Caller,
    /// Bytes of the request.
    length: usize,
}

/// The question that `input` begins with; `None` if hyper has to answer it.
fn read_question<'a>(
    service: &HttpService,
    certificate: Option<&ClientCertificate>,
    input: &'a [u8],
    last_host: &mut LastHost,
) -> Option<ParsedQuestion<'a>> {
    if !service.purpose.has_questions() {
        return None;
    }
    let question = find_question(input)?;
    let shared = &service.shared;
    let config = &shared.config;
    last_host.admit(&question, service.port, config).ok()?;
    if question.body.len() > config.max_body_bytes {
        return None;
    }
    let mut asked = ask::parse(question.operation, question.body).ok()?;
    if shared.traces.is_some() {
        // Parsed only if there is a span.
        asked.query.set_context(question.fields);
    }
    let caller = authenticate(&question, &shared.access, certificate);
    caller.sign(&mut asked.query).ok()?;
    // A caller who waits for a turn is not answered here.
    asked.max_wait.is_zero().then_some(ParsedQuestion {
        operation: question.operation,
        query: asked.query,
        caller,
        length: question.length,
    })
}

/// Asks the store and appends its answer to `output`. If that takes a wait, earlier answers are sent first.
/// Returns whether the connection closes after it, which the answer then says.
///
/// # Errors
/// If earlier answers cannot be sent.
async fn wait(
    shared: &Shared,
    asked: &ParsedQuestion<'_>,
    plan: Plan<'_, ServerStore>,
    phase: &watch::Receiver<Phase>,
    stream: &mut TimedStream,
    output: &mut Vec<u8>,
) -> io::Result<bool> {
    let mut call = pin!(ask::ask_planned(shared, &asked.query, plan, &asked.caller));
    let mut answer = match poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await {
        Poll::Ready(answer) => answer,
        Poll::Pending => {
            send(stream, output).await?;
            output.clear();
            call.await
        }
    };
    if let Ok(verdict) = &answer
        && verdict.id.is_some()
        && stream.has_hung_up()
    {
        // Boxed, since it is larger than all the rest, and rare.
        let gone = Box::pin(ask::give_back(shared, &asked.query, verdict));
        answer = Err(gone.await);
    }
    let is_last = *phase.borrow() != Phase::Running;
    let wall = shared.limiter.now().wall;
    match answer {
        Ok(verdict) => write_verdict(output, &verdict, wall, is_last),
        Err(problem) => {
            let (status, body) = reply::problem_body(&problem);
            write_answer(output, status, PROBLEM_JSON, body.as_bytes(), wall, is_last);
        }
    }
    Ok(is_last)
}

fn write_verdict(output: &mut Vec<u8>, verdict: &Verdict, wall: Wall, is_last: bool) {
    thread_local! {
        static BODY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    BODY.with_borrow_mut(|body| {
        body.clear();
        VerdictBody::from(verdict).write_json(body);
        write_answer(
            output,
            StatusCode::OK,
            "application/json",
            body,
            wall,
            is_last,
        );
    });
}

/// Appends an answer as hyper writes it.
fn write_answer(
    output: &mut Vec<u8>,
    status: StatusCode,
    kind: &str,
    body: &[u8],
    wall: Wall,
    is_last: bool,
) {
    output.extend_from_slice(b"HTTP/1.1 ");
    output.extend_from_slice(status.as_str().as_bytes());
    output.push(b' ');
    let reason = status.canonical_reason().unwrap_or_default();
    output.extend_from_slice(reason.as_bytes());
    output.extend_from_slice(b"\r\ncontent-type: ");
    output.extend_from_slice(kind.as_bytes());
    if status == StatusCode::SERVICE_UNAVAILABLE {
        output.extend_from_slice(b"\r\nretry-after: 1");
    }
    if is_last {
        output.extend_from_slice(b"\r\nconnection: close");
    }
    output.extend_from_slice(b"\r\ncontent-length: ");
    output.extend_from_slice(itoa::Buffer::new().format(body.len()).as_bytes());
    output.extend_from_slice(b"\r\ndate: ");
    push_date(output, wall);
    output.extend_from_slice(b"\r\n\r\n");
    output.extend_from_slice(body);
}

/// Appends the date in the format of HTTP (RFC 9110, 5.6.7). It is formatted once a second.
fn push_date(output: &mut Vec<u8>, wall: Wall) {
    thread_local! {
        static LAST: RefCell<(u64, String)> = const { RefCell::new((0, String::new())) };
    }
    let second = wall.as_nanos() / 1_000_000_000;
    LAST.with_borrow_mut(|(made_at, text)| {
        if *made_at != second || text.is_empty() {
            *made_at = second;
            let timestamp = i64::try_from(second).ok();
            let timestamp = timestamp.and_then(|second| Timestamp::from_second(second).ok());
            let timestamp = timestamp.unwrap_or_default();
            *text = timestamp.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
        }
        output.extend_from_slice(text.as_bytes());
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_as_http_has_them() {
        for (second, expected) in [
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_778, "Sun, 06 Nov 1994 08:49:38 GMT"),
        ] {
            let mut date = Vec::new();
            push_date(&mut date, Wall::from_nanos(second * 1_000_000_000));
            assert_eq!(String::from_utf8(date).unwrap(), expected);
        }
        push_date(&mut Vec::new(), Wall::from_nanos(u64::MAX));
    }
}
