//! xDS: limits that a control plane sends on a stream (`--envoy-xds`), each time all of them.
//!
//! A configuration without mistakes is acknowledged with its version, and comes into force as changed files do: with
//! the next reload, if mistakes elsewhere stop this one, of which the control plane is told nothing. One with mistakes
//! is refused with what they are, and the one before it stays, as it does while there is no stream.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, TryFutureExt as _, stream};
use parking_lot::Mutex;
use quell_core::key::printable;
use quell_core::rule::DomainRules;
use quell_envoy::config::{ConfigOptions, TYPE_URL, load_resources};
use quell_envoy::proto::{
    AggregatedDiscoveryServiceClient, Any, DiscoveryRequest, DiscoveryResponse, Kind, Node,
    Status as ErrorDetail, Struct, Value,
};
use quell_host::health::Attempts;
use quell_protocol::http::Failure;
use quell_rules::Problem;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};
use tonic::{Code, Request, Response, Status};

use crate::config::{Config, XdsUrl};
use crate::http::jitter;
use crate::reload::{self, Occasion};
use crate::shared::Shared;

mod connect;

pub(crate) use connect::check;

/// The longest message of a control plane: that of a rules file.
const MAX_MESSAGE: usize = 16 * 1_024 * 1_024;

/// The longest version and nonce, which go back with each answer.
const MAX_LABEL: usize = 4 * 1_024;

/// The longest text of mistakes that goes back.
const MAX_DETAIL: usize = 4 * 1_024;

/// Requests that wait for the connection: a control plane that reads never lets two wait.
const BACKLOG: usize = 4;

/// The first wait before a stream is opened again, and the longest.
const BACK_OFF: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// Time after which a control plane that is silent on a resumed stream is asked for everything. It is silent if it
/// has the version in force; but one that counts its versions from its start, as Envoy Gateway does, may give that
/// name to others.
const RESUME: Duration = Duration::from_secs(1);

/// Time after which files and stores are read again for the first configuration, if mistakes in them kept it from coming
/// into force: a server that waits for it follows no files yet.
const READ_AGAIN: Duration = Duration::from_secs(2);

/// Pause after each configuration in a row that is refused, from the second on, and the longest: many control planes
/// send the same one again at once.
const PAUSE: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];

/// Limits of a control plane.
#[derive(Debug)]
pub(crate) struct XdsLimits {
    url: XdsUrl,
    options: ConfigOptions,
    state: Mutex<XdsState>,
    /// The version in force, if there is one.
    in_force: watch::Sender<Option<Arc<str>>>,
    /// Opening the stream, and keeping it.
    attempts: Attempts,
    /// Configurations that it sent.
    checks: Attempts,
}

#[derive(Debug, Default)]
struct XdsState {
    /// Configuration that no reload has read yet.
    received: Option<XdsVersion>,
    /// Mistakes of the one that was read last, once they are known.
    mistakes: Option<Vec<String>>,
    /// The last one without mistakes.
    accepted: Option<AcceptedLimits>,
}

#[derive(Clone, Debug)]
struct XdsVersion {
    version: Arc<str>,
    resources: Arc<[Any]>,
}

#[derive(Clone, Debug)]
struct AcceptedLimits {
    version: Arc<str>,
    domains: Vec<DomainRules>,
}

impl XdsLimits {
    /// Nothing is received yet.
    pub(crate) fn new(url: XdsUrl, options: ConfigOptions) -> Self {
        Self {
            url,
            options,
            state: Mutex::default(),
            in_force: watch::Sender::default(),
            attempts: Attempts::default(),
            checks: Attempts::default(),
        }
    }

    pub(crate) const fn url(&self) -> &XdsUrl {
        &self.url
    }

    /// The version in force, if there is one.
    pub(crate) fn version(&self) -> Option<Arc<str>> {
        self.in_force.borrow().clone()
    }

    /// Reason why there is no stream, or why the configuration that was sent last is refused, and since when.
    pub(crate) fn failure(&self) -> Option<Failure> {
        let lost = self.attempts.failure();
        lost.or_else(|| self.checks.failure())
    }

    /// The last version without mistakes, if there is one.
    fn accepted(&self) -> Option<Arc<str>> {
        let state = self.state.lock();
        let accepted = state.accepted.as_ref()?;
        Some(Arc::clone(&accepted.version))
    }

    /// Returns true if nothing is in force, though a version has no mistakes.
    fn is_first_waiting(&self) -> bool {
        self.version().is_none() && self.accepted().is_some()
    }

