//! Export: sends spans to the collector.

use std::sync::Arc;
use std::time::{Duration, Instant};

use opentelemetry::{Key, KeyValue};
use opentelemetry_otlp::tonic_types::transport::ClientTlsConfig;
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use tokio::sync::{mpsc, oneshot};

use crate::config::OtlpEndpoint;
use crate::error::ServeError;
use crate::metrics::Metrics;

/// Spans that are sent at once.
const BATCH: usize = 512;

/// Between two batches: spans come together, and a flood of refusals is at most a few thousand a second.
const PAUSE: Duration = Duration::from_millis(250);

/// Between two warnings that spans cannot be sent.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// The way to a collector. Nothing is connected yet.
///
/// Headers, timeout, compression and the resource are those of the variables that OpenTelemetry defines.
pub(super) fn exporter(endpoint: &OtlpEndpoint) -> Result<SpanExporter, ServeError> {
    let mut builder = SpanExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint.to_string());
    if endpoint.is_tls() {
        builder = builder.with_tls_config(ClientTlsConfig::new().with_native_roots());
    }
    let mut exporter = builder.build().map_err(|error| ServeError::Traces {
        endpoint: endpoint.to_string(),
        reason: error.to_string(),
    })?;
    exporter.set_resource(&resource());
    Ok(exporter)
}

fn resource() -> Resource {
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let builder = || Resource::builder().with_attribute(version.clone());
    let resource = builder().build();
    let name = resource.get(&Key::from_static_str("service.name"));
    match name {
        Some(name) if !name.as_str().starts_with("unknown_service") => resource,
        _ => builder().with_service_name("quell").build(),
    }
}

/// Sends spans until it is told to stop and all that came before is sent.
pub(super) async fn run(
    mut spans: mpsc::Receiver<SpanData>,
    exporter: SpanExporter,
    mut stop: oneshot::Receiver<()>,
    metrics: Arc<Metrics>,
) {
    let mut warned = None;
    let mut batch = Vec::new();
    loop {
        let count = tokio::select! {
            biased;
            count = spans.recv_many(&mut batch, BATCH) => count,
            // Also if nobody is left who could say so.
            _ = &mut stop, if !spans.is_closed() => {
                spans.close();
                continue;
            }
        };
        if count == 0 {
            return;
        }
        match exporter.export(std::mem::take(&mut batch)).await {
            Ok(()) => metrics.spans_sent.add(count as u64),
            Err(error) => {
                metrics.spans_dropped.add(count as u64);
                if warned.is_none_or(|at: Instant| at.elapsed() >= WARN_EVERY) {
                    warned = Some(Instant::now());
                    tracing::warn!(%error, "the collector does not take spans: some are lost");
                }
            }
        }
        if !spans.is_closed() {
            tokio::select! {
                () = tokio::time::sleep(PAUSE) => {}
                _ = &mut stop => spans.close(),
            }
        }
    }
}
