//! Limits by xDS, from a control plane that a test writes line by line (case 26).

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::mpsc as std_mpsc;
use std::thread::{self, JoinHandle};

use futures_util::stream::{self, Stream, StreamExt as _};
use quell_envoy::config::TYPE_URL;
use quell_envoy::proto::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer, Any, ConfigUnit,
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse, Kind,
    Message as _, RateLimitConfig, RateLimitDescriptor, RateLimitPolicy,
};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tonic::metadata::MetadataMap;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Certificate, Channel, Identity, Server, ServerTlsConfig};
use tonic::{Code as GrpcCode, Request, Response, Status, Streaming};
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::certificates::Authority;
use crate::envoy_config::{call, client};
use crate::harness::{DEADLINE, Fixture, eventually, replace};

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// A control plane.
struct ControlPlane {
    address: SocketAddr,
    streams: std_mpsc::Receiver<Script>,
    _runtime: Runtime,
}

/// A stream of it, which the test reads and writes. It ends when this is dropped.
struct Script {
    metadata: MetadataMap,
    requests: std_mpsc::Receiver<DiscoveryRequest>,
    responses: mpsc::UnboundedSender<DiscoveryResponse>,
}

struct Service(std_mpsc::SyncSender<Script>);

#[tonic::async_trait]
impl AggregatedDiscoveryService for Service {
    type StreamAggregatedResourcesStream = Answers<DiscoveryResponse>;

    /// Sends the head of the answer with the first response, as servers in Go do.
    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        let metadata = request.metadata().clone();
        let mut sent = request.into_inner();
        let (to_test, requests) = std_mpsc::sync_channel(100);
        let (responses, mut to_server) = mpsc::unbounded_channel();
        let script = Script {
            metadata,
            requests,
            responses,
        };
        self.0.send(script).unwrap();
        tokio::spawn(async move {
            while let Some(Ok(request)) = sent.next().await {
                // A test may be over.
                let _ = to_test.send(request);
            }
        });
        let first = to_server.recv().await;
        let first = first.ok_or_else(|| Status::unavailable("the test ends this stream"))?;
        let later = stream::poll_fn(move |context| to_server.poll_recv(context));
        let all = stream::iter([first]).chain(later);
        Ok(Response::new(Box::pin(all.map(Ok))))
    }

    type DeltaAggregatedResourcesStream = Answers<DeltaDiscoveryResponse>;

    async fn delta_aggregated_resources(
        &self,
        _: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        Err(Status::unimplemented("state of the world alone"))
    }
}

impl ControlPlane {
    fn start(tls: Option<ServerTlsConfig>) -> Self {
        let runtime = Runtime::new().unwrap();
        let (scripts, streams) = std_mpsc::sync_channel(10);
        let guard = runtime.enter();
        let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = incoming.local_addr().unwrap();
        let mut server = Server::builder();
        if let Some(tls) = tls {
            server = server.tls_config(tls).unwrap();
        }
        let service = AggregatedDiscoveryServiceServer::new(Service(scripts));
        let serve = server.add_service(service).serve_with_incoming(incoming);
        runtime.spawn(serve);
        drop(guard);
        Self {
            address,
            streams,
            _runtime: runtime,
        }
    }

    fn stream(&self) -> Script {
        self.streams.recv_timeout(DEADLINE).unwrap()
    }

    fn settings(&self) -> String {
        format!(
            "envoy = '127.0.0.1:0'\nenvoy_xds = 'http://{}'\n",
            self.address
        )
    }
}

impl Script {
    fn next(&self) -> DiscoveryRequest {
        self.requests.recv_timeout(DEADLINE).unwrap()
    }

    fn send(&self, response: DiscoveryResponse) {
        self.responses.send(response).unwrap();
    }