    /// Waits until a configuration is in force.
    pub(crate) async fn wait(&self) {
        // The sender is here, so it does not end.
        let _ = self.in_force.subscribe().wait_for(Option::is_some).await;
    }

    /// Limits of what was received, or else of the last configuration without mistakes. One reload at a time loads.
    ///
    /// # Errors
    /// Mistakes in what was received, of which a domain that is in `taken` is one unless it was there before: then the
    /// mistake is elsewhere. They are told once; the next load has the limits of the configuration before.
    pub(crate) fn load(
        &self,
        taken: impl Fn(&DomainRules) -> Option<Problem>,
    ) -> Result<Vec<DomainRules>, Vec<Problem>> {
        let (received, before) = {
            let mut state = self.state.lock();
            (state.received.take(), state.accepted.clone())
        };
        let before = before.map_or_else(Vec::new, |accepted| accepted.domains);
        let Some(XdsVersion { version, resources }) = received else {
            return Ok(before);
        };
        let loaded = load_resources(&resources, self.options).and_then(|domains| {
            let is_new = |domain: &DomainRules| {
                let mut before = before.iter();
                !before.any(|other| other.domain == domain.domain)
            };
            let mut all = domains.iter();
            let problem = all.find_map(|domain| taken(domain).filter(|_| is_new(domain)));
            problem.map_or(Ok(domains), |problem| Err(vec![problem]))
        });
        let mut state = self.state.lock();
        match &loaded {
            Ok(domains) => {
                state.mistakes = Some(Vec::new());
                state.accepted = Some(AcceptedLimits {
                    version,
                    domains: domains.clone(),
                });
                self.checks.succeeded();
            }
            Err(problems) => {
                let mistakes = problems.iter().map(ToString::to_string);
                let mistakes: Vec<String> = mistakes.collect();
                let refused = mistakes.iter().map(|one| format!("refused: {one}"));
                self.checks.failed(refused.collect());
                state.mistakes = Some(mistakes);
            }
        }
        loaded
    }

    /// Notes that what was loaded last is in force. Returns a description of a new version.
    pub(crate) fn mark_in_force(&self) -> Option<String> {
        let version = self.accepted()?;
        let is_new = self.in_force.send_if_modified(|in_force| {
            let is_new = in_force.as_ref() != Some(&version);
            *in_force = Some(Arc::clone(&version));
            is_new
        });
        is_new.then(|| format!("version {} of {}", printable(&version), self.url))
    }

    /// Notes that the stream has ended. Returns true if that is news.
    fn note_lost(&self, reason: &str) -> bool {
        let reasons = vec![printable(reason).into_owned()];
        let known = self.attempts.failure();
        let is_new = known.is_none_or(|known| known.reasons != reasons);
        self.attempts.failed(reasons);
        is_new
    }
}

/// Follows the control plane of a server.
pub(crate) async fn follow(shared: Arc<Shared>, limits: Arc<XdsLimits>) {
    let mut wait = BACK_OFF[0];
    loop {
        let begun = Instant::now();
        let mut stream = XdsStream {
            shared: &shared,
            limits: &limits,
            is_heard: false,
            refused: 0,
        };
        let Err(reason) = stream.run().await;
        if stream.is_heard || begun.elapsed() >= BACK_OFF[1] {
            wait = BACK_OFF[0];
        }
        if limits.note_lost(&reason) {
            shared.metrics.reload_failures.add(1);
            tracing::warn!(
                url = %limits.url,
                reason = &*printable(&reason),
                "there is no stream of the control plane: the limits in force stay, and it is tried again"
            );
        }
        sleep(wait - jitter(wait / 2)).await;
        wait = (wait * 2).min(BACK_OFF[1]);
    }
}

/// A stream of the control plane.
struct XdsStream<'s> {
    shared: &'s Arc<Shared>,
    limits: &'s XdsLimits,
    /// True if it has sent a configuration.
    is_heard: bool,
    /// Configurations in a row that were refused.
    refused: u32,
}

