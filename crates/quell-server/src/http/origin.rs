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

use quell_protocol::http::{AuthorizeMap, Problem, ProblemKind, Question, Reading};

use quell_host::head::{Head, is_answered, refuse, without_port};

use crate::config::Config;

/// The path that gateways call.
const AUTHORIZE: &str = "/v1/authorize";

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

/// Returns true if a page may have been loaded from this host before the name was pointed here: a name that
/// can be registered has a dot, and the port is that of this listener.
fn is_page(host: &[u8], port: u16) -> bool {
    let is_here = host.ends_with(format!(":{port}").as_bytes());
    is_here && without_port(host).contains(&b'.')
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
