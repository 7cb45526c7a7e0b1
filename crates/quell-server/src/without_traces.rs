//! Traces, in a build without the feature `otel`: there are none, and a configuration that wants them is
//! refused.

use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderMap;
use quell::AskError;
use quell::clock::Clock;
use quell::observer::Event;
use quell::store::memory::HashKey;
use quell_core::time::Now;

use crate::config::Config;
use crate::error::ServeError;
use crate::failed_call::FailedCall;
use crate::metrics::Metrics;

/// None of these exists.
#[derive(Debug)]
pub(crate) enum Traces {}

impl Traces {
    pub(crate) fn open(
        config: &Config,
        _secret: HashKey,
        _metrics: &Arc<Metrics>,
    ) -> Result<Option<Arc<Self>>, ServeError> {
        let Some(endpoint) = &config.otlp_endpoint else {
            return Ok(None);
        };
        Err(ServeError::Traces {
            endpoint: endpoint.to_string(),
            reason: "this program was built without traces (build it with --features otel)"
                .to_owned(),
        })
    }

    pub(crate) async fn stop(&self, _at_most: Duration) {
        match *self {}
    }

    pub(crate) const fn context(_headers: &HeaderMap) -> Vec<u8> {
        Vec::new()
    }

    pub(crate) fn note_failure(&self, _failed: &FailedCall<'_>, _error: &AskError, _now: Now) {
        match *self {}
    }

    pub(crate) fn note(&self, _event: &Event<'_>, _took: Option<Duration>, _clock: &dyn Clock) {
        match *self {}
    }
}
