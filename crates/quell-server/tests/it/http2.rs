//! HTTP/2 by hand: what no sound client sends.
//!
//! Where an attack has to end the connection, the bytes are few enough that the server reads all of them
//! before it says so: what it does not read would make the system discard its last words.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use quell_testkit::wait::until_every;
use socket2::{Domain, Socket, Type};

use crate::certificates::{Authority, TlsStream};
use crate::harness::{DEADLINE, Fixture, SHOP, SLOWLY, connect, eventually, slowly_until_closed};
use crate::hostile_tls;
use crate::slow::IMPATIENT;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

/// Flags.
const NONE: u8 = 0;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// The reasons for what is malformed: `PROTOCOL_ERROR`, `FLOW_CONTROL_ERROR`, `FRAME_SIZE_ERROR`,
/// `COMPRESSION_ERROR`. Libraries differ in which of them they give.
const FAULTS: &[u32] = &[1, 3, 6, 9];

/// The reason for what is too much: `ENHANCE_YOUR_CALM`.
const CALM: &[u32] = &[11];

/// `:method GET`, `:path /healthz`, `:scheme http`, `:authority localhost`.
const HEALTH: &[u8] = b"\x82\x04\x08/healthz\x86\x41\x09localhost";

/// The same, for `/v1/authorize?domain=shop`.
const AUTHORIZE: &[u8] = b"\x82\x04\x19/v1/authorize?domain=shop\x86\x41\x09localhost";

/// The same, with `POST`.
const POST: &[u8] = b"\x83\x04\x0d/v1/authorize\x86\x41\x09localhost";

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend_from_slice(&[kind, flags]);
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// A whole request, for `/healthz`.
fn request(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, HEALTH)
}

/// The streams of a client, in order.
fn streams(count: u32) -> impl Iterator<Item = u32> {
    (0..count).map(|index| 2 * index + 1)
}

/// A connection that has sent the preface and empty settings.
fn open(server: &Fixture) -> TcpStream {
    begin(connect(server.http()))
}

/// The same over a stream that is open.
fn begin<S: Write>(mut stream: S) -> S {
    stream.write_all(PREFACE).unwrap();
    stream.write_all(&frame(SETTINGS, NONE, 0, &[])).unwrap();
    stream
}

/// The next frame: its kind, its flags, its stream and its payload; `None` at the end of the connection.
fn next_frame(stream: &mut impl Read) -> Option<(u8, u8, u32, Vec<u8>)> {
    let mut head = [0; 9];
    if let Err(error) = stream.read_exact(&mut head) {
        let is_end = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset].contains(&error.kind());
        assert!(is_end, "{error}");
        return None;
    }
    let [a, b, c, kind, flags, id @ ..] = head;
    let length = u32::from_be_bytes([0, a, b, c]);
    let mut payload = vec![0; usize::try_from(length).unwrap()];
    stream.read_exact(&mut payload).ok()?;
    Some((kind, flags, u32::from_be_bytes(id), payload))
}

/// Reads to the end of the connection. Returns the reason of the last GOAWAY.
fn reason_of_end(stream: &mut (impl Read + Write)) -> Option<u32> {
    let mut reason = None;
    while let Some((kind, flags, _, payload)) = next_frame(stream) {
        match kind {
            GOAWAY => reason = Some(u32::from_be_bytes(payload[4..8].try_into().unwrap())),
            // As sound clients do.
            PING if flags & ACK == 0 => drop(stream.write_all(&frame(PING, ACK, 0, &payload))),
            _ => {}
        }
    }
    reason
}

/// Returns true if a request on this connection is answered by 200.
fn is_answered(stream: &mut (impl Read + Write), id: u32) -> bool {
    if stream.write_all(&request(id)).is_err() {
        return false;
    }
    loop {
        match next_frame(stream) {
            // `:status 200` is one byte.
            Some((HEADERS, _, of, fields)) if of == id => return fields.contains(&0x88),
            Some(_) => {}
            None => return false,
        }
    }
}

