//! `ShouldRateLimit`: asks the limiter what a request of Envoy asks.
//!
//! Descriptors with hits are charged together or not at all. Those that are only checked, and limits that came with a
//! descriptor, are looked at before; if one of them refuses, nothing is charged. A limit that came along is charged
//! last, by itself: another call may take its last unit in between, which refuses this call after the rules were
//! charged.

use std::future::ready;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Request as HttpRequest, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::Response as HttpResponse;
use http_body_util::{BodyExt as _, Full};
use quell::{AskError, Operation, Query, Verdict};
use quell_core::cost::Cost;
use quell_core::rate_limit_fields::RateLimitItem;
use quell_core::rule::{RuleSet, Selector};
use quell_core::time::{Now, Wall};
use quell_envoy::config::Tree;
use quell_envoy::proto::{Message as _, RateLimitRequest, RateLimitResponse};
use quell_envoy::{Answer, Fields, OwnLimit, Part, Request};
use quell_host::caller::caller;
use tonic::{Code, Status};

use super::{denied, read, status};
use crate::access::{Caller, Role};
use crate::http::unsupported;
use crate::shared::{FailedCall, Shared};

/// The method that Envoy calls.
pub(super) const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Bytes before a message: 1 if it is compressed, and its length.
const PREFIX: usize = 5;

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

const STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// Answers one question. The frame of its message and of the answer's is read and written here: through tonic they
/// took a fifth of the processor time of a question.
pub(super) async fn should_rate_limit(
    State(shared): State<Arc<Shared>>,
    request: HttpRequest,
) -> HttpResponse {
    // Before its body is read.
    let caller = match caller(&request, Role::Ask) {
        Ok(caller) => caller,
        Err(error) => return denied(error).into_http(),
    };
    let (head, body) = match read(request, &shared).await {
        Ok(read) => read,
        Err(refused) => return refused,
    };
    let context = shared.context(&head.headers);
    let answer = async {
        let message = decode(&body.bytes)?;
        RateLimits(&shared).answer(&message, &caller, context).await
    };
    match answer.await {
        Ok(answer) => respond(&answer),
        Err(status) => status.into_http(),
    }
}

fn decode(frame: &[u8]) -> Result<RateLimitRequest, Status> {
    let Some((&[flag, a, b, c, d], message)) = frame.split_first_chunk::<PREFIX>() else {
        return Err(Status::invalid_argument("there is no message: send one"));
    };
    if flag != 0 {
        let text = "the message is compressed: send it as it is";
        return Err(Status::unimplemented(text));
    }
    if u32::from_be_bytes([a, b, c, d]) as usize != message.len() {
        let text = "the message is not as long as its frame says: send one, and all of it";
        return Err(Status::invalid_argument(text));
    }
    RateLimitRequest::decode(message).map_err(|error| {
        Status::invalid_argument(format!("the message is no RateLimitRequest: {error}"))
    })
}

fn respond(answer: &RateLimitResponse) -> HttpResponse {
    let length = answer.encoded_len();
    let mut frame = Vec::with_capacity(PREFIX + length);
    frame.push(0);
    frame.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
    // There is room for it: a vector grows.
    let _ = answer.encode(&mut frame);
    let trailers = HeaderMap::from_iter([(STATUS, HeaderValue::from_static("0"))]);
    let body = Full::new(Bytes::from(frame)).with_trailers(ready(Some(Ok(trailers))));
    let mut response = HttpResponse::new(Body::new(body));
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}

/// The rate limit service of one server.
#[derive(Debug)]
pub(super) struct RateLimits<'s>(pub(super) &'s Shared);

/// A part of a request that was answered.
pub(super) struct Answered<'q, 'a> {
    query: &'q Query<'a>,
    verdict: Verdict,
    /// The verdict on each descriptor.
    pub(super) each: Vec<Verdict>,
    /// Instant of the question.
    pub(super) asked: Now,
    pub(super) store_time: Option<Wall>,
}

