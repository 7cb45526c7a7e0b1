//! Callers who mean harm, over TLS: before, during and after the handshake.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use quell_testkit::wait::{pace, until_every};
use tokio_rustls::rustls::crypto::cipher::{OutboundChunks, OutboundPlainMessage};
use tokio_rustls::rustls::{ConnectionTrafficSecrets, ContentType, ProtocolVersion};

use crate::certificates::{Authority, TlsStream};
use crate::harness::{Answer, Fixture, SLOWLY, connect, eventually, slowly_until_closed};
use crate::slow::{HASTY_READERS, IMPATIENT};

fn number(authority: &Authority, server: &Fixture, series: &str) -> u64 {
    authority.metric(server, series).unwrap().parse().unwrap()
}

fn of_resp(authority: &Authority, server: &Fixture, name: &str) -> u64 {
    number(authority, server, &format!("{name}{{listener=\"resp\"}}"))
}

/// Returns true if `PING` is answered.
fn is_served(stream: &mut TlsStream) -> bool {
    let mut reply = [0; 7];
    stream.write_all(b"PING\r\n").is_ok()
        && stream.read_exact(&mut reply).is_ok()
        && &reply == b"+PONG\r\n"
}

/// Others are answered, no connection has panicked, and all places and buffers came back.
#[track_caller]
pub(crate) fn assert_unharmed(authority: &Authority, server: &Fixture, attack: &str) {
    assert!(is_served(&mut authority.connect(server.resp())), "{attack}");
    eventually(attack, || {
        let open = |listener| {
            let series = format!("quell_connections{{listener=\"{listener}\"}}");
            number(authority, server, &series)
        };
        // The one that asks.
        open("http") + open("admin") == 1 && open("resp") == 0
    });
    eventually(attack, || server.server().buffer_bytes() == 0);
    for listener in ["http", "admin", "resp"] {
        let panics = format!("quell_panics_total{{listener=\"{listener}\"}}");
        assert_eq!(number(authority, server, &panics), 0, "{attack}");
    }
}

/// First bytes of a client: its part of a handshake, which goes to a listener of its own.
fn hello(authority: &Authority) -> Vec<u8> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = authority.connect(listener.local_addr().unwrap());
    let (mut other, _) = listener.accept().unwrap();
    let session = &mut stream.conn;
    while session.wants_write() {
        session.write_tls(&mut stream.sock).unwrap();
    }
    drop(stream);
    let mut hello = Vec::new();
    other.read_to_end(&mut hello).unwrap();
    hello
}

/// Reads to the end, however it comes; fails if it does not.
#[track_caller]
fn read_to_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Err(error) = stream.read_to_end(&mut bytes) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "it was let go on");
    }
    bytes
}

#[test]
fn a_hello_a_byte_at_a_time_is_too_slow() {
    let authority = Authority::new("authority");
    let server = authority.serve(IMPATIENT);
    let hello = hello(&authority);
    for address in [server.http(), server.resp()] {
        let mut stream = connect(address);
        stream.set_nodelay(true).unwrap();
        // A hello of some hundred bytes takes far longer than it may so.
        let mut bytes = hello.iter();
        until_every(5 * SLOWLY, "a slow hello", || {
            let byte = bytes.next().expect("all of it was read");
            stream.write_all(&[*byte]).err()
        });
        read_to_end(&mut stream);
    }
    eventually("it is counted", || {
        of_resp(&authority, &server, "quell_timeouts_total") == 1
    });
    assert_unharmed(&authority, &server, "a slow hello");
}

/// The server has done its part of each of these handshakes.
#[test]
fn handshakes_that_nobody_finishes_give_their_places_back() {
    let authority = Authority::new("authority");
    let settings =
        "header_timeout = '4s'\nmax_connections_per_address = 400\nadmin = '127.0.0.1:0'";
    let server = authority.serve(settings);
    let hello = hello(&authority);
    for (name, address) in listeners(&server) {
        let begin = || {
            let mut stream = connect(address);
            stream.write_all(&hello).unwrap();
            stream
        };
        let mut silent: Vec<TcpStream> = (0..100).map(|_| begin()).collect();
        for _ in 0..200 {
            let stream = begin();
            let linger = socket2::SockRef::from(&stream);
            linger.set_linger(Some(Duration::ZERO)).unwrap();
        }
        assert!(is_served_at(&authority, (name, address)), "{name}");
        for stream in &mut silent {
            assert!(!read_to_end(stream).is_empty(), "the server's part");
        }
        let timeouts = format!("quell_timeouts_total{{listener=\"{name}\"}}");
        // The last one is counted a moment after its stream has ended.
        eventually("all are counted", || {
            number(&authority, &server, &timeouts) >= 100
        });
        assert_eq!(number(&authority, &server, &timeouts), 100, "{name}");
        assert_unharmed(&authority, &server, "half-open handshakes");
    }
}