/// `POST` of JSON to this path, whose body is to come.
fn post(path: &str) -> Vec<u8> {
    let length = u8::try_from(path.len()).unwrap();
    let kind = b"\x86\x41\x09localhost\x0f\x10\x10application/json";
    let fields = [b"\x83\x04", &[length][..], path.as_bytes(), kind].concat();
    frame(HEADERS, END_HEADERS, 1, &fields)
}

/// A connection's begin and a `POST` of `body` on it.
pub(crate) fn question(path: &str, body: &str) -> Vec<u8> {
    let body = frame(DATA, END_STREAM, 1, body.as_bytes());
    [begin(Vec::new()), post(path), body].concat()
}

/// Cancels the request of [`question`].
pub(crate) fn cancel() -> Vec<u8> {
    const CANCEL: u32 = 8;
    frame(RST_STREAM, NONE, 1, &CANCEL.to_be_bytes())
}

/// The pieces of the body of the answer to this request, until `is_all` says so; those so far at the end of
/// the connection. PINGs are answered.
fn body_of(
    stream: &mut (impl Read + Write),
    id: u32,
    is_all: impl Fn(usize, u8) -> bool,
) -> Vec<Vec<u8>> {
    let mut pieces = Vec::new();
    while let Some((kind, flags, of, payload)) = next_frame(stream) {
        match kind {
            DATA if of == id => {
                pieces.push(payload);
                if is_all(pieces.len(), flags) {
                    break;
                }
            }
            PING if flags & ACK == 0 => {
                stream.write_all(&frame(PING, ACK, 0, &payload)).unwrap();
            }
            _ => {}
        }
    }
    pieces
}

/// The body of the answer to this request.
fn whole_body(stream: &mut (impl Read + Write), id: u32) -> String {
    let pieces = body_of(stream, id, |_, flags| flags & END_STREAM != 0);
    String::from_utf8(pieces.concat()).unwrap()
}

/// Asserts what holds after every attack: others are answered, all memory and all places came back.
#[track_caller]
fn assert_unharmed(server: &Fixture, attack: &str) {
    assert_eq!(server.acquire("/login", "other").status, 200, "{attack}");
    assert!(is_answered(&mut open(server), 1), "{attack}");
    eventually(attack, || {
        // The one that asks.
        server
            .metric("quell_connections{listener=\"http\"}")
            .as_deref()
            == Some("1")
            && server.server().buffer_bytes() == 0
    });
    let panics = server.metric("quell_panics_total{listener=\"http\"}");
    assert_eq!(panics.as_deref(), Some("0"), "{attack}");
}

/// Fields that stand for 4 KB each, in one byte each: an HPACK bomb of `count` of them.
fn bomb(count: usize) -> Vec<u8> {
    let mut fields = HEALTH.to_vec();
    // A field of the dynamic table (RFC 7541, 6.2.1), with a value of 4,000 bytes; and that field again.
    fields.extend_from_slice(b"\x40\x01x\x7f\xa1\x1e");
    fields.extend_from_slice(&[b'y'; 4_000]);
    fields.extend(std::iter::repeat_n(0xbe, count));
    fields
}