impl XdsStream<'_> {
    /// Opens the stream and follows it. The error is why it ended.
    async fn run(&mut self) -> Result<Infallible, String> {
        let (channel, headers) = connect::connect(&self.shared.config).await?;
        let (requests, mut waiting) = mpsc::channel(BACKLOG);
        let mut call = Request::new(stream::poll_fn(move |context| waiting.poll_recv(context)));
        call.metadata_mut().as_mut().extend(headers);
        let mut client =
            AggregatedDiscoveryServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
        // Servers may send the head of their answer with the first response.
        let answers = client.stream_aggregated_resources(call);
        let mut answers = pin!(answers.map_ok(Response::into_inner).try_flatten_stream());
        let send = |request| {
            let sent = requests.try_send(request);
            sent.map_err(|_| "it does not read what it is sent".to_owned())
        };
        let version = self.limits.accepted();
        let mut is_resumed = version.is_some();
        send(self.request(version.as_deref(), String::new()))?;
        loop {
            let answer = tokio::select! {
                answer = answers.next() => answer,
                () = sleep(RESUME), if is_resumed => {
                    is_resumed = false;
                    send(self.request(None, String::new()))?;
                    continue;
                }
                () = sleep(READ_AGAIN), if self.limits.is_first_waiting() => {
                    reload::reload(self.shared, Occasion::ConfigReceived).await;
                    continue;
                }
            };
            is_resumed = false;
            let response = answer.ok_or("it ended the stream")?;
            let response = response.map_err(|status| describe(&status))?;
            send(self.judge(response).await?)?;
            if self.refused > 1 {
                sleep((PAUSE[0] * self.refused).min(PAUSE[1])).await;
            }
        }
    }

    fn request(&self, version: Option<&str>, nonce: String) -> DiscoveryRequest {
        DiscoveryRequest {
            version_info: version.unwrap_or_default().to_owned(),
            node: Some(node(&self.shared.config)),
            type_url: TYPE_URL.to_owned(),
            response_nonce: nonce,
            ..DiscoveryRequest::default()
        }
    }

    /// Brings a configuration into force if it has no mistake, and says which it has.
    async fn judge(&mut self, response: DiscoveryResponse) -> Result<DiscoveryRequest, String> {
        let (version, nonce) = (response.version_info, response.nonce);
        if version.len().max(nonce.len()) > MAX_LABEL {
            return Err(format!(
                "its version or nonce has more than {MAX_LABEL} bytes"
            ));
        }
        if response.type_url != TYPE_URL {
            return Err(format!(
                "it sends resources of another type than {TYPE_URL}"
            ));
        }
        self.is_heard = true;
        if self.limits.attempts.succeeded() {
            tracing::info!(url = %self.limits.url, "the control plane answers again");
        }
        {
            let mut state = self.limits.state.lock();
            state.mistakes = None;
            state.received = Some(XdsVersion {
                version: version.into(),
                resources: response.resources.into(),
            });
        }
        reload::reload(self.shared, Occasion::ConfigReceived).await;
        let mistakes = self.limits.state.lock().mistakes.clone();
        let mistakes = mistakes.ok_or("this server stops")?;
        if !mistakes.is_empty() && self.shared.sources.has_waiting_version() {
            // That reload read it from the store, whose follower does not ask for it again.
            reload::reload(self.shared, Occasion::ConfigReceived).await;
        }
        let mut request = self.request(self.limits.accepted().as_deref(), nonce);
        self.refused = match mistakes.is_empty() {
            true => 0,
            false => self.refused.saturating_add(1),
        };
        request.error_detail = (!mistakes.is_empty()).then(|| {
            let mut message = mistakes.join("; ");
            message.truncate(message.floor_char_boundary(MAX_DETAIL));
            let code = Code::InvalidArgument as i32;
            ErrorDetail {
                code,
                message,
                ..ErrorDetail::default()
            }
        });
        Ok(request)
    }
}

/// The node that this server is to a control plane.
fn node(config: &Config) -> Node {
    let fields = config.envoy_xds_metadata.iter().map(|pair| {
        let kind = Some(Kind::StringValue(pair.value.clone()));
        (pair.key.clone(), Value { kind })
    });
    Node {
        id: config.envoy_xds_node.clone(),
        metadata: Some(Struct {
            fields: fields.collect(),
        }),
        ..Node::default()
    }
}

fn describe(status: &Status) -> String {
    let said = status.message();
    match status.code() {
        Code::Unimplemented => "it has no aggregated discovery service: check the URL".to_owned(),
        Code::Unauthenticated | Code::PermissionDenied => format!(
            "it refuses this server: {said}: check envoy_xds_headers and the client certificate"
        ),
        code if said.is_empty() => code.description().to_owned(),
        code => format!("{}: {said}", code.description()),
    }
}
