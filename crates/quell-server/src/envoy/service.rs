//! `ShouldRateLimit`: asks the limiter what a request of Envoy asks.
//!
//! Descriptors with hits are charged together or not at all. Those that are only checked, and limits that came with a
//! descriptor, are looked at before; if one of them refuses, nothing is charged. A limit that came along is charged
//! last, by itself: another call may take its last unit in between, which refuses this call after the rules were
//! charged.

use std::sync::Arc;

use quell::{AskError, Operation, Query, Verdict};
use quell_core::cost::Cost;
use quell_core::rate_limit_fields::RateLimitItem;
use quell_core::rule::RuleSet;
use quell_envoy::proto::{RateLimitRequest, RateLimitResponse, RateLimitService};
use quell_envoy::{Answer, Fields, OwnLimit, Part, Request};
use quell_host::caller::Client;
use tonic::{Response, Status};

use super::{denied, status};
use crate::access::Caller;
use crate::http::unsupported;
use crate::shared::{FailedCall, Shared};

/// The rate limit service of one server.
#[derive(Debug)]
pub(super) struct RateLimits(pub(super) Arc<Shared>);

#[tonic::async_trait]
impl RateLimitService for RateLimits {
    async fn should_rate_limit(
        &self,
        request: tonic::Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let client = request.extensions().get::<Client>();
        // A request without a client came some other way than a listener's.
        let caller = client.map_or(Caller::Stranger, |client| client.caller.clone());
        let context = self.0.context(request.metadata().as_ref());
        let answer = self.answer(request.get_ref(), &caller, context).await;
        answer.map(Response::new)
    }
}

/// A part of a request that was answered.
struct Answered<'q, 'a> {
    query: &'q Query<'a>,
    verdict: Verdict,
}

impl RateLimits {
    async fn answer(
        &self,
        message: &RateLimitRequest,
        caller: &Caller,
        context: Vec<u8>,
    ) -> Result<RateLimitResponse, Status> {
        let mut request =
            Request::read(message).map_err(|error| Status::invalid_argument(error.to_string()))?;
        if !request.own_limits.is_empty() {
            // Limits that come with calls are those of the whole server, and so are the places for them.
            caller.check_whole().map_err(denied)?;
        }
        let rules = self.0.limiter.rules();
        let parts = [request.checked.query_mut(), request.charged.query_mut()];
        for query in parts.into_iter().flatten() {
            query.set_context(context.clone());
            caller.sign(query).map_err(denied)?;
            if let Some((rule, limit)) = rules.follow_up(query) {
                return Err(status(&unsupported(rule, limit)));
            }
        }
        let mut answer = Answer::new(request.descriptors);
        let checked = self.ask(
            Operation::Peek,
            &request.checked,
            caller,
            (&rules, &mut answer),
        );
        let checked = checked.await?;
        for own in &request.own_limits {
            self.ask_own(Operation::Peek, own, &mut answer).await?;
        }
        let operation = match answer.is_over() {
            true => Operation::Peek,
            false => Operation::Acquire,
        };
        let charged = self.ask(operation, &request.charged, caller, (&rules, &mut answer));
        let charged = charged.await?;
        if !answer.is_over() {
            for own in request.own_limits.iter().filter(|own| own.hits.is_some()) {
                self.ask_own(Operation::Acquire, own, &mut answer).await?;
            }
        }
        let answered: Vec<_> = checked.into_iter().chain(charged).collect();
        let refused = answered.iter().find(|one| !one.verdict.is_allow());
        let page = refused.and_then(|one| rules.refusal_page(one.query, &one.verdict));
        let fields = self.0.config.envoy_headers.fields();
        let items = match fields {
            Fields::Draft => { answered.iter() }
                .flat_map(|one| RateLimitItem::for_verdict(&rules, one.query, &one.verdict))
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
        let (verdict, each) =
            asked.map_err(|error| status(&self.0.ask_problem(&error, query.domain(), caller)))?;
        for ((place, descriptor), own) in part.places().iter().zip(query.descriptors()).zip(&each) {
            let binding = own.binding_rule();
            let limit =
                binding.and_then(|one| rules.limit_of(query.domain(), &one.rule, descriptor));
            answer.set(*place, own, limit);
        }
        Ok(Some(Answered { query, verdict }))
    }

    async fn ask_own(
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
