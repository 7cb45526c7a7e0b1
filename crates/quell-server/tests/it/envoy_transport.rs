//! Envoy's listener by TLS, with client certificates, on a Unix socket, and with a store that does not answer.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt;

use quell_envoy::proto::{
    Code, Descriptor, Kind, RateLimitOverride, RateLimitResponse, RateLimitServiceClient,
    RateLimitUnit,
};
use quell_testkit::redis::Redis;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code as GrpcCode, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::certificates::{Authority, Pair, TLS};
use crate::envoy::{ENVOY, RULES, client, client_over, descriptor, message, metadata, says};
use crate::harness::{Answer, Fixture, connect, eventually, exchange, request, store_settings};

/// Limits that answer in each way while the store is gone.
const OUTAGE: &str = "
domain: gateway
rules:
  - { name: closed, match: { path: /closed }, rate: 10/day, on_failure: deny }
  - { name: open, match: { path: /open }, rate: 10/day, on_failure: allow }
";

/// The count of failed handshakes.
const TLS_ERRORS: &str = "quell_tls_errors_total{listener=\"envoy\"}";

/// An endpoint of `server` that trusts `authority`.
fn endpoint(server: &Fixture, authority: &Authority, certificate: Option<&Pair>) -> Endpoint {
    let mut tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(&authority.pem))
        .domain_name("localhost");
    if let Some(pair) = certificate {
        tls = tls.identity(Identity::from_pem(&pair.certificate, &pair.key));
    }
    let endpoint = Endpoint::from_shared(format!("https://{}", server.envoy())).unwrap();
    endpoint.tls_config(tls).unwrap()
}

/// One question about `ann` on a connection of its own; an error in the handshake is `UNAVAILABLE`.
fn ask_once(server: &Fixture, endpoint: &Endpoint, user: Descriptor) -> Result<Code, Status> {
    server.block_on(async {
        let channel = endpoint.connect().await;
        let channel = channel.map_err(|error| Status::unavailable(error.to_string()))?;
        let mut client = RateLimitServiceClient::new(channel);
        let answer = client.should_rate_limit(message(&[user])).await?;
        Ok(answer.get_ref().overall_code())
    })
}

fn ann() -> Descriptor {
    descriptor(&[("user", "ann")])
}

/// A descriptor with a limit that came with it.
fn limited(user: &str) -> Descriptor {
    Descriptor {
        limit: Some(RateLimitOverride {
            requests_per_unit: 3,
            unit: RateLimitUnit::Day.into(),
        }),
        ..descriptor(&[("user", user)])
    }
}

#[test]
fn envoy_asks_over_tls() {
    let authority = Authority::new("authority");
    let mut server = Fixture::prepare(RULES, &format!("{TLS}{ENVOY}"));
    authority.sign(&["localhost"]).write(&server);
    server.stop_clock();
    server.start().unwrap();
    let endpoint = endpoint(&server, &authority, None);
    let channel = server.block_on(endpoint.connect()).unwrap();
    let ask = client_over(&server, channel, None);
    for code in [Code::Ok, Code::Ok, Code::OverLimit] {
        assert_eq!(ask(message(&[ann()])).unwrap().overall_code(), code);
    }
    // A cluster without a `transport_socket`, and a server with a certificate of somebody else.
    let plain = Endpoint::from_shared(format!("http://{}", server.envoy())).unwrap();
    ask_once(&server, &plain, ann()).unwrap_err();
    let head = b"POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let told = Answer::read(&exchange(connect(server.envoy()), head).unwrap());
    told.assert_problem(400, "https://");
    let other = self::endpoint(&server, &Authority::new("other"), None);
    let error = ask_once(&server, &other, ann()).unwrap_err();
    assert_eq!(error.code(), GrpcCode::Unavailable, "{error:?}");
    // A client may have tried again.
    eventually("the failed handshakes are counted", || {
        let count = authority.metric(&server, TLS_ERRORS).unwrap();
        count.parse::<u64>().unwrap() >= 3
    });
}

/// TLS for Envoy alone, and no credentials but the names in its certificate.
#[test]
fn a_listener_knows_its_clients_by_their_names() {
    let authority = Authority::new("authority");
    let settings = format!(
        "{TLS}{ENVOY}tls_client_ca = 'DIR/ca.pem'\nplain = ['http', 'resp']\nenvoy_client = ['envoy.internal']\n"
    );
    let mut server = Fixture::prepare(RULES, &settings);
    authority.sign(&["localhost"]).write(&server);
    std::fs::write(server.path("ca.pem"), &authority.pem).unwrap();
    server.start().unwrap();
    let ask = |name: Option<&str>| {
        let pair = name.map(|name| authority.sign(&[name]));
        ask_once(
            &server,
            &endpoint(&server, &authority, pair.as_ref()),
            ann(),
        )
    };
    assert_eq!(ask(Some("envoy.internal")).unwrap(), Code::Ok);
    for stranger in [ask(None), ask(Some("other.internal"))] {
        assert_eq!(stranger.unwrap_err().code(), GrpcCode::Unauthenticated);
    }
    let plain = request(server.http(), ("GET", "/readyz", ""), "");
    assert_eq!(plain.status, 200);
}

