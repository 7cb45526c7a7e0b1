//! Client: asks a running server over HTTP, and says what to do when there is none.

mod tls;
mod unix;

use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use quell_protocol::http::{PROBLEM_JSON, Problem};
use quell_protocol::printable;
use ureq::http::{Response, Uri};
use ureq::unversioned::resolver::DefaultResolver;
use ureq::{Agent, Body, RequestBuilder};

use crate::exit::{NoAnswer, Usage};
use tls::Certificates;
use unix::UnixConnector;

/// Longest time of a server's answer: it decides in microseconds, so ten seconds mean that something is
/// wrong.
const TIMEOUT: Duration = Duration::from_secs(10);

/// URL of the server.
#[derive(Debug, Args)]
pub(crate) struct ServerUrl {
    /// The address of the server's HTTP listener, or of that for administration: http://, https:// or
    /// unix:PATH
    #[arg(
        long,
        env = "QUELL_URL",
        value_name = "URL",
        default_value = "http://127.0.0.1:8080",
        value_parser = server_url
    )]
    url: String,

    #[command(flatten)]
    credentials: ClientCredentials,
}

/// Credentials that a client presents to a server, and the CA by which it trusts one.
#[derive(Clone, Debug, Args)]
pub(crate) struct ClientCredentials {
    /// A file with the token to show, if the server has credentials; without it, the token is that in
    /// the variable QUELL_TOKEN
    #[arg(long, env = "QUELL_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,

    #[command(flatten)]
    certificates: Certificates,
}

/// The variable with a token. There is no flag for it: everybody on a machine can read the arguments of
/// its processes.
const TOKEN: &str = "QUELL_TOKEN";

/// Prefix of the address of a server with TLS.
const HTTPS: &str = "https://";

/// Prefix of the path of a Unix socket.
const UNIX: &str = "unix:";

/// A server to ask.
#[derive(Debug)]
pub(crate) struct Client {
    agent: Agent,
    /// As it was written.
    url: String,
    /// The command that starts such a server.
    start: &'static str,
    /// URL to which the path of a request is appended.
    base: String,
    /// The value of `Authorization`.
    authorization: Option<String>,
}

/// Answer of a server.
#[derive(Debug)]
pub(crate) struct HttpResponse {
    status: u16,
    content_type: String,
    /// The body as it came.
    pub(crate) text: String,
}

/// Reads the address of a server.
pub(crate) fn server_url(text: &str) -> Result<String, String> {
    let url = text.trim_end_matches('/');
    if url.strip_prefix(UNIX).is_some_and(|path| !path.is_empty()) {
        return Ok(url.to_owned());
    }
    let rest = url.strip_prefix("http://");
    let Some(rest) = rest.or_else(|| url.strip_prefix(HTTPS)) else {
        return Err(format!(
            "`{url}` is not an address of a server: write where it listens after http://, https:// or \
             unix:, such as http://127.0.0.1:8080"
        ));
    };
    if rest.is_empty() || url.parse::<Uri>().is_err() {
        return Err(format!(
            "`{url}` is not an address of a server: write one such as http://127.0.0.1:8080"
        ));
    }
    Ok(url.to_owned())
}

impl ServerUrl {
    /// A client of this server. Nothing is sent yet.
    ///
    /// # Errors
    /// [`Usage`] if the token or a certificate cannot be read.
    pub(crate) fn client(&self) -> Result<Client> {
        self.credentials.client(&self.url, "quell serve")
    }
}

impl ClientCredentials {
    /// A client of the server at `url`, which the command `start` starts. Nothing is sent yet.
    ///
    /// # Errors
    /// As [`ServerUrl::client`].
    pub(crate) fn client(&self, url: &str, start: &'static str) -> Result<Client> {
        let client = self.build(url, start);
        client.map_err(|error| Usage(format!("{error:#}")).into())
    }

    /// Returns true if the CA that vouches for servers was named, instead of all that the machine trusts.
    pub(crate) const fn has_authority(&self) -> bool {
        self.certificates.has_authority()
    }