/// More of something than a sound client sends. Each has to end the connection.
fn excessive() -> Vec<(&'static str, Vec<u8>)> {
    let each = |count: u32, frames: &dyn Fn(u32) -> Vec<u8>| -> Vec<u8> {
        streams(count).flat_map(frames).collect()
    };
    let cancel = |id| frame(RST_STREAM, NONE, id, &8_u32.to_be_bytes());
    let overflow = |id| frame(WINDOW_UPDATE, NONE, id, &LARGEST);
    let begun = frame(HEADERS, END_HEADERS, 1, POST);
    let head = frame(HEADERS, NONE, 1, HEALTH);
    let more = |fields| frame(CONTINUATION, NONE, 1, fields).repeat(100);
    vec![
        (
            "requests that are cancelled at once (CVE-2023-44487)",
            each(100, &|id| [request(id), cancel(id)].concat()),
        ),
        (
            "requests that the server is made to cancel (CVE-2025-8671)",
            each(150, &|id| [request(id), overflow(id)].concat()),
        ),
        (
            "empty pieces of a body (CVE-2019-9518)",
            [begun, frame(DATA, NONE, 1, &[]).repeat(300)].concat(),
        ),
        (
            "a head that does not end, in empty frames (CVE-2024-27316)",
            [head.clone(), more(b"")].concat(),
        ),
        (
            "a head that does not end, a field a frame",
            [head, more(b"\x40\x01a\x01b")].concat(),
        ),
        (
            "fields that stand for 40 MB",
            frame(HEADERS, END_HEADERS | END_STREAM, 1, &bomb(10_000)),
        ),
    ]
}

/// A window of more bytes than any may have, together with those that it has.
const LARGEST: [u8; 4] = [0x7f, 0xff, 0xff, 0xff];

/// Frames that no sound client sends: kind, flags, stream and payload. Each has to end the connection.
const MALFORMED: [(&str, u8, u8, u32, &[u8]); 16] = [
    ("an index of no field", HEADERS, 5, 1, &[0xff, 0xff, 0x7f]),
    ("a window above its bound", WINDOW_UPDATE, NONE, 0, &LARGEST),
    (
        "a window that does not grow",
        WINDOW_UPDATE,
        NONE,
        0,
        &[0; 4],
    ),
    (
        "a first window above its bound",
        SETTINGS,
        NONE,
        0,
        &[0, 4, 0xff, 0xff, 0xff, 0xff],
    ),
    ("settings of half a value", SETTINGS, NONE, 0, &[0, 1, 0]),
    ("settings of a stream", SETTINGS, NONE, 1, &[]),
    ("a body of no stream", DATA, NONE, 0, b"x"),
    ("a body before its head", DATA, NONE, 1, b"x"),
    ("a stream of the server", HEADERS, 5, 2, HEALTH),
    (
        "a promise of the client",
        PUSH_PROMISE,
        END_HEADERS,
        1,
        &[0, 0, 0, 2],
    ),
    ("more of no head", CONTINUATION, END_HEADERS, 1, HEALTH),
    (
        "a cancelled request that never was",
        RST_STREAM,
        NONE,
        9,
        &[0; 4],
    ),
    ("half a reason", RST_STREAM, NONE, 1, &[0; 2]),
    ("a short ping", PING, NONE, 0, &[0; 7]),
    ("a ping of a stream", PING, NONE, 1, &[0; 8]),
    (
        "a head that depends on itself, cut",
        HEADERS,
        0x2d,
        1,
        &[0, 0, 0, 1],
    ),
];

/// All attacks that have to end the connection, with the reasons that may be given.
fn attacks() -> Vec<(&'static str, Vec<u8>, &'static [u32])> {
    let malformed = MALFORMED
        .into_iter()
        .map(|(attack, kind, flags, stream, payload)| {
            (attack, frame(kind, flags, stream, payload), FAULTS)
        });
    let excessive = excessive().into_iter();
    let excessive = excessive.map(|(attack, bytes)| (attack, bytes, CALM));
    let head = frame(HEADERS, NONE, 1, HEALTH);
    let long = vec![0xff, 0xff, 0xff, DATA, 0, 0, 0, 0, 1];
    malformed
        .chain(excessive)
        .chain([
            ("a frame of 16 MB", long, FAULTS),
            (
                "another frame within a head",
                [head, frame(PING, NONE, 0, &[0; 8])].concat(),
                FAULTS,
            ),
        ])
        .collect()
}