    /// Sends these limits as `version`, and returns what the server says of them.
    fn offer(&self, version: &str, configs: &[RateLimitConfig]) -> DiscoveryRequest {
        self.send(response(version, configs));
        let mut told = self.next();
        // On a resumed stream it may have asked for everything first.
        while told.response_nonce.is_empty() {
            told = self.next();
        }
        assert_eq!(told.response_nonce, format!("nonce of {version}"));
        assert_eq!(told.type_url, TYPE_URL);
        told
    }

    #[track_caller]
    fn accepted(&self, version: &str, configs: &[RateLimitConfig]) {
        let told = self.offer(version, configs);
        assert_eq!((&*told.version_info, told.error_detail), (version, None));
    }

    /// Returns the reason, and the version in force.
    #[track_caller]
    fn refused(&self, version: &str, configs: &[RateLimitConfig]) -> (String, String) {
        let told = self.offer(version, configs);
        let detail = told.error_detail.unwrap();
        assert_eq!(detail.code, GrpcCode::InvalidArgument as i32);
        (detail.message, told.version_info)
    }
}

fn response(version: &str, configs: &[RateLimitConfig]) -> DiscoveryResponse {
    let resources = configs.iter().map(|config| Any {
        type_url: TYPE_URL.to_owned(),
        value: config.encode_to_vec(),
    });
    DiscoveryResponse {
        version_info: version.to_owned(),
        resources: resources.collect(),
        type_url: TYPE_URL.to_owned(),
        nonce: format!("nonce of {version}"),
        ..DiscoveryResponse::default()
    }
}

/// Limits of a domain: so many requests of each value of `key` in this unit.
fn limits(domain: &str, requests_per_unit: u32, unit: ConfigUnit) -> RateLimitConfig {
    RateLimitConfig {
        name: domain.to_owned(),
        domain: domain.to_owned(),
        descriptors: vec![RateLimitDescriptor {
            key: "key".to_owned(),
            rate_limit: Some(RateLimitPolicy {
                requests_per_unit,
                unit: unit.into(),
                ..RateLimitPolicy::default()
            }),
            ..RateLimitDescriptor::default()
        }],
    }
}

fn hourly(requests: u32) -> [RateLimitConfig; 1] {
    [limits("d", requests, ConfigUnit::Hour)]
}

fn broken() -> [RateLimitConfig; 1] {
    [limits("d", 9, ConfigUnit::Unknown)]
}

/// Starts a server on a clock that stands still, from another thread: it may wait.
fn start_aside(rules: &str, settings: &str, prepare: impl FnOnce(&Fixture)) -> JoinHandle<Fixture> {
    let mut server = Fixture::prepare(rules, settings);
    prepare(&server);
    server.stop_clock();
    thread::spawn(move || {
        server.start().unwrap();
        server
    })
}

/// Units left of `key` after one more call.
fn left(server: &Fixture) -> u32 {
    let answer = client(server)(call("d", "key=a")).unwrap();
    answer.statuses[0].limit_remaining
}