    fn build(&self, url: &str, start: &'static str) -> Result<Client> {
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(TIMEOUT))
            // A limiter is close by; a proxy for the web has no way to it.
            .proxy(None)
            // No server of ours sends anybody on, and what is shown to this one is for no other.
            .max_redirects(0)
            .user_agent(concat!("quell/", env!("CARGO_PKG_VERSION")));
        if url.starts_with(HTTPS) {
            config = config.tls_config(self.certificates.config()?);
        }
        let config = config.build();
        let (agent, base) = match url.strip_prefix(UNIX) {
            Some(path) => {
                let connector = UnixConnector(path.into());
                let agent = Agent::with_parts(config, connector, DefaultResolver::default());
                (agent, "http://localhost".to_owned())
            }
            None => (config.new_agent(), url.to_owned()),
        };
        Ok(Client {
            agent,
            url: url.to_owned(),
            start,
            base,
            authorization: self.token()?.map(|token| format!("Bearer {token}")),
        })
    }

    /// The token to show.
    fn token(&self) -> Result<Option<String>> {
        let text = match &self.token_file {
            Some(path) => {
                let wrong = |error| {
                    let name = path.display();
                    Usage(format!(
                        "cannot read the token in {name} ({error}): write the token's file into \
                        --token-file"
                    ))
                };
                Some(std::fs::read_to_string(path).map_err(wrong)?)
            }
            None => std::env::var(TOKEN).ok(),
        };
        let token = text.map(|text| text.trim().to_owned());
        let is_wrong =
            |token: &String| token.is_empty() || !token.bytes().all(|b| b.is_ascii_graphic());
        if token.as_ref().is_some_and(is_wrong) {
            bail!(Usage(format!(
                "the token is empty or has spaces: write what `quell token new` printed into --token-file \
                or {TOKEN}"
            )));
        }
        Ok(token)
    }
}

impl Client {
    /// Gets `path`.
    ///
    /// # Errors
    /// Why there is no answer, and what to do about it.
    pub(crate) fn get(&self, path: &str) -> Result<HttpResponse> {
        let get = self.agent.get(format!("{}{path}", self.base));
        self.read(self.authorized(get).call())
    }

    /// Posts JSON to `path`.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub(crate) fn post(&self, path: &str, json: &str) -> Result<HttpResponse> {
        let post = self.authorized(self.agent.post(format!("{}{path}", self.base)));
        self.read(post.content_type("application/json").send(json))
    }

    /// Posts lines of JSON to `path`.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub(crate) fn post_lines(&self, path: &str, lines: &str) -> Result<HttpResponse> {
        let post = self.authorized(self.agent.post(format!("{}{path}", self.base)));
        self.read(post.content_type("application/x-ndjson").send(lines))
    }

    /// Puts JSON at `path`, with a condition: the name of a header and its value.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub(crate) fn put(
        &self,
        path: &str,
        json: &str,
        condition: Option<(&str, String)>,
    ) -> Result<HttpResponse> {
        let put = self.authorized(self.agent.put(format!("{}{path}", self.base)));
        let put = conditional(put, condition);
        self.read(put.content_type("application/json").send(json))
    }

    /// Deletes what `path` names, with a condition as of [`Client::put`].
    ///
    /// # Errors
    /// As [`Client::get`].
    pub(crate) fn delete_path(
        &self,
        path: &str,
        condition: Option<(&str, String)>,
    ) -> Result<HttpResponse> {
        let delete = self.authorized(self.agent.delete(format!("{}{path}", self.base)));
        self.read(conditional(delete, condition).call())
    }

    /// Deletes at `path` what the JSON names.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub(crate) fn delete(&self, path: &str, json: &str) -> Result<HttpResponse> {
        let delete = self.authorized(self.agent.delete(format!("{}{path}", self.base)));
        let delete = delete.force_send_body().content_type("application/json");
        self.read(delete.send(json))
    }

    /// The request with the token, if there is one.
    fn authorized<B>(&self, request: RequestBuilder<B>) -> RequestBuilder<B> {
        match &self.authorization {
            Some(authorization) => request.header("authorization", authorization),
            None => request,
        }
    }

    fn read(&self, response: Result<Response<Body>, ureq::Error>) -> Result<HttpResponse> {
        let mut response = response.map_err(|error| self.no_answer(&error))?;
        let content_type = response.headers().get("content-type");
        let content_type = content_type.and_then(|value| value.to_str().ok());
        Ok(HttpResponse {
            status: response.status().as_u16(),
            content_type: content_type.unwrap_or_default().to_owned(),
            text: response
                .body_mut()
                .read_to_string()
                .map_err(|error| self.no_answer(&error))?,
        })
    }

    fn no_answer(&self, error: &ureq::Error) -> NoAnswer {
        NoAnswer(self.reason(error))
    }

    /// Reason why there is no answer, and what to do.
    fn reason(&self, error: &ureq::Error) -> String {
        let (url, start) = (&self.url, self.start);
        if let Some(reason) = tls::explain(url, error) {
            return reason;
        }
        match error {
            // A Unix socket that no server listens at is no file, or one that a dead server left.
            ureq::Error::Io(io)
                if matches!(
                    io.kind(),
                    ErrorKind::ConnectionRefused | ErrorKind::NotFound
                ) =>
            {
                format!(
                    "no server listens at {url}: start one with `{start}`, or name another with --url"
                )
            }
            ureq::Error::Io(io) if io.kind() == ErrorKind::PermissionDenied => format!(
                "you may not connect to {url}: join the group of its file, or have the server use another \
                 --unix-mode"
            ),
            ureq::Error::ConnectionFailed | ureq::Error::HostNotFound => format!(
                "{url} cannot be reached: name the server with --url, or start one with `{start}`"
            ),
            ureq::Error::Timeout(_) => format!(
                "{url} did not answer within {}s: look at its log, or name another with --url",
                TIMEOUT.as_secs()
            ),
            other => format!("no answer from {url}: {other}"),
        }
    }
}

