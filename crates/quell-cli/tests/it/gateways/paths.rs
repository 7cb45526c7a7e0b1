//! Paths: every spelling of one that reaches the application counts as Quell reads it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use quell_protocol::http::{AuthorizeMap, authorize};

use super::{Application, Gateway, LUA, blocks, nginx_site, replace, serve, with_ports};
use crate::files::Folder;

/// Every spelling of `/login` that the application accepts counts against its limit or is refused,
/// and the visitor is told so.
#[test]
fn spellings_do_not_get_around_a_rule() {
    let (folder, application) = (Folder::new(), Application::start());
    let server = serve(&folder, "original");
    let site = with_ports(&nginx_site(), &server, &application);
    let decoding = format!("http://127.0.0.1:{}", application.port);
    let decoding = replace(&site, &decoding, &format!("{decoding}/"));
    let lua = with_ports(&blocks("OpenResty")[0], &server, &application);
    let caddy_server = serve(&folder, "forwarded");
    let caddy_site = with_ports(&blocks("Caddy")[0], &caddy_server, &application);
    let gateways = [
        Gateway::nginx(&site, &[]),
        Gateway::nginx(&decoding, &[]),
        Gateway::nginx(&lua, &LUA),
        Gateway::caddy(&caddy_site),
    ];
    let post =
        |gateway: &Gateway, path: &str| gateway.ask(&["--path-as-is", "--data", "name=ann", path]);
    assert_eq!(post(&gateways[0], "/login").status, 200);
    assert_eq!(post(&gateways[3], "/login").status, 200);
    let before = application.requests();
    for gateway in &gateways {
        for path in [
            "/login/",
            "/login;a=1",
            "/login%3Ba=1",
            "//login",
            "/%6cogin",
            "/a/../login",
            "/a/%2e%2e//login/.",
        ] {
            let no = post(gateway, path);
            assert_eq!(no.status, 429, "{path}: {no:?}");
        }
        for path in ["/%2flogin", "/a/..%2flogin", "/%5clogin", "/a/..;/login"] {
            let no = post(gateway, path);
            assert_eq!(no.status, 400, "{path}: {no:?}");
            assert_eq!(no.field("content-type"), "application/problem+json");
            assert_eq!(no.json()["status"], 400, "{no:?}");
        }
        for path in ["/login%00", "/%zz"] {
            assert_eq!(post(gateway, path).status, 400, "{path}");
        }
    }
    // Caddy passes on any word as a method, and some applications take it for `POST`. A `#` ends the
    // path for some; Caddy encodes it, so that nothing is ambiguous.
    for (more, expected) in [
        (["--request", "post"], [400, 400, 400, 429]),
        (
            ["--request-target", "/free#/../login"],
            [400, 400, 400, 429],
        ),
    ] {
        let ask = |gateway: &Gateway| {
            gateway.ask(&[&["--data", "name=ann"], &more[..], &["/login"]].concat())
        };
        assert_eq!(
            gateways.each_ref().map(|gateway| ask(gateway).status),
            expected,
            "{more:?}"
        );
    }
    assert_eq!(application.requests(), before, "none of them got there");
    for gateway in &gateways {
        for path in ["/login%20", "/LOGIN", "/%256cogin"] {
            assert_eq!(post(gateway, path).status, 200, "{path} is another page");
        }
    }
}

/// Ten thousand paths through nginx, which decodes, merges and resolves them for the application: if
/// we accept the path that the visitor sent, our reading equals the path that the application got.
#[test]
fn our_reading_of_a_path_is_what_nginx_hands_on() {
    let echo = Echo::start();
    let site = format!(
        "server {{\nlisten 80;\nkeepalive_requests 100000;\nlocation / {{\n\
         proxy_pass http://127.0.0.1:{}/;\nproxy_set_header X-Original-URI $request_uri;\n}}\n}}",
        echo.port
    );
    let gateway = Gateway::nginx(&site, &[]);
    let mut visitor = Visitor::connect(gateway.port);
    let (mut read, mut refused_by_nginx) = (0, 0);
    for number in 0..10_000 {
        let path = generated_path(number);
        let Some((got, sent)) = visitor.ask(&path) else {
            refused_by_nginx += 1;
            continue;
        };
        let map = AuthorizeMap::original();
        let headers = [("x-original-uri", sent.as_bytes())];
        let Ok(query) = authorize("shop", headers.into_iter(), &map) else {
            continue;
        };
        let ours = query.descriptors()[0].get("path").unwrap().to_vec();
        assert_eq!(
            String::from_utf8(ours).unwrap(),
            as_the_application_takes(&got),
            "path {number}: {path} was handed on as {got}"
        );
        read += 1;
    }
    assert!(
        read > 3_000,
        "{read} read, {refused_by_nginx} refused by nginx"
    );
    assert!(refused_by_nginx > 100, "{refused_by_nginx}");
}