#[test]
fn attacks_over_http2_end_their_connection_and_harm_nobody_else() {
    let server = Fixture::new(SHOP, "");
    for (attack, bytes, reasons) in attacks() {
        let mut stream = open(&server);
        stream.write_all(&bytes).unwrap();
        let reason = reason_of_end(&mut stream);
        let is_expected = reason.is_some_and(|reason| reasons.contains(&reason));
        assert!(is_expected, "{attack}: GOAWAY {reason:?}");
        drop(stream);
        assert_unharmed(&server, attack);
    }
}

/// The frames are those within the records of TLS.
#[test]
fn attacks_over_http2_and_tls_end_their_connection_and_harm_nobody_else() {
    let authority = Authority::new("authority");
    let server = authority.serve("");
    for (attack, bytes, reasons) in attacks() {
        let mut stream = begin(authority.connect_as(server.http(), None, &["h2"]));
        assert_eq!(stream.conn.alpn_protocol(), Some(&b"h2"[..]));
        stream.write_all(&bytes).unwrap();
        let reason = reason_of_end(&mut stream);
        let is_expected = reason.is_some_and(|reason| reasons.contains(&reason));
        assert!(is_expected, "{attack}: GOAWAY {reason:?}");
        drop(stream);
        hostile_tls::assert_unharmed(&authority, &server, attack);
    }
}

/// The same, again and again: as many connections as an attacker may have at a time.
#[test]
fn attacks_over_http2_by_many_connections_at_once() {
    let server = Fixture::new(SHOP, "");
    let attacks = attacks();
    let mut open: Vec<_> = (0..20)
        .flat_map(|_| attacks.iter())
        .map(|(.., bytes, _)| {
            let mut stream = open(&server);
            let _ = stream.write_all(bytes);
            stream
        })
        .collect();
    assert_eq!(server.acquire("/login", "other").status, 200);
    let ends = open.iter_mut().filter_map(reason_of_end).count();
    assert!(
        ends * 10 > open.len() * 9,
        "{ends} of {} were told",
        open.len()
    );
    drop(open);
    assert_unharmed(&server, "many connections");
}