/// The request with a header more.
fn conditional<B>(request: RequestBuilder<B>, header: Option<(&str, String)>) -> RequestBuilder<B> {
    match header {
        Some((name, value)) => request.header(name, value),
        None => request,
    }
}

impl HttpResponse {
    /// The problem that the server named.
    pub(crate) fn problem(&self) -> Option<Problem> {
        let is_problem = self.content_type.starts_with(PROBLEM_JSON);
        serde_json::from_str(&self.text).ok().filter(|_| is_problem)
    }

    /// The server's objection to the question itself: it knows nothing of what was asked about.
    pub(crate) fn wrong_question(&self) -> Option<String> {
        let problem = self
            .problem()
            .filter(|_| matches!(self.status, 400 | 404 | 422))?;
        Some(problem.detail.unwrap_or(problem.title))
    }

    /// Returns true if the caller may not do this.
    pub(crate) const fn is_forbidden(&self) -> bool {
        self.status == 403
    }

    /// Returns true for a status of success.
    pub(crate) fn is_good(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The answer, if it is a good one.
    ///
    /// # Errors
    /// Problem that the server named.
    pub(crate) fn good(self) -> Result<Self> {
        if self.is_good() {
            return Ok(self);
        }
        if let Some(problem) = self.problem() {
            let Problem {
                status,
                title,
                detail,
                pointer,
                ..
            } = problem;
            // Empty where something is missing, which the detail names.
            let pointer = pointer.filter(|pointer| !pointer.is_empty());
            let at = pointer.map(|pointer| format!(" (at {pointer})"));
            let said = format!("{}{}", detail.unwrap_or(title), at.unwrap_or_default());
            if status == 401 {
                let missing = format!(
                    "the server wants a token: write one into --token-file FILE or {TOKEN}"
                );
                bail!(NoAnswer(missing));
            }
            // One line, whatever was asked for and is repeated there.
            let said = format!("the server said {status}: {}", printable(&said));
            // It does not answer this caller, or nobody now; what it is asked about is not as the question
            // supposes; otherwise the question is wrong.
            if status == 403 || status == 408 || status >= 500 {
                bail!(NoAnswer(said));
            }
            if status == 409 || status == 412 {
                bail!(said);
            }
            bail!(Usage(said));
        }
        bail!(NoAnswer(format!(
            "the server answered {} without a reason: check that --url names a Quell server",
            self.status
        )))
    }

    /// The body as JSON.
    ///
    /// # Errors
    /// Says that it is something else.
    pub(crate) fn json<'a, T: serde::Deserialize<'a>>(&'a self) -> Result<T> {
        let read = serde_json::from_str(&self.text).map_err(|error| {
            NoAnswer(format!(
                "the answer is not that of a Quell server ({error}): check --url"
            ))
        });
        Ok(read?)
    }
}