/// Certificates are for roles and domains, here as on the other listeners.
#[test]
fn envoy_shows_a_client_certificate() {
    let authority = Authority::new("authority");
    let settings =
        format!("{TLS}{ENVOY}tls_client_ca = 'DIR/ca.pem'\ncredentials = 'DIR/credentials.toml'\n");
    let mut server = Fixture::prepare(RULES, &settings);
    authority.sign(&["localhost"]).write(&server);
    std::fs::write(server.path("ca.pem"), &authority.pem).unwrap();
    let entries = [
        ("envoy", "roles = ['ask']\ndomains = ['gateway']"),
        ("bank", "roles = ['ask']\ndomains = ['bank']"),
        ("reader", "roles = ['read']"),
        ("counter", "roles = ['metrics']"),
        ("whole", "roles = ['ask']"),
    ];
    let entries = entries.map(|(name, more)| {
        format!("[[certificates]]\nname = '{name}'\nsan = '{name}.internal'\n{more}\n")
    });
    std::fs::write(server.path("credentials.toml"), entries.concat()).unwrap();
    server.start().unwrap();
    let ask = |pair: Option<&Pair>, user: Descriptor| {
        ask_once(&server, &endpoint(&server, &authority, pair), user)
    };
    let of = |name: &str, user: Descriptor| {
        ask(Some(&authority.sign(&[&format!("{name}.internal")])), user)
    };
    assert_eq!(of("envoy", ann()).unwrap(), Code::Ok);
    assert_eq!(of("whole", limited("ann")).unwrap(), Code::Ok);
    for (name, user, text) in [
        (
            "bank",
            ann(),
            "the certificate `bank` is not for the domain `gateway`",
        ),
        (
            "reader",
            ann(),
            "the certificate `reader` does not have the role `ask`",
        ),
        ("envoy", limited("ann"), "the certificate `envoy`"),
    ] {
        let error = of(name, user).unwrap_err();
        assert_eq!(error.code(), GrpcCode::PermissionDenied, "{error:?}");
        assert!(error.message().contains(text), "{error:?}");
    }
    for error in [of("unknown", ann()), ask(None, ann())] {
        assert_eq!(error.unwrap_err().code(), GrpcCode::Unauthenticated);
    }
    // Health is for everybody who gets so far.
    let channel = endpoint(&server, &authority, None);
    let channel = server.block_on(channel.connect()).unwrap();
    let health = HealthCheckRequest::default();
    let health = server.block_on(HealthClient::new(channel).check(health));
    assert_eq!(health.unwrap().get_ref().status, 1);
    // A stranger's certificate is not let in, whatever name it has.
    let stranger = Authority::new("authority").sign(&["envoy.internal"]);
    let error = ask(Some(&stranger), ann()).unwrap_err();
    let codes = [GrpcCode::Unauthenticated, GrpcCode::PermissionDenied];
    assert!(!codes.contains(&error.code()), "{error:?}");
    let counter = authority.sign(&["counter.internal"]);
    eventually("the failed handshake is counted", || {
        let metrics = ("GET", "/metrics", "");
        let metrics = authority.request(server.http(), Some(&counter), metrics, "");
        let (_, count) = metrics.body.split_once(TLS_ERRORS).unwrap();
        !count.starts_with(" 0\n")
    });
}

#[test]
fn envoy_asks_over_a_unix_socket() {
    let mut server = Fixture::with_clock(RULES, "envoy = 'unix:DIR/envoy.sock'");
    let path = server.path("envoy.sock");
    let mode = path.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    let endpoint = Endpoint::from_shared(format!("unix:{}", path.display())).unwrap();
    let channel: Channel = server.block_on(endpoint.connect()).unwrap();
    {
        let ask = client_over(&server, channel, None);
        for left in [1, 0] {
            let answer = ask(message(&[ann()])).unwrap();
            assert_eq!(answer.statuses[0].limit_remaining, left);
        }
        let refused = ask(message(&[ann()])).unwrap();
        assert_eq!(says(&refused.statuses[0]).0, Code::OverLimit);
    }
    server.stop();
    assert!(!path.exists());
}

/// Rules always declare an answer; a limit that comes with a call has none, as `CL.THROTTLE`.
#[test]
fn a_call_that_nothing_decides_is_unavailable() {
    let mut redis = Redis::start(&[]);
    let server = Fixture::with_clock(OUTAGE, &format!("{ENVOY}{}", store_settings(&redis)));
    let ask = client(&server, None);
    let open = || descriptor(&[("path", "/open")]);
    let answer = ask(message(&[limited("ann"), open()])).unwrap();
    assert_eq!(answer.overall_code(), Code::Ok);
    redis.kill();
    for descriptors in [vec![limited("ann")], vec![open(), limited("ann")]] {
        let error = ask(message(&descriptors)).unwrap_err();
        assert_eq!(error.code(), GrpcCode::Unavailable, "{error:?}");
        assert!(error.message().contains("redis://"), "{error:?}");
    }
    redis.restart();
    eventually("the store is back", || {
        ask(message(&[limited("bob")])).is_ok()
    });
}

