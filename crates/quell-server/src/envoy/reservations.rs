//! Reservations: issues tokens for the estimates of calls, and settles them with the true costs when streams end.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use quell::calendar::SystemCalendar;
use quell::{Query, Verdict};
use quell_core::adjustment::Adjustment;
use quell_core::charge::Charge;
use quell_core::descriptor::Descriptor;
use quell_core::on_failure::OnFailure;
use quell_core::rule::{Reserve, RuleSet};
use quell_core::time::Wall;
use quell_envoy::{REFUSED, Request, ReservationKeys, SettledDescriptor, Settles, difference};
use quell_host::secret_source::SecretSource;
use tonic::Status;

use super::late_settlements::{Settlement, is_unanswered};
use super::service::{Answered, RateLimits};
use super::status;
use crate::access::Caller;
use crate::error::ServeError;

/// The shortest secret, in bytes: half as many of a hexadecimal one are random.
const MIN_SECRET: usize = 32;

/// The most secrets: each may be tried on a token. One that is new, one in use and one that was are three.
const MAX_SECRETS: usize = 4;

/// The calendar of the windows.
pub(super) static CALENDAR: LazyLock<SystemCalendar> = LazyLock::new(SystemCalendar::default);

/// Signs the reservations of a server.
#[derive(Debug)]
pub(crate) struct ReservationSigner {
    keys: ArcSwap<ReservationKeys>,
    source: Option<SecretSource>,
    /// A number that no other reservation has, since it begins at random.
    nonce: AtomicU64,
}

impl ReservationSigner {
    /// A signer with these secrets, or with one of its own. Reads a file.
    pub(crate) fn open(source: Option<&SecretSource>) -> Result<Self, ServeError> {
        let (mut own, mut nonce) = ([0; MIN_SECRET], [0; 8]);
        for random in [&mut own[..], &mut nonce] {
            getrandom::fill(random).map_err(|error| ServeError::EnvoySecret(error.to_string()))?;
        }
        let keys = match source {
            None => ReservationKeys::new(&own, []),
            Some(source) => read(source)?,
        };
        Ok(Self {
            keys: ArcSwap::from_pointee(keys),
            source: source.cloned(),
            nonce: AtomicU64::new(u64::from_be_bytes(nonce)),
        })
    }

    /// The file of the secrets, if there is one.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.source.as_ref().and_then(SecretSource::path)
    }

    /// Reads the secrets again. Returns whether they changed; if they have a mistake, those before stay.
    pub(crate) fn reload(&self) -> Result<bool, ServeError> {
        let Some(source) = &self.source else {
            return Ok(false);
        };
        let keys = read(source)?;
        let is_changed = keys != **self.keys.load();
        self.keys.store(Arc::new(keys));
        Ok(is_changed)
    }
}

/// The keys of a source: a secret in each line, of which the first signs.
fn read(source: &SecretSource) -> Result<ReservationKeys, ServeError> {
    let text = source.text().map_err(ServeError::EnvoySecret)?;
    let lines = text.lines().map(str::trim).enumerate();
    let secrets: Vec<_> = lines.filter(|(_, line)| !line.is_empty()).collect();
    let problem = |text: String| Err(ServeError::EnvoySecret(text));
    let Some((first, others)) = secrets.split_first() else {
        return problem(format!(
            "{source} has no secret: write one, such as that of `openssl rand -hex 32`"
        ));
    };
    if secrets.len() > MAX_SECRETS {
        return problem(format!(
            "{source} has {} secrets: write at most {MAX_SECRETS}, and leave out those that sign nothing any more",
            secrets.len()
        ));
    }
    if let Some((line, short)) = secrets.iter().find(|(_, line)| line.len() < MIN_SECRET) {
        return problem(format!(
            "line {} of {source} has {} bytes: write at least {MIN_SECRET}, such as those of `openssl rand -hex 32`",
            line + 1,
            short.len()
        ));
    }
    let others = others.iter().map(|(_, secret)| secret.as_bytes());
    Ok(ReservationKeys::new(first.1.as_bytes(), others))
}

