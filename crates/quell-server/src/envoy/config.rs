//! Config: answers of domains whose limits are in files of envoyproxy/ratelimit (`--envoy-config`).
//!
//! All descriptors of a call are charged in one step, by the rule of that service: one that begins within its limits
//! is charged whole. A limit that came with a descriptor is charged by itself.

use std::time::Duration;

use quell::calendar::CalendarEdges as _;
use quell::store::Action;
use quell::{Operation, Query, Verdict};
use quell_core::decision::{Decision, Outcome};
use quell_core::descriptor::Descriptor;
use quell_core::rate_limit_fields::RateLimitItem;
use quell_core::rule::RuleSet;
use quell_core::time::Now;
use quell_envoy::config::{ConfigAnswer, Found, HitCounts, LeafLimit, Tree};
use quell_envoy::proto::{RateLimitRequest, RateLimitResponse};
use quell_envoy::{Answer, Fields, Part, Request};
use tonic::Status;

use super::reservations::CALENDAR;
use super::service::RateLimits;
use super::{denied, status};
use crate::access::Caller;
use crate::shared::FailedCall;

impl RateLimits<'_> {
    /// Answers a call on a domain with a tree, or on a domain that nobody knows.
    pub(super) async fn answer_config(
        &self,
        message: &RateLimitRequest,
        (caller, context): (&Caller, Vec<u8>),
        rules: &RuleSet,
        tree: Option<&Tree>,
    ) -> Result<RateLimitResponse, Status> {
        let mut request = Request::read_for_config(message)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        if !request.own_limits.is_empty() {
            // Limits that come with calls are those of the whole server, and so are the places for them.
            caller.check_whole().map_err(denied)?;
        }
        let parts = [request.charged.query_mut(), request.refunded.query_mut()];
        for query in parts.into_iter().flatten() {
            query.set_context(context.clone());
            caller.sign(query).map_err(denied)?;
        }
        let mut answer = ConfigAnswer::new(request.descriptors, self.0.config.envoy_quota);
        let mut verdict = None;
        match tree {
            None if self.0.sources.lacks_config() => {
                self.0.envoy.note_service_error();
                return Err(Status::unavailable(
                    "no rate limit configuration loaded: the control plane has sent none yet",
                ));
            }
            None => self.0.envoy.note_unknown(&message.domain),
            Some(tree) => {
                if let Some(query) = request.refunded.query() {
                    // In a box, because the future of every question would be as large, and is moved.
                    let part = (&request.refunded, query);
                    Box::pin(self.refund(part, caller, tree, &mut answer)).await?;
                }
                verdict = self
                    .charge(&request.charged, caller, tree, &mut answer)
                    .await?;
                for own in &request.own_limits {
                    let operation = match own.hits {
                        Some(_) => Operation::Acquire,
                        None => Operation::Peek,
                    };
                    let mut asked = Answer::new(request.descriptors);
                    Box::pin(self.ask_own(operation, own, &mut asked)).await?;
                    if let Some(told) = asked.status(own.place) {
                        let descriptor = message.descriptors.get(own.place);
                        self.0
                            .envoy
                            .note_own(&message.domain, descriptor, own, told);
                        answer.set_own(own.place, told.clone());
                    }
                }
            }
        }
        let config = &self.0.config;
        let is_shadow = config.shadow;
        if answer.is_over() && is_shadow {
            self.0.envoy.note_global_shadow();
        }
        let fields = config.envoy_headers.fields();
        let items = match (fields, request.charged.query(), &verdict) {
            (Fields::Draft, Some(query), Some(verdict)) => {
                RateLimitItem::for_verdict(rules, query, verdict, self.0.limiter.now().wall)
            }
            _ => Vec::new(),
        };
        let metadata = config.envoy_metadata.then(|| answer.metadata(message));
        Ok(answer.into_message((fields, &items), is_shadow, metadata))
    }

    /// Charges a part of a request, and sets the statuses of its descriptors.
    async fn charge(
        &self,
        part: &Part<'_>,
        caller: &Caller,
        tree: &Tree,
        answer: &mut ConfigAnswer,
    ) -> Result<Option<Verdict>, Status> {
        let Some(query) = part.query() else {
            return Ok(None);
        };
        let (now, operation) = (self.0.limiter.now(), Operation::Acquire);
        let asked = self.0.limiter.ask_each(operation, query, now).await;
        let asked = self.0.traced(FailedCall::new(operation, query, now), asked);
        let (verdict, each, _) = asked.map_err(|error| {
            self.0.envoy.note_store_error();
            status(&self.0.ask_problem(&error, query.domain(), caller))
        })?;
        for (place, descriptor, found, decision) in limited(part, query, tree, &each) {
            answer.set(place, &found, decision, until_reset(&found, now));
            let hits = if descriptor.is_check {
                0
            } else {
                descriptor.cost.get()
            };
            let near = self.0.config.envoy_near_limit.ratio();
            if let Some(counts) = counts(&found, decision, hits, near) {
                self.0.envoy.note(&found, descriptor, counts);
            }
        }
        Ok(Some(verdict))
    }

    /// Gives the hits of a part back, and sets the statuses of its descriptors.
    async fn refund(
        &self,
        (part, query): (&Part<'_>, &Query<'_>),
        caller: &Caller,
        tree: &Tree,
        answer: &mut ConfigAnswer,
    ) -> Result<(), Status> {
        let failed = |error| {
            self.0.envoy.note_store_error();
            status(&self.0.ask_problem(&error, query.domain(), caller))
        };
        let limiter = &self.0.limiter;
        limiter
            .administer(query, Action::Refund)
            .await
            .map_err(failed)?;
        self.0.note_change();
        let now = limiter.now();
        let (_, each, _) = limiter
            .ask_each(Operation::Peek, query, now)
            .await
            .map_err(failed)?;
        for (place, descriptor, found, decision) in limited(part, query, tree, &each) {
            // Whatever is left, a refund passes.
            let passed = decision.map(|one| Decision {
                outcome: Outcome::Allow,
                ..*one
            });
            answer.set(place, &found, passed.as_ref(), until_reset(&found, now));
            self.0
                .envoy
                .note_refund(&found, descriptor, descriptor.cost.get());
        }
        Ok(())
    }
}

