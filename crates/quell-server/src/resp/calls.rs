//! Calls: questions of one connection that wait for the store at the same time.
//!
//! A store in this process answers at once. A shared store takes a round trip per question, so those
//! that came together are sent one after the other and waited for together; their answers go out in
//! the order of the questions. All go over one connection to the store, which keeps their order, so two
//! questions about one key are decided as they came. While the store is not known to answer, they go
//! one at a time, so that a question that is asked again comes before the next.

use std::borrow::Cow;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesOrdered;
use quell::store::StoreError;
use quell::{AdHocPlan, AskError, Cost, Limit, Operation, Query, Verdict};
use quell_core::algorithm::token_bucket::TokenBucket;
use quell_protocol::http::VerdictBody;
use quell_protocol::resp::{Command, Encoder, Protocol, Throttle, ThrottleLimit};

use crate::budget::BudgetShare;
use crate::hang_up::GONE;
use crate::shared::{FailedCall, Shared};
use crate::store::ServerStore;

/// Questions of one connection that wait at a time: more than a client usually sends in a row, and
/// few enough that one connection cannot fill the way to the store.
const MOST: usize = 256;

/// Bytes that a question takes while it waits, beside its words: its orders, and its reply.
const CALL: usize = 4 * 1_024;

/// Bytes that an entry of a query takes beside its name and its value.
const ENTRY: usize = 128;

/// Rest of a `CL.THROTTLE` that the store could not answer at once. In a box, so that a connection
/// without one stays small.
pub(super) type ThrottlePlan = Box<AdHocPlan<ServerStore>>;

/// A question.
#[derive(Clone, Debug)]
pub(super) enum Call<'a> {
    /// About a limit that comes with it: the key, the limit, and what is charged.
    Throttle(Cow<'a, [u8]>, ThrottleLimit, Option<Cost>),
    /// About rules.
    Query(Operation, Cow<'a, Query<'a>>),
}

impl<'a> Call<'a> {
    /// A `CL.THROTTLE`.
    pub(super) const fn throttle(throttle: Throttle<'a>) -> Self {
        Self::Throttle(Cow::Borrowed(throttle.key), throttle.limit, throttle.cost)
    }

    /// Call of a command, if it is a question.
    pub(super) const fn new(command: &'a Command<'a>) -> Option<Self> {
        match command {
            Command::Throttle(throttle) => Some(Self::throttle(*throttle)),
            Command::Acquire(query) => Some(Self::Query(Operation::Acquire, Cow::Borrowed(query))),
            Command::Peek(query) => Some(Self::Query(Operation::Peek, Cow::Borrowed(query))),
            _ => None,
        }
    }

    /// Answers it and waits for the store, which may have been asked for a plan. Returns whether the store answered,
    /// and the id of what it grants to hold.
    pub(super) async fn answer(
        &self,
        shared: &Shared,
        plan: Option<ThrottlePlan>,
        encoder: &mut Encoder<'_>,
    ) -> (bool, Option<Arc<str>>) {
        let limiter = &shared.limiter;
        let now = limiter.now();
        match self {
            Self::Throttle(key, limit, cost) => {
                let (limit, cost) = (*limit, *cost);
                let throttle = Throttle { key, limit, cost };
                let (operation, cost) = operation_of(&throttle);
                let bucket = bucket(&throttle);
                let plan = plan.map_or_else(
                    || limiter.plan_ad_hoc(operation, &bucket, cost, now),
                    |plan| Ok(*plan),
                );
                let failed = FailedCall {
                    begun: plan.as_ref().map_or(now, AdHocPlan::begun),
                    operation: Some(operation),
                    domain: "",
                    context: &[],
                };
                let answer = match plan {
                    Ok(plan) => limiter.ask_ad_hoc_planned(key, plan).await,
                    Err(error) => Err(error),
                };
                match shared.traced(failed, answer) {
                    Ok(decision) => throttle.write_reply(&decision, encoder),
                    Err(error) => return (refuse(&error, encoder), None),
                }
                (true, None)
            }
            Self::Query(operation, query) => {
                let answer = limiter.ask(*operation, query, now).await;
                let answer = shared.traced(FailedCall::new(*operation, query, now), answer);
                let id = answer.as_ref().ok().and_then(|verdict| verdict.id.clone());
                (write_answer(answer, query.domain(), encoder), id)
            }
        }
    }

    /// The domain of a query.
    pub(super) fn domain(&self) -> &str {
        match self {
            Self::Throttle(..) => "",
            Self::Query(_, query) => query.domain(),
        }
    }

    /// Bytes that its words take.
    fn size(&self) -> usize {
        match self {
            Self::Throttle(key, ..) => key.len(),
            Self::Query(_, query) => {
                let descriptors = query.descriptors().iter();
                let entries = descriptors.flat_map(|descriptor| descriptor.entries());
                let sizes = entries.map(|entry| entry.name.len() + entry.value.len() + ENTRY);
                query.domain().len() + sizes.sum::<usize>()
            }
        }
    }

    /// The same, which borrows nothing.
    fn to_owned(&self) -> Call<'static> {
        match self {
            Self::Throttle(key, limit, cost) => {
                Call::Throttle(Cow::Owned(key.to_vec()), *limit, *cost)
            }
            Self::Query(operation, query) => {
                Call::Query(*operation, Cow::Owned(Query::clone(query).into_owned()))
            }
        }
    }
}