impl RateLimits<'_> {
    /// What Envoy keeps with the stream of a call whose descriptors reserve: that the call was refused, or a token for
    /// each of them.
    pub(super) fn issue(
        &self,
        reserve: &Reserve,
        request: &Request<'_>,
        charged: Option<&Answered<'_, '_>>,
        rules: &RuleSet,
        is_refused: bool,
    ) -> String {
        let numbers = &self.0.metrics.reservations;
        if is_refused {
            numbers.refused.add(1);
            return REFUSED.to_owned();
        }
        let parts = [&request.charged, &request.checked];
        let described = parts.into_iter().flat_map(|part| {
            let query = part.query().into_iter();
            let descriptors = query.flat_map(|query| query.descriptors());
            part.places().iter().zip(descriptors)
        });
        let reserving = described.filter(|(place, _)| request.reserved.contains(place));
        let tokens = reserving.map(|(place, descriptor)| {
            numbers.issued.add(1);
            let mut places = request.charged.places().iter();
            let verdict = charged.and_then(|charged| {
                let index = places.position(|other| other == place)?;
                Some((charged, charged.each.get(index)?))
            });
            self.token((request.domain, descriptor, reserve), verdict, rules)
        });
        tokens.collect::<Vec<_>>().join(".")
    }

    /// A token for a descriptor that was charged, if it was.
    fn token(
        &self,
        call: (&str, &Descriptor<'_>, &Reserve),
        charged: Option<(&Answered<'_, '_>, &Verdict)>,
        rules: &RuleSet,
    ) -> String {
        let (domain, descriptor, _) = call;
        let now = self.0.limiter.now();
        let query = Query::with_descriptors(domain, vec![descriptor.clone()]);
        let set = rules.resolve_reserved(&query, now, &*CALENDAR);
        let own = |charge: &Charge<'_>| {
            let rule = rules.domain(domain).get(charge.tag as usize)?.rule();
            let (_, verdict) = charged?;
            let mut decisions = verdict.decisions.iter();
            let decision = decisions.find(|one| one.rule == rule.name)?.decision;
            // While the store is gone, what is allowed and not shared is charged nowhere.
            let is_shared = matches!(charge.policy.on_failure, Some(OnFailure::Share { .. }));
            let is_charged = !verdict.degraded || is_shared;
            (is_charged && decision.outcome.is_allow()).then_some(decision.reset_after)
        };
        let made: Vec<_> = (set.charges().iter())
            .filter_map(|charge| Some((set.key(charge), own(charge)?)))
            .collect();
        let left = made.iter().map(|(_, reset_after)| *reset_after).min();
        let at = charged.map_or(now.wall, |(charged, _)| charged.instant(now.wall, left));
        let keys = made.into_iter().map(|(key, _)| key);
        let nonce = self.0.reservations.nonce.fetch_add(1, Ordering::Relaxed);
        let estimate = descriptor.cost.get();
        let signer = self.0.reservations.keys.load();
        signer.issue(call, (estimate, at), keys, nonce)
    }

    /// Settles what a descriptor names with its true cost.
    pub(super) async fn settle(
        &self,
        reserve: &Reserve,
        settled: &SettledDescriptor<'_>,
        caller: &Caller,
    ) -> Result<(), Status> {
        let (query, numbers) = (&settled.query, &self.0.metrics.reservations);
        let Some(descriptor) = query.descriptors().first() else {
            return Ok(());
        };
        let call = (query.domain(), descriptor, reserve);
        let limiter = &self.0.limiter;
        let adjusted = match self.0.reservations.keys.load().read(call, settled.id) {
            // It was counted when it was refused.
            Settles::Refused => return Ok(()),
            Settles::Issued(reservation) => {
                numbers.settled.add(1);
                let settlement = Settlement {
                    query: query.clone(),
                    reservation,
                    actual: settled.actual,
                    ttl: reserve.ttl,
                };
                let sent = settlement.send(self.0).await;
                if sent.as_ref().is_err_and(is_unanswered) {
                    self.keep(settlement);
                }
                sent
            }
            other => {
                let number = match other {
                    Settles::Unreserved => &numbers.unreserved,
                    _ => &numbers.unverified,
                };
                number.add(1);
                let whole = Adjustment {
                    difference: difference(settled.actual, 0),
                    reservation: None,
                };
                let sent = limiter.settle_estimates(query, |_| whole, limiter.now());
                // The store may have charged it: sent again, it would be charged twice.
                sent.await.inspect_err(|_| numbers.lost.add(1))
            }
        };
        adjusted.map_err(|error| status(&self.0.ask_problem(&error, query.domain(), caller)))?;
        self.0.note_change();
        Ok(())
    }

    /// Keeps what the store did not answer.
    fn keep(&self, settlement: Settlement<'_>) {
        let (numbers, now) = (&self.0.metrics.reservations, self.0.limiter.now());
        match self.0.late_settlements.keep(settlement, now.monotonic) {
            true => numbers.kept.add(1),
            false => numbers.lost.add(1),
        }
    }
}

impl Answered<'_, '_> {
    /// An instant in the windows in which the call was charged, which are over in `left` at the earliest: that of a
    /// shared store, or by the clock of this server, which now says `now`. A store in this process reads the clock
    /// again when it charges, so that a window may begin after the call.
    fn instant(&self, now: Wall, left: Option<Duration>) -> Wall {
        let left = left.unwrap_or(Duration::MAX);
        let last = self.asked.wall.saturating_add(left).shifted(-1);
        self.store_time.unwrap_or_else(|| now.min(last))
    }
}
