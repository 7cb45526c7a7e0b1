//! Redis URL: `REDIS_URL` and what stands beside it, as the URL of a store.

use std::fmt::Write as _;

/// The variables that say where states are.
pub(super) struct RedisVariables<'a> {
    /// `REDIS_URL`.
    pub(super) url: &'a str,
    /// `REDIS_TYPE`.
    pub(super) kind: &'a str,
    /// `REDIS_AUTH`.
    pub(super) auth: Option<&'a str>,
    /// `REDIS_TLS`.
    pub(super) is_tls: bool,
}

/// The URL of a store.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RedisUrl {
    pub(super) text: String,
    /// A line of the log about it.
    pub(super) note: Option<&'static str>,
}

impl RedisVariables<'_> {
    /// The store that they mean.
    ///
    /// # Errors
    /// A text that says what to write, without a password.
    pub(super) fn url(&self) -> Result<RedisUrl, String> {
        let mut note = None;
        let text = match &*self.kind.to_ascii_uppercase() {
            // A password may have commas here.
            "SINGLE" => self.join("", &[Server::parse(self.url)?], false)?,
            "CLUSTER" => self.join("+cluster", &servers(self.url)?, false)?,
            "SENTINEL" => {
                let (master, sentinels) = self
                    .url
                    .split_once(',')
                    .ok_or("REDIS_URL: there are no sentinels: write MASTER,HOST:PORT,HOST:PORT")?;
                let sentinels = servers(sentinels)?;
                note = sentinels
                    .iter()
                    .any(|sentinel| sentinel.login.is_some())
                    .then_some(
                    "REDIS_URL has a login: sentinels get no password, and servers that of REDIS_AUTH or else this one",
                );
                let url = self.join("+sentinel", &sentinels, true)?;
                format!("{url}?master={}", encoded(master))
            }
            _ => {
                return Err(format!(
                    "REDIS_TYPE: `{}` is none: write SINGLE, SENTINEL or CLUSTER",
                    self.kind
                ));
            }
        };
        Ok(RedisUrl { text, note })
    }

    /// One URL of all servers; a login of their own comes before `REDIS_AUTH`, or after it.
    fn join(
        &self,
        kind: &str,
        servers: &[Server<'_>],
        auth_is_first: bool,
    ) -> Result<String, String> {
        let is_tls = common(servers, "schemes", |server| server.is_tls)?;
        let scheme = match self.is_tls || is_tls == Some(true) {
            true => "rediss",
            false => "redis",
        };
        let own = common(servers, "logins", |server| server.login)?.map(own_login);
        let auth = self.auth.map(auth_login);
        let login = match auth_is_first {
            true => auth.or(own),
            false => own.or(auth),
        };
        let mut url = format!("{scheme}{kind}://");
        if let Some(login) = login {
            url.push_str(&login);
            url.push('@');
        }
        let hosts: Vec<&str> = servers.iter().map(|server| server.host).collect();
        url.push_str(&hosts.join(","));
        if let Some(database) = common(servers, "databases", |server| server.database)? {
            url.push('/');
            url.push_str(database);
        }
        Ok(url)
    }
}

/// A server of `REDIS_URL`: `HOST:PORT`, or a URL.
struct Server<'a> {
    is_tls: Option<bool>,
    login: Option<&'a str>,
    host: &'a str,
    database: Option<&'a str>,
}

impl<'a> Server<'a> {
    /// Errors show nothing of the text: a login may be anywhere in it.
    fn parse(text: &'a str) -> Result<Self, String> {
        let (is_tls, rest) = match text.split_once("://") {
            None => (None, text),
            Some(("redis" | "valkey", rest)) => (Some(false), rest),
            Some(("rediss" | "valkeys", rest)) => (Some(true), rest),
            Some(_) => {
                return Err(
                    "REDIS_URL: its scheme is not one of Redis: write redis:// or rediss://"
                        .to_owned(),
                );
            }
        };
        let (login, rest) = match rest.rsplit_once('@') {
            None => (None, rest),
            Some((login, rest)) => (Some(login).filter(|login| !login.is_empty()), rest),
        };
        if rest.contains('?') {
            return Err(
                "REDIS_URL: options after ? are not read: write redis://USER:PASSWORD@HOST:PORT/DATABASE"
                    .to_owned(),
            );
        }
        let (host, database) = rest.split_once('/').unwrap_or((rest, ""));
        Ok(Self {
            is_tls,
            login,
            host,
            database: Some(database).filter(|database| !database.is_empty()),
        })
    }
}

fn servers(text: &str) -> Result<Vec<Server<'_>>, String> {
    text.split(',').map(Server::parse).collect()
}