#[test]
fn a_server_follows_its_control_plane() {
    let plane = ControlPlane::start(None);
    let settings = format!(
        "{}envoy_xds_node = 'envoy-ratelimit'\nenvoy_xds_metadata = ['zone=a', 'b=c=d']\n\
         envoy_xds_headers = 'DIR/headers'\n",
        plane.settings()
    );
    let starting = start_aside("", &settings, |server| {
        std::fs::write(server.path("headers"), "x-token: secret\nx-other:1").unwrap();
    });
    let script = plane.stream();
    for (name, value) in [("x-token", "secret"), ("x-other", "1")] {
        assert_eq!(script.metadata.get(name).unwrap(), value);
    }
    let first = script.next();
    let node = first.node.unwrap();
    assert_eq!(node.id, "envoy-ratelimit");
    let fields = node.metadata.unwrap().fields;
    for (key, value) in [("zone", "a"), ("b", "c=d")] {
        let kind = Some(Kind::StringValue(value.to_owned()));
        assert_eq!(fields[key].kind, kind);
    }
    assert_eq!(first.type_url, TYPE_URL);
    assert_eq!(
        (first.version_info, first.response_nonce),
        Default::default()
    );
    assert!(first.resource_names.is_empty(), "all of them");

    let (reason, version) = script.refused("v0", &broken());
    let expected = "d: descriptors[0]: invalid rate limit unit 'UNKNOWN': write second";
    assert!(reason.starts_with(expected), "{reason}");
    assert_eq!(version, "");
    assert!(!starting.is_finished(), "it waits for one without mistakes");
    script.accepted("v1", &hourly(2));
    let server = starting.join().unwrap();
    assert_eq!(left(&server), 1);
    assert_eq!(server.get("/readyz").status, 200);

    // What was used counts on.
    script.accepted("v2", &hourly(5));
    assert_eq!(left(&server), 3);
    let (reason, version) = script.refused("v3", &broken());
    assert!(reason.starts_with(expected), "{reason}");
    assert_eq!(version, "v2", "it is in force");
    assert_eq!(left(&server), 2);
    let errors = server.metric("ratelimit_service_config_load_error");
    assert_eq!(errors.as_deref(), Some("2"));
    let loaded = server.metric("ratelimit_service_config_load_success");
    assert_eq!(loaded.as_deref(), Some("2"));
    let health = server.get("/healthz").json();
    assert_eq!(health["control_plane"]["version"], "v2");
    assert_eq!(health["reload_failure"]["reasons"][0], reason);

    // No limits at all, and some again.
    script.accepted("v4", &[]);
    let answer = client(&server)(call("d", "key=a")).unwrap();
    assert_eq!(answer.statuses[0].current_limit, None);
    assert_eq!(server.get("/readyz").status, 503);
    script.accepted("v5", &hourly(5));
    assert_eq!(server.get("/readyz").status, 200);
    assert_eq!(left(&server), 1);
    assert_eq!(server.get("/healthz").json()["status"], "ok");
    assert!(server.reload());
}

#[test]
fn a_stream_that_ends_is_opened_again_and_limits_stay() {
    let plane = ControlPlane::start(None);
    let starting = start_aside("", &plane.settings(), |_| {});
    let script = plane.stream();
    assert_eq!(script.next().node.unwrap().id, "default");
    script.accepted("v1", &hourly(9));
    let server = starting.join().unwrap();
    drop(script);
    let failure = || server.get("/healthz").json()["control_plane"]["failure"].clone();
    eventually("the server notices", || failure().is_object());
    assert_eq!(left(&server), 8);

    let script = plane.stream();
    let resumed = script.next();
    assert_eq!(
        (&*resumed.version_info, &*resumed.response_nonce),
        ("v1", "")
    );
    // A control plane that has started anew may mean other limits by `v1`.
    let anew = script.next();
    assert_eq!((&*anew.version_info, &*anew.response_nonce), ("", ""));
    assert_eq!(left(&server), 7);
    script.accepted("v1", &hourly(5));
    assert!(failure().is_null());
    assert_eq!(left(&server), 2);
}

