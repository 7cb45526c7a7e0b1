//! Calls: questions of one pipeline that wait for the store at the same time.
//!
//! With states in this process a question is answered where it stands. A store beside it takes a trip
//! per question, so those that came together are sent one after the other and waited for together;
//! their answers go out in the order of the questions. All go over one connection to the store,
//! which keeps their order: two questions about one key are decided as they came. Only while the
//! store is not known to answer, one goes at a time: what it has to be asked again comes first.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesOrdered;
use quell::store::StoreError;
use quell::{AskError, Cost, Limit, Operation, Query, Verdict};
use quell_core::algorithm::token_bucket::TokenBucket;
use quell_protocol::http::VerdictBody;
use quell_protocol::resp::{Args, Command, Encoder, Protocol, Queue, Throttle};

use crate::budget::BudgetShare;
use crate::shared::Shared;

/// Questions of one connection that wait at a time: more than a client usually sends in a row, and
/// few enough that one connection cannot fill the way to the store.
const MOST: usize = 256;

/// What a question takes while it waits, beside its words: what is to be done with it, and its reply.
const CALL: usize = 4 * 1_024;

/// Questions that wait.
pub(super) struct Calls {
    waiting: FuturesOrdered<Pin<Box<dyn Future<Output = Reply> + Send>>>,
    /// What is drawn for them.
    share: BudgetShare,
    /// Whether the store answered the last question.
    is_settled: bool,
}

/// An answer as it is sent.
struct Reply {
    bytes: Vec<u8>,
    is_answer: bool,
}

impl Calls {
    pub(super) fn new(share: BudgetShare) -> Self {
        Self {
            waiting: FuturesOrdered::new(),
            share,
            is_settled: false,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes a command that the store has to answer; says whether it was one, and there is room for it
    /// to wait.
    ///
    /// Answers that are due before it are appended to `out`, its own is not yet.
    pub(super) async fn take(
        &mut self,
        shared: &Arc<Shared>,
        protocol: Protocol,
        args: Args<'_>,
        out: &mut Vec<u8>,
    ) -> bool {
        let command = Command::parse(args);
        if !matches!(
            command,
            Ok(Command::Throttle(_) | Command::Acquire(_) | Command::Peek(_))
        ) {
            return false;
        }
        let mut own = Queue::new();
        let is_kept = own.push(args).is_ok();
        let size = self.share.held().saturating_add(own.held() + CALL);
        if !is_kept || !self.share.resize(size) {
            return false;
        }
        self.waiting
            .push_back(Box::pin(answer(Arc::clone(shared), protocol, own)));
        if !self.is_settled || self.waiting.len() >= MOST {
            self.finish(out).await;
        }
        true
    }

    /// Waits for all answers and appends them to `out`.
    pub(super) async fn finish(&mut self, out: &mut Vec<u8>) {
        while let Some(reply) = self.waiting.next().await {
            out.extend_from_slice(&reply.bytes);
            self.is_settled = reply.is_answer;
        }
        self.share.resize(0);
    }
}

async fn answer(shared: Arc<Shared>, protocol: Protocol, own: Queue) -> Reply {
    let mut bytes = Vec::new();
    let mut encoder = Encoder::new(&mut bytes, protocol);
    let command = own.commands().next().map(Command::parse);
    let is_answer = match command {
        Some(Ok(Command::Throttle(throttle))) => {
            answer_throttle(&shared, &throttle, &mut encoder).await
        }
        Some(Ok(Command::Acquire(query))) => {
            answer_query(&shared, Operation::Acquire, &query, &mut encoder).await
        }
        Some(Ok(Command::Peek(query))) => {
            answer_query(&shared, Operation::Peek, &query, &mut encoder).await
        }
        _ => {
            // Only those three were taken.
            encoder.error("ERR", "this command asks nothing");
            false
        }
    };
    Reply { bytes, is_answer }
}

/// Answers `CL.THROTTLE` and waits for the store; says whether it told.
pub(super) async fn answer_throttle(
    shared: &Shared,
    throttle: &Throttle<'_>,
    encoder: &mut Encoder<'_>,
) -> bool {
    let (operation, cost) = asked(throttle);
    let bucket = bucket(throttle);
    let now = shared.limiter.now();
    let decision = shared
        .limiter
        .ask_ad_hoc(operation, throttle.key, &bucket, cost, now);
    // In a box: a connection that is silent should not keep room for it.
    match Box::pin(decision).await {
        Ok(decision) => throttle.write_reply(&decision, encoder),
        Err(error) => return refuse(&error, encoder),
    }
    true
}

/// Says why there is no answer; says whether the store is known to answer all the same.
pub(super) fn refuse(error: &AskError, encoder: &mut Encoder<'_>) -> bool {
    let is_overloaded = matches!(error, AskError::Store(StoreError::Overloaded));
    let code = match is_overloaded {
        true => "OVERLOADED",
        false => "ERR",
    };
    encoder.error(code, &error.to_string());
    is_overloaded
}

/// Answers a question about rules and waits for the store; says whether it told.
pub(super) async fn answer_query(
    shared: &Shared,
    operation: Operation,
    query: &Query<'_>,
    encoder: &mut Encoder<'_>,
) -> bool {
    let limiter = &shared.limiter;
    let now = limiter.now();
    // A store beside this process is asked once, with a trip.
    let is_here = limiter.store().memory().is_some();
    let at_once = is_here.then(|| limiter.ask_at_once(operation, query, now).transpose());
    let answer = match at_once.flatten() {
        Some(answer) => answer,
        None => Box::pin(limiter.ask(operation, query, now)).await,
    };
    tell(answer, query.domain(), encoder)
}

/// Answers with a verdict, or says why there is none; says whether the store told.
pub(super) fn tell(
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

pub(super) const fn asked(throttle: &Throttle<'_>) -> (Operation, Cost) {
    match throttle.cost {
        Some(cost) => (Operation::Acquire, cost),
        None => (Operation::Peek, Cost::ONE),
    }
}

pub(super) fn bucket(throttle: &Throttle<'_>) -> TokenBucket {
    Limit::token_bucket(throttle.limit.rate()).burst(throttle.limit.burst())
}