/// A path made of pieces that have a meaning for some server, the same for each number.
fn generated_path(number: u64) -> String {
    const PIECES: [&str; 28] = [
        "a", "b", "login", "LOGIN", ".", "..", "...", "/", "/", "/", "//", "/./", "/../", "%2e",
        "%2E%2e", "%6c", "%6Cogin", "%2f", "%5c", "%20", "%25", "%256c", ";", "%3b", ";a=1",
        "%C3%A9", "%2C", "%zz",
    ];
    let mut state = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut draw = |most: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % most
    };
    let mut path = String::from("/");
    for _ in 0..=draw(7) {
        // Pieces that make most paths invalid are rare.
        let piece = match draw(30) {
            29 => 17 + draw(11),
            _ => draw(17),
        };
        path.push_str(PIECES[usize::try_from(piece).unwrap()]);
    }
    path
}

/// A path that nginx has resolved, as an application reads it that decodes once, cuts `;` and takes `/a/` for
/// `/a`: written without a line of the code under test.
fn as_the_application_takes(path: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = path.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..2).filter(|_| *first == b'%');
        let digits = digits.map(|digits| std::str::from_utf8(digits).unwrap());
        match digits {
            Some(digits) => {
                bytes.push(u8::from_str_radix(digits, 16).unwrap());
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    let mut text = String::new();
    for segment in bytes.split(|byte| *byte == b'/') {
        let name = segment.split(|byte| *byte == b';').next().unwrap();
        if name.is_empty() {
            continue;
        }
        text.push('/');
        for byte in name {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => text.push(char::from(*byte)),
                b'.' | b',' | b'=' | b'-' => text.push(char::from(*byte)),
                byte => text.push_str(&format!("%{byte:02X}")),
            }
        }
    }
    if text.is_empty() {
        "/".to_owned()
    } else {
        text
    }
}

/// An application that answers with the path of the request and the header of a recipe.
struct Echo {
    port: u16,
}

impl Echo {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut reader = BufReader::new(stream);
                let Some(body) = Self::seen(&mut reader) else {
                    continue;
                };
                let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length:";
                let answer = format!("{head} {}\r\n\r\n{body}", body.len());
                drop(reader.get_mut().write_all(answer.as_bytes()));
            }
        });
        Self { port }
    }

    /// The path and the header, on a line each.
    fn seen(reader: &mut BufReader<TcpStream>) -> Option<String> {
        let (mut first, mut line, mut sent) = (String::new(), String::new(), String::new());
        reader.read_line(&mut first).ok()?;
        while reader.read_line(&mut line).ok()? > 2 {
            if let Some(value) = line.strip_prefix("X-Original-URI: ") {
                value.trim_end().clone_into(&mut sent);
            }
            line.clear();
        }
        Some(format!("{}\n{sent}", first.split(' ').nth(1)?))
    }
}

/// A visitor that asks for paths unchanged, on one connection while it lasts.
struct Visitor {
    port: u16,
    reader: BufReader<TcpStream>,
}

impl Visitor {
    fn connect(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let reader = BufReader::new(stream);
        Self { port, reader }
    }

    /// The path that the application got, and the one that the gateway made of it; `None` if the gateway refused.
    fn ask(&mut self, path: &str) -> Option<(String, String)> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: shop.example\r\n\r\n");
        self.reader.get_mut().write_all(request.as_bytes()).unwrap();
        let (mut first, mut line, mut length) = (String::new(), String::new(), 0);
        self.reader.read_line(&mut first).unwrap();
        while self.reader.read_line(&mut line).unwrap() > 2 {
            if let Some(value) = line.strip_prefix("Content-Length: ") {
                length = value.trim().parse().unwrap();
            }
            line.clear();
        }
        let mut body = vec![0; length];
        self.reader.read_exact(&mut body).unwrap();
        if !first.starts_with("HTTP/1.1 200") {
            assert!(first.starts_with("HTTP/1.1 400"), "{path}: {first}");
            *self = Self::connect(self.port);
            return None;
        }
        let body = String::from_utf8(body).unwrap();
        let (got, sent) = body.split_once('\n').unwrap();
        Some((got.to_owned(), sent.to_owned()))
    }
}
