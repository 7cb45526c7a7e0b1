//! Origin: refuses requests that a stranger's web page made somebody's browser send.
//!
//! A page can have its own host name resolve to this machine (DNS rebinding), and may then read the
//! answers; but its requests carry that name. So the server answers only to names that no stranger can
//! own: addresses, `localhost`, and those that the operator allows. `/v1/authorize` receives the host
//! names of the sites behind its gateway, and the headers of their visitors. There a request with an
//! unknown name, or that a browser sent across sites, is refused unless it has a gateway's headers. A
//! page whose name resolves to this machine can send such headers as well, but its requests carry the
//! port of this listener beside the name, which those of a site do not. `Sec-Fetch-Site` does not help
//! there: browsers send it over https, and to this machine only under its own names.

use std::net::{IpAddr, Ipv6Addr};

use axum::http::Request;
use axum::http::header::HOST;
use quell::Operation;
use quell_protocol::http::{AuthorizeMap, Problem, ProblemKind, Question, Reading};

use crate::config::Config;

/// The path that gateways call.
const AUTHORIZE: &str = "/v1/authorize";

/// The head of a request, whoever parsed it.
pub(super) trait Head {
    /// The path of the request.
    fn path(&self) -> &str;
    /// The host names that it was sent to.
    fn hosts(&self) -> impl Iterator<Item = &[u8]>;
    /// The first header of a name.
    fn field(&self, name: &str) -> Option<&[u8]>;
    /// Whether there are several headers of a name.
    fn is_repeated(&self, name: &str) -> bool;
}

impl<B> Head for Request<B> {
    fn path(&self) -> &str {
        self.uri().path()
    }

    fn hosts(&self) -> impl Iterator<Item = &[u8]> {
        let authority = self.uri().authority().map(|name| name.as_str().as_bytes());
        let fields = self.headers().get_all(HOST).iter();
        authority
            .into_iter()
            .chain(fields.map(|value| value.as_bytes()))
    }

    fn field(&self, name: &str) -> Option<&[u8]> {
        self.headers().get(name).map(|value| value.as_bytes())
    }

    fn is_repeated(&self, name: &str) -> bool {
        self.headers().get_all(name).iter().nth(1).is_some()
    }
}

impl Head for Question<'_> {
    fn path(&self) -> &str {
        match self.operation {
            Operation::Acquire => "/v1/acquire",
            Operation::Peek => "/v1/peek",
        }
    }

    fn hosts(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::once(self.host)
    }

    fn field(&self, name: &str) -> Option<&[u8]> {
        match name {
            "authorization" => self.authorization,
            "x-quell-token" => self.token,
            _ => None,
        }
    }

    /// A request with two of those above is no [`Question`].
    fn is_repeated(&self, _: &str) -> bool {
        false
    }
}

/// Refuses a request that a stranger's page may have made a browser send.
///
/// Every request passes here before anything is decided. `port` is that of the listener. A Unix socket
/// has none, and no page can make a browser send anything there.
#[inline]
pub(super) fn admit(
    head: &impl Head,
    port: Option<u16>,
    config: &Config,
) -> Result<(), Box<Problem>> {
    let Some(port) = port else {
        return Ok(());
    };
    let hosts = head.hosts();
    let mut unknown = hosts
        .filter(|host| !is_answered(host, &config.allow_host))
        .peekable();
    if head.path() == AUTHORIZE {
        let is_unknown = unknown.peek().is_some();
        check_gateway(head, is_unknown, &config.authorize.map)?;
        let page = unknown.find(|host| is_page(host, port));
        page.map_or(Ok(()), refuse)
    } else {
        unknown.next().map_or(Ok(()), refuse)
    }
}

/// The longest host name that is kept: the longest one of DNS, and a port.
const MAX_KEPT: usize = 260;

/// The host name that the last question of a connection was sent to. The next one is nearly always sent to the
/// same, and then nothing is read in it again.
#[derive(Debug, Default)]
pub(super) struct LastHost(Vec<u8>);

impl LastHost {
    /// [`admit`] for a question, which no gateway sends.
    pub(super) fn admit(
        &mut self,
        question: &Question<'_>,
        port: Option<u16>,
        config: &Config,
    ) -> Result<(), Box<Problem>> {
        if question.host == self.0 {
            return Ok(());
        }
        admit(question, port, config)?;
        if question.host.len() <= MAX_KEPT {
            self.0.clear();
            self.0.extend_from_slice(question.host);
        }
        Ok(())
    }
}

/// Whether a page may have been loaded from this host before the name was pointed here: a name that
/// somebody can register has a dot, and the port is that of this listener.
fn is_page(host: &[u8], port: u16) -> bool {
    let is_here = host.ends_with(format!(":{port}").as_bytes());
    is_here && without_port(host).contains(&b'.')
}

/// Refuses a request for a host name that a stranger can own.
fn refuse(host: &[u8]) -> Result<(), Box<Problem>> {
    let name = String::from_utf8_lossy(without_port(host)).into_owned();
    let detail = format!(
        "this server is not asked by the name {name:?}: ask by its address, or start it with \
         --allow-host {name}"
    );
    Err(Box::new(Problem::new(ProblemKind::Forbidden, detail)))
}