#[test]
fn a_server_that_does_not_wait_is_not_ready_before_the_first_configuration() {
    let plane = ControlPlane::start(None);
    let rules = "domain: mine\nrules: [{ name: all, rate: 1/day }]";
    let settings = format!("{}envoy_needs_config = false\n", plane.settings());
    let server = start_aside(rules, &settings, |_| {}).join().unwrap();
    let script = plane.stream();
    script.next();
    let serving = || {
        let url = format!("http://{}", server.envoy());
        let asked = async {
            let channel = Channel::from_shared(url).unwrap().connect().await.unwrap();
            let mut client = HealthClient::new(channel);
            let service = "ratelimit".to_owned();
            let asked = client.check(HealthCheckRequest { service }).await;
            asked.unwrap().into_inner().status
        };
        server.block_on(asked)
    };
    assert_eq!(server.get("/readyz").status, 503);
    assert_eq!(serving(), ServingStatus::NotServing as i32);
    let ask = client(&server);
    let status = ask(call("d", "key=a")).unwrap_err();
    assert_eq!(status.code(), GrpcCode::Unavailable);
    let expected = "no rate limit configuration loaded";
    assert!(status.message().starts_with(expected), "{status}");
    let answer = ask(call("mine", "key=a")).unwrap();
    assert!(answer.statuses[0].current_limit.is_some(), "rules of files");

    let (reason, _) = script.refused("v1", &[limits("mine", 1, ConfigUnit::Day)]);
    assert!(
        reason.contains("the domain mine is in the limits of"),
        "{reason}"
    );
    assert_eq!(server.get("/readyz").status, 503);
    script.accepted("v2", &hourly(2));
    assert_eq!(left(&server), 1);
    assert_eq!(server.get("/readyz").status, 200);
    assert_eq!(serving(), ServingStatus::Serving as i32);
}

const MINE: &str = "domain: mine\nrules: [{ name: all, rate: 5/day }]";
const MINE_LESS: &str = "domain: mine\nrules: [{ name: all, rate: 3/day }]";
const MINE_BROKEN: &str = "domain: mine\nrules: [{ name: all, rate: 7/fortnight }]";

/// The limit of a call on the domain `mine`.
fn limit_of_mine(server: &Fixture) -> u32 {
    let answer = client(server)(call("mine", "key=a")).unwrap();
    let limit = answer.statuses[0].current_limit.as_ref();
    limit.unwrap().requests_per_unit
}

#[test]
fn a_refused_configuration_stops_no_reload_of_rules() {
    let plane = ControlPlane::start(None);
    let starting = start_aside(MINE, &plane.settings(), |_| {});
    let script = plane.stream();
    script.next();
    script.accepted("v1", &hourly(9));
    let server = starting.join().unwrap();
    assert_eq!(limit_of_mine(&server), 5);
    let (reason, version) = script.refused("v2", &broken());
    assert_eq!(version, "v1");
    replace(&server.path("rules.yaml"), MINE_LESS);
    assert!(server.reload());
    assert_eq!(limit_of_mine(&server), 3);
    assert_eq!(left(&server), 8, "the limits before it stay");

    // An operator still reads about it, until there is a better one.
    let health = server.get("/healthz").json();
    assert_eq!(health["status"], "degraded");
    assert_eq!(health["control_plane"]["version"], "v1");
    let told = &health["control_plane"]["failure"]["reasons"][0];
    assert_eq!(*told, format!("refused: {reason}"));
    assert_eq!(server.get("/readyz").status, 200);
    script.accepted("v3", &hourly(5));
    assert_eq!(left(&server), 3);
    assert_eq!(server.get("/healthz").json()["status"], "ok");
}

#[test]
fn a_control_plane_is_not_told_of_mistakes_in_files() {
    let plane = ControlPlane::start(None);
    let starting = start_aside(MINE, &plane.settings(), |_| {});
    let script = plane.stream();
    script.next();
    script.accepted("v1", &hourly(9));
    let server = starting.join().unwrap();
    replace(&server.path("rules.yaml"), MINE_BROKEN);
    assert!(!server.reload());
    script.accepted("v2", &hourly(5));
    let health = server.get("/healthz").json();
    assert_eq!(health["status"], "degraded");
    assert_eq!(health["control_plane"]["version"], "v1", "in force");
    let told = health["reload_failure"]["reasons"][0].as_str().unwrap();
    assert!(
        told.contains("rules.yaml") && told.contains("`fortnight`"),
        "{told}"
    );
    assert_eq!(left(&server), 8);
    // Its own mistakes are told alone.
    let (reason, version) = script.refused("v3", &broken());
    assert!(!reason.contains("fortnight"), "{reason}");
    assert_eq!(version, "v2", "the last that was accepted");

    replace(&server.path("rules.yaml"), MINE_LESS);
    assert!(server.reload());
    assert_eq!(limit_of_mine(&server), 3);
    assert_eq!(left(&server), 3);
    let health = server.get("/healthz").json();
    assert_eq!(health["control_plane"]["version"], "v2");

    // A domain that a file takes from the control plane is the file's mistake.
    replace(&server.path("rules.yaml"), &MINE.replace("mine", "d"));
    assert!(!server.reload());
    script.accepted("v4", &hourly(4));
    assert_eq!(
        server.get("/healthz").json()["control_plane"]["version"],
        "v2"
    );
    replace(&server.path("rules.yaml"), MINE);
    assert!(server.reload());
    assert_eq!(left(&server), 1);
}

