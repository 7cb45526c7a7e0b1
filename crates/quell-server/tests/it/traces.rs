//! Traces: what a collector receives, and what happens without one.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value as AnyValue;
use opentelemetry_proto::tonic::trace::v1::Span;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

use crate::harness::{Fixture, SHOP, eventually, send};

/// A collector of OTLP over gRPC.
struct Collector {
    address: SocketAddr,
    received: Arc<Received>,
    runtime: Option<Runtime>,
}

#[derive(Default)]
struct Received {
    spans: Mutex<Vec<Span>>,
    resource: Mutex<Vec<KeyValue>>,
    /// Answer nobody any more.
    is_frozen: AtomicBool,
}

#[tonic::async_trait]
impl TraceService for Received {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        if self.is_frozen.load(Ordering::Acquire) {
            std::future::pending::<()>().await;
        }
        for of_resource in request.into_inner().resource_spans {
            *self.resource.lock() = of_resource.resource.unwrap().attributes;
            let scopes = of_resource.scope_spans.into_iter();
            self.spans
                .lock()
                .extend(scopes.flat_map(|scope| scope.spans));
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    fn start() -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap())
    }

    fn start_at(address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let received = Arc::<Received>::default();
        let service = TraceServiceServer::from_arc(Arc::clone(&received));
        let runtime = Runtime::new().unwrap();
        runtime.spawn(async move {
            let incoming = TcpIncoming::from(tokio::net::TcpListener::from_std(listener).unwrap());
            let server = Server::builder().add_service(service);
            server.serve_with_incoming(incoming).await.unwrap();
        });
        Self {
            address,
            received,
            runtime: Some(runtime),
        }
    }

    /// A server that sends its spans here; its clock stands still.
    fn server(&self, settings: &str) -> Fixture {
        let address = self.address;
        Fixture::with_clock(
            SHOP,
            &format!("otlp_endpoint = 'http://{address}'\n{settings}"),
        )
    }

    /// The spans, once there are as many.
    fn spans(&self, count: usize) -> Vec<Span> {
        eventually("the spans arrive", || {
            self.received.spans.lock().len() >= count
        });
        let spans = self.received.spans.lock().clone();
        assert_eq!(spans.len(), count, "{spans:#?}");
        spans
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn attributes(attributes: &[KeyValue]) -> HashMap<&str, Value> {
    let value = |attribute: &KeyValue| match attribute.value.clone().unwrap().value.unwrap() {
        AnyValue::StringValue(text) => json!(text),
        AnyValue::BoolValue(is_so) => json!(is_so),
        AnyValue::IntValue(number) => json!(number),
        other => panic!("{other:?}"),
    };
    let pairs = attributes.iter();
    pairs
        .map(|attribute| (attribute.key.as_str(), value(attribute)))
        .collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The field of a caller whose trace has this number, and whether it records it.
fn traceparent(number: u32, is_sampled: bool) -> String {
    let flags = u8::from(is_sampled);
    format!("traceparent: 00-{number:032x}-{number:016x}-{flags:02x}\r\n")
}

const ALICE: &str = r#"{"domain":"shop","entries":{"path":"/strict","user":"alice"}}"#;

/// A question that takes the fast path if it is sent at once.
fn question(fields: &str) -> String {
    format!(
        "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{fields}\
         Content-Length: {}\r\n\r\n{ALICE}",
        ALICE.len()
    )
}

#[test]
fn a_refusal_continues_its_callers_trace_and_names_no_key() {
    let collector = Collector::start();
    let server = collector.server("");
    let json = "Content-Type: application/json\r\n";
    // Allowed, so without a span.
    send(server.http(), question(&traceparent(99, true)).as_bytes());

    let fields = traceparent(1, true) + "tracestate: vendor=x,other=y\r\n";
    send(server.http(), question(&fields).as_bytes());
    // By hyper, which answers whoever closes the connection.
    let fields = |number| format!("{json}{}", traceparent(number, true));
    server.request_with("POST", "/v1/acquire", &fields(2), ALICE);
    let authorize = format!(
        "X-Original-URI: /strict\r\nX-Quell-Entry-User: alice\r\n{}",
        traceparent(3, true)
    );
    assert_eq!(
        server
            .request_with("GET", "/v1/authorize", &authorize, "")
            .status,
        429
    );
    let waits = ALICE.replace("}}", "},\"max_wait_ms\":1}");
    server.request_with("POST", "/v1/acquire", &fields(4), &waits);
    let reserves = ALICE.replace("}}", "},\"id\":\"r\",\"hold_ms\":1000}");
    server.request_with("POST", "/v1/reserve", &fields(5), &reserves);

    let spans = collector.spans(5);
    for (number, span) in (1_u32..).zip(&spans) {
        assert_eq!(hex(&span.trace_id), format!("{number:032x}"));
        assert_eq!(hex(&span.parent_span_id), format!("{number:016x}"));
        assert_ne!(span.span_id, span.parent_span_id);
        assert_eq!((span.name.as_str(), span.flags & 1), ("quell acquire", 1));
        assert!(span.start_time_unix_nano <= span.end_time_unix_nano);
        let said = attributes(&span.attributes);
        assert_eq!(said["quell.domain"], "shop");
        assert_eq!(said["quell.rule"], "strict");
        assert_eq!(said["quell.verdict"], "deny");
        assert_eq!(said["quell.store"], "memory");
        assert_eq!(said["quell.degraded"], false);
        assert!(
            said["quell.retry_after_ms"].as_i64().unwrap() >= 60_000,
            "{said:?}"
        );
    }
    assert_eq!(spans[0].trace_state, "vendor=x,other=y");
    let top = server.get("/v1/top?hash=true").json();
    let said = attributes(&spans[0].attributes);
    assert_eq!(said["quell.key_hash"], top["keys"][0]["hash"]);
    assert!(!format!("{spans:?}").contains("alice"));
    let resource = collector.received.resource.lock().clone();
    assert_eq!(attributes(&resource)["service.name"], "quell");
    eventually("they are counted", || {
        server.metric("quell_spans_total").as_deref() == Some("5")
    });
}

/// Its span would hang on a parent that nobody has.
#[test]
fn a_caller_that_does_not_record_its_trace_gets_no_span() {
    let collector = Collector::start();
    let server = collector.server("");
    for fields in ["", &traceparent(1, false), "traceparent: nonsense\r\n"] {
        send(server.http(), question(fields).as_bytes());
    }
    let span = &collector.spans(1)[0];
    assert_eq!(
        (hex(&span.parent_span_id), span.trace_id.len()),
        (String::new(), 16)
    );
}

#[test]
fn refusals_over_resp_begin_traces() {
    let collector = Collector::start();
    let server = collector.server("");
    server.resp_exchange(
        "QUELL.ACQUIRE shop path /strict user a\r\n"
            .repeat(2)
            .as_bytes(),
    );
    server.resp_exchange(b"QUELL.PEEK shop path /strict user a\r\n");
    server.resp_exchange("CL.THROTTLE k 0 1 60\r\n".repeat(2).as_bytes());
    let spans = collector.spans(3);
    let said = spans.iter().map(|span| {
        assert!(span.parent_span_id.is_empty(), "{span:?}");
        let said = attributes(&span.attributes);
        (span.name.clone(), said["quell.rule"].clone())
    });
    let expected = [
        ("quell acquire", "strict"),
        ("quell peek", "strict"),
        ("quell acquire", "cl.throttle"),
    ];
    let expected = expected.map(|(name, rule)| (name.to_owned(), json!(rule)));
    assert_eq!(said.collect::<Vec<_>>(), expected);
}

#[test]
fn slow_answers_and_a_share_of_the_others_have_spans() {
    for (settings, expected) in [
        ("trace_slower_than = '1h'", 0),
        // On a clock that stands still every answer takes 0 s.
        ("trace_slower_than = '0s'", 9),
        ("trace_slower_than = '1h'\ntrace_one_in = 1", 9),
    ] {
        let collector = Collector::start();
        let server = collector.server(settings);
        for _ in 0..9 {
            assert_eq!(server.acquire("/login", "a").json()["allowed"], true);
        }
        (0..2).for_each(|_| drop(server.acquire("/strict", "a")));
        let extra = usize::from(expected > 0);
        let spans = collector.spans(expected + extra + 1);
        let verdicts = spans
            .iter()
            .map(|span| attributes(&span.attributes)["quell.verdict"].clone());
        let refused = verdicts.filter(|verdict| verdict == "deny").count();
        assert_eq!(refused, 1, "{settings}");
    }
}

/// A server whose store is nowhere, with one rule that says what to answer then.
fn without_its_store(collector: &Collector) -> Fixture {
    let rules = "domain: shop\nrules: [{ name: one, rate: 9/s, on_failure: allow }]";
    let settings = format!(
        "otlp_endpoint = 'http://{}'\nstore = 'redis://127.0.0.1:1/0'",
        collector.address
    );
    Fixture::new(rules, &settings)
}

#[test]
fn a_degraded_answer_has_a_span() {
    let collector = Collector::start();
    let server = without_its_store(&collector);
    assert_eq!(server.acquire("/", "a").json()["degraded"], true);
    let spans = collector.spans(1);
    let said = attributes(&spans[0].attributes);
    assert_eq!(
        (&said["quell.degraded"], &said["quell.verdict"]),
        (&json!(true), &json!("allow"))
    );
    assert_eq!(said["quell.store"], "redis");
}

/// No `on_failure` decides these.
#[test]
fn calls_that_the_store_does_not_answer_have_a_span() {
    let collector = Collector::start();
    let server = without_its_store(&collector);
    // Mistakes of callers have none.
    let unknown = r#"{"domain":"bank","entries":{}}"#;
    assert_eq!(server.request("POST", "/v1/acquire", unknown).status, 404);
    let replies = server.resp_exchange(b"CL.THROTTLE k 1 1 60\r\nCL.THROTTLE k 1 1 60 0\r\n");
    assert_eq!(replies.matches("-ERR").count(), 2, "{replies}");
    let end = r#"{"domain":"shop","id":"x"}"#;
    let answer = server.request("POST", "/v1/cancel", end);
    assert!(answer.status >= 500, "{answer:?}");
    let spans = collector.spans(3);
    let names: Vec<&str> = spans.iter().map(|span| &*span.name).collect();
    assert_eq!(names, ["quell acquire", "quell peek", "quell end"]);
    for span in &spans {
        let status = span.status.as_ref().unwrap();
        assert_eq!(status.code, 2, "an error: {span:?}");
        assert!(!status.message.is_empty());
        let said = attributes(&span.attributes);
        let expected = (&json!("error"), &json!("redis"));
        assert_eq!((&said["quell.verdict"], &said["quell.store"]), expected);
    }
}

#[test]
fn a_server_without_an_endpoint_makes_no_spans() {
    let server = Fixture::new(SHOP, "trace_slower_than = '0s'\ntrace_one_in = 1");
    (0..3).for_each(|_| drop(server.acquire("/strict", "a")));
    for metric in ["quell_spans_total", "quell_spans_dropped_total"] {
        assert_eq!(server.metric(metric).as_deref(), Some("0"));
    }
}

/// Answers go on, the spans that find no room are counted, and the server stops.
#[test]
fn a_frozen_collector_holds_up_nobody() {
    let collector = Collector::start();
    collector.received.is_frozen.store(true, Ordering::Release);
    let mut server = collector.server("");
    let refusals = 5_000;
    let replies = server.resp_exchange("CL.THROTTLE k 0 1 60\r\n".repeat(refusals).as_bytes());
    assert_eq!(replies.matches("*5\r\n").count(), refusals);
    let dropped: usize = server
        .metric("quell_spans_dropped_total")
        .unwrap()
        .parse()
        .unwrap();
    // What was sent, and what waits, is at most the queue and a batch.
    assert!(
        (refusals - 1 - 1_024 - 512..refusals).contains(&dropped),
        "{dropped}"
    );
    assert_eq!(server.metric("quell_spans_total").as_deref(), Some("0"));
    server.stop();
}

#[test]
fn spans_arrive_again_when_the_collector_is_back() {
    let gone = Collector::start();
    let address = gone.address;
    let server = gone.server("");
    (0..2).for_each(|_| drop(server.acquire("/strict", "a")));
    gone.spans(1);
    drop(gone);
    eventually("what nobody takes is dropped", || {
        server.acquire("/strict", "b");
        server.metric("quell_spans_dropped_total").as_deref() != Some("0")
    });
    let mut back = None;
    eventually("the port is free", || {
        let is_free = TcpListener::bind(address).is_ok();
        if is_free {
            back = Some(Collector::start_at(address));
        }
        is_free
    });
    let back = back.unwrap();
    eventually("spans arrive", || {
        server.acquire("/strict", "c");
        !back.received.spans.lock().is_empty()
    });
}

/// A refusal before the stop is sent before the end.
#[test]
fn a_stop_sends_the_last_spans() {
    let collector = Collector::start();
    let mut server = collector.server("");
    (0..2).for_each(|_| drop(server.acquire("/strict", "a")));
    server.stop();
    assert_eq!(collector.received.spans.lock().len(), 1);
}

#[test]
fn an_endpoint_that_is_none_says_what_to_write() {
    for wrong in [
        "collector:4317",
        "http://collector",
        "grpc://a:1",
        "http://a:1/v1/traces",
    ] {
        let settings = format!("otlp_endpoint = '{wrong}'");
        let raw = quell_server::config::RawConfig::from_toml("test", &settings).unwrap();
        let error = raw.resolve().unwrap_err().to_string();
        assert!(error.contains("such as http://127.0.0.1:4317"), "{error}");
    }
}