/// Whether the server answers to this host.
fn is_answered(host: &[u8], allowed: &[String]) -> bool {
    let Ok(name) = std::str::from_utf8(without_port(host)) else {
        return false;
    };
    // An address always means the same machine. A client that sends no host is not a browser.
    let literal = name
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    if name.is_empty() || literal.unwrap_or(name).parse::<IpAddr>().is_ok() {
        return true;
    }
    let name = name.strip_suffix('.').unwrap_or(name);
    let is = |other: &str| other == "*" || name.eq_ignore_ascii_case(other.trim_end_matches('.'));
    is("localhost") || is_below_localhost(name) || allowed.iter().any(|allowed| is(allowed))
}

/// Whether a name ends in `.localhost`, which browsers do not look up.
fn is_below_localhost(name: &str) -> bool {
    let last = name.rsplit_once('.').map(|(_, last)| last);
    last.is_some_and(|last| last.eq_ignore_ascii_case("localhost"))
}

/// Whether a host is a name or an address, with a port or without, and nothing that means something to a shell but
/// the brackets of an address.
pub(super) fn is_address(host: &str) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, port),
        _ => (host, "80"),
    };
    let literal = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'));
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
    let is_name = match literal {
        Some(literal) => literal.parse::<Ipv6Addr>().is_ok(),
        None => !name.is_empty() && name.bytes().all(is_of_name),
    };
    is_name && port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok()
}

/// A host without its port.
fn without_port(host: &[u8]) -> &[u8] {
    let end = host.iter().rposition(|byte| !byte.is_ascii_digit());
    match end {
        Some(end) if host.get(end) == Some(&b':') => host.get(..end).unwrap_or_default(),
        _ => host,
    }
}

/// Refuses a request that a page may have sent: it has no header of a gateway that tells the path.
fn check_gateway(
    head: &impl Head,
    is_unknown: bool,
    map: &AuthorizeMap,
) -> Result<(), Box<Problem>> {
    let site = head.field("sec-fetch-site");
    let is_across = matches!(site, Some(b"cross-site" | b"same-site"));
    let uris = map.entries.iter();
    let mut uris = uris.filter(|source| source.reading == Reading::Path);
    let is_asked_about = |header: &String| head.field(header).is_some();
    let suspicious = is_across || is_unknown;
    if !suspicious || uris.any(|source| source.headers.iter().any(is_asked_about)) {
        return Ok(());
    }
    let detail = "a page of another site may have sent this, since it has none of a gateway's headers: have \
                  the gateway send X-Original-URI or X-Forwarded-Uri";
    Err(Box::new(Problem::new(ProblemKind::Forbidden, detail)))
}

#[cfg(test)]
mod tests {
    use quell_protocol::http::find_question;

    use super::*;

    #[test]
    fn names_that_no_stranger_can_own_are_answered() {
        let allowed = ["quell.internal".to_owned()];
        for (host, expected) in [
            ("", true),
            ("127.0.0.1:8080", true),
            ("127.0.0.1", true),
            ("10.1.2.3:80", true),
            ("[::1]:8080", true),
            ("[fe80::1]", true),
            ("localhost:8080", true),
            ("LocalHost", true),
            ("app.localhost:1", true),
            ("Quell.Internal.:8080", true),
            ("evil.example", false),
            ("evil.example:8080", false),
            ("127.0.0.1.evil.example", false),
            ("localhost.evil.example", false),
            ("evillocalhost", false),
            ("a@127.0.0.1", false),
            ("127.0.0.1:x", false),
            ("127.0.0.1, evil.example", false),
            ("x.quell.internal", false),
            ("[::1", false),
            ("0x7f000001", false),
            ("2130706433", false),
        ] {
            assert_eq!(is_answered(host.as_bytes(), &allowed), expected, "{host}");
        }
        assert!(!is_answered(b"\xff", &allowed));
        assert!(is_answered(b"evil.example", &["*".to_owned()]));
    }

    #[test]
    fn an_address_is_a_name_or_an_ip_with_a_port_or_none() {
        for host in [
            "a",
            "a-b.example:80",
            "127.0.0.1:65535",
            "[::1]",
            "[fe80::1]:8080",
        ] {
            assert!(is_address(host), "{host}");
        }
        let refused = [
            "", ":80", "a:", "a:65536", "a:+80", "a:-1", "a b", "a;b", "$(a)", "a@b",
        ];
        let others = ["[::1", "[::1;]:80", "[a]", "::1", "a/b", "a\n", "\u{e9}"];
        for host in refused.iter().chain(&others) {
            assert!(!is_address(host), "{host}");
        }
    }

    #[test]
    fn each_other_name_on_a_connection_is_looked_at() {
        let (mut last, config) = (LastHost::default(), Config::default());
        let long = format!("{}.localhost", "a".repeat(400));
        for (host, expected) in [
            ("localhost:8080", true),
            ("localhost:8080", true),
            ("evil.example", false),
            ("evil.example", false),
            ("localhost:8080", true),
            ("127.0.0.1", true),
            (&long, true),
            ("evil.example", false),
            ("", true),
        ] {
            let request = format!(
                "POST /v1/acquire HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}"
            );
            let question = find_question(request.as_bytes()).unwrap();
            let admitted = last.admit(&question, Some(8080), &config);
            assert_eq!(admitted.is_ok(), expected, "{host}");
            assert!(last.0.len() <= MAX_KEPT);
        }
    }
}
