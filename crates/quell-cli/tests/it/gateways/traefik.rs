//! Traefik, which is not in Debian, by what its source does to headers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use serde_json::Value;

use super::{Application, blocks, cdn, check_callers, proxy_before, serve, serve_behind_proxies};
use crate::clients::yaml;
use crate::files::Folder;
use crate::server::Server;

/// Treatment of headers by Traefik 3, read in its source (`middlewares/forwardedheaders`,
/// `middlewares/headers` and `middlewares/auth/forward.go`), which is not in Debian. It does what the
/// configuration says that the page has.
struct Traefik {
    trusted: Vec<String>,
    dropped: Vec<String>,
    for_quell: Vec<String>,
    trusts_forwarded: bool,
    target: String,
    server: u16,
    application: u16,
}

type Headers = Vec<(String, String)>;

impl Traefik {
    /// Serves until the tests are over: it uses nothing but a port, which it returns.
    fn start(configuration: &str, server: &Server, application: &Application) -> u16 {
        let settings = yaml(configuration).remove(0);
        let words = |value: &Value| -> Vec<String> {
            let words = value.as_array().into_iter().flatten();
            words
                .map(|word| word.as_str().unwrap().to_ascii_lowercase())
                .collect()
        };
        let middlewares = &settings["http"]["middlewares"];
        let dropped = middlewares["no-lies"]["headers"]["customRequestHeaders"].as_object();
        let forward = &middlewares["quell"]["forwardAuth"];
        let address = forward["address"].as_str().unwrap();
        let traefik = Self {
            trusted: words(&settings["entryPoints"]["web"]["forwardedHeaders"]["trustedIPs"]),
            dropped: { dropped.into_iter().flatten() }
                .map(|(name, value)| {
                    assert_eq!(value, "", "{name}");
                    name.to_ascii_lowercase()
                })
                .collect(),
            for_quell: words(&forward["authRequestHeaders"]),
            trusts_forwarded: forward["trustForwardHeader"] == true,
            target: address
                .strip_prefix("http://127.0.0.1:8080")
                .unwrap()
                .to_owned(),
            server: server.http,
            application: application.port,
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = traefik.pass_on(stream);
            }
        });
        port
    }

    /// Passes one request on, if Quell allows it.
    fn pass_on(&self, stream: TcpStream) -> Option<()> {
        let peer = stream.peer_addr().ok()?.ip().to_string();
        let mut reader = BufReader::new(stream);
        let (mut first, mut line, mut headers) = (String::new(), String::new(), Headers::new());
        reader.read_line(&mut first).ok()?;
        while reader.read_line(&mut line).ok()? > 2 {
            let (name, value) = line.trim_end().split_once(':')?;
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
            line.clear();
        }
        let length = value(&headers, "content-length").map_or(Some(0), |text| text.parse().ok())?;
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        if !self.trusted.contains(&format!("{peer}/32")) {
            headers.retain(|(name, _)| !name.starts_with("x-forwarded-") && name != "x-real-ip");
        }
        let host = value(&headers, "host")?.to_owned();
        for (name, default) in [("x-real-ip", &peer), ("x-forwarded-host", &host)] {
            if value(&headers, name).is_none() {
                headers.push((name.to_owned(), default.clone()));
            }
        }
        headers.retain(|(name, _)| !self.dropped.contains(name));
        let question = self.question(&first, &host, &peer, &headers)?;
        let answer = exchange(self.server, question.as_bytes())?;
        let answer = match answer.starts_with(b"HTTP/1.1 2") {
            true => {
                let head = format!("{}\r\nContent-Length: {length}\r\n\r\n", first.trim_end());
                exchange(self.application, &[head.as_bytes(), &body].concat())?
            }
            false => answer,
        };
        reader.get_mut().write_all(&answer).ok()
    }

    /// The request to Quell.
    fn question(&self, first: &str, host: &str, peer: &str, headers: &Headers) -> Option<String> {
        let mut words = first.split(' ');
        let (method, uri) = (words.next()?, words.next()?);
        let trusted = |name| value(headers, name).filter(|_| self.trusts_forwarded);
        let mut chain: Vec<&str> = { headers.iter() }
            .filter(|(name, _)| self.trusts_forwarded && name == "x-forwarded-for")
            .map(|(_, value)| value.as_str())
            .collect();
        chain.push(peer);
        let own = [
            ("x-forwarded-for", chain.join(", ")),
            (
                "x-forwarded-method",
                trusted("x-forwarded-method").unwrap_or(method).to_owned(),
            ),
            (
                "x-forwarded-host",
                trusted("x-forwarded-host").unwrap_or(host).to_owned(),
            ),
            (
                "x-forwarded-uri",
                trusted("x-forwarded-uri").unwrap_or(uri).to_owned(),
            ),
        ];
        let mut question = format!(
            "GET {} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n",
            self.target
        );
        let passed = headers.iter().filter(|(name, _)| {
            self.for_quell.contains(name) && own.iter().all(|(other, _)| name != other)
        });
        for (name, value) in passed {
            question += &format!("{name}: {value}\r\n");
        }
        for (name, value) in &own {
            question += &format!("{name}: {value}\r\n");
        }
        Some(question + "\r\n")
    }
}

/// The value of the first header of this name.
fn value<'a>(headers: &'a Headers, name: &str) -> Option<&'a str> {
    let mut headers = headers.iter();
    let found = headers.find(|(other, _)| other == name)?;
    Some(&found.1)
}

/// The whole answer of a server that closes its connection after it.
fn exchange(port: u16, request: &[u8]) -> Option<Vec<u8>> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.write_all(request).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    Some(answer)
}

#[test]
fn the_headers_of_traefik_tell_callers_apart() {
    let (folder, application) = (Folder::new(), Application::start());
    let server = serve(&folder, "forwarded");
    check_callers(Traefik::start(&blocks("Traefik")[0], &server, &application));
    server.stop();
}

#[test]
fn the_headers_of_traefik_behind_a_proxy_tell_callers_apart() {
    let (folder, application) = (Folder::new(), Application::start());
    let server = serve_behind_proxies(&folder);
    let configuration = format!("{}{}", cdn(2), blocks("Behind a CDN")[3]);
    let traefik = Traefik::start(&configuration, &server, &application);
    check_callers(proxy_before(traefik).port);
    server.stop();
}