#[test]
fn a_mistake_in_a_file_delays_the_first_configuration() {
    let plane = ControlPlane::start(None);
    let mut rules = None;
    let starting = start_aside(MINE, &plane.settings(), |server| {
        rules = Some(server.path("rules.yaml"));
    });
    let (script, rules) = (plane.stream(), rules.unwrap());
    script.next();
    replace(&rules, MINE_BROKEN);
    script.accepted("v1", &hourly(9));
    assert!(!starting.is_finished(), "it is not in force");
    replace(&rules, MINE_LESS);
    let server = starting.join().unwrap();
    assert_eq!(limit_of_mine(&server), 3);
    assert_eq!(left(&server), 8);
}

#[test]
fn fields_that_are_not_known_are_refused() {
    let plane = ControlPlane::start(None);
    let starting = start_aside("", &plane.settings(), |_| {});
    let script = plane.stream();
    script.next();
    script.accepted("v1", &hourly(9));
    let server = starting.join().unwrap();
    // 10 per minute, and in the field 6 of the limit a 5, which makes it 10 per 5 minutes.
    let mut sent = response("v2", &[]);
    let descriptor = b"\x1A\x0D\x0A\x03key\x1A\x06\x08\x02\x10\x0A\x30\x05";
    sent.resources = vec![Any {
        type_url: TYPE_URL.to_owned(),
        value: [b"\x12\x01d", &descriptor[..]].concat(),
    }];
    script.send(sent);
    let told = script.next();
    assert_eq!(told.version_info, "v1");
    let detail = told.error_detail.unwrap().message;
    let expected =
        "resource 0: RateLimitPolicy has a field 6, which this version of Quell does not know";
    assert!(detail.starts_with(expected), "{detail}");
    assert_eq!(left(&server), 8);
}

#[test]
fn domains_of_rules_are_no_limits_of_files_or_of_a_control_plane() {
    let plane = ControlPlane::start(None);
    let starting = start_aside(MINE, &plane.settings(), |_| {});
    let script = plane.stream();
    script.next();
    script.accepted("v1", &[]);
    let server = starting.join().unwrap();
    assert_eq!(server.get("/readyz").status, 503);
    script.accepted("v2", &hourly(9));
    assert_eq!(server.get("/readyz").status, 200);

    let settings =
        "envoy = '127.0.0.1:0'\nenvoy_config = 'DIR/limits'\nenvoy_needs_config = false\n";
    for (more, status) in [("", 503), ("allow_empty_rules = true\n", 200)] {
        let mut server = Fixture::prepare(MINE, &format!("{settings}{more}"));
        server.start().unwrap();
        assert_eq!(server.get("/readyz").status, status);
        std::fs::create_dir(server.path("limits")).unwrap();
        std::fs::write(server.path("limits/d.yaml"), "domain: d").unwrap();
        assert!(server.reload());
        assert_eq!(server.get("/readyz").status, 200);
    }
}