fn is_degraded(answer: &RateLimitResponse) -> bool {
    metadata(answer, "degraded") == Some(&Kind::BoolValue(true))
}

/// A store that accepts calls and says nothing: calls wait for as long as they may.
#[test]
fn a_call_waits_for_a_store_that_stands_still() {
    let redis = Redis::start(&[]);
    let server = Fixture::with_clock(OUTAGE, &format!("{ENVOY}{}", store_settings(&redis)));
    let endpoint = Endpoint::from_shared(format!("http://{}", server.envoy())).unwrap();
    let channel = server.block_on(endpoint.connect()).unwrap();
    let call = |path: &'static str| {
        let mut client = RateLimitServiceClient::new(channel.clone());
        async move {
            let question = message(&[descriptor(&[("path", path)])]);
            client.should_rate_limit(question).await
        }
    };
    assert_eq!(
        server.block_on(call("/closed")).unwrap().get_ref().statuses[0].limit_remaining,
        9
    );
    redis.freeze();
    let calls = ["/closed", "/open", "/closed"].map(|path| server.handle().spawn(call(path)));
    // Health does not wait for it.
    let mut health = HealthClient::new(channel.clone());
    let health = server.block_on(health.check(HealthCheckRequest::default()));
    assert_eq!(health.unwrap().get_ref().status, 1);
    redis.thaw();
    let mut left = calls.map(|call| {
        let answer = server.wait_for(call).unwrap().into_inner();
        assert!(!is_degraded(&answer), "{answer:?}");
        answer.statuses[0].limit_remaining
    });
    left.sort_unstable();
    assert_eq!(left, [7, 8, 9], "each is charged once");
}

#[test]
fn a_store_that_stands_still_for_too_long_is_one_that_is_gone() {
    let redis = Redis::start(&[]);
    let settings = store_settings(&redis).replace("60s", "2s");
    let server = Fixture::with_clock(OUTAGE, &format!("{ENVOY}{settings}"));
    let ask = client(&server, None);
    let at = |path: &str| ask(message(&[descriptor(&[("path", path)])])).unwrap();
    eventually("the store answers", || !is_degraded(&at("/open")));
    redis.freeze();
    for (path, code) in [("/closed", Code::OverLimit), ("/open", Code::Ok)] {
        let answer = at(path);
        assert_eq!(answer.overall_code(), code, "{answer:?}");
        assert!(is_degraded(&answer), "{answer:?}");
    }
    let error = ask(message(&[limited("ann")])).unwrap_err();
    assert_eq!(error.code(), GrpcCode::Unavailable, "{error:?}");
    redis.thaw();
    eventually("the store is back", || !is_degraded(&at("/open")));
}

/// As many requests as Envoy sends on a new connection, before it has read how many that takes.
#[test]
fn a_new_connection_takes_all_questions_of_an_envoy() {
    const QUESTIONS: u32 = 1_024;
    let server = Fixture::new(RULES, ENVOY);
    // The preface, and SETTINGS with nothing.
    let mut asked = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    // :method POST, :scheme http, :path, :authority localhost, and the message that has nothing in it.
    let path = b"/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let length = |bytes: &[u8]| u8::try_from(bytes.len()).unwrap();
    let fields = [
        b"\x83\x86\x04",
        &[length(path)][..],
        path,
        b"\x01\x09localhost",
    ]
    .concat();
    for question in 0..QUESTIONS {
        let stream = (2 * question + 1).to_be_bytes();
        // HEADERS with END_HEADERS, and DATA with END_STREAM.
        for (kind, flags, payload) in [(1, 4, &*fields), (0, 1, &[0; 5])] {
            asked.extend_from_slice(&[0, 0, length(payload), kind, flags]);
            asked.extend_from_slice(&stream);
            asked.extend_from_slice(payload);
        }
    }
    let mut stream = connect(server.envoy());
    let mut reader = stream.try_clone().unwrap();
    let write = std::thread::spawn(move || stream.write_all(&asked).map(|()| stream));
    let mut answered = 0;
    while answered < QUESTIONS {
        let mut head = [0; 9];
        reader.read_exact(&mut head).unwrap();
        let [_, _, _, kind, flags, ..] = head;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        reader.read_exact(&mut payload).unwrap();
        // RST_STREAM and GOAWAY.
        assert!(!matches!(kind, 3 | 7), "{answered}: {head:?} {payload:?}");
        answered += u32::from(kind == 1 && flags & 1 == 1);
    }
    drop(write.join().unwrap().unwrap());
}