/// The listeners of a server that has one for administration.
fn listeners(server: &Fixture) -> [(&'static str, SocketAddr); 3] {
    [
        ("http", server.http()),
        ("admin", server.admin()),
        ("resp", server.resp()),
    ]
}

/// Returns true if a new connection to this listener is answered.
fn is_served_at(authority: &Authority, (name, address): (&str, SocketAddr)) -> bool {
    match name {
        "resp" => is_served(&mut authority.connect(address)),
        _ => {
            let health = authority.request(address, None, ("GET", "/healthz", ""), "");
            health.status == 200
        }
    }
}

/// Whoever has done a handshake may not be slow either.
#[test]
fn a_byte_at_a_time_is_too_slow_over_tls_on_each_listener() {
    let authority = Authority::new("authority");
    let server = authority.serve(&format!("{IMPATIENT}admin = '127.0.0.1:0'"));
    for (name, address) in listeners(&server) {
        let begun = match name {
            "resp" => "*2\r\n$4\r\nECHO\r\n$60000\r\n",
            _ => "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ",
        };
        let mut stream = authority.connect(address);
        stream.write_all(begun.as_bytes()).unwrap();
        slowly_until_closed(name, || {
            stream.write_all(b"y").and_then(|()| stream.flush())
        });
        let timeouts = format!("quell_timeouts_total{{listener=\"{name}\"}}");
        eventually(&timeouts, || number(&authority, &server, &timeouts) == 1);
    }
    assert_unharmed(&authority, &server, "slow clients");
}

#[test]
fn a_body_that_does_not_come_over_tls_is_told_so_on_each_listener() {
    let authority = Authority::new("authority");
    let server = authority.serve(&format!("{IMPATIENT}admin = '127.0.0.1:0'"));
    for (address, path) in [(server.http(), "/v1/acquire"), (server.admin(), "/v1/bans")] {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: 5000\r\n\r\n{{"
        );
        let mut stream = authority.connect(address);
        stream.write_all(head.as_bytes()).unwrap();
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).unwrap();
        Answer::read(&reply).assert_problem(408, "did not arrive in time");
    }
    assert_unharmed(&authority, &server, "slow bodies");
}

/// Records that no sound client sends once the handshake is over.
fn garbage(hello: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    vec![
        (
            "bytes without TLS",
            b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        ),
        ("another handshake", hello.to_vec()),
        (
            "a record that is too long",
            [&[23, 3, 3, 0xff, 0xff][..], &[0; 70_000]].concat(),
        ),
        (
            "a record that nobody encrypted",
            [&[23, 3, 3, 0, 32][..], &[7; 32]].concat(),
        ),
        (
            "alerts that nobody encrypted",
            [21, 3, 3, 0, 2, 1, 0].repeat(1_000),
        ),
        ("empty records", [23, 3, 3, 0, 0].repeat(1_000)),
        ("changes of the cipher", [20, 3, 3, 0, 1, 1].repeat(1_000)),
        ("a record of no kind", [99, 3, 3, 0, 1, 0].to_vec()),
    ]
}

#[test]
fn garbage_after_the_handshake_ends_the_connection() {
    let authority = Authority::new("authority");
    let server = authority.serve("");
    for (attack, bytes) in garbage(&hello(&authority)) {
        let mut stream = authority.connect(server.resp());
        assert!(is_served(&mut stream), "{attack}");
        // The server may have closed it before it has all.
        let _ = stream.sock.write_all(&bytes);
        read_to_end(&mut stream.sock);
        drop(stream);
        assert_unharmed(&authority, &server, attack);
    }
}

#[test]
fn a_long_hello_ends_the_connection_before_it_is_whole() {
    let authority = Authority::new("authority");
    let server = authority.serve("header_timeout = '1h'");
    // 48 KiB of a hello that says it has 65,520 bytes, in records of 16 KiB.
    let mut record = vec![0; 5 + 16_384];
    record[..5].copy_from_slice(&[22, 3, 1, 0x40, 0]);
    let mut hello = record.repeat(3);
    hello[5..9].copy_from_slice(&[1, 0, 0xff, 0xf0]);
    let mut stream = connect(server.resp());
    // It may be closed before all of it is sent.
    drop(stream.write_all(&hello));
    if let Err(error) = stream.read_to_end(&mut Vec::new()) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    }
    assert_unharmed(&authority, &server, "long hellos");
}