#[test]
fn whatever_a_control_plane_sends_the_limits_in_force_stay() {
    let plane = ControlPlane::start(None);
    let starting = start_aside("", &plane.settings(), |_| {});
    let script = plane.stream();
    script.next();
    script.accepted("v1", &hourly(99));
    let server = starting.join().unwrap();
    let mut garbage = response("v2", &[]);
    garbage.resources = vec![Any {
        type_url: TYPE_URL.to_owned(),
        value: vec![0xFF; 1_000],
    }];
    script.send(garbage);
    let detail = script.next().error_detail.unwrap();
    assert!(
        detail.message.contains("it is no RateLimitConfig"),
        "{detail:?}"
    );
    let long = "x".repeat(100_000);
    let (reason, _) = script.refused("v3", &[limits(&long, 1, ConfigUnit::Day)]);
    assert!(reason.len() < 5_000, "{}", reason.len());
    assert_eq!(left(&server), 98);

    let mut script = script;
    let mut expected = 98;
    let other = DiscoveryResponse {
        type_url: "type.googleapis.com/envoy.config.cluster.v3.Cluster".to_owned(),
        ..response("v4", &[])
    };
    let huge = limits(&"x".repeat(16 * 1_024 * 1_024), 1, ConfigUnit::Day);
    for (sent, words) in [
        (other, "resources of another type"),
        (response("v5", &[huge]), "16777216"),
        (response(&long, &[]), "version or nonce has more than 4096"),
    ] {
        script.send(sent);
        // The stream is over, and there is another one.
        script = plane.stream();
        let failure = &server.get("/healthz").json()["control_plane"]["failure"]["reasons"][0];
        assert!(failure.as_str().unwrap().contains(words), "{failure}");
        assert_eq!(script.next().version_info, "v1");
        expected -= 1;
        assert_eq!(left(&server), expected);
        script.accepted("v1", &hourly(99));
    }
}

#[test]
fn tls_is_by_the_name_and_the_authority_that_are_said() {
    let authority = Authority::new("authority");
    let pair = authority.sign(&["control.internal"]);
    let tls = ServerTlsConfig::new()
        .identity(Identity::from_pem(&pair.certificate, &pair.key))
        .client_ca_root(Certificate::from_pem(&authority.pem));
    let plane = ControlPlane::start(Some(tls));
    let settings = |more: &str| {
        format!(
            "envoy = '127.0.0.1:0'\nenvoy_xds = 'https://{}'\nenvoy_xds_ca = 'DIR/ca.pem'\n\
             envoy_xds_cert = 'DIR/cert.pem'\nenvoy_xds_key = 'DIR/key.pem'\n{more}",
            plane.address
        )
    };
    let prepare = |server: &Fixture| {
        authority.sign(&["envoy-ratelimit"]).write(server);
        std::fs::write(server.path("ca.pem"), &authority.pem).unwrap();
    };
    let named = settings("envoy_xds_san = 'control.internal'\n");
    let starting = start_aside("", &named, prepare);
    let script = plane.stream();
    script.next();
    script.accepted("v1", &hourly(2));
    assert_eq!(left(&starting.join().unwrap()), 1);

    // The certificate is not that of the address.
    let unnamed = settings("envoy_needs_config = false\n");
    let server = start_aside("", &unnamed, prepare).join().unwrap();
    let failure = || server.get("/healthz").json()["control_plane"]["failure"].clone();
    eventually("the certificate is refused", || failure().is_object());
    assert!(
        failure().to_string().contains("not valid for name"),
        "{}",
        failure()
    );
}

#[test]
fn files_that_are_not_there_are_told_at_the_start() {
    let settings = "envoy_xds = 'http://127.0.0.1:1'\nenvoy_xds_headers = 'DIR/none'";
    let error = Fixture::try_new("", settings).map(drop).unwrap_err();
    let told = error.to_string();
    assert!(
        told.starts_with("cannot follow the control plane http://127.0.0.1:1: "),
        "{told}"
    );
    assert!(told.contains("none: No such file"), "{told}");
}