/// A hold that a shared store has granted, whose id only the answer has.
#[derive(Debug)]
pub(super) struct HoldGrant {
    domain: String,
    id: String,
    /// Range of its answer among those that were not sent yet.
    answer: Range<usize>,
}

impl HoldGrant {
    /// Grant of the verdict that was written as `answer`.
    pub(super) fn new(
        shared: &Shared,
        domain: &str,
        id: Option<&str>,
        answer: Range<usize>,
    ) -> Option<Self> {
        // A store in this process answers at once, and what was sent before the end of a client is answered.
        let id = id.filter(|_| shared.config.store.is_some())?;
        Some(Self {
            domain: domain.to_owned(),
            id: id.to_owned(),
            answer,
        })
    }

    /// Gives it back, since nobody would end it, and replaces its answer in `out`. Later ones must be replaced
    /// before.
    pub(super) async fn give_back(self, shared: &Shared, protocol: Protocol, out: &mut Vec<u8>) {
        shared.give_back(&self.domain, &self.id).await;
        let mut error = Vec::new();
        Encoder::new(&mut error, protocol).error("ERR", GONE);
        out.splice(self.answer, error);
    }
}

/// Questions that wait.
pub(super) struct Calls {
    waiting: FuturesOrdered<Pin<Box<dyn Future<Output = SentReply> + Send>>>,
    /// Share of the budget for the calls.
    share: BudgetShare,
    /// True if the store answered the last question.
    is_settled: bool,
    /// Grants of answers that were not sent yet.
    pub(super) granted: Vec<HoldGrant>,
}

/// An answer as it is sent.
struct SentReply {
    bytes: Vec<u8>,
    is_answer: bool,
    granted: Option<HoldGrant>,
}

impl Calls {
    pub(super) fn new(share: BudgetShare) -> Self {
        Self {
            waiting: FuturesOrdered::new(),
            share,
            is_settled: false,
            granted: Vec::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes a question that the store has to answer, by the plan if there is one. Returns whether there is room for it
    /// to wait.
    ///
    /// Answers that are due before its own may be appended to `out`.
    pub(super) async fn take(
        &mut self,
        shared: &Arc<Shared>,
        protocol: Protocol,
        (call, plan): (&Call<'_>, Option<ThrottlePlan>),
        out: &mut Vec<u8>,
    ) -> bool {
        let size = self.share.held().saturating_add(call.size() + CALL);
        if !self.share.resize(size) {
            return false;
        }
        let (shared, call) = (Arc::clone(shared), call.to_owned());
        self.waiting.push_back(Box::pin(async move {
            let mut bytes = Vec::new();
            let mut encoder = Encoder::new(&mut bytes, protocol);
            let (is_answer, id) = call.answer(&shared, plan, &mut encoder).await;
            let answer = 0..bytes.len();
            let granted = HoldGrant::new(&shared, call.domain(), id.as_deref(), answer);
            SentReply {
                bytes,
                is_answer,
                granted,
            }
        }));
        if !self.is_settled || self.waiting.len() >= MOST {
            self.finish(out).await;
        }
        true
    }

    /// Waits for all answers and appends them to `out`.
    pub(super) async fn finish(&mut self, out: &mut Vec<u8>) {
        while let Some(reply) = self.waiting.next().await {
            let start = out.len();
            out.extend_from_slice(&reply.bytes);
            self.is_settled = reply.is_answer;
            self.granted.extend(reply.granted.map(|grant| HoldGrant {
                answer: start..out.len(),
                ..grant
            }));
        }
        self.share.resize(0);
    }
}

/// Writes why there is no answer. Returns whether the store is known to answer all the same.
pub(super) fn refuse(error: &AskError, encoder: &mut Encoder<'_>) -> bool {
    let is_overloaded = matches!(error, AskError::Store(StoreError::Overloaded));
    let code = match is_overloaded {
        true => "OVERLOADED",
        false => "ERR",
    };
    encoder.error(code, &error.to_string());
    is_overloaded
}

/// Writes a verdict, or why there is none. Returns whether the store answered.
pub(super) fn write_answer(
    answer: Result<Verdict, AskError>,
    domain: &str,
    encoder: &mut Encoder<'_>,
) -> bool {
    match answer {
        Ok(verdict) => encoder.verdict(&VerdictBody::from(&verdict)),
        Err(AskError::UnknownDomain) => {
            let text = format!(
                "no rules for domain {domain:?}: write one of those that GET /v1/rules lists"
            );
            encoder.error("ERR", &text);
        }
        Err(error) => return refuse(&error, encoder),
    }
    true
}

/// Operation and cost of `CL.THROTTLE`.
pub(super) const fn operation_of(throttle: &Throttle<'_>) -> (Operation, Cost) {
    match throttle.cost {
        Some(cost) => (Operation::Acquire, cost),
        None => (Operation::Peek, Cost::ONE),
    }
}

/// The limit that came with the call.
pub(super) fn bucket(throttle: &Throttle<'_>) -> TokenBucket {
    Limit::token_bucket(throttle.limit.rate()).burst(throttle.limit.burst())
}