/// rustls would keep 64 KiB of it.
#[test]
fn a_long_message_after_the_handshake_ends_the_connection() {
    let authority = Authority::new("authority");
    let server = authority.serve("");
    let mut stream = authority.connect(server.resp());
    assert!(is_served(&mut stream));
    let (conn, mut sock) = stream.into_parts();
    let suite = conn.negotiated_cipher_suite().unwrap().tls13().unwrap();
    let (first, secrets) = conn.dangerous_extract_secrets().unwrap().tx;
    let (ConnectionTrafficSecrets::Aes128Gcm { key, iv }
    | ConnectionTrafficSecrets::Aes256Gcm { key, iv }
    | ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv }) = secrets
    else {
        panic!("other secrets")
    };
    let mut encrypter = suite.aead_alg.encrypter(key, iv);
    // It says that it has 65,520 bytes, of which each record has 1 KiB.
    let mut part = [0; 1_024];
    part[..4].copy_from_slice(&[24, 0, 0xff, 0xf0]);
    // Half of the message, after which it would wait for more.
    let is_sent = (first..first + 32).all(|number| {
        let message = OutboundPlainMessage {
            typ: ContentType::Handshake,
            version: ProtocolVersion::TLSv1_2,
            payload: OutboundChunks::Single(&part),
        };
        let record = encrypter.encrypt(message, number).unwrap().encode();
        sock.write_all(&record).is_ok()
    });
    if is_sent {
        read_to_end(&mut sock);
    }
    drop(sock);
    assert_unharmed(&authority, &server, "a long message");
}

/// Each record is data, whether it is large or small.
#[test]
fn megabytes_at_once_and_a_byte_at_a_time_are_read_over_tls() {
    let authority = Authority::new("authority");
    let server = authority.serve("");
    let mut stream = authority.connect(server.resp());
    let echo = format!("*2\r\n$4\r\nECHO\r\n$60000\r\n{}\r\n", "x".repeat(60_000));
    let mut reply = vec![0; 8 * 60_010];
    for _ in 0..20 {
        stream.write_all(echo.repeat(8).as_bytes()).unwrap();
        stream.read_exact(&mut reply).unwrap();
    }
    for byte in b"PING\r\n".repeat(1_000) {
        stream.write_all(&[byte]).unwrap();
        stream.flush().unwrap();
    }
    let mut replies = [0; 7 * 1_000];
    stream.read_exact(&mut replies).unwrap();
    assert_eq!(replies[..], b"+PONG\r\n".repeat(1_000));
    // A body is read into a buffer of its own.
    let body = format!(
        r#"{{"domain":"shop","entries":{{}}{}}}"#,
        " ".repeat(250_000)
    );
    for _ in 0..10 {
        let request = ("POST", "/v1/peek", &*body);
        let answer = authority.request(server.http(), None, request, "");
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    drop(stream);
    assert_unharmed(&authority, &server, "megabytes");
}

/// New keys may come in any number if there is data between; without any they end the connection.
#[test]
fn new_keys_without_end_and_without_data_end_the_connection() {
    let authority = Authority::new("authority");
    let server = authority.serve(IMPATIENT);
    let mut stream = authority.connect(server.resp());
    assert!(is_served(&mut stream));
    for _ in 0..100 {
        stream.conn.refresh_traffic_keys().unwrap();
        assert!(is_served(&mut stream), "a few are sound");
    }
    let is_let_go_on = (0..100_000).all(|_| {
        assert!(server.server().buffer_bytes() <= 1_000_000);
        stream.conn.refresh_traffic_keys().is_ok() && stream.flush().is_ok()
    });
    assert!(!is_let_go_on);
    drop(stream);
    assert_unharmed(&authority, &server, "new keys");
}

/// Writes `bytes` again and again without reading, until the server closes the connection.
fn flood(authority: &Authority, address: SocketAddr, bytes: &[u8]) {
    let mut stream = authority.connect(address);
    let mut sent = 0_usize;
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock).unwrap();
    }
    // Only writes: the usual way would read as well.
    loop {
        stream.conn.writer().write_all(bytes).unwrap();
        while stream.conn.wants_write() {
            match stream.conn.write_tls(&mut stream.sock) {
                Ok(count) => sent += count,
                Err(error) => {
                    let is_end = [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset];
                    assert!(is_end.contains(&error.kind()), "it was let go on: {error}");
                    return;
                }
            }
        }
        assert!(sent < 1_000_000_000, "nothing holds the client back");
    }
}