/// Frames that ask for nothing, or for nothing but an answer to themselves.
fn small_frames() -> [(&'static str, Vec<u8>); 7] {
    let depends = [0, 0, 0, 0, 16];
    [
        ("settings", frame(SETTINGS, NONE, 0, &[0, 3, 0, 0, 0, 100])),
        ("pings", frame(PING, NONE, 0, &[7; 8])),
        ("answers to no ping", frame(PING, ACK, 0, &[7; 8])),
        ("priorities", frame(PRIORITY, NONE, 1, &depends)),
        ("unknown frames", frame(0xfa, NONE, 0, &[7; 8])),
        ("empty unknown frames", frame(0xfa, NONE, 0, &[])),
        (
            "windows of one byte",
            frame(WINDOW_UPDATE, NONE, 0, &[0, 0, 0, 1]),
        ),
    ]
}

/// None of them takes memory, but they would come without an end.
#[test]
fn floods_of_small_frames_end_their_connection() {
    let server = Fixture::new(SHOP, "");
    for (flood, frame) in small_frames() {
        let mut stream = open(&server);
        assert!(is_answered(&mut stream, 1), "{flood}");
        let mut writer = stream.try_clone().unwrap();
        let bytes = frame.repeat(20_000);
        // Without reading the answers before, and while they are read.
        let sender = std::thread::spawn(move || writer.write_all(&bytes));
        assert_eq!(reason_of_end(&mut stream), Some(CALM[0]), "{flood}");
        sender.join().unwrap().unwrap();
        assert!(server.server().buffer_bytes() <= 200_000, "{flood}");
        drop(stream);
        assert_unharmed(&server, flood);
    }
    server.until_metric("quell_protocol_errors_total{listener=\"http\"}", "7");
}

/// A flood that goes on after the GOAWAY.
#[test]
fn a_flood_without_an_end_is_closed() {
    let server = Fixture::new(SHOP, "");
    for (flood, frame) in small_frames() {
        let mut stream = open(&server);
        let mut sent = 0_usize;
        let bytes = frame.repeat(10_000);
        // What the system holds on the way is a few megabytes.
        while stream.write_all(&bytes).is_ok() {
            sent += bytes.len();
            assert!(
                sent < 1_000_000_000,
                "{flood}: nothing holds the client back"
            );
            assert!(server.server().buffer_bytes() <= 2_000_000, "{flood}");
        }
        drop(stream);
        assert_unharmed(&server, flood);
    }
}

/// More of them than any flood above may have, since requests come with them.
#[test]
fn a_few_frames_beside_each_request_are_sound() {
    let server = Fixture::new(SHOP, "");
    let mut stream = open(&server);
    let beside = small_frames().map(|(_, frame)| frame).concat();
    for id in streams(1_000) {
        stream.write_all(&beside.repeat(4)).unwrap();
        assert!(is_answered(&mut stream, id), "request {id}");
    }
}

/// A client that asks for answers and reads none is not read from either, and is closed.
#[test]
fn a_flood_whose_answers_are_not_read_stands_still_and_ends() {
    let server = Fixture::new(SHOP, "header_timeout = '4s'\nidle_timeout = '4s'");
    let mut stream = open(&server);
    assert!(is_answered(&mut stream, 1));
    let mut sent = 0_usize;
    // Each is answered by 204, which no window holds back.
    let ask = |id| frame(HEADERS, END_HEADERS | END_STREAM, id, AUTHORIZE);
    let mut ids = (3..).step_by(2);
    // Until the server closes it.
    loop {
        let bytes: Vec<u8> = ids.by_ref().take(1_000).flat_map(ask).collect();
        if stream.write_all(&bytes).is_err() {
            break;
        }
        sent += bytes.len();
        assert!(sent < 1_000_000_000, "nothing holds the client back");
        assert!(server.server().buffer_bytes() <= 2_000_000);
    }
    drop(stream);
    assert_unharmed(&server, "unread answers");
}

/// Heads and prefaces that never end, on connections that have asked nothing yet.
#[test]
fn slow_clients_of_http2_lose_their_place() {
    let server = Fixture::new(SHOP, "header_timeout = '4s'");
    let begun = frame(HEADERS, NONE, 1, HEALTH);
    for (what, bytes) in [
        ("half a preface", PREFACE[..10].to_vec()),
        ("a preface alone", PREFACE.to_vec()),
        (
            "half a head",
            [PREFACE, &frame(SETTINGS, NONE, 0, &[]), &begun].concat(),
        ),
    ] {
        let mut stream = connect(server.http());
        stream.set_nodelay(true).unwrap();
        for byte in bytes {
            stream.write_all(&[byte]).unwrap();
        }
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        drop(stream);
        assert_unharmed(&server, what);
    }
    server.until_metric("quell_timeouts_total{listener=\"http\"}", "3");
}

#[test]
fn slow_bodies_and_later_heads_over_http2_end_on_each_listener() {
    let server = Fixture::new(SHOP, &format!("{IMPATIENT}admin = '127.0.0.1:0'"));
    for (name, address, path) in [
        ("http", server.http(), "/v1/acquire"),
        ("admin", server.admin(), "/v1/bans"),
    ] {
        let mut stream = begin(connect(address));
        let half = [post(path), frame(DATA, NONE, 1, b"{")].concat();
        stream.write_all(&half).unwrap();
        let told = whole_body(&mut stream, 1);
        assert!(told.contains("\"status\":408"), "{name}: {told}");
        drop(stream);

        let mut stream = begin(connect(address));
        assert!(is_answered(&mut stream, 1), "{name}");
        // A field of 4,000 bytes, of which one comes now and then.
        let mut writer = stream.try_clone().unwrap();
        let head = frame(HEADERS, END_HEADERS, 3, &[0; 4_000]);
        let sender = std::thread::spawn(move || {
            let mut bytes = head.iter();
            slowly_until_closed("a slow head", || {
                writer.write_all(&[*bytes.next().unwrap()])
            });
        });
        while next_frame(&mut stream).is_some() {}
        drop(stream);
        sender.join().unwrap();
        server.until_metric(&format!("quell_timeouts_total{{listener=\"{name}\"}}"), "1");
    }
    eventually("all memory came back", || {
        server.server().buffer_bytes() == 0
    });
}

/// A client at this address of this machine.
fn connect_from(address: Ipv4Addr, to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((address, 0)).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
}

/// Clients that have asked once, and from then on answer PINGs alone.
#[test]
fn idle_connections_of_one_address_leave_buffers_to_others_and_end() {
    let authority = Authority::new("authority");
    let server =
        authority.serve("max_buffer_bytes = 2000000\nidle_timeout = '20s'\nadmin = '127.0.0.1:0'");
    let begun = [PREFACE, &frame(SETTINGS, NONE, 0, &[])].concat();
    let open = |stream| -> Option<TlsStream> {
        let mut stream = authority.connect_over(stream, None, &["h2"]);
        let is_open = stream.write_all(&begun).is_ok() && is_answered(&mut stream, 1);
        is_open.then_some(stream)
    };
    // Each draws 88 KiB, and together they may have half.
    let of_one = (0..40).map_while(|_| open(connect(server.http())));
    let mut of_one: Vec<TlsStream> = of_one.collect();
    assert!((8..=11).contains(&of_one.len()), "{}", of_one.len());
    let used = server.server().buffer_bytes();
    assert!((700_000..=1_000_000).contains(&used), "{used}");

    let other = open(connect_from(Ipv4Addr::new(127, 0, 0, 2), server.http()));
    assert!(other.is_some(), "another address is answered");
    // Where administration is everybody is, the greedy one too.
    let health = ("GET", "/healthz", "");
    let answer = authority.request(server.admin(), None, health, "");
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(open(connect(server.admin())).is_some());

    for stream in &mut of_one {
        assert_eq!(reason_of_end(stream), Some(0), "a graceful end");
    }
    drop((of_one, other));
    assert!(open(connect(server.http())).is_some());
    hostile_tls::assert_unharmed(&authority, &server, "idle connections");
}

/// Buffers that are full by many addresses are not full where administration is.
#[test]
fn full_buffers_shut_nobody_out_of_administration() {
    let settings =
        "max_buffer_bytes = 1000000\nmax_connections_per_address = 0\nadmin = '127.0.0.1:0'";
    let server = Fixture::new(SHOP, settings);
    let connections = (0..40).map(|_| begin(connect(server.http())));
    let mut full: Vec<TcpStream> = connections.collect();
    let served = full.iter_mut().map(|stream| is_answered(stream, 1));
    let served = served.filter(|is_answered| *is_answered).count();
    assert!((10..=15).contains(&served), "{served}");
    assert!(is_answered(&mut begin(connect(server.admin())), 1));
    let metrics = server.metric("quell_buffer_bytes");
    let bytes: usize = metrics.unwrap().parse().unwrap();
    assert!((600_000..=1_100_000).contains(&bytes), "{bytes}");
}

/// It reads no answer, but answers each PING.
#[test]
fn a_client_of_http2_that_reads_no_answer_is_closed() {
    let server = Fixture::new(SHOP, IMPATIENT);
    let mut stream = connect(server.http());
    let no_window = frame(SETTINGS, NONE, 0, &[0, 4, 0, 0, 0, 0]);
    stream.write_all(&[PREFACE, &no_window].concat()).unwrap();
    stream.write_all(&request(1)).unwrap();
    assert_eq!(reason_of_end(&mut stream), Some(0));
    drop(stream);
    assert_unharmed(&server, "an unread answer");
    server.until_metric("quell_timeouts_total{listener=\"http\"}", "1");
}

/// The first GOAWAY names no request, so that none on its way is lost.
#[test]
fn a_request_that_crosses_the_goaway_of_an_idle_connection_is_answered() {
    let server = Fixture::new(SHOP, "idle_timeout = '4s'");
    let mut stream = open(&server);
    assert!(is_answered(&mut stream, 1));
    loop {
        match next_frame(&mut stream).unwrap() {
            (GOAWAY, ..) => break,
            (PING, NONE, _, payload) => {
                stream.write_all(&frame(PING, ACK, 0, &payload)).unwrap();
            }
            _ => {}
        }
    }
    assert!(is_answered(&mut stream, 3));
}

/// A request now and then, one that waits for its turn, and a stream of events.
#[test]
fn a_connection_of_http2_that_is_in_use_stays() {
    let rules =
        "domain: shop\nrules:\n  - { name: one, algorithm: concurrency, max: 1, lease: 5s }\n";
    let server = Fixture::new(rules, "idle_timeout = '4s'");
    let (mut stream, mut idle) = (open(&server), open(&server));
    assert!(is_answered(&mut idle, 1));
    let closed = std::thread::spawn(move || while next_frame(&mut idle).is_some() {});
    let mut ids = streams(100_000);
    // Longer than another connection that rests.
    until_every(SLOWLY * 10, "the other is closed", || {
        let id = ids.next().unwrap();
        assert!(is_answered(&mut stream, id), "request {id}");
        closed.is_finished().then_some(())
    });
    let id = ids.next().unwrap();
    assert!(is_answered(&mut stream, id), "request {id}");
    let ask = r#"{"domain":"shop","entries":{},"max_wait_ms":60000}"#;
    assert_eq!(server.request("POST", "/v1/acquire", ask).status, 200);
    let mut stream = open(&server);
    let body = frame(DATA, END_STREAM, 1, ask.as_bytes());
    stream
        .write_all(&[post("/v1/acquire"), body].concat())
        .unwrap();
    let verdict = whole_body(&mut stream, 1);
    assert!(verdict.contains("\"allowed\":true"), "{verdict}");
    assert!(is_answered(&mut stream, 3));

    let mut stream = open(&server);
    let live = b"\x82\x04\x0d/console/live\x86\x41\x09localhost";
    let asked = frame(HEADERS, END_HEADERS | END_STREAM, 1, live);
    stream.write_all(&asked).unwrap();
    // One a second.
    let events = body_of(&mut stream, 1, |count, _| count == 6);
    assert_eq!(events.len(), 6);
}

/// A caller with wrong tokens is told to go elsewhere; the answers on the way arrive.
#[test]
fn too_many_failed_logins_end_a_connection_of_http2() {
    let mut server = Fixture::prepare(
        SHOP,
        "credentials = 'DIR/credentials.toml'\nfailed_logins_per_minute = 3\nheader_timeout = '4s'",
    );
    std::fs::write(server.path("credentials.toml"), "").unwrap();
    server.start().unwrap();
    let mut stream = open(&server);
    // `:path /v1/rules` and `x-quell-token: x`.
    let fields = b"\x82\x04\x09/v1/rules\x86\x41\x09localhost\x40\x0dx-quell-token\x01x";
    for id in streams(6) {
        let _ = stream.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, id, fields));
    }
    assert_eq!(reason_of_end(&mut stream), Some(0), "a graceful end");
    // One that ignores it, and goes on.
    let mut stream = open(&server);
    let mut writer = stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        let mut ids = streams(100_000);
        slowly_until_closed("logins", || {
            let id = ids.next().unwrap();
            writer.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, id, fields))
        });
    });
    while next_frame(&mut stream).is_some() {}
    sender.join().unwrap();
}
