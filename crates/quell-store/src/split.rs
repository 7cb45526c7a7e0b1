//! Split: all or nothing over several places, each of which decides its part of a set by itself.
//!
//! A place is anything that decides all or nothing by itself: a slot of a cluster, or a separate store.
//!
//! ```text
//! acquire each part, all at the same time
//!   all pass ------------------> the set is charged
//!   one refuses, or fails -----> refund the parts that passed --> refused, or failed
//! ```
//!
//! There is no transaction over the places. The following holds nevertheless:
//!
//! * **No limit admits more than it should.** A place allows every charge that it makes, and a refund
//!   names the charge that it takes back, so it gives back what still counts of that charge and nothing
//!   else.
//! * **A refused set charges nothing in the end.** Until the refund is made, which takes one more round
//!   trip, other callers may be refused because of the charge. If the process ends in between, or the
//!   place is gone by then, the charge stays and drains as if it had been used ([`PartOutcome::Kept`]).
//! * **A charge whose answer was lost is not refunded.** It is unknown whether it was made, or when, so
//!   nothing can name it. The failure reports this, and the fallback counts it as uncertain. If charges
//!   have ids, a part can end its own lost charge before it fails.
//! * **Sets cannot block each other.** All parts are asked at once and none waits for another, so no order
//!   of parts can make two sets wait for each other. Two sets that both want the last unit of two limits
//!   may refuse each other; neither is tried again here, so they do not go on doing that.
//! * **A part is asked once.** What it counts on a refusal, for example towards a ban, it counts once. A
//!   part that passed counts nothing, even if another refuses.
//! * **The outcomes are in the order of the parts**, whichever place answers first.
//!
//! A part in this process answers at once and is refunded at once. It goes first, so that a set that it
//! refuses costs no round trip, and the others need no refund: see [`acquire_after`].
//!
//! A refund needs a task that waits for the answers. A caller may go away meanwhile, or keep the future
//! without polling it: see [`run_to_end`].

use futures_util::future::join_all;
use scopeguard::ScopeGuard;

mod owned_set;

pub use owned_set::OwnedSet;

/// The part of a set that one place decides, all or nothing.
pub trait Part: Sync {
    /// The place's answer for the part's charges.
    type Answer: Send;
    /// Reason why there is no answer.
    type Failure: Send;

    /// Makes all charges of the part, or none.
    fn acquire(&self) -> impl Future<Output = Result<Self::Answer, Self::Failure>> + Send;

    /// Returns true if all limits of the part that are not in shadow allow, so that everything that fits
    /// was charged.
    fn passes(&self, answer: &Self::Answer) -> bool;

    /// Takes back what was charged according to `answer`, by the instant or id that it names. Afterwards
    /// the numbers in `answer` are those without the charge.
    ///
    /// # Errors
    /// The charge stays, or it is unknown whether it does; `answer` is unchanged.
    fn refund(
        &self,
        answer: &mut Self::Answer,
    ) -> impl Future<Output = Result<(), Self::Failure>> + Send;
}

/// The outcome of a set, part by part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split<A, F> {
    /// True if all parts passed, and are charged.
    pub is_charged: bool,
    /// In the order of the parts.
    pub parts: Vec<PartOutcome<A, F>>,
}

/// The outcome of one part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartOutcome<A, F> {
    /// The part was decided. If the set is not charged, the part is not either.
    Decided(A),
    /// The part was charged, the set is not, and the refund failed: the charge stays, or may.
    Kept {
        /// The place's answer when it charged.
        answer: A,
        /// Reason why the refund failed.
        failure: F,
    },
    /// The part was not decided. Only the failure tells whether it may be charged.
    Failed(F),
}

impl<A, F> From<Result<A, F>> for PartOutcome<A, F> {
    fn from(answer: Result<A, F>) -> Self {
        answer.map_or_else(Self::Failed, Self::Decided)
    }
}

/// Charges all parts or none, up to charges that are kept or lost (see [`PartOutcome`]).
pub async fn acquire<P: Part>(parts: &[P]) -> Split<P::Answer, P::Failure> {
    let answers = join_all(parts.iter().map(Part::acquire)).await;
    let passed: Vec<bool> = parts
        .iter()
        .zip(&answers)
        .map(|(part, answer)| answer.as_ref().is_ok_and(|answer| part.passes(answer)))
        .collect();
    let is_charged = passed.iter().all(|passed| *passed);
    let outcomes = parts.iter().zip(answers).zip(passed);
    let outcomes = outcomes.map(|((part, answer), passed)| async move {
        match answer {
            Ok(mut answer) if passed && !is_charged => match part.refund(&mut answer).await {
                Ok(()) => PartOutcome::Decided(answer),
                Err(failure) => PartOutcome::Kept { answer, failure },
            },
            answer => answer.into(),
        }
    });
    Split {
        is_charged,
        parts: join_all(outcomes).await,
    }
}

/// The part of a set that this process decides, all or nothing, without waiting.
pub trait LocalPart: Sync {
    /// The answer for the part's charges.
    type Answer: Send;
    /// Reason why there is no answer.
    type Failure: Send;

    /// Makes all charges of the part, or none.
    ///
    /// # Errors
    /// Nothing was charged.
    fn acquire(&self) -> Result<Self::Answer, Self::Failure>;

    /// As [`Part::passes`].
    fn passes(&self, answer: &Self::Answer) -> bool;

    /// Takes back what was charged according to `answer`, whose numbers are then those without the charge.
    fn refund(&self, answer: &mut Self::Answer);
}

/// The outcome of a set whose first part is decided here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalFirst<L, A> {
    /// True if both parts passed, and are charged; if not, the local part is not.
    pub is_charged: bool,
    /// This process's answer.
    pub local: L,
    /// The other part's answer; `None` if it was not asked, because this process refuses.
    pub last: Option<A>,
}

/// Charges `part`, and if that passes also what `last` asks for. Refunds `part` if `last` does not pass,
/// fails, or is dropped.
///
/// * `last` is asked only if `part` passes: a refusal by `part` does not count in `last`, for example
///   towards a ban.
/// * While `last` is under way, other calls may be refused because of the charge on `part`, as in
///   [`acquire`]. This lasts as long as the future is kept without being polled.
/// * If `last` charges without an answer, `last` has to deal with that: `part` is refunded.
///
/// # Errors
/// The failure of either part.
pub async fn acquire_after<P: LocalPart, A>(
    part: &P,
    last: impl Future<Output = Result<A, P::Failure>>,
    passes: impl FnOnce(&A) -> bool,
) -> Result<LocalFirst<P::Answer, A>, P::Failure> {
    let mut local = part.acquire()?;
    if !part.passes(&local) {
        return Ok(LocalFirst {
            is_charged: false,
            local,
            last: None,
        });
    }
    // If `last` fails or this future is dropped.
    let refund = scopeguard::guard(&mut local, |local| part.refund(local));
    let last = last.await?;
    let local_answer = ScopeGuard::into_inner(refund);
    let is_charged = passes(&last);
    if !is_charged {
        part.refund(local_answer);
    }
    Ok(LocalFirst {
        is_charged,
        local,
        last: Some(last),
    })
}

/// Awaits `call` in a task of its own, which continues if this future is dropped or no longer polled: so a
/// caller that goes away leaves no refused set charged. `None` if the runtime ended first.
///
/// The call owns what it needs: see [`OwnedSet`].
///
/// # Panics
/// Outside of a tokio runtime.
pub async fn run_to_end<T: Send + 'static>(
    call: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    tokio::spawn(call).await.ok()
}

#[cfg(test)]
mod tests;