impl RateLimits<'_> {
    /// Answers a message.
    pub(super) async fn answer(
        &self,
        message: &RateLimitRequest,
        caller: &Caller,
        context: Vec<u8>,
    ) -> Result<RateLimitResponse, Status> {
        let rules = self.0.limiter.rules();
        let tree = rules
            .selector(&message.domain)
            .and_then(Selector::get::<Tree>);
        let is_unknown = || !rules.has_domain(&message.domain);
        if tree.is_some() || (self.0.config.has_envoy_limits() && is_unknown()) {
            let asked = self
                .answer_config(message, (caller, context), &rules, tree)
                .await;
            if asked
                .as_ref()
                .is_err_and(|error| error.code() == Code::InvalidArgument)
            {
                self.0.envoy.note_service_error();
            }
            return asked;
        }
        self.answer_rules(message, (caller, context), &rules).await
    }

    /// Answers a call on a domain of rules.
    async fn answer_rules(
        &self,
        message: &RateLimitRequest,
        (caller, context): (&Caller, Vec<u8>),
        rules: &RuleSet,
    ) -> Result<RateLimitResponse, Status> {
        let reserve = rules.reserve(&message.domain);
        let mut request = Request::read(message, reserve)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        if !request.own_limits.is_empty() {
            // Limits that come with calls are those of the whole server, and so are the places for them.
            caller.check_whole().map_err(denied)?;
        }
        let parts = [request.checked.query_mut(), request.charged.query_mut()];
        for query in parts.into_iter().flatten() {
            query.set_context(context.clone());
            caller.sign(query).map_err(denied)?;
            if let Some((rule, limit)) = rules.follow_up(query) {
                return Err(status(&unsupported(rule, limit)));
            }
        }
        if let Some(reserve) = reserve {
            for settled in &mut request.settled {
                caller.sign(&mut settled.query).map_err(denied)?;
                // In a box, because the future of every question would be as large, and is moved.
                Box::pin(self.settle(reserve, settled, caller)).await?;
            }
        }
        let mut answer = Answer::new(request.descriptors);
        let checked = self.ask(
            Operation::Peek,
            &request.checked,
            caller,
            (rules, &mut answer),
        );
        let checked = checked.await?;
        for own in &request.own_limits {
            Box::pin(self.ask_own(Operation::Peek, own, &mut answer)).await?;
        }
        let operation = match answer.is_over() {
            true => Operation::Peek,
            false => Operation::Acquire,
        };
        let charged = self.ask(operation, &request.charged, caller, (rules, &mut answer));
        let charged = charged.await?;
        if !answer.is_over() {
            for own in request.own_limits.iter().filter(|own| own.hits.is_some()) {
                Box::pin(self.ask_own(Operation::Acquire, own, &mut answer)).await?;
            }
        }
        if let Some(reserve) = reserve.filter(|_| !request.reserved.is_empty()) {
            let is_refused = answer.is_over();
            let issued = self.issue(reserve, &request, charged.as_ref(), rules, is_refused);
            answer.set_reservation(&reserve.id, issued);
        }
        let answered: Vec<_> = checked.into_iter().chain(charged).collect();
        let refused = answered.iter().find(|one| !one.verdict.is_allow());
        let page = refused.and_then(|one| rules.refusal_page(one.query, &one.verdict));
        let fields = self.0.config.envoy_headers.fields();
        let items = match fields {
            Fields::Draft => { answered.iter() }
                .flat_map(|one| {
                    let wall = one.asked.wall;
                    RateLimitItem::for_verdict(rules, one.query, &one.verdict, wall)
                })
                .collect(),
            _ => Vec::new(),
        };
        Ok(answer.into_message(fields, &items, page))
    }

    /// Asks about a part of a request, if there is anything in it, and sets the statuses of its descriptors.
    async fn ask<'q, 'a>(
        &self,
        operation: Operation,
        part: &'q Part<'a>,
        caller: &Caller,
        (rules, answer): (&RuleSet, &mut Answer),
    ) -> Result<Option<Answered<'q, 'a>>, Status> {
        let Some(query) = part.query() else {
            return Ok(None);
        };
        let now = self.0.limiter.now();
        let asked = self.0.limiter.ask_each(operation, query, now).await;
        let asked = self.0.traced(FailedCall::new(operation, query, now), asked);
        let (verdict, each, store_time) =
            asked.map_err(|error| status(&self.0.ask_problem(&error, query.domain(), caller)))?;
        for ((place, descriptor), own) in part.places().iter().zip(query.descriptors()).zip(&each) {
            let binding = own.binding_rule();
            let limit = binding
                .and_then(|one| rules.limit_of(query.domain(), &one.rule, descriptor, now.wall));
            answer.set(*place, own, limit);
        }
        Ok(Some(Answered {
            query,
            verdict,
            each,
            asked: now,
            store_time,
        }))
    }

    pub(super) async fn ask_own(
        &self,
        operation: Operation,
        own: &OwnLimit,
        answer: &mut Answer,
    ) -> Result<(), Status> {
        let Some(bucket) = &own.bucket else {
            answer.set_own(own, None);
            return Ok(());
        };
        let (cost, now) = (own.hits.unwrap_or(Cost::ONE), self.0.limiter.now());
        let asked = self
            .0
            .limiter
            .ask_ad_hoc(operation, &own.key, bucket, cost, now);
        let decision = asked
            .await
            .map_err(|error: AskError| status(&self.0.ask_problem(&error, "", &Caller::Anyone)))?;
        answer.set_own(own, Some(&decision));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn a_message_is_read_from_its_frame_and_from_no_other() {
        let message = RateLimitRequest {
            domain: "d".to_owned(),
            ..RateLimitRequest::default()
        };
        let body = message.encode_to_vec();
        let frame = |flag: u8, length: u32| [&[flag][..], &length.to_be_bytes(), &body].concat();
        let length = u32::try_from(body.len()).unwrap();
        assert_eq!(decode(&frame(0, length)).unwrap(), message);
        let code = |frame: &[u8]| decode(frame).unwrap_err().code();
        for (frame, expected) in [
            (frame(1, length), Code::Unimplemented),
            (frame(0, length + 1), Code::InvalidArgument),
            (frame(0, length - 1), Code::InvalidArgument),
            (
                [frame(0, length), frame(0, length)].concat(),
                Code::InvalidArgument,
            ),
            (vec![0, 0, 0, 0], Code::InvalidArgument),
            (vec![0, 0, 0, 0, 1, 0xFF], Code::InvalidArgument),
        ] {
            assert_eq!(code(&frame), expected, "{frame:?}");
        }
    }
}