#[test]
fn a_client_of_tls_that_never_reads_is_held_back_and_closed() {
    let authority = Authority::new("authority");
    let server = authority.serve(HASTY_READERS);
    let openapi = "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for (what, address, bytes) in [
        ("descriptions", server.http(), openapi.repeat(100)),
        ("tables", server.resp(), "COMMAND\r\n".repeat(100)),
    ] {
        std::thread::scope(|scope| {
            let floods: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| flood(&authority, address, bytes.as_bytes())))
                .collect();
            while floods.iter().any(|flood| !flood.is_finished()) {
                assert!(server.server().buffer_bytes() <= 8_000_000, "{what}");
                assert!(is_served(&mut authority.connect(server.resp())), "{what}");
                pace();
            }
        });
        assert_unharmed(&authority, &server, what);
    }
}

/// Encrypted bytes are sent to the end also when there is nothing more to encrypt: the server has to flush,
/// again and again, to a client that takes little at a time.
#[test]
fn a_slow_reader_over_tls_gets_its_whole_answer() {
    let authority = Authority::new("authority");
    let server = authority.serve("");
    let mut quick = authority.connect(server.resp());
    quick.write_all(b"COMMAND\r\nQUIT\r\n").unwrap();
    let mut expected = Vec::new();
    quick.read_to_end(&mut expected).unwrap();
    let table = expected.strip_suffix(b"+OK\r\n").unwrap();
    let count = 8_000_000 / table.len();

    let mut stream = authority.connect(server.resp());
    // The system takes little on the way.
    let socket = socket2::SockRef::from(&stream.sock);
    socket.set_recv_buffer_size(262_144).unwrap();
    let asked = format!("{}QUIT\r\n", "COMMAND\r\n".repeat(count));
    stream.write_all(asked.as_bytes()).unwrap();
    // A byte now and then, and then pieces of any length.
    let mut answer = vec![0; count * table.len() + 5];
    let mut rest = &mut answer[..];
    let mut was_unsent = false;
    let mut lengths = std::iter::repeat_n(1, 300).chain((1_000..16_000).step_by(997).cycle());
    while !rest.is_empty() {
        let length = lengths.next().unwrap().min(rest.len());
        if length > 1 && !was_unsent {
            // Beside what each connection draws.
            was_unsent = server.server().buffer_bytes() > 24 * 1_024;
            assert!(was_unsent, "the server has more than it could send");
        }
        let piece;
        (piece, rest) = rest.split_at_mut(length);
        stream.read_exact(piece).unwrap();
        pace();
    }
    let mut end = Vec::new();
    stream.read_to_end(&mut end).unwrap();
    assert_eq!(end, b"");
    assert!(
        answer
            .chunks(table.len())
            .take(count)
            .all(|part| part == table)
    );
    assert!(answer.ends_with(b"+OK\r\n"));
    drop((quick, stream));
    assert_unharmed(&authority, &server, "a slow reader");
}

/// There is no room for a handshake to say more.
#[test]
fn an_address_with_too_many_connections_gets_an_alert() {
    let authority = Authority::new("authority");
    let server = authority.serve("max_connections_per_address = 2");
    let mut open = [(); 2].map(|()| authority.connect(server.resp()));
    assert!(open.iter_mut().all(is_served));
    let alert = read_to_end(&mut connect(server.resp()));
    assert_eq!(alert, [21, 3, 3, 0, 2, 2, 80]);
    drop(open);
    eventually("there is a place", || {
        is_served(&mut authority.connect(server.resp()))
    });
    let labels = "{listener=\"resp\",reason=\"max_connections_per_address\"}";
    let series = format!("quell_connections_refused_total{labels}");
    assert!(number(&authority, &server, &series) >= 1);
}