/// The one value of all servers that have a value.
fn common<'a, T: PartialEq>(
    servers: &[Server<'a>],
    name: &str,
    of: impl Fn(&Server<'a>) -> Option<T>,
) -> Result<Option<T>, String> {
    let mut values = servers.iter().filter_map(of);
    let first = values.next();
    match values.all(|value| first.as_ref() == Some(&value)) {
        true => Ok(first),
        false => Err(format!(
            "REDIS_URL: its servers have different {name}: write the same for each"
        )),
    }
}

/// The login of a URL, in which characters may be escaped or not.
fn own_login(login: &str) -> String {
    let escaped = |text: &str| {
        let parts: Vec<String> = text.split('%').map(encoded).collect();
        parts.join("%")
    };
    match login.split_once(':') {
        Some((user, password)) => format!("{}:{}", escaped(user), escaped(password)),
        None => escaped(login),
    }
}

/// The login of `REDIS_AUTH`: `USER:PASSWORD`, or a password.
fn auth_login(auth: &str) -> String {
    let (user, password) = auth.split_once(':').unwrap_or(("", auth));
    format!("{}:{}", encoded(user), encoded(password))
}

/// A part of a URL, in which everything that could have a meaning is written as `%41`.
fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
                encoded.push(char::from(byte));
            }
            // Writing to a string cannot fail.
            _ => drop(write!(encoded, "%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use quell_server::config::RawConfig;

    use super::*;

    fn variables<'a>(kind: &'a str, url: &'a str, auth: Option<&'a str>) -> RedisVariables<'a> {
        RedisVariables {
            url,
            kind,
            auth,
            is_tls: false,
        }
    }

    /// The examples with a scheme on each server are those of the other service.
    #[test]
    fn each_server_may_have_a_scheme_and_a_login() {
        for (kind, url, auth, expected) in [
            ("SINGLE", "a:1", None, "redis://a:1"),
            ("SINGLE", "redis://:x,y@a:1/2", None, "redis://:x%2Cy@a:1/2"),
            ("SINGLE", "a:1", Some("p@ss"), "redis://:p%40ss@a:1"),
            ("SINGLE", "u:p@a:1", Some("q"), "redis://u:p@a:1"),
            ("cluster", "a:1,b:2", None, "redis+cluster://a:1,b:2"),
            (
                "CLUSTER",
                "redis://u:p@a:1,redis://u:p@b:2",
                None,
                "redis+cluster://u:p@a:1,b:2",
            ),
            (
                "CLUSTER",
                "redis://u:b@r?%41@a:1/0,redis://u:b@r?%41@b:2/0",
                None,
                "redis+cluster://u:b%40r%3F%41@a:1,b:2/0",
            ),
            (
                "CLUSTER",
                "rediss://u:p@a:1,b:2",
                None,
                "rediss+cluster://u:p@a:1,b:2",
            ),
            (
                "SENTINEL",
                "mymaster,redis://u:p@s1:1,redis://u:p@s2:2",
                None,
                "redis+sentinel://u:p@s1:1,s2:2?master=mymaster",
            ),
            (
                "SENTINEL",
                "m&m,redis://u:p@s1:1/3,redis://u:p@s2:2/3",
                Some("q"),
                "redis+sentinel://:q@s1:1,s2:2/3?master=m%26m",
            ),
        ] {
            let read = variables(kind, url, auth).url().unwrap();
            assert_eq!(read.text, expected, "{url}");
            let raw = RawConfig {
                store: Some(read.text),
                ..RawConfig::default()
            };
            raw.resolve().unwrap();
            let has_note = kind == "SENTINEL" && url.contains('@');
            assert_eq!(read.note.is_some(), has_note, "{url}");
        }
    }

    #[test]
    fn mistakes_say_what_to_write_and_show_no_password() {
        for (kind, url, expected) in [
            (
                "CLUSTER",
                "redis://u:hunter2@a:1,redis://u:hunter3@b:2",
                "different logins",
            ),
            (
                "CLUSTER",
                "rediss://u:hunter2@a:1,redis://b:2",
                "different schemes",
            ),
            ("SENTINEL", "m,u:hunter2@a/1,b/2", "different databases"),
            ("SENTINEL", "u:hunter2@a:1", "there are no sentinels"),
            ("SINGLE", "http://u:hunter2@a:1", "write redis://"),
            ("SINGLE", "redis://a:1?password=hunter2", "options after ?"),
            ("MANY", "u:hunter2@a:1", "REDIS_TYPE: `MANY`"),
        ] {
            let error = variables(kind, url, None).url().unwrap_err();
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains("hunter"), "{error}");
        }
    }
}