/// The descriptors of a part that have a limit: the place in the request, the limit, and the decision on it, if it was
/// asked.
fn limited<'a, 't>(
    part: &'a Part<'_>,
    query: &'a Query<'a>,
    tree: &'t Tree,
    each: &'a [Verdict],
) -> impl Iterator<Item = (usize, &'a Descriptor<'a>, Found<'t>, Option<&'a Decision>)> {
    let found = tree.find_all(query.descriptors());
    let asked = part.places().iter().zip(query.descriptors()).zip(each);
    asked
        .zip(found)
        .filter_map(|(((place, descriptor), verdict), found)| {
            let decision = verdict.decisions.first().map(|one| &one.decision);
            Some((*place, descriptor, found?, decision))
        })
}

/// The time to the end of the window of a leaf.
fn until_reset(found: &Found<'_>, now: Now) -> Duration {
    match &found.leaf.limit {
        LeafLimit::Window { calendar, .. } => {
            CALENDAR.edges(calendar, now.wall).end.since(now.wall)
        }
        LeafLimit::Unlimited => Duration::ZERO,
    }
}

fn counts(
    found: &Found<'_>,
    decision: Option<&Decision>,
    hits: u64,
    near_ratio: f32,
) -> Option<HitCounts> {
    match &found.leaf.limit {
        LeafLimit::Unlimited => None,
        LeafLimit::Window { requests, .. } => {
            let is_shadow = found.leaf.is_shadow;
            Some(HitCounts::new(
                (hits, *requests),
                decision?,
                is_shadow,
                near_ratio,
            ))
        }
    }
}
